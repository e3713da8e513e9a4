"""Calls of whole keys, the operations that they become, and the steps of each key that a slot has begun."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.core import lacks, noted, push_again
from weft_kvstore.client.operation import Check, KeyOperation
from weft_kvstore.client.plan import KeyList, Keys
from weft_kvstore.client.poller import uninterrupted
from weft_kvstore.client.store_client import Store
from weft_kvstore.description.form import user_key, user_keys
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreClosedError, StoreError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import StoreFuture, after, driver_of, error_of, joined, nothing, on_end
from weft_kvstore.library.row_calls import CALL_KINDS, RowCall, with_masters
from weft_kvstore.library.user_arrays import (
    ArrayTraffic,
    Outs,
    as_kept,
    checked,
    checked_out,
    is_on_device,
    is_several,
    sum_of,
    user_dtype,
)
from weft_kvstore.settings import MAX_STEP, STEPS_AHEAD
from weft_kvstore.store import Pulled, joined_pulls
from weft_kvstore.wire.messages import MAX_CALL_PRIORITY, MAX_ENTRIES, PayloadKind, Reading

# --- What a call of whole keys gives, and the operations that it becomes ----------------------------------------------


class KeyCall:
    """A call of whole keys. `arrays` are to be on the host before it begins: the gradient or value of each key, or
    several of a key, which are added up; none where it only pulls. The store writes what is pulled into the caller's
    arrays where it can; else it is delivered to `outs`.

    Raises StoreRefusedError for arrays that do not fit."""

    def __init__(
        self, registry: Keys, store: Store, call: str, keys: KeyList, values: Any = None, *, out: Any = None
    ) -> None:
        self.name, self.keys, self._registry, self._store = call, keys, registry, store
        self.kind, self._pulls = CALL_KINDS[call]
        self._of_state = call == "pull_state"
        self.arrays: list[Any] = []
        self._groups: list[list[Any]] | None = None
        self.outs: Outs | None = None
        self._out: list[Array] | None = None
        if self.kind is not None:
            fitting = None if keys.has_half else keys.fitting(values)
            if fitting is None:
                self._groups = self._checked(values)
                fitting = [*chain.from_iterable(self._groups)]
            self.arrays = fitting
        if out is not None:
            self._out = keys.fitting(out, writable=True)
        if (keys.has_half and self._pulls and not self._of_state) or (out is not None and self._out is None):
            self.outs = self._checked_outs(out)
            first = [group[0][1] for group in self.outs if group]
            self._out = None
            if not keys.has_half:
                self._out = keys.fitting(first[0] if keys.single and first else first, writable=True)

    def begin(
        self,
        numbers: Sequence[int],
        hosts: list[Array],
        *,
        check: Check | None = None,
        reading: Reading = Reading.OWN,
        priority: int = 0,
        with_versions: bool = False,
    ) -> Future[Any]:
        """Begins an operation for the keys of each step, or version. `hosts`: the arrays, on the host. `with_versions`:
        what is pulled is a `Pulled`."""
        if self._of_state:
            return self._begin_states(numbers, reading)
        values = hosts if self._groups is None else self._sums(self._groups, hosts)
        groups: list[Sequence[int]] = [range(len(numbers))]
        if len({*numbers}) > 1 or (self._pulls and len(numbers) > MAX_ENTRIES):
            of: dict[tuple[int, int], list[int]] = {}
            for at, number in enumerate(numbers):
                of.setdefault((number, at // MAX_ENTRIES if self._pulls else 0), []).append(at)
            groups = [*of.values()]
        begun = []
        for some in groups:
            keys, mine, out, number = self.keys, values, self._out, numbers[some[0]] if some else 0
            if len(groups) > 1:
                keys = self._registry.key_list([keys.user_keys[at] for at in some], self.name)
                mine = values and [values[at] for at in some]
                out = out and [out[at] for at in some]
            operation = KeyOperation(
                keys,
                payload_kind=self.kind,
                step=number,
                arrays=mine,
                version=(number if self.kind is None else number + 1) if self._pulls else None,
                reading=reading,
                out=out,
                with_versions=with_versions,
                check=check,
                priority=priority,
            )
            begun.append(self._store.submit(operation))
        if len(begun) == 1:
            return begun[0]

        def in_order(found: list[list[Array]]) -> list[Array]:
            values = dict(zip(chain.from_iterable(groups), chain.from_iterable(found), strict=True))
            return [values[at] for at in range(len(numbers))]

        return joined(begun, joined_pulls if with_versions else in_order if self._pulls else nothing)

    def _begin_states(self, versions: Sequence[int], reading: Reading) -> Future[Any]:
        """Begins an operation for the state of each key, and for its float32 value where users have 16 bits."""
        begun = list[Future[Any]]()
        for one, spec, version in zip(self.keys.user_keys, self.keys.keys, versions, strict=True):
            key, names = self._registry.key_list(one, self.name), self._registry.state_of(spec)
            begun.append(self._store.submit(KeyOperation(key, version=version, reading=reading, names=names)))
            if spec.half is not None:
                begun.append(self._store.submit(KeyOperation(key, version=version, reading=reading, as_kept=True)))
        found = with_masters(self.keys.keys, begun)
        return found[0] if self.keys.single else joined(found, list)

    def _checked(self, values: Any) -> list[list[Any]]:
        """For each key the arrays that are added up on the host: one, or several of which some are on a GPU."""
        found, what = [], "value" if self.kind is PayloadKind.VALUE else "gradient"
        for where, key, value in self._each(values):
            form, told = (user_dtype(key), tuple(key.shape)), f"{where}: {what}"
            if what == "value" or not is_several(value, form[1]):
                found.append([checked(value, *form, told)])
                continue
            arrays = [checked(one, *form, f"{told} {at}") for at, one in enumerate(value)]
            found.append(arrays if any(map(is_on_device, arrays)) else [sum_of(arrays, np.dtype(key.dtype))])
        return found

    def _sums(self, groups: list[list[Any]], hosts: Sequence[Array]) -> list[Array]:
        """For each key the sum of its arrays, in the type that its shards have."""
        brought = iter(hosts)
        arrays = [[next(brought) for _ in group] for group in groups]
        added = [
            some[0] if len(some) == 1 else sum_of(some, np.dtype(key.dtype))
            for key, some in zip(self.keys.keys, arrays, strict=True)
        ]
        return as_kept(self.keys.keys, added)

    def _checked_outs(self, out: Any) -> Outs:
        """The arrays that each key's value goes to: one, or several, as devices have them."""
        found: Outs = []
        for where, key, targets in self._each(out):
            group = targets if isinstance(targets, list | tuple) and targets else [targets]
            form = user_dtype(key), tuple(key.shape), where
            found.append([(own, checked_out(own, *form)) for own in group if own is not None])
        return found

    def _each(self, values: Any) -> Iterable[tuple[str, KeyDescription, Any]]:
        """For each key how its errors begin, and the caller's value for it."""
        wheres = [self._registry.where(self.name, one) for one in self.keys.user_keys]
        return zip(wheres, self.keys.keys, self._registry.each(self.name, self.keys, values), strict=True)


