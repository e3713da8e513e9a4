"""How parameters are updated on the shards, in the words of `torch.optim` and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator

from weft.api.base import Model
from weft.api.earlier import Renamed
from weft.api.hyper import Decay, Epsilon, Factor, LearningRate, Number, Pattern, Positive, Share, Strength
from weft_graph.rules.built_in import BUILT_IN

MOST_MULTIPLIERS = 32
"""Each is held against every parameter's name at submit."""


class Multiplier(Model):
    """What stretches hyper-parameters for the parameters whose names `keys` matches: `*`, `?` and `[...]` as in shells.

    Of several patterns that match a name the first one counts alone.
    """

    keys: Pattern
    lr: Factor | None = None
    weight_decay: Factor | None = None
    trust: Factor | None = None
    """Of LAMB and LARS: 0 takes the ratio of norms away, as is usual for biases."""

    def factors(self) -> dict[str, float]:
        """{hyper-parameter: factor} of those that are stretched."""
        return self.model_dump(exclude={"keys"}, exclude_none=True)


class GraphMultiplier(Model):
    """The same for a rule of the user's own: beside `keys`, any of its hyper-parameters with a factor."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]]

    keys: Pattern

    def factors(self) -> dict[str, float]:
        """{hyper-parameter: factor} of those that are stretched."""
        return dict(self.__pydantic_extra__)


Multipliers = Annotated[list[Multiplier], Field(max_length=MOST_MULTIPLIERS)]


class BuiltIn(Renamed):
    """The names of the release before are those that shards' rules have for their numbers."""

    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers"})
    """Fields that are no hyper-parameters of a shard's rule."""
    NEW: ClassVar[frozenset[str]] = frozenset()
    """Fields that the release before does not know."""

    @property
    def rule(self) -> str:
        """The shards' rule: a built-in one, or one of `weft_graph.rules.torch_variants`. `sgd` with a momentum becomes
        their rule `momentum` when it is stored."""
        name: str = self.name  # type: ignore[attr-defined]  # every optimizer has one
        return name

    def numbers(self) -> dict[str, Any]:
        """Every hyper-parameter: a number, a pair of them, or a schedule's document."""
        return {name: _document(getattr(self, name)) for name in type(self).model_fields if name not in self.NOT_HYPER}

    def hyper(self) -> dict[str, float | dict[str, Any]]:
        """The same as the shards' rule names them, each a number or a schedule's document."""
        return super().earlier_words(self.numbers())

    def earlier_words(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """As of every record; without what the release before does not know, if it is at its default."""
        usual = {name: type(self).model_fields[name].default for name in self.NEW}
        known = {name: value for name, value in fields.items() if name not in usual or value != usual[name]}
        return super().earlier_words(known)

    def starts(self) -> dict[str, float]:
        """What the optimizer's state starts at, where it is not 0."""
        return {}


class SGD(BuiltIn):
    """g += weight_decay * w; v = momentum * v + (1 - dampening) * g; w -= lr * v, or with `nesterov`
    w -= lr * (g + momentum * v). The first update takes g whole.

    Nesterov 1983 in the form of Sutskever et al. 2013, with lr outside of v.
    """

    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "nesterov"})
    NEW: ClassVar[frozenset[str]] = frozenset({"dampening"})

    name: Literal["sgd"] = "sgd"
    lr: LearningRate = BUILT_IN["sgd"].hyper["lr"]
    momentum: Decay = 0.0
    dampening: Share = 0.0
    weight_decay: Strength = BUILT_IN["sgd"].hyper["weight_decay"]
    nesterov: bool = False
    multipliers: Multipliers = Field(default_factory=list)

    @model_validator(mode="after")
    def _looks_ahead_along_a_momentum(self) -> SGD:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum, such as momentum=0.9")
        if self.nesterov and self.dampening != 0:
            raise ValueError("nesterov has no dampening: leave one of the two out")
        return self

    @property
    def rule(self) -> str:
        """As of every optimizer."""
        if self.nesterov:
            return "nesterov"
        return "sgd_dampened" if self.momentum != 0 and self.dampening != 0 else "sgd"

    def earlier_words(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`nesterov` was an optimizer of its own."""
        known = {name: value for name, value in super().earlier_words(fields).items() if name != "nesterov"}
        return {**known, "name": "nesterov" if self.nesterov else "sgd"} if "name" in fields else known


_ADAM: Mapping[str, str | tuple[str, int]] = {"beta1": ("betas", 0), "beta2": ("betas", 1), "epsilon": "eps"}
_BETAS = (BUILT_IN["adam"].hyper["beta1"], BUILT_IN["adam"].hyper["beta2"])
Betas = Annotated[
    tuple[Decay, Decay], BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
]
"""JSON has no tuples, and a body is read strictly."""


class Adam(BuiltIn):
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1, of g + weight_decay * w. With `amsgrad` it divides by
    the largest mean of squares so far, Reddi, Kale and Kumar 2018."""

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = _ADAM
    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "amsgrad"})
    NEW: ClassVar[frozenset[str]] = frozenset({"weight_decay", "amsgrad"})

    name: Literal["adam"] = "adam"
    lr: LearningRate = BUILT_IN["adam"].hyper["lr"]
    betas: Betas = _BETAS
    eps: Epsilon = BUILT_IN["adam"].hyper["epsilon"]
    weight_decay: Strength = 0.0
    amsgrad: bool = False
    multipliers: Multipliers = Field(default_factory=list)

    @property
    def rule(self) -> str:
        """As of every optimizer."""
        return "adam_amsgrad" if self.amsgrad else "adam_l2" if self.weight_decay != 0 else "adam"


