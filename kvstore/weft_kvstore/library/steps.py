"""The steps that a slot has begun: pushes that are under way or failed, barriers, and the first wait for shards."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import repeat
from typing import Any, Final, TypeGuard, TypeVar

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import Store
from weft_kvstore.client.core import lacks, noted, push_again
from weft_kvstore.client.poller import uninterrupted
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.form import BARRIER_KEY, user_key
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import (
    StoreClosedError,
    StoreError,
    StoreLostError,
    StoreRefusedError,
    StoreTimeoutError,
)
from weft_kvstore.futures import (
    StoreFuture,
    after,
    driver_of,
    error_of,
    finished,
    hand_on,
    joined,
    nothing,
    on_end,
    then,
)
from weft_kvstore.library.arrays import ArrayTraffic
from weft_kvstore.library.key_registry import KeyRegistry
from weft_kvstore.settings import MAX_STEP
from weft_kvstore.wire.messages import MAX_CALL_PRIORITY

# --- The steps that a slot has begun, key by key, and what became of their pushes -------------------------------------


_log = logging.getLogger("weft.store")

R = TypeVar("R")

Send = Callable[[list[int], list[Array]], Future[R]]
"""send(numbers, arrays): gives the store a call with the keys' steps or versions, and its arrays on the host."""

_ON_HOST: Final = frozenset({np.ndarray})
_NEXT: Final = (1).__add__


