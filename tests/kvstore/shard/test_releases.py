"""What a shard reads of its clients' memory, what they may read of it, and until when."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from store_cluster import constant, key_of, store_of
from store_simulation import run_shard
from weft_kvstore.arrays import Array
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.description.check import digest
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Peer
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Acknowledge,
    Bye,
    Done,
    Hello,
    Message,
    PayloadKind,
    Pull,
    Push,
    Reading,
    RefusalCode,
    Refused,
    Released,
    Values,
    Welcome,
)

ELEMENTS = SharedMemory.least_bytes // 4
NBYTES = SharedMemory.least_bytes
BOOT = bytes(range(16))


class Shard:
    """A core of two slots that push one slice of ones to `w`, in their memory, whose value is 0 at first."""

    def __init__(self) -> None:
        self.core = ShardCore(BOOT, LinkSettings())
        self.arenas: dict[tuple[bytes, int], Array] = {}
        """Clients' memories: as a client's own they can be written, as the shard's only read."""
        self.core.links.arenas = self.arenas
        key = constant(key_of("w", (ELEMENTS,), 2), 0.0)
        description = store_of([key], slots=2, shards=1, hyper={"lr": 0.5}, slice_bytes=NBYTES)
        self.core.open(JobShard(description, 0, make_shared=lambda nbytes: SharedMemory(nbytes, 1 << 20)))
        self.digest = digest(description)
        self.identities: dict[int, bytes] = {}
        self.memories: dict[int, Array] = {}

    def hello(self, slot: int, session: int, process: int = 0, boot: bytes = b"") -> list[Message]:
        self.identities[slot] = bytes([slot, session, process])
        hello = Hello("job", 1, slot, 1, bytes([process]) * 16, session, self.digest, boot=boot)
        self.memories[slot] = np.ones(ELEMENTS, np.float32)
        read_only = self.memories[slot].view(np.uint8)
        read_only.flags.writeable = False
        self.arenas[hello.process, session] = read_only
        return self.say(slot, hello)

    def peer(self, slot: int) -> Peer:
        return self.core.peers[self.identities[slot]]

    def say(self, slot: int, message: Message, payload: bytes | None = None) -> list[Message]:
        """What leaves for the slot then."""
        run_shard(self.core, lambda: self.core.receive(self.identities[slot], encode(message, payload), 0.0))
        return self.heard(slot)

    def heard(self, slot: int) -> list[Message]:
        while self.core.work.work_once():
            pass
        if self.core.wants_flush():
            self.core.flush(0.0)
        sent, rest = [], []
        for identity, parts in self.core.links.outgoing:
            (sent if identity == self.identities[slot] else rest).append((identity, parts))
        self.core.links.outgoing = rest
        return [decode_reply(parts)[0] for _, parts in sent]

    def push(self, slot: int, frame: int = 1, step: int = 0) -> list[Message]:
        row = (PayloadKind.GRADIENT, 0, 0, step, 0, 0, 1, NBYTES)
        return self.say(slot, Push(frame, [row], at=[(0, NBYTES)]))

    def pull(self, slot: int) -> Values:
        ask = (9, 0, False, Reading.OWN, False, [(0, 0, 1, 0)])
        (values,) = [one for one in self.say(slot, Pull([ask])) if isinstance(one, Values)]
        return values

    @property
    def values(self) -> list[float]:
        assert self.core.job is not None
        ((_, _, elements),) = self.core.job.buckets[0].update.values.elements(0, 1)
        return sorted(set(elements.tolist()))

    @property
    def pinned(self) -> bool:
        assert self.core.job is not None
        ((*_, block, _, _),) = self.core.job.buckets[0].update.values.sections(0, 1)
        return bool(block.pinned.any())


@pytest.fixture
def shard() -> Shard:
    shard = Shard()
    for slot in (0, 1):
        (welcome,) = shard.hello(slot, 1, process=slot)
        assert isinstance(welcome, Welcome)
    return shard


def test_a_frame_is_released_once_its_step_is_merged(shard: Shard) -> None:
    assert shard.push(0) == [Acknowledge([1])]
    assert sorted(map(repr, shard.push(1))) == sorted(map(repr, [Released([1]), Acknowledge([1])]))
    assert shard.heard(0) == [Released([1])]
    assert not shard.core.links.in_place


