"""The update rules as their papers and textbooks have them, in float64, an array for each line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
State = dict[str, Array]
Numbers = Mapping[str, float]


def formula(name: str, weight: Array, gradients: list[Array], hyper: Numbers) -> Array:
    """The weight after an update with each gradient, all states starting at 0."""
    w = weight.astype(np.float64)
    state: State = defaultdict(lambda: np.zeros_like(w))
    for t, gradient in enumerate(gradients, start=1):
        w = FORMULAS[name](w, gradient.astype(np.float64), state, t, hyper)
    return w


def _sgd(w: Array, g: Array, _state: State, _t: int, h: Numbers) -> Array:
    return w - h["lr"] * (g + h["weight_decay"] * w)


def _momentum(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """Polyak 1964, in PyTorch's form."""
    state["v"] = h["momentum"] * state["v"] + g + h["weight_decay"] * w
    return w - h["lr"] * state["v"]


def _nesterov(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """Sutskever et al. 2013, of the weight that is looked ahead from: theta = w + momentum * u, u = -lr * v."""
    before = w + h["momentum"] * h["lr"] * state["v"]
    state["v"] = h["momentum"] * state["v"] + g + h["weight_decay"] * w
    return before - h["lr"] * state["v"] - h["momentum"] * h["lr"] * state["v"]


def _direction(g: Array, state: State, t: int, h: Numbers) -> Array:
    """Kingma and Ba 2015, algorithm 1, lines 5 to 9."""
    state["m"] = h["beta1"] * state["m"] + (1 - h["beta1"]) * g
    state["v"] = h["beta2"] * state["v"] + (1 - h["beta2"]) * g**2
    mean_hat = state["m"] / (1 - h["beta1"] ** t)
    variance_hat = state["v"] / (1 - h["beta2"] ** t)
    return mean_hat / (np.sqrt(variance_hat) + h["epsilon"])


def _adam(w: Array, g: Array, state: State, t: int, h: Numbers) -> Array:
    return w - h["lr"] * _direction(g, state, t, h)


def _adamw(w: Array, g: Array, state: State, t: int, h: Numbers) -> Array:
    """Loshchilov and Hutter 2019, algorithm 2, line 12, with eta_t = lr, alpha = 1 and lambda = weight_decay."""
    return w - h["lr"] * (_direction(g, state, t, h) + h["weight_decay"] * w)


def _adagrad(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """Duchi, Hazan and Singer 2011, the diagonal form."""
    g = g + h["weight_decay"] * w
    state["s"] = state["s"] + g**2
    return w - h["lr"] * g / (np.sqrt(state["s"]) + h["epsilon"])


def _rmsprop(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """Tieleman and Hinton 2012, slide 29."""
    g = g + h["weight_decay"] * w
    state["s"] = h["decay"] * state["s"] + (1 - h["decay"]) * g**2
    return w - h["lr"] * g / (np.sqrt(state["s"]) + h["epsilon"])


def _ftrl(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """McMahan et al. 2013, algorithm 1, which works a weight out before it is used: here it is after an update."""
    sigma = (np.sqrt(state["n"] + g**2) - np.sqrt(state["n"])) / h["lr"]
    state["z"] = state["z"] + g - sigma * w
    state["n"] = state["n"] + g**2
    shrunk = state["z"] - np.sign(state["z"]) * h["l1"]
    moved = -shrunk / ((h["beta"] + np.sqrt(state["n"])) / h["lr"] + h["l2"])
    return np.where(np.abs(state["z"]) <= h["l1"], 0.0, moved)


def _ratio(numerator: float, denominator: float, trust: float) -> float:
    return trust * numerator / denominator if trust and numerator and denominator else 1.0


def _lamb(w: Array, g: Array, state: State, t: int, h: Numbers) -> Array:
    """You et al. 2020, algorithm 2."""
    update = _direction(g, state, t, h) + h["weight_decay"] * w
    ratio = _ratio(float(np.linalg.norm(w)), float(np.linalg.norm(update)), h["trust"])
    return w - h["lr"] * ratio * update


def _lars(w: Array, g: Array, state: State, _t: int, h: Numbers) -> Array:
    """You, Gitman and Ginsburg 2017, algorithm 1."""
    norm, of_gradient = float(np.linalg.norm(w)), float(np.linalg.norm(g))
    local = _ratio(norm, of_gradient + h["weight_decay"] * norm, h["trust"])
    state["v"] = h["momentum"] * state["v"] + h["lr"] * local * (g + h["weight_decay"] * w)
    return w - state["v"]


FORMULAS: Mapping[str, Callable[[Array, Array, State, int, Numbers], Array]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam,
    "adamw": _adamw,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "ftrl": _ftrl,
    "lamb": _lamb,
    "lars": _lars,
}
