"""How parameters are updated on the shards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from weft.api.base import Model
from weft.api.schedule import AnySchedule, Schedule
from weft_graph.rules.built_in import BUILT_IN


@dataclass(frozen=True, slots=True)
class Within:
    """Refuses a schedule that ever leaves the range of its hyper-parameter."""

    low: float
    high: float
    below: bool = False
    """Whether `high` itself is out."""

    def __call__(self, schedule: AnySchedule) -> AnySchedule:
        low, high = schedule.bounds()
        if not math.isfinite(high):
            raise ValueError("it grows without end; say an end")
        if low < self.low or high > self.high or (self.below and high == self.high):
            limit = f"below {self.high:g}" if self.below else f"up to {self.high:g}"
            raise ValueError(f"its values go from {low:g} to {high:g}; they have to be from {self.low:g} {limit}")
        return schedule


def _kind(value: object) -> str:
    return "a schedule" if isinstance(value, Mapping | Model) else "a number"


# The tags are what pydantic puts into an error's place; no field is called so.
_NUMBER, _SCHEDULE, _KIND = Tag("a number"), Tag("a schedule"), Discriminator(_kind)

Rate = Annotated[
    Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1e6)), _SCHEDULE],
    _KIND,
]
Decay = Annotated[
    Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1, below=True)), _SCHEDULE],
    _KIND,
]
WeightDecay = Annotated[
    Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1e3)), _SCHEDULE],
    _KIND,
]
Epsilon = Annotated[
    Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1)), _SCHEDULE],
    _KIND,
]
Number = Annotated[
    Annotated[float, Field(allow_inf_nan=False), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(-1e300, 1e300)), _SCHEDULE],
    _KIND,
]
"""A hyper-parameter of a user's rule: any finite number, or a schedule."""

Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Pattern = Annotated[str, Field(min_length=1, max_length=256)]

MOST_MULTIPLIERS = 32
"""Each is held against every parameter's name at submit."""


class Multiplier(Model):
    """What stretches hyper-parameters for the parameters whose names `keys` matches: `*`, `?` and `[...]` as in shells.

    Of several patterns that match a name the first one counts alone.
    """

    keys: Pattern
    rate: Factor | None = None
    weight_decay: Factor | None = None

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
        """What the rule's state starts at, where it is not 0."""
        return {}


class Sgd(_BuiltIn):
    """w -= rate * (g + weight_decay * w), with momentum m: v = m * v + g; w -= rate * v."""

    name: Literal["sgd"] = "sgd"
    rate: Rate = BUILT_IN["sgd"].hyper["rate"]
    momentum: Decay = 0.0
    """0 is none: another one makes it the shards' rule `momentum`."""
    weight_decay: WeightDecay = BUILT_IN["sgd"].hyper["weight_decay"]
    multipliers: Multipliers = Field(default_factory=list)


class Adam(_BuiltIn):
    """Adam with bias correction, Kingma and Ba 2015, algorithm 1."""

    name: Literal["adam"] = "adam"
    rate: Rate = BUILT_IN["adam"].hyper["rate"]
    beta1: Decay = BUILT_IN["adam"].hyper["beta1"]
    beta2: Decay = BUILT_IN["adam"].hyper["beta2"]
    epsilon: Epsilon = BUILT_IN["adam"].hyper["epsilon"]
    multipliers: Multipliers = Field(default_factory=list)


class Adagrad(_BuiltIn):
    """g += weight_decay * w; s += g^2; w -= rate * g / (sqrt(s) + epsilon), s starting at `accumulator`.

    Duchi, Hazan and Singer 2011, with PyTorch's epsilon.
    """

    NOT_HYPER: ClassVar[frozenset[str]] = frozenset({"name", "multipliers", "accumulator"})

    name: Literal["adagrad"] = "adagrad"
    rate: Rate = BUILT_IN["adagrad"].hyper["rate"]
    epsilon: Epsilon = BUILT_IN["adagrad"].hyper["epsilon"]
    weight_decay: WeightDecay = BUILT_IN["adagrad"].hyper["weight_decay"]
    accumulator: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = BUILT_IN["adagrad"].state["sum"]
    multipliers: Multipliers = Field(default_factory=list)

    def starts(self) -> dict[str, float]:
        """What the rule's state starts at, where it is not 0."""
        return {"sum": self.accumulator}


class GraphRule(Model):
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


RuleSpec = Annotated[Sgd | Adam | Adagrad | GraphRule, Field(discriminator="name")]
