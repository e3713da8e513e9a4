"""What a broken or hostile client says changes nothing, or what it says and no more: random messages, some of them
damaged, to the core of a shard.

A message that is refused leaves all that the job has as it was. One that is taken in does what its parts do that are
not refused, each said alone to a second shard; and of what was taken in each gradient counts once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from store_raw import SENT, hello_of, row_of
from weft_kvstore import Key, describe
from weft_kvstore.arrays import Array, Buffer
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.rows.storage import RowStorage
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import ProtocolError, PushSegment, decode_reply, decode_request, encode
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Acknowledge,
    Barrier,
    Bye,
    Cancel,
    Commit,
    Done,
    Failed,
    FailureCode,
    Hello,
    Hyper,
    Measure,
    Message,
    PayloadKind,
    Pull,
    Push,
    PushRefused,
    Reading,
    RefusalCode,
    Refused,
    Values,
    Welcome,
    Why,
    chunks_in,
)

SLOTS, SLICE, ROWS, WIDTH = 2, 32, 40, 2
HEAD = 13
"""Bytes of a header before its map."""

MESSAGES = 40
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "arrival": {"merge": "arrival"},
    "commit": {"commit": {}},
    "async": {"mode": "async"},
    "stale": {"mode": "stale", "staleness": 1},
}
CODECS: dict[str, Any] = {
    "plain": None,
    "fp16": {"kind": "fp16"},
    "2bit": {"kind": "2bit", "threshold": 0.5},
    "topk": {"kind": "topk", "count": 3},
}


def described(mode: str, codec: str, rule: str) -> StoreDescription:
    """Of each kind of key one: cut into slices, small, whole, given, a mean, what nobody pushes; and of tables."""
    keys = {
        "sliced": Key((40,), initializer=0.0),
        "small": Key((3,), initializer=0.0, priority=5),
        "whole": Key((20,), initializer=0.0, whole=True),
        "given": Key((20,)),
        "mean": Key((10,), initializer=0.0, update="mean"),
        "still": Key((10,), initializer=0.0, slots=[]),
        "table": Key((ROWS, WIDTH), rows=True, initializer=0.0),
        "given_rows": Key((ROWS, WIDTH), rows=True),
        "growing": Key((0, WIDTH), rows=True, initializer=0.0, growth={}),
    }
    told = {} if CODECS[codec] is None else {"compression": {"gradients": CODECS[codec], "least_bytes": 0}}
    where = {"shards": ["tcp://127.0.0.1:1"], "slots": SLOTS, "slice_bytes": SLICE, "barrier": False}
    return describe(keys, rule=rule, lr=1.0, **where, **MODES[mode], **told)


# --- All that a job has -----------------------------------------------------------------------------------------------


FORGETTABLE = {"_cuts", "_remembered", "_scopes", "_when", "_last", "_tried", "_base"}
"""What is remembered to save time."""

ELSEWHERE = {
    "spec",
    "_spec",
    "description",
    "_routing",
    "layout",
    "reader",
    "_gate",
    "_rule",
    "rule",
    "peer",
    "all_buckets",
}
ELSEWHERE |= FORGETTABLE | {"_pulls", "pulled_versions", "_codec", "_description"}
"""What never changes, or is looked at where it belongs."""


def state_of(one: Any) -> Any:
    """All that it has, by the numbers and bytes that are in it."""
    if isinstance(one, np.ndarray):
        return one.dtype.str, one.shape, one.tobytes()
    if one is None or isinstance(one, int | float | str | bytes | np.generic | Enum):
        return repr(one)
    if isinstance(one, dict):
        return [(state_of(key), state_of(value)) for key, value in one.items()]
    if isinstance(one, set | frozenset):
        return sorted(map(repr, one))
    if isinstance(one, list | tuple | deque):
        return [state_of(each) for each in one]
    if isinstance(one, RowStorage):  # Where its rows lie is chance.
        ids = np.arange(2 * ROWS, dtype=np.int64 if one._index is None else np.uint64)
        ids = ids[: ROWS if one._index is None else None]
        rows = one.find(ids)
        return one.count, state_of([ids[rows >= 0], one.columns(rows[rows >= 0])])
    if callable(one) or isinstance(one, Iterator):
        return None
    return type(one).__name__, [(name, state_of(getattr(one, name))) for name in names_of(one)]


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    slots = {name for one in kind.__mro__ for name in getattr(one, "__slots__", ())}
    return tuple(sorted(slots - ELSEWHERE))


def names_of(one: Any) -> list[str]:
    return [*slots_of(type(one)), *[name for name in getattr(one, "__dict__", ()) if name not in ELSEWHERE]]


# --- A shard, and a client of each slot that hears everything and acknowledges it -------------------------------------


class Shard:
    def __init__(self, description: StoreDescription) -> None:
        self.core = ShardCore(b"b" * 16, LinkSettings())
        self.job = JobShard(description, 0)
        self.core.open(self.job)
        self.core.links.arenas, self.memories = {}, {}
        self.description = description
        self.sessions, self.numbers, self.frames = [0] * SLOTS, [0] * SLOTS, [0] * SLOTS
        self.links = [b""] * SLOTS
        self.values: list[Any] = []
        for slot in range(SLOTS):
            self.connect(slot)

    def state(self, without: int = -1) -> Any:
        """Of the job, and of its clients but one."""
        peers = {
            slot: [
                [(wait.request, wait.version, wait.unanswered, wait.rows) for wait in peer.pulls.values()],
                peer.measures,
                peer.changed,
                peer.open_entries,
                peer.ids_bytes,
            ]
            for slot, peer in sorted(self.core.links.clients.items())
            if slot != without
        }
        return state_of([self.job, peers])

    def connect(self, slot: int) -> None:
        self.sessions[slot] += 1
        self.numbers[slot], self.links[slot] = 0, bytes([slot, self.sessions[slot]])
        self.memories[slot] = np.zeros(1 << 16, np.uint8)
        read_only = self.memories[slot].view()
        read_only.flags.writeable = False
        self.core.links.arenas = {**self.core.links.arenas, (bytes([slot]) * 16, self.sessions[slot]): read_only}
        hello = msgspec.structs.replace(hello_of(self.description, slot), session=self.sessions[slot])
        assert isinstance(self.said(slot, encode(hello, None, self.next_number(slot)))[-1], Welcome)

    def next_number(self, slot: int) -> int:
        self.numbers[slot] += 1
        return self.numbers[slot]

    def next_frame(self, slot: int) -> int:
        self.frames[slot] += 1
        return self.frames[slot]

    def tell(self, slot: int, message: Message, payload: Buffer | None = None) -> list[Any]:
        """Says it as the slot's next message. What was answered but for values, which are kept."""
        return self.said(slot, encode(message, payload, self.next_number(slot)))

    def said(self, slot: int, parts: list[Buffer], link: bytes = b"") -> list[Any]:
        self.core.receive(link or self.links[slot], [bytearray(part) for part in parts], 0.0)
        return self.heard()

    def heard(self) -> list[Any]:
        self.core.flush(0.0)
        sent, self.core.links.outgoing = self.core.links.outgoing, []
        answers = []
        for link, parts in sent:
            message, payload, _ = decode_reply([bytes(part) for part in parts])
            if isinstance(message, Values):
                begin = 0
                for *row, nbytes in message.segments:
                    self.values.append((link[0], row, bytes(payload[begin : begin + nbytes])))
                    begin += nbytes
                slot = self.links.index(link)
                answers += self.tell(slot, Acknowledge([message.frame]))
            elif not isinstance(message, Acknowledge | Done):
                answers.append(message)
        return answers

    def answered(self) -> dict[tuple[Any, ...], bytes]:
        """The values of each slot and request, by their version, however they are cut."""
        found: dict[tuple[Any, ...], bytes] = {}
        for slot, (*of, _, _), payload in sorted(self.values):
            found[slot, *of] = found.get((slot, *of), b"") + payload
        return found

    def end(self, slot: int, *, lost: bool) -> None:
        """The slot's connection, or its client, is gone; the process may write its memory from now on."""
        if lost:
            self.core.links.disconnect(self.links[slot])
        elif self.links[slot] in self.core.peers:
            self.tell(slot, Bye())
        memory = self.memories[slot]
        self.connect(slot)
        self.tell(slot, Cancel([0]))
        memory[:] = 255

    def work(self, pieces: int) -> None:
        for _ in range(pieces):
            self.core.work.work_once()
        self.heard()


