"""A job's part on one shard: what it does with each thing that comes. Pure.

Used by the shard behind its sockets and by the local store without any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property

from weft_kernels.rules.record import Rule
from weft_kvstore.arrays.ranges import Ranges
from weft_kvstore.arrays.shelf import Laid
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.computing import Computing, InTurn
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.quotas import Holds
from weft_kvstore.same_host.shared_layout import ShardPlaces, shard_places
from weft_kvstore.shard.account import Account
from weft_kvstore.shard.job_pulls import JobPulls
from weft_kvstore.shard.job_sets import JobSets
from weft_kvstore.shard.live_hyper import LiveHyper
from weft_kvstore.shard.parts import ShardParts
from weft_kvstore.shard.specs import Specs
from weft_kvstore.shard.taken import Taken
from weft_kvstore.shard.unit_runs import rows_of
from weft_kvstore.shard.waits import Reason, pull_lacks, pull_waits_for, step_waits_for
from weft_kvstore.sharding.routing import routing_of
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.tables.rows import Rows
from weft_kvstore.units.row_pushes import ChunkRun
from weft_kvstore.units.table_growth import promised
from weft_kvstore.units.table_state import TableState
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run


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
        computing: Computing | None = None,
        tables: TablePlace | None = None,
        account: Account | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.description = description
        self.shard = shard
        self.account = account or Account()
        """What of the shard's memory the job has."""
        self.gate = StepGate(description.commit, description.slots) if description.commit is not None else None
        """What holds each step until the slots have agreed on it, where they do."""
        self._routing = routing_of(description)
        self.parts = ShardParts(description, self._routing, shard)
        self.lots: Mapping[int, PlainLot] = self.parts.lots
        self.live = LiveHyper(description, self._routing, shard, self.parts.lots, self.parts.units)
        """The hyper-parameters, which may be changed."""
        self.sets = JobSets(self.parts, self.account)
        """What takes in values that are set."""
        self.pulls = JobPulls(self.parts, shard, self.account)
        """What takes in what is asked for."""

        def wanted(key: str) -> None:
            if stopped():
                raise OpenStoppedError(f"key {key!r}: the job is not wanted any more")

        specs = Specs(
            description,
            self._routing,
            shard,
            live=self.live,
            gate=self.gate,
            computing=computing or InTurn(),
            rule=rule,
        )
        self.parts.make(specs, tables, wanted)
        self.account.grown = self.parts.grown
        if self.gate is not None:
            self.gate.expect(self.parts.contributed)

    def close(self) -> None:
        """Gives back what tables have on disk. Nothing else is to be called then."""
        self.parts.close()

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
        return self.parts.nbytes

    @property
    def waiting_sets(self) -> int:
        """Parts that were set for versions that are still to come."""
        return self.sets.waiting

    @property
    def units(self) -> Iterable[TableState]:
        """What merges as one here."""
        return self.parts.units.values()

    def accept(self, slot: int, run: Run) -> Taken:
        """Takes in a run of gradients; the payload's memory is taken over where it is writable.

        Raises ProtocolError for a run that this shard does not have, and PushRefusedError where the push contradicts
        what is there.
        """
        lot = self.parts.plain(run.lot)
        laid = lot.laid_apart(run, self.places.gradients[run.lot]) if run.place else lot.laid(run)
        self.account.own(laid.elements)
        lot.state.check(slot, run.step, laid.first, laid.stop, pushes=True)
        return Taken(arrivals=[(lot, one) for one in lot.state.accept(slot, run.step, laid)])

    def accept_chunks(self, slot: int, run: Run) -> Taken:
        """Takes in a run of chunks of a push of rows. Raises as `accept` does."""
        table = self.parts.table(run.lot)
        came = ChunkRun(run.first, run.stop, rows_of(table, run, self.account))
        return Taken([table]) if table.accept_run(slot, run.step, came, run.chunks) else Taken()

    def accept_rows(self, slot: int, lot: int, step: int, rows: Rows) -> Taken:
        """Takes over all rows of a push, where there is one shard. Raises as `accept` does."""
        table = self.parts.table(lot)
        table.check(slot, step, pushes=True)
        return Taken([table]) if table.accept(slot, step, rows) else Taken()

    def declare_nothing(self, slot: int, step: int, keys: Iterable[int]) -> Taken:
        """The slot has nothing for these keys in this step. Raises as `accept` does."""
        units, ranges = self._contributed(keys)
        for unit in units:  # all before any: what is refused changes nothing
            unit.check(slot, step, pushes=False)
        runs = [(self.lots[number], first, stop) for number, some in ranges.items() for first, stop in some]
        for lot, first, stop in runs:
            lot.state.check(slot, step, first, stop, pushes=False)
        ready = [unit for unit in units if unit.accept(slot, step, None)]
        nothing = [(lot, lot.state.accept(slot, step, Laid(first, stop, None))) for lot, first, stop in runs]
        return Taken(ready, [(lot, one) for lot, arrivals in nothing for one in arrivals])

    def _contributed(self, keys: Iterable[int]) -> tuple[list[TableState], dict[int, Ranges]]:
        """What this shard has of these keys: units, and slices by lot. Raises ProtocolError."""
        units: list[TableState] = []
        ranges: dict[int, Ranges] = {}
        for key in keys:
            if not key < len(self.description.keys):
                raise ProtocolError(f"Barrier.nothing: key {key}, there are {len(self.description.keys)}")
            number = self._routing.lot_of[key]
            if number in self.parts.units:
                units.append(self.parts.units[number])
            elif self.shard in self._routing.runs[key]:
                first = self._routing.first_in_lot[key][self.shard]
                ranges.setdefault(number, Ranges()).add(first, first + len(self._routing.runs[key][self.shard]))
        return units, ranges

    def arrive(self, slot: int, step: int) -> None:
        """The slot's barrier of a step is whole. Raises ProtocolError where steps are not committed, PushRefusedError
        for a step that nobody can be at."""
        self._gate("Measure").arrive(slot, step)

    def commit(self, step: int, *, norm: float, finite: bool) -> bool:
        """A slot says what all shards measured of a step. True if everything that is contributed to may go on; raises
        as `arrive`."""
        return self._gate("Commit").commit(step, norm=norm, finite=finite)

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: its unmerged pushes are forgotten."""
        if self.gate is not None:
            self.gate.replace(slot)
        for lot in self.lots.values():
            lot.state.replace(slot)
        for unit in self.units:
            unit.replace(slot)

    def waits_for(self, wait: PullWait) -> Reason:
        """What an open pull waits for."""
        return pull_waits_for(self.parts, wait)

    def lacks(self, wait: PullWait, absent: Collection[int]) -> Reason | None:
        """What an open pull waits for of slots that are absent, and which of them; None where nothing."""
        return pull_lacks(self.parts, self.gate, wait, absent)

    def step_waits_for(self, step: int) -> Reason:
        """What a step that is not measured waits for. Raises ProtocolError where steps are not committed."""
        return step_waits_for(self.parts, self._gate("Measure"), step)

    def may_grow(self, run: Run, *, exact: bool) -> Holds:
        """What a run may bring into being beside its own bytes. Raises ProtocolError."""
        unit = self.parts.units.get(run.lot)
        return promised(unit, run, exact=exact) if isinstance(unit, TableState) else Holds()

    def _gate(self, message: str) -> StepGate:
        if self.gate is None:
            raise ProtocolError(f"{message}.step: the job's steps are not committed")
        return self.gate
