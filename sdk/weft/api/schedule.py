"""Hyper-parameters that change with the step. `weft_graph.rules.schedule` has the formulas and reads them too."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from weft.api.base import Count, Model, Positive

Finite = Annotated[float, Field(allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


MOST_BOUNDARIES = 64
"""As `weft_graph.rules.schedule` has it."""


class Warmup(Model):
    """A straight line from `start` to the schedule's first value, over `steps` steps before the schedule begins."""

    steps: Positive
    start: Finite = 0.0


class _Schedule(Model):
    @model_validator(mode="after")
    def _is_one(self) -> Self:
        from weft_graph.errors import GraphFormatError  # who writes no schedule needs no graph
        from weft_graph.rules.schedule import schedule_from_json

        try:
            schedule_from_json(self.document())
        except GraphFormatError as error:
            raise ValueError(error.message) from None
        return self

    def document(self) -> dict[str, Any]:
        """The schedule as shards read it."""
        return self.model_dump(mode="json", exclude_none=True)

    def bounds(self) -> tuple[float, float]:
        """Smallest and largest of what it ever is; infinite where it grows without end."""
        from weft_graph.rules.schedule import schedule_from_json  # as above

        return schedule_from_json(self.document()).bounds()


class Constant(_Schedule):
    """The same value at every step after the warm-up."""

    schedule: Literal["constant"] = "constant"
    value: Finite
    warmup: Warmup | None = None


class Linear(_Schedule):
    """From `start` to `end` in a straight line over `steps` steps, after `begin` steps at `start`."""

    schedule: Literal["linear"] = "linear"
    start: Finite
    end: Finite = 0.0
    steps: Positive
    begin: Count = 0
    warmup: Warmup | None = None


class Cosine(_Schedule):
    """From `start` to `end` along half a cosine wave over `steps` steps, after `begin` steps at `start`.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    schedule: Literal["cosine"] = "cosine"
    start: Finite
    end: Finite = 0.0
    steps: Positive
    begin: Count = 0
    warmup: Warmup | None = None


class Polynomial(_Schedule):
    """end + (start - end) * (1 - t) ** power, t from 0 to 1 over `steps` steps, after `begin` steps at `start`."""

    schedule: Literal["polynomial"] = "polynomial"
    start: Finite
    end: Finite = 0.0
    steps: Positive
    power: Above0
    begin: Count = 0
    warmup: Warmup | None = None


class Exponential(_Schedule):
    """`factor` times as much after every `steps` steps, after `begin` steps at `start`, and never beyond `end`."""

    schedule: Literal["exponential"] = "exponential"
    start: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    factor: Above0
    steps: Positive
    end: Finite | None = None
    staircase: bool = False
    """Whether it changes at every `steps` steps alone, not in between."""
    begin: Count = 0
    warmup: Warmup | None = None


class Boundary(Model):
    """From `step` on the value is `factor` times what it was."""

    step: Positive
    factor: Finite


class Piecewise(_Schedule):
    """`start`, times the factor of each boundary that is reached. Boundaries ascend."""

    schedule: Literal["piecewise"] = "piecewise"
    start: Finite
    boundaries: Annotated[list[Boundary], Field(max_length=MOST_BOUNDARIES)]
    warmup: Warmup | None = None


AnySchedule: TypeAlias = Constant | Linear | Cosine | Polynomial | Exponential | Piecewise

Schedule = Annotated[AnySchedule, Field(discriminator="schedule")]
"""Steps are those of the job, from 0; where there is a warm-up, they count from its end."""
