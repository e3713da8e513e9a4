"""Child processes of a daemon, forked from a process that has imported what they need, with limits.

The daemon starts one forkserver. It has no threads of Python, no ZeroMQ context and no device, so that a fork of it is
safe. For a child the daemon sends the end of a socket pair; the forkserver forks, and the two talk on it in messages: a
line of JSON, and the bytes of the frames whose lengths the line gives. When the child has ended, the forkserver writes
the last line there: how it ended. What a child writes to standard error passes through the daemon, which knows its last
line then. Where the daemon is gone, the forkserver ends, and the system ends its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final, NoReturn

from weft.agent.printable import escaped

STOP_GRACE_S: Final = 3.0
"""Between SIGTERM and SIGKILL."""

READY: Final = b"ready"
"""What a forkserver says once it has imported its module."""

START_TIMEOUT_S: Final = 60.0
"""A cold disk under a slow machine takes a good part of it to import NumPy."""

SEND_TIMEOUT_S: Final = 30
"""For a child to read what it is told; it has a thread that does nothing else."""

LOG_LINE_BYTES: Final = 1 << 16
"""A longer line of a child's log is passed on in parts."""

LOG_WAIT_S: Final = 1.0
"""For the end of a log whose child has ended: processes that it has started itself may still hold it open."""

TOLD_CHARACTERS: Final = 1000
"""Of a child's last log line, in the words of how it ended."""

CRASHED: Final = 70
"""Exit status of a child that raised what nobody caught; the traceback is in the log."""

MOST_STATUS: Final = 0xFFFF
"""That `waitpid` gives."""

LINE_BYTES: Final = 1 << 24
"""Of a message, without its frames. What is longer is no message."""

FRAMES_BYTES: Final = 1 << 30
"""Of a message's frames together."""

_PIECE_BYTES: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