class SlotSteps:
    """How many steps of each key the slot has begun, so that its user need not number them; and those whose push has
    failed, until they are pushed again.

    Counts a step and hands it to the store in one go, by one thread at a time, so that calls on one key keep their
    order, also from several threads and with arrays that are first copied from a GPU. Ctrl-C is delivered before or
    after that. What another signal's handler raises meanwhile may come between: a step that is counted then has failed,
    and is to be pushed again, whether or not it was sent. A call's time does not depend on how many pushes and pulls
    are under way.

    Counting begins at `start`: a process that takes over a slot continues where the former one was. Calls raise
    StoreRefusedError for numbers that are out of range; then nothing was begun.
    """

    def __init__(
        self,
        failed: dict[str, dict[int, StoreError]],
        registry: KeyRegistry,
        traffic: ArrayTraffic,
        start: int,
    ) -> None:
        """`failed`: see `ClientCore.failed`."""
        if start < 0:
            raise ValueError(f"step: at least 0, not {start}")
        self._failed = failed
        self._registry = registry
        self._traffic = traffic
        self.start = start
        self._counts = dict.fromkeys(registry.pushed, start)
        """Of each key that the slot pushes, how many steps have begun, by the store's name."""
        self._ended = start
        """So many steps were ended as a whole."""
        self._failed_ends: deque[dict[int, list[str]]] = deque()
        """Ends that have failed, and are not in `_to_end` yet: who notes them may not wait for the lock."""
        self._to_end: dict[int, list[str]] = {}
        """Those of them whose end has failed, with the keys that were not pushed in it."""
        self.unchecked = set(registry.pushed)
        """Keys that the slot pushes and whose version on the shards was not compared with the counts yet."""
        self._lock = threading.RLock()
        """Held while steps are counted and handed over, which never waits. Reentrant, for calls in a signal's
        handler."""

    def of(self, name: str) -> int:
        """Steps of a key that were begun, which is the version after them. 0 for a key that the slot does not push."""
        return self._counts.get(name, 0)

    def has_begun(self, name: str) -> bool:
        """Whether a step of the key was begun here."""
        return self._counts.get(name, 0) > (self.start if name in self._counts else 0)

    def push(self, call: str, names: Sequence[str], step: int | None, arrays: list[Any], send: Send[R]) -> Future[R]:
        """Begins a step of each key. If it raises StoreRefusedError, it has begun none."""
        if step is not None:
            check_number(step, f"{self._registry.call(call)}: step")
        with uninterrupted(), self._lock:
            return self._begin(call, names, step, arrays, send)

    def pushpull(
        self, call: str, names: Sequence[str], step: int | None, arrays: list[Any], send: Send[R]
    ) -> Future[R] | None:
        """The same in one message, whose result are the values after the step; None, and nothing has begun, if the keys
        are at several steps or unchecked, a push has failed, or arrays are being copied from a GPU."""
        if step is not None:
            check_number(step, f"{self._registry.call(call)}: step")
        with uninterrupted(), self._lock:
            is_one = self.unchecked.isdisjoint(names) and len({*map(self._counts.__getitem__, names)}) < 2
            if not is_one or self._traffic.under_way or (self._failed and any(self._failed.values())):
                return None
            return self._begin(call, names, step, arrays, send)

    def _begin(self, call: str, names: Sequence[str], step: int | None, arrays: list[Any], send: Send[R]) -> Future[R]:
        begun = [*map(self._counts.__getitem__, names)]
        steps = begun if step is None else [int(step)] * len(names)
        if step is not None:
            self._check_given(call, names, int(step))
        elif self._failed:
            self._check_none_refused(call, names, begun)
        is_here = _ON_HOST.issuperset(map(type, arrays))
        if not is_here:
            self._traffic.load(arrays)
        try:
            # One call, in the middle of which no signal's handler runs.
            self._counts.update(zip(names, map(max, begun, map(_NEXT, steps)), strict=True))
            if step is not None:  # It has failed no more, whenever it begins.
                for name in names:
                    self._failed.get(name, {}).pop(steps[0], None)
            if self._traffic.under_way or not is_here:
                return self._bring(call, names, steps, arrays, send)
            return send(steps, arrays)
        except BaseException as error:
            detail = f"{type(error).__name__} was raised in the middle of the call: {error}"
            self._note(names, steps, StoreError(detail))
            raise

    def _note(self, names: Sequence[str], steps: Sequence[int], error: StoreError) -> None:
        """Steps that were counted have failed: they may not have been sent. The client takes back what it begins."""
        for name, step in zip(names, steps, strict=True):
            if step < self._counts[name]:
                self._failed.setdefault(name, {})[step] = error

    def _bring(self, call: str, names: Sequence[str], steps: list[int], arrays: list[Any], send: Send[R]) -> Future[R]:
        """Sends gradients once they are on the host. Where they cannot be copied or do not fit, the steps have failed;
        that is noted before the caller's result has ended. What fails after it was sent, the client notes."""
        was_sent = False

        def begin(hosts: list[Array]) -> Future[R]:
            nonlocal was_sent
            sent = send(steps, hosts)
            was_sent = True
            return sent

        def note(error: BaseException | None) -> None:
            if not was_sent and error is not None and not isinstance(error, StoreClosedError):
                self._note(names, steps, noted(error))

        return after(self._traffic.bring(self._registry.call(call), names, arrays, begin), note)

    def _check_given(self, call: str, names: Sequence[str], step: int) -> None:
        """Raises StoreRefusedError for a step, numbered by the caller, that skips others: shards would wait for those,
        and what compression leaves out is in later steps."""
        for name in names:
            begun = self._counts[name]
            if step > begun:
                where = self._registry.where(call, user_key(name))
                detail = f"step {step} is ahead of step {begun}, the next of this slot"
                other = f"; to go on where another process was, connect with step={step}" if begun == self.start else ""
                raise StoreRefusedError(f"{where}: {detail}{other}")

    def pull(self, call: str, names: Sequence[str], version: int | None, arrays: list[Any], send: Send[R]) -> Future[R]:
        """Pulls a version of each key, by default the one after all pushed steps."""
        if version is not None:
            check_number(version, f"{self._registry.call(call)}: version")
        with self._lock:
            counts = self._counts
            versions = [*map(counts.get, names, repeat(0))] if version is None else [int(version)] * len(names)
            if self._traffic.under_way or not _ON_HOST.issuperset(map(type, arrays)):
                return self._traffic.bring(self._registry.call(call), names, arrays, partial(send, versions))
            return send(versions, arrays)

    def set(self, call: str, names: Sequence[str], version: int, arrays: list[Any], send: Send[None]) -> Future[None]:
        """Hands over values of a version."""
        where = self._registry.call(call)
        check_number(version, f"{where}: version", may_lack=False)
        with self._lock:
            return self._traffic.bring(where, names, arrays, partial(send, [int(version)] * len(names)))

    def end(self, step: int | None, hand_over: Callable[[list[tuple[int, list[str]]]], Future[R]]) -> Future[R]:
        """Ends all steps up to `step` that were not ended before, or whose end has failed: hands each over with the
        keys that were not pushed in it. Without a number it is the last step that was begun; where all of those are
        ended, the next one. Raises StoreRefusedError for a step that skips others."""
        where = self._registry.call("end_step")
        check_number(step, f"{where}: step")
        with uninterrupted(), self._lock:
            counts, last = self._counts, None if step is None else int(step)
            while self._failed_ends:
                self._to_end |= self._failed_ends[0]
                self._failed_ends.popleft()
            begun = max([*counts.values(), *(one + 1 for one in self._to_end)], default=0)
            if last is None:
                last = begun - 1 if begun > self._ended or self._to_end else self._ended
            self._check_none_refused("end_step", [*counts], [last + 1] * len(counts))
            first = min(self._to_end, default=self._ended)
            if last > max(begun - 1, self._ended) or (last < self._ended and last not in self._to_end):
                raise StoreRefusedError(f"{where}: step {last}: the next to end is step {first}")
            ended = {
                one: [name for name, begun in counts.items() if begun <= one] for one in range(self._ended, last + 1)
            }
            ended |= {one: names for one, names in self._to_end.items() if one <= last}
            skipped = sorted({name for names in ended.values() for name in names if counts[name] <= last})
            counted = dict.fromkeys(skipped, last + 1)
            # One statement, in the middle of which no signal's handler runs. From here on whatever is raised leaves
            # them to be ended again.
            self._counts, self._to_end = self._counts | counted, self._to_end | ended
            self._ended = max(self._ended, last + 1)
            handed = self._traffic.bring(where, skipped, [], lambda _: hand_over(sorted(ended.items())))
            handed = after(handed, partial(self._end_ended, ended))
            for one in ended:
                self._to_end.pop(one, None)
            return handed

    def _end_ended(self, ended: dict[int, list[str]], error: BaseException | None) -> None:
        """If it has failed, the steps are to be ended again; that is noted before the caller's result has ended."""
        if error is not None:
            self._failed_ends.append(ended)
            if isinstance(error, StoreRefusedError):
                _log.warning("end_step has to be called again for step %d: %s", min(ended), error)

    def change(self, names: Sequence[str], step: int | None, send: Callable[[int], Future[R]]) -> Future[R]:
        """Hands over a change of these keys' numbers from a step on, which comes before the slot's pushes of that step:
        by default from the first of which it has pushed nothing."""
        with uninterrupted(), self._lock:
            begun, name = max([(self._counts[one], one) for one in names], default=(0, ""))
            if step is not None and step < begun:
                detail = f"step {begun - 1} of key {user_key(name)!r} has begun here; step {begun} is possible"
                raise StoreRefusedError(f"{self._registry.call('set_hyper')}: {detail}")
            return send(begun if step is None else int(step))

    def check_start(self, call: str, step: int) -> None:
        """Raises StoreRefusedError for another step than the one that is the first here: values are restored to it."""
        where = f"{self._registry.call(call)}: step"
        check_number(step, where, may_lack=False)
        if step != self.start:
            raise StoreRefusedError(f"{where}: {step}; this store was connected with step={self.start}")

    def not_restored(self, error: BaseException | None) -> StoreError | None:
        """With what a key's first calls fail instead, if the step at which the slot begins is not there (in time)."""
        if not isinstance(error, StoreTimeoutError | StoreRefusedError):
            return None
        hint = f"new shards are at step 0 until one slot calls restore(..., step={self.start})"
        return type(error)(f"{error}; slot {self._registry.slot} was connected with step={self.start}: {hint}")

    def check_steps(self, names: Sequence[str], highest: Array) -> None:
        """Raises StoreRefusedError where a key has seen more steps of this slot than this process has begun: it was
        pushed by a process before this one, and what is pushed again would count for nothing. `highest` versions of the
        keys; -1 where no rows came."""
        for name, version in zip(names, highest.tolist(), strict=True):
            if name in self.unchecked and version > self._counts[name]:
                detail = f"it has seen {version} steps of this slot, and this process has begun {self._counts[name]}"
                raise StoreRefusedError(
                    f"{self._registry.where('pull', user_key(name))}: {detail}: another one was here before it, and "
                    f"what is pushed again counts for nothing; to go on, connect with step={version}, and with a "
                    "higher incarnation= where the other may still live; to start over, restart the shards"
                )
            if version >= 0:
                self.unchecked.discard(name)

    def _check_none_refused(self, call: str, names: Sequence[str], versions: Sequence[int]) -> None:
        """Raises StoreRefusedError where a step before a key's version was refused: until it is pushed again no step
        behind it applies, and what was pushed in it is nowhere."""
        for name, version in zip(names, versions, strict=True):
            failed = {**self._failed.get(name, {})}
            refused = min([step for step, error in failed.items() if step < version and lacks(error)], default=None)
            if refused is not None:
                where = self._registry.where(call, user_key(name))
                raise StoreRefusedError(f"{where}: {push_again(refused, failed[refused])}")


