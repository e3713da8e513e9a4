"""What jobs that share a shard may hold of its memory, and whose turn it is. Pure."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.errors import StoreError
from weft_kvstore.quotas import Holds, Quotas, option_of

# --- What a job holds of a shard's memory, and whether it may hold more -----------------------------------------------
# What waits is counted by the memory itself: it counts from when it is taken over until nothing refers to it any more.
# So nothing has to be told when a gradient is merged, given up or forgotten, and no sum can go astray.


NOTHING: Final = Holds()

_UNITS: Final = {"bytes": "bytes", "keys": "keys", "rows": "rows of tables"}


class QuotaError(StoreError):
    """More than a quota lets a job have; the text names the quota, what would be, and what may be."""


class _Kept(weakref.ref[Any]):
    """Knows what it counted for, once its object is gone."""

    __slots__ = ("holds",)
    holds: Holds


class Account:
    """One job's. `need` is what it has had from the first moment on, `grown` tells what its tables have come to.

    Only the shard's own thread may call `keep`; memory may be let go on any thread, and `now` be asked on any.
    """

    def __init__(self, need: Holds = NOTHING) -> None:
        self.need = need
        self.grown: Callable[[], Holds] = lambda: NOTHING
        self._bytes = 0
        self._rows = 0
        self._kept: dict[int, _Kept] = {}
        self._gone: deque[Holds] = deque()
        """What was let go and is not subtracted: whoever lets go may be in the middle of anything."""

    def keep(self, owner: Any, nbytes: int, rows: int = 0) -> None:
        """Counts bytes, and rows that may come of them, for as long as `owner` lives: views of it keep it alive."""
        self._settle()
        self._bytes += nbytes
        self._rows += rows
        one = _Kept(owner, self._let_go)
        one.holds = Holds(nbytes, 0, rows)
        self._kept[id(one)] = one

    def own(self, array: Array | None, promised: Holds = NOTHING) -> None:
        """Counts an array whose memory is its own, and not another's that is counted, with what may come of it."""
        if array is not None and (array.base is None or promised):
            self.keep(array, array.nbytes + promised.nbytes, promised.rows)

    def taken_over(self, payload: memoryview) -> memoryview:
        """A message's payload, to be written, which counts for as long as anything refers to it. What is a part of
        something larger is somebody else's memory, and does not."""
        if isinstance(payload.obj, bytes | bytearray):
            own: Array = np.empty(payload.nbytes, np.uint8)
            own[:] = np.frombuffer(payload, np.uint8)
            payload = memoryview(own)  # type: ignore[arg-type]  # an array is a buffer
        if memoryview(payload.obj).nbytes == payload.nbytes:
            self.keep(payload.obj, payload.nbytes)
        return payload

    @property
    def waiting(self) -> Holds:
        """What is kept, and not merged or sent."""
        gone = self._gone.copy()
        left = self._bytes - sum(one.nbytes for one in gone), self._rows - sum(one.rows for one in gone)
        return Holds(max(left[0], 0), 0, max(left[1], 0))

    @property
    def now(self) -> Holds:
        """All that it holds."""
        return self.need + self.grown() + self.waiting

    def _let_go(self, one: weakref.ref[Any]) -> None:
        kept = self._kept.pop(id(one), None)
        if kept is not None:
            self._gone.append(kept.holds)

    def _settle(self) -> None:
        while self._gone:
            holds = self._gone.popleft()
            self._bytes -= holds.nbytes
            self._rows -= holds.rows