# --- Messages as a client says them, nearly ---------------------------------------------------------------------------


class Client:
    """Says what a slot may say now, and sometimes what it may not."""

    def __init__(self, choose: random.Random, shard: Shard) -> None:
        self.choose = choose
        self.shard = shard
        self.request = 0

    def message(self, slot: int) -> tuple[Message, bytes | None]:
        choose, job, draw = self.choose, self.shard.job, self.choose.random()
        self.request += 1
        step = max(int(part.versions.max()) for part in job.all_buckets.values()) + choose.choice([0, 0, 0, 1])
        if draw < 0.65:
            rows, payload = zip(*[self.segment(slot) for _ in range(choose.choice([1, 1, 2, 3]))], strict=True)
            pull = self.pull() if choose.random() < 0.3 else None
            return Push(self.shard.next_frame(slot), [*rows], pull=pull), b"".join(payload)
        if draw < 0.8:
            return self.pull(), None
        if draw < 0.88:
            return Barrier(self.request, step, choose.sample(range(9), choose.choice([0, 1, 3, 9]))), None
        if draw < 0.95 and job.gate is not None:
            measured = job.gate.measured(job.gate._next)
            if measured is None:
                return Measure(self.request, job.gate._next + choose.choice([0, 0, 1])), None
            return Commit(self.request, job.gate._next, 1.0, measured.finite), None
        if draw < 0.97:
            return Hyper(self.request, step, choose.choice([[], [0], [6]]), ["lr"], [1.0]), None
        pulls = [*self.shard.core.peers[self.shard.links[slot]].pulls]
        return choose.choice([Cancel, Why])(pulls[:2]), None

    def segment(self, slot: int) -> tuple[tuple[Any, ...], bytes]:
        """A row of a push, and its bytes."""
        choose, job = self.choose, self.shard.job
        number = choose.choice([*job.all_buckets])
        part = job.all_buckets[number]
        index = part.indices.get(slot, 0)
        kind = choose.choice([PayloadKind.GRADIENT] * 12 + [PayloadKind.VALUE] * 4 + [*PayloadKind])
        now = int((part.arrived[index] if len(part.arrived) else part.versions).min())
        step = now + choose.choice([0] * 12 + [1, 1, 2, 3])
        if kind == PayloadKind.VALUE:
            step = choose.choice([0, 0, step])
        if isinstance(part, Bucket):
            first = choose.randrange(part.count)
            count = choose.randint(1, part.count - first)
            some = slice(first, first + count)
            if kind == PayloadKind.GRADIENT and len(part.arrived):
                step = int(part.arrived[index, some].min()) + choose.choice([0] * 12 + [1, 2])
            bounds = part.bounds[first : first + count + 1] - part.bounds[first]
            elements = np.array([choose.randint(-4, 4) for _ in range(bounds[-1])], np.float32)
            payload = elements.tobytes()
            if kind == PayloadKind.GRADIENT and part.spec.pushed is not None:
                payload = part.spec.pushed.encode(elements, bounds).tobytes()
            chunks = choose.choice([0, 0, 1]) if kind == PayloadKind.RESTORED else 0
            return (kind, choose.choice([0, self.request]), number, step, chunks, first, count, len(payload)), payload
        layout = part.layout
        ids = sorted(choose.sample(range(ROWS), choose.choice([0, 1, 3, 2 * layout.rows_up])))
        up = layout.ids_up if kind == PayloadKind.IDS else layout.rows_up
        chunks = max(-(-len(ids) // up), 1)
        first = choose.randrange(chunks)
        count = choose.randint(1, chunks - first)
        some = np.array(ids[first * up : (first + count) * up], np.int64)
        rows = np.array([[choose.randint(-4, 4)] * WIDTH for _ in some], np.float32)
        payload = some.tobytes() + (b"" if kind == PayloadKind.IDS else rows.tobytes())
        pulls = [one.request for one in self.shard.core.peers[self.shard.links[slot]].pulls.values() if one.rows]
        request = choose.choice([0, self.request, *pulls])
        return (kind, request, number, step, chunks, first, count, len(payload)), payload

    def pull(self) -> Pull:
        choose, job, asks = self.choose, self.shard.job, []
        for _ in range(choose.choice([1, 1, 2])):
            number = choose.choice([*job.all_buckets])
            part = job.all_buckets[number]
            first = choose.randrange(part.count)
            ranges = [(number, first, choose.randint(1, part.count - first), 0)]
            if not isinstance(part, Bucket):
                ranges = [(number, 0, 0, choose.choice([0, 1]))]
            version = int(part.versions.max()) + choose.choice([0, 0, 1, 1, 2])
            self.request += 1
            state, reading = choose.random() < 0.2, choose.choice([*Reading])
            asks.append((self.request, version, state, reading, choose.random() < 0.5, ranges))
        return Pull(asks, choose.choice([0, 0, 5]))


# --- How they are damaged ---------------------------------------------------------------------------------------------


NUMBERS = [0, 0, 0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 24, 99, 2**31, 2**60, 2**63 - 1]
ODD: list[Any] = [*NUMBERS, *NUMBERS, -1e-6, float("nan"), float("inf"), 2**63, -1, True, None, "x", b"x", [], [0], {}]


def damaged(choose: random.Random, parts: list[Buffer]) -> list[Buffer]:
    """The parts of a message that says something else than it did: of its fields, their order, its bytes."""
    header, payload = bytes(parts[0]), [bytes(part) for part in parts[1:]]
    head, fields = header[:HEAD], msgspec.msgpack.decode(header[HEAD:])
    match choose.choice(["row"] * 6 + ["field", "list", "bytes", "ids"] * 2 + ["size", "parts", "bits"]):
        case "bits":
            flipped = bytearray(header)
            flipped[choose.randrange(HEAD, len(header))] ^= 1 << choose.randrange(8)
            return [bytes(flipped[: choose.choice([len(header)] * 3 + [len(header) - 1])]), *payload]
        case "parts":
            payload = choose.choice([[], [*payload, b"12345678"], payload[:-1], [b""]])
        case "bytes" if payload:
            (some,) = payload
            at = choose.randrange(len(some) + 1)
            payload = [choose.choice([some[:at], some + some[:at], some[at:] + some[:at], some[:at] + some[at + 4 :]])]
        case "ids" if payload and len(payload[0]) >= 16:  # The first two of rows, if it has rows.
            some = payload[0]
            payload = [some[8:16] + choose.choice([some[:8], some[8:16], bytes(7) + b"\x80"]) + some[16:]]
        case "row" if fields["type"] == "push":
            row = choose.choice(fields["segments"])
            row[choose.randrange(len(row))] = choose.choice(NUMBERS)
        case "size" if fields["type"] == "push":  # Its bytes fit: the row alone is wrong.
            row, more = fields["segments"][-1], choose.choice([-8, -4, 4, 8, 16])
            row[-1] = max(row[-1] + more, 0)
            if fields.get("at"):
                fields["at"][-1][-1] += more
            else:
                payload = [one[:more] if more < 0 else one + bytes(more) for one in payload]
        case "list":
            some = choose.choice([one for one in nodes(fields) if isinstance(one, list)] or [[]])
            if some:
                at = choose.randrange(len(some))
                match choose.randrange(3):
                    case 0:
                        del some[at]
                    case 1:
                        some.insert(choose.randrange(len(some) + 1), some[at])
                    case _:
                        choose.shuffle(some)
        case _:
            some = choose.choice([*nodes(fields)])
            if some:
                some[choose.choice([*some] if isinstance(some, dict) else range(len(some)))] = choose.choice(ODD)
    return [head + msgspec.msgpack.encode(fields), *payload]


def nodes(one: Any) -> Iterator[Any]:
    """The dictionaries and lists of a message: itself, and what is in it."""
    if isinstance(one, dict | list):
        yield one
        for each in one.values() if isinstance(one, dict) else one:
            yield from nodes(each)


# --- What is left of a message, each part alone -----------------------------------------------------------------------


def parts_taken_in(parts: list[Buffer], answers: list[Any], memory: Array) -> Iterator[tuple[Any, bytes | None]]:
    message, payload, _ = decode_request(parts)
    if isinstance(message, Barrier | Measure | Commit | Hyper):
        if not any(isinstance(one, Failed) and one.code is FailureCode.REFUSED for one in answers):
            yield message, None
        return
    if not isinstance(message, Push):
        yield message, None
        return
    refused = {one.segment for one in answers if isinstance(one, PushRefused) and one.frame == message.frame}
    whole = b"".join(memory[at : at + nbytes].tobytes() for at, nbytes in message.at) if message.at else bytes(payload)
    is_first = any(map(chunks_in, message.segments))
    if message.pull is not None and is_first:
        yield message.pull, None
    begin = 0
    for number, row in enumerate(message.segments):
        if number not in refused:
            yield Push(message.frame, [row]), whole[begin : begin + row[-1]]
        begin += row[-1]
    if message.pull is not None and not is_first:
        yield message.pull, None


class Once:
    """What each slice, or row, must be where it was pushed and nothing else: less the first gradient of each slot and
    step that was taken in, of the steps that are applied."""

    def __init__(self, job: JobShard) -> None:
        self.job = job
        self.pushed: dict[tuple[int, int], dict[tuple[int, int], Array]] = {}
        self.is_known = True
        self.changed: set[tuple[int, int]] = set()

    def note(self, slot: int, message: Any, payload: bytes | None) -> None:
        """What is about to be taken in, alone."""
        if isinstance(message, Hello) or (isinstance(message, Hyper) and message.numbers != [1.0]):
            self.is_known = False  # A slot that is filled anew has nothing that waits.
        if not isinstance(message, Push) or payload is None:
            return
        ((kind, _, number, step, _, first, count, _),) = message.segments
        part = self.job.all_buckets[number]
        if kind not in {PayloadKind.GRADIENT, PayloadKind.IDS}:
            self.changed |= {(number, at) for at in range(first, min(first + count, part.count))}
        if kind != PayloadKind.GRADIENT or not isinstance(part, Bucket):
            return
        bounds = part.bounds[first : first + count + 1] - part.bounds[first]
        codec = part.spec.pushed
        elements = np.frombuffer(payload, np.float32) if codec is None else codec.decode(payload, bounds)
        for at in range(count):
            if step >= part.arrived[part.indices[slot], first + at]:
                one = self.pushed.setdefault((number, first + at), {})
                one[slot, step] = elements[bounds[at] : bounds[at + 1]]

    def check(self) -> None:
        for number, bucket in self.job.buckets.items():
            if not self.is_known or bucket.spec.update.value != "rule":
                continue
            values = np.concatenate([some for _, _, some in bucket.update.values.elements(0, bucket.count)])
            for at in [one for one in range(bucket.count) if (number, one) not in self.changed]:
                expected = np.zeros(bucket.bounds[at + 1] - bucket.bounds[at], np.float32)
                for (slot, step), gradient in self.pushed.get((number, at), {}).items():
                    of = bucket.versions if bucket.spec.is_sync else bucket.added[bucket.indices[slot]]
                    expected -= gradient * np.float32(step < of[at])
                assert np.array_equal(values[bucket.bounds[at] : bucket.bounds[at + 1]], expected, equal_nan=True)


def play(seed: str, description: StoreDescription, *, shared: bool, rule: str) -> dict[str, int]:
    """Some messages to two shards: how many were refused, taken in, and taken in for a part."""
    choose, counts = random.Random(seed), dict.fromkeys(("refused", "whole", "part"), 0)
    shard, alone = Shard(description), Shard(description)
    client, once = Client(choose, shard), Once(alone.job)
    for _ in range(MESSAGES):
        slot = choose.randrange(SLOTS)
        message, payload = client.message(slot)
        memory = shard.memories[slot]
        if shared and isinstance(message, Push) and payload:
            begin = message.frame % 64 * 1024
            memory[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)
            message, payload = msgspec.structs.replace(message, at=[(begin, len(payload))]), None
        link, number = b"", shard.numbers[slot] + choose.choice([0] + [1] * 30 + [2])
        if choose.random() < 0.03:  # A stranger, or the slot's process on a new connection.
            message, payload, number, link = hello_of(description, slot, incarnation=0), None, 1, bytes([slot, 0])
        parts = said = encode(message, payload, number)
        if choose.random() < 0.4:
            parts = damaged(choose, said)
        is_next, is_lost = number == shard.numbers[slot] + 1, number > shard.numbers[slot] + 1
        shard.numbers[slot] += is_next and not link
        before = shard.state(slot if not link else -1)
        answers = shard.said(slot, parts, link)
        assert shard.core.job is not None
        refused = [one for one in answers if isinstance(one, Refused)]
        if refused or not (is_next or link):
            counts["refused"] += 1
            assert all(one.reason for one in refused)
            assert shard.state(slot if not link else -1) == before
            if refused and not link:
                is_lost = is_lost and refused[0].code is RefusalCode.UNKNOWN_LINK
                for one in (shard, alone):
                    one.end(slot, lost=is_lost)
        else:
            if link:
                for one in (shard, alone):
                    one.links[slot], one.numbers[slot] = link, 1
            told = [*parts_taken_in(parts, answers, memory)]
            of = len(message.segments) if isinstance(message, Push) else 1
            counts["part" if len(told) < of else "whole"] += 1
            failed = {one.request for one in answers if isinstance(one, Failed) and one.code is not FailureCode.REFUSED}
            for one, some in told:
                once.note(slot, one, some)
                heard = alone.said(slot, encode(one, some, number if link else alone.next_number(slot)), link)
                assert not any(isinstance(each, Refused | PushRefused) for each in heard)
                failed -= {each.request for each in heard if isinstance(each, Failed)}
            assert not failed
        if parts is not said:
            assert shard.state() == alone.state()
        pieces = choose.choice([0, 0, 1, 3])
        shard.work(pieces)
        alone.work(pieces)
    for one in (shard, alone):
        one.work(1000)
    assert shard.state() == alone.state()
    assert shard.answered() == alone.answered()
    if rule == "sgd":
        once.check()
    return counts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_message_is_refused_and_changes_nothing_or_is_what_its_parts_are(mode: str, codec: str) -> None:
    for rule, shared in (("sgd", False), ("adam", True)):
        counts = play(f"{mode} {codec} {rule}", described(mode, codec, rule), shared=shared, rule=rule)
        assert min(counts["refused"], counts["whole"]) >= MESSAGES // 8


# --- Segments that nobody may send ------------------------------------------------------------------------------------


SLICED, TABLE, HUGE = 0, 4, 2**63 - 1
IDS = PayloadKind.IDS


def chunk_of(*ids: int) -> bytes:
    """Rows, of which two fill a chunk, of zeros."""
    return np.array(ids, np.int64).tobytes() + bytes(4 * WIDTH * len(ids))


SEGMENTS: list[tuple[str, dict[str, int], bytes]] = [
    ("Push.first: slices 9 to 9 .* has 0 to 8", {"bucket": SLICED, "first": 9}, bytes(32)),
    ("Push.first: slices", {"bucket": SLICED, "count": HUGE}, bytes(32)),
    ("Push.first: slices", {"bucket": SLICED, "first": HUGE, "count": HUGE}, bytes(32)),
    ("Push.nbytes: 32 for 2 slices from 0 of bucket 0, not 64", {"bucket": SLICED, "count": 2}, bytes(32)),
    ("Push.nbytes: 31", {"bucket": SLICED}, bytes(31)),
    ("Push.nbytes: 36", {"bucket": SLICED, "payload_kind": PayloadKind.VALUE}, bytes(36)),
    ("bucket: 0 has no rows", {"bucket": SLICED, "chunks": 1}, bytes(32)),
    ("bucket: 0 has no rows", {"bucket": SLICED, "chunks": 1, "payload_kind": PayloadKind.VALUE}, bytes(32)),
    ("bucket: 0 has no rows", {"bucket": SLICED, "payload_kind": IDS}, bytes(32)),
    ("bucket: 0 has no rows", {"bucket": SLICED, "payload_kind": PayloadKind.RESTORED_STATE}, bytes(32)),
    ("chunks: 0 of key 'table'; its 40 rows here take 20", {"chunks": 0}, chunk_of(1)),
    ("chunks: 21", {"chunks": 21}, chunk_of(1)),
    ("chunks: 0", {"chunks": 0, "payload_kind": PayloadKind.RESTORED}, chunk_of(1)),
    ("chunks: 11", {"chunks": 11, "payload_kind": IDS}, bytes(8)),
    ("Push.first: chunks 1 to 1 of key 'table', there are 1", {"first": 1}, chunk_of(1)),
    ("Push.first: chunks", {"first": HUGE, "count": HUGE, "chunks": 2}, chunk_of(1)),
    ("Push.nbytes: 8 for chunks 0 to 0 of 1", {}, chunk_of(1)[:8]),
    ("Push.nbytes: 15", {}, chunk_of(1)[:-1]),
    ("Push.nbytes: 16", {"chunks": 2}, chunk_of(1)),
    ("Push.nbytes: 48", {}, chunk_of(1, 2, 3)),
    ("Push.nbytes: 32", {"count": 2, "chunks": 2}, chunk_of(1, 2)),
    ("Push.nbytes: 0", {"chunks": 2}, b""),
    ("Push.nbytes: 7", {"payload_kind": IDS}, bytes(7)),
    ("ids: rows of key 'table' that do not ascend", {}, chunk_of(4, 2)),
    ("ids: rows of key 'table' that do not ascend", {}, chunk_of(4, 4)),
    ("ids: rows of key 'table' that do not ascend", {"payload_kind": IDS}, np.int64([4, 2]).tobytes()),
    ("ids: rows 4 to 40 of key 'table', which has 40", {}, chunk_of(4, ROWS)),
    ("ids: rows -1 to 4", {}, chunk_of(-1, 4)),
    ("ids: rows 40 to 40", {"payload_kind": IDS}, np.int64([ROWS]).tobytes()),
]


def test_a_segment_that_nobody_may_send_is_refused_by_the_name_of_its_field() -> None:
    job = JobShard(described("sync", "plain", "sgd"), 0)
    for told, fields, payload in SEGMENTS:
        said = {"bucket": TABLE, "chunks": int("bucket" not in fields), **fields}
        row = dict(zip(SENT[:-1], row_of(SENT, **said)[:-1], strict=True))
        with pytest.raises(ProtocolError, match=f"^{told}"):
            job.all_buckets[row["bucket"]].check_segment(PushSegment(**row, buffers=[memoryview(payload)]))


# --- What a message cannot do beside ----------------------------------------------------------------------------------


def test_the_last_segment_of_a_frame_or_its_pull_is_checked_before_the_first_is_taken_in() -> None:
    for told, last, pull in (
        ("bucket: 99 has nothing on shard 0", (0, 0, 99, 0, 0, 0, 1, 4), None),
        ("Pull.bucket: 99 has no rows on shard 0", None, Pull([(9, 0, False, Reading.OWN, False, [(99, 0, 1, 0)])])),
    ):
        shard = Shard(described("sync", "plain", "sgd"))
        rows = [(0, 0, SLICED, 0, 0, 0, 1, 32), *([last] if last else [])]
        (refused, *_) = shard.tell(0, Push(1, rows, pull=pull), bytes(36 if last else 32))
        assert (refused.code, refused.reason) == (RefusalCode.MALFORMED, told)
        assert not shard.job.buckets[SLICED].arrived.any()


@pytest.mark.parametrize("rows", [False, True])
def test_a_store_of_many_slots_is_not_restored_beyond_what_its_updates_can_count(rows: bool) -> None:
    """Where each slot's step is an update."""
    key = Key((4, 2), rows=rows, initializer=0.0)
    where = {"shards": ["tcp://127.0.0.1:1"], "slots": 16, "barrier": False, "mode": "async"}
    shard = Shard(describe({"w": key}, rule="sgd", lr=1.0, **where))
    payload = np.arange(4).tobytes() + bytes(32) if rows else bytes(32)
    push = Push(1, [(PayloadKind.RESTORED, 1, 0, 2**60 - 1, int(rows), 0, 1, len(payload))])
    (refused,) = shard.tell(0, push, payload)
    assert "a store is restored at a step below 2^60" in refused.reason
    assert not shard.job.all_buckets[0].versions.any()


@pytest.mark.parametrize(("norm", "finite"), [(-1e-6, True), (-1.0, False), (float("nan"), True)])
def test_a_norm_that_is_none_is_refused(norm: float, finite: bool) -> None:
    where = {"shards": ["tcp://127.0.0.1:1"], "slots": SLOTS, "barrier": False, "commit": {"clip_norm": 1.0}}
    shard = Shard(describe({"w": Key((2,), initializer=0.0)}, rule="sgd", lr=1.0, **where))
    for slot in range(SLOTS):
        shard.tell(slot, Push(1, [(0, 0, 0, 0, 0, 0, 1, 8)]), bytes(8))
        shard.tell(slot, Measure(1, 0))
    assert shard.job.gate is not None
    assert shard.job.gate.measured(0) is not None
    (refused,) = shard.tell(0, Commit(2, 0, norm, finite))
    assert refused.reason.startswith("Commit.norm")
    assert shard.job.gate.committed(0) is None


def test_a_pull_has_as_many_ranges_as_a_message_may_have() -> None:
    shard = Shard(described("sync", "plain", "sgd"))
    ask = (False, Reading.OWN, False, [(SLICED, 0, 1, 0)] * (MAX_ENTRIES // 2))
    assert shard.tell(0, Pull([(1, 0, *ask), (2, 0, *ask)])) == []
    (refused,) = shard.tell(
        0, Pull([(3, 0, *ask), (4, 0, *ask), (5, 0, False, Reading.OWN, False, [(SLICED, 0, 1, 0)])])
    )
    assert "Pull.asks: 4097 ranges, more than 4096" in refused.reason


def test_a_step_that_a_slot_only_claims_to_be_at_is_none_for_those_who_watch() -> None:
    shard, seen = Shard(described("sync", "plain", "sgd")), list[int]()
    shard.core.arrived = lambda slot, step, now: seen.append(step)
    shard.tell(0, Barrier(1, 2**62, []))
    shard.tell(0, Barrier(2, 0, [0]))
    assert seen == [0]
