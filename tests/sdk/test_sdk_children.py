"""Child processes forked for allocations: what they say, how they end, and that nothing of them stays."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store_cluster import WAIT_S
from weft.agent.children import CRASHED, Child, ForkError, Forkserver, ProcessLimits

MAIN = """
import json, os, resource, signal, socket, sys, threading, time
from weft.agent.children import messages, write_message

def prepare():
    if "ONE_FORK" in os.environ:
        fork, forked = os.fork, []
        def once():
            if forked:
                raise BlockingIOError("no more processes")
            forked.append(1)
            return fork()
        os.fork = once

def main(channel):
    reader = channel.makefile("rb")
    job = json.loads(reader.readline())
    say = lambda **facts: channel.sendall(json.dumps(facts).encode() + b"\\n")
    match job["do"]:
        case "answer":
            say(threads=threading.active_count(), parent=os.getppid())
            for line in reader:
                say(answer=json.loads(line)["ask"] + 1)
        case "crash":
            raise ValueError("a rule of the user")
        case "escape":
            sys.stderr.write("\\x1b]0;owned\\x9b31m\\n")
        case "abort" | "killed":
            print('{"event": "it aborts", "level": "error"}', file=sys.stderr, flush=True)
            channel.sendall(b'{"half of a li')
            os.kill(os.getpid(), signal.SIGSEGV if job["do"] == "abort" else signal.SIGKILL)
        case "limits":
            both = lambda what: list(resource.getrlimit(getattr(resource, f"RLIMIT_{what}")))
            say(memory=both("DATA"), seconds=both("CPU"), file=both("FSIZE"), files=both("NOFILE"), core=both("CORE"),
                alarm=0 < signal.alarm(0) <= 7, nice=os.nice(0), interfaces=[name for _, name in socket.if_nameindex()])
        case "frames":
            asked = next(messages(reader))
            if "forged" in asked:
                channel.sendall(f'{{"frames": [{asked["forged"]}]}}\\nshort'.encode())
            else:
                write_message(channel, {}, asked["frames"])
        case "odd":
            for line in ('[' * 100_000, '{"exit": "0"}', '{"exit": 1e3}', f'{{"exit": {1 << 70}}}', '{"exit": -1}',
                         '{"exit": 127}', '{"forked": "me"}', '{"exit": null}'):
                channel.sendall(line.encode() + b"\\n")
        case "endless":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say(begun=True)
            while True:
                pass
        case "memory":
            held = []
            try:
                while True:
                    held.append(bytearray(1 << 24))
            except MemoryError:
                taken, held = len(held), None
                say(taken=taken)
