"""No work holds the shard's thread for long: large answers, first values, rules and sets come in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest

from rule_documents import rule_document
from store_cluster import constant, key_of, open_pulls, store_of, table_of
from store_cluster import given as given_key
from store_raw import pull_of, push_of
from weft_kernels.initializers import first_rows, first_values
from weft_kernels.rules.record import Rule
from weft_kvstore import tables
from weft_kvstore.arrays import Array
from weft_kvstore.bucket import values as bucket_values
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import BucketSteps
from weft_kvstore.bucket.update import BUCKET_PIECES, PIECE_CALLS, PIECE_ELEMENTS, PIECE_NODES
from weft_kvstore.description import records as first
from weft_kvstore.description.check import digest, rule_of
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import AT_ONCE_S
from weft_kvstore.sharding import routing_of
from weft_kvstore.wire.codec import RowSource, decode_reply, encode
from weft_kvstore.wire.messages import (
    Acknowledge,
    Barrier,
    Cancel,
    Failed,
    Hello,
    Message,
    Ping,
    Pong,
    PushRefused,
    Reading,
    Values,
)

CREDIT = LinkSettings(credit_bytes=1 << 30, frame_bytes=1 << 20)


class Shard:
    """A shard's core, whose pieces of work are counted, and one slot that hears everything it says."""

    def __init__(self, description: StoreDescription, rule: Rule | None = None) -> None:
        self.core = ShardCore(bytes(16), CREDIT)
        self.job = JobShard(description, 0, rule=rule)
        self.core.open(self.job)
        self.routing = routing_of(description)
        self.heard: list[tuple[Any, bytes]] = []
        self.say(Hello("job", 1, 0, 1, bytes(16), 1, digest(description)))

    def say(self, message: Message, payload: bytes | None = None) -> None:
        self.core.receive(b"0", encode(message, payload), 0.0)
        self.flush()

    def flush(self) -> None:
        self.core.flush(0.0)
        sent, self.core.links.outgoing = self.core.links.outgoing, []
        for _, parts in sent:
            message, payload, _ = decode_reply([bytes(part) for part in parts])
            self.heard.append((message, bytes(payload)))
            if isinstance(message, Values):
                self.core.receive(b"0", encode(Acknowledge([message.frame])), 0.0)

    def work(self, between: Callable[[], None] = lambda: None) -> int:
        """How many pieces there were until nothing was left to do."""
        pieces = 0
        while self.core.work.work_once():
            pieces += 1
            between()
            self.flush()
        return pieces

    def values(self) -> dict[int, bytes]:
        """The payload of each request's answers, joined as they came."""
        found: dict[int, bytes] = {}
        for message, payload in self.heard:
            begin = 0
            for request, *_, nbytes in message.segments if type(message) is Values else ():
                found[request] = found.get(request, b"") + payload[begin : begin + nbytes]
                begin += nbytes
        return found

    def pull_rows(self, request: int, ids: Array, version: int = 0, **changed: Any) -> None:
        cut = self.routing.tables[0]
        chunks = -(-len(ids) // cut.ids_up)
        self.say(pull_of(request, 0, version, chunks=chunks, **changed))
        self.say(push_of(0, [ids.nbytes], payload_kind=2, request=request, chunks=chunks, count=chunks), ids.tobytes())

    def push_rows(self, ids: Array, values: Array, step: int = 0, **changed: Any) -> None:
        cut = self.routing.tables[0]
        source = RowSource(ids, values, cut)
        payload = b"".join(source(0, source.nbytes))
        chunks = -(-len(ids) // cut.rows_up)
        self.say(push_of(0, [len(payload)], step=step, chunks=chunks, count=chunks, **changed), payload)


def test_a_pull_of_very_many_slices_costs_no_work_of_each() -> None:
    """A segment for each block of values is handed over, at once."""
    count, blocks = 1 << 18, 4
    key = constant(key_of("w", [count], 1), 3.0)
    put: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bucket_values, "BLOCK_BYTES", 4 * count // blocks)
        shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=4))
        outbox = shard.core.peers[b"0"].outbox
        inner = type(outbox).put
        patched.setattr(type(outbox), "put", lambda box, one, *key: inner(box, put.append(one.count) or one, *key))
        shard.core.receive(b"0", encode(pull_of(1, 0, 0, count=count)), 0.0)
    assert put == [count // blocks] * blocks
    assert not shard.core.work.queue
    while outbox.queued_slices:
        shard.flush()
    assert shard.values()[1] == np.full(count, 3, np.float32).tobytes()
    assert not shard.core.peers[b"0"].pulls


def test_a_push_and_the_pull_of_what_it_makes_cost_no_work_of_each_slice() -> None:
    """What is between two looks at the socket has as many elements as a piece, of however many slices."""
    count = 1 << 17
    key = constant(key_of("w", [count], 1), 3.0)
    shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=4, hyper={"lr": 1.0}))
    shard.say(pull_of(1, 0, 1, count=count))
    shard.say(push_of(0, [4 * count], count=count), np.ones(count, np.float32).tobytes())
    assert shard.work() <= -(-count // PIECE_ELEMENTS) + 1
    while shard.core.peers[b"0"].outbox.queued_slices:
        shard.flush()
    assert shard.values()[1] == np.full(count, 2, np.float32).tobytes()


@pytest.mark.parametrize("version", [0, 1 << 40])
def test_pulls_that_are_answered_or_given_up_leave_nothing(version: int) -> None:
    """Of what never changes, and of what nobody waits for any more."""
    shard = Shard(store_of([key_of("w", [4 << 10], 1)], slots=1, shards=1, slice_bytes=4))
    for request in range(1, 1001):
        shard.say(pull_of(request, 0, version, count=4 << 10))
        shard.say(Cancel([request]))
    (bucket,) = shard.job.buckets.values()
    assert len(open_pulls(bucket)) <= 64
    assert not shard.core.work.queue
    assert not shard.core.peers[b"0"].pulls
    assert shard.core.peers[b"0"].outbox.queued_slices == 0


def initial(key: Any) -> Array:
    return first.first_elements(key, 7, 0, int(np.prod(key.shape)))


def test_a_pull_of_many_slices_waits_for_those_that_are_behind() -> None:
    count = 512
    key = key_of("w", [count], 1)
    shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=4, hyper={"lr": 1.0}))
    shard.say(pull_of(1, 0, 1, count=count))
    shard.work()
    assert shard.values() == {}
    ones = np.ones(count // 2, np.float32)
    for half in (0, 1):
        assert len(shard.values().get(1, b"")) == 2 * count * half
        shard.say(push_of(0, [2 * count], first=half * count // 2, count=count // 2, frame=half + 1), ones.tobytes())
        shard.work()
    assert shard.values()[1] == (initial(key) - 1).tobytes()


@pytest.mark.parametrize(("rows", "width"), [(5000, 256), (9, 1 << 18)])
def test_first_values_of_rows_that_were_never_touched_are_made_in_pieces(
    monkeypatch: pytest.MonkeyPatch, rows: int, width: int
) -> None:
    made: list[int] = []

    def counted(*arguments: Any, **named: Any) -> Array:
        values = first_rows(*arguments, **named)
        made.append(values.size)
        return values

    monkeypatch.setattr(first, "first_rows", counted)
    key = table_of("t", (rows, width), 1)
    shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=1 << 20))
    shard.pull_rows(1, np.arange(rows, dtype=np.int64))
    assert sum(made) == 0, "nothing is made while the socket is read"
    pieces = shard.work()
    assert max(made) <= PIECE_ELEMENTS
    assert pieces >= rows * width // PIECE_ELEMENTS
    draw = first._initializer(key)
    expected = first_values(draw, seed=7, key="t", start=0, stop=rows * width, dtype="float32")
    assert shard.values()[1] == expected.tobytes()


def test_a_pull_of_rows_shows_one_version_and_an_update_never_half() -> None:
    """Three updates come while it is answered, and a pull comes in the middle of each of them."""
    rows, width = 5000, 256
    key = constant(table_of("t", (rows, width), 1), 0.0)
    shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=1 << 20, hyper={"lr": 1.0}))
    ids = np.arange(rows, dtype=np.int64)
    shard.pull_rows(1, ids)
    for step in range(3):
        shard.push_rows(ids, np.ones((rows, width), np.float32), step=step, frame=step + 1)
    requests = iter(range(2, 9))
    shard.work(lambda: shard.pull_rows(number, ids) if (number := next(requests, 0)) else None)
    found = {number: np.unique(np.frombuffer(got, np.float32)).tolist() for number, got in shard.values().items()}
    assert found[1] == [0.0]
    assert len(found) == 8
    assert all(len(numbers) == 1 for numbers in found.values())
    assert all(len(got) == rows * width * 4 for got in shard.values().values())


