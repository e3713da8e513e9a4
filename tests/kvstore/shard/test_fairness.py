"""Jobs that share a shard: whatever one does, another's messages, merges and answers have their turn, by counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, key_of, store_of
from store_floods import Say, flooding, flooding_job, nonsense, pings, pulls, pushes, small_pushes
from store_raw import hello_of, pull_of
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.merging.work import PIECE_BYTES, Work
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard import inbox as shard_inbox
from weft_kvstore.shard import links as shard_links
from weft_kvstore.shard.account import QUANTUM_BYTES, ActiveJobs, FairQueue
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.inbox import AT_ONCE_BYTES, MOST_LETTERS, Inbox, Letter, letter_of
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import SHARED_BYTES
from weft_kvstore.shard.merger import BYTES_PER_S, LEAST_BYTES, WorkQueue
from weft_kvstore.shard.peer import STRANGERS
from weft_kvstore.wire.codec import decode_reply, encode
from weft_kvstore.wire.messages import MAX_RUNS, Cancel, Ping, Pong, Pull, Refused, Values

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S, same_host=False)
LINKS = 8
RATE = 0.5
SLICE_BYTES = 1 << 16
STEPS = 8


class Counted:
    """A work queue's turns while a job has work: what it had itself, and what others had."""

    def __init__(self, queue: WorkQueue[tuple[str, int]], job: tuple[str, int]) -> None:
        self.own = self.others = 0
        pop = queue.pop

        def counted() -> tuple[tuple[str, int], Work] | None:
            waits = job in queue._lanes
            found = pop()
            if found is not None and found[0] == job:
                self.own += max(found[1].piece_bytes, LEAST_BYTES)
            elif found is not None and waits:
                self.others += max(found[1].piece_bytes, LEAST_BYTES)
            return found

        queue.pop = counted  # type: ignore[method-assign]


@contextmanager
def a_shard() -> Iterator[ShardServer]:
    with ShardServer(settings=LinkSettings(silence_s=WAIT_S), cpu_clock=lambda: 0.0) as server:
        yield server


@pytest.mark.parametrize("say", [pushes, small_pushes, pulls, pings, nonsense], ids=lambda say: say.__name__)
def test_a_job_that_floods_has_no_more_turns_than_the_job_that_it_disturbs(say: Say) -> None:
    """Slowed at most twice: while the small job has something to do, others have as much of the shard as it has."""
    keys = [key_of("large", [1 << 18], 1, priority=5), *(key_of(f"k{n}", [256], 1, priority=9) for n in range(8))]
    description = store_of(keys, slots=1, shards=1, job="victim", slice_bytes=SLICE_BYTES, hyper={"lr": RATE})
    with a_shard() as server:
        flood = flooding_job(server.endpoint, LINKS)
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        server.open(flood, 0)
        server.open(here, 0)
        names = [key.key for key in description.keys]
        gradients = [np.ones(key.shape, np.float32) for key in description.keys]
        with StoreClient(here, 0, settings=LINK) as victim, flooding(flood, say) as flooded:
            first = victim.pull_many(names, 0).result(WAIT_S)
            until = time.monotonic() + WAIT_S
            while not (server._core.is_shared and flooded.said > 10 * LINKS):
                assert time.monotonic() < until
                victim.pull("k0", 0).result(WAIT_S)
            counted = Counted(server._core.work._queue, ("victim", 1))
            pushed = [victim.push_many(names, step, gradients) for step in range(2)]
            for step in range(2, STEPS):
                victim.pull_many(names, step - 1).result(WAIT_S)
                pushed.append(victim.push_many(names, step, gradients))
            last = victim.pull_many(names, STEPS).result(WAIT_S)
            statistics = server.statistics()
        for one in pushed:
            one.result(WAIT_S)
        for before, after in zip(first, last, strict=True):
            expected = before.copy()
            for _ in range(STEPS):
                expected -= np.float32(RATE) * np.float32(1)
            assert np.array_equal(after, expected)
        assert counted.own > STEPS * (1 << 20)
        assert counted.others <= counted.own + 2 * (QUANTUM_BYTES + PIECE_BYTES)
        assert statistics.waiting_messages <= 2 * (MOST_LETTERS + 1)


