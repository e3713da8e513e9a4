"""What takes long is computed where it can be stopped: on a thread where it is small, else in a fork with limits.

A thread would hold the interpreter under everybody's calls, and take whatever a hostile graph makes it take. A fork of
the server's forkserver (`weft.agent.children`) begins in milliseconds and leaves nothing behind. It is asked for a
function by its name, with a frame for each argument, and answers with an `_Outcome` and the frames of what the function
returned. Texts and bytes are frames as they are; all else is JSON and is validated like a user's: a fork that a graph
has taken over can answer nonsense, and nothing more.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_type_hints

from anyio import to_thread
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from weft.agent.children import Child, ForkError, Forkserver, ProcessLimits, messages, write_message
from weft.api.base import Model
from weft.api.problem import FieldError
from weft_server.problems import KINDS, ProblemError
from weft_server.queues import HasLeft
from weft_server.refusals import CallerLeftError, JobRefusedError, NoProcessError

_T = TypeVar("_T")

LOOK_S: Final = 0.25
"""Between two looks at whether the caller of what runs is still there."""
STOP_S: Final = 1.0
"""For a thread to end that is stopped: what it computes in C, it computes to the end."""
_OWN_FAULT: Final = 0.5
"""Part of its time that a fork has to have computed before it is told that it takes too long."""
_NAMED: Final = 300
"""Characters of what a fork says that it waits for."""
_PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "HOME", "TMPDIR")
"""Of the environment: no token is in these."""
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class LimitError(Exception):
    """What was computed takes more than it may: time or memory."""

    def __init__(self, what: str, waits_for: str = "") -> None:
        """`what`: of what it takes more, how much; `waits_for`: what it waited for then, if for anything."""
        super().__init__(f"takes more than {what}" + (f": it waits for {waits_for}" if waits_for else ""))
        self.waits_for = waits_for


class ForkFailedError(Exception):
    """A fork has crashed, or met what is a defect of the server's. The log has the traceback."""


_waits: ContextVar[Callable[[str], None]] = ContextVar("_waits", default=lambda _what: None)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Within the block, what is computed waits for something that may not answer, such as a file."""
    say = _waits.get()
    say(what)
    try:
        yield
    finally:
        say("")


# --- The server's side ------------------------------------------------------------------------------------------------


class Forks:
    """Computes on threads and in forks of one forkserver, which is started when first needed. Belongs to one event
    loop."""

    def __init__(self, module: str) -> None:
        """`module`: its `prepare()` imports what is needed, its `main` is `answer` with the functions that may be
        called."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._forkserver = Forkserver(module, {**environment, **_ONE_THREAD})
        self._stuck: set[asyncio.Future[Any]] = set()
        """Threads that did not end when they were stopped: while there are any, all is computed in forks."""

    async def run(
        self,
        limits: ProcessLimits,
        has_left: HasLeft,
        function: Callable[..., _T],
        *arguments: object,
        is_small: bool = False,
    ) -> _T:
        """What the function returns or raises. It has to change nothing but what it returns: it is stopped at any
        step, once its time is over or its caller has left.

        Raises CallerLeftError and LimitError; of a fork also NoProcessError and ForkFailedError, and of what its
        function raises ProblemError and JobRefusedError alone.
        """
        on_thread = is_small and not self._stuck
        call = _OnThread(function, arguments) if on_thread else _InFork(self._forkserver, limits, function, arguments)
        loop = asyncio.get_running_loop()
        until = None if limits.seconds is None else loop.time() + limits.seconds
        task = asyncio.ensure_future(to_thread.run_sync(call))
        try:
            while not (await asyncio.wait({task}, timeout=_pause(until, loop.time())))[0]:
                if until is not None and loop.time() >= until:
                    raise call.lateness(limits.seconds or 0.0)
                if await has_left():
                    raise CallerLeftError
        finally:
            if not task.done():
                call.stop()
                await asyncio.wait({task}, timeout=STOP_S)
            if not task.done():
                self._stuck.add(task)
                task.add_done_callback(self._stuck.discard)
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        result: _T = task.result()
        return result

    def close(self) -> None:
        """Ends the forkserver, and with it all its forks. Idempotent."""
        self._forkserver.close()