@pytest.mark.parametrize(("nodes", "times"), [(0, 1), (10, 1), (256, 16)])
def test_a_rule_of_many_nodes_has_smaller_pieces(nodes: int, times: int) -> None:
    chain = [("Add", f"n{one}", (f"n{one - 1}" if one else "weight", "gradient")) for one in range(nodes)]
    rule = rule_document(chain, {"weight": f"n{nodes - 1}"}) if nodes else "adam"
    keys = [constant(key_of("w", [4], 1), 3.0), constant(table_of("t", (4, 4), 1), 3.0)]
    buckets = JobShard(store_of(keys, slots=1, shards=1, rule=rule), 0).all_buckets.values()
    assert [part.spec.piece_elements * times for part in buckets] == [PIECE_ELEMENTS, BUCKET_PIECES * PIECE_ELEMENTS]


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_a_rule_that_is_called_for_each_slice_is_called_a_bounded_number_of_times_between_two_looks(mode: Mode) -> None:
    count, nodes = 1000, 64
    chain = [("Add", f"n{one}", (f"n{one - 1}" if one else "weight", "gradient")) for one in range(nodes)]
    graph = rule_document(chain, {"weight": f"n{nodes - 1}"})
    key = constant(key_of("w", [count], 1), 3.0)
    calls: list[int] = []

    def apply(weight: Array, *_: object) -> None:
        calls.append(weight.size)
        weight += 1

    description = store_of([key], slots=1, shards=1, slice_bytes=4, rule=graph, mode=mode)
    shard = Shard(description, replace(rule_of(description), apply=apply))
    shard.say(pull_of(1, 0, 1, count=count))
    shard.say(push_of(0, [4 * count], count=count), np.ones(count, np.float32).tobytes())
    most = PIECE_CALLS * PIECE_NODES // nodes
    looks: list[int] = [0]
    shard.work(lambda: looks.append(len(calls)) or shard.say(Ping()))
    assert calls == [1] * count
    assert max(np.diff(looks)) == most
    assert sum(isinstance(message, Pong) for message, _ in shard.heard) == len(looks) - 1 >= count // most
    assert shard.values()[1] == np.full(count, 4, np.float32).tobytes()


