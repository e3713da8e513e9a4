"""What takes long is computed in processes of their own: a thread would hold the interpreter under everybody's calls.

The server has one process, started when first needed, that has imported what a check needs. It forks for each
computation, so that one begins in milliseconds and leaves nothing behind. A fork ends when its caller closes the
connection to it: because the caller has left, the time is over, or the server has ended.

A message is its number of frames and each frame after its length. The first frame of a request names a function of the
module; of an answer it is an `_Outcome` in JSON. The others are values: texts and bytes as they are, so that nobody
parses a large document to pass it on; all else is JSON, and is validated like a user's.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from typing import Any, BinaryIO, Final, Literal, NoReturn, TypeVar, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from weft.api.base import Model
from weft.api.problem import FieldError
from weft_server.planning.plan import JobPlan
from weft_server.problems import KINDS, ProblemError
from weft_server.refusals import JobRefusedError

_T = TypeVar("_T")

LARGE_BYTES: Final = 64 << 10
"""Of a document: smaller ones are computed on a thread sooner than a process has begun."""
_NO_PROCESS: Final = "the server's machine has no process for checking it now: send it again later"
_LENGTH: Final = struct.Struct("<Q")
_PIECE_BYTES: Final = 1 << 18
_MOST_FRAMES: Final = 64
_NICE: Final = 5
"""Below the server and below jobs that run."""
PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "HOME", "TMPDIR")
"""Of the environment: no token is in these."""
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Apart:
    """Computes in forks of one process. Belongs to one event loop."""

    def __init__(self, module: str, memory_bytes: int) -> None:
        """`module`: it has what may be called in `CALLED`, and is imported before. A fork may take so much memory."""
        self._module = module
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """What a function of the module's `CALLED` returns. Cancelled, it ends the fork.

        Raises ProblemError and JobRefusedError as the function does, JobRefusedError where the fork is lost, and
        ForkFailedError where the function raised anything else.
        """
        request = _packed([function.__name__.encode(), *_written(function, arguments)])
        with await self._forked() as near:
            try:
                await asyncio.get_running_loop().sock_sendall(near, request)
                outcome, *values = await _read(near)
            except (EOFError, OSError) as error:
                detail = (
                    "the process that checked the job ended in the middle of it, as it does where it needs more than "
                    f"{self._memory_bytes} bytes of memory: a smaller graph needs less"
                )
                raise JobRefusedError([FieldError(pointer="/graph", detail=detail)]) from error
        try:
            _raise(_Outcome.model_validate_json(outcome, strict=True))
            result: _T = _value_of(get_type_hints(function)["return"], iter(values))
        except (ValidationError, StopIteration, UnicodeDecodeError) as error:
            raise ForkFailedError("its answer is none") from error
        return result

    def close(self) -> None:
        """Ends the process, and with it all that it computes. Idempotent."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._control = None

    async def _forked(self) -> socket.socket:
        """The connection to a fork, which has said that it waits for what it is to compute. A process that was lost is
        started again."""
        for is_last in (False, True):
            if self._control is None:
                self._start()
            assert self._control is not None
            control = self._control
            near, far = socket.socketpair()
            try:
                with far:
                    near.setblocking(False)
                    socket.send_fds(control, [b"\0"], [far.fileno()])
                await _received(near, 1)
            except (EOFError, OSError):
                near.close()
                if is_last:
                    raise JobRefusedError([FieldError(pointer="/graph", detail=_NO_PROCESS)]) from None
                if self._control is control:
                    self.close()
            except BaseException:
                near.close()
                raise
            else:
                return near
        raise AssertionError

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        code = f"from weft_server.planning.apart import serve; serve({self._module!r})"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own
                [sys.executable, "-c", code, str(self._memory_bytes)], stdin=theirs.fileno(), env={**kept, **ONE_THREAD}
            )


async def _read(connection: socket.socket) -> list[bytearray]:
    """The frames of a message. Raises EOFError."""
    count = _LENGTH.unpack(await _received(connection, _LENGTH.size))[0]
    return [
        await _received(connection, _LENGTH.unpack(await _received(connection, _LENGTH.size))[0])
        for _ in range(min(count, _MOST_FRAMES))
    ]


async def _received(connection: socket.socket, nbytes: int) -> bytearray:
    """Raises EOFError where the other side ends before."""
    loop, whole = asyncio.get_running_loop(), bytearray()
    while len(whole) < nbytes:
        piece = await loop.sock_recv(connection, min(_PIECE_BYTES, nbytes - len(whole)))
        if not piece:
            raise EOFError
        whole += piece
    return whole


# --- Messages ---------------------------------------------------------------------------------------------------------


class ForkFailedError(Exception):
    """A fork met what is a defect of the server's; its log has the traceback."""


