"""What one shard has of a job's keys: its lots of dense keys and its tables, with their first values. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from weft_kernels.id_draws import uniform_of_ids
from weft_kvstore.description.first import first_table_rows, is_given
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.lot.part import PlainLot, plain_lot
from weft_kvstore.quotas import Holds
from weft_kvstore.shard.specs import Specs
from weft_kvstore.sharding.lots import LotKind
from weft_kvstore.sharding.routing import Routing
from weft_kvstore.tables.admission import CHANCE
from weft_kvstore.tables.place import TablePlace
from weft_kvstore.units.table_growth import grown
from weft_kvstore.units.table_state import TableState
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run


class ShardParts:
    """By number of the lot: `lots` are dense keys, `units` are tables. Both are empty until `make`."""

    def __init__(self, description: StoreDescription, routing: Routing, shard: int) -> None:
        self.lots: dict[int, PlainLot] = {}
        self.units: dict[int, TableState] = {}
        self._description = description
        self._routing = routing
        self._shard = shard

    def make(self, specs: Specs, place: TablePlace | None, wanted: Callable[[str], None]) -> None:
        """Makes the first values; `wanted` is asked meanwhile, with a key's name, whether that is still to be, and
        raises where it is not. Raises ValueError for an initializer that there is not, StoreError where rows of a
        table have no `place`."""
        for lot in self._routing.lots:
            first = lot.keys[0]
            if lot.kind is LotKind.TABLE:
                if self._routing.tables[first].bytes_on(self._shard):
                    self.units[lot.number] = self._made_table(lot.number, first, specs, place)
            elif self._shard in lot.parts:
                spec = specs.of_lot(lot.number)
                self.lots[lot.number] = plain_lot(self._description, self._routing, spec, self._shard, wanted)

    def close(self) -> None:
        """Gives back what tables have on disk."""
        for unit in self.tables:
            unit.close()

    @property
    def tables(self) -> list[TableState]:
        return list(self.units.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the values, tables left out."""
        return sum(one.state.nbytes for one in self.lots.values())

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' values, were every row touched."""
        return sum(one.capacity_bytes for one in self.tables)

    @property
    def contributed(self) -> int:
        """Slices and units to which slots contribute."""
        slices = sum(len(one.state) for one in self.lots.values() if one.state.spec.slots)
        return slices + sum(1 for one in self.units.values() if one.spec.slots)

    def grown(self) -> Holds:
        """What the tables have come to."""
        return grown(self.tables)

    def plain(self, lot: int) -> PlainLot:
        """A plain lot. Raises ProtocolError, as the others do, where it is none that is here."""
        found = self.lots.get(lot)
        if found is None:
            raise ProtocolError(f"lot: {lot} has no slice on shard {self._shard}")
        return found

    def table(self, lot: int) -> TableState:
        found = self.units.get(lot)
        if found is None:
            raise ProtocolError(f"lot: {lot} has no rows on shard {self._shard}")
        return found

    def named(self, slot: int, run: Run) -> str:
        """The words by which an error names a slot's run; it need not be one that this shard has."""
        lot, unit = self.lots.get(run.lot), self.units.get(run.lot)
        if lot is not None and run.first < len(lot.state):
            return f"slot {slot}, {lot.state.spec.named(run.first)}, step {run.step}"
        return f"slot {slot}, lot {run.lot}, step {run.step}" if unit is None else unit.where(slot, run.step)

    def _made_table(self, number: int, place: int, specs: Specs, rows_at: TablePlace | None) -> TableState:
        key, cut, seed = self._description.keys[place], self._routing.tables[place], self._description.seed
        make = partial(first_table_rows, key, seed, cut.width)
        if not is_given(key):
            make(np.zeros(0, np.int64))  # An initializer that there is not is found out now.
        spec, draw = specs.of_unit(number), partial(uniform_of_ids, seed, CHANCE, key.key)
        try:
            return TableState(spec, cut, self._shard, make, sparse=key.sparse, draw=draw, place=rows_at)
        except OSError as error:
            raise StoreError(f"key {key.key!r}: there is no place for its rows: {error}") from error
