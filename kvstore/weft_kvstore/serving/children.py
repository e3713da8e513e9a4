"""Child processes of a daemon, one for each allocation, forked from a process that has imported what they need.

The daemon starts one forkserver. It has no threads, no ZeroMQ context and no device, so that a fork of it is safe. For
a child the daemon sends the end of a socket pair; the forkserver forks, and the child talks on it in lines of JSON.
When the child has ended, the forkserver writes the last line there: how it ended. Where the daemon is gone, the
forkserver ends, and the system ends its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, NoReturn

STOP_GRACE_S: Final = 3.0
"""Between SIGTERM and SIGKILL."""

CRASHED: Final = 70
"""Exit status of a child that raised what nobody caught; the traceback is in the log."""

_PR_SET_PDEATHSIG: Final = 1
_PRCTL: Final = ctypes.CDLL(None).prctl

# --- The daemon's side ------------------------------------------------------------------------------------------------


class ForkError(Exception):
    """The forkserver cannot be started or has ended."""


class Forkserver:
    """Forks children that run `main(channel)` of `module`. For any thread. `close` ends it, and every child with it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        """Held while a request is sent, and while the process is started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts it ahead of the first child, which then need not wait for the imports. Raises ForkError."""
        with self._lock:
            self._started()

    def fork(self, memory_bytes: int | None = None) -> Child:
        """A child that may have `memory_bytes` of private memory. Raises ForkError."""
        ours, its = socket.socketpair()
        try:
            with its:
                self._send({"fork": True, "memory_bytes": memory_bytes}, its)
        except ForkError:
            ours.close()
            raise
        return Child(self, ours)

    def signal(self, process: int, number: int) -> None:
        """Sends a signal to a child, unless it has ended: the forkserver alone knows that its number is still its."""
        with contextlib.suppress(ForkError):
            self._send({"signal": number, "process": process})

    def close(self) -> None:
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                self._process.wait()
            self._control = self._process = None

    def _send(self, request: dict[str, Any], channel: socket.socket | None = None) -> None:
        line = json.dumps(request).encode()
        with self._lock:
            for last in (False, True):
                try:
                    self._request(self._started(), line, channel)
                except OSError as error:
                    if last:
                        raise ForkError(f"the forkserver has ended: {error}") from error
                    self._drop()
                else:
                    return

    @staticmethod
    def _request(control: socket.socket, line: bytes, channel: socket.socket | None) -> None:
        if channel is None:
            control.send(line)
        else:
            socket.send_fds(control, [line], [channel.fileno()])

    def _started(self) -> socket.socket:
        if self._control is None:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", __name__, self._module, str(its.fileno())]
            try:
                with its:
                    self._process = subprocess.Popen(  # noqa: S603 - its own program
                        command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL
                    )
            except OSError as error:
                ours.close()
                raise ForkError(f"the forkserver does not start: {error}") from error
            self._control = ours
        return self._control

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


class Child:
    """One child. `lines` is read by one thread; `send` and `stop` are for any."""

    def __init__(self, forkserver: Forkserver, channel: socket.socket) -> None:
        self._forkserver = forkserver
        self._channel = channel
        self._ended = threading.Event()
        self._known = threading.Event()
        self._sending = threading.Lock()
        self.process = 0
        """Its process id, once it is forked."""
        self.ending = "it ended, and its forkserver before it"
        """How it ended, in words, once `lines` is through."""

    def send(self, message: dict[str, Any]) -> None:
        """Nothing where it has ended: `lines` tells."""
        with self._sending, contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it says, until it has ended."""
        try:
            with self._channel.makefile("rb") as reader:
                for line in _whole(reader):
                    if "forked" in line:
                        self.process = line["forked"]
                        self._known.set()
                    elif "exit" in line:
                        self.ending = ending(line["exit"])
                        return
                    else:
                        yield line
        finally:
            self._ended.set()
            self._known.set()
            with self._sending:
                self._channel.close()

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, and SIGKILL where it has not ended within the grace. Another thread reads `lines`."""
        self._known.wait()
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            if not self._ended.is_set():
                self._forkserver.signal(self.process, number)
                self._ended.wait(wait_s)


def _whole(reader: Any) -> Iterator[dict[str, Any]]:
    """The lines that are whole: a child may have died in the middle of one."""
    try:
        for line in reader:
            with contextlib.suppress(ValueError):
                yield json.loads(line)
    except OSError:
        return


def ending(status: int) -> str:
    """How a process ended, in words, by the status that `waitpid` gave."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with status {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    out = "; out of memory, if nobody sent it: see the system's log" if -code == signal.SIGKILL else ""
    return f"its process was ended by {name}{out}"


# --- The forkserver ---------------------------------------------------------------------------------------------------


def serve(module: str, control: socket.socket) -> None:
    """Forks until the daemon's end of `control` closes; then ends what is left."""
    main = importlib.import_module(module).main
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # A terminal sends them to all: the daemon says when to end.
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    channels: dict[int, socket.socket] = {}
    while True:
        readable = select.select([control, woken], [], [])[0]
        if woken in readable:
            with contextlib.suppress(BlockingIOError):
                woken.recv(4096)
            _reap(channels)
        if control not in readable:
            continue
        data, received, _, _ = socket.recv_fds(control, 4096, 1)
        if not data:
            break
        request = json.loads(data)
        if "signal" in request:
            if request["process"] in channels:
                os.kill(request["process"], request["signal"])
            continue
        channel = socket.socket(fileno=received[0])
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            for one in (control, woken, wake, *channels.values()):
                one.close()
            _run(main, channel, request["memory_bytes"])
        channels[process] = channel
    for process in channels:
        os.kill(process, signal.SIGKILL)


def _reap(channels: dict[int, socket.socket]) -> None:
    while channels:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        with channels.pop(process) as channel:
            _say(channel, {"exit": status})


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    """Never waits, and bears a daemon that is gone. Begins with a line's end: the child may have died within a line."""
    with contextlib.suppress(OSError):
        channel.send(b"\n" + json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)


def _run(main: Any, channel: socket.socket, memory_bytes: int | None) -> NoReturn:
    """The child, from its fork to its end."""
    status = CRASHED
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):  # SIGINT stays ignored: the daemon says when to end.
            signal.signal(number, signal.SIG_DFL)
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        _say(channel, {"forked": os.getpid()})
        main(channel)
        status = 0
    except BaseException:  # noqa: BLE001 - the process's outermost frame
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
