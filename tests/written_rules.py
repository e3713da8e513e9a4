"""The built-in rules as graphs, as a user would write them: by name, with the names of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import weft
from weft import ops
from weft.optimizer_graph import CustomOptimizer


@weft.custom_optimizer(lr=0.001, weight_decay=0.0)
def sgd(weight: Any, gradient: Any, lr: Any, weight_decay: Any) -> Any:
    return weight - lr * (gradient + weight_decay * weight)


@weft.custom_optimizer(state={"velocity": 0.0}, lr=0.001, momentum=0.9, weight_decay=0.0)
def heavy_ball(weight: Any, gradient: Any, velocity: Any, lr: Any, momentum: Any, weight_decay: Any) -> Any:
    velocity = momentum * velocity + gradient + weight_decay * weight
    return weight - lr * velocity, {"velocity": velocity}


@weft.custom_optimizer(state={"mean": 0.0, "variance": 0.0}, lr=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)
def adam(
    weight: Any, gradient: Any, mean: Any, variance: Any, step: Any, lr: Any, beta1: Any, beta2: Any, epsilon: Any
) -> Any:
    mean = beta1 * mean + (1 - beta1) * gradient
    variance = beta2 * variance + (1 - beta2) * gradient * gradient
    move = mean / (1 - beta1**step) / (ops.sqrt(variance / (1 - beta2**step)) + epsilon)
    return weight - lr * move, {"mean": mean, "variance": variance}


@weft.custom_optimizer(state={"sum": 0.0}, lr=0.01, epsilon=1e-10, weight_decay=0.0)
def adagrad(weight: Any, gradient: Any, sum: Any, lr: Any, epsilon: Any, weight_decay: Any) -> Any:
    gradient = gradient + weight_decay * weight
    total = sum + gradient * gradient
    return weight - lr * gradient / (ops.sqrt(total) + epsilon), {"sum": total}


@weft.custom_optimizer(state={"velocity": 0.0}, lr=0.001, momentum=0.9, weight_decay=0.0)
def looking_ahead(weight: Any, gradient: Any, velocity: Any, lr: Any, momentum: Any, weight_decay: Any) -> Any:
    gradient = gradient + weight_decay * weight
    velocity = momentum * velocity + gradient
    return weight - lr * (gradient + momentum * velocity), {"velocity": velocity}


@weft.custom_optimizer(
    state={"mean": 0.0, "variance": 0.0}, lr=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01
)
def adamw(
    weight: Any,
    gradient: Any,
    mean: Any,
    variance: Any,
    step: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    weight_decay: Any,
) -> Any:
    mean = beta1 * mean + (1 - beta1) * gradient
    variance = beta2 * variance + (1 - beta2) * gradient * gradient
    move = mean / (1 - beta1**step) / (ops.sqrt(variance / (1 - beta2**step)) + epsilon)
    return weight - lr * (move + weight_decay * weight), {"mean": mean, "variance": variance}


@weft.custom_optimizer(state={"square": 0.0}, lr=0.01, decay=0.99, epsilon=1e-8, weight_decay=0.0)
def rmsprop(weight: Any, gradient: Any, square: Any, lr: Any, decay: Any, epsilon: Any, weight_decay: Any) -> Any:
    gradient = gradient + weight_decay * weight
    square = decay * square + (1 - decay) * gradient * gradient
    return weight - lr * gradient / (ops.sqrt(square) + epsilon), {"square": square}


@weft.custom_optimizer(state={"total": 0.0, "squares": 0.0}, lr=0.1, beta=1.0, l1=0.0, l2=0.0)
def ftrl(weight: Any, gradient: Any, total: Any, squares: Any, lr: Any, beta: Any, l1: Any, l2: Any) -> Any:
    grown = squares + gradient * gradient
    total = total + gradient - (ops.sqrt(grown) - ops.sqrt(squares)) / lr * weight
    shrunk = ops.sign(total) * ops.relu(ops.abs(total) - l1)
    return -shrunk / ((beta + ops.sqrt(grown)) / lr + l2), {"total": total, "squares": grown}


@weft.custom_optimizer(
    state={"mean": 0.0, "variance": 0.0},
    lr=0.001,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-6,
    weight_decay=0.01,
    trust=1.0,
)
def lamb(
    weight: Any,
    gradient: Any,
    mean: Any,
    variance: Any,
    step: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    epsilon: Any,
    weight_decay: Any,
    trust: Any,
) -> Any:
    """Of weights that are not all 0, with a trust that is not 0."""
    mean = beta1 * mean + (1 - beta1) * gradient
    variance = beta2 * variance + (1 - beta2) * gradient * gradient
    update = mean / (1 - beta1**step) / (ops.sqrt(variance / (1 - beta2**step)) + epsilon) + weight_decay * weight
    moved = lr * trust * ops.reduce_l2(weight) / ops.reduce_l2(update) * update
    return weight - moved, {"mean": mean, "variance": variance}


@weft.custom_optimizer(state={"velocity": 0.0}, lr=0.1, momentum=0.9, weight_decay=1e-4, trust=0.001)
def lars(weight: Any, gradient: Any, velocity: Any, lr: Any, momentum: Any, weight_decay: Any, trust: Any) -> Any:
    """Of weights that are not all 0, with a trust that is not 0."""
    norm = ops.reduce_l2(weight)
    local = trust * norm / (ops.reduce_l2(gradient) + weight_decay * norm)
    velocity = momentum * velocity + lr * local * (gradient + weight_decay * weight)
    return weight - velocity, {"velocity": velocity}


AS_GRAPH: Final[Mapping[str, CustomOptimizer]] = {
    "sgd": sgd,
    "momentum": heavy_ball,
    "nesterov": looking_ahead,
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "ftrl": ftrl,
    "lamb": lamb,
    "lars": lars,
}