def is_whole(number: object) -> TypeGuard[int]:
    """Whether it is a whole number, Python's or NumPy's."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def check_number(number: int | None, where: str, *, may_lack: bool = True) -> None:
    """Raises StoreRefusedError for what is no step, or version, that there can be."""
    if number is None and may_lack:
        return
    if not is_whole(number) or not 0 <= number < MAX_STEP:
        raise StoreRefusedError(f"{where}: a number from 0 to 2**62 - 1, not {number!r}")


def checked_priority(priority: Any, where: str) -> int:
    """A call's priority. Raises StoreRefusedError for what is none."""
    if not is_whole(priority) or abs(int(priority)) > MAX_CALL_PRIORITY:
        detail = f"a whole number from -{MAX_CALL_PRIORITY} to {MAX_CALL_PRIORITY}, not {priority!r}"
        raise StoreRefusedError(f"{where}: priority: {detail}")
    return int(priority)


# --- Waits until the shards of a store are there: processes start in any order ----------------------------------------


BETWEEN_S: Final = 0.02
"""Between two checks of what the shards have answered."""

WARN_AFTER_S: Final = 2.0
"""A process that waits longer says for whom."""

HINT: Final = "a shard is started by: python -m weft_kvstore --description FILE --shard NUMBER"


def await_shards(client: StoreClient, description: StoreDescription, slot: int, wait_s: float) -> None:
    """Returns when every shard has welcomed the slot, or at once where `wait_s` is 0; a wait that takes long is logged,
    again when it is for others, and so is its end.

    Raises StoreLostError after `wait_s`, which names the shard and says how one is started, or StoreRefusedError where
    another process has the slot; and StoreRefusedError as soon as a shard will never talk with it.
    """
    begun = time.monotonic()
    said: object = None
    say_at = begun + WARN_AFTER_S
    while wait_s > 0:
        links = client.statistics().links
        waited = time.monotonic() - begun
        if all(link.welcomed for link in links):
            if said is not None:
                _log.warning("slot %d goes on after %.0f s: every shard talks with it", slot, waited)
            return
        if (reason := client.end_reason()) is not None:
            raise StoreClosedError(f"slot {slot}: {reason}")
        for link in links:
            if link.refused:
                raise StoreRefusedError(f"slot {slot}: {link.trouble}")
        missing = [shard for shard, link in enumerate(links) if not link.welcomed]
        taken = detail = next((link.trouble for link in links if link.taken), None)
        if detail is None:
            detail = next((links[shard].trouble for shard in missing if links[shard].trouble), None)
            detail = detail or f"{_named(description, missing)} did not answer"
            detail = f"{detail}; {HINT}{' --curve-keys FILE' if description.curve_keys else ''}"
        if waited >= wait_s:
            error = StoreLostError if taken is None else StoreRefusedError
            raise error(f"slot {slot} has waited {waited:.0f} s: {detail}")
        if time.monotonic() >= say_at:
            if (missing, taken) != said:
                _log.warning("slot %d waits, up to %g s: %s", slot, wait_s, detail)
            said, say_at = (missing, taken), time.monotonic() + WARN_AFTER_S
        time.sleep(BETWEEN_S)