def _pause(until: float | None, now: float) -> float:
    return LOOK_S if until is None else min(LOOK_S, max(until - now, 0.0))


class _StoppedError(BaseException):
    """Raised where the thread is. No handler of errors takes it for one."""


class _OnThread:
    """One call of a function on the thread that calls this, which another thread may stop."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[object]) -> None:
        self.waits_for = ""
        self._function, self._arguments = function, arguments
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._was_stopped = False

    def __call__(self) -> Any:
        """Raises RuntimeError once it was stopped."""
        try:
            with self._lock:
                if self._was_stopped:
                    raise _StoppedError
                self._thread = threading.get_ident()
            _waits.set(lambda what: setattr(self, "waits_for", what))  # in a context of this call's alone
            try:
                return self._function(*self._arguments)
            finally:
                with self._lock:  # here it is raised, where the function returned as it was stopped
                    self._thread = None
        except _StoppedError:
            raise RuntimeError("it was stopped") from None

    def lateness(self, seconds: float) -> Exception:
        """What it means that there is no answer after so long."""
        return LimitError(f"{seconds:g} s", self.waits_for)

    def stop(self) -> None:
        """The thread raises within milliseconds, or after what it waits for or computes in C."""
        with self._lock:
            self._was_stopped = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(_StoppedError)
                )


class _InFork:
    """The same in a fork, which the thread waits for."""

    def __init__(
        self, forkserver: Forkserver, limits: ProcessLimits, function: Callable[..., Any], arguments: Sequence[object]
    ) -> None:
        self.waits_for = ""
        self._forkserver, self._limits = forkserver, limits
        self._function, self._arguments = function, arguments
        self._child: Child | None = None
        self._was_stopped = False

    def __call__(self) -> Any:
        frames = _written(self._function, self._arguments)
        try:
            child = self._child = self._forkserver.fork(self._limits)
        except ForkError as error:
            raise NoProcessError(str(error)) from error
        if self._was_stopped:
            child.kill()
        child.send({"call": self._function.__name__}, frames)
        answered: Sequence[bytearray] = ()
        for message in child.lines():
            self.waits_for = str(message.get("waits_for", ""))[:_NAMED]
            answered = message.get("frames", ())
        if not answered:
            raise self._loss(child)
        outcome, *values = answered
        try:
            _raise(_Outcome.model_validate_json(outcome, strict=True), self._limits)
            return _value_of(get_type_hints(self._function)["return"], iter(values))
        except (ValidationError, StopIteration, UnicodeDecodeError) as error:
            raise ForkFailedError(f"{self._function.__name__}: its fork's answer is none") from error

    def lateness(self, seconds: float) -> Exception:
        """As of a thread; a machine that has given it little of its processors says nothing about the call."""
        had = _processor_seconds(self._child.process) if self._child is not None else 0.0
        if not self.waits_for and had is not None and had < seconds * _OWN_FAULT:
            return NoProcessError(f"the machine is busy: in {seconds:g} s it had {had:.1f} s of processor time for it")
        return LimitError(f"{seconds:g} s", self.waits_for)

    def stop(self) -> None:
        self._was_stopped = True
        if self._child is not None:
            self._child.kill()

    def _loss(self, child: Child) -> Exception:
        """Why there is no answer."""
        if child.status is None:
            return NoProcessError("the process that worked on it was lost")
        if not child.process:
            return NoProcessError("the machine has no process for it")
        match -os.waitstatus_to_exitcode(child.status):
            case signal.SIGTERM:  # with the server, where all processes of a terminal or a service are told to end
                return NoProcessError("the process that worked on it was told to end")
            case signal.SIGKILL:
                return LimitError("the memory that this machine has")
            case signal.SIGXCPU | signal.SIGALRM if self._limits.seconds is not None:
                return LimitError(f"{self._limits.seconds:g} s")
        logged = f"; its log ended with: {child.last_logged}" if child.last_logged else ""
        return ForkFailedError(f"{self._function.__name__} in a fork: {child.ending}{logged}")


def _processor_seconds(process: int) -> float | None:
    """Of a child, 0 where it is not forked yet; None where it has ended or the system does not tell."""
    if not process:
        return 0.0
    try:
        columns = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(columns[11]) + int(columns[12])) / os.sysconf("SC_CLK_TCK")


# --- Values as frames -------------------------------------------------------------------------------------------------


class _Outcome(Model):
    """How a call ended. After `returned` come the frames of the value."""

    kind: Literal["returned", "problem", "refused", "memory", "failed"]
    code: str = ""
    detail: str = ""
    errors: list[FieldError] = Field(default_factory=list)


def _raise(outcome: _Outcome, limits: ProcessLimits) -> None:
    """Raises what the function has raised, if it has."""
    match outcome.kind:
        case "problem" if outcome.code in KINDS:
            raise ProblemError(outcome.code, outcome.detail, errors=outcome.errors)
        case "refused":
            raise JobRefusedError(outcome.errors)
        case "memory":
            raise LimitError(f"{limits.memory_bytes} bytes of memory")
        case "problem" | "failed":
            raise ForkFailedError(outcome.detail)


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
    if is_dataclass(kind):
        types = get_type_hints(kind)
        return [frame for each in fields(kind) for frame in _frames_of(types[each.name], getattr(value, each.name))]
    raw = _raw_fields(kind)
    small = value.model_copy(update=dict.fromkeys(raw, "")) if raw else value
    return [_adapter(kind).dump_json(small, by_alias=True), *(getattr(value, name).encode() for name in raw)]


def _value_of(kind: Any, frames: Iterator[bytes | bytearray]) -> Any:
    """Raises ValidationError, StopIteration, UnicodeDecodeError where the frames are no such value."""
    if kind is bytes:
        return bytes(next(frames))
    if kind is str:
        return next(frames).decode()
    if is_dataclass(kind):
        assert isinstance(kind, type)
        types = get_type_hints(kind)
        return kind(**{each.name: _value_of(types[each.name], frames) for each in fields(kind)})
    value = _adapter(kind).validate_json(bytes(next(frames)), strict=True)
    raw = _raw_fields(kind)
    return value.model_copy(update={name: next(frames).decode() for name in raw}) if raw else value


@cache
def _raw_fields(kind: Any) -> Sequence[str]:
    """Fields of a model whose text is a frame of its own: it is JSON itself, and may be large."""
    if not isinstance(kind, type) or not issubclass(kind, BaseModel):
        return []
    extra = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    return [name for name, each in extra.items() if isinstance(each, dict) and "contentMediaType" in each]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


# --- The fork's side --------------------------------------------------------------------------------------------------


def answer(channel: socket.socket, functions: Mapping[str, Callable[..., object]]) -> None:
    """Calls the one function that the server asks for."""
    with channel.makefile("rb") as reader:
        request = next(messages(reader), None)
    if request is None:
        return  # it was stopped meanwhile
    _waits.set(lambda what: write_message(channel, {"waits_for": what}))
    outcome, found = _called(functions, request["call"], request.get("frames", ()))
    write_message(channel, {}, [outcome.model_dump_json().encode(), *found])


def _called(
    functions: Mapping[str, Callable[..., object]], name: str, values: Sequence[bytearray]
) -> tuple[_Outcome, Sequence[bytes]]:
    try:
        types, frames = get_type_hints(functions[name]), iter(values)
        arguments = [_value_of(types[each], frames) for each in signature(functions[name]).parameters]
        return _Outcome(kind="returned"), _frames_of(types["return"], functions[name](*arguments))
    except ProblemError as error:
        told = error.problem
        return _Outcome(kind="problem", code=told.code, detail=told.detail, errors=told.errors), ()
    except JobRefusedError as error:
        return _Outcome(kind="refused", errors=error.errors), ()
    except MemoryError:
        return _Outcome(kind="memory"), ()
    except Exception as error:  # noqa: BLE001  # whatever a graph brings about
        sys.excepthook(*sys.exc_info())
        return _Outcome(kind="failed", detail=f"{name} in a fork raised {type(error).__name__}: its log says where"), ()
