"""Rules as a script writes them: the models of the API, whose mistakes are told in one line.

A hyper-parameter is a number or a schedule (`weft.linear`, `weft.cosine` and the like). `multipliers` stretch some of
them for parameters by name: `{"*.bias": {"lr": 2.0, "weight_decay": 0.0}}`; the first pattern that matches counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias

from weft.api import rule
from weft.arguments import checked
from weft.errors import ArgumentError
from weft_graph.rules.built_in import BUILT_IN

if TYPE_CHECKING:
    from pydantic import BaseModel

    from weft.api.rule import RuleSpec
    from weft.api.schedule import AnySchedule

Hyper: TypeAlias = "float | AnySchedule"
Multipliers = Mapping[str, Mapping[str, float]]


def Sgd(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["sgd"].hyper["lr"],
    *,
    momentum: Hyper = 0.0,
    weight_decay: Hyper = BUILT_IN["sgd"].hyper["weight_decay"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Sgd:
    """w -= lr * (g + weight_decay * w), with momentum m: v = m * v + g; w -= lr * v.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Sgd, unknown)
    with checked("Sgd"):
        listed = _listed(multipliers, rule.Multiplier)
        return rule.Sgd(lr=lr, momentum=momentum, weight_decay=weight_decay, multipliers=listed)


def Nesterov(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["nesterov"].hyper["lr"],
    *,
    momentum: Hyper = BUILT_IN["nesterov"].hyper["momentum"],
    weight_decay: Hyper = BUILT_IN["nesterov"].hyper["weight_decay"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Nesterov:
    """g += weight_decay * w; v = momentum * v + g; w -= lr * (g + momentum * v).

    Nesterov 1983 in the form of Sutskever et al. 2013, as PyTorch's SGD with `nesterov=True`.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Nesterov, unknown)
    with checked("Nesterov"):
        return rule.Nesterov(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Adam(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adam"].hyper["lr"],
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
        return rule.Adam(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, multipliers=listed)


def AdamW(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adamw"].hyper["lr"],
    *,
    beta1: Hyper = BUILT_IN["adamw"].hyper["beta1"],
    beta2: Hyper = BUILT_IN["adamw"].hyper["beta2"],
    epsilon: Hyper = BUILT_IN["adamw"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["adamw"].hyper["weight_decay"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.AdamW:
    """Adam, and w -= lr * weight_decay * w beside it: Loshchilov and Hutter 2019, as PyTorch's AdamW.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.AdamW, unknown)
    with checked("AdamW"):
        return rule.AdamW(
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Adagrad(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adagrad"].hyper["lr"],
    *,
    epsilon: Hyper = BUILT_IN["adagrad"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["adagrad"].hyper["weight_decay"],
    accumulator: float = BUILT_IN["adagrad"].state["sum"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Adagrad:
    """g += weight_decay * w; s += g^2; w -= lr * g / (sqrt(s) + epsilon), s starting at `accumulator`.

    Duchi, Hazan and Singer 2011, with PyTorch's epsilon. Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Adagrad, unknown)
    with checked("Adagrad"):
        return rule.Adagrad(
            lr=lr,
            epsilon=epsilon,
            weight_decay=weight_decay,
            accumulator=accumulator,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Rmsprop(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["rmsprop"].hyper["lr"],
    *,
    decay: Hyper = BUILT_IN["rmsprop"].hyper["decay"],
    epsilon: Hyper = BUILT_IN["rmsprop"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["rmsprop"].hyper["weight_decay"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Rmsprop:
    """g += weight_decay * w; s = decay * s + (1 - decay) * g^2; w -= lr * g / (sqrt(s) + epsilon).

    Tieleman and Hinton 2012, with PyTorch's epsilon.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Rmsprop, unknown)
    with checked("Rmsprop"):
        return rule.Rmsprop(
            lr=lr,
            decay=decay,
            epsilon=epsilon,
            weight_decay=weight_decay,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Ftrl(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["ftrl"].hyper["lr"],
    *,
    beta: float = BUILT_IN["ftrl"].hyper["beta"],
    l1: Hyper = BUILT_IN["ftrl"].hyper["l1"],
    l2: Hyper = BUILT_IN["ftrl"].hyper["l2"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Ftrl:
    """FTRL-Proximal, McMahan et al. 2013, algorithm 1, whose alpha is `lr`.

    A weight is 0 where its gradients do not add up to more than `l1`, whatever it began at.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Ftrl, unknown)
    with checked("Ftrl"):
        return rule.Ftrl(
            lr=lr,
            beta=beta,
            l1=l1,
            l2=l2,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Lamb(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["lamb"].hyper["lr"],
    *,
    beta1: Hyper = BUILT_IN["lamb"].hyper["beta1"],
    beta2: Hyper = BUILT_IN["lamb"].hyper["beta2"],
    epsilon: Hyper = BUILT_IN["lamb"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["lamb"].hyper["weight_decay"],
    trust: Hyper = BUILT_IN["lamb"].hyper["trust"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Lamb:
    """AdamW's update u, as long as the weight: w -= lr * trust * norm(w) / norm(u) * u. You et al. 2020.

    Norms are of whole parameters: none is cut over shards, and none may be a table of rows. A multiplier of 0 for
    `trust` takes the ratio away, as is usual for biases and scales.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Lamb, unknown)
    with checked("Lamb"):
        return rule.Lamb(
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            trust=trust,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


def Lars(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["lars"].hyper["lr"],
    *,
    momentum: Hyper = BUILT_IN["lars"].hyper["momentum"],
    weight_decay: Hyper = BUILT_IN["lars"].hyper["weight_decay"],
    trust: Hyper = BUILT_IN["lars"].hyper["trust"],
    multipliers: Multipliers | None = None,
    **unknown: Never,
) -> rule.Lars:
    """Momentum whose steps are `trust` times as long as the weight. You, Gitman and Ginsburg 2017, algorithm 1.

    Norms are of whole parameters: none is cut over shards, and none may be a table of rows. A multiplier of 0 for
    `trust` takes the ratio away, as is usual for biases and scales.

    Raises ArgumentError, which says what the rule has.
    """
    _check_known(rule.Lars, unknown)
    with checked("Lars"):
        return rule.Lars(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust=trust,
            multipliers=_listed(multipliers, rule.Multiplier),
        )


BY_NAME: Final[Mapping[str, Callable[..., RuleSpec]]] = {
    "sgd": Sgd,
    "nesterov": Nesterov,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": Rmsprop,
    "ftrl": Ftrl,
    "lamb": Lamb,
    "lars": Lars,
}
"""What makes the model of each rule that is asked for by name."""


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
        raise ArgumentError(f'multipliers are factors by pattern, {{"*.bias": {{"lr": 2.0}}}}, not {multipliers!r}')
    return [model.model_validate({**factors, "keys": pattern}) for pattern, factors in multipliers.items()]


def _check_known(model: type[BaseModel], unknown: dict[str, Never]) -> None:
    if unknown:
        has = ", ".join(name for name in model.model_fields if name not in ("name", "multipliers"))
        raise ArgumentError(f"{model.__name__} has no {', '.join(unknown)}; it has {has}")
