"""What takes long is computed in processes of their own: a thread would hold the interpreter under everybody's calls.

The server has one process, started when first needed, that has imported what a check needs. It forks for each
computation, so that one begins in milliseconds and leaves nothing behind. A fork ends when its caller closes the
connection to it: because the caller has left, the time is over, or the server has ended.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import pickle  # between processes of the server; nothing that a user sends is ever unpickled
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from weft.api.problem import FieldError
from weft_server.refusals import JobRefusedError

_T = TypeVar("_T")

LARGE_BYTES: Final = 64 << 10
"""Of a document: smaller ones are computed on a thread sooner than a process has begun."""
_NO_PROCESS: Final = "the server's machine has no process for checking it now: send it again later"
_LENGTH: Final = struct.Struct("<Q")
_PIECE_BYTES: Final = 1 << 18
_NICE: Final = 5
"""Below the server and below jobs that run."""
PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "HOME", "TMPDIR")
"""Of the environment: no token is in these."""
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Apart:
    """Computes in forks of one process. Belongs to one event loop."""

    def __init__(self, module: str, memory_bytes: int) -> None:
        """`module`: what its functions need, imported before any is called. A fork may take so much memory."""
        self._module = module
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """What the function returns or raises. Cancelled, it ends the fork. Raises JobRefusedError where that is
        lost."""
        with await self._forked() as near:
            loop = asyncio.get_running_loop()
            request = pickle.dumps((function, arguments, self._memory_bytes))
            try:
                await loop.sock_sendall(near, _LENGTH.pack(len(request)) + request)
                length = _LENGTH.unpack(await _received(near, _LENGTH.size))[0]
                found, raised = pickle.loads(await _received(near, length))  # noqa: S301  # our own fork's
            except (EOFError, OSError) as error:
                detail = (
                    "the process that checked the job ended in the middle of it, as it does where it needs more than "
                    f"{self._memory_bytes} bytes of memory: a smaller graph needs less"
                )
                raise JobRefusedError([FieldError(pointer="/graph", detail=detail)]) from error
        if raised is not None:
            raise raised
        result: _T = found
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
                [sys.executable, "-c", code], stdin=theirs.fileno(), env={**kept, **ONE_THREAD}
            )


async def _received(connection: socket.socket, nbytes: int) -> bytearray:
    """Raises EOFError where the other side ends before."""
    loop, whole = asyncio.get_running_loop(), bytearray()
    while len(whole) < nbytes:
        piece = await loop.sock_recv(connection, min(_PIECE_BYTES, nbytes - len(whole)))
        if not piece:
            raise EOFError
        whole += piece
    return whole


def serve(module: str) -> None:
    """The process that forks: one connection for each fork comes with a byte on standard input, which is a socket."""
    importlib.import_module(module)
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
                    _in_the_fork(socket.socket(fileno=descriptors[0]))
            except OSError:
                pass  # no process is to be had: the caller reads the end of the connection
            os.close(descriptors[0])


def _in_the_fork(connection: socket.socket) -> None:
    """Never returns."""
    try:
        os.nice(_NICE)
        connection.sendall(b"\0")
        request = connection.makefile("rb")
        (length,) = _LENGTH.unpack(request.read(_LENGTH.size))
        function, arguments, memory_bytes = pickle.loads(request.read(length))  # noqa: S301  # the server's
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        answer = pickle.dumps(_called(function, arguments), protocol=pickle.HIGHEST_PROTOCOL)
        connection.sendall(_LENGTH.pack(len(answer)) + answer)
    finally:
        os._exit(0)


def _called(function: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, Exception | None]:
    try:
        return function(*arguments), None
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001  # the caller's
        return None, error


def _end_with(connection: socket.socket) -> None:
    """Ends the process once the caller has closed its side."""
    try:
        connection.recv(1)
    finally:
        os._exit(1)