class Ledger:
    """The accounts of all jobs, against the quotas. One thread at a time may `reserve`, any may `release`."""

    def __init__(self, quotas: Quotas = Quotas()) -> None:  # noqa: B008  # frozen, so it can be shared
        self.quotas = quotas
        self.is_open = quotas == Quotas()
        """Whether there is no quota at all."""
        self._accounts: dict[int, Account] = {}

    def reserve(self, job: str, need: Holds) -> Account:
        """An account for a job that is about to be opened. Raises QuotaError where it does not fit."""
        wrong = self._exceeded(NOTHING, need, list(self._accounts.values()))
        if wrong is not None:
            raise QuotaError(f"job {job!r}: {wrong}")
        account = Account(need)
        self._accounts[id(account)] = account
        return account

    def release(self, account: Account) -> None:
        """The job is gone. No harm if it was before."""
        self._accounts.pop(id(account), None)

    def refusal(self, account: Account, more: Holds) -> str | None:
        """Why a job may not hold so much more; None where it may."""
        if self.is_open:
            return None
        return self._exceeded(account.now, more, [one for one in list(self._accounts.values()) if one is not account])

    def _exceeded(self, has: Holds, more: Holds, others: list[Account]) -> str | None:
        job = has + more
        for name, unit in _UNITS.items():
            asked, most = _of(job, name), getattr(self.quotas, f"job_{name}")
            if most is not None and asked > most and _of(more, name):
                return f"quota job_{name}: {asked} {unit} on this shard, {most} may be ({option_of(f'job_{name}')})"
        if self.quotas.total_bytes is self.quotas.total_keys is self.quotas.total_rows is None:
            return None
        total = sum((one.now for one in others), job)
        for name, unit in _UNITS.items():
            asked, most = _of(total, name), getattr(self.quotas, f"total_{name}")
            if most is not None and asked > most and _of(more, name):
                told = f"{asked} {unit} of all jobs on this shard, {most} may be"
                option = option_of(f"total_{name}")
                return f"quota total_{name}: {told}, and {_of(job, name)} are this job's ({option})"
        return None


def _of(holds: Holds, name: str) -> int:
    return holds.nbytes if name == "bytes" else int(getattr(holds, name))


# --- Whose turn it is, by bytes: who has used least goes first --------------------------------------------------------
# Start-time fair queueing: Goyal, Vin and Cheng, "Start-time fair queuing: a scheduling algorithm for integrated
# services packet switching networks", 1996. Against deficit round robin, which shares alike: who asks for little and
# often need not wait for a round of the others each time.


QUANTUM_BYTES: Final = 1 << 20
"""How far behind the others somebody may stand who comes back: what they may do at once before it is another's turn."""

J = TypeVar("J", bound=Hashable)


class FairQueue(Generic[J]):
    """`_used` has what each has used; `_now` is where whoever went last began."""

    __slots__ = ("_now", "_used")

    def __init__(self) -> None:
        self._used: dict[J, int] = {}
        self._now = 0

    def come(self, one: J) -> None:
        """It wants a turn, and did not so far: what it left unused counts for no more than a quantum."""
        self._used[one] = max(self._used.get(one, 0), self._now - QUANTUM_BYTES)

    def first(self, of: Iterable[J]) -> J:
        """Whose turn it is among those that have come; of equals the first."""
        return min(of, key=self._used.__getitem__)

    def use(self, one: J, nbytes: int) -> None:
        """It has had its turn, or more of it."""
        begun = self._used.get(one, self._now)
        self._now = max(self._now, begun)
        self._used[one] = begun + nbytes

    def drop(self, one: J) -> None:
        """It will not come again."""
        self._used.pop(one, None)


# --- Whether jobs share a shard just now ------------------------------------------------------------------------------


class ActiveJobs(Generic[J]):
    """Who was heard since the tick before the last one: for half a second at least, as a shard ticks."""

    __slots__ = ("_before", "_lately", "is_shared")

    def __init__(self) -> None:
        self._lately: set[J] = set()
        self._before: set[J] = set()
        self.is_shared = False

    def hear(self, one: J) -> bool:
        """True if it was not heard lately."""
        if one in self._lately:
            return False
        new = one not in self._before
        self._lately.add(one)
        if new:
            self.is_shared = len(self.all()) > 1
        return new

    def forget(self, one: J) -> None:
        """What was heard of it was of somebody else."""
        self._lately.discard(one)
        self._before.discard(one)
        self.is_shared = len(self.all()) > 1

    def tick(self) -> None:
        """Some time has passed."""
        self._before, self._lately = self._lately, set()
        self.is_shared = len(self._before) > 1

    def all(self) -> set[J]:
        return self._lately | self._before
