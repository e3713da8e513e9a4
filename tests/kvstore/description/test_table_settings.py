"""What a table may have of its own, as users say it: growth, rule, numbers, semantics; and where its rows lie."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from store_cluster import WAIT_S, NamedClient, constant, key_of, store_of, stores_of, table_of
from weft_kvstore import (
    DescriptionError,
    EvictionDescription,
    GrowthDescription,
    Key,
    KVStore,
    Sparse,
    TablePlace,
    describe,
    read_description,
)
from weft_kvstore.errors import StoreError, StoreRefusedError
from weft_kvstore.serving.daemon import ShardSettings
from weft_kvstore.serving.holdings import holdings
from weft_kvstore.serving.shard_server import ShardServer

MIB = 1 << 20
HIGH = 2**64 - 1
GROWING = Key(shape=(0, 2), rows=True, initializer=1.0, growth=GrowthDescription())

TOML = """
rule = "sgd"
hyper = { lr = 0.5 }

[[keys]]
key = "ids"
shape = [0, 2]
rows = true
initializer = 1
growth = { uses = 2, eviction = { every = 10, age = 100 } }
sparse = "standard"

[[keys]]
key = "own"
shape = [9, 2]
rows = true
rule = "adam"
hyper = { lr = 0.1 }
"""


def test_a_file_says_what_a_table_has_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    path.write_text(TOML)
    growth = GrowthDescription(uses=2, eviction=EvictionDescription(10, age=100))
    ids = Key(shape=(0, 2), rows=True, initializer=1, growth=growth, sparse=Sparse.STANDARD)
    own = Key(shape=(9, 2), rows=True, rule="adam", hyper={"lr": 0.1})
    description = read_description(path)
    assert description == describe({"ids": ids, "own": own}, rule="sgd", lr=0.5)
    held = {one.key.key: one for one in holdings(msgspec.structs.replace(description, shards=("a",)))[0]}
    assert (held["own"].nbytes, held["own"].state_bytes) == (72, 144)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"growth": {"uzes": 3}}, r"keys\[0\].growth: object contains unknown field `uzes`"),
        ({"growth": {"eviction": {"every": 1, "ago": 3}}}, "eviction: object contains unknown field `ago`"),
        ({"growth": {"uses": 0}}, r"keys\[0\].growth.uses: expected `int` >= 1"),
        ({"rows": False}, "key 't': growth is for tables alone"),
        ({"sparse": "eager"}, r"keys\[0\].sparse: 'eager' is none of lazy, standard"),
        ({"rule": "lars"}, "rule 'lars' needs it whole"),
        ({"rule": "lambda"}, "key 't': rule: 'lambda' is none of"),
        ({"hyper": {"beta1": 0.1}}, "key 't': hyper: rule 'sgd' has no 'beta1'"),
    ],
)
def test_what_is_wrong_with_a_table_is_told_by_field(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    key = {"key": "t", "shape": [0, 2], "rows": True, "initializer": 1, "growth": {}, **changes}
    path = tmp_path / "store.json"
    path.write_bytes(msgspec.json.encode({"rule": "sgd", "keys": [key]}))
    with pytest.raises(DescriptionError, match=told):
        read_description(path)


def test_a_store_without_a_rule_may_have_tables_with_one() -> None:
    description = describe({"t": Key(shape=(4, 2), rows=True, initializer=1.0, rule="sgd")})
    with KVStore.local(description) as store:
        store.push_rows("t", [1], np.ones((1, 2), np.float32)).result(WAIT_S)
        assert store.pull_rows("t", [1, 2]).result(WAIT_S)[:, 0].tolist() == [np.float32(1) - np.float32(0.001), 1.0]
    with pytest.raises(DescriptionError, match="rule: missing, and key 'u' needs one"):
        describe({"u": Key(shape=(4, 2), rows=True)})


@pytest.fixture(params=["network", "local"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_table_is_updated_by_its_own_rule_and_numbers(kind: str) -> None:
    ones = constant(table_of("t", (5, 2), 1), 1.0)
    keys = [
        ones,
        msgspec.structs.replace(ones, key="lr", hyper={"lr": 0.25}),
        msgspec.structs.replace(ones, key="rule", rule="momentum", hyper={"lr": 1.0, "momentum": 0.5}),
        constant(key_of("w", (2,), 1), 1.0),
    ]
    with stores_of(kind, store_of(keys, slots=1, shards=2, hyper={"lr": 0.5})) as (store,):
        gradient = np.ones((1, 2), np.float32)
        for step in range(2):
            for key in keys[:3]:
                store.push(key.key, step, gradient, np.array([3])).result(WAIT_S)
            store.push("w", step, gradient[0]).result(WAIT_S)
        found = {key.key: store.pull(key.key, 2, np.array([3])).result(WAIT_S)[0, 0] for key in keys[:3]}
        assert found == {"t": 0.0, "lr": 0.5, "rule": -1.5}
        assert store.pull("w", 2).result(WAIT_S).tolist() == [0.0, 0.0]
        assert set(store.pull("rule", 2, np.array([3]), state=True).result(WAIT_S)) == {"momentum"}
        assert store.pull("t", 2, np.array([3]), state=True).result(WAIT_S) == {}


def test_ids_of_2_63_and_above_are_rows_like_others(kind: str) -> None:
    growing = msgspec.structs.replace(constant(table_of("t", (0, 2), 1), 1.0), growth=GrowthDescription())
    with stores_of(kind, store_of([growing], slots=1, shards=3, hyper={"lr": 0.5}, slice_bytes=64)) as (store,):
        ids = np.array([HIGH, 2**63, 7, HIGH], np.uint64)
        store.push("t", 0, np.ones((4, 2), np.float32), ids).result(WAIT_S)
        assert store.pull("t", 1, ids[::-1].copy()).result(WAIT_S)[:, 0].tolist() == [0.0, 0.5, 0.5, 0.0]
        found = store.pull("t", 1, np.array([7, -1, 2**62])).result(WAIT_S)
        assert found[:, 0].tolist() == [0.5, 0.0, 1.0]
        store.set("t", 2, np.full((1, 2), 9, np.float32), ids[:1]).result(WAIT_S)
        store.push("t", 1, np.ones((0, 2), np.float32), ids[:0]).result(WAIT_S)
        assert store.pull("t", 2, ids[:1]).result(WAIT_S).tolist() == [[9.0, 9.0]]


def test_a_program_names_rows_by_any_64_bit_number() -> None:
    fixed = Key(shape=(3, 2), rows=True, initializer=0)
    with KVStore.local(describe({"t": GROWING, "fixed": fixed}, rule="sgd", lr=0.5)) as store:
        store.push_rows("t", [HIGH, 3], np.ones((2, 2), np.float32)).result(WAIT_S)
        assert store.pull_rows("t", [[3, HIGH], [2**63, 4]]).result(WAIT_S)[..., 0].tolist() == [[0.5, 0.5], [1, 1]]
        assert store.pull_rows("t", np.array([HIGH], np.uint64)).result(WAIT_S)[0, 0] == 0.5
        assert store.pull_rows("t", HIGH).result(WAIT_S).tolist() == [0.5, 0.5]
        with pytest.raises(StoreRefusedError, match="key 'fixed': ids: 18446744073709551615 is beyond"):
            store.pull_rows("fixed", [HIGH])
        with pytest.raises(StoreRefusedError, match="key 't': ids: "):
            store.pull_rows("t", [HIGH + 1])
        with pytest.raises(StoreRefusedError, match="key 't': ids: "):
            store.pull_rows("t", [HIGH, -1])
        with pytest.raises(StoreRefusedError, match="key 't': ids: "):
            store.pull_rows("t", [0.5])


def test_what_admits_by_chance_admits_the_same_ids_on_any_number_of_shards(kind: str) -> None:
    growth = GrowthDescription(probability=0.5)
    growing = msgspec.structs.replace(constant(table_of("t", (0, 2), 1), 1.0), growth=growth)
    ids, found = np.arange(64, dtype=np.uint64), []
    for shards in (1, 3):
        with stores_of(kind, store_of([growing], slots=1, shards=shards, hyper={"lr": 0.5})) as (store,):
            store.push("t", 0, np.ones((64, 2), np.float32), ids).result(WAIT_S)
            found.append(store.pull("t", 1, ids).result(WAIT_S)[:, 0].tolist())
    assert found[0] == found[1]
    assert 16 < found[0].count(0.5) < 48


def files_in(directory: Path) -> int:
    """How many files of a directory this process has open, with a name or without."""
    count = 0
    for one in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{one}").startswith(str(directory))
    return count


linux = pytest.mark.skipif(sys.platform != "linux", reason="open files are looked for in /proc")


@linux
def test_rows_beyond_the_memory_lie_in_a_file_until_the_job_is_closed(tmp_path: Path) -> None:
    width, rows = 256, 8 * MIB // 1024
    table = constant(table_of("t", (rows, width), 1), 1.0)
    growing = msgspec.structs.replace(constant(table_of("g", (0, width), 1), 1.0), growth=GrowthDescription())
    small = constant(table_of("s", (10, 4), 1), 1.0)
    description = store_of([table, growing, small], slots=1, shards=1, rule="momentum", hyper={"lr": 0.5})
    with ShardServer(tables=TablePlace(tmp_path, 2 * MIB)) as server:
        placed = msgspec.structs.replace(description, shards=(server.endpoint,), slice_bytes=1 << 17)
        server.open(placed, 0)
        held = files_in(tmp_path)
        assert held >= 4, "values and momentum of both large tables"
        with NamedClient(placed, 0) as store:
            ids = np.random.default_rng(1).permutation(rows)[: rows // 2]
            gradient = np.repeat(np.arange(len(ids), dtype=np.float32)[:, None], width, axis=1)
            for key in ("t", "g"):
                store.push(key, 0, gradient, ids).result(WAIT_S)
                found = store.pull(key, 1, ids[::7].copy()).result(WAIT_S)
                assert np.array_equal(found, 1 - gradient[::7] / 2)
    assert files_in(tmp_path) == 0
    with KVStore.local(description, tables=TablePlace(tmp_path, 2 * MIB)):
        assert files_in(tmp_path) == held
    assert files_in(tmp_path) == 0


def test_a_directory_that_is_gone_fails_the_job_by_the_tables_name(tmp_path: Path) -> None:
    growing = msgspec.structs.replace(table_of("t", (0, 4), 1), growth=GrowthDescription())
    with ShardServer(tables=TablePlace(tmp_path / "gone", MIB)) as server:
        placed = msgspec.structs.replace(store_of([growing], slots=1, shards=1), shards=(server.endpoint,))
        with pytest.raises(StoreError, match=r"key 't': there is no place for its rows: .*gone"):
            server.open(placed, 0)


def test_the_daemon_is_told_where_rows_lie(tmp_path: Path) -> None:
    settings = ShardSettings(server="http://here", table_directory=tmp_path, table_memory="2GiB")
    assert settings.tables == TablePlace(tmp_path, 2 << 30)
    assert ShardSettings(server="http://here").tables is None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"table_directory": tmp_path}, "belong together"),
        ({"table_memory": "2GiB"}, "belong together"),
        ({"table_directory": tmp_path, "table_memory": 5}, "greater than or equal to 1048576"),
        ({"table_directory": tmp_path / "none", "table_memory": "2GiB"}, "directory"),
        ({"table_directory": tmp_path, "table_memory": "much"}, "table_memory"),
    ]
    for given, told in wrong:
        with pytest.raises(ValidationError, match=told):
            ShardSettings(server="http://here", **given)
