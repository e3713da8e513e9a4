"""The shard's core, spoken to message by message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of, table_of
from store_raw import column, pull_of, push_of
from store_simulation import run_shard
from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.rows.storage import RowStorage
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import MAX_FAILED
from weft_kvstore.wire.codec import decode_reply, encode
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
    RefusalCode,
    Refused,
    Values,
    Welcome,
)

SIZE = 256
"""Elements of a key: one slice of 1 KiB. Key n is slice n of the only bucket."""


def a_store(keys: int = 1, slots: int = 2, rule: str = "sgd") -> StoreDescription:
    return store_of([key_of(f"k{n}", [SIZE], slots) for n in range(keys)], slots=slots, shards=1, rule=rule)


class Shard:
    """A shard's core with every slot welcomed. `say` gives the answers that leave before anything is merged."""

    def __init__(self, description: StoreDescription, settings: LinkSettings | None = None) -> None:
        self.core = ShardCore(bytes(16), settings or LinkSettings())
        self.core.open(JobShard(description, 0))
        for slot in range(description.slots):
            hello = Hello("job", 1, slot, 1, bytes([slot]) * 16, 1, digest(description))
            self.say(slot, hello)

    def say(
        self, slot: int, message: Message, payload: bytes | None = None, now: float = 0.0, number: int = 0
    ) -> list[Any]:
        self.core.receive(bytes([slot]), encode(message, payload, number), now)
        return self.flush()

    def flush(self) -> list[Any]:
        self.core.flush(0.0)
        sent, self.core.links.outgoing = self.core.links.outgoing, []
        return [decode_reply(parts)[0] for _, parts in sent]

    def work(self) -> list[Any]:
        while self.core.work.work_once():
            pass
        return self.flush()

    def push(self, slot: int, step: int, keys: Sequence[int] = (0,)) -> list[Any]:
        ones = np.ones(SIZE * len(keys), np.float32).tobytes()
        return self.say(slot, push_of(0, [SIZE * 4] * len(keys), first=keys, frame=step + 1, step=step), ones)

    def pull(self, slot: int, version: int, request: int = 1, state: int = 0) -> list[Any]:
        return self.say(slot, pull_of(request, 0, version, state=state))


def of(kind: type[Message], messages: list[Any]) -> list[Any]:
    return [one for one in messages if isinstance(one, kind)]


def test_steps_complete_in_one_burst_answer_every_pull() -> None:
    shard = Shard(a_store(slots=1))
    assert not of(Values, shard.pull(0, version=2))
    sent = [message for step in range(4) for message in shard.push(0, step)]
    (values,) = of(Values, [*sent, *shard.work()])
    assert column(values, "request") == [1]


def test_a_refused_declaration_changes_no_key() -> None:
    shard = Shard(a_store(keys=2))
    shard.push(0, 0, keys=[1])
    (failed,) = of(Failed, shard.say(0, Barrier(1, 0, [0, 1])))
    assert "'k1'" in failed.reason
    shard.push(0, 0, keys=[0])
    shard.push(1, 0, keys=[0, 1])
    shard.work()
    for key in (0, 1):
        (values,) = of(Values, shard.say(1, pull_of(9 + key, 0, 1, first=key)))
        assert column(values, "version") == [1]


def test_a_refused_run_takes_no_other_with_it() -> None:
    shard = Shard(a_store(keys=2, slots=2))
    shard.say(0, Barrier(1, 0, [1]))
    (refused,) = of(PushRefused, shard.push(0, 0, keys=[0, 1]))
    assert refused.segment == 1
    shard.push(1, 0, keys=[0])
    shard.work()
    assert of(Values, shard.pull(0, version=1))


