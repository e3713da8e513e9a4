"""Growing tables against a plain dict of rows: growth, admission, eviction, the number of shards, hostile ids."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_cluster import constant, ended, store_of, table_of
from store_cluster import given as given_key
from store_simulation import Simulation
from weft_graph.ir import Initializer
from weft_kernels.id_draws import rows_of_ids, uniform_of_ids
from weft_kvstore.arrays import Array, Segment
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.description.check import DescriptionError, check_description, hyper_of, rule_of
from weft_kvstore.description.records import (
    EvictionDescription,
    GrowthDescription,
    KeyDescription,
    Mode,
    StoreDescription,
    first_table_rows,
)
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.rows.rows import Rows, before_padding, check_ids, merging, own_rows, summed_rows
from weft_kvstore.rows.storage import CHANCE
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.sharding import routing_of
from weft_kvstore.tables import RequestedRows, TableState
from weft_kvstore.wire.codec import ProtocolError, PushSegment
from weft_kvstore.wire.messages import PayloadKind, Reading

WIDTH = 3
SEED = 7


def growing(slots: int = 1, growth: GrowthDescription | None = None) -> KeyDescription:
    return msgspec.structs.replace(table_of("t", (0, WIDTH), slots), growth=growth or GrowthDescription())


def described(*keys: KeyDescription, slots: int = 1, shards: int = 1, **others: Any) -> StoreDescription:
    return store_of(keys, slots=slots, shards=shards, **{"hyper": {"lr": 0.5}, "slice_bytes": 256, **others})


def ids_of(*ids: int) -> Array:
    return np.array(ids, np.uint64)


def momentum_of(table: TableState) -> float:
    """Of row 9; 0 where it is not here."""
    found, lacks = table.rows.read("momentum", ids_of(9))
    return float(found[0, 0]) if lacks is None else 0.0


def table_in(job: JobShard) -> TableState:
    (table,) = job.tables.values()
    return table


def table_on(description: StoreDescription, salt: int = 1) -> TableState:
    """The one table of a description on its one shard, with the numbers to admit by, and that salt."""
    key, cut = description.keys[0], routing_of(description).tables[0]
    rules = table_in(JobShard(description, 0)).spec
    first = partial(first_table_rows, key, SEED, cut.width)
    return TableState(rules, cut, 0, first, draw=partial(_drawn, key.key), salt=salt)


def _drawn(table: str, ids: Array, step: int) -> Array:
    return uniform_of_ids(SEED, CHANCE, table, ids, step)


def push(table: TableState, step: int, ids: Array, values: Array, slot: int = 0) -> None:
    rows = summed_rows(ids, values.copy(), before_padding(ids))  # The table takes them over.
    table.accept(slot, step, Segment(0, 1, [rows]))
    for _ in table.merging():
        pass


def pulled(table: TableState, ids: Array) -> Array:
    """Rows (n, WIDTH) as the shard answers a pull of them, ids ascending, that asks for the present version."""
    wait = PullWait(None, 1, table.version, slot=0, state=False, reading=Reading.OWN)
    wait.rows = RequestedRows(table, 0)
    wait.rows.ids = ids
    wait.want(0, 0, 1)
    ((_, _, version),) = table.ready(wait)
    answers = [answer for answer in table.answers(wait, version) if answer is not None]
    return np.concatenate([np.frombuffer(one.source.base, np.float32) for one in answers]).reshape(-1, WIDTH)


class Cluster:
    """Shards of a description and a client for each slot, with all the messages between them."""

    def __init__(self, description: StoreDescription) -> None:
        self.description = description
        self.simulation = Simulation(description)
        self.choose = random.Random(1)

    def push(
        self, slot: int, step: int, ids: Array, values: Array, payload_kind: PayloadKind = PayloadKind.GRADIENT
    ) -> None:
        store = self.simulation.stores[slot]
        self.simulation.finish(self.choose, store.push("t", step, values, ids, kind=payload_kind))

    def pull(self, ids: Array, version: int, *, state: bool = False) -> Any:
        store = self.simulation.stores[0]
        future = store.pull("t", version, ids, state=state)
        self.simulation.finish(self.choose, future)
        return future.result(0)

    @property
    def tables(self) -> list[TableState]:
        return [table_in(core.job) for core in self.simulation.shards]

    def touched(self) -> int:
        return sum(table.rows.count for table in self.tables)


class DictTable:
    """What a growing table is, row by row: SGD at lr 0.5 on rows of (-1, 1)."""

    def __init__(self, growth: GrowthDescription) -> None:
        self.growth = growth
        self.rows: dict[int, Array] = {}
        self.last: dict[int, int] = {}
        self.score: dict[int, np.float32] = {}
        self.uses: dict[int, list[int]] = {}
        self.bound = 0

    def first(self, one: int) -> Array:
        initializer = Initializer("RandomUniform", {"low": -1.0, "high": 1.0})
        rows = rows_of_ids(initializer, seed=SEED, key="t", ids=ids_of(one), width=WIDTH, dtype="float32")
        return rows[0]

    def push(self, step: int, gradients: dict[int, Array]) -> None:
        for one, gradient in gradients.items():
            if one not in self.rows:
                if not self.admits(one, step):
                    continue
                self.rows[one], self.score[one] = self.first(one), np.float32(0)
                self.last[one] = step
            self.rows[one] = self.rows[one] - np.float32(0.5) * gradient
            self.score[one] = self.faded(one, step) + np.float32(1)
            self.last[one] = step
        eviction = self.growth.eviction
        if eviction is not None and (step + 1) // eviction.every > self.bound:
            self.bound = (step + 1) // eviction.every
            for one in list(self.rows):
                is_old = eviction.age is not None and step + 1 - self.last[one] > eviction.age
                if is_old or (eviction.score is not None and self.faded(one, step + 1) < eviction.score):
                    del self.rows[one]
            if eviction.age is not None:
                self.uses = {one: use for one, use in self.uses.items() if step + 1 - use[1] <= eviction.age}

    def admits(self, one: int, step: int) -> bool:
        if self.growth.uses > 1:
            use = self.uses.setdefault(one, [0, 0])
            use[0], use[1] = use[0] + 1, step
            if use[0] < self.growth.uses:
                return False
            del self.uses[one]
            return True
        return bool(_drawn("t", ids_of(one), step)[0] < self.growth.probability)

    def faded(self, one: int, step: int) -> np.float32:
        eviction, score = self.growth.eviction, self.score[one]
        factor, left = np.float32(eviction.decay if eviction else 1), step - self.last[one]
        while left:
            score, factor, left = score * factor if left & 1 else score, factor * factor, left >> 1
        return np.float32(score)

    def pull(self, ids: list[int]) -> Array:
        return np.array([self.rows[one] if one in self.rows else self.first(one) for one in ids], np.float32)


GROWTHS = [
    GrowthDescription(),
    GrowthDescription(eviction=EvictionDescription(2, age=1)),
    GrowthDescription(uses=3),
    GrowthDescription(uses=2, eviction=EvictionDescription(3, age=2)),
    GrowthDescription(probability=0.4),
    GrowthDescription(probability=0.6, eviction=EvictionDescription(1, score=0.9, decay=0.7)),
    GrowthDescription(eviction=EvictionDescription(2, age=4, score=0.6, decay=0.5)),
]
IDS = st.one_of(st.integers(0, 9), st.integers(2**63 - 2, 2**63 + 2), st.integers(2**64 - 3, 2**64 - 1))
PROGRAM = st.lists(st.lists(IDS, min_size=0, max_size=12), min_size=1, max_size=14)


@pytest.mark.parametrize("growth", GROWTHS, ids=str)
@settings(max_examples=12)
@given(program=PROGRAM, salt=st.integers(0, 2**64 - 1))
def test_a_table_is_what_a_dict_of_rows_is(growth: GrowthDescription, program: list[list[int]], salt: int) -> None:
    table, model = table_on(described(growing(growth=growth)), salt), DictTable(growth)
    for step, ids in enumerate(program):
        values = np.random.default_rng(step).standard_normal((len(ids), WIDTH)).astype(np.float32)
        rows = summed_rows(ids_of(*ids), values, before_padding(ids_of(*ids)))
        model.push(step, dict(zip(rows.ids.tolist(), rows.values.copy(), strict=True)))
        push(table, step, ids_of(*ids), values)
        asked = sorted({*ids, 3, 2**63, 2**64 - 1})
        assert pulled(table, ids_of(*asked)).tobytes() == model.pull(asked).tobytes()
        assert table.rows.count == len(model.rows)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_the_number_of_shards_changes_no_bit(rule: str) -> None:
    growth = GrowthDescription(uses=2, eviction=EvictionDescription(3, age=2))
    hyper = {"lr": 0.5} if rule == "sgd" else {}
    results, counts = [], []
    for shards in (1, 2, 5):
        cluster = Cluster(described(growing(2, growth), slots=2, shards=shards, rule=rule, hyper=hyper))
        generator = np.random.default_rng(3)
        found = []
        for step in range(8):
            for slot in (step % 2, 1 - step % 2):
                ids = generator.integers(0, 120, 80).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                cluster.push(slot, step, ids, generator.standard_normal((80, WIDTH)).astype(np.float32))
            asked = np.arange(130, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            found.append(cluster.pull(asked, step + 1).tobytes())
            if rule == "adam":
                state = cluster.pull(asked, step + 1, state=True)
                found.append(b"".join(array.tobytes() for array in state.values()))
        results.append(found)
        counts.append(cluster.touched())
    assert results[0] == results[1] == results[2]
    assert len(set(counts)) == 1
    assert 0 < counts[0] < 120


def test_int64_and_uint64_name_the_same_rows_and_only_int64_has_padding() -> None:
    cluster = Cluster(described(constant(growing(), 0.0), shards=3))
    cluster.push(0, 0, np.array([5, -1, 2, 5], np.int64), np.ones((4, WIDTH), np.float32))
    cluster.push(0, 1, ids_of(5, 2**64 - 1), np.ones((2, WIDTH), np.float32))
    assert cluster.touched() == 3
    signed = cluster.pull(np.array([2, -1, 5, -7], np.int64), 2)[:, 0]
    assert signed.tolist() == [-0.5, 0.0, -1.5, 0.0]
    assert cluster.pull(ids_of(2**64 - 1, 5, 5, 2**63), 2)[:, 0].tolist() == [-0.5, -1.5, -1.5, 0.0]


def test_a_pull_brings_no_row_into_being() -> None:
    cluster = Cluster(described(growing(), shards=2))
    ids = np.arange(1000, dtype=np.uint64)
    before = cluster.pull(ids, 0)
    assert cluster.touched() == 0
    cluster.push(0, 0, ids, np.zeros((1000, WIDTH), np.float32))
    assert cluster.pull(ids, 1).tobytes() == before.tobytes()
    assert cluster.touched() == 1000


def test_a_row_that_comes_back_begins_anew_with_its_state() -> None:
    growth = GrowthDescription(eviction=EvictionDescription(1, age=1))
    table = table_on(described(constant(growing(growth=growth), 2.0), rule="momentum", hyper={"lr": 1.0}))
    one = np.ones((1, WIDTH), np.float32)
    push(table, 0, ids_of(9), one)
    assert momentum_of(table) == 1.0
    for step in (1, 2, 3):
        push(table, step, ids_of(100 + step), 5 * one)
    assert table.rows.count == 1, "the others were pushed over one step before the next one"
    assert pulled(table, ids_of(9))[0, 0] == 2.0
    assert momentum_of(table) == 0.0
    push(table, 4, ids_of(9), one)
    assert pulled(table, ids_of(9))[0, 0] == 1.0
    assert momentum_of(table) == 1.0
    assert table.rows.arrays.read(None, np.arange(4)).shape == (4, WIDTH)


def test_rows_that_are_set_wait_for_their_version_and_need_no_admission() -> None:
    cluster = Cluster(described(constant(growing(growth=GrowthDescription(uses=9)), 0.0), shards=2))
    ids = ids_of(2**64 - 1, 4, 4)
    cluster.push(0, 1, ids, np.arange(9, dtype=np.float32).reshape(3, 3), PayloadKind.VALUE)
    cluster.push(0, 1, ids_of(8), np.ones((1, 3), np.float32), PayloadKind.VALUE)
    assert cluster.touched() == 0
    cluster.push(0, 0, ids_of(4, 5), np.ones((2, 3), np.float32))
    assert cluster.pull(ids_of(4, 5, 8, 2**64 - 1), 1)[:, 0].tolist() == [6.0, 0.0, 1.0, 0.0]
    assert cluster.touched() == 3
    cluster.push(0, 1, ids_of(4, 5), np.ones((2, 3), np.float32))
    assert cluster.pull(ids_of(4, 5), 2)[:, 0].tolist() == [5.5, 0.0]


def test_a_given_growing_table_waits_for_each_row() -> None:
    cluster = Cluster(described(given_key(growing()), shards=1))
    cluster.push(0, 0, ids_of(2**63), np.ones((1, 3), np.float32), PayloadKind.VALUE)
    cluster.push(0, 0, ids_of(2**63, 3), np.ones((2, 3), np.float32))
    assert cluster.tables[0].version == 0
    cluster.push(0, 0, ids_of(3), 4 * np.ones((1, 3), np.float32), PayloadKind.VALUE)
    assert cluster.pull(ids_of(2**63, 3), 1)[:, 0].tolist() == [0.5, 3.5]


def test_async_rows_are_as_old_as_updates_are() -> None:
    growth = GrowthDescription(eviction=EvictionDescription(1, age=2))
    table = table_on(described(constant(growing(2, growth), 0.0), slots=2, mode=Mode.ASYNC))
    one = np.ones((1, WIDTH), np.float32)
    push(table, 0, ids_of(1), one)
    push(table, 0, ids_of(2), one, slot=1)
    assert table.rows.count == 2
    push(table, 1, ids_of(2), one, slot=1)
    assert table.rows.count == 1
    assert pulled(table, ids_of(1, 2))[:, 0].tolist() == [0.0, -1.0]


@pytest.mark.parametrize(
    ("payload", "first", "chunks", "told"),
    [
        (ids_of(5, 4), 0, 1, "do not ascend"),
        (ids_of(2**63, 7), 0, 1, "do not ascend"),
        (ids_of(0, 1), 0, 1, "not on shard 0 of 2"),
        (ids_of(1), 0, 1 << 40, "chunks: 1099511627776"),
        (ids_of(1), 3, 2, "chunks 3 to 3"),
    ],
)
def test_ids_from_a_hostile_peer_are_refused_by_name(payload: Array, first: int, chunks: int, told: str) -> None:
    job = JobShard(described(growing(), shards=2), 0)
    row = np.zeros((len(payload), WIDTH), np.float32)
    for kind, values in ((PayloadKind.IDS, b""), (PayloadKind.GRADIENT, row.tobytes())):
        pushed = PushSegment(kind, 1, 0, 0, first, 1, chunks, [memoryview(payload.tobytes() + values)])
        with pytest.raises(ProtocolError, match=told):
            job.tables[0].check_segment(pushed)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shape": (5, 3)}, "no row at first, not 5"),
        ({"growth": GrowthDescription(uses=0)}, "growth.uses: expected `int` >= 1"),
        ({"growth": GrowthDescription(probability=0.0)}, "growth.probability"),
        ({"growth": GrowthDescription(uses=2, probability=0.5)}, "not by both"),
        ({"growth": GrowthDescription(eviction=EvictionDescription(0, age=1))}, "eviction.every"),
        ({"growth": GrowthDescription(eviction=EvictionDescription(1))}, "neither age nor score"),
        ({"growth": GrowthDescription(eviction=EvictionDescription(1, age=-1))}, "eviction.age"),
        ({"growth": GrowthDescription(eviction=EvictionDescription(1, score=float("nan")))}, "eviction.score"),
        ({"growth": GrowthDescription(eviction=EvictionDescription(1, age=1, decay=1.5))}, "eviction.decay"),
        ({"rows": False}, "growth is for tables alone"),
        ({"rows": False, "growth": None, "rule": "adam"}, "rule is for tables alone"),
        ({"rule": "none"}, "key 't': .*none"),
        ({"rule": "adam", "hyper": {"momentum": 1.0}}, "key 't': hyper: rule 'adam' has no 'momentum'"),
        ({"rule": "lamb"}, "needs it whole"),
    ],
)
def test_what_can_be_no_growing_table_is_refused_by_field(change: dict[str, Any], told: str) -> None:
    check_description(described(growing()))
    with pytest.raises(DescriptionError, match=told):
        check_description(described(msgspec.structs.replace(growing(), **change)))


def test_a_table_has_a_rule_of_its_own() -> None:
    own = msgspec.structs.replace(growing(), rule="momentum", hyper={"lr": 2.0})
    description = described(own, table_of("other", (4, 2), 1))
    check_description(description)
    assert (rule_of(description, own).name, rule_of(description, description.keys[1]).name) == ("momentum", "sgd")
    assert hyper_of(description, own) == {"lr": 2.0}
    assert hyper_of(description, msgspec.structs.replace(own, rule=None, hyper={})) == {"lr": 0.5}


def test_ids_of_a_call_are_checked_against_the_table() -> None:
    check_ids(ids_of(2**64 - 1), growing(), "here")
    check_ids(np.array([-1, 2**62]), growing(), "here")
    fixed = table_of("t", (9, 2), 1)
    for ids, key, told in (
        (ids_of(1), fixed, r"ids are uint64\[1\], not int64\[n\]"),
        (np.array([1.0]), growing(), r"float64\[1\], not int64\[n\] or uint64\[n\]"),
        (np.array([[1]]), growing(), r"int64\[1, 1\]"),
        (np.array([9]), fixed, "id 9: the table has rows 0 to 8"),
    ):
        with pytest.raises(StoreRefusedError, match=told):
            check_ids(ids, key, "here")


def test_rows_of_common_ids_are_added_and_others_are_kept() -> None:
    """The oracle: a dict of rows."""
    generator = np.random.default_rng(1)
    for count, most in ((0, 5), (5, 5), (40, 50), (40, 1000), (3, 2**64 - 1)):
        parts = []
        for _ in range(2):
            ids = np.unique(generator.integers(0, most, count, dtype=np.uint64))
            parts.append(Rows(ids, generator.standard_normal((len(ids), 2)).astype(np.float32)))
        wanted = dict(zip(parts[0].ids.tolist(), parts[0].values.copy(), strict=True))
        for one, value in zip(parts[1].ids.tolist(), parts[1].values, strict=True):
            wanted[one] = wanted[one] + value if one in wanted else value
        total = [own_rows(part) for part in ended(merging(parts[:1], parts[1:]))]
        ids, values = map(np.concatenate, zip(*total, strict=True))
        assert sorted(ids.tolist()) == sorted(wanted)
        assert values.tolist() == [wanted[one].tolist() for one in ids.tolist()]
