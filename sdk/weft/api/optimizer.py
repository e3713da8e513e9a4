"""How parameters are updated on the shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from weft.api.base import Model
from weft.api.hyper import Decay, Epsilon, Factor, LearningRate, Number, Pattern, Positive, Strength
from weft.api.schedule import AnySchedule
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


class _BuiltIn(Model):
    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers"})
    """Fields that are no hyper-parameters of a shard's rule."""

    def hyper(self) -> dict[str, float | dict[str, Any]]:
        """Every hyper-parameter: a number, or a schedule's document."""
        return _hyper({name: getattr(self, name) for name in type(self).model_fields if name not in self.NOT_HYPER})

    def starts(self) -> dict[str, float]:
        """What the optimizer's state starts at, where it is not 0."""
        return {}


class SGD(_BuiltIn):
    """w -= lr * (g + weight_decay * w), with momentum m: v = m * v + g; w -= lr * v."""

    name: Literal["sgd"] = "sgd"
    lr: LearningRate = BUILT_IN["sgd"].hyper["lr"]
    momentum: Decay = 0.0
    """0 is none: another one makes it the shards' rule `momentum`."""
    weight_decay: Strength = BUILT_IN["sgd"].hyper["weight_decay"]
    multipliers: Multipliers = Field(default_factory=list)


class Nesterov(_BuiltIn):
    """g += weight_decay * w; v = momentum * v + g; w -= lr * (g + momentum * v).

    Nesterov 1983 in the form of Sutskever et al. 2013, with PyTorch's lr outside of v.
    """

    name: Literal["nesterov"] = "nesterov"
    lr: LearningRate = BUILT_IN["nesterov"].hyper["lr"]
    momentum: Decay = BUILT_IN["nesterov"].hyper["momentum"]
    weight_decay: Strength = BUILT_IN["nesterov"].hyper["weight_decay"]
    multipliers: Multipliers = Field(default_factory=list)


class Adam(_BuiltIn):
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1."""

    name: Literal["adam"] = "adam"
    lr: LearningRate = BUILT_IN["adam"].hyper["lr"]
    beta1: Decay = BUILT_IN["adam"].hyper["beta1"]
    beta2: Decay = BUILT_IN["adam"].hyper["beta2"]
    epsilon: Epsilon = BUILT_IN["adam"].hyper["epsilon"]
    multipliers: Multipliers = Field(default_factory=list)


class AdamW(_BuiltIn):
    """Adam, and w -= lr * weight_decay * w beside it: Loshchilov and Hutter 2019, with the decay times lr."""

    name: Literal["adamw"] = "adamw"
    lr: LearningRate = BUILT_IN["adamw"].hyper["lr"]
    beta1: Decay = BUILT_IN["adamw"].hyper["beta1"]
    beta2: Decay = BUILT_IN["adamw"].hyper["beta2"]
    epsilon: Epsilon = BUILT_IN["adamw"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["adamw"].hyper["weight_decay"]
    multipliers: Multipliers = Field(default_factory=list)


class Adagrad(_BuiltIn):
    """g += weight_decay * w; s += g^2; w -= lr * g / (sqrt(s) + epsilon), s starting at `accumulator`.

    Duchi, Hazan and Singer 2011, with PyTorch's epsilon.
    """

    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "accumulator"})

    name: Literal["adagrad"] = "adagrad"
    lr: LearningRate = BUILT_IN["adagrad"].hyper["lr"]
    epsilon: Epsilon = BUILT_IN["adagrad"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["adagrad"].hyper["weight_decay"]
    accumulator: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = BUILT_IN["adagrad"].state["sum"]
    multipliers: Multipliers = Field(default_factory=list)

    def starts(self) -> dict[str, float]:
        """What the optimizer's state starts at, where it is not 0."""
        return {"sum": self.accumulator}


class RMSprop(_BuiltIn):
    """g += weight_decay * w; s = decay * s + (1 - decay) * g^2; w -= lr * g / (sqrt(s) + epsilon).

    Tieleman and Hinton 2012, with PyTorch's epsilon.
    """

    name: Literal["rmsprop"] = "rmsprop"
    lr: LearningRate = BUILT_IN["rmsprop"].hyper["lr"]
    decay: Decay = BUILT_IN["rmsprop"].hyper["decay"]
    epsilon: Epsilon = BUILT_IN["rmsprop"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["rmsprop"].hyper["weight_decay"]
    multipliers: Multipliers = Field(default_factory=list)


class Ftrl(_BuiltIn):
    """FTRL-Proximal, McMahan et al. 2013, algorithm 1, whose alpha is `lr`.

    A weight is 0 where its gradients do not add up to more than `l1`, whatever it began at.
    """

    name: Literal["ftrl"] = "ftrl"
    lr: LearningRate = BUILT_IN["ftrl"].hyper["lr"]
    beta: Positive = BUILT_IN["ftrl"].hyper["beta"]
    l1: Strength = BUILT_IN["ftrl"].hyper["l1"]
    l2: Strength = BUILT_IN["ftrl"].hyper["l2"]
    multipliers: Multipliers = Field(default_factory=list)


class LAMB(_BuiltIn):
    """AdamW's update u, as long as the weight: w -= lr * trust * norm(w) / norm(u) * u. You et al. 2020, algorithm 2.

    Norms are of whole parameters, so none is cut over shards, and none may be a table.
    """

    name: Literal["lamb"] = "lamb"
    lr: LearningRate = BUILT_IN["lamb"].hyper["lr"]
    beta1: Decay = BUILT_IN["lamb"].hyper["beta1"]
    beta2: Decay = BUILT_IN["lamb"].hyper["beta2"]
    epsilon: Epsilon = BUILT_IN["lamb"].hyper["epsilon"]
    weight_decay: Strength = BUILT_IN["lamb"].hyper["weight_decay"]
    trust: Strength = BUILT_IN["lamb"].hyper["trust"]
    """0: no ratio, which leaves AdamW."""
    multipliers: Multipliers = Field(default_factory=list)


class LARS(_BuiltIn):
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
        return _hyper(self.hyper)


def _hyper(given: Mapping[str, float | AnySchedule]) -> dict[str, float | dict[str, Any]]:
    return {name: float(value) if isinstance(value, int | float) else value.document() for name, value in given.items()}


OptimizerSpec = Annotated[
    SGD | Nesterov | Adam | AdamW | Adagrad | RMSprop | Ftrl | LAMB | LARS | GraphOptimizer, Field(discriminator="name")
]
