"""Snapshots of shards that train: of one step whatever came, and continued to the same bits on any number of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import NamedClient
from weft_graph.rules.graph import rule_graph_to_json
from weft_graph.rules.torch_variants import variant
from weft_kvstore import Key, StoreDescription, describe
from weft_kvstore.arrays import Array
from weft_kvstore.description.records import EvictionDescription, GrowthDescription, Sparse
from weft_kvstore.rows import row_arrays as rows_arrays
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.snapshot_files import Snapshot, SnapshotError, SnapshotFile, SnapshotReader, write_file

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables lie in several blocks, as large ones do."""
    monkeypatch.setattr(rows_arrays, "GROUP_BYTES", 256)


APART = LinkSettings(same_host=False)
KEYS = {
    "large": Key((300, 40), initializer=0.5, priority=2),
    "whole": Key((7,), initializer=0.25),
    "given": Key((6,), initializer="given"),
    "small": Key((3,), initializer=1.0, priority=1, multipliers={"lr": 0.5}),
    "fixed": Key((5,), initializer=2.0, update="mean"),
}
NORMAL = {"normal": [0.0, 1.0]}
LARGE_ID = (1 << 63) + 5
TABLES = {
    "lazy": Key((61, 4), rows=True, initializer=NORMAL),
    "standard": Key((61, 4), rows=True, initializer=NORMAL, sparse=Sparse.STANDARD),
    "told": Key((61, 4), rows=True),
    "growing": Key((0, 4), rows=True, initializer=NORMAL, growth=GrowthDescription()),
    "going": Key(
        (0, 4), rows=True, initializer=NORMAL, growth=GrowthDescription(eviction=EvictionDescription(2, age=2))
    ),
    "scored": Key(
        (0, 4),
        rows=True,
        initializer=NORMAL,
        sparse=Sparse.STANDARD,
        growth=GrowthDescription(eviction=EvictionDescription(1, score=0.7, decay=0.8)),
    ),
    "counted": Key(
        (0, 4), rows=True, initializer=NORMAL, growth=GrowthDescription(uses=3, eviction=EvictionDescription(2, age=3))
    ),
}
IDS = np.array([*range(61), LARGE_ID], np.uint64)


def ids_in(name: str) -> Array:
    return IDS if TABLES[name].growth is not None else np.arange(61)


RULES: list[dict[str, Any]] = [
    {"rule": "adam", "lr": 0.01},
    {"rule": "momentum", "lr": 0.1, "commit": {"clip_norm": 1.0}},
    {
        "rule": "adam",
        "lr": 0.01,
        "commit": {"clip_norm": None, "loss_scaling": {"initial": 1024.0, "growth_interval": 2}},
    },
]


def described(rule: Mapping[str, Any], shards: int) -> StoreDescription:
    found = describe({**KEYS, **TABLES}, shards=["tcp://127.0.0.1:0"] * shards, slots=2, **rule)
    return msgspec.structs.replace(found, slice_bytes=1024)


class Cluster:
    """Shards and the clients of both slots, over TCP."""

    def __init__(self, found: StoreDescription, servers: Sequence[ShardServer], clients: Sequence[NamedClient]) -> None:
        self._nothing = [key.key for key in found.keys if key.key not in {**KEYS, **TABLES}]
        self.servers = servers
        self.clients = clients

    def step(self, step: int, slots: Sequence[int] = (0, 1)) -> list[Future[Any]]:
        """Pushes a step of these slots, with gradients that depend on step and slot alone."""
        found: list[Future[Any]] = []
        for slot in slots:
            draw = np.random.default_rng([step, slot])
            for name, key in KEYS.items():
                found.append(self.clients[slot].push(name, step, draw.standard_normal(key.shape).astype(np.float32)))
            for name in TABLES:
                ids = np.sort(draw.choice(ids_in(name), 12, replace=False))
                rows = draw.standard_normal((12, 4)).astype(np.float32)
                found.append(self.clients[slot].push(name, step, rows, ids))
            found.append(self.clients[slot].barrier(step, self._nothing))
        return found

    def all_at(self, version: int) -> dict[str, bytes]:
        """Values and the rule's state."""
        found = {}
        for name, key in KEYS.items():
            found[name] = self.clients[0].pull(name, version).result(WAIT_S).tobytes()
            if key.update != "mean":
                state = self.clients[0].pull(name, version, state=True).result(WAIT_S)
                found |= {f"{array}/{name}": values.tobytes() for array, values in state.items()}
        for name in TABLES:
            found[name] = self.clients[0].pull(name, version, ids_in(name)).result(WAIT_S).tobytes()
            state = self.clients[0].pull(name, version, ids_in(name), state=True).result(WAIT_S)
            found |= {f"{array}/{name}": values.tobytes() for array, values in state.items()}
        return found

    def capture(self, step: int, since: int | None = None) -> list[SimpleQueue[Captured | MissedError]]:
        told: list[SimpleQueue[Captured | MissedError]] = []
        for server in self.servers:
            queue: SimpleQueue[Captured | MissedError] = SimpleQueue()
            server.capture(step, queue.put, since=since)
            told.append(queue)
        return told

    def written(self, told: Sequence[SimpleQueue[Captured | MissedError]], step: int, folder: Path) -> Snapshot:
        files, scale = [], None
        for number, queue in enumerate(told):
            held = queue.get(timeout=WAIT_S)
            assert isinstance(held, Captured)
            files.append(write_file(str(folder), f"shard-{number}.safetensors", held.arrays(), {"step": str(step)}))
            scale = held.loss_scale
            held.release()
        scaled = {} if scale is None else {"loss_scale": scale.scale, "finite_steps": scale.good}
        return Snapshot(step, str(folder), tuple(files), **scaled)