def test_who_has_used_least_goes_first_and_nobody_saves_up() -> None:
    turns: FairQueue[str] = FairQueue()
    turns.come("a")
    for _ in range(100):
        turns.use("a", QUANTUM_BYTES)
    turns.come("b")
    had = {"a": 0, "b": 0}
    for _ in range(50):
        one = turns.first(["a", "b"])
        turns.use(one, QUANTUM_BYTES // 4)
        had[one] += 1
    assert had["b"] - had["a"] in range(4, 10)  # A quantum or so that it was behind, and then alike.
    turns.come("c")
    turns.use("c", 0)
    assert turns.first(["a", "b", "c"]) == "c"
    turns.drop("c")
    turns.come("c")
    assert turns.first(["b", "c"]) == "c"


class Piece(Work):
    __slots__ = ("_bytes",)

    def __init__(self, nbytes: int, priority: int = 0) -> None:
        super().__init__(priority)
        self._bytes = nbytes

    @property
    def piece_bytes(self) -> int:
        return self._bytes


def counts(queue: WorkQueue[str], pops: int) -> dict[str, int]:
    found = {"a": 0, "b": 0}
    for _ in range(pops):
        popped = queue.pop()
        assert popped is not None
        found[popped[0]] += 1
    return found


def test_tiny_pieces_count_for_what_their_time_is_worth() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(1000):
        queue.put("a", Piece(4, priority=-100))
        queue.put("b", Piece(LEAST_BYTES))
    found = counts(queue, 200)
    assert abs(found["a"] - found["b"]) <= 1


def test_what_takes_long_counts_by_its_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(200):
        queue.put("a", Piece(PIECE_BYTES))
        queue.put("b", Piece(PIECE_BYTES))
    had = {"a": 0, "b": 0}
    for _ in range(110):
        job, one = queue.pop() or ("", Piece(0))
        had[job] += 1
        queue.took(job, one.piece_bytes, (10 if job == "a" else 1) * PIECE_BYTES / BYTES_PER_S)
    assert had["b"] >= 9 * had["a"]
    queue.drop("a")
    queue.took("a", PIECE_BYTES, 1.0)  # The piece that closed its job ends after it.
    assert queue.worked.keys() == {"b"}


def test_a_job_that_says_much_still_merges() -> None:
    queue: WorkQueue[str] = WorkQueue()
    said: list[int] = []
    inbox: Inbox[str] = Inbox(lambda letter: said.append(int(letter.now)))
    for number in range(1000):
        queue.put("a", inbox.put("a", letter_of(b"1", [bytes(200)], float(number))))
        queue.put("a", Piece(100))
    order = []
    while (found := queue.pop()) is not None:
        order.append(found[1].hands_over)
        found[1].step()
        if found[1].todo:
            queue.back("a", found[1])
    assert said == list(range(1000))
    letters = sum(order)
    assert order[: 2 * letters - 1] == [True, False] * (letters - 1) + [True]
    assert len(inbox) == 0


def a_letter(identity: bytes, number: int, nbytes: int = 100) -> Letter:
    return letter_of(identity, [bytes(20), bytes(nbytes)], float(number))


def test_messages_stay_in_order_and_the_loudest_is_known() -> None:
    heard: list[tuple[bytes, float]] = []
    inbox: Inbox[str] = Inbox(lambda letter: heard.append((letter.identity, letter.now)))
    letters = inbox.put("strangers", a_letter(b"x", 0))
    assert inbox.lane_of(b"x") == "strangers"
    assert inbox.lane_of(b"y") is None
    for number in range(1, 4):
        inbox.put("strangers", a_letter(b"x", number))
    inbox.put("strangers", a_letter(b"y", 4))
    assert letters.piece_bytes >= AT_ONCE_BYTES or len(letters.todo) == 5
    inbox.forget(b"y")
    while letters.todo:
        letters.step()
    assert heard == [(b"x", float(number)) for number in range(4)]
    assert inbox.lane_of(b"x") is None
    assert letters.nbytes == 0
    for number in range(MOST_LETTERS):
        inbox.put("a", a_letter(b"loud" if number % 3 else b"calm", number))
        assert inbox.overflows("a") is None
    inbox.put("a", a_letter(b"calm", 0))
    assert inbox.overflows("a") == b"loud"
    inbox.forget(b"loud")
    assert inbox.overflows("a") is None
    inbox.drop("a")
    assert (len(inbox), inbox.lane_of(b"calm")) == (0, None)


def test_a_connection_that_says_much_holds_up_no_other_of_its_job() -> None:
    heard: list[tuple[bytes, int]] = []
    inbox: Inbox[str] = Inbox(lambda letter: heard.append((letter.identity, int(letter.now))))
    flood = [inbox.put("a", letter_of(b"loud", [bytes(1 << 15)], float(number))) for number in range(100)]
    letters = flood[0]
    letters.step()
    assert heard == [(b"loud", 0)], "a piece is one message that costs so much"
    for number in range(5):
        inbox.put("a", a_letter(b"calm", number))
        inbox.put("a", a_letter(b"other", number))
    while letters.todo:
        letters.step()
    others = [number for number, (identity, _) in enumerate(heard) if identity != b"loud"]
    assert others == list(range(1, 11)), "all that the others say costs less than its next message"
    for identity in (b"loud", b"calm", b"other"):
        assert [number for one, number in heard if one == identity] == list(range(100 if identity == b"loud" else 5))
    assert (len(inbox), letters.nbytes) == (0, 0)


def test_connections_of_a_job_are_heard_by_what_their_messages_cost() -> None:
    heard: list[bytes] = []
    inbox: Inbox[str] = Inbox(lambda letter: heard.append(letter.identity))
    for number in range(60):
        letters = inbox.put("a", letter_of(b"large", [bytes(3 << 8)], float(number)))
    for number in range(180):
        inbox.put("a", letter_of(b"small", [bytes(1 << 8)], float(number)))
    large, small = (letter_of(b"", [bytes(size << 8)], 0.0).cost for size in (3, 1))
    while letters.todo:
        letters.step()
    assert sorted(heard) == [b"large"] * 60 + [b"small"] * 180
    had = 0
    for number, identity in enumerate(heard):
        if not {b"large", b"small"} <= set(heard[number:]):
            break
        had += large if identity == b"large" else -small
        assert -small <= had <= large
    assert number > 200, "both had something to say for long"


def test_who_says_one_thing_at_a_time_and_always_the_next_has_no_more_than_a_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a connection has said counts though nothing of it waits any more."""
    monkeypatch.setattr(shard_inbox, "MOST_ENDS", 8)
    heard: list[bytes] = []
    inbox: Inbox[str] = Inbox(lambda letter: heard.append(letter.identity))
    large = bytes(1 << 20)
    letters = inbox.put("a", a_letter(b"honest", 0))
    for number in range(1, 5):
        inbox.put("a", a_letter(b"honest", number))
    for loud in (b"one", b"two", b"three"):
        inbox.put("a", letter_of(loud, [large], 0.0))
    for _ in range(20):
        begun = len(heard)
        letters.step()
        for identity in heard[begun:]:
            if identity != b"honest":
                inbox.put("a", letter_of(identity, [large], 0.0))
    assert heard[:8].count(b"honest") == 5, "all that it says costs less than one message of the others"
    for number in range(20):
        inbox.put("a", a_letter(bytes([number]), number))
    assert len(letters._ends) <= len({one.identity for *_, one in letters.todo}), "what is kept is bounded"


def test_pulls_that_are_given_up_at_once_hold_up_no_other_slot_of_their_job() -> None:
    """Each has as many runs as a message may have, and takes a hundred times as long to open as others to be read."""
    slots, slices = 2, 2 * MAX_RUNS
    keys = [key_of("w", [slices * 16], slots)]
    description = store_of(keys, slots=slots, shards=1, job="flooded", slice_bytes=64)
    core = ShardCore(bytes(16), LinkSettings())
    core.open(JobShard(description, 0))
    for slot in range(slots):
        core.receive(b"%d" % slot, encode(hello_of(description, slot, incarnation=1)), 0.0)
    core.hear(b"stranger", [b"nonsense"], 0.0)
    core.hear(b"1", encode(Ping()), 0.0)
    while core.work_once():
        pass
    assert core.is_shared
    core.outgoing.clear()
    zeros, ones = [0] * MAX_RUNS, [1] * MAX_RUNS
    for request in range(1, 12):
        every_other = list(range(0, slices, 2))
        asked = Pull([request] * MAX_RUNS, zeros, ones, zeros, zeros, every_other, ones, zeros, zeros)
        core.hear(b"0", encode(asked), 0.0)
        core.hear(b"0", encode(Cancel([request])), 0.0)
    assert core.work_once()
    waiting = core.waiting_messages
    core.hear(b"1", encode(Ping()), 0.0)
    while not core.outgoing:
        assert core.work_once()
    assert [(identity, decode_reply(parts)[0]) for identity, parts in core.outgoing] == [(b"1", Pong())]
    assert waiting - core.waiting_messages <= 2, "at most a pull and its cancelling were heard before it"
    while core.work_once():
        pass
    (peer,) = [one for one in core.peers.values() if one.slot == 0]
    assert (peer.pulls, peer.open_entries) == ({}, 0)


def test_jobs_share_for_as_long_as_they_are_heard() -> None:
    active_jobs: ActiveJobs[str] = ActiveJobs()
    assert active_jobs.hear("a")
    assert not active_jobs.is_shared
    assert active_jobs.hear("b")
    assert active_jobs.is_shared
    assert not active_jobs.hear("a")
    active_jobs.tick()
    assert active_jobs.is_shared
    assert not active_jobs.hear("a")
    active_jobs.tick()
    assert not active_jobs.is_shared
    assert active_jobs.hear("b")
    assert active_jobs.is_shared


class Minds:
    """A shard's core with two jobs: "many" with many links, "few" with one, which all have pulled the same."""

    def __init__(self, links: int, size: int = 1 << 20) -> None:
        self.core = ShardCore(bytes(16), LinkSettings(credit_bytes=1 << 20, frame_bytes=1 << 16))
        self.left: dict[bytes, int] = {}
        self.order: list[tuple[bytes, int]] = []
        self.frames: dict[bytes, list[int]] = {}
        for job, slots in (("many", links), ("few", 1)):
            description = store_of([key_of("w", [size], slots)], slots=slots, shards=1, job=job, slice_bytes=1 << 14)
            self.core.open(JobShard(description, 0))
            (bucket,) = self.core.jobs[job, 1].shard.buckets.values()
            for slot in range(slots):
                identity = f"{job}{slot}".encode()
                hello = hello_of(description, slot, incarnation=1)
                self.core.hear(identity, encode(hello), 0.0)
                self.core.hear(identity, encode(pull_of(1, 0, 0, count=len(bucket.state))), 0.0)
        while self.core.work_once():
            pass

    def flush(self) -> int:
        """Frames leave. How many bytes."""
        self.core.flush(0.0)
        sent, self.core.outgoing = self.core.outgoing, []
        total = 0
        for identity, parts in sent:
            reply, payload = decode_reply(parts)
            if isinstance(reply, Values):
                self.order.append((identity, payload.nbytes))
                self.frames.setdefault(identity, []).append(reply.frame)
                total += payload.nbytes
        return total

    def under_way(self, job: str) -> int:
        return sum(peer.outbox.in_flight_bytes for peer in self.core.jobs[job, 1].links.values())

    def arrive(self, identity: bytes) -> None:
        """A link's oldest frame has arrived, and the link is heard."""
        self.core.peers[identity].arrived(self.frames[identity].pop(0), 0.0)
        self.core.links.egress[identity] = self.core.peers[identity]


def test_what_leaves_is_shared_by_jobs_and_not_by_links() -> None:
    cores = Minds(links=16)
    assert cores.core.is_shared
    while cores.flush():
        pass
    assert cores.under_way("few") == cores.under_way("many") == 1 << 20
    names = [identity[:3] for identity, _ in cores.order]
    for upto in range(1, len(names)):
        assert abs(names[:upto].count(b"few") - names[:upto].count(b"man")) <= 1
    for _ in range(200):  # Whatever arrives first, each has a share of what is under way.
        for identity in [one for one, numbers in cores.frames.items() if numbers]:
            cores.arrive(identity)
        cores.flush()
        assert cores.under_way("many") <= (1 << 20) + (1 << 16)
        assert cores.core.wants_flush() is False or cores.core.links.egress
    few = sum(nbytes for identity, nbytes in cores.order if identity == b"few0")
    assert few == 4 << 20, "the small job has all it asked for"


def test_a_round_of_sending_ends_soon_where_jobs_share() -> None:
    cores = Minds(links=16)
    for peer in cores.core.peers.values():
        peer.outbox.credit_bytes = 1 << 23
    cores.core.links.share()
    assert cores.flush() <= SHARED_BYTES + (1 << 16)
    assert cores.core.wants_flush()


def test_a_job_alone_is_bounded_by_its_links_credit_only() -> None:
    cores = Minds(links=4)
    for _ in range(2):
        cores.core.tick(0.0)
    assert not cores.core.is_shared
    while cores.flush():
        pass
    assert cores.under_way("many") == 4 << 20


def test_a_lost_link_makes_room_for_its_jobs_others() -> None:
    cores = Minds(links=4)
    while cores.flush():
        pass
    sent = len(cores.order)
    for slot in range(3):
        cores.core.lose(f"many{slot}".encode())
    while cores.flush():
        pass
    later = {identity for identity, _ in cores.order[sent:]}
    assert later == {b"many3"}


def test_who_says_more_than_may_wait_is_not_listened_to_until_it_is_silent() -> None:
    cores = Minds(links=2)
    cores.core.outgoing.clear()
    for number in range(MOST_LETTERS + 10):
        cores.core.hear(b"many0", encode(Ping()), 1.0 + number * 1e-6)
    for identity in (b"many1", b"few0"):
        cores.core.hear(identity, encode(Ping()), 2.0)
    assert cores.core.silenced_links == 1
    while cores.core.work_once():
        pass
    said = [(identity, decode_reply(parts)[0]) for identity, parts in cores.core.outgoing]
    assert [type(reply) for identity, reply in said if identity == b"many0"] == [Refused]
    assert {identity for identity, reply in said if isinstance(reply, Pong)} == {b"many1", b"few0"}
    cores.core.tick(100.0)
    assert cores.core.silenced_links == 0


def test_a_strangers_flood_waits_for_its_own_turn() -> None:
    cores = Minds(links=1)
    for number in range(500):
        cores.core.hear(b"stranger", [b"nonsense"], float(number) * 1e-6)
    cores.core.hear(b"few0", encode(Ping()), 1.0)
    cores.core.outgoing.clear()
    answered = 0
    while not any(identity == b"few0" for identity, _ in cores.core.outgoing):
        assert cores.core.work_once()
        answered = len(cores.core.outgoing)
    assert answered <= 1 + 2 * AT_ONCE_BYTES // (1 << 15)
    assert cores.core.work.worked(STRANGERS) > 0


def test_a_link_that_was_forgotten_still_speaks_for_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_links, "LOST_KEPT", 2)
    cores = Minds(links=4)
    worked = cores.core.work.worked
    for slot in range(4):
        cores.core.lose(f"many{slot}".encode())
    before = worked(("many", 1)), worked(STRANGERS)
    for slot in (2, 3):
        cores.core.hear(f"many{slot}".encode(), [b"nonsense"], 1.0)
    while cores.core.work_once():
        pass
    assert worked(("many", 1)) > before[0]
    assert worked(STRANGERS) == before[1]
    cores.core.hear(b"many0", [b"nonsense"], 1.0)  # Only so many are remembered.
    while cores.core.work_once():
        pass
    assert worked(STRANGERS) > before[1]


def test_messages_wait_with_their_job_and_go_with_it() -> None:
    cores = Minds(links=1)
    for _ in range(50):
        cores.core.hear(b"many0", encode(Ping()), 1.0)
    assert cores.core.waiting_messages == 50
    cores.core.close_job("many", None, "closed")
    assert cores.core.waiting_messages == 0
    while cores.core.work_once():
        pass
    assert not [1 for identity, parts in cores.core.outgoing if isinstance(decode_reply(parts)[0], Pong)]
