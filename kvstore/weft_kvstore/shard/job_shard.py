"""A job's part on one shard: its lots and tables, and the pulls that wait for their versions. Pure.

Used by the shard behind its sockets and by the local store without any.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from weft_kernels.blocks import VECTOR_BLOCK
from weft_kernels.id_draws import uniform_of_ids
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.ranges import Range, Ranges
from weft_kvstore.arrays.shelf import Laid
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.first import first_elements, first_table_rows, is_given
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.hyper.key_hyper import KeyHyper
from weft_kvstore.lot.part import PlainLot, decoded, plain_lot
from weft_kvstore.lot.spec import LotSpec
from weft_kvstore.lot.state import Arrival
from weft_kvstore.merging.computing import Computing, InTurn
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.work import LOT_PIECES, PIECE_ELEMENTS, PIECE_NODES
from weft_kvstore.quotas import Holds
from weft_kvstore.same_host.shared_layout import ShardPlaces, shard_places
from weft_kvstore.shard.account import Account
from weft_kvstore.shard.live_hyper import LiveHyper
from weft_kvstore.sharding.lots import LotKind
from weft_kvstore.sharding.routing import routing_of
from weft_kvstore.tables.admission import CHANCE
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.rows import Rows, is_ascending
from weft_kvstore.units.row_pushes import ChunkRun
from weft_kvstore.units.table_growth import grown, promised
from weft_kvstore.units.table_state import TableState
from weft_kvstore.units.unit_state import AnyUnit, KeyRules
from weft_kvstore.units.whole_state import WholeState
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run
from weft_kvstore.wire.row_chunks import check_chunks, chunks_apart, unpacked_ids, unpacked_rows


class OpenStoppedError(StoreError):
    """The job was not wanted any more before it was open."""


class Taken(NamedTuple):
    """What follows from something that came: `units` may now merge, and so may `arrivals` of lots. Where values were
    set, units have `changed` or ranges of lots have, and pulls may have waited for it; where the last ids of a `pull`
    came, units can answer it instead."""

    units: Sequence[AnyUnit] = ()
    arrivals: Sequence[tuple[PlainLot, Arrival]] = ()
    changed: bool = False
    ranges: Sequence[tuple[PlainLot, Range]] = ()
    pull: PullWait | None = None


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
        computing: Computing | None = None,
        tables: TablePlace | None = None,
        account: Account | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self.account = account or Account()
        """What of the shard's memory the job has."""
        self._rule = rule or rule_of(description)
        self._computing = computing or InTurn()
        self._place = tables
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self.lots: dict[int, PlainLot] = {}
        self._units: dict[int, WholeState | TableState] = {}
        self._routing = routing_of(description)
        self.live = LiveHyper(description, self._routing, shard, self.lots, self._units)
        """The hyper-parameters, which may be changed."""

        def wanted(key: str) -> None:
            if stopped():
                raise OpenStoppedError(f"key {key!r}: the job is not wanted any more")

        for lot in self._routing.lots:
            first = lot.keys[0]
            if lot.kind is LotKind.TABLE:
                if self._routing.tables[first].bytes_on(shard):
                    self._units[lot.number] = self._made_table(lot.number, first)
            elif shard in lot.parts:
                if lot.kind is LotKind.WHOLE:
                    wanted(description.keys[first].key)
                    self._units[lot.number] = self._made_whole(lot.number, first)
                else:
                    spec = self._lot_spec(lot.number, first)
                    self.lots[lot.number] = plain_lot(description, self._routing, spec, shard, wanted)
        of_tables = [one for one in self._units.values() if isinstance(one, TableState)]
        self.account.grown = partial(grown, of_tables)
        if self.gate is not None:
            contributed = sum(len(one.state) for one in self.lots.values() if one.state.spec.slots)
            self.gate.expect(contributed + sum(1 for one in self._units.values() if one.spec.slots))

    def close(self) -> None:
        """Gives back what tables have on disk. Nothing else is to be called then."""
        for unit in self._units.values():
            if isinstance(unit, TableState):
                unit.close()

    @cached_property
    def places(self) -> ShardPlaces:
        """Where this shard's slices are in the arenas of clients on its host."""
        return shard_places(self._routing, self.shard)

    def reads_in_place(self, run: Run) -> bool:
        """Whether it does nothing with the bytes of a run but compute: what is checked, or kept, has to be copied."""
        lot = self.lots.get(run.lot)
        return run.cargo == Cargo.GRADIENT and lot is not None and lot.pushed is None

    @property
    def nbytes(self) -> int:
        """Bytes of the values that this shard has, tables left out."""
        whole = sum(one.nbytes for one in self._units.values() if isinstance(one, WholeState))
        return whole + sum(one.state.nbytes for one in self.lots.values())

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' values on this shard, were every row touched."""
        return sum(one.capacity_bytes for one in self._units.values() if isinstance(one, TableState))

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come."""
        in_lots = sum(one.state.sets.waiting for one in list(self.lots.values()))
        return in_lots + sum(one.waiting_sets for one in list(self._units.values()))

    @property
    def units(self) -> Iterable[WholeState | TableState]:
        """What merges as one here."""
        return self._units.values()

    def accept(self, slot: int, run: Run) -> Taken:
        """Takes in a run of gradients; the payload's memory is taken over where it is writable.

        Raises ProtocolError for a run that this shard does not have, and PushRefusedError where the push contradicts
        what is there.
        """
        lot = self.lots.get(run.lot)
        if lot is None:
            return self._accept_slices(slot, run)
        laid = lot.laid_apart(run, self.places.gradients[run.lot]) if run.place else lot.laid(run)
        self.account.own(laid.elements)
        lot.state.check(slot, run.step, laid.first, laid.stop, pushes=True)
        return Taken(arrivals=[(lot, one) for one in lot.state.accept(slot, run.step, laid)])

    def _accept_slices(self, slot: int, run: Run) -> Taken:
        unit = self._whole(run.lot)
        slices = self._cut(unit, run)
        unit.check(slot, run.step, pushes=True)
        ready = [unit.accept_slice(slot, run.step, index, array) for index, array in slices]
        return Taken([unit]) if any(ready) else Taken()

    def accept_chunks(self, slot: int, run: Run) -> Taken:
        """Takes in a run of chunks of a push of rows. Raises as `accept` does."""
        table = self._table(run.lot)
        came = ChunkRun(run.first, run.stop, self._unpacked(table, run))
        return Taken([table]) if table.accept_run(slot, run.step, came, run.chunks) else Taken()

    def accept_rows(self, slot: int, lot: int, step: int, rows: Rows) -> Taken:
        """Takes over all rows of a push, where there is one shard. Raises as `accept` does."""
        table = self._table(lot)
        table.check(slot, step, pushes=True)
        return Taken([table]) if table.accept(slot, step, rows) else Taken()

    def set_slices(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets a run of slices. Raises as `accept` does."""
        lot = self.lots.get(run.lot)
        if lot is not None:
            laid = lot.laid(run)
            self.account.own(laid.elements)
            lot.state.sets.check(slot, run.step, laid.first, laid.stop, origin)
            changed = lot.state.sets.accept(run.step, laid, origin)
            return Taken(changed=True, ranges=[(lot, one) for one in changed])
        unit = self._whole(run.lot)
        slices = self._cut(unit, run)
        for index, _ in slices:  # all before any: what is refused changes nothing
            unit.check_set(slot, run.step, (origin, index))
        ready = [unit.accept_set(run.step, (index, array), (origin, index)) for index, array in slices]
        return Taken([unit] if any(ready) else [], changed=True)

    def set_chunks(self, slot: int, run: Run, origin: Hashable) -> Taken:
        """Sets rows of a table, each chunk by itself. Raises as `accept` does."""
        table = self._table(run.lot)
        chunks = list(enumerate(chunks_apart(self._unpacked(table, run), table.cut.rows_up), run.first))
        for index, _ in chunks:  # all before any: what is refused changes nothing
            table.check_set(slot, run.step, (origin, index))
        changed = [table.accept_set(run.step, part, (origin, index)) for index, part in chunks]
        return Taken([table] if any(changed) else [], changed=True)

    def set_rows(self, slot: int, lot: int, version: int, rows: Rows, origin: Hashable) -> Taken:
        """Sets rows by their places. Raises as `accept` does."""
        table = self._table(lot)
        table.check_set(slot, version, origin)
        return Taken([table] if table.accept_set(version, rows, origin) else [], changed=True)

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> Taken:
        """The slot has nothing for these keys in this step. Raises as `accept` does."""
        units: list[WholeState | TableState] = []
        ranges: dict[int, Ranges] = {}
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            number = self._routing.lot_of[key]
            if number in self._units:
                units.append(self._units[number])
            elif self.shard in self._routing.runs[key]:
                first = self._routing.first_in_lot[key][self.shard]
                ranges.setdefault(number, Ranges()).add(first, first + len(self._routing.runs[key][self.shard]))
        for unit in units:  # all before any: what is refused changes nothing
            unit.check(slot, step, pushes=False)
        runs = [(self.lots[number], first, stop) for number, some in ranges.items() for first, stop in some]
        for lot, first, stop in runs:
            lot.state.check(slot, step, first, stop, pushes=False)
        ready = [unit for unit in units if unit.accept(slot, step, None)]
        nothing = [(lot, lot.state.accept(slot, step, Laid(first, stop, None))) for lot, first, stop in runs]
        return Taken(ready, [(lot, one) for lot, arrivals in nothing for one in arrivals])

    def pull(self, wait: PullWait, lot: int, first: int, count: int, chunks: int) -> list[AnyUnit]:
        """Takes in an entry of a pull: the units that have to answer it. Slices of plain lots are open in it then.

        A pull of a table waits for `chunks` chunks of ids first; no other pull has any. Raises ProtocolError.
        """
        unit = self._units.get(lot)
        if isinstance(unit, TableState):
            check_chunks(unit.cut.rows_on(self.shard), unit.cut.ids_up, chunks, unit.spec.key)
            if wait.open or wait.open_units:
                raise ProtocolError(f"Pull.lot: {lot} is a table, and is asked for together with others")
            wait.expect(lot, chunks)
            return []
        if chunks:
            raise ProtocolError(f"Pull.chunks: {chunks} of lot {lot}, which is no table")
        if wait.chunks or lot in wait.open_units:
            raise ProtocolError(f"Pull.lot: {lot} is asked for twice, or beside a table")
        if unit is not None:
            wait.open_units.add(lot)
            return [self._whole(lot)]
        plain = self._plain(lot)
        plain.check_range(first, count, "Pull.first")
        wait.want(lot, first, first + count)
        return []

    def accept_ids(self, wait: PullWait, run: Run) -> Taken:
        """Takes in a run of the ids of a pull. Raises ProtocolError."""
        table = self._units.get(run.lot)
        if not isinstance(table, TableState) or run.lot not in wait.open_units or run.chunks != wait.chunks:
            raise ProtocolError(f"Push.request: {wait.request} does not ask for {run.chunks} chunks of lot {run.lot}")
        ids = unpacked_ids(run, table.cut, self.shard, table.spec.key)
        for one in ids:
            self.account.own(one)
        if not wait.add_ids(run.first, ids):
            return Taken(pull=wait)
        if not is_ascending(wait.places):
            raise ProtocolError(f"ids: rows of key {table.spec.key!r} that do not ascend")
        return Taken(self.pull_rows(wait, run.lot, wait.places), pull=wait)

    def pull_rows(self, wait: PullWait, lot: int, places: Array) -> list[AnyUnit]:
        """Takes in a pull of rows by their places. Returns as `pull` does."""
        wait.ids = places
        return [self._table(lot)]

    def arrive(self, slot: int, step: int) -> None:
        """The slot's barrier of a step is whole. Raises ProtocolError where steps are not committed, PushRefusedError
        for a step that nobody can be at."""
        self._gate("Measure").arrive(slot, step)

    def commit(self, step: int, *, norm: float, finite: bool) -> bool:
        """A slot says what all shards measured of a step. True if everything that is contributed to may go on; raises
        as `arrive`."""
        return self._gate("Commit").commit(step, norm=norm, finite=finite)

    def step_waits_for(self, step: int) -> tuple[str, list[int]]:
        """What a step that is not measured waits for, in words, and the slots that are missing."""
        text, missing = self._gate("Measure").missing(step)
        if missing:
            return text, missing
        for unit in self._units.values():
            if unit.spec.slots and unit.version <= step:
                behind = unit.steps.missing(step + 1, 0, settled=True)
                if behind[1]:
                    return f"key {unit.spec.key!r} {behind[0]}", behind[1]
        for lot in self.lots.values():
            found = _lot_waits_for(lot, step)
            if found is not None:
                return found
        return text, missing

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten."""
        if self.gate is not None:
            self.gate.replace(slot)
        for lot in self.lots.values():
            lot.state.replace(slot)
        for unit in self._units.values():
            unit.replace(slot)

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for, in words, and the slots that are missing; nothing where all was answered."""
        for number in wait.open:
            text, missing = self.lots[number].pulls.waits_for(wait)
            if missing:
                return text, missing
        for number in sorted(wait.open_units):
            unit = self._units[number]
            if wait.ids is None and isinstance(unit, TableState):
                return f"the ids of key {unit.spec.key!r} have not all come", []
            if not unit.can_answer(wait):
                return unit.waits_for(wait)
        for number in wait.open:
            return self.lots[number].pulls.waits_for(wait)
        return "every slice was answered", []

    def may_grow(self, run: Run, *, exact: bool) -> Holds:
        """What a run may bring into being beside its own bytes. Raises ProtocolError."""
        unit = self._units.get(run.lot)
        return promised(unit, run, exact=exact) if isinstance(unit, TableState) else Holds()

    def answer_bytes(self, wait: PullWait) -> int:
        """What the answer to a pull of rows takes until it has arrived; other answers take no memory of their own."""
        tables = [self._units[number] for number in wait.open_units]
        arrays = [len(one.spec.state) if wait.state else 1 for one in tables]
        rows = [one.cut.row_bytes if isinstance(one, TableState) else 0 for one in tables]
        return 0 if wait.ids is None else len(wait.ids) * sum(map(mul, arrays, rows))

    def named(self, slot: int, run: Run) -> str:
        """The words by which an error names a slot's run; it need not be one that this shard has."""
        lot, unit = self.lots.get(run.lot), self._units.get(run.lot)
        if lot is not None and run.first < len(lot.state):
            return f"slot {slot}, {lot.state.spec.named(run.first)}, step {run.step}"
        return f"slot {slot}, lot {run.lot}, step {run.step}" if unit is None else unit.where(slot, run.step)

    def _unpacked(self, table: TableState, run: Run) -> Rows:
        """A run of rows, which counts as the job's, with what it may bring into being."""
        rows = unpacked_rows(run, table.cut, self.shard, table.spec.key)
        more = promised(table, run, exact=False)
        self.account.own(rows.values, Holds(more.nbytes + rows.ids.nbytes, 0, more.rows))
        return rows

    def _made_table(self, number: int, place: int) -> TableState:
        key, cut = self.description.keys[place], self._routing.tables[place]
        make = partial(first_table_rows, key, self.description.seed, cut.width)
        if not is_given(key):
            make(np.zeros(0, np.int64))  # An initializer that there is not is found out now.
        spec, draw = self._spec(number, key), partial(uniform_of_ids, self.description.seed, CHANCE, key.key)
        try:
            return TableState(spec, cut, self.shard, make, sparse=key.sparse, draw=draw, place=self._place)
        except OSError as error:
            raise StoreError(f"key {key.key!r}: there is no place for its rows: {error}") from error

    def _made_whole(self, number: int, place: int) -> WholeState:
        key = self.description.keys[place]
        values = first_elements(key, self.description.seed, 0, key.size).astype(key.dtype).reshape(key.shape)
        lot = self._routing.lots[number]
        spec, cut = self._spec(number, key), self._routing.cuts[place]
        return WholeState(spec, cut, values, pushed=lot.pushed, pulled=lot.pulled)

    def _cut(self, unit: WholeState, run: Run) -> list[tuple[int, Array]]:
        """The slices of a run of a whole key, each with its number. Raises ProtocolError."""
        cut = self._routing.cuts[self._routing.lots[run.lot].keys[0]]
        if run.stop > cut.count:
            told = f"slices {run.first} to {run.stop - 1} of key {unit.spec.key!r}"
            raise ProtocolError(f"Push.first: {told}; this shard has 0 to {cut.count - 1}")
        if unit.pushed is not None and run.cargo == Cargo.GRADIENT:
            elements = decoded(unit.pushed, run, lambda slice_: f"key {unit.spec.key!r}, slice {slice_}")
            ends = (unit.pushed.bounds[run.first : run.stop + 1] - unit.pushed.bounds[run.first]).tolist()
            return [(run.first + at, elements[low:high]) for at, (low, high) in enumerate(pairwise(ends))]
        if cut.length(run.first, run.count) != run.payload.nbytes:
            told = f"{run.count} slices from {run.first} of key {unit.spec.key!r}"
            raise ProtocolError(f"Push.nbytes: {run.payload.nbytes} for {told}, not {cut.length(run.first, run.count)}")
        begin = cut.start(run.first)
        bounds = [cut.start(index) - begin for index in range(run.first, run.stop + 1)]
        return [
            (run.first + at, _writable(run.payload[bounds[at] : bounds[at + 1]], unit.spec.dtype))
            for at in range(run.count)
        ]

    def _gate(self, message: str) -> StepGate:
        if self.gate is None:
            raise ProtocolError(f"{message}.step: the job's steps are not committed")
        return self.gate

    def _plain(self, lot: int) -> PlainLot:
        found = self.lots.get(lot)
        if found is None:
            raise ProtocolError(f"lot: {lot} has no slice on shard {self.shard}")
        return found

    def _whole(self, lot: int) -> WholeState:
        found = self._units.get(lot)
        if not isinstance(found, WholeState):
            raise ProtocolError(f"lot: {lot} has no slice on shard {self.shard}")
        return found

    def _table(self, lot: int) -> TableState:
        found = self._units.get(lot)
        if not isinstance(found, TableState):
            raise ProtocolError(f"lot: {lot} has no rows on shard {self.shard}")
        return found

    def _staleness(self, key: KeyDescription) -> int:
        return self.description.staleness if key.staleness is None else key.staleness

    def _rule_of(self, key: KeyDescription) -> Rule:
        return self._rule if key.rule is None and key.hyper is None else rule_of(self.description, key)

    def _hyper(self, key: KeyDescription) -> KeyHyper:
        return self.live.numbers(key, self._rule_of(key))

    def _lot_spec(self, number: int, place: int) -> LotSpec:
        description, key = self.description, self.description.keys[place]
        return LotSpec(
            number,
            self._routing.lots[number].parts[self.shard],
            description.keys,
            key.slots,
            key.update,
            description.merge,
            description.mode,
            self._staleness(key),
            self._rule,
            self._hyper(key),
            a_piece=LOT_PIECES * _a_piece(description.rule),
            gate=self.gate,
            computing=self._computing,
            pushed=self._routing.lots[number].pushed,
            pulled=self._routing.lots[number].pulled,
            hold=self.live.agreement,
        )

    def _spec(self, number: int, key: KeyDescription) -> KeyRules:
        description = self.description
        return KeyRules(
            key.key,
            number,
            key.priority,
            np.dtype(key.dtype),
            key.slots,
            key.update,
            description.merge,
            description.mode,
            self._staleness(key),
            self._rule_of(key),
            self._hyper(key),
            given=is_given(key),
            a_piece=_a_piece(description.rule if key.rule is None else key.rule),
            gate=self.gate,
            hold=self.live.agreement,
            unscaled=(pushed := self._routing.lots[number].pushed) is not None and pushed.residual,
        )


def _lot_waits_for(lot: PlainLot, step: int) -> tuple[str, list[int]] | None:
    """What a step waits for at the first slice of a lot that has not merged it."""
    if not lot.state.spec.slots:
        return None
    behind = lot.state.steps.came.min(axis=0) <= step
    if not behind.any():
        return None
    at = int(behind.argmax())
    text, missing = lot.state.steps.missing(at, step + 1, None)
    return f"{lot.state.spec.key_named(at)} {text}", missing


def _writable(payload: memoryview, dtype: np.dtype[Any]) -> Array:
    """The payload as an array that a merge may write: itself where it can be, else a copy."""
    array: Array = np.frombuffer(payload, dtype)
    return array if array.flags.writeable and array.flags.aligned else array.copy()


def _a_piece(rule: str | Mapping[str, Any]) -> int:
    """Elements that the rule updates in some 50 ms at most; whole blocks, so that cutting changes no bit."""
    if isinstance(rule, str) or "graph" not in rule:
        return PIECE_ELEMENTS
    nodes = max(len(rule["graph"]["nodes"]), PIECE_NODES)
    return PIECE_ELEMENTS * PIECE_NODES // nodes // VECTOR_BLOCK * VECTOR_BLOCK
