"""Every case of every operator that has a gradient."""

from __future__ import annotations

from gradient_case import GradientCase
from gradient_cases_activations import activation_cases, several_cases
from gradient_cases_arranging import arranging_cases
from gradient_cases_networks import network_cases
from gradient_cases_pointwise import elementwise_cases, matrix_cases
from gradient_cases_rows import row_cases
from gradient_cases_shaped import class_cases, reduction_cases, shape_cases
from gradient_cases_windowed import convolution_cases, dropout_cases, normalization_cases, pool_cases


def gradient_cases() -> list[GradientCase]:
    """Fresh records; arrays are not shared with a case that was given before."""
    return [
        *elementwise_cases(),
        *activation_cases(),
        *several_cases(),
        *arranging_cases(),
        *network_cases(),
        *matrix_cases(),
        *shape_cases(),
        *reduction_cases(),
        *class_cases(),
        *convolution_cases(),
        *pool_cases(),
        *normalization_cases(),
        *dropout_cases(),
        *row_cases(),
    ]
