"""Client and shard give each other their memory at a listener, between real processes, and nothing is left of it."""

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
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from same_host_children import Child, arena_maps, arenas_anywhere, open_files, wait_until
from weft_kvstore.same_host.handover import (
    MAPPED,
    MAX_PACKET_BYTES,
    OFFER,
    OFFER_VERSION,
    REFUSED,
    ArenaListener,
    Handover,
    LinkId,
    address_of,
)
from weft_kvstore.same_host.memory import ALIGNMENT, ArenaError, SharedMemory

LINK: LinkId = (bytes(range(16)), 1)
PAGE = 4096

CLIENT = """
import sys
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.memory import ArenaError, SharedMemory
from same_host_children import wait_until
arena = SharedMemory(4096, 4096)
arena.reserve(0, 4096)
try:
    given = Handover(bytes.fromhex(sys.argv[1]), (bytes(range(16)), 1), arena)
except ArenaError as error:
    print("refused", error)
    sys.exit()
wait_until(lambda: given.receive() or given.accepted or given.fileno() < 0, given.fileno())
print("taken" if given.accepted else "refused", given.reason)
up, down = arena.array(0, (1024,), "float32"), given.peer_memory
for line in sys.stdin:
    up += float(line)
    print(int(down[:4096].sum()))
"""