def test_numbered_messages_are_taken_in_order_and_once_and_a_missing_one_ends_the_connection() -> None:
    description = a_store(slots=1)
    shard = Shard(description)
    shard.core.links.disconnect(bytes([0]))
    hello = Hello("job", 1, 0, 1, bytes(16), 2, digest(description))
    welcomes = [*shard.say(0, hello, number=1), *shard.say(0, hello, number=1)]
    assert [type(one) for one in welcomes] == [Welcome, Welcome]
    assert welcomes[0] == welcomes[1]
    assert shard.say(0, Ping(), number=2) == [Pong()]
    assert shard.say(0, Ping(), number=2) == shard.say(0, hello, number=1) == []
    (refused,) = shard.say(0, Ping(), number=4)
    assert refused == Refused(RefusalCode.UNKNOWN_LINK, "message 3 of this connection did not come before message 4")
    (refused,) = shard.say(0, Ping(), number=3)
    assert refused.code is RefusalCode.UNKNOWN_LINK
    assert not shard.core.peers


def test_a_hello_that_is_repeated_does_not_begin_a_connection_again_that_was_lost() -> None:
    """What its client says next would be of before: an acknowledgement of what is to be sent again ends the link."""
    description = a_store(slots=1)
    shard = Shard(description)
    hello = Hello("job", 1, 0, 1, bytes(16), 2, digest(description))
    lost, other = bytes([8]), bytes([9])

    def say(identity: bytes) -> Message:
        shard.core.receive(identity, encode(hello, None, 1), 0.0)
        (answer,) = shard.flush()
        assert isinstance(answer, Message)
        return answer

    assert isinstance(say(lost), Welcome)
    assert isinstance(say(lost), Welcome), "it may not have come"
    shard.core.links.disconnect(lost)
    answer = say(lost)
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.UNKNOWN_LINK
    hello = msgspec.structs.replace(hello, session=3)
    assert isinstance(say(other), Welcome)


def test_bytes_under_way_to_a_peer_that_was_lost_are_not_written() -> None:
    """The socket may still read them: a peer that stalls and resumes would get half of a later step."""
    shard = Shard(a_store(slots=2))
    shard.core.receive(bytes([0]), encode(pull_of(1, 0, 0)), 0.0)
    shard.core.flush(0.0)
    (frame,) = [parts for _, parts in shard.core.links.outgoing if len(parts) == 2]
    before = bytes(frame[1])
    shard.core.links.disconnect(bytes([0]))
    description = a_store(slots=2)
    shard.say(0, Hello("job", 1, 0, 1, bytes(16), 2, digest(description)))
    for slot in (0, 1):
        shard.push(slot, 0)
    shard.work()
    (values,) = of(Values, shard.pull(1, version=1))
    assert column(values, "version") == [1]
    assert bytes(frame[1]) == before


def test_pulls_of_the_state_take_no_memory_of_their_own() -> None:
    shard = Shard(a_store(slots=1, rule="momentum"), LinkSettings(credit_bytes=64, frame_bytes=64))
    for request in range(1, 50):
        shard.pull(0, version=0, request=request, state=1)
    peer = shard.core.peers[bytes([0])]
    left, waiting = peer.outbox.clear()
    assert (len(left), len(waiting)) == (1, 48), "one is under way, as the credit allows"
    assert len({id(one.source) for one in waiting}) == 1


def test_what_was_pulled_and_is_cancelled_does_not_leave() -> None:
    shard = Shard(a_store(slots=1), LinkSettings(credit_bytes=64, frame_bytes=64))
    assert of(Values, shard.pull(0, version=0, request=1)), "alone, it may exceed the credit"
    shard.pull(0, version=0, request=2)
    peer = shard.core.peers[bytes([0])]
    assert peer.outbox.queued_slices == 1
    shard.say(0, Cancel([2]))
    assert peer.outbox.queued_slices == 0


def test_of_pulls_that_failed_the_last_ones_are_kept_until_they_are_cancelled() -> None:
    shard = Shard(a_store(slots=1))
    shard.push(0, step=0)
    shard.work()
    for request in range(1, MAX_FAILED + 3):
        shard.say(0, pull_of(request, 0, 0, reading=Reading.EXACT))
    peer = shard.core.peers[bytes([0])]
    assert list(peer.failed) == list(range(3, MAX_FAILED + 3))
    shard.say(0, Cancel([3, 4]))
    assert len(peer.failed) == MAX_FAILED - 2


