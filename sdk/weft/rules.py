"""Rules as a script writes them: the models of the API, whose mistakes are told in one line."""

from __future__ import annotations

from typing import Never

from weft.api import rule
from weft.arguments import checked
from weft.errors import ArgumentError


def Sgd(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    rate: float = 0.01, *, momentum: float = 0.0, weight_decay: float = 0.0, **unknown: Never
) -> rule.Sgd:
    """w -= rate * (g + weight_decay * w), with momentum m: v = m * v + g; w -= rate * v.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Sgd, unknown)
    with checked("Sgd"):
        return rule.Sgd(rate=rate, momentum=momentum, weight_decay=weight_decay)


def Adam(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    rate: float = 0.001, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, **unknown: Never
) -> rule.Adam:
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Adam, unknown)
    with checked("Adam"):
        return rule.Adam(rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon)


def _check_known(model: type[rule.Sgd | rule.Adam], unknown: dict[str, Never]) -> None:
    if unknown:
        has = ", ".join(name for name in model.model_fields if name != "name")
        raise ArgumentError(f"{model.__name__} has no {', '.join(unknown)}; it has {has}")