class AdamW(BuiltIn):
    """Adam, and w -= lr * weight_decay * w beside it: Loshchilov and Hutter 2019, with the decay times lr. `amsgrad` is
    as Adam's."""

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = _ADAM
    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "amsgrad"})
    NEW: ClassVar[frozenset[str]] = frozenset({"amsgrad"})

    name: Literal["adamw"] = "adamw"
    lr: LearningRate = BUILT_IN["adamw"].hyper["lr"]
    betas: Betas = _BETAS
    eps: Epsilon = BUILT_IN["adamw"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["adamw"].hyper["weight_decay"]
    amsgrad: bool = False
    multipliers: Multipliers = Field(default_factory=list)

    @property
    def rule(self) -> str:
        """As of every optimizer."""
        return "adamw_amsgrad" if self.amsgrad else "adamw"


class Adagrad(BuiltIn):
    """g += weight_decay * w; s += g^2; w -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps), where t counts the
    updates from 1 and s starts at `initial_accumulator_value`.

    Duchi, Hazan and Singer 2011.
    """

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = {
        "epsilon": "eps",
        "accumulator": "initial_accumulator_value",
    }
    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "initial_accumulator_value"})
    NEW: ClassVar[frozenset[str]] = frozenset({"lr_decay"})

    name: Literal["adagrad"] = "adagrad"
    lr: LearningRate = BUILT_IN["adagrad"].hyper["lr"]
    lr_decay: Strength = 0.0
    weight_decay: Strength = BUILT_IN["adagrad"].hyper["weight_decay"]
    initial_accumulator_value: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = BUILT_IN["adagrad"].state[
        "sum"
    ]
    eps: Epsilon = BUILT_IN["adagrad"].hyper["epsilon"]
    multipliers: Multipliers = Field(default_factory=list)

    def starts(self) -> dict[str, float]:
        """What the optimizer's state starts at, where it is not 0."""
        return {"sum": self.initial_accumulator_value}

    @property
    def rule(self) -> str:
        """As of every optimizer."""
        return "adagrad_lr_decay" if self.lr_decay != 0 else "adagrad"