# --- What both sides say ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a child may take. None is no limit."""

    memory_bytes: int | None = None
    """Private memory: what the forkserver has counts too."""
    seconds: float | None = None
    """Of the processor; a second or two later of the clock as well."""
    file_bytes: int | None = None
    """Of each file that it writes."""
    open_files: int | None = None
    network: bool = True
    """False: it has a network of its own, without a way out, where the system lets a process do so."""
    nice: int = 0

    def apply(self) -> None:
        """Sets them for this process."""
        os.nice(self.nice)
        if not self.network and _LIBC.unshare(_CLONE_NEWNET) != 0:
            _LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        for what, most in (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.open_files),
        ):
            if most is not None:
                _set_limit(what, most, most)
        if self.seconds is not None:
            seconds = int(self.seconds) + 1
            _set_limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # at the second one SIGKILL comes, which says less
            signal.alarm(seconds + 1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


NO_LIMITS: Final = ProcessLimits()


def _set_limit(what: int, soft: int, hard: int) -> None:
    """The limit, or what there is where that is less."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(what, (soft, hard))


def write_message(channel: socket.socket, message: Mapping[str, Any], frames: Sequence[bytes] = ()) -> None:
    """Frames are sent as they are: nobody parses a large document to pass it on. Raises OSError."""
    lengths = {"frames": [len(frame) for frame in frames]} if frames else {}
    channel.sendall(json.dumps({**message, **lengths}).encode() + b"\n")
    for frame in frames:
        channel.sendall(frame)


def messages(reader: BinaryIO) -> Iterator[dict[str, Any]]:
    """What the other side says until its end, with the frames under `frames`. What is not whole is left out: it may
    have died in the middle."""
    with contextlib.suppress(OSError, EOFError):
        while line := reader.readline(LINE_BYTES):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict):
                if "frames" in message:
                    message["frames"] = _frames(reader, message["frames"])
                yield message


def _frames(reader: BinaryIO, lengths: Any) -> list[bytearray]:
    """Raises EOFError where they are not whole, or are more than anybody says."""
    if not isinstance(lengths, list) or not all(isinstance(each, int) and each >= 0 for each in lengths):
        raise EOFError
    if sum(lengths) > FRAMES_BYTES:
        raise EOFError
    frames = []
    for length in lengths:
        frame = bytearray()
        while len(frame) < length:
            piece = reader.read(min(length - len(frame), _PIECE_BYTES))
            if not piece:
                raise EOFError
            frame += piece
        frames.append(frame)
    return frames


# --- The daemon's side ------------------------------------------------------------------------------------------------


class ForkError(Exception):
    """The forkserver cannot be started or has ended."""


class Forkserver:
    """Forks children that run `main(channel)` of `module`, once it has run the module's `prepare()`, which makes what
    all children need and starts no thread. For any thread. `close` ends it, and every child with it."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: all that its processes have of one; None for this process's."""
        self._module = module
        self._environment = environment
        self._lock = threading.Lock()
        """Held while a request is sent, and while the process is started."""
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts it ahead of the first child, and waits until it has imported what children need. Raises ForkError."""
        with self._lock:
            control = self._started()
            control.settimeout(START_TIMEOUT_S)
            try:
                ready = control.recv(len(READY))
            except OSError as error:
                raise ForkError(f"the forkserver does not start: {error}") from error
            finally:
                control.settimeout(None)
            if ready != READY:
                raise ForkError(f"the forkserver could not import {self._module}; its log says why")

    def fork(self, limits: ProcessLimits = NO_LIMITS) -> Child:
        """A child that may take so much. Raises ForkError."""
        try:
            ours, its = socket.socketpair()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_TIMEOUT_S, 0))
            log, its_log = os.pipe()
        except OSError as error:
            raise ForkError(f"no process can be started for the job: {error}") from error
        try:
            self._send({"fork": asdict(limits)}, its.fileno(), its_log)
        except ForkError:
            ours.close()
            os.close(log)
            raise
        finally:
            its.close()
            os.close(its_log)
        return Child(self, ours, log)

    def signal(self, process: int, number: int) -> None:
        """Sends a signal to a child, unless it has ended: the forkserver alone knows that its number is still its."""
        line = json.dumps({"signal": number, "process": process}).encode()
        with self._lock, contextlib.suppress(ConnectionError):  # its children have ended with it
            if self._control is not None:
                self._control.send(line)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._drop()

    def _send(self, request: dict[str, Any], *descriptors: int) -> None:
        line = json.dumps(request).encode()
        with self._lock:
            for last in (False, True):
                try:
                    socket.send_fds(self._started(), [line], descriptors)
                except ConnectionError as error:
                    if last:
                        raise ForkError(f"the forkserver has ended: {error}") from error
                    self._drop()
                except OSError as error:  # it lives, and its children with it
                    raise ForkError(f"no process can be started for the job: {error}") from error
                else:
                    return

    def _started(self) -> socket.socket:
        if self._is_closed:
            raise ForkError("the forkserver is closed")
        if self._control is None:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", __name__, self._module, str(its.fileno())]
            try:
                with its:
                    self._process = subprocess.Popen(  # noqa: S603 - its own program
                        command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, env=self._environment
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
    """One child. `lines` is read by one thread; `send`, `stop` and `kill` are for any."""

    def __init__(self, forkserver: Forkserver, channel: socket.socket, log: int) -> None:
        self._forkserver = forkserver
        self._channel = channel
        self._log = threading.Thread(target=self._pass_on, args=(log,), name="child-log", daemon=True)
        self._last_line = b""
        self._ended = threading.Event()
        self._known = threading.Event()
        self._sending = threading.Lock()
        self._is_unwanted = False
        self.process = 0
        """Its process id, once it is forked; 0 where that was not possible."""
        self.status: int | None = None
        """What `waitpid` gave, once `lines` is through; None where nobody knows."""
        self.ending = "it ended, and its forkserver before it"
        """How it ended, in words, once `lines` is through."""
        self.was_killed = True
        """Whether it has ended by no doing of its own: by a signal, or with its forkserver."""
        self._log.start()

    @property
    def last_logged(self) -> str:
        """The last line of its log, once `lines` is through; of a record in JSON what it says. Empty where SIGKILL
        ended it, which leaves it no time to say why."""
        if self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL:
            return ""
        line = self._last_line.decode(errors="replace").strip()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = str(json.loads(line)["event"])
        return line[:TOLD_CHARACTERS]

    def send(self, message: Mapping[str, Any], frames: Sequence[bytes] = ()) -> None:
        """Nothing where it has ended: `lines` tells. One that does not read for long is told that nothing comes any
        more, as when its daemon is gone."""
        with self._sending:
            try:
                write_message(self._channel, message, frames)
            except OSError:
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_WR)

    def lines(self) -> Iterator[dict[str, Any]]:
        """What it says, until it has ended."""
        try:
            with self._channel.makefile("rb") as reader:
                for message in messages(reader):
                    match message:
                        case {"forked": int(process)}:
                            self.process = self.process or process
                            self._known.set()
                            if self._is_unwanted:
                                self.kill()
                        case {"exit": int(status)} if _is_of_an_end(status):
                            self.status, self.ending = status, ending(status)
                            self.was_killed = os.WIFSIGNALED(status)
                            return
                        case _:
                            yield message
        finally:
            self._log.join(LOG_WAIT_S)
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

    def kill(self) -> None:
        """SIGKILL, and nobody waits for its end: it may be stuck in the system. Ends `lines`."""
        self._is_unwanted = True
        if self._known.is_set():
            self._forkserver.signal(self.process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # one that is not forked yet ends as it finds that

    def _pass_on(self, log: int) -> None:
        """Its log to this process's, line by line."""
        with os.fdopen(log, "rb") as lines:
            for line in iter(lambda: lines.readline(LOG_LINE_BYTES), b""):
                if line.strip():
                    self._last_line = line
                with contextlib.suppress(OSError):
                    os.write(2, escaped(line.decode(errors="replace")).encode())


_CAUSES: Final[Mapping[int, str]] = {
    signal.SIGKILL: "; out of memory, if nobody sent it: see the system's log",
    signal.SIGBUS: "; a data file that it was reading was cut short, or its disk cannot be read: write new data under "
    "another name",
}
"""What the usual cause of a signal is, and what to do."""


def _is_of_an_end(status: int) -> bool:
    """Whether `waitpid` gives it for a process that has ended; a child may say any number."""
    return 0 <= status <= MOST_STATUS and (os.WIFEXITED(status) or os.WIFSIGNALED(status))


def ending(status: int) -> str:
    """How a process ended, in words, by the status that `waitpid` gave."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with status {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    cause = _CAUSES.get(-code, "")
    return f"its process was ended by {name}{cause}"


# --- The forkserver ---------------------------------------------------------------------------------------------------


def serve(module: str, control: socket.socket) -> None:
    """Forks until the daemon's end of `control` closes; then ends what is left."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
    served = importlib.import_module(module)
    served.prepare()
    gc.collect()
    with contextlib.suppress(OSError):
        control.send(READY)
    gc.freeze()  # What all children share is not looked at, and so not copied, in any of them.
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
        data, received = _request(control)
        if not data:
            break
        request = json.loads(data)
        if "signal" in request:
            if request["process"] in channels:
                os.kill(request["process"], request["signal"])
            continue
        channel, log = socket.socket(fileno=received[0]), received[1]
        forkserver = os.getpid()
        try:
            process = os.fork()
        except OSError as error:  # The others go on.
            os.write(log, f"it cannot be forked: {error}\n".encode())
            os.close(log)
            with channel:
                _say(channel, {"exit": CRASHED << 8})
            continue
        if process == 0:
            signal.set_wakeup_fd(-1)
            for one in (control, woken, wake, *channels.values()):
                one.close()
            os.dup2(log, 2)
            os.close(log)
            _run(served.main, channel, ProcessLimits(**request["fork"]), forkserver)
        os.close(log)
        channels[process] = channel
    _end(channels)


def _request(control: socket.socket) -> tuple[bytes, list[int]]:
    """What the daemon asks for, with descriptors; nothing once it is gone."""
    try:
        data, received, _, _ = socket.recv_fds(control, 4096, 2)
    except ConnectionError:  # It has not read that all is ready.
        return b"", []
    return data, received


def _end(processes: Iterable[int]) -> None:
    """Kills what is left. It is not waited for, and nobody is woken: the sockets close as `serve` returns."""
    signal.set_wakeup_fd(-1)
    for process in processes:
        os.kill(process, signal.SIGKILL)


def _reap(channels: dict[int, socket.socket]) -> None:
    while channels:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        with channels.pop(process) as channel:
            _say(channel, {"exit": status})


def _say(channel: socket.socket, message: dict[str, Any]) -> bool:
    """Never waits, and bears a daemon that is gone: whether it is told. Begins with a line's end: the child may have
    died within a line."""
    try:
        channel.send(b"\n" + json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def _run(main: Any, channel: socket.socket, limits: ProcessLimits, forkserver: int) -> NoReturn:
    """The child, from its fork to its end."""
    status = CRASHED
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):  # SIGINT stays ignored: the daemon says when to end.
            signal.signal(number, signal.SIG_DFL)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        limits.apply()
        # The forkserver may have ended before that held; the daemon may want the child no more.
        if os.getppid() == forkserver and _say(channel, {"forked": os.getpid()}):
            main(channel)
        status = 0
    except BaseException:  # noqa: BLE001 - the process's outermost frame
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