def test_what_is_pushed_again_is_released_with_the_first(shard: Shard) -> None:
    shard.push(0)
    assert shard.push(0, frame=2) == [Acknowledge([2])]
    shard.push(1)
    assert shard.heard(0) == [Released([1, 2])]


def test_what_was_read_of_it_is_copied_at_a_new_connection(shard: Shard) -> None:
    shard.push(0)
    old = shard.memories[0]
    shard.hello(0, 2)
    old[...] = 1000
    assert not shard.core.links.in_place
    shard.push(1)
    assert shard.values == [-1.0]


@pytest.mark.parametrize("how", ["bye", "replaced"])
def test_so_it_is_where_the_process_has_left(shard: Shard, how: str) -> None:
    shard.push(0)
    old = shard.memories[0]
    if how == "bye":
        shard.say(0, Bye())
    else:
        shard.core.links.disconnect(shard.identities[0])
        assert isinstance(shard.hello(0, 1, process=7)[0], Welcome)
    old[...] = 1000
    assert not shard.core.links.in_place
    shard.push(1)
    assert shard.values == [-1.0]


def test_a_process_that_another_has_replaced_is_not_welcome_again(shard: Shard) -> None:
    """What it had under way is lost: acknowledged ids of rows, for one, are not sent again."""
    shard.core.links.disconnect(shard.identities[0])
    assert isinstance(shard.hello(0, 1, process=7)[0], Welcome)
    shard.core.links.disconnect(shard.identities[0])
    (refused,) = shard.hello(0, 2, boot=BOOT)
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.STALE_INCARNATION
    assert "slot 0: another process has had it since" in refused.reason
    assert isinstance(shard.hello(0, 2, process=7, boot=BOOT)[0], Welcome), "the other one has it still"


def test_a_process_that_another_shard_has_welcomed_is_new_here(shard: Shard) -> None:
    shard.say(0, Bye())
    assert isinstance(shard.hello(0, 2, boot=bytes(16))[0], Welcome)


@pytest.mark.parametrize("in_memory", [False, True])
def test_values_that_left_for_a_process_that_is_gone_are_pinned_until_it_cannot_read_them(
    shard: Shard, in_memory: bool
) -> None:
    if in_memory:
        shard.core.links.memory_changed()
    assert bool(shard.pull(0).at) == in_memory
    identity = shard.identities[0]
    shard.say(0, Bye())
    assert shard.pinned
    shard.core.links.ended(identity)
    assert shard.pinned, "its end of the shared memory is there"
    shard.arenas.clear()
    shard.core.links.memory_changed()
    assert not shard.pinned


def test_thousands_of_receipts_leave_in_messages_that_a_client_takes(shard: Shard) -> None:
    peer, frames = shard.peer(0), list(range(1, 2 * MAX_ENTRIES + 2))
    peer.released, peer.acknowledge, peer.done = frames.copy(), frames.copy(), frames.copy()
    shard.core.links.waiting[peer] = None
    messages = shard.heard(0)
    for kind in (Done, Released, Acknowledge):
        parts = [message for message in messages if isinstance(message, kind)]
        numbers = [message.request if isinstance(message, Done) else message.frame for message in parts]
        assert [number for some in numbers for number in some] == frames
        assert max(map(len, numbers)) == MAX_ENTRIES
    assert not shard.heard(0)


@pytest.mark.parametrize("what", ["push", "hello", "bye", "malformed"])
def test_what_cannot_be_taken_in_for_lack_of_memory_fails_the_job(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """It would go on with a sum that lacks it, or has what the client writes later."""
    shard = Shard()
    for slot in (0, 1):
        shard.hello(slot, 1, process=slot)
    if what != "push":
        shard.push(0)
    with patch.object(Bucket, "push" if what == "push" else "copy_pending", side_effect=MemoryError("no room")):
        match what:
            case "push":
                shard.push(0)
            case "hello":
                shard.hello(0, 2)
            case "bye":
                shard.say(0, Bye())
            case _:
                shard.say(0, Push(2, [(PayloadKind.GRADIENT, 0, 99, 0, 0, 0, 1, 4)]), bytes(4))
    assert shard.core.job is None
    assert not shard.core.peers
    assert [(one.code, one.reason) for one in shard.heard(1) if isinstance(one, Refused)] == [
        (RefusalCode.CLOSED, "no memory: no room")
    ]
    assert "job 'job' has failed on shard 0: no memory: no room" in caplog.text
