"""Layers: callables that make their parameters on first use, of the element type that they are called with.

A layer that is called twice shares its parameters. `name=` names a layer's parameters and nodes (`conv1.weight`,
`conv1`); without it they are called after the layer's kind (`linear`, `linear_2`), or after their place in a
`Sequential` (`0.weight`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from weft.arguments import no_attribute
from weft.nn.activations import ELU, GELU, SELU, HardSwish, LeakyReLU, Mish, PReLU, Softplus
from weft.nn.attention import MultiHeadAttention, TransformerLayer
from weft.nn.embedding import Embedding, EmbeddingBag
from weft.nn.initializers import (
    constant,
    fan_in_uniform,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    normal,
    ones,
    uniform,
    zeros,
)
from weft.nn.layer import Layer
from weft.nn.losses import accuracy, cross_entropy, mean_squared_error
from weft.nn.normalization import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from weft.nn.recurrent import GRU, LSTM, RNN
from weft.nn.resampling import PixelShuffle, PixelUnshuffle, Upsample
from weft.nn.sequential import Sequential
from weft.nn.stateless import (
    AvgPool2d,
    Dropout,
    Flatten,
    GlobalAvgPool2d,
    GlobalMaxPool2d,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Tanh,
)
from weft.nn.transposed import ConvTranspose2d
from weft.nn.weighted import Conv2d, Linear
from weft.ops import log_softmax, relu, sigmoid, softmax, tanh

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "GlobalAvgPool2d",
    "GlobalMaxPool2d",
    "GroupNorm",
    "HardSwish",
    "InstanceNorm",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "Mish",
    "MultiHeadAttention",
    "PReLU",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softplus",
    "Tanh",
    "TransformerLayer",
    "Upsample",
    "accuracy",
    "constant",
    "cross_entropy",
    "fan_in_uniform",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "log_softmax",
    "mean_squared_error",
    "normal",
    "ones",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
    "uniform",
    "zeros",
]


if not TYPE_CHECKING:  # where names that are not there are errors already

    def __getattr__(name: str) -> Never:
        raise AttributeError(no_attribute(__name__, name, () if name.startswith("__") else __all__))
