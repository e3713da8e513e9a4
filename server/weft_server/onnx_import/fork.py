"""`python -m weft_server.onnx_import.fork`: reads models that nobody vouches for, in a fork of its own with bounds.

A request is a line on standard input, `weft_server.onnx_import.request.ModelRequest` as JSON; its outcome is a line on
standard output. The process ends when its input does, in the middle of a model too. It does one thing at a
time, and holds nothing of what it read.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Final

from weft.api.problem import FieldError
from weft_graph.schema import schemas
from weft_server.onnx_import.reading import outcome_of
from weft_server.onnx_import.request import ModelLimits, ModelOutcome, ModelRequest

OUTCOME: Final = "outcome.json"

_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_OPEN_FILES: Final = 256


def main() -> None:
    """Serves until the end of the input."""
    _leave_the_network()
    schemas()  # every fork has the operators then
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        outcome = _answered(ModelRequest.model_validate_json(line))
        sys.stdout.write(f"{outcome.model_dump_json()}\n")
        sys.stdout.flush()


def _answered(request: ModelRequest) -> ModelOutcome:
    reader = os.getpid()
    pid = os.fork()
    if pid == 0:
        _in_the_fork(request, reader)
    status, peak_bytes, is_late = _awaited(pid, request.limits.seconds)
    outcome = _outcome(request, status, is_late)
    return outcome.model_copy(update={"peak_bytes": peak_bytes})


def _in_the_fork(request: ModelRequest, reader: int) -> None:
    """Never returns. Ends at once where the reader does."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != reader:
            return  # it has ended before that held
        _bound(request.limits)
        outcome = outcome_of(request)
        (Path(request.folder) / OUTCOME).write_text(outcome.model_dump_json())
        code = 0
    finally:
        os._exit(code)  # nothing of the parent's is flushed or closed twice


def _bound(limits: ModelLimits) -> None:
    """Nothing that is read makes the process take more than this."""
    seconds = int(limits.seconds) + 1
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an error then, which has a message
    signal.alarm(seconds + 1)  # should the parent be gone
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)


def _awaited(pid: int, seconds: float) -> tuple[int, int, bool]:
    """(the status it ended with, its peak of resident memory, whether it was killed because it took too long)."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(sys.stdin.fileno(), 0)  # which tells of its end alone: the server is gone
        found = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        ended = handle in found
        if not ended:
            os.kill(pid, signal.SIGKILL)
        if sys.stdin.fileno() in found:
            os._exit(1)
    finally:
        os.close(handle)
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_maxrss * 1024, not ended


def _outcome(request: ModelRequest, status: int, is_late: bool) -> ModelOutcome:
    killer = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if is_late or killer in {signal.SIGXCPU, signal.SIGALRM}:
        return _refused(f"reading the model takes more than {request.limits.seconds:g} s")
    if status == 0:
        return ModelOutcome.model_validate_json((Path(request.folder) / OUTCOME).read_bytes())
    if killer == signal.SIGKILL:
        return _refused("reading the model takes more memory than this machine has")
    how = f"signal {killer}" if killer else f"exit code {os.waitstatus_to_exitcode(status)}"
    memory = f"reading the model broke off ({how}), at most {request.limits.memory_bytes} bytes of memory being allowed"
    return _refused(memory).model_copy(update={"is_defect": killer in {signal.SIGSEGV, signal.SIGBUS}})


def _refused(detail: str) -> ModelOutcome:
    return ModelOutcome(errors=[FieldError(pointer="", detail=detail)])


def _leave_the_network() -> None:
    """Into a network of its own, without a way out, where the system lets a process do so."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


if __name__ == "__main__":
    main()