SHARD = """
import sys
from weft_kvstore.same_host.handover import ArenaListener
from same_host_children import wait_until
listener = ArenaListener()
print(listener.name.hex())
wait_until(lambda: listener.receive() or len(listener.arenas) == 2, listener.fileno())
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


def memory_of(nbytes: int = PAGE) -> SharedMemory:
    """Of one page, and a page for its stage."""
    memory = SharedMemory(nbytes - ALIGNMENT, PAGE)
    memory.reserve(0, memory.nbytes)
    return memory


def answered(listener: ArenaListener, *given: Handover) -> list[bool]:
    """Both ends do all that there is to do: the listener takes a connection in, then what came on it."""
    for _ in range(1 + len(given)):
        listener.receive()
    for one in given:
        one.receive()
    return [one.accepted for one in given]


def serve(listener: ArenaListener, holds: object) -> None:
    wait_until(lambda: listener.receive() or bool(holds()), listener.fileno())  # type: ignore[operator]


def test_two_processes_see_each_others_bytes() -> None:
    with closing(ArenaListener()) as listener:
        listener.shared_memory = memory_of()
        with Child(CLIENT, listener.name.hex()) as client:
            serve(listener, lambda: listener.arenas)
            assert client.line() == "taken "
            gradient = listener.arenas[LINK][:PAGE].view("float32")
            client.say("2.5")
            assert client.line() == "0"
            assert gradient.tolist() == [2.5] * 1024
            listener.shared_memory.array(0, (PAGE,), np.uint8)[:] = 3
            client.say("-1.5")
            assert client.line() == str(3 * PAGE)
            assert gradient.tolist() == [1] * 1024
            with pytest.raises(ValueError, match="read-only"):
                gradient[...] = 0
            del gradient
        listener.shared_memory.close()


def test_a_shard_that_shares_nothing_has_the_clients_memory_alone() -> None:
    with closing(ArenaListener()) as listener:
        arena = memory_of()
        given = Handover(listener.name, LINK, arena)
        assert answered(listener, given) == [True]
        assert given.peer_memory is None
        given.close()
        arena.close()


def test_a_killed_client_leaves_nothing(nothing_is_left: int) -> None:
    """The kernel ends its connection, so the shard knows at once."""
    with closing(ArenaListener()) as listener, Child(CLIENT, listener.name.hex()) as client:
        serve(listener, lambda: listener.arenas)
        assert client.line() == "taken "
        part = listener.arenas[LINK][64:74]
        (inode,) = {one.split()[1] for one in arenas_anywhere() if one.split()[0] == str(client.pid)}
        client.kill()
        serve(listener, lambda: not listener.arenas)
        assert part.sum() == 0, "what is still held stays good"
        assert [one for one in arenas_anywhere() if one.split()[1] == inode] == [f"{os.getpid()} {inode}"]
        del part
        wait_until(lambda: not [one for one in arenas_anywhere() if one.split()[1] == inode])


def test_a_killed_shard_is_noticed_and_leaves_nothing() -> None:
    arena = memory_of()
    with Child(SHARD) as shard:
        name = bytes.fromhex(shard.line())
        given = [Handover(name, (bytes(16), session), arena) for session in (1, 2)]
        assert shard.line() == "mapped"
        for one in given:
            one.receive()
        assert [one.accepted for one in given] == [True] * 2
        shard.kill()
        for one in given:
            one.receive()
        assert [(one.accepted, one.is_unusable, one.fileno()) for one in given] == [(False, False, -1)] * 2
        with pytest.raises(ArenaError, match="refused"):
            Handover(name, LINK, arena)
    arena.close()


def test_a_client_that_leaves_takes_its_arena_with_it_also_where_a_child_of_it_lives_on() -> None:
    arena = memory_of()
    with closing(ArenaListener()) as listener:
        given = Handover(listener.name, LINK, arena)
        answered(listener, given)
        with socket.socket(fileno=os.dup(given.fileno())):
            given.close()
            given.close()
            assert (given.accepted, given.reason) == (False, "closed")
            listener.receive()
            assert (listener.arenas, listener.refused) == ({}, 0)
    arena.close()


def test_many_arenas_come_and_go(nothing_is_left: int) -> None:
    with closing(ArenaListener()) as listener:
        for session in range(100):
            arena = memory_of()
            given = Handover(listener.name, (bytes(16), session), arena)
            assert answered(listener, given) == [True]
            given.close()
            listener.receive()
            arena.close()
        assert listener.arenas == {}
        wait_until(lambda: arena_maps() == nothing_is_left)


def test_a_hundred_clients_may_wait_for_the_listener() -> None:
    arena = memory_of()
    with closing(ArenaListener()) as listener:
        given = [Handover(listener.name, (bytes(16), session), arena) for session in range(100)]
        assert answered(listener, *given) == [True] * 100
        for one in given:
            one.close()
    arena.close()


def test_where_there_is_no_way_to_a_listener_the_client_is_told() -> None:
    arena = memory_of()
    with closing(ArenaListener()) as listener:
        with pytest.raises(ArenaError, match="16 bytes, not 15"):
            Handover(listener.name[1:], LINK, arena)
        with pytest.raises(ArenaError, match="no way to the shard's listener"):
            Handover(os.urandom(16), LINK, arena)
        arena.close()
        with pytest.raises(ArenaError, match="no way to the shard's listener"):
            Handover(listener.name, LINK, arena)


def test_a_connection_brings_one_arena() -> None:
    arena = memory_of()
    with closing(ArenaListener()) as listener:
        first = Handover(listener.name, LINK, arena)
        answered(listener, first)
        second = Handover(listener.name, LINK, arena)
        assert answered(listener, first, second) == [True, False]
        assert second.reason == "Offer.session: its arena has come already"
        assert listener.refused == 1
        first.close()
    arena.close()


def test_a_process_of_another_user_is_turned_away_by_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, other = memory_of(), os.geteuid() + 1
    with closing(ArenaListener()) as listener:
        given = Handover(listener.name, LINK, arena)
        monkeypatch.setattr(os, "geteuid", lambda: other)
        assert answered(listener, given) == [False]
        assert given.reason == f"process {os.getpid()} is of user {other - 1}, only memory of user {other} is shared"
        with pytest.raises(ArenaError, match=f"only memory of user {other} is shared"):
            Handover(listener.name, LINK, arena)
    arena.close()


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
    with closing(ArenaListener()) as listener, Child(script, address_of(listener.name).hex()) as stranger:
        assert stranger.line() == "in"
        serve(listener, lambda: listener.refused == 1)
        assert "is of user 65534" in stranger.line()


def raw(listener: ArenaListener, packet: bytes, *fds: int) -> str:
    """Why the listener refuses a packet of anybody's."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as one:
        one.connect(address_of(listener.name))
        socket.send_fds(one, [packet], list(fds))
        listener.receive()
        listener.receive()
        one.settimeout(10)
        answer = one.recv(4096)
        assert answer.startswith(REFUSED)
        assert one.recv(4096) == b"", "the connection ends"
        return answer[1:].decode()


