"""Where a job's samples come from, and which of them it may read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from weft.api.base import Count, Model, Positive
from weft.api.earlier import Renamed


class NumpySource(Model):
    """A `.npz` file on a path that server and workers share; each array is a column, rows along its first axis."""

    type: Literal["numpy"] = "numpy"
    path: Annotated[str, Field(min_length=1, max_length=4096)]


class Rows(Model):
    """Rows `start` (included) to `stop` (excluded) of the source."""

    start: Count = 0
    stop: Positive

    @model_validator(mode="after")
    def _not_empty(self) -> Rows:
        if self.stop <= self.start:
            raise ValueError(f"rows {self.start} to {self.stop} are none")
        return self


class DataSpec(Renamed):
    """A source, the graph input that each column feeds, and the rows for training and for evaluation."""

    EARLIER: ClassVar[Mapping[str, str]] = {"batch": "batch_size"}

    source: NumpySource
    columns: Annotated[dict[str, str], Field(max_length=1024)]
    """Graph input -> column of the source. Every input of the graph has one."""
    train: Rows | None = None
    """Rows to train on; all of them where left out."""
    evaluate: Rows | None = None
    """Rows never read in training, on which metrics are taken; no evaluation where left out."""
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    """Samples of a step, over all workers."""
    shuffle: bool = True
    """Whether an epoch reads in an order drawn from (seed, epoch); else in the order of the rows."""