@contextmanager
def cluster(rule: Mapping[str, Any], shards: int, snapshot: Snapshot | None = None) -> Iterator[Cluster]:
    description = described(rule, shards)
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer(settings=APART)) for _ in range(shards)]
        found = msgspec.structs.replace(description, shards=tuple(server.endpoint for server in servers))
        for number, server in enumerate(servers):
            server.open(found, number, snapshot=snapshot)
        clients = [stack.enter_context(NamedClient(found, slot, settings=APART)) for slot in range(2)]
        if snapshot is None:  # Otherwise it has its value.
            clients[0].set("given", 0, np.arange(6, dtype=np.float32)).result(WAIT_S)
            told = np.arange(61 * 4, dtype=np.float32).reshape(61, 4)
            clients[0].set("told", 0, told, np.arange(61)).result(WAIT_S)
        yield Cluster(found, servers, clients)


def done(futures: Sequence[Future[Any]]) -> None:
    for future in futures:
        future.result(WAIT_S)


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES, ids=["adam", "clipped", "scaled"])
def test_a_run_that_goes_on_from_a_snapshot_comes_to_the_same_bits(
    tmp_path: Path, rule: Mapping[str, Any], shards: int
) -> None:
    """It was written by two shards, while the slots went on."""
    with cluster(rule, 2) as undisturbed:
        pushed = [undisturbed.step(step) for step in range(3)]
        told = undisturbed.capture(5)
        done([one for some in pushed for one in some])
        for step in range(3, 8):
            done(undisturbed.step(step))
        snapshot = undisturbed.written(told, 5, tmp_path / "snapshot")
        expected = undisturbed.all_at(8)
    with cluster(rule, shards, snapshot) as resumed:
        for step in range(5, 8):
            done(resumed.step(step))
        assert resumed.all_at(8) == expected


def test_another_rule_that_keeps_arrays_of_the_same_names_goes_on_with_them(tmp_path: Path) -> None:
    with cluster({"rule": "adam", "lr": 0.01}, 1) as before:
        told = before.capture(1)
        done(before.step(0))
        snapshot = before.written(told, 1, tmp_path / "snapshot")
        expected = before.all_at(1)
    with cluster({"rule": rule_graph_to_json(variant("adam_l2")), "weight_decay": 0.1}, 1, snapshot) as after:
        assert after.all_at(1) == expected
        done(after.step(1))


@pytest.mark.parametrize("shards", [2, 3])
def test_a_snapshot_of_what_has_changed_in_tables_goes_on_as_a_whole_one(tmp_path: Path, shards: int) -> None:
    """The capture at step 4 comes to nothing, so that at 6 has what changed since 2."""
    chain: list[SnapshotFile] = []

    def keep(store: Cluster, told: Sequence[SimpleQueue[Captured | MissedError]], step: int) -> Snapshot:
        written = store.written(told, step, tmp_path / f"{step}-1")
        snapshot = msgspec.structs.replace(written, files=(*chain, *written.files))
        chain.extend(msgspec.structs.replace(file, folder=f"{step}-1") for file in written.files)
        return snapshot

    with cluster(RULES[0], 2) as store:
        for step, since in ((2, None), (4, 2), (6, 2), (8, 6)):
            told = store.capture(step, since)
            done(store.step(step - 2) + store.step(step - 1))
            held = [queue.get(timeout=WAIT_S) for queue in told]
            assert [each.since for each in held if isinstance(each, Captured)] == [since] * 2
            if step != 4:
                for queue, each in zip(told, held, strict=True):
                    queue.put(each)
                snapshot = keep(store, told, step)
        for step in range(8, 11):
            done(store.step(step))
        expected = store.all_at(11)
    with cluster(RULES[0], shards, snapshot) as resumed:
        for step in range(8, 11):
            done(resumed.step(step))
        assert resumed.all_at(11) == expected