class RMSprop(BuiltIn):
    """g += weight_decay * w; s = alpha * s + (1 - alpha) * g^2; v = momentum * v + g / (sqrt(s) + eps); w -= lr * v.
    With `centered` the square of g's mean is taken from s.

    Tieleman and Hinton 2012; centered: Graves 2013.
    """

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = {"decay": "alpha", "epsilon": "eps"}
    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "centered"})
    NEW: ClassVar[frozenset[str]] = frozenset({"momentum", "centered"})

    name: Literal["rmsprop"] = "rmsprop"
    lr: LearningRate = BUILT_IN["rmsprop"].hyper["lr"]
    alpha: Decay = BUILT_IN["rmsprop"].hyper["decay"]
    eps: Epsilon = BUILT_IN["rmsprop"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["rmsprop"].hyper["weight_decay"]
    momentum: Decay = 0.0
    centered: bool = False
    multipliers: Multipliers = Field(default_factory=list)

    @property
    def rule(self) -> str:
        """As of every optimizer."""
        return f"rmsprop{'_centered' if self.centered else ''}{'_momentum' if self.momentum != 0 else ''}"


class Ftrl(BuiltIn):
    """FTRL-Proximal, McMahan et al. 2013, algorithm 1, whose alpha is `lr`.

    A weight is 0 where its gradients do not add up to more than `l1`, whatever it began at.
    """

    name: Literal["ftrl"] = "ftrl"
    lr: LearningRate = BUILT_IN["ftrl"].hyper["lr"]
    beta: Positive = BUILT_IN["ftrl"].hyper["beta"]
    l1: Strength = BUILT_IN["ftrl"].hyper["l1"]
    l2: Strength = BUILT_IN["ftrl"].hyper["l2"]
    multipliers: Multipliers = Field(default_factory=list)


class LAMB(BuiltIn):
    """AdamW's update u, as long as the weight: w -= lr * trust * norm(w) / norm(u) * u. You et al. 2020, algorithm 2.

    Norms are of whole parameters, so none is cut over shards, and none may be a table.
    """

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = _ADAM

    name: Literal["lamb"] = "lamb"
    lr: LearningRate = BUILT_IN["lamb"].hyper["lr"]
    betas: Betas = _BETAS
    eps: Epsilon = BUILT_IN["lamb"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["lamb"].hyper["weight_decay"]
    trust: Strength = BUILT_IN["lamb"].hyper["trust"]
    """0: no ratio, which leaves AdamW."""
    multipliers: Multipliers = Field(default_factory=list)


class LARS(BuiltIn):
    """r = trust * norm(w) / (norm(g) + weight_decay * norm(w)); v = momentum * v + lr * r * (g + weight_decay * w);
    w -= v. You, Gitman and Ginsburg 2017, algorithm 1.

    Norms are of whole parameters, so none is cut over shards, and none may be a table.
    """

    name: Literal["lars"] = "lars"
    lr: LearningRate = BUILT_IN["lars"].hyper["lr"]
    momentum: Decay = BUILT_IN["lars"].hyper["momentum"]
    weight_decay: Strength = BUILT_IN["lars"].hyper["weight_decay"]
    trust: Strength = BUILT_IN["lars"].hyper["trust"]
    """0: no ratio, which leaves momentum with the rate inside of it."""
    multipliers: Multipliers = Field(default_factory=list)


class GraphOptimizer(Model):
    """A rule of the user's own, as a graph: what it computes is checked at submit and compiled on the shards."""

    name: Literal["graph"] = "graph"
    document: dict[str, Any]
    """`{"name", "graph", "state": {name: start}, "hyper": {name: default}, "next": {"weight": value, ...}}`: a graph
    whose inputs are `weight`, `gradient`, each state, `step` and each hyper-parameter, and which of its outputs are the
    next weight and states."""
    hyper: Annotated[dict[str, Number], Field(max_length=64)] = Field(default_factory=dict)
    """Hyper-parameters that are not to have the document's defaults."""
    multipliers: Annotated[list[GraphMultiplier], Field(max_length=MOST_MULTIPLIERS)] = Field(default_factory=list)

    def values(self) -> dict[str, float | dict[str, Any]]:
        """The hyper-parameters that are given: numbers, or schedules' documents."""
        return {name: _document(value) for name, value in self.hyper.items()}


def _document(value: Any) -> Any:
    """A number as a float, a schedule as its document, each of a pair."""
    if isinstance(value, tuple):
        return tuple(map(_document, value))
    return float(value) if isinstance(value, int | float) else value.document()


def _with_fields(given: Any) -> Any:
    """A name alone stands for the optimizer with its defaults; `nesterov` was one of its own in the release before."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return given
    name = given.get("name")
    if name == "nesterov":
        return {"momentum": BUILT_IN[name].hyper["momentum"], **given, "name": "sgd", "nesterov": True}
    known = get_args(_NameAlone)
    if isinstance(name, str) and name not in {*known, "graph"}:
        from weft_graph.spelling import did_you_mean

        near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
        raise ValueError(f"no optimizer is called {name[:200]!r}{near}")
    return given


_AnyOptimizer = Annotated[
    SGD | Adam | AdamW | Adagrad | RMSprop | Ftrl | LAMB | LARS | GraphOptimizer, Field(discriminator="name")
]
_NameAlone = Literal["sgd", "adam", "adamw", "adagrad", "rmsprop", "ftrl", "lamb", "lars"]

OptimizerSpec = Annotated[
    _AnyOptimizer, BeforeValidator(_with_fields, json_schema_input_type=_NameAlone | _AnyOptimizer)
]


def optimizer_of(rule: str, numbers: Mapping[str, float]) -> OptimizerSpec:
    """The optimizer that becomes this rule of the shards, with their names. Raises pydantic.ValidationError."""
    made: OptimizerSpec = TypeAdapter(OptimizerSpec).validate_python({"name": rule, **numbers})
    return made