def _named(description: StoreDescription, shards: list[int]) -> str:
    named = ", ".join(f"{shard} at {description.shards[shard]}" for shard in shards)
    return f"shard{'s' if len(shards) > 1 else ''} {named}"


# --- The barriers of one slot, one after the other: each begins once all slots have met at the one before -------------


class Barriers:
    """Each begins once the one before has ended, and fails with it. Where the push of one failed, the next call makes
    it again: no number is ever left out, or nobody could meet any more."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number: int | None = None
        """The next barrier's; None: the store has not said yet where the others are."""
        self._last: Future[None] = finished(None)

    def meet(self) -> Future[None]:
        """Ends when every slot has called it as often."""
        outcome: StoreFuture[None] = StoreFuture()
        with uninterrupted():
            try:
                # No lock, but one statement: another signal's handler may call it in the middle of it.
                before, self._last = self._last, outcome
                met = then(finished(None) if before.done() else before, self._begin)
                outcome.driver = driver_of(met)
                on_end(met, partial(hand_on, outcome))
            except BaseException as error:  # Else the next one would wait for ever.
                if not outcome.done():
                    outcome.set_exception(noted(error))
                raise
        return outcome

    def _begin(self, _: None) -> Future[None]:
        if self._number is not None:
            return self._arrive(self._number)
        known = self._store.pull([BARRIER_KEY], 0, settled=True, with_versions=True)
        return then(known, lambda found: self._arrive(int(found.lowest[0])))

    def _arrive(self, number: int) -> Future[None]:
        self._number = number
        pushed = self._store.push(BARRIER_KEY, number, np.zeros((), np.float32))
        if pushed.done() and error_of(pushed) is not None:
            return pushed  # It has not begun.
        met = joined([pushed, self._store.pull(BARRIER_KEY, number + 1, settled=True)], nothing)

        def ended(_: Future[None]) -> None:
            if error_of(pushed) is None:
                self._number = number + 1

        on_end(met, ended)
        return met