Call: TypeAlias = KeyCall | RowCall

# --- Reads several keys at one version while others push --------------------------------------------------------------
# No thread waits in it: the thread that ends one of its pulls goes on.


TRIES: Final = 8
"""How many pulls of one version are tried. The first asks for the newest version that was seen. If keys have passed
that, training goes on: each further pull asks for a later version, until the pull arrives before the keys are at it."""


def consistent_read(call: KeyCall) -> Future[tuple[int, list[Array]]]:
    """A future of the newest version at which all keys of a pull can be read, and of their values at it. In sync mode
    only. Fails with StorePassedError where keys have passed every version that was tried."""
    keys, pull = call.keys.keys, partial(call.begin, with_versions=True)
    # A key without elements has no version either.
    count, versioned = len(keys), [number for number, key in enumerate(keys) if key.slots and key.size]
    newest = pull([0] * count, [])
    future: StoreFuture[tuple[int, list[Array]]] = StoreFuture()
    future.driver = driver_of(newest)

    def pulled_newest(tries: int, overdue: StoreTimeoutError | None, ended: Future[Pulled]) -> None:
        error = error_of(ended)
        if error is not None:
            future.set_exception(error)
            return
        pulled = ended.result()
        lowest = min(pulled.lowest[versioned].tolist(), default=0)
        highest = max(pulled.highest[versioned].tolist(), default=0)
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            future.set_result((highest, pulled.values))
        elif overdue is not None:
            future.set_exception(overdue)
        else:
            target = highest + tries
            on_end(pull([target] * count, [], reading=Reading.EXACT), partial(pulled_exact, target, tries + 1))

    def pulled_exact(target: int, tries: int, ended: Future[Pulled]) -> None:
        error = error_of(ended)
        if error is None:
            future.set_result((target, ended.result().values))
        elif isinstance(error, StoreTimeoutError):
            # Perhaps nobody pushes any more: then all are at one version by now.
            on_end(pull([0] * count, []), partial(pulled_newest, tries, error))
        elif isinstance(error, StorePassedError) and tries < TRIES:
            on_end(pull([0] * count, []), partial(pulled_newest, tries, None))
        else:
            future.set_exception(error)

    on_end(newest, partial(pulled_newest, 0, None))
    return future


