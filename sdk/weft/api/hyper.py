"""What a rule's numbers may be: bounds of hyper-parameters, of their schedules and of multipliers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from weft.api.base import Below1, Model
from weft.api.schedule import AnySchedule, Schedule


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
            limit = f"{'below' if self.below else 'at most'} {self.high:g}"
            raise ValueError(
                f"its values go from {low:g} to {high:g}; they should be at least {self.low:g} and {limit}"
            )
        return schedule


def _between(told: str) -> WrapValidator:
    """Answers a number that is out of its range by the whole range, as pydantic names one end."""

    def checked(value: Any, check: Any) -> Any:
        try:
            return check(value)
        except ValidationError as error:
            if all("than" in each["type"] for each in error.errors(include_url=False)):
                raise PydanticCustomError("out_of_range", f"Input should be {told}") from None
            raise

    return WrapValidator(checked)


def _kind(value: object) -> str:
    return "a schedule" if isinstance(value, Mapping | Model) else "a number"


# The tags are what pydantic puts into an error's place; no field is called so.
_NUMBER, _SCHEDULE, _KIND = Tag("a number"), Tag("a schedule"), Discriminator(_kind)

LearningRate = Annotated[
    Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False), _between("above 0 and at most 1e6"), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1e6)), _SCHEDULE],
    _KIND,
]
Decay = Annotated[
    Annotated[Below1, _between("at least 0 and below 1"), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1, below=True)), _SCHEDULE],
    _KIND,
]
Share = Annotated[
    Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _between("from 0 to 1"), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1)), _SCHEDULE],
    _KIND,
]
Strength = Annotated[
    Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False), _between("from 0 to 1000"), _NUMBER]
    | Annotated[Schedule, AfterValidator(Within(0, 1e3)), _SCHEDULE],
    _KIND,
]
"""Of a weight decay, of a penalty, of trust: 0 is none."""
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
"""A number that no schedule may bring to 0, for something is divided by it."""
Epsilon = Annotated[
    Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), _between("above 0 and at most 1"), _NUMBER]
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
