"""Rules as a script writes them: the models of the API, whose mistakes are told in one line.

A hyper-parameter is a number or a schedule (`weft.linear`, `weft.cosine` and the like). `multipliers` stretch some of
them for parameters by name: `{"*.bias": {"rate": 2.0, "weight_decay": 0.0}}`; the first pattern that matches counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never, TypeAlias

from weft.api import rule
from weft.arguments import checked
from weft.errors import ArgumentError
from weft_graph.rules.built_in import BUILT_IN

if TYPE_CHECKING:
    from weft.api.schedule import AnySchedule

Hyper: TypeAlias = "float | AnySchedule"
Multipliers = Mapping[str, Mapping[str, float]]


def Sgd(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    rate: Hyper = BUILT_IN["sgd"].hyper["rate"],
    *,
    momentum: Hyper = 0.0,
    weight_decay: Hyper = BUILT_IN["sgd"].hyper["weight_decay"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Sgd:
    """w -= rate * (g + weight_decay * w), with momentum m: v = m * v + g; w -= rate * v.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Sgd, unknown)
    with checked("Sgd"):
        listed = _listed(multipliers, rule.Multiplier)
        return rule.Sgd(rate=rate, momentum=momentum, weight_decay=weight_decay, multipliers=listed)


def Adam(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    rate: Hyper = BUILT_IN["adam"].hyper["rate"],
    *,
    beta1: Hyper = BUILT_IN["adam"].hyper["beta1"],
    beta2: Hyper = BUILT_IN["adam"].hyper["beta2"],
    epsilon: Hyper = BUILT_IN["adam"].hyper["epsilon"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Adam:
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Adam, unknown)
    with checked("Adam"):
        listed = _listed(multipliers, rule.Multiplier)
        return rule.Adam(rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon, multipliers=listed)


def Adagrad(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    rate: Hyper = BUILT_IN["adagrad"].hyper["rate"],
    *,
    epsilon: Hyper = BUILT_IN["adagrad"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["adagrad"].hyper["weight_decay"],
    accumulator: float = BUILT_IN["adagrad"].state["sum"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Adagrad:
    """g += weight_decay * w; s += g^2; w -= rate * g / (sqrt(s) + epsilon), s starting at `accumulator`.

    Duchi, Hazan and Singer 2011, with PyTorch's epsilon. Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Adagrad, unknown)
    with checked("Adagrad"):
        return rule.Adagrad(
            rate=rate,
            epsilon=epsilon,
            weight_decay=weight_decay,
            accumulator=accumulator,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def graph_rule(document: dict[str, Any], hyper: Mapping[str, Hyper], multipliers: Multipliers | None) -> rule.GraphRule:
    """The model of a rule of the user's own. Raises ArgumentError."""
    with checked(str(document["name"])):
        listed = _listed(multipliers, rule.GraphMultiplier)
        return rule.GraphRule(document=document, hyper=dict(hyper), multipliers=listed)


def _listed(multipliers: object, model: Any) -> list[Any]:
    """The models of `{pattern: {hyper-parameter: factor}}`. Raises ArgumentError and pydantic.ValidationError."""
    if multipliers is None:
        return []
    if not isinstance(multipliers, Mapping) or not all(isinstance(each, Mapping) for each in multipliers.values()):
        raise ArgumentError(f'multipliers are factors by pattern, {{"*.bias": {{"rate": 2.0}}}}, not {multipliers!r}')
    return [model.model_validate({**factors, "keys": pattern}) for pattern, factors in multipliers.items()]


def _check_known(model: type[rule.Sgd | rule.Adam | rule.Adagrad], unknown: dict[str, Never]) -> None:
    if unknown:
        has = ", ".join(name for name in model.model_fields if name not in ("name", "multipliers"))
        raise ArgumentError(f"{model.__name__} has no {', '.join(unknown)}; it has {has}")
