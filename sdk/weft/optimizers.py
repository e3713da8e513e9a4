"""Optimizers as a script writes them: the models of the API, whose mistakes are told in one line.

A hyper-parameter is a number or a schedule (`weft.linear`, `weft.cosine` and the like). `multipliers` stretch some of
them for parameters by name: `{"*.bias": {"lr": 2.0, "weight_decay": 0.0}}`; the first pattern that matches counts.
"""

# mypy: disable-error-code="empty-body"
# The functions are signatures: `_makes` fills in their bodies.
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from weft.api import optimizer as api
from weft.api.base import Model
from weft.arguments import checked, says_its_words
from weft.errors import ArgumentError
from weft_graph.rules.built_in import BUILT_IN

if TYPE_CHECKING:
    from weft.api.optimizer import OptimizerSpec
    from weft.api.schedule import AnySchedule

Hyper: TypeAlias = "float | AnySchedule"
Multipliers = Mapping[str, Mapping[str, float]]

_BETAS: Final = (BUILT_IN["adam"].hyper["beta1"], BUILT_IN["adam"].hyper["beta2"])


_Made = TypeVar("_Made", bound=Callable[..., Any])


def _makes(model: type[Any]) -> Callable[[_Made], _Made]:
    """A function whose arguments are the model's fields; it has no body of its own.

    It answers PyTorch's first argument, a module's parameters, with what to write; else as `says_its_words`.
    """

    def made(function: _Made) -> _Made:
        signature = inspect.signature(function)

        @says_its_words
        @wraps(function)
        def filled(*args: Any, **keywords: Any) -> Any:
            given = signature.bind(*args, **keywords).arguments
            with checked(function.__name__):
                return model(**{**given, "multipliers": _listed(given.get("multipliers"), api.Multiplier)})

        @wraps(function)
        def called(*args: Any, **keywords: Any) -> Any:
            if args and isinstance(args[0], Iterable) and not isinstance(args[0], Model | Mapping | str):
                raise ArgumentError(
                    f"{function.__name__} takes no parameters: leave them out, weft trains all of the model's; for "
                    'groups write multipliers={"*.bias": {"lr": 2.0}}'
                )
            return filled(*args, **keywords)

        return called  # type: ignore[return-value]  # of the function's own signature

    return made


@_makes(api.SGD)
def SGD(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["sgd"].hyper["lr"],
    *,
    momentum: Hyper = 0.0,
    dampening: Hyper = 0.0,
    weight_decay: Hyper = BUILT_IN["sgd"].hyper["weight_decay"],
    nesterov: bool = False,
    multipliers: Multipliers | None = None,
) -> api.SGD:
    """g += weight_decay * w; v = momentum * v + (1 - dampening) * g; w -= lr * v, or with `nesterov`
    w -= lr * (g + momentum * v). The first update takes g whole.

    Nesterov 1983 in the form of Sutskever et al. 2013, with lr outside of v.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.Adam)
def Adam(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adam"].hyper["lr"],
    *,
    betas: tuple[Hyper, Hyper] = _BETAS,
    eps: Hyper = BUILT_IN["adam"].hyper["epsilon"],
    weight_decay: Hyper = 0.0,
    amsgrad: bool = False,
    multipliers: Multipliers | None = None,
) -> api.Adam:
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1, of g + weight_decay * w. With `amsgrad` it divides by
    the largest mean of squares so far, Reddi, Kale and Kumar 2018.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.AdamW)
def AdamW(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adamw"].hyper["lr"],
    *,
    betas: tuple[Hyper, Hyper] = _BETAS,
    eps: Hyper = BUILT_IN["adamw"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["adamw"].hyper["weight_decay"],
    amsgrad: bool = False,
    multipliers: Multipliers | None = None,
) -> api.AdamW:
    """Adam, and w -= lr * weight_decay * w beside it: Loshchilov and Hutter 2019, as PyTorch's AdamW. `amsgrad` is as
    Adam's.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.Adagrad)
