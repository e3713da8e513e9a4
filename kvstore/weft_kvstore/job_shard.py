"""A job's part on one shard: its slices and tables, and the pulls that wait for their versions. Pure.

Used by the shard behind its sockets and by the local store without any.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from weft_kernels.blocks import VECTOR_BLOCK
from weft_kernels.rules.record import Rule
from weft_kvstore.check import rule_of
from weft_kvstore.codec import ProtocolError
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.first import first_elements, first_table_rows, is_given
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.key_part import KeyPart, key_part
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.push_run import Run
from weft_kvstore.routing import routing_of
from weft_kvstore.row_chunks import check_chunks, unpacked_ids, unpacked_rows
from weft_kvstore.rows import Rows, is_ascending
from weft_kvstore.slice_state import SliceState
from weft_kvstore.step_gate import StepGate
from weft_kvstore.store import Array, StoreError
from weft_kvstore.table_state import TableState
from weft_kvstore.unit_state import AnyUnit, KeyRules
from weft_kvstore.work import PIECE_ELEMENTS, PIECE_NODES

FIRST_ELEMENTS: Final = 1 << 22
"""First values of a dense key that are made before it is asked whether the job is still wanted: some 200 ms."""


class OpenStoppedError(StoreError):
    """The job was not wanted any more before it was open."""


class JobShard:
    """Shard number `shard` of a store. Makes the first values of its slices; their memory is all it holds.

    Raises DescriptionError for a rule that there is not, ValueError for an initializer that there is not, and
    OpenStoppedError soon after `stopped` says so.
    """

    def __init__(
        self,
        description: StoreDescription,
        shard: int,
        *,
        rule: Rule | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self._rule = rule or rule_of(description)
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self._parts: dict[int, KeyPart] = {}
        self._tables: dict[int, TableState] = {}
        routing = routing_of(description)
        for place, (key, cut, runs) in enumerate(zip(description.keys, routing.cuts, routing.runs, strict=True)):
            if place in routing.tables and routing.tables[place].bytes_on(shard):
                table = routing.tables[place]
                make = partial(first_table_rows, key, description.seed, table.width)
                if not is_given(key):
                    make(np.zeros(0, np.int64))  # An initializer that there is not is found out now.
                self._tables[place] = TableState(self._spec(place, key), table, shard, make)
            elif shard in runs:
                run, itemsize = runs[shard], np.dtype(key.dtype).itemsize
                start, stop = cut.start(run.start) // itemsize, cut.start(run.stop) // itemsize
                values = _first_of(key, description.seed, start, stop, stopped)
                shape = tuple(key.shape) if key.whole else None
                self._parts[place] = key_part(self._spec(place, key), cut, run, values, shape)

        if self.gate is not None:
            self.gate.expect(len(self._contributed()))

    @property
    def nbytes(self) -> int:
        """Bytes of the values that this shard has, tables left out."""
        return sum(part.nbytes for part in self._parts.values())

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' values on this shard, were every row touched."""
        return sum(table.capacity_bytes for table in self._tables.values())

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come."""
        return sum(one.waiting_sets for key in range(len(self.description.keys)) for one in self.units(key))

    def slice_count(self, key: int) -> int:
        """How many slices of the key this shard has."""
        part = self._parts.get(key)
        return len(part.run) if part is not None else 0

    def accept(self, slot: int, run: Run) -> list[SliceState]:
        """Takes in a run of gradients; the payload's memory is taken over where it is writable.

        Returns the units that may now merge. Raises ProtocolError for a run that this shard does not have, and
        PushRefusedError where the push contradicts what is there.
        """
        part = self._part(run.key)
        slices = part.cut_payload(run)
        for index, _ in slices:  # all before any: what is refused changes nothing
            part.unit(index).check(slot, run.step, pushes=True)
        taken = [(part.unit(index), index, array) for index, array in slices]
        return [unit for unit, index, array in taken if unit.accept_slice(slot, run.step, index, array)]

    def accept_chunks(self, slot: int, run: Run) -> list[TableState]:
        """Takes in a run of chunks of a push of rows. Returns and raises as `accept` does."""
        table = self._table(run.key)
        parts = unpacked_rows(run, table.cut, self.shard, table.spec.key)
        table.check_chunks(slot, run.step, run.first, parts, run.chunks)
        ready = [table.accept_chunk(slot, run.step, at, part, run.chunks) for at, part in enumerate(parts, run.first)]
        return [table] if any(ready) else []

    def accept_rows(self, slot: int, key: int, step: int, rows: Rows) -> list[TableState]:
        """Takes over all rows of a push, where there is one shard. Returns and raises as `accept` does."""
        table = self._table(key)
        table.check(slot, step, pushes=True)
        return [table] if table.accept(slot, step, rows) else []

    def set_slices(self, slot: int, run: Run, origin: Hashable) -> list[SliceState]:
        """Sets a run of slices. Returns the units whose pulls or merge may have waited for it; raises as `accept`."""
        part = self._part(run.key)
        slices = part.cut_payload(run)
        for index, _ in slices:
            part.unit(index).check_set(slot, run.step, (origin, index))
        found: dict[int, SliceState] = {}
        for index, array in slices:
            unit = part.unit(index)
            if unit.accept_set(run.step, (index, array), (origin, index)):
                found[unit.index] = unit
        return list(found.values())

    def set_chunks(self, slot: int, run: Run, origin: Hashable) -> list[TableState]:
        """Sets rows of a table, each chunk by itself. Returns and raises as `set_slices` does."""
        table = self._table(run.key)
        chunks = list(enumerate(unpacked_rows(run, table.cut, self.shard, table.spec.key), run.first))
        for index, _ in chunks:  # all before any: what is refused changes nothing
            table.check_set(slot, run.step, (origin, index))
        changed = [table.accept_set(run.step, part, (origin, index)) for index, part in chunks]
        return [table] if any(changed) else []

    def set_rows(self, slot: int, key: int, version: int, rows: Rows, origin: Hashable) -> list[TableState]:
        """Sets rows by their places. Returns and raises as `set_slices` does."""
        table = self._table(key)
        table.check_set(slot, version, origin)
        return [table] if table.accept_set(version, rows, origin) else []

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> list[AnyUnit]:
        """The slot has nothing for these keys in this step. Returns and raises as `accept` does."""
        units: list[AnyUnit] = []
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            units += self.units(key)
        for one in units:  # all before any: what is refused changes nothing
            one.check(slot, step, pushes=False)
        return [one for one in units if one.accept(slot, step, None)]

    def pull(self, wait: PullWait, chunks: int) -> Sequence[AnyUnit]:
        """Takes in a pull. Returns the units that have to answer it.

        A pull of a table waits for `chunks` chunks of ids first; no other pull has any.
        """
        table = self._tables.get(wait.key)
        if table is not None:
            check_chunks(table.cut.rows_on(self.shard), table.cut.ids_up, chunks, table.spec.key)
            wait.expect(table.index, chunks)
            return []
        part = self._part(wait.key)
        if chunks:
            raise ProtocolError(f"Pull.chunks: {chunks} of key {part.spec.key!r}, which is no table")
        return part.units

    def accept_ids(self, wait: PullWait, run: Run) -> list[AnyUnit]:
        """Takes in a run of the ids of a pull. Returns and raises as `pull` does."""
        table = self._tables.get(wait.key)
        if table is None or run.key != wait.key or run.chunks != wait.chunks:
            raise ProtocolError(f"Push.request: {wait.request} asks for {wait.chunks} chunks of key {wait.key}")
        ids = unpacked_ids(run, table.cut, self.shard, table.spec.key)
        if not wait.add_ids(run.first, ids):
            return []
        if not is_ascending(wait.places):
            raise ProtocolError(f"ids: rows of key {table.spec.key!r} that do not ascend")
        return self.pull_rows(wait, wait.places)

    def pull_rows(self, wait: PullWait, places: Array) -> list[AnyUnit]:
        """Takes in a pull of rows by their places. Returns as `pull` does."""
        table = self._tables[wait.key]
        wait.ids = places
        return [table]

    def arrive(self, slot: int, step: int) -> None:
        """The slot's barrier of a step is whole. Raises ProtocolError where steps are not committed, PushRefusedError
        for a step that nobody can be at."""
        self._gate("Measure").arrive(slot, step)

    def commit(self, step: int, *, norm: float, finite: bool) -> list[AnyUnit]:
        """A slot says what all shards measured of a step. Returns the units that may now go on; raises as `arrive`."""
        return self._contributed() if self._gate("Commit").commit(step, norm=norm, finite=finite) else []

    def step_waits_for(self, step: int) -> tuple[str, list[int]]:
        """What a step that is not measured waits for, in words, and the slots that are missing."""
        text, missing = self._gate("Measure").missing(step)
        for one in [] if missing else self._contributed():
            if one.version <= step and (behind := one.steps.missing(step + 1, 0, settled=True))[1]:
                return f"key {one.spec.key!r} {behind[0]}", behind[1]
        return text, missing

    def _gate(self, message: str) -> StepGate:
        if self.gate is None:
            raise ProtocolError(f"{message}.step: the job's steps are not committed")
        return self.gate

    def _contributed(self) -> list[AnyUnit]:
        """The units that somebody contributes to."""
        keys = range(len(self.description.keys))
        return [one for key in keys if self.description.keys[key].slots for one in self.units(key)]

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten."""
        if self.gate is not None:
            self.gate.replace(slot)
        for key in range(len(self.description.keys)):
            for one in self.units(key):
                one.replace(slot)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing; nothing where all was answered."""
        units = {one.index: one for one in self.units(wait.key)}
        if wait.ids is None and wait.key in self._tables:
            return f"the ids of key {self.description.keys[wait.key].key!r} have not all come", []
        for index in sorted(wait.open):
            if not units[index].can_answer(wait):
                return units[index].waits_for(wait)
        return "every slice was answered", []

    def units(self, key: int) -> tuple[AnyUnit, ...]:
        """What merges the key here."""
        if key in self._tables:
            return (self._tables[key],)
        part = self._parts.get(key)
        return part.units if part is not None else ()

    def _part(self, key: int) -> KeyPart:
        part = self._parts.get(key)
        if part is None:
            raise ProtocolError(f"key: {key} has no slice on shard {self.shard}")
        return part

    def _table(self, key: int) -> TableState:
        table = self._tables.get(key)
        if table is None:
            raise ProtocolError(f"key: {key} has no rows on shard {self.shard}")
        return table

    def _spec(self, place: int, key: KeyDescription) -> KeyRules:
        description = self.description
        hyper = KeyHyper({**self._rule.hyper, **description.hyper}, key.multipliers)
        return KeyRules(
            key.key,
            place,
            key.priority,
            np.dtype(key.dtype),
            key.slots,
            key.update,
            description.merge,
            description.mode,
            self._rule,
            hyper,
            given=is_given(key),
            a_piece=_a_piece(description.rule),
            gate=self.gate,
        )


def _first_of(key: KeyDescription, seed: int, start: int, stop: int, stopped: Callable[[], bool]) -> Array:
    """Elements `start` to `stop` of the key's first value, made in pieces."""
    values = np.empty(stop - start, key.dtype)
    for low in range(start, stop, FIRST_ELEMENTS):
        if stopped():
            raise OpenStoppedError(f"key {key.key!r}: the job is not wanted any more")
        high = min(low + FIRST_ELEMENTS, stop)
        values[low - start : high - start] = first_elements(key, seed, low, high)
    return values


def _a_piece(rule: str | Mapping[str, Any]) -> int:
    """Elements that the rule updates in some 50 ms at most; whole blocks, so that cutting changes no bit."""
    if isinstance(rule, str) or "graph" not in rule:
        return PIECE_ELEMENTS
    nodes = max(len(rule["graph"]["nodes"]), PIECE_NODES)
    return PIECE_ELEMENTS * PIECE_NODES // nodes // VECTOR_BLOCK * VECTOR_BLOCK