class _Outcome(Model):
    """How a call ended. After `returned` come the frames of the value."""

    kind: Literal["returned", "problem", "refused", "failed"]
    code: str = ""
    detail: str = ""
    errors: list[FieldError] = Field(default_factory=list)


def _raise(outcome: _Outcome) -> None:
    """Raises what the function has raised, if it has."""
    match outcome.kind:
        case "problem" if outcome.code in KINDS:
            raise ProblemError(outcome.code, outcome.detail, errors=outcome.errors)
        case "refused":
            raise JobRefusedError(outcome.errors)
        case "problem" | "failed":
            raise ForkFailedError(outcome.detail)


def _packed(frames: Sequence[bytes]) -> bytes:
    lengths = [_LENGTH.pack(len(frame)) for frame in frames]
    return b"".join([_LENGTH.pack(len(frames)), *(part for pair in zip(lengths, frames, strict=True) for part in pair)])


def _written(function: Callable[..., object], arguments: Sequence[object]) -> list[bytes]:
    """The frames of a function's arguments, by the types that it declares."""
    types, names = get_type_hints(function), list(signature(function).parameters)
    given = zip(names[: len(arguments)], arguments, strict=True)
    return [frame for name, value in given for frame in _frames_of(types[name], value)]


def _frames_of(kind: Any, value: Any) -> list[bytes]:
    if kind is bytes:
        return [value]
    if kind is str:
        return [value.encode()]
    if kind is JobPlan:
        small = value.model_copy(update={"programs_json": ""})
        return [small.model_dump_json().encode(), value.programs_json.encode()]
    if is_dataclass(kind):
        types = get_type_hints(kind)
        return [frame for each in fields(kind) for frame in _frames_of(types[each.name], getattr(value, each.name))]
    return [_adapter(kind).dump_json(value)]


def _value_of(kind: Any, frames: Iterator[bytes | bytearray]) -> Any:
    """Raises ValidationError, StopIteration, UnicodeDecodeError where the frames are no such value."""
    if kind is bytes:
        return bytes(next(frames))
    if kind is str:
        return next(frames).decode()
    if kind is JobPlan:
        small = JobPlan.model_validate_json(next(frames), strict=True)
        return small.model_copy(update={"programs_json": next(frames).decode()})
    if is_dataclass(kind):
        assert isinstance(kind, type)
        types = get_type_hints(kind)
        return kind(**{each.name: _value_of(types[each.name], frames) for each in fields(kind)})
    return _adapter(kind).validate_json(next(frames), strict=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# --- The process that forks -------------------------------------------------------------------------------------------


def serve(module: str) -> None:
    """The process that forks: one connection for each fork comes with a byte on standard input, which is a socket."""
    called = {each.__name__: each for each in importlib.import_module(module).CALLED}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server ends this process
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as control:
        while True:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                return
            try:
                if os.fork() == 0:
                    _in_the_fork(socket.socket(fileno=descriptors[0]), called, int(sys.argv[1]))
            except OSError:
                pass  # no process is to be had: the caller reads the end of the connection
            os.close(descriptors[0])


def _in_the_fork(
    connection: socket.socket, functions: Mapping[str, Callable[..., object]], memory_bytes: int
) -> NoReturn:
    """From the fork to its end."""
    try:
        os.nice(_NICE)
        connection.sendall(b"\0")
        request = connection.makefile("rb")
        name, *values = [_frame(request) for _ in range(*_LENGTH.unpack(request.read(_LENGTH.size)))]
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        connection.sendall(_answer(functions, name.decode(), values))
    except BaseException:  # noqa: BLE001  # the process's outermost frame
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(0)


def _frame(request: BinaryIO) -> bytes:
    return request.read(*_LENGTH.unpack(request.read(_LENGTH.size)))


def _answer(functions: Mapping[str, Callable[..., object]], name: str, values: Sequence[bytes]) -> bytes:
    found: list[bytes] = []
    try:
        types, frames = get_type_hints(functions[name]), iter(values)
        arguments = [_value_of(types[each], frames) for each in signature(functions[name]).parameters]
        found = _frames_of(types["return"], functions[name](*arguments))
        outcome = _Outcome(kind="returned")
    except ProblemError as error:
        told = error.problem
        outcome = _Outcome(kind="problem", code=told.code, detail=told.detail, errors=told.errors)
    except JobRefusedError as error:
        outcome = _Outcome(kind="refused", errors=error.errors)
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001  # whatever a graph brings about
        sys.excepthook(*sys.exc_info())
        outcome = _Outcome(kind="failed", detail=f"{name} raised {type(error).__name__}")
    return _packed([outcome.model_dump_json().encode(), *found])


def _end_with(connection: socket.socket) -> None:
    """Ends the process once the caller has closed its side."""
    try:
        connection.recv(1)
    finally:
        os._exit(1)