def test_a_snapshot_is_of_one_step_though_slots_are_ahead_and_nothing_stays_pinned(tmp_path: Path) -> None:
    with cluster(RULES[0], 2) as store:
        done(store.step(0) + store.step(1))
        told = store.capture(2)
        ahead = store.step(2, [0]) + store.step(3, [0])
        expected = store.all_at(2)
        captured = [queue.get(timeout=WAIT_S) for queue in told]
        done(ahead[:0] + store.step(2, [1]) + store.step(3, [1]) + ahead)
        assert store.all_at(4) != expected
        files = []
        for number, held in enumerate(captured):
            assert isinstance(held, Captured)
            files.append(write_file(str(tmp_path), f"shard-{number}.safetensors", held.arrays(), {}))
            held.release()
        with SnapshotReader(Snapshot(2, str(tmp_path), tuple(files))) as reader:
            for name, key in KEYS.items():
                size = int(np.prod(key.shape))
                assert reader.read("value", name, 0, size, np.dtype(np.float32)).tobytes() == expected[name]
        done(store.step(4))  # What was released is released on the shard's thread, before this is merged.
        for server in store.servers:
            job = server._core.job
            assert job is not None
            for bucket in job.buckets.values():
                for values in (bucket.update.values, *bucket.update.state.values()):
                    assert not any(held.pinned.any() for held in values._blocks)


def test_a_capture_is_complete_though_one_before_it_is_released_meanwhile(tmp_path: Path) -> None:
    with cluster(RULES[0], 1) as store:
        told = store.capture(0)
        later = store.capture(2)
        store.written(told, 0, tmp_path / "0")
        done(store.step(0) + store.step(1) + store.step(2))
        assert store.written(later, 2, tmp_path / "2").step == 2


@pytest.mark.parametrize(
    "failing",
    [
        "shard.snapshot.Capture._pin",
        "rows.storage.RowStorage.capture",
        "rows.storage.RowStorage.marks",
        "shard.snapshot.Captured",
    ],
)
def test_a_capture_that_fails_says_so_and_training_goes_on(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("none is left")

    with cluster(RULES[0], 2) as store:
        done(store.step(0))
        with monkeypatch.context() as patched:
            patched.setattr(f"weft_kvstore.{failing}", no_memory)
            told = store.capture(2)
            done(store.step(1))
            for queue in told:
                missed = queue.get(timeout=WAIT_S)
                assert isinstance(missed, MissedError)
                assert "could not capture it: MemoryError('none is left')" in str(missed)
        tables = [table for server in store.servers for table in server._core.job.tables.values()]
        assert [table.rows._captures for table in tables] == [[] for _ in tables], "rows are copied no more"
        done(store.step(2))
        (held, _) = [queue.get(timeout=WAIT_S) for queue in store.capture(3)]
        assert isinstance(held, Captured)


def test_a_step_that_has_passed_is_told_with_the_key_and_a_later_one_takes_its_place(tmp_path: Path) -> None:
    with cluster(RULES[0], 1) as store:
        done(store.step(0) + store.step(1))
        store.all_at(2)
        (told,) = store.capture(1)
        assert "is at version 2 already" in str(told.get(timeout=WAIT_S))
        (never,), (told,) = store.capture(9), store.capture(3)
        done(store.step(2))
        assert store.written([told], 3, tmp_path).step == 3
        assert never.empty()


def test_files_that_are_not_what_was_written_are_refused_by_name(tmp_path: Path) -> None:
    with cluster(RULES[0], 1) as store:
        (told,) = store.capture(0)
        snapshot = store.written([told], 0, tmp_path)
    path = tmp_path / "shard-0.safetensors"
    whole = path.read_bytes()
    damage = {
        "its SHA-256 is another": whole[:-1] + bytes([whole[-1] ^ 1]),
        "no safetensors document": b"{}",
        "they are at": whole[:-4],
    }
    for told_of, content in damage.items():
        path.write_bytes(content)
        with pytest.raises(SnapshotError, match=rf"shard-0.safetensors .*{told_of}"), cluster(RULES[0], 1, snapshot):
            pass
    path.write_bytes(whole + b"x")
    with pytest.raises(SnapshotError, match="is not what was written"), cluster(RULES[0], 1, snapshot):
        pass
    path.unlink()
    with pytest.raises(SnapshotError, match="cannot be read"), cluster(RULES[0], 1, snapshot):
        pass


def test_a_snapshot_without_a_key_is_refused(tmp_path: Path) -> None:
    file = write_file(str(tmp_path), "shard-0.safetensors", [], {})
    with (
        pytest.raises(SnapshotError, match="has no element 0 of the value of key"),
        cluster(RULES[0], 1, Snapshot(0, str(tmp_path), (file,))),
    ):
        pass


def test_a_place_that_cannot_be_written_is_named_and_nothing_is_left_of_a_half_written_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match=r"file/shard-0\.safetensors cannot be written"):
        write_file(str(tmp_path / "file"), "shard-0.safetensors", [], {})
    with pytest.raises(SnapshotError, match="cannot be written"):
        write_file("no-such-protocol://somewhere", "shard-0.safetensors", [], {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_file_is_told_to_be_is_what_it_is(tmp_path: Path) -> None:
    file = write_file("memory://snapshots/one", "shard-0.safetensors", [], {"job": "j"})
    assert isinstance(file, SnapshotFile)
    local = write_file(str(tmp_path), "shard-0.safetensors", [], {"job": "j"})
    content = (tmp_path / "shard-0.safetensors").read_bytes()
    assert local == file == SnapshotFile(file.name, len(content), hashlib.sha256(content).hexdigest())