def test_answers_in_very_many_runs_are_bounded_however_few_bytes_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.shard.merger.MAX_QUEUED_SEGMENTS", 3)
    shard = Shard(store_of([constant(key_of("w", [8], 1), 3.0)], slots=1, shards=1, slice_bytes=4))
    for request in range(1, 4):
        shard.core.receive(b"0", encode(pull_of(request, 0, 0)), 0.0)
    assert shard.core.peers[b"0"].outbox.queued_segments == 3
    shard.flush()
    assert shard.values() == dict.fromkeys(range(1, 4), np.float32(3).tobytes()), "what was fetched counts no more"
    for request in range(4, 8):
        shard.core.receive(b"0", encode(pull_of(request, 0, 0)), 0.0)
    shard.flush()
    (failed,) = [message for message, _ in shard.heard if isinstance(message, Failed)]
    assert failed.request == 7
    assert "12 bytes of values in 3 segments wait to be fetched already" in failed.reason
    assert set(shard.values()) == {*range(1, 7)}, "the others are as they were"


def test_a_set_of_a_later_version_seldom_copies_rows_that_wait_already(monkeypatch: pytest.MonkeyPatch) -> None:
    table = constant(table_of("t", (4000, 4), 1), 1.0)
    shard = Shard(store_of([table], slots=1, shards=1, slice_bytes=1024, hyper={"lr": 1.0}))
    joined: list[int] = []
    join = np.concatenate

    def counted(arrays: Any, *rest: Any, **named: Any) -> Any:
        joined.append(sum(len(one) for one in arrays))
        return join(arrays, *rest, **named)

    monkeypatch.setattr(np, "concatenate", counted)
    for number in range(40):
        ids = np.arange(number * 100, number * 100 + 100, dtype=np.int64)
        shard.push_rows(
            ids, np.full((100, 4), number, np.float32), 1, payload_kind=1, request=number + 1, frame=number + 1
        )
    assert sum(joined) <= 2 * 2 * 4000, "ids and values, and half of the rows as often as all others together"
    monkeypatch.undo()
    ids = np.arange(4000, dtype=np.int64)
    shard.push_rows(ids, np.ones((4000, 4), np.float32), 0, frame=99)
    shard.pull_rows(1, ids, 1)
    shard.work()
    found = np.frombuffer(shard.values()[1], np.float32).reshape(4000, 4)
    assert found[:, 0].tolist() == [number for number in range(40) for _ in range(100)]