def test_a_pull_that_is_cancelled_half_sent_pins_nothing_once_its_client_has_come_back() -> None:
    description = a_store(keys=2, slots=1)
    shard = Shard(description, LinkSettings(credit_bytes=4 * SIZE, frame_bytes=4 * SIZE))
    assert of(Values, shard.say(0, pull_of(1, 0, 0, count=2)))
    peer = shard.core.peers[bytes([0])]
    (frame,) = peer.outbox.frames.values()
    (segment,) = frame.segments
    assert peer.outbox.waiting
    shard.say(0, Cancel([1]))
    assert not peer.outbox.waiting
    assert segment.owner.block.pinned.any()
    shard.core.links.disconnect(bytes([0]))
    shard.say(0, Hello("job", 1, 0, 1, bytes(16), 2, digest(description)))
    shard.say(0, Cancel([0]))
    shard.say(0, Acknowledge([*peer.outbox.frames]))
    assert not segment.owner.block.pinned.any()


IDS = np.array([1], np.int64).tobytes()


def told(core: ShardCore, monkeypatch: pytest.MonkeyPatch, *messages: tuple[Message, bytes | None]) -> Refused:
    """What the client of a table is told, where the shard finds no memory to read rows."""

    def none(*_: object, **__: object) -> None:
        raise MemoryError("no memory for rows")

    description = store_of([table_of("t", [8, 4], 1)], slots=1, shards=1)
    core.open(JobShard(description, 0))
    monkeypatch.setattr(RowStorage, "read", none)
    hello = Hello("job", 1, 0, 1, bytes(16), 1, digest(description))
    for message, payload in ((hello, None), *messages):
        run_shard(core, partial(core.receive, b"link", encode(message, payload), 1.0))
        while core.work.queue:
            run_shard(core, core.work.work_once)
    (refused,) = of(Refused, [decode_reply(parts)[0] for _, parts in core.links.outgoing])
    assert "no memory to answer a pull of key 't'" in refused.reason
    assert (core.job, core.peers, len(core.work.queue)) == (None, {}, 0)
    return refused


def test_a_job_that_fails_in_one_of_its_own_messages_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lost connection has nothing to be sent: it must not come among those that have."""
    core = ShardCore(bytes(16), LinkSettings(same_host=False))
    pull = pull_of(1, 0, 0, count=0, chunks=1), None
    refused = told(core, monkeypatch, pull, (push_of(0, [8], payload_kind=2, request=1, chunks=1), IDS))
    assert not core.wants_flush()
    assert refused.code is RefusalCode.CLOSED
    core.close("again")


def test_a_pull_of_rows_that_ends_the_job_leaves_those_behind_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls = [(pull_of(request, 0, 1, count=0, chunks=1), None) for request in (1, 2)]
    asked = [(push_of(0, [8], frame=one, payload_kind=2, request=one, chunks=1), IDS) for one in (1, 2)]
    row = np.int64(5).tobytes() + np.ones(4, np.float32).tobytes()
    core = ShardCore(bytes(16), LinkSettings(same_host=False))
    told(core, monkeypatch, *pulls, *asked, (push_of(0, [8 + 16], frame=3, chunks=1), row))


def test_a_shard_serves_one_job() -> None:
    core = ShardCore(bytes(16), LinkSettings())
    core.open(JobShard(a_store(slots=1), 0))
    with pytest.raises(StoreError, match="serves job 'job' already"):
        core.open(JobShard(a_store(slots=1), 0))


def test_a_cancel_looks_at_nothing_but_the_answers_to_its_requests() -> None:
    class Watched(list[Any]):
        looks = 0

        def __iter__(self) -> Any:
            self.looks += 1
            return super().__iter__()

    shard = Shard(a_store(slots=1), LinkSettings(credit_bytes=64, frame_bytes=64))
    for request in range(1, 20):
        shard.pull(0, version=0, request=request)
    outbox = shard.core.peers[bytes([0])].outbox
    watched = outbox._heap = Watched(outbox._heap)
    shard.say(0, Cancel(list(range(100, 1100))))
    shard.say(0, Cancel([3, 4]))
    assert watched.looks == 0
    assert outbox.queued_bytes == 16 * SIZE * 4