# --- The steps that a slot has begun, key by key, and what became of their pushes -------------------------------------


_log = logging.getLogger("weft.store")

R = TypeVar("R")

Send = Callable[[list[int], list[Array]], Future[R]]
"""send(numbers, arrays): gives the store a call with the keys' steps or versions, and its arrays on the host."""

_ANOTHER: Final = "another one was here before it"
"""Marks the error of a pull for which shards have later steps of the slot."""

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
        registry: Keys,
        traffic: ArrayTraffic,
        start: int,
    ) -> None:
        """`failed`: see `ClientCore.failed`."""
        if start < 0:
            raise ValueError(f"step: at least 0, not {start}")
        described = registry.description
        self._failed = failed
        self._registry = registry
        self._traffic = traffic
        self.start = start
        self._counts = dict.fromkeys([key.key for key in user_keys(described) if registry.slot in key.slots], start)
        """How many steps of each key that the slot pushes have begun, by the store's name."""
        self._sequence = 0
        """Counts how often steps were counted, as a seqlock does: a signal's handler may have counted some
        meanwhile."""
        self._ended = start
        """Steps below this were ended as a whole, with `end_step`."""
        self._to_end: dict[int, list[str]] = {}
        """Steps that were ended in vain, each with the keys that were not pushed in it: they have to be ended again."""
        self._failed_ends: deque[dict[int, list[str]]] = deque()
        """Entries that are not in `_to_end` yet: the thread that ends a future adds them here, as it may not wait for
        the lock."""
        self._needs_scale = start > 0 and described.commit is not None and described.commit.loss_scaling is not None
        """Whether the loss scale is not known of the first step here, which follows from the step before."""
        self._lock = threading.RLock()
        """Held while steps are counted and handed over, which never waits. Reentrant, for calls in a signal's
        handler."""

    def of(self, name: str) -> int:
        """Steps of a key that were begun, which is the version after them. 0 for a key that the slot does not push."""
        return self._counts.get(name, 0)

    def push(self, call: str, names: Sequence[str], step: int | None, arrays: list[Any], send: Send[R]) -> Future[R]:
        """Begins a step of each key. If it raises StoreRefusedError, it has begun none."""
        with uninterrupted(), self._lock:
            is_here = _ON_HOST.issuperset(map(type, arrays))
            if not is_here:
                self._traffic.load(arrays)
            sequence = self._sequence
            steps = begun = [*map(self._counts.__getitem__, names)]
            if step is not None:
                check_number(step, f"{self._registry.call(call)}: step")
                steps = [int(step)] * len(names)
                self._check_step(call, names, int(step))
            elif self._failed:
                self._check_none_refused(call, names, begun)
            counted = dict(zip(names, map(max, begun, map(_NEXT, steps)), strict=True))
            if self._sequence != sequence:  # A signal's handler has counted steps meanwhile.
                return self.push(call, names, step, arrays, send)
            try:
                self._sequence += 1  # No handler runs from the comparison to the end of the next call.
                self._counts.update(counted)
                if step is not None:  # The step is not noted as failed any more, even before it is sent.
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

    def _check_step(self, call: str, names: Sequence[str], step: int) -> None:
        """Raises StoreRefusedError for a step of the caller's that skips others, for which shards would wait."""
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
        """Hands over values of a version, as one is pulled."""
        check_number(version, f"{self._registry.call(call)}: version", may_lack=False)
        return self.pull(call, names, version, arrays, send)

    def end(self, step: int | None, hand_over: Callable[[list[tuple[int, list[str]]]], Future[R]]) -> Future[R]:
        """Ends all steps up to `step` that were not ended before, or whose end has failed: hands each over with the
        keys that were not pushed in it. Without a number it is the last step that was begun; where all of those are
        ended, the next one. The step before `start` was ended by another process, and is ended once more. Raises
        StoreRefusedError for a step that skips others."""
        where = self._registry.call("end_step")
        check_number(step, f"{where}: step")
        if step is not None and step == self.start - 1:
            again = self._traffic.bring(where, [], [], lambda _: hand_over([(int(step), [])]))
            return after(again, self._ended_before)
        with uninterrupted(), self._lock:
            sequence, counts, last = self._sequence, self._counts, None if step is None else int(step)
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
            if self._sequence != sequence:  # A signal's handler has counted steps meanwhile.
                return self.end(step, hand_over)
            self._sequence += 1  # No handler runs from the comparison to the end of the next statement.
            # From here on whatever is raised leaves them to be ended again.
            self._counts, self._to_end = self._counts | counted, self._to_end | ended
            self._ended = max(self._ended, last + 1)
            handed = self._traffic.bring(where, skipped, [], lambda _: hand_over(sorted(ended.items())))
            handed = after(handed, partial(self._end_ended, ended))
            for one in ended:
                self._to_end.pop(one, None)
            return handed

    def _ended_before(self, error: BaseException | None) -> None:
        self._needs_scale = self._needs_scale and error is not None

    def check_scale(self, call: str) -> None:
        """Raises StoreRefusedError for a push of a process that cannot know by what its loss is to be multiplied."""
        if self._needs_scale:
            last = self.start - 1
            hint = f"call end_step({last}) and wait for it: its outcome's scale, `after` that step, is this step's"
            where = self._registry.call(call)
            raise StoreRefusedError(f"{where}: the loss scale of step {self.start} follows from step {last}: {hint}")

    def _end_ended(self, ended: dict[int, list[str]], error: BaseException | None) -> None:
        """If it has failed, the steps are to be ended again; that is noted before the caller's result has ended."""
        if error is not None:
            self._failed_ends.append(ended)
            if isinstance(error, StoreRefusedError):
                _log.warning("end_step has to be called again for step %d: %s", min(ended), error)

    def change(self, names: Sequence[str], step: int | None, send: Callable[[int], Future[R]]) -> Future[R]:
        """Sends a change of these keys' hyper-parameters that holds from `step` on, before the slot's pushes of that
        step. By default it is the first step of which the slot has pushed nothing."""
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
            raise StoreRefusedError(
                f"{where}: {step}; this store was connected with step={self.start}: connect with step={step}"
            )

    def or_not_restored(self, names: Sequence[str], begun: Future[R]) -> Future[R]:
        """A future like `begun`. Where it fails in a key's first steps, its error also says what to do if the shards
        have not reached the slot's first step."""
        start = self.start
        if not any(0 <= self.of(name) - start <= STEPS_AHEAD for name in names):
            return begun

        def told(error: BaseException | None) -> StoreError | None:
            if not isinstance(error, StoreTimeoutError | StoreRefusedError) or _ANOTHER in str(error):
                return None
            last = start - 1
            new = f"if the shards are new, they are at step 0 until one slot calls restore(..., step={start})"
            lost = f"if a process of this slot has died, its push of step {last} may be lost: push it, with step={last}"
            return type(error)(f"{error}; slot {self._registry.slot} was connected with step={start}: {new}; {lost}")

        return after(begun, told)

    def check(self, name: str, version: int) -> StoreRefusedError | None:
        """The error of a pull where a key has seen more steps of this slot than this process has begun: it was pushed
        by a process before this one, and what is pushed again would count for nothing. One that died in the middle of
        its step may have pushed some keys of it: who takes over does that step again."""
        begun = self._counts.get(name, version)
        if version <= max(begun, self.start + 1):
            return None
        return StoreRefusedError(
            f"{self._registry.where('pull', user_key(name))}: it has seen {version} steps of this slot, and this "
            f"process has begun {begun}: {_ANOTHER}, and what is pushed again counts for nothing; "
            f"to go on, connect with step={version}, or step={version - 1} where it died in the middle of that step, "
            "and with a higher incarnation= where it may still live; to start over, restart the shards"
        )

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