@pytest.mark.parametrize("payload_kind", [0, 1])
def test_a_refused_run_of_chunks_changes_nothing(payload_kind: int) -> None:
    """Of a push the rows of its second chunk overlap those of the first; a set is for a version far ahead."""
    table = constant(table_of("t", (64, 4), 1), 1.0)
    shard = Shard(store_of([table], slots=1, shards=1, slice_bytes=96, hyper={"lr": 1.0}))
    cut = shard.routing.tables[0]
    assert cut.rows_up == 4
    first, second = np.arange(4), np.arange(4, 8) - (1 if payload_kind == 0 else 0)
    values = np.ones((4, 4), np.float32)
    payload = np.concatenate([first, second]).astype(np.int64).tobytes() + 2 * values.tobytes()
    if payload_kind:
        held = shard.job.tables[0]
        shard.say(push_of(0, [len(payload)], payload_kind=1, step=99, count=2, chunks=2, request=5), payload)
        assert held.sets_waiting == 0
        assert not held.known_sets._slices
        assert [message for message, _ in shard.heard if isinstance(message, PushRefused)]
    else:
        shard.say(push_of(0, [len(payload)], count=2, chunks=3), payload)
        assert "ids: rows of key 't' that do not ascend" in str(shard.heard)
        assert not shard.job.tables[0].partial_pushes


