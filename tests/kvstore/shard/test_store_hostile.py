"""Whatever strangers and broken members send, a shard counts it, and goes on serving the others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import (
    WAIT_S,
    Array,
    NamedClient,
    NamedStore,
    clients_of,
    gradients_of,
    key_of,
    open_pulls,
    served,
    store_of,
    table_of,
)
from store_cluster import given as given_key
from store_raw import ZMTP_GREETING, ZMTP_READY, changed_rows, column, hello_of, pull_of, raw_peer
from store_raw import push_of as a_push
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import MAX_FRAME_BYTES, LinkSettings
from weft_kvstore.wire.codec import FORMAT_VERSION, MAGIC, MAX_HEADER_BYTES, encode
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Acknowledge,
    Barrier,
    Bye,
    Cancel,
    Failed,
    FailureCode,
    Hello,
    Ping,
    Pong,
    Pull,
    Push,
    PushRefused,
    Reading,
    RefusalCode,
    Refused,
    Values,
    Welcome,
    Why,
)

PREFIX = MAGIC + bytes([FORMAT_VERSION]) + bytes(8)
SLOTS = 2
SPARE = 2
"""A slot that contributes to no key: a hostile member may take it without holding the others up."""

KEY_BYTES = 3000
DENSE, LAST = 0, 3
"""The bucket of keys `a` and `b`, and its last slice: all of `b`."""

TABLE, FREE, WHOLE, ROWS, ROW_BYTES = 1, 2, 3, 100, 24
"""The buckets of the two tables and of the whole key; the tables' rows, and the bytes of a row: a chunk to the shard
has 32 rows, its ids 128."""

ALL_ROWS = np.arange(ROWS)
FULL = 32 * (8 + ROW_BYTES)


@dataclass
class Served:
    """A shard and two honest clients that train on it; `expected` are the values of an undisturbed store."""

    description: StoreDescription
    server: ShardServer
    clients: list[NamedClient]
    step: int = 0
    expected: dict[str, Array] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    def train(self) -> None:
        """One step of both clients, whose result must be exact."""
        if not self.expected:
            self.expected = {key: self.pull(0, key) for key in ("a", "b", "t")}
        gradients = [gradients_of(self.description, slot, self.step) for slot in range(SLOTS)]
        for client, gradient in zip(self.clients, gradients, strict=True):
            for key in ("a", "b"):
                client.push(key, self.step, gradient[key])
            client.push("t", self.step, gradient["t"], ALL_ROWS)
        self.step += 1
        for key in self.expected:
            self.expected[key] -= gradients[0][key] + gradients[1][key]
            for slot in range(SLOTS):
                assert self.pull(slot, key).tobytes() == self.expected[key].tobytes()

    def pull(self, slot: int, key: str) -> Array:
        client = self.clients[slot]
        pull = client.pull(key, self.step, ALL_ROWS) if key == "t" else client.pull(key, self.step)
        return pull.result(WAIT_S)

    def statistics(self) -> dict[str, float]:
        return self.server.statistics()


@pytest.fixture(scope="module")
def shard() -> Iterator[Served]:
    """A shard that outlives every test of this module, so that what one leaves behind the next ones meet."""
    with ExitStack() as stack:
        keys = [key_of("a", (KEY_BYTES // 4,), SLOTS), key_of("b", (7,), SLOTS), table_of("t", (ROWS, 6), SLOTS)]
        keys.append(given_key(msgspec.structs.replace(table_of("free", (ROWS, 6), SLOTS), slots=(SPARE,))))
        keys.append(msgspec.structs.replace(key_of("whole", (9,), SLOTS), whole=True, slots=()))
        link = LinkSettings(silence_s=20.0)
        description = store_of(keys, slots=SLOTS + 1, shards=1, hyper={"lr": 1.0})
        description, servers = stack.enter_context(served(description, link))
        clients = []
        for slot in range(SLOTS):
            clients.append(NamedClient(description, slot, settings=link))
            stack.callback(clients[-1].close)
        yield Served(description, servers[0], clients)


@pytest.fixture(autouse=True)
def _honest_training_goes_on(shard: Served) -> Iterator[None]:
    shard.train()
    yield
    shard.train()


def push_of(*, frame: int = 1, **changes: int) -> Push:
    """A push of key `b`, which is slice 3 of its bucket, at step 0, with other fields where a test says so."""
    found: Push = changed_rows(a_push(DENSE, [28], first=LAST), changes, frame=frame)
    return found


def header(**fields: object) -> bytes:
    return PREFIX + msgspec.msgpack.encode(fields)


def push_header(count: object, *more: object) -> bytes:
    """That of a push, with any count and more in its row."""
    return header(type="push", frame=1, segments=[[0, 0, DENSE, 0, 0, False, LAST, count, 28, *more]])


MALFORMED: dict[str, list[bytes]] = {
    "no parts but an empty one": [b""],
    "random bytes": [np.random.Generator(np.random.Philox(key=5)).bytes(1000)],
    "another protocol": [b"GET / HTTP/1.1\r\nHost: shard\r\n\r\n"],
    "the magic alone": [MAGIC],
    "another format version": [MAGIC + bytes([FORMAT_VERSION + 1]) + msgspec.msgpack.encode({"type": "ping"})],
    "a truncated header": [bytes(encode(push_of())[0])[:-3], bytes(28)],
    "bytes after the header": [bytes(encode(Ping())[0]) + b"\0"],
    "a header above its limit": [PREFIX + bytes(MAX_HEADER_BYTES)],
    "three parts": [bytes(encode(Ping())[0]), b"", b""],
    "a thousand parts": [b"x"] * 1000,
    "a payload where none belongs": [bytes(encode(Ping())[0]), b"payload"],
    "no payload where one belongs": [bytes(encode(push_of())[0])],
    "an unknown message": [header(type="execute", code="import os")],
    "a norm that is text": [header(type="commit", request=1, step=0, norm="1", finite=True)],
    "a commit that is neither finite nor not": [header(type="commit", request=1, step=0, norm=1.0, finite=1)],
    "no type": [header(frame=1)],
    "an unknown field": [header(type="ping", extra=1)],
    "a reply": [bytes(encode(Welcome(1, bytes(16), 5000))[0])],
    "a count that is not a number": [push_header(float("nan")), bytes(28)],
    "a count that is infinite": [push_header(float("inf")), bytes(28)],
    "a fraction of a slice": [push_header(0.5), bytes(28)],
    "a negative count": [push_header(-1), bytes(28)],
    "a count of 2**64 - 1": [push_header(2**64 - 1), bytes(28)],
    "a count of nothing": [push_header(0), bytes(28)],
    "a row that is too long": [push_header(1, 1), bytes(28)],
    "a row that is too short": [header(type="push", frame=1, segments=[[0, 0, DENSE]]), bytes(28)],
    "no segment": [header(type="push", frame=1, segments=[]), b""],
    "a pull of no segment": [header(type="pull", asks=[[1, 0, False, 0, False, False, []]])],
    "more segments than a message may have": [header(type="cancel", request=[1] * 5000)],
    "a list that claims 2**32 - 1 entries": [PREFIX + b"\x82\xa4type\xa6cancel\xa7request\xdd\xff\xff\xff\xff"],
    "a map that claims 2**32 - 1 entries": [PREFIX + b"\xdf\xff\xff\xff\xff"],
    "a string that claims 4 GiB": [PREFIX + b"\x81\xa4type\xdb\xff\xff\xff\xff"],
    "lists in lists in lists": [PREFIX + b"\x91" * 100_000],
    "maps in maps in maps": [PREFIX + b"\x82\xa4type\xa6cancel\xa7request" + b"\x81\xa1x" * 20_000 + b"\xc0"],
    "an extension type": [PREFIX + b"\xc7\x04\x01\x00\x00\x00\x00"],
    "a name that is no text": [PREFIX + b"\x81\xa4type\xa4\xff\xfe\xfd\xfc"],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_refused_and_counted(shard: Served, name: str) -> None:
    before = shard.statistics()["malformed_messages"]
    with raw_peer(shard.endpoint) as peer:
        peer.send(MALFORMED[name])
        assert peer.hear(Refused).code is RefusalCode.MALFORMED
    assert shard.statistics()["malformed_messages"] == before + 1


def chunk_of(ids: Sequence[int], *, row_bytes: int = ROW_BYTES) -> bytes:
    return np.array(ids, np.int64).tobytes() + bytes(row_bytes * len(ids))


def many_runs(request: int) -> Pull:
    """A pull of as many segments as a message may have, which waits for ever."""
    return Pull([(request, 2**40, False, Reading.OWN, False, [(DENSE, 0, 1, 0)] * MAX_ENTRIES)])


@pytest.mark.parametrize("message", [push_of(), pull_of(1, 0, 0), Barrier(1, 0, []), Ping(), Why([1]), Bye()])
def test_nothing_is_heard_before_a_hello(shard: Served, message: Push | Pull | Barrier | Ping | Why | Bye) -> None:
    before = shard.statistics()["unknown_link_messages"]
    with raw_peer(shard.endpoint) as peer:
        peer.say(message, bytes(28) if isinstance(message, Push) else None)
        assert peer.hear(Refused).code is RefusalCode.UNKNOWN_LINK
    assert shard.statistics()["unknown_link_messages"] == before + 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"job": "another"}, RefusalCode.UNKNOWN_JOB),
        ({"term": 0}, RefusalCode.STALE_TERM),
        ({"term": 2}, RefusalCode.UNKNOWN_JOB),
        ({"description": bytes(16)}, RefusalCode.OTHER_DESCRIPTION),
        ({"shard": 1}, RefusalCode.OTHER_DESCRIPTION),
        ({"slot": SLOTS + 1}, RefusalCode.NO_SUCH_SLOT),
        ({"slot": 2**63 - 1}, RefusalCode.NO_SUCH_SLOT),
        ({"slot": 0, "incarnation": 0}, RefusalCode.STALE_INCARNATION),
        ({"slot": 0}, RefusalCode.BUSY),
    ],
)
def test_a_hello_that_does_not_agree_is_refused_and_counted(
    shard: Served, changes: dict[str, object], code: RefusalCode
) -> None:
    """Another job's, another term's, another description's, an older incarnation's; and a slot that is taken."""
    before = shard.statistics()["refused_requests"]
    with raw_peer(shard.endpoint) as peer:
        answer = peer.greet(msgspec.structs.replace(hello_of(shard.description, SPARE), **changes))
        assert isinstance(answer, Refused)
        assert answer.code is code
        peer.say(push_of(), bytes(28))
        assert peer.hear(Refused).code is RefusalCode.UNKNOWN_LINK
    assert shard.statistics()["refused_requests"] == before + 1


def test_frames_of_an_older_incarnation_are_refused() -> None:
    """In a second store: slot 1 is filled anew while its old process is still connected and goes on pushing."""
    key = key_of("w", (4,), SLOTS)
    description = store_of([key], slots=SLOTS, shards=1, job="fenced", hyper={"lr": 1.0})
    old, new = np.full(4, 1e6, np.float32), np.full(4, 2.0, np.float32)
    push = a_push(0, [16])
    with (
        served(description) as (description, (server,)),
        raw_peer(server.endpoint) as ghost,
        clients_of(description, LinkSettings()) as clients,
    ):
        clients[1].close()
        assert isinstance(ghost.greet(hello_of(description, 1, incarnation=2)), Welcome)
        ghost.say(push, old.tobytes())
        ghost.hear(Acknowledge)
        first = clients[0].pull("w", 0).result(WAIT_S)
        successor = NamedClient(description, 1, incarnation=3)
        try:
            successor.pull("w", 0).result(WAIT_S)
            before = server.statistics()
            ghost.say(msgspec.structs.replace(push, frame=2), old.tobytes())
            assert ghost.hear(Refused).code is RefusalCode.UNKNOWN_LINK
            answer = ghost.greet(msgspec.structs.replace(hello_of(description, 1, incarnation=2), session=2))
            assert isinstance(answer, Refused)
            assert answer.code is RefusalCode.STALE_INCARNATION
            successor.push("w", 0, new).result(WAIT_S)
            clients[0].push("w", 0, np.ones(4, np.float32)).result(WAIT_S)
            assert clients[0].pull("w", 1).result(WAIT_S).tolist() == (first - np.float32(3)).tolist()
            after = server.statistics()
            for name in ("refused_requests", "unknown_link_messages"):
                assert after[name] == before[name] + 1
        finally:
            successor.close()


@pytest.mark.parametrize("step", [1, 3, 2**63 - 1])
def test_a_push_by_a_slot_that_does_not_contribute_is_refused_and_counted(shard: Served, step: int) -> None:
    before = shard.statistics()["refused_requests"]
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        peer.say(push_of(frame=9, step=step), bytes(28))
        refused = peer.hear(PushRefused)
        assert (refused.frame, refused.segment) == (9, 0)
        assert f"slot {SPARE}, key 'b', slice 0, step {step}" in refused.reason
    assert shard.statistics()["refused_requests"] == before + 1


def test_chunks_of_a_push_may_come_in_any_order_and_again() -> None:
    """In a second store, by hand: the slot is in when all have come; those that contradict what came are refused."""
    description = store_of([table_of("t", (ROWS, 6), 1)], slots=1, shards=1, job="chunks", hyper={"lr": 1.0})
    rows = np.arange(70, dtype=np.int64)
    values = np.ones((70, 6), np.float32)

    def chunk(number: int) -> bytes:
        part = slice(32 * number, 32 * (number + 1))
        return rows[part].tobytes() + values[part].tobytes()

    def push(number: int, frame: int, payload: bytes, **changed: Any) -> Push:
        return a_push(0, [len(payload)], **{"first": number, "chunks": 3, "frame": frame, **changed})

    with served(description) as (description, (server,)):
        with raw_peer(server.endpoint) as peer:
            assert isinstance(peer.greet(hello_of(description, 0)), Welcome)
            for frame, number in enumerate([2, 0, 2, 0], 1):
                peer.say(push(number, frame, chunk(number)), chunk(number))
                assert peer.hear(Acknowledge).frame == [frame]
            peer.say(push(0, 5, chunk(0), chunks=4), chunk(0))
            assert "a push of 3 chunks before and of 4 now" in peer.hear(PushRefused).reason
            assert peer.hear(Acknowledge).frame == [5]
            wrong = (rows[:32] + 60).tobytes() + values[:32].tobytes()
            peer.say(push(1, 6, wrong), wrong)
            assert "rows of its chunks do not ascend" in peer.hear(PushRefused).reason
            assert peer.hear(Acknowledge).frame == [6]
            peer.say(Barrier(1, 0, [0]))
            assert "pushed before and declares nothing" in peer.hear(Failed).reason
            peer.say(push(1, 7, chunk(1)), chunk(1))
            assert peer.hear(Acknowledge).frame == [7]
            peer.say(push(1, 8, chunk(1)), chunk(1))
            assert peer.hear(Acknowledge).frame == [8]
            peer.say(pull_of(3, 0, 1, chunks=1))
            peer.say(a_push(0, [24], payload_kind=2, request=3, chunks=1, frame=9), np.int64([0, 69, 70]).tobytes())
            assert column(peer.hear(Values), "version") == [1]
            peer.say(Bye())
        with clients_of(description, LinkSettings()) as (client,):
            first = shard_first(description)
            found = client.pull("t", 1, np.array([0, 33, 69, 70])).result(WAIT_S)
            assert (first[[0, 33, 69, 70]] - found)[:, 0].round(5).tolist() == [1.0, 1.0, 1.0, 0.0]


def shard_first(description: StoreDescription) -> Array:
    with NamedStore(description) as store:
        return store.pull("t", 0, ALL_ROWS).result(WAIT_S)


def test_a_member_that_sets_without_end_is_refused(shard: Served) -> None:
    """Of values that wait, one for each of two versions is held at most, however often they are set."""
    payload = chunk_of([1, 2])
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for frame, (version, told) in enumerate(
            [(0, None), (2, None), (3, None), (2, None), (4, "wait for"), (9, "8")], 1
        ):
            peer.say(
                a_push(FREE, [len(payload)], payload_kind=1, request=frame, step=version, chunks=1, frame=frame),
                payload,
            )
            if told is not None:
                assert told in peer.hear(PushRefused).reason
            assert peer.hear(Acknowledge).frame == [frame]
        assert shard.server.statistics()["waiting_sets"] == 2


def test_pulls_that_are_given_up_leave_nothing(shard: Served) -> None:
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for request in range(1, 1000):
            peer.say(pull_of(request, TABLE, 2**40, chunks=1))
            peer.say(a_push(TABLE, [8 * ROWS], payload_kind=2, request=request, chunks=1), ALL_ROWS.tobytes())
            peer.say(Cancel([request]))
        peer.wait_until_read()
        job = shard.server._core.job
        waits = open_pulls(job.tables[TABLE])
        assert len(waits) <= 130
        assert all(wait.rows is None for wait in waits if wait.dropped)
        assert [one.ids_bytes for one in shard.server._core.peers.values()] == [0, 0, 0]


def test_runs_that_wait_are_bounded_however_few_pulls_have_them(shard: Served) -> None:
    """And those that are given up make room."""
    before = shard.statistics()["malformed_messages"]
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for request in range(1, 20):
            peer.say(many_runs(request))
            peer.say(Cancel([request]))
        for request in range(20, 36):
            peer.say(many_runs(request))
        peer.wait_until_read()
        assert shard.statistics()["malformed_messages"] == before
        peer.say(pull_of(36, DENSE, 2**40))
        failed = peer.hear(Failed)
        assert (failed.request, failed.code) == (36, FailureCode.REFUSED)
        assert "65536 ranges of slices are asked for already" in failed.reason
        peer.say(Cancel([20]))
        peer.say(pull_of(37, DENSE, 0))
        assert column(peer.hear(Values), "request") == [37], "the others are as they were"
    assert shard.statistics()["malformed_messages"] == before


def test_ids_that_wait_are_bounded(shard: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.shard.merger.MAX_IDS_BYTES", 3 * 8 * ROWS)
    before = shard.statistics()["malformed_messages"]
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for request in range(1, 5):
            peer.say(pull_of(request, TABLE, 2**40, chunks=1))
            peer.say(a_push(TABLE, [8 * ROWS], payload_kind=2, request=request, chunks=1), ALL_ROWS.tobytes())
        failed = peer.hear(Failed)
        assert (failed.request, failed.code) == (4, FailureCode.REFUSED)
        assert "bytes of ids of pulls wait already" in failed.reason
    assert shard.statistics()["malformed_messages"] == before


def tcp(endpoint: str) -> socket.socket:
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


FRAME_OF_4_EIB = b"\x02" + (1 << 62).to_bytes(8, "big")
FRAME_ABOVE_THE_LIMIT = b"\x02" + (MAX_FRAME_BYTES + MAX_HEADER_BYTES + 1).to_bytes(8, "big")
GREETED = ZMTP_GREETING + ZMTP_READY


@pytest.mark.parametrize(
    "content",
    [
        np.random.Generator(np.random.Philox(key=6)).bytes(1 << 16),
        bytes(1 << 16),
        ZMTP_GREETING + bytes(200),
        ZMTP_GREETING[:12] + b"PLAIN" + ZMTP_GREETING[17:],
        GREETED + FRAME_OF_4_EIB + bytes(1000),
        GREETED + FRAME_ABOVE_THE_LIMIT + bytes(1000),
    ],
    ids=["random", "zeros", "bad handshake", "other mechanism", "frame of 4 EiB", "frame above the limit"],
)
def test_a_stranger_on_tcp_is_cut_off(shard: Served, content: bytes) -> None:
    with tcp(shard.endpoint) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(content)
        while stranger.recv(4096):  # ends by a close or a reset; a shard that does neither is a timeout
            pass


def test_half_open_connections_are_harmless(shard: Served) -> None:
    """Silent, of another protocol, within the greeting, before READY, after it, and within a frame that never ends."""
    http = b"GET / HTTP/1.1\r\n\r\n"
    starts = [b"", http, ZMTP_GREETING[:11], ZMTP_GREETING, GREETED, GREETED + b"\x00\xff" + bytes(10)]
    with ExitStack() as stack:
        for start in starts * 40:
            stack.enter_context(tcp(shard.endpoint)).sendall(start)
        for _ in range(3):
            shard.train()


def test_a_flood_of_pings_that_nobody_reads_the_answers_to(shard: Served) -> None:
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for _ in range(20_000):
            peer.say(Ping())
        for _ in range(5):
            shard.train()
        peer.hear(Pong)


def test_a_flood_of_pulls_whose_values_are_never_acknowledged(shard: Served) -> None:
    """The values beyond the credit stay on the shard, and the honest clients' are not behind them."""
    with raw_peer(shard.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(shard.description, SPARE)), Welcome)
        for first in range(0, 20_000, 1000):
            segments = [(DENSE, 0, LAST + 1, 0)]
            asks = [(first + at, 0, False, Reading.OWN, False, segments) for at in range(1000)]
            peer.say(Pull(asks))
        for _ in range(5):
            shard.train()
        assert shard.statistics()["in_flight_bytes"] <= 3 * (4 << 20)


