"""The interface of a store: what the networked client and the local store both offer, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.description.records import LEAST_SCALE, MOST_SCALE, LossScaling
from weft_kvstore.snapshot_files import Snapshot

# --- What the slots agree on of a step before it is applied, and the loss scale that follows from it ------------------


CLIP_EPSILON: Final = 1e-6
"""Added to the norm that a clipped gradient is divided by, as PyTorch's `clip_grad_norm_` does."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A committed step: the norm of its merged gradient, and whether all of that was finite. The loss was scaled by
    `loss_scale`, since which `good` steps in a row were finite; 1 where a job has no loss scaling."""

    step: int
    norm: float
    finite: bool
    loss_scale: float
    good: int = 0

    @property
    def scale(self) -> LossScale:
        """That of this step."""
        return LossScale(self.loss_scale, self.good)


@dataclass(frozen=True, slots=True)
class LossScale:
    """By which a step's loss is multiplied; `good` steps in a row were finite since it last changed."""

    scale: float
    good: int = 0

    def after(self, *, finite: bool, scaling: LossScaling) -> LossScale:
        """The next step's: half after a step that was not finite, twice after `growth_interval` that were."""
        if not finite:
            return LossScale(max(self.scale / 2, LEAST_SCALE))
        if self.good + 1 < scaling.growth_interval:
            return LossScale(self.scale, self.good + 1)
        return LossScale(min(self.scale * 2, MOST_SCALE))


def loss_scale_of(snapshot: Snapshot) -> LossScale | None:
    """That of the first step after a snapshot, where there is one."""
    return None if snapshot.loss_scale is None else LossScale(snapshot.loss_scale, snapshot.finite_steps)


def clip_factor(norm: float, clip_norm: float) -> float:
    """By which the gradient is multiplied so that its norm is at most `clip_norm`; NaN where the norm is."""
    factor = clip_norm / (norm + CLIP_EPSILON)
    return factor if not factor >= 1.0 else 1.0


# --- Pulled values, statistics, and the calls ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pulled:
    """Values of several keys, in the order in which they were asked for, and what they are at: of the slices of key i,
    `lowest[i]` is the lowest version and `highest[i]` the highest, (keys) int64."""

    values: list[Array]
    lowest: Array
    highest: Array


def joined_pulls(parts: Sequence[Pulled]) -> Pulled:
    """What several pulls gave, as if it were one."""
    values = [value for part in parts for value in part.values]
    lowest = np.concatenate([part.lowest for part in parts])
    return Pulled(values, lowest, np.concatenate([part.highest for part in parts]))


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One link of a client. `bytes_*` passed the socket, headers and payloads; `payload_*` are payloads alone, through
    the socket or shared memory; `shared_bytes_*` those through shared memory, which `same_host` says is in use now.

    `queued_*` wait to be sent; `in_flight_bytes` were sent and are not acknowledged. `rate_bytes_per_s` is measured on
    networks alone. `connections` counts Hellos; `welcomed`: the shard has accepted the connection. `trouble`: why it
    has not, once its silence is over or it has answered so; `taken`: another process has the slot; `refused`: the shard
    has refused this client for good.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    credit_bytes: int = 0
    rate_bytes_per_s: float | None = None
    connections: int = 0
    welcomed: bool = False
    trouble: str | None = None
    refused: bool = False
    taken: bool = False
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
    same_host: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Sums over the client's links, and each link by shard number. `operations` are futures that have not ended.
    `bytes_*` passed the sockets, `shared_bytes_*` shared memory instead.

    `rows_pushed` and `rows_pulled` count rows of tables in the calls begun: padding and repetitions left out.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    operations: int = 0
    links: tuple[LinkStatistics, ...] = ()
    rows_pushed: int = 0
    rows_pulled: int = 0
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0


class Readable(Protocol):
    """What reads parameters: a store, or what stands in its place."""

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        """See `Store.pull`."""


class Store(Protocol):
    """One slot's way to the parameters. Every method returns at once; futures end by a value or a StoreError.

    Callbacks of futures run on a thread of their own, one after the other. Of a key that is a table
    (`KeyDescription.rows`) a call names the rows by their `ids` (n) int64; of any other key it has none. Versions: in
    sync, version v of a key has seen the steps before v of every slot. In async a pull of version v waits only for this
    slot's own first v steps, and with `settled` for those of every contributing slot.
    """

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        """Add this slot's gradient of `step` (from 0). The array is kept, not copied, until the future ends, which is
        when every slice was acknowledged; it must not be written before. C-contiguous, of the key's dtype and shape.

        Of a table the gradient has a row for each id (n, ...row shape). Rows of one id are summed in their order; those
        of negative ids are padding and are dropped. A slot pushes to a table once a step; no ids at all is a push too.
        """

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        """The key's value once `version` updates have been applied (0: the first value). A new array, owned by the
        caller. It may be newer only where the store cannot hold it back: in sync never before this slot has pushed.
        With `state` the rule's arrays instead, by the rule's names, each of the key's shape.

        Of a table these are rows (n, ...row shape), for ids in any order, with repetitions or none at all; a negative
        id gives a row of zeros. `ids` is read before the call returns.
        """

    def set(self, key: str, version: int, value: Array, ids: Array | None = None) -> Future[None]:
        """Make this the key's value at that version; the rule's state stays. Kept, as by `push`, until the future ends.

        Version 0 is for keys whose initializer is `Given`: they have no value before it is set. A later version's value
        is replaced once the step before it is applied, so the version must not have passed, nor be far ahead. In async
        the value holds at once. To set the same again does no harm. Several calls may set rows of one version; of rows
        of one id the last one counts.
        """

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """Tell every shard that this slot has sent all of `step` and has nothing for the keys named.

        Where the job's steps are committed, it waits for every slot's barrier, and says what all agree on.
        """

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; they may move while they are read."""

    def close(self) -> None:
        """Fail what is open and release sockets and threads. Idempotent."""