"""


@pytest.fixture
def forkserver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forkserver]:
    (tmp_path / "a_child.py").write_text(textwrap.dedent(MAIN))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    made = Forkserver("a_child")
    yield made
    made.close()


def begun(forkserver: Forkserver, do: str, memory_bytes: int | None = None) -> tuple[Child, Iterator[dict[str, Any]]]:
    child = forkserver.fork(ProcessLimits(memory_bytes=memory_bytes))
    child.send({"do": do})
    return child, child.lines()


def stopped(child: Child, said: Iterator[dict[str, Any]], grace_s: float = WAIT_S) -> None:
    stopping = threading.Thread(target=child.stop, args=(grace_s,))
    stopping.start()
    assert list(said) == []
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_a_child_talks_with_its_daemon_and_ends_by_a_signal(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "answer")
    first = next(said)
    assert first["threads"] == 1
    assert first["parent"] != os.getpid()
    child.send({"ask": 41})
    assert next(said) == {"answer": 42}
    stopped(child, said)
    assert child.ending == "its process was ended by SIGTERM"


@pytest.mark.parametrize(
    ("do", "told", "logged"),
    [
        ("crash", f"its process ended with status {CRASHED}", "ValueError: a rule of the user"),
        ("abort", "its process was ended by SIGSEGV", "it aborts"),
        ("killed", "its process was ended by SIGKILL; out of memory, if nobody sent it: see the system's log", ""),
    ],
)
def test_a_child_that_dies_is_told_by_its_cause_and_its_last_log_line_and_the_others_go_on(
    forkserver: Forkserver, do: str, told: str, logged: str
) -> None:
    other, said = begun(forkserver, "answer")
    next(said)
    child, of_it = begun(forkserver, do)
    assert list(of_it) == []
    assert (child.ending, child.last_logged) == (told, logged)
    other.send({"ask": 1})
    assert next(said) == {"answer": 2}
    stopped(other, said)


def test_a_child_that_does_not_end_by_sigterm_is_killed_after_the_grace(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "endless")
    assert next(said) == {"begun": True}
    stopped(child, said, grace_s=0.05)
    assert child.ending.startswith("its process was ended by SIGKILL")


def test_what_a_child_logs_commands_no_terminal(forkserver: Forkserver, capfd: pytest.CaptureFixture[str]) -> None:
    _, said = begun(forkserver, "escape")
    assert list(said) == []
    assert r"\u001b]0;owned\u009b31m" in capfd.readouterr().err


def test_a_child_that_cannot_be_forked_is_told_and_the_others_go_on(
    forkserver: Forkserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONE_FORK", "1")
    other, said = begun(forkserver, "answer")
    next(said)
    child, of_it = begun(forkserver, "answer")
    assert list(of_it) == []
    assert (child.ending, child.last_logged) == (
        f"its process ended with status {CRASHED}",
        "it cannot be forked: no more processes",
    )
    other.send({"ask": 1})
    assert next(said) == {"answer": 2}
    stopped(other, said)


def test_a_child_takes_no_more_memory_than_it_may(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "memory", memory_bytes=1 << 28)
    assert 0 < next(said)["taken"] <= 16
    assert list(said) == []
    assert child.ending == "its process ended with status 0"


def test_a_child_has_its_limits_and_no_network(forkserver: Forkserver) -> None:
    may_leave = subprocess.run(["unshare", "-rn", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    limits = ProcessLimits(memory_bytes=1 << 30, seconds=5.5, file_bytes=1 << 20, open_files=32, network=False, nice=3)
    child = forkserver.fork(limits)
    child.send({"do": "limits"})
    told, *rest = child.lines()
    assert rest == []
    interfaces = ["lo"] if may_leave else [name for _, name in socket.if_nameindex()]
    assert told == {
        "memory": [1 << 30] * 2, "seconds": [6, 7], "file": [1 << 20] * 2, "files": [32] * 2, "core": [0, 0],
        "alarm": True, "nice": os.nice(0) + 3, "interfaces": interfaces,
    }  # fmt: skip


def test_a_child_ends_with_its_time_of_the_processor(forkserver: Forkserver) -> None:
    child = forkserver.fork(ProcessLimits(seconds=0.1))
    child.send({"do": "endless"})
    assert list(child.lines()) == [{"begun": True}]
    assert child.status in {signal.SIGXCPU, signal.SIGALRM}, child.ending  # on a busy machine its alarm is first


def test_frames_go_both_ways_as_they_are_and_those_that_are_not_whole_are_left_out(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "frames")
    frames = [b"", b"\n{}\n" + bytes(range(256)), b"x" * (1 << 20)]
    child.send({}, frames)
    assert list(said) == [{"frames": frames}]
    for forged in ("-1", "1e3", '"3"', str(1 << 40), str(1 << 20)):
        child, said = begun(forkserver, "frames")
        child.send({"forged": forged})
        assert list(said) == []


def test_a_child_that_says_what_nobody_understands_is_heard_until_its_end(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "odd")
    assert [*map(list, said)] == [["exit"]] * 5 + [["forked"], ["exit"]]
    assert (child.ending, child.was_killed) == ("its process ended with status 0", False)


def test_of_a_hundred_children_one_after_the_other_nothing_stays(forkserver: Forkserver) -> None:
    keeper, kept = begun(forkserver, "answer")
    server = next(kept)["parent"]
    descriptors = [f"/proc/{number}/fd" for number in (os.getpid(), server)]
    before = [len(os.listdir(path)) for path in descriptors]
    processes = []
    for _ in range(100):
        child, said = begun(forkserver, "crash")
        assert list(said) == []
        processes.append(child.process)
    after, said = begun(forkserver, "answer")
    next(said)  # It was forked once the last of them was done with.
    # Of the new one alone: a channel and a log here, a channel there.
    assert [len(os.listdir(path)) for path in descriptors] == [before[0] + 2, before[1] + 1]
    stopped(after, said)
    stopped(keeper, kept)
    last, said = begun(forkserver, "answer")
    next(said)
    assert Path(f"/proc/{server}/task/{server}/children").read_text().split() == [str(last.process)]
    assert len(set(processes)) == 100
    stopped(last, said)


def test_children_end_with_the_daemon(forkserver: Forkserver) -> None:
    _, said = begun(forkserver, "endless")
    assert next(said) == {"begun": True}
    forkserver.close()
    assert list(said) == []  # Its end of the channel is closed: it has ended.


def test_nothing_is_started_for_a_forkserver_that_is_closed(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "endless")
    assert next(said) == {"begun": True}
    forkserver.close()
    child.kill()
    forkserver.signal(child.process, signal.SIGKILL)
    assert forkserver._process is None
    assert list(said) == []
    with pytest.raises(ForkError, match="is closed"):
        forkserver.fork()


def test_a_fork_that_the_system_refuses_ends_no_other_child(
    forkserver: Forkserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    child, said = begun(forkserver, "answer")
    next(said)

    def refused(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, "too many references")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "send_fds", refused)
        with pytest.raises(ForkError, match="too many references"):
            forkserver.fork()
    child.send({"ask": 1})
    assert next(said) == {"answer": 2}
    stopped(child, said)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_forkserver_ends_with_its_daemon_and_logs_nothing(
    forkserver: Forkserver, capfd: pytest.CaptureFixture[str], is_awaited: bool
) -> None:
    if is_awaited:
        forkserver.start()
    _, said = begun(forkserver, "answer")
    next(said)
    forkserver.close()
    assert list(said) == []
    assert capfd.readouterr().err == ""


def test_a_forkserver_that_has_ended_is_started_anew(forkserver: Forkserver) -> None:
    child, said = begun(forkserver, "answer")
    server = next(said)["parent"]
    os.kill(server, signal.SIGKILL)
    assert list(said) == []
    assert child.ending == "it ended, and its forkserver before it"
    child, said = begun(forkserver, "answer")
    assert next(said)["parent"] != server
    stopped(child, said)