@pytest.fixture(scope="module")
def honest_messages(shard: Served) -> list[list[bytes]]:
    """One of each thing that a client says."""
    hello: Hello = hello_of(shard.description, SPARE)
    said = [hello, pull_of(1, 0, 0), Barrier(1, 0, []), Cancel([1]), Why([1]), Ping(), Acknowledge([1])]
    return [[bytes(part) for part in encode(each)] for each in said] + [
        [bytes(part) for part in encode(push_of(), bytes(28))]
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_messages_never_stop_a_shard(
    shard: Served, honest_messages: list[list[bytes]], data: st.DataObject
) -> None:
    """Any bytes of any message may change, parts may be lost, added or swapped; the last word shows that it listens."""
    with raw_peer(shard.endpoint) as peer:
        peer.send(honest_messages[0])
        for _ in range(data.draw(st.integers(1, 6))):
            parts = [bytearray(part) for part in data.draw(st.sampled_from(honest_messages))]
            for part in parts:
                for _ in range(data.draw(st.integers(0, 3))):
                    if part:
                        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
            parts = data.draw(st.permutations(parts + data.draw(st.lists(st.binary(max_size=20), max_size=1))))
            peer.send([bytes(part) for part in parts])
        peer.send([b"last word"])
        while "last" not in peer.hear(Refused).reason:
            pass
