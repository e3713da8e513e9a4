"""The built-in rules as graphs, as a user would write them: by name, with the names of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import weft
from weft import ops
from weft.user_rule import UserRule


@weft.rule(rate=0.01, weight_decay=0.0)
def sgd(weight: Any, gradient: Any, rate: Any, weight_decay: Any) -> Any:
    return weight - rate * (gradient + weight_decay * weight)


@weft.rule(state={"velocity": 0.0}, rate=0.01, momentum=0.9, weight_decay=0.0)
def heavy_ball(weight: Any, gradient: Any, velocity: Any, rate: Any, momentum: Any, weight_decay: Any) -> Any:
    velocity = momentum * velocity + gradient + weight_decay * weight
    return weight - rate * velocity, {"velocity": velocity}


@weft.rule(state={"mean": 0.0, "variance": 0.0}, rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-8)
def adam(
    weight: Any, gradient: Any, mean: Any, variance: Any, step: Any, rate: Any, beta1: Any, beta2: Any, epsilon: Any
) -> Any:
    mean = beta1 * mean + (1 - beta1) * gradient
    variance = beta2 * variance + (1 - beta2) * gradient * gradient
    move = mean / (1 - beta1**step) / (ops.sqrt(variance / (1 - beta2**step)) + epsilon)
    return weight - rate * move, {"mean": mean, "variance": variance}


@weft.rule(state={"sum": 0.0}, rate=0.01, epsilon=1e-10, weight_decay=0.0)
def adagrad(weight: Any, gradient: Any, sum: Any, rate: Any, epsilon: Any, weight_decay: Any) -> Any:
    gradient = gradient + weight_decay * weight
    total = sum + gradient * gradient
    return weight - rate * gradient / (ops.sqrt(total) + epsilon), {"sum": total}


AS_GRAPH: Final[Mapping[str, UserRule]] = {"sgd": sgd, "momentum": heavy_ball, "adam": adam, "adagrad": adagrad}
