"""An arena is handed over at a shard's listener, between real processes, and nothing is left of it afterwards."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from same_host_children import Child, arena_maps, arenas_anywhere, open_files, wait_until
from weft_kvstore.same_host.handover import (
    MAX_WAITING,
    OFFER_TIMEOUT_S,
    OFFER_VERSION,
    Answer,
    ArenaListener,
    Handover,
    HandoverState,
    Offer,
    address_of,
    decode_answer,
    encode,
)
from weft_kvstore.same_host.layout import lay_out
from weft_kvstore.same_host.memory import Arena, ArenaError, LentMemory, sealed_memory

MOST = 1 << 20

CLIENT = """
import sys
from weft_kvstore.same_host.memory import Arena
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.layout import lay_out
from same_host_children import wait_until
arena = Arena(lay_out([int(sys.argv[1])]))
listeners = [argument.split(":") for argument in sys.argv[2:]]
given = [Handover(bytes.fromhex(name), bytes.fromhex(ticket), lambda: arena) for name, ticket in listeners]
for one in given:
    def answered(one=one):
        one.receive()
        return one.state.value != "offered"
    wait_until(answered, one.fileno())
    print(one.state.value, one.reason)
up = arena.mapping.array(0, (int(sys.argv[1]) // 4,), "float32")
down = arena.mapping.array(int(arena.layout.values[0]), up.shape, up.dtype)
for line in sys.stdin:
    up += float(line)
    print(down.sum())
"""

SHARD = """
import sys
from weft_kvstore.same_host.handover import ArenaListener
from same_host_children import wait_until
listener = ArenaListener()
tickets = [listener.expect(1 << 20) for _ in range(2)]
print(listener.name.hex(), *(ticket.hex() for ticket in tickets))
def come():
    listener.receive(0.0)
    return listener.arenas == 2
wait_until(come, listener.fileno())
print("mapped")
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[int]:
    """How many arenas were mapped before: clients of earlier tests may still be held by who looks at their values."""
    gc.collect()  # What an earlier test has left to the collector would be missing afterwards.
    before = arena_maps(), open_files()
    yield before[0]
    gc.collect()
    wait_until(lambda: arena_maps() <= before[0] and open_files() <= before[1])


def arena_of(*lengths: int) -> Arena:
    return Arena(lay_out(lengths))


def answered(listener: ArenaListener, *given: Handover) -> list[HandoverState]:
    """Both ends do all that there is to do: the listener takes a connection in, then what came on it."""
    listener.receive(0.0)
    listener.receive(0.0)
    for one in given:
        one.receive()
    return [one.state for one in given]


def client_of(listener: ArenaListener, ticket: bytes, nbytes: int = 4096, before: tuple[str, ...] = ()) -> Child:
    return Child(CLIENT, str(nbytes), f"{listener.name.hex()}:{ticket.hex()}", before=before)


def serve(listener: ArenaListener, holds: object) -> None:
    def come() -> bool:
        listener.receive(0.0)
        return bool(holds())  # type: ignore[operator]

    wait_until(come, listener.fileno())


def test_two_processes_see_each_others_bytes() -> None:
    with ArenaListener() as listener:
        ticket = listener.expect(MOST)
        with client_of(listener, ticket) as client:
            serve(listener, lambda: listener.arena(ticket))
            assert client.line() == "taken "
            mapping = listener.arena(ticket)
            assert mapping is not None
            gradient = mapping.array(0, (1024,), "float32")
            client.say("2.5")
            assert client.line() == "0.0"
            assert gradient.tolist() == [2.5] * 1024
            mapping.array(4096, (1024,), "float32")[:] = 3
            client.say("-1.5")
            assert client.line() == "3072.0"
            assert gradient.tolist() == [1] * 1024
            assert (listener.arenas, mapping.nbytes) == (1, 8192)


def test_shards_map_one_arena_so_that_a_key_that_is_cut_over_them_is_one_array() -> None:
    with ArenaListener() as one, ArenaListener() as other, arena_of(8192) as arena:
        tickets = one.expect(MOST), other.expect(MOST)
        given = Handover(one.name, tickets[0], lambda: arena), Handover(other.name, tickets[1], lambda: arena)
        for listener in (one, other):
            answered(listener, *given)
        whole = arena.mapping.array(0, (2048,), "float32")
        for part, (listener, ticket) in enumerate(zip((one, other), tickets, strict=True)):
            mapping = listener.arena(ticket)
            assert mapping is not None
            mapping.array(part * 4096, (1024,), "float32")[:] = part + 1
        assert whole.tolist() == [1] * 1024 + [2] * 1024
        for each in given:
            each.close()


def test_who_brings_an_arena_may_read_what_the_shard_lends() -> None:
    lent = LentMemory(4096)
    with ArenaListener() as listener, arena_of(4096) as arena:
        given = Handover(listener.name, listener.expect(MOST, lent), lambda: arena)
        assert answered(listener, given) == [HandoverState.TAKEN]
        assert given.lent is not None
        lent.bytes_at(8, 2)[:] = 5
        assert given.lent.bytes_at(8, 2).tolist() == [5, 5]
        given.close()
        assert given.lent is None
    lent.close()


@pytest.mark.parametrize(
    ("answer", "fds", "told"),
    [
        (Answer(accepted=True, lent=4096), 0, "0 descriptors came with an answer that lends 4096 bytes"),
        (Answer(accepted=True), 1, "1 descriptors came with an answer that lends 0 bytes"),
        (Answer(accepted=True, lent=8192), 1, "4096 bytes, 8192 were offered"),
    ],
)
def test_what_is_lent_wrongly_is_not_mapped(answer: Answer, fds: int, told: str) -> None:
    name = os.urandom(16)
    fd = sealed_memory(4096)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener, arena_of(4096) as arena:
        listener.bind(address_of(name))
        listener.listen()
        given = Handover(name, bytes(16), lambda: arena)
        with closing(listener.accept()[0]) as shard:
            socket.send_fds(shard, [encode(answer)], [fd] * fds)
            given.receive()
            assert (given.state, given.lent, given.is_unclear) == (HandoverState.REFUSED, None, True)
            assert told in given.reason
    os.close(fd)


def test_a_killed_client_leaves_nothing(nothing_is_left: int) -> None:
    """The kernel ends its connection, so the shard knows at once."""
    files = [set(os.listdir(place)) for place in ("/dev/shm", "/tmp")]
    with ArenaListener() as listener:
        ticket = listener.expect(MOST)
        with client_of(listener, ticket) as client:
            serve(listener, lambda: listener.arena(ticket))
            assert client.line() == "taken "
            mapping = listener.arena(ticket)
            assert mapping is not None
            part = mapping.array(64, (10,), "float64")
            del mapping
            (inode,) = {one.split()[1] for one in arenas_anywhere() if one.split()[0] == str(client.pid)}
            assert {f"{pid} {inode}" for pid in (client.pid, os.getpid())} <= arenas_anywhere()
            client.kill()
            serve(listener, lambda: listener.arena(ticket) is None)
            wait_until(lambda: arena_maps() == nothing_is_left + 1)
            part += 1.0
            assert part.sum() == 10, "what is still held stays good"
            assert [one for one in arenas_anywhere() if one.split()[1] == inode] == [f"{os.getpid()} {inode}"]
            del part
            wait_until(lambda: not [one for one in arenas_anywhere() if one.split()[1] == inode])
    for place, before in zip(("/dev/shm", "/tmp"), files, strict=True):
        assert not [one for one in set(os.listdir(place)) - before if "weft-arena" in one]


def test_a_killed_shard_is_noticed_and_leaves_nothing() -> None:
    with Child(SHARD) as shard, arena_of(4096) as arena:
        name, *tickets = [bytes.fromhex(word) for word in shard.line().split()]
        given = [Handover(name, ticket, lambda: arena) for ticket in tickets]
        assert shard.line() == "mapped"
        for one in given:
            one.receive()
        assert [one.state for one in given] == [HandoverState.TAKEN] * 2
        assert arena_maps(shard.pid) == 2
        array = arena.mapping.array(0, (4,), "float32")
        shard.kill()
        assert arena_maps(shard.pid) == 0
        for one in given:
            one.receive()
        assert [one.state for one in given] == [HandoverState.GONE] * 2
        assert given[0].fileno() == -1
        array += 1
        late = Handover(name, tickets[0], lambda: arena)
        assert late.state is HandoverState.REFUSED
        assert "refused" in late.reason


def test_when_the_link_is_lost_the_shard_lets_the_arena_go(nothing_is_left: int) -> None:
    with ArenaListener() as listener, arena_of(4096) as arena:
        ticket = listener.expect(MOST)
        given = Handover(listener.name, ticket, lambda: arena)
        assert answered(listener, given) == [HandoverState.TAKEN]
        wait_until(lambda: arena_maps() == nothing_is_left + 2)
        mapping = listener.arena(ticket)
        assert mapping is not None
        listener.forget(ticket)
        listener.forget(ticket)
        with pytest.raises(ArenaError, match="released"):
            mapping.array(0, (1,), "uint8")
        assert listener.arena(ticket) is None
        assert answered(listener, given) == [HandoverState.GONE]
        wait_until(lambda: arena_maps() == nothing_is_left + 1)
        late = Handover(listener.name, ticket, lambda: arena)
        assert answered(listener, late) == [HandoverState.REFUSED]
        assert "its link is lost" in late.reason


def test_a_client_that_leaves_takes_its_arena_with_it() -> None:
    with ArenaListener() as listener, arena_of(4096) as arena:
        ticket = listener.expect(MOST)
        given = Handover(listener.name, ticket, lambda: arena)
        answered(listener, given)
        given.close()
        given.close()
        assert given.state is HandoverState.GONE
        listener.receive(0.0)
        assert listener.arena(ticket) is None
        assert listener.refused == 0


def test_many_arenas_come_and_go(nothing_is_left: int) -> None:
    with ArenaListener() as listener:
        for _ in range(100):
            with arena_of(10_000) as arena:
                ticket = listener.expect(MOST)
                given = Handover(listener.name, ticket, lambda: arena)
                assert answered(listener, given) == [HandoverState.TAKEN]
                listener.forget(ticket)
                given.close()
        assert listener.arenas == 0
        wait_until(lambda: arena_maps() == nothing_is_left)


def refused_because(listener: ArenaListener, given: Handover) -> str:
    assert answered(listener, given) == [HandoverState.REFUSED]
    assert listener.arenas == 0
    return given.reason


def test_what_is_offered_wrongly_is_refused_by_name() -> None:
    with ArenaListener() as listener, arena_of(4096) as arena:
        reason = refused_because(listener, Handover(listener.name, os.urandom(16), lambda: arena))
        assert reason == "Offer.ticket: it is not one that was given out, or its link is lost"
        small = listener.expect(8191)
        assert "8192 bytes, where 1 to 8191 are expected" in refused_because(
            listener, Handover(listener.name, small, lambda: arena)
        )
        assert "16 bytes, not 15" in Handover(listener.name[1:], small, lambda: arena).reason
        assert "no way to the shard's listener" in Handover(os.urandom(16), small, lambda: arena).reason
        assert listener.refused == 2
        arena.close()
        assert "the arena was closed" in Handover(listener.name, small, lambda: arena).reason


def test_a_ticket_is_good_for_one_arena() -> None:
    with ArenaListener() as listener, arena_of(4096) as arena, arena_of(4096) as other:
        ticket = listener.expect(MOST)
        first = Handover(listener.name, ticket, lambda: arena)
        answered(listener, first)
        second = Handover(listener.name, ticket, lambda: other)
        assert answered(listener, first, second) == [HandoverState.TAKEN, HandoverState.REFUSED]
        assert "has come for it already" in second.reason
        first.close()


def test_a_process_of_another_user_is_turned_away_by_either_side() -> None:
    other = os.geteuid() + 1
    with ArenaListener(user=other) as listener, arena_of(4096) as arena:
        given = Handover(listener.name, listener.expect(MOST), lambda: arena)
        reason = refused_because(listener, given)
        assert reason == f"process {os.getpid()} is of user {other - 1}, only memory of user {other} is shared"
    with ArenaListener() as listener, arena_of(4096) as arena:
        given = Handover(listener.name, listener.expect(MOST), lambda: arena, user=other)
        assert given.state is HandoverState.REFUSED
        assert f"only memory of user {other} is shared" in given.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_kernel_says_whose_process_it_is() -> None:
    script = """
import os, socket, sys
os.setuid(65534)
one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
one.connect(bytes.fromhex(sys.argv[1]))
print("in")
try:
    print(one.recv(4096))
except ConnectionResetError:
    print(one.recv(4096))
"""
    with ArenaListener() as listener, Child(script, address_of(listener.name).hex()) as stranger:
        assert stranger.line() == "in"
        serve(listener, lambda: listener.refused == 1)
        assert "is of user 65534" in stranger.line()


def raw(listener: ArenaListener, packet: bytes, *fds: int) -> Answer:
    """What the listener answers to a packet of anybody's."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as one:
        one.connect(address_of(listener.name))
        socket.send_fds(one, [packet], list(fds))
        listener.receive(0.0)
        listener.receive(0.0)
        one.settimeout(10)
        answer = decode_answer(one.recv(4096))
        assert one.recv(4096) == b"", "the connection ends"
        return answer


def test_hostile_packets_are_refused_and_their_descriptors_closed() -> None:
    with ArenaListener() as listener:
        ticket = listener.expect(MOST)
        good = encode(Offer(OFFER_VERSION, ticket, 4096))
        fd = sealed_memory(4096)
        loose = os.memfd_create("weft-arena", os.MFD_ALLOW_SEALING)
        os.ftruncate(loose, 4096)
        file = os.open(__file__, os.O_RDONLY)
        read, write = os.pipe()
        try:
            before = open_files()
            cases = [
                (good, (), "0 descriptors"),
                (good, (fd, fd), "2 descriptors"),
                (good, (fd,) * 9, "over 4 descriptors"),
                (good, (loose,), "not sealed against shrinking"),
                (good, (file,), "not memory that can be sealed"),
                (good, (read,), "not memory that can be sealed"),
                (encode(Offer(OFFER_VERSION, ticket, 8192)), (fd,), "the arena has 4096 bytes, 8192 were offered"),
                (encode(Offer(1, ticket, 4096)), (fd,), "Offer.version: 1"),
                (encode(Offer(OFFER_VERSION, ticket[1:], 4096)), (fd,), "no offer of an arena"),
                (encode(Answer(accepted=True)), (fd,), "no offer of an arena"),
                (b"\xc1", (fd,), "no offer of an arena"),
                (good + b"\0", (fd,), "no offer of an arena"),
                (b"\xff" * 5000, (fd,), "a packet of over 4096 bytes"),
            ]
            for packet, fds, reason in cases:
                answer = raw(listener, packet, *fds)
                assert not answer.accepted
                assert reason in answer.reason, packet
                assert open_files() == before
            assert listener.refused == len(cases)
        finally:
            for one in (fd, loose, file, read, write):
                os.close(one)


def test_a_truncated_arena_cannot_be_had() -> None:
    """What a client would do to end the shard by SIGBUS, before it offers and after."""
    with ArenaListener() as listener, arena_of(4096) as arena:
        ticket = listener.expect(MOST)
        given = Handover(listener.name, ticket, lambda: arena)
        answered(listener, given)
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, 0)
        mapping = listener.arena(ticket)
        assert mapping is not None
        assert mapping.bytes_at(8191, 1).tolist() == [0]
        given.close()


def test_whoever_punches_holes_or_writes_meanwhile_gets_wrong_numbers_and_no_crash() -> None:
    script = """
import ctypes, mmap, sys
from weft_kvstore.same_host.memory import Arena
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.layout import lay_out
arena = Arena(lay_out([1 << 20]))
given = Handover(bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), lambda: arena)
print("given")
punch = ctypes.CDLL(None).fallocate
punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
array = arena.mapping.array(0, (1 << 18,), "uint32")
while True:
    array[:] = 0xffc00000
    punch(arena.fd, 3, 0, 1 << 20)
"""
    with ArenaListener() as listener:
        ticket = listener.expect(2 * MOST)
        with Child(script, listener.name.hex(), ticket.hex()) as client:
            serve(listener, lambda: listener.arena(ticket))
            assert client.line() == "given"
            mapping = listener.arena(ticket)
            assert mapping is not None
            gradient, total = mapping.array(0, (1 << 18,), "float32"), np.zeros(1 << 18, np.float32)
            seen = set()
            while len(seen) < 2:
                np.add(total, gradient, out=total)
                seen |= set(np.isnan(gradient[::4096]).tolist())
            assert gradient.shape == total.shape


def test_whoever_comes_and_offers_nothing_is_turned_away() -> None:
    with ArenaListener() as listener, arena_of(4096) as arena:
        idle = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(MAX_WAITING)]
        try:
            for one in idle:
                one.connect(address_of(listener.name))
                listener.receive(0.0)
            given = Handover(listener.name, listener.expect(MOST), lambda: arena)
            assert answered(listener, given) == [HandoverState.REFUSED]
            assert f"{MAX_WAITING} others" in given.reason
            listener.tick(OFFER_TIMEOUT_S - 0.1)
            assert listener.refused == 1
            listener.tick(OFFER_TIMEOUT_S)
            assert listener.refused == 1 + MAX_WAITING
            given = Handover(listener.name, listener.expect(MOST), lambda: arena)
            listener.receive(0.0)
            assert answered(listener, given) == [HandoverState.TAKEN]
            given.close()
        finally:
            for one in idle:
                one.close()


def test_without_descriptors_the_listener_waits_and_does_not_spin() -> None:
    """A listening socket that cannot be accepted from stays readable: it is looked at again with the next tick."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ArenaListener() as listener, arena_of(4096) as arena:
        given = Handover(listener.name, listener.expect(MOST), lambda: arena)
        held: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            listener.receive(0.0)
            assert listener._epoll.poll(0) == []
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert answered(listener, given) == [HandoverState.OFFERED]
        listener.tick(0.0)
        listener.receive(0.0)
        assert answered(listener, given) == [HandoverState.TAKEN]
        given.close()


def unshared(*flags: str) -> tuple[str, ...]:
    """A command that runs what follows in namespaces of its own; skips where that is not allowed."""
    command = ("unshare", *flags, "--")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("namespaces cannot be made here")
    return command


def test_a_client_in_another_container_of_one_pod_is_served() -> None:
    """It sees other process numbers, and the same network."""
    command = unshared("--pid", "--fork", "--kill-child", "--mount-proc")
    with ArenaListener() as listener:
        ticket = listener.expect(MOST)
        with client_of(listener, ticket, before=command) as client:
            serve(listener, lambda: listener.arena(ticket))
            assert client.line() == "taken "


def test_a_client_behind_another_network_sends_bytes() -> None:
    with ArenaListener() as listener, client_of(listener, listener.expect(MOST), before=unshared("--net")) as client:
        assert client.line().startswith("refused no way to the shard's listener on this host")
        assert listener.refused == 0


def test_a_system_without_such_sockets_has_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(ArenaError, match="no Unix sockets"):
        ArenaListener()
    with arena_of(4096) as arena:
        assert "no Unix sockets" in Handover(bytes(16), bytes(16), lambda: arena).reason


def test_a_shard_that_answers_nonsense_is_not_believed() -> None:
    name = os.urandom(16)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener, arena_of(4096) as arena:
        listener.bind(address_of(name))
        listener.listen(1)
        for packets, state, reason in (
            ((b"\xc1",), HandoverState.REFUSED, "no answer to an offer"),
            ((encode(Answer(accepted=True)), b"more"), HandoverState.GONE, "no answer to an offer"),
            ((encode(Answer(accepted=True)),) * 2, HandoverState.GONE, "answered twice"),
            ((b"x" * 5000,), HandoverState.REFUSED, "over 4096 bytes"),
            ((), HandoverState.REFUSED, ""),
        ):
            given = Handover(name, bytes(16), lambda: arena)
            one, _ = listener.accept()
            given.receive()
            assert given.state is HandoverState.OFFERED
            for packet in packets:
                one.send(packet)
                given.receive()
            one.close()
            given.receive()
            assert given.state is state
            assert reason in given.reason


def test_a_client_that_dies_between_its_offer_and_the_answer_leaves_nothing() -> None:
    script = CLIENT.partition("for one in given:")[0] + "import os, signal\nprint('given')\nsignal.pause()\n"
    with ArenaListener() as listener:
        ticket = listener.expect(MOST)
        with Child(script, "4096", f"{listener.name.hex()}:{ticket.hex()}") as client:
            assert client.line() == "given"
            os.kill(client.pid, signal.SIGKILL)
            client.kill()
            for _ in range(4):
                listener.receive(0.0)
            assert listener.arena(ticket) is None
            assert listener.arenas == 0
