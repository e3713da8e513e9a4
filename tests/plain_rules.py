"""The update rules as their papers and textbooks have them, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def formula(name: str, weight: Array, gradients: list[Array], hyper: Mapping[str, float]) -> Array:
    """The textbook's form in float64, an array for each line."""
    w = weight.astype(np.float64)
    velocity = mean = variance = np.zeros_like(w)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.astype(np.float64)
        if name == "adam":
            mean = hyper["beta1"] * mean + (1 - hyper["beta1"]) * g
            variance = hyper["beta2"] * variance + (1 - hyper["beta2"]) * g**2
            mean_hat = mean / (1 - hyper["beta1"] ** t)
            variance_hat = variance / (1 - hyper["beta2"] ** t)
            w = w - hyper["rate"] * mean_hat / (np.sqrt(variance_hat) + hyper["epsilon"])
        elif name == "adagrad":
            g = g + hyper["weight_decay"] * w
            variance = variance + g**2
            w = w - hyper["rate"] * g / (np.sqrt(variance) + hyper["epsilon"])
        else:
            g = g + hyper["weight_decay"] * w
            velocity = hyper.get("momentum", 0.0) * velocity + g
            w = w - hyper["rate"] * velocity
    return w