def Adagrad(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["adagrad"].hyper["lr"],
    *,
    lr_decay: Hyper = 0.0,
    weight_decay: Hyper = BUILT_IN["adagrad"].hyper["weight_decay"],
    initial_accumulator_value: float = BUILT_IN["adagrad"].state["sum"],
    eps: Hyper = BUILT_IN["adagrad"].hyper["epsilon"],
    multipliers: Multipliers | None = None,
) -> api.Adagrad:
    """g += weight_decay * w; s += g^2; w -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps), where t counts the
    updates from 1 and s starts at `initial_accumulator_value`.

    Duchi, Hazan and Singer 2011. Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.RMSprop)
def RMSprop(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["rmsprop"].hyper["lr"],
    *,
    alpha: Hyper = BUILT_IN["rmsprop"].hyper["decay"],
    eps: Hyper = BUILT_IN["rmsprop"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["rmsprop"].hyper["weight_decay"],
    momentum: Hyper = 0.0,
    centered: bool = False,
    multipliers: Multipliers | None = None,
) -> api.RMSprop:
    """g += weight_decay * w; s = alpha * s + (1 - alpha) * g^2; v = momentum * v + g / (sqrt(s) + eps); w -= lr * v.
    With `centered` the square of g's mean is taken from s.

    Tieleman and Hinton 2012; centered: Graves 2013.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.Ftrl)
def Ftrl(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["ftrl"].hyper["lr"],
    *,
    beta: float = BUILT_IN["ftrl"].hyper["beta"],
    l1: Hyper = BUILT_IN["ftrl"].hyper["l1"],
    l2: Hyper = BUILT_IN["ftrl"].hyper["l2"],
    multipliers: Multipliers | None = None,
) -> api.Ftrl:
    """FTRL-Proximal, McMahan et al. 2013, algorithm 1, whose alpha is `lr`.

    A weight is 0 where its gradients do not add up to more than `l1`, whatever it began at.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.LAMB)
def LAMB(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["lamb"].hyper["lr"],
    *,
    betas: tuple[Hyper, Hyper] = _BETAS,
    eps: Hyper = BUILT_IN["lamb"].hyper["epsilon"],
    weight_decay: Hyper = BUILT_IN["lamb"].hyper["weight_decay"],
    trust: Hyper = BUILT_IN["lamb"].hyper["trust"],
    multipliers: Multipliers | None = None,
) -> api.LAMB:
    """AdamW's update u, as long as the weight: w -= lr * trust * norm(w) / norm(u) * u. You et al. 2020.

    Norms are of whole parameters: none is cut over shards, and none may be a table of rows. A multiplier of 0 for
    `trust` takes the ratio away, as is usual for biases and scales.

    Raises ArgumentError, which says what the optimizer has.
    """


@_makes(api.LARS)
def LARS(  # noqa: N802 - makes a model of that name, and stands for it in scripts
    lr: Hyper = BUILT_IN["lars"].hyper["lr"],
    *,
    momentum: Hyper = BUILT_IN["lars"].hyper["momentum"],
    weight_decay: Hyper = BUILT_IN["lars"].hyper["weight_decay"],
    trust: Hyper = BUILT_IN["lars"].hyper["trust"],
    multipliers: Multipliers | None = None,
) -> api.LARS:
    """Momentum whose steps are `trust` times as long as the weight. You, Gitman and Ginsburg 2017, algorithm 1.

    Norms are of whole parameters: none is cut over shards, and none may be a table of rows. A multiplier of 0 for
    `trust` takes the ratio away, as is usual for biases and scales.

    Raises ArgumentError, which says what the optimizer has.
    """


BY_NAME: Final[Mapping[str, Callable[..., OptimizerSpec]]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "ftrl": Ftrl,
    "lamb": LAMB,
    "lars": LARS,
}
"""What makes the model of each optimizer that is asked for by name."""


def graph_optimizer(
    document: dict[str, Any], hyper: Mapping[str, Hyper], multipliers: Multipliers | None
) -> api.GraphOptimizer:
    """The model of an optimizer of the user's own. Raises ArgumentError."""
    with checked(str(document["name"])):
        listed = _listed(multipliers, api.GraphMultiplier)
        return api.GraphOptimizer(document=document, hyper=dict(hyper), multipliers=listed)


def _listed(multipliers: object, model: Any) -> list[Any]:
    """The models of `{pattern: {hyper-parameter: factor}}`. Raises ArgumentError."""
    if multipliers is None:
        return []
    if not isinstance(multipliers, Mapping) or not all(isinstance(each, Mapping) for each in multipliers.values()):
        raise ArgumentError(f'multipliers are factors by pattern, {{"*.bias": {{"lr": 2.0}}}}, not {multipliers!r}')
    made = []
    for pattern, factors in multipliers.items():
        with checked(f"multipliers of {pattern!r}"):
            made.append(model.model_validate({**factors, "keys": pattern}))
    return made