OFFER_BYTES = bytes.fromhex("05 000102030405060708090a0b0c0d0e0f 0100000000000000")


def test_the_bytes_are_as_they_were() -> None:
    assert OFFER.pack(OFFER_VERSION, *LINK) == OFFER_BYTES
    assert (MAPPED, REFUSED) == (b"\1", b"\0")


def test_hostile_packets_are_refused_and_their_descriptors_closed() -> None:
    arena = memory_of()
    fd = arena.fd
    loose = os.memfd_create("weft-arena", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 2 * PAGE)
    file = os.open(__file__, os.O_RDONLY)
    read, write = os.pipe()
    with closing(ArenaListener()) as listener:
        before = open_files()
        cases = [
            (OFFER_BYTES, (), "0 descriptors"),
            (OFFER_BYTES, (fd, fd), "2 descriptors"),
            (OFFER_BYTES, (fd,) * 9, "over 2 descriptors"),
            (OFFER_BYTES, (loose,), "not sealed against shrinking"),
            (OFFER_BYTES, (file,), "not memory that can be sealed"),
            (OFFER_BYTES, (read,), "not memory that can be sealed"),
            (OFFER.pack(3, *LINK), (fd,), "Offer.version: 3, this shard knows 5"),
            (REFUSED, (fd,), "Offer.version: 0"),
            (OFFER_BYTES[:-1], (fd,), "an offer of 24 bytes, which has 25"),
            (OFFER_BYTES + b"\0", (fd,), "an offer of 26 bytes"),
            (b"\xff" * 5000, (fd,), "a packet of over 4096 bytes"),
        ]
        for packet, fds, reason in cases:
            assert reason in raw(listener, packet, *fds), packet
            assert open_files() == before
        assert (listener.refused, listener.arenas) == (len(cases), {})
    for one in (loose, file, read, write):
        os.close(one)
    arena.close()


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(min_size=1, max_size=200), st.integers(1, len(OFFER_BYTES) - 1)))
def test_no_bytes_do_harm(packet: bytes | int) -> None:
    """Nor does an offer that was cut."""
    with closing(ArenaListener()) as listener:
        assert raw(listener, OFFER_BYTES[:packet] if isinstance(packet, int) else packet)


def test_whoever_punches_holes_or_writes_meanwhile_gets_wrong_numbers_and_no_crash() -> None:
    """Nor can a client shorten what it has offered."""
    script = """
import ctypes, os, sys
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.memory import SharedMemory
arena = SharedMemory((1 << 20) - 64, 4096)
arena.reserve(0, 1 << 20)
given = Handover(bytes.fromhex(sys.argv[1]), (bytes(range(16)), 1), arena)
try:
    os.ftruncate(arena.fd, 0)
except PermissionError:
    print("given")
punch = ctypes.CDLL(None).fallocate
punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
array = arena.array(0, (1 << 18,), "uint32")
while True:
    array[:] = 0xffc00000
    array[:] = 0
    punch(arena.fd, 3, 0, 1 << 20)
"""
    with closing(ArenaListener()) as listener, Child(script, listener.name.hex()) as client:
        serve(listener, lambda: listener.arenas)
        assert client.line() == "given"
        gradient, total = listener.arenas[LINK][: 1 << 20].view("float32"), np.zeros(1 << 18, np.float32)
        seen: set[bool] = set()
        while len(seen) < 2:
            np.add(total, gradient, out=total)
            seen |= set(np.isnan(gradient[::4096]).tolist())
        del gradient


