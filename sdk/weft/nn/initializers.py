"""First values of weights, as ONNX's words with numbers worked out from the weight's shape.

A weight is (out, in) or (out, in, kernel...): fan-in is the count of inputs that an output element sums, fan-out the
count of outputs that an input element goes to.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft_graph.errors import ShapeError
from weft_graph.ir import Initializer

Init = Callable[[tuple[int, ...]], Initializer]
"""What makes a parameter's initializer, given its shape."""


def constant(value: float) -> Init:
    """Every element is `value`."""
    return lambda _shape: Initializer("ConstantOfShape", {"value": float(value)})


def zeros(_shape: tuple[int, ...]) -> Initializer:
    """Every element is 0."""
    return Initializer("ConstantOfShape", {"value": 0.0})


def ones(_shape: tuple[int, ...]) -> Initializer:
    """Every element is 1."""
    return Initializer("ConstantOfShape", {"value": 1.0})


def uniform(low: float, high: float) -> Init:
    """Uniform between `low` and `high`."""
    return lambda _shape: Initializer("RandomUniform", {"low": float(low), "high": float(high)})


def normal(scale: float, mean: float = 0.0) -> Init:
    """Normal with standard deviation `scale`."""
    return lambda _shape: Initializer("RandomNormal", {"mean": float(mean), "scale": float(scale)})


def fan_in_uniform(shape: tuple[int, ...]) -> Initializer:
    """Uniform within sqrt(1 / fan-in), as PyTorch's layers start, so that a net moved from there trains alike.

    A third of the variance of LeCun et al. 1998, "Efficient BackProp", section 4.6.
    """
    bound = math.sqrt(1.0 / fans(shape)[0])
    return Initializer("RandomUniform", {"low": -bound, "high": bound})


def he_uniform(shape: tuple[int, ...]) -> Initializer:
    """Uniform within sqrt(6 / fan-in), for relu. He et al. 2015, equation 10 as a uniform distribution."""
    bound = math.sqrt(6.0 / fans(shape)[0])
    return Initializer("RandomUniform", {"low": -bound, "high": bound})


def he_normal(shape: tuple[int, ...]) -> Initializer:
    """Normal with deviation sqrt(2 / fan-in), for relu. He et al. 2015, equation 10."""
    return Initializer("RandomNormal", {"mean": 0.0, "scale": math.sqrt(2.0 / fans(shape)[0])})


def glorot_uniform(shape: tuple[int, ...]) -> Initializer:
    """Uniform within sqrt(6 / (fan-in + fan-out)), for tanh and sigmoid. Glorot and Bengio 2010, equation 16."""
    bound = math.sqrt(6.0 / sum(fans(shape)))
    return Initializer("RandomUniform", {"low": -bound, "high": bound})


def glorot_normal(shape: tuple[int, ...]) -> Initializer:
    """Normal with deviation sqrt(2 / (fan-in + fan-out)). Glorot and Bengio 2010, equation 12."""
    return Initializer("RandomNormal", {"mean": 0.0, "scale": math.sqrt(2.0 / sum(fans(shape)))})


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Fan-in and fan-out of a weight. Raises ShapeError for one that has neither."""
    if len(shape) < 2 or 0 in shape:
        raise ShapeError(f"a weight of shape {shape} has no fan-in; it is (out, in) or (out, in, kernel...)")
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window
