"""What the checks make of a submitted job: all that is needed to run it, decided before anything starts."""

from __future__ import annotations

import math
from typing import Any

from weft.api.base import Model, Name
from weft.api.data import DataSpec
from weft.api.job import Merge, ParameterInfo
from weft.api.store import KeySpec, StoreSpec
from weft_graph.types import DType


class JobPlan(Model):
    """A checked job. It is kept as JSON, so that a pending job outlives the server's process."""

    name: Name
    programs: dict[str, Any]
    """JSON form of `weft_graph.program.Programs`."""
    data: DataSpec
    """With `train` filled in."""
    seed: int
    steps: int
    """Steps of the whole run."""
    steps_per_pass: int
    evaluate_every: int | None
    workers: int
    shards: int
    merge: Merge
    slice_bytes: int
    keys: list[KeySpec]
    parameters: list[ParameterInfo]
    rule: str | dict[str, Any]
    hyper: dict[str, float | dict[str, Any]]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters' values."""
        return sum(map(nbytes, self.parameters))

    @property
    def slices(self) -> int:
        """Slices of all keys, over all shards."""
        return sum(-(-nbytes(each) // self.slice_bytes) for each in self.parameters)

    @property
    def rows(self) -> int:
        """Rows of a pass."""
        assert self.data.train is not None
        return self.data.train.stop - self.data.train.start

    def samples_until(self, step: int) -> int:
        """Samples in the first `step` steps of the run: the last batch of a pass is as short as what is left."""
        passes, within = divmod(step, self.steps_per_pass)
        return passes * self.rows + min(within * self.data.batch, self.rows)

    def passes_begun(self, step: int) -> int:
        """Passes begun once `step` steps are finished."""
        return -(-step // self.steps_per_pass)

    def store(self, job: str, term: int, endpoints: list[str]) -> StoreSpec:
        """The store's description, the same for every process of the job. `endpoints` are by shard number."""
        return StoreSpec(
            job=job,
            term=term,
            seed=self.seed,
            slots=self.workers,
            shards=endpoints,
            keys=self.keys,
            rule=self.rule,
            hyper=self.hyper,
            slice_bytes=self.slice_bytes,
            merge=self.merge.value,
        )


def nbytes(parameter: ParameterInfo) -> int:
    """Bytes of a parameter's value."""
    return math.prod(parameter.shape) * DType(parameter.dtype).itemsize