def test_a_job_that_is_closed_in_the_middle_of_its_work_leaves_nothing_to_do() -> None:
    key = key_of("w", [4 * PIECE_ELEMENTS], 1)
    description = store_of([key], slots=1, shards=1, slice_bytes=4096)
    shard = Shard(description)
    shard.say(push_of(0, [16 * PIECE_ELEMENTS], count=PIECE_ELEMENTS // 256), bytes(16 * PIECE_ELEMENTS))
    shard.core.work.work_once()
    assert shard.core.work.queue
    shard.core.close("over")
    assert not shard.core.work.queue
    shard.core.open(JobShard(msgspec.structs.replace(description, term=2), 0))
    assert not shard.core.work.work_once()


KEYS = 200


def many_keys(mode: Mode, *, given: bool = False) -> Shard:
    """A shard of many small keys, on which each look at the clock is a millisecond later."""
    keys = [key_of(f"k{number}", [4], 1) for number in range(KEYS)]
    keys = [given_key(key) if given else constant(key, 3.0) for key in keys]
    shard = Shard(store_of(keys, slots=1, shards=1, hyper={"lr": 1.0}, mode=mode))
    times = count()
    shard.core.work.clock = lambda: next(times) / 1000
    return shard


FLOODS: dict[str, tuple[Message, bytes | None]] = {
    "pushes": (push_of(0, [16] * KEYS, first=range(KEYS)), np.ones(4 * KEYS, np.float32).tobytes()),
    "sets": (
        push_of(0, [16] * KEYS, first=range(KEYS), payload_kind=1, request=1),
        np.ones(4 * KEYS, np.float32).tobytes(),
    ),
    "nothing": (Barrier(1, 0, list(range(0, KEYS, 2))), None),
}


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
@pytest.mark.parametrize("flood", FLOODS)
def test_what_one_message_of_many_keys_leads_to_is_merged_piece_by_piece(flood: str, mode: Mode) -> None:
    """While it is read no more than for some milliseconds."""
    shard, pieces = many_keys(mode, given=flood == "sets"), list[int]()
    advance = Bucket.advance
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Bucket, "advance", lambda bucket, todo: pieces.append(1) or advance(bucket, todo))
        message, payload = FLOODS[flood]
        shard.core.receive(b"0", encode(message, payload), 0.0)
        at_once = len(pieces)
        assert at_once <= 1000 * AT_ONCE_S + 1
        assert len(shard.core.work.queue) >= KEYS // 2 - at_once
        shard.work()
    (bucket,) = shard.job.buckets.values()
    assert not shard.core.work.queue
    assert not bucket.has_waiting
    assert (bucket.versions[::2] == (flood != "sets")).all()


@pytest.mark.parametrize("rows", [False, True])
def test_pulls_that_wait_for_values_are_looked_at_once_for_a_message_that_sets_many(
    rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are answered with what was set."""
    key = given_key(table_of("t", (KEYS, 4), 1) if rows else key_of("w", [KEYS * 4], 1))
    shard, looks = Shard(store_of([key], slots=1, shards=1, slice_bytes=24 if rows else 16)), list[int]()
    shard.core.work.at_once_s = AT_ONCE_S
    for request in range(1, 101):
        if rows:
            shard.pull_rows(request, np.arange(request - 1, request))
        else:
            shard.say(pull_of(request, 0, 0, first=request - 1))
    pulls_of = BucketSteps.pulls_of
    monkeypatch.setattr(BucketSteps, "pulls_of", lambda *some: looks.append(1) or pulls_of(*some))
    values = np.arange(KEYS * 4, dtype=np.float32).reshape(KEYS, 4)
    parts = [(np.int64(one).tobytes() if rows else b"") + values[one].tobytes() for one in range(KEYS)]
    sizes, chunks = [len(one) for one in parts], KEYS if rows else 0
    said = push_of(0, sizes, first=range(KEYS), payload_kind=1, request=200, chunks=chunks)
    shard.core.receive(b"0", encode(said, b"".join(parts)), 0.0)
    shard.work()
    assert len(looks) <= 2
    assert shard.values() == {request: values[request - 1].tobytes() for request in range(1, 101)}


@pytest.mark.parametrize("is_answering", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_pull_of_one_version_that_waits_for_rows_is_answered_before_the_push_that_waits_with_it(
    rows: int, is_answering: bool
) -> None:
    """Whether it takes one piece or two, and whether the shard is answering another pull when the rows are set."""
    key = given_key(table_of("t", (8, 1), 1))
    shard = Shard(store_of([key], slots=1, shards=1, slice_bytes=4, hyper={"lr": 1.0}))
    (table,) = shard.job.tables.values()
    table.piece_rows = 1
    ids, others, ones = np.arange(rows), np.arange(4, 8), np.ones((8, 1), np.float32)
    shard.push_rows(others, ones[:4], payload_kind=1, request=9)
    shard.work()
    shard.push_rows(ids, ones[:rows])
    shard.pull_rows(1, ids, reading=Reading.EXACT)
    shard.work()
    if is_answering:
        shard.pull_rows(2, others)
        assert shard.core.work.work_once()
        assert table.has_task
    shard.push_rows(ids, 5 * ones[:rows], payload_kind=1, request=10)
    shard.work()
    assert table.version == 1
    assert shard.values()[1] == (5 * ones[:rows]).tobytes()


def test_a_pull_of_one_version_is_answered_where_its_rows_are_set_while_pushes_of_others_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "PIECE_ELEMENTS", 1)
    description = store_of([given_key(table_of("t", (8, 1), 2))], slots=2, shards=1, hyper={"lr": 1.0})
    shard, row, one = Shard(description), np.arange(1), np.ones((1, 1), np.float32)
    shard.core.receive(b"1", encode(Hello("job", 1, 1, 1, bytes([1] * 16), 1, digest(description))), 0.0)
    (table,) = shard.job.tables.values()
    shard.push_rows(row, one, payload_kind=1, request=9)
    shard.pull_rows(1, row + 1, reading=Reading.EXACT)
    shard.work()
    shard.push_rows(row, one)
    payload = row.tobytes() + one.tobytes()
    shard.core.receive(b"1", encode(push_of(0, [len(payload)], chunks=1), payload), 0.0)
    assert table.has_task
    assert table.version == 0
    shard.push_rows(row + 1, 5 * one, payload_kind=1, request=10)
    shard.work()
    assert table.version == 1
    assert shard.values()[1] == (5 * one).tobytes()