def test_who_connects_while_no_descriptor_is_left_is_heard_once_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """Meanwhile it is no busy loop, though a socket that cannot be accepted from stays readable."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    arena = memory_of()
    with closing(ArenaListener()) as listener:
        first = Handover(listener.name, LINK, arena)
        assert answered(listener, first) == [True]
        given = Handover(listener.name, (bytes(16), 2), arena)
        taken: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1, hard))
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            listener.receive()
            assert listener._epoll.poll(0) == []
            listener.receive()
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [record.message for record in caplog.records] == [
            "this shard cannot share memory with more clients of its host for now: [Errno 24] Too many open files"
        ]
        assert answered(listener, given) == [True]
        assert list(listener.arenas) == [LINK, (bytes(16), 2)]
        first.close()
        given.close()
    arena.close()


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
    with closing(ArenaListener()) as listener, Child(CLIENT, listener.name.hex(), before=command) as client:
        serve(listener, lambda: listener.arenas)
        assert client.line() == "taken "


def test_a_client_behind_another_network_sends_bytes() -> None:
    with closing(ArenaListener()) as listener, Child(CLIENT, listener.name.hex(), before=unshared("--net")) as client:
        assert client.line().startswith("refused no way to the shard's listener on this host")
        assert listener.refused == 0


def test_a_system_without_such_sockets_has_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(ArenaError, match="no Unix sockets"):
        ArenaListener()
    with pytest.raises(ArenaError, match="no Unix sockets"):
        Handover(bytes(16), LINK, memory_of())


@pytest.mark.parametrize(
    ("packets", "fds", "accepted", "reason"),
    [
        ((b"\xc1",), 0, False, "an answer of 1 bytes and 0 descriptors that means nothing"),
        ((MAPPED + b"more",), 1, False, "an answer of 5 bytes and 1 descriptors that means nothing"),
        ((MAPPED,), 2, False, "an answer of 1 bytes and 2 descriptors that means nothing"),
        ((b"x" * 5000,), 0, False, "over 4096 bytes"),
        ((), 0, None, "the shard closed the connection"),
        ((MAPPED, b"more"), 0, None, "the shard closed the connection"),
        ((REFUSED + b"not today",), 1, None, "not today"),
    ],
)
def test_a_shard_that_answers_nonsense_is_not_believed(
    packets: tuple[bytes, ...], fds: int, accepted: bool | None, reason: str
) -> None:
    """`accepted` False: the shard may believe that its memory was mapped."""
    name, arena = os.urandom(16), memory_of()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listener:
        listener.bind(address_of(name))
        listener.listen(1)
        handover = Handover(name, LINK, arena)
        with closing(listener.accept()[0]) as one:
            handover.receive()
            assert handover.fileno() >= 0
            for packet in packets:
                socket.send_fds(one, [packet], [arena.fd] * fds)
                handover.receive()
        handover.receive()
        assert (handover.fileno(), handover.peer_memory, handover.accepted) == (-1, None, False)
        assert handover.is_unusable is (accepted is False)
        assert reason in handover.reason
    arena.close()


def test_a_client_that_dies_between_its_offer_and_the_answer_leaves_nothing() -> None:
    script = CLIENT.partition("wait_until(lambda: given")[0] + "import signal\nprint('given')\nsignal.pause()\n"
    with closing(ArenaListener()) as listener, Child(script, listener.name.hex()) as client:
        assert client.line() == "given"
        os.kill(client.pid, signal.SIGKILL)
        client.kill()
        for _ in range(4):
            listener.receive()
        assert listener.arenas == {}


PAGE_TEXT = (Path(__file__).parents[3] / "docs" / "same-host.md").read_text()


def test_the_page_names_the_version_and_every_bound() -> None:
    assert f"`version` (1 byte: {OFFER_VERSION})" in PAGE_TEXT
    assert f"at most {MAX_PACKET_BYTES:,} bytes" in PAGE_TEXT
    assert f"{ALIGNMENT}-byte boundary" in PAGE_TEXT
    assert f"`{address_of(bytes(16))[1:-32].decode()}` and 32 hexadecimal digits" in PAGE_TEXT
