"""What forks of the server are asked for in tests, where a check of a job would not do."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.api.problem import FieldError
from weft_server.forks import answer, waiting_for
from weft_server.problems import ProblemError
from weft_server.refusals import JobRefusedError


@dataclass(frozen=True, slots=True)
class Seen:
    body: bytes
    text: str
    roots: Sequence[Path] | None


def echo(body: bytes, text: str, roots: Sequence[Path] | None) -> Seen:
    return Seen(body, text, roots)


def forker() -> int:
    return os.getppid()


def refuse(code: str) -> None:
    errors = [FieldError(pointer="/graph", detail="it has none", node="n")]
    raise ProblemError(code, "it is none", errors=errors) if code else JobRefusedError(errors)


def forge(code: str) -> None:
    error = ProblemError("malformed-json", "it is none")
    error.problem = error.problem.model_copy(update={"code": code})
    raise error


def loop() -> None:
    os.write(2, f"{os.getpid()}\n".encode())
    while True:
        pass


def sleep() -> None:
    threading.Event().wait()


def read(path: Path) -> None:
    with waiting_for(str(path)):
        os.close(os.open(path, os.O_RDONLY))


def end(status: int) -> None:
    """By the status, or by the signal where it is negative."""
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def take(nbytes: int) -> int:
    return len(bytearray(nbytes))


def divide(by: int) -> int:
    return 1 // by


def lie() -> int:
    return "no number"  # type: ignore[return-value]


def prepare() -> None:
    pass


def main(channel: socket.socket) -> None:
    called = (echo, forker, refuse, forge, loop, sleep, read, end, take, divide, lie)
    answer(channel, {each.__name__: each for each in called})
