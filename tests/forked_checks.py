"""What forks of the server are asked for in tests, where a check of a job would not do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.api.problem import FieldError
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


def loop(path: Path) -> None:
    path.write_text(str(os.getpid()))
    while True:
        pass


def end(status: int) -> None:
    os._exit(status)


def take(nbytes: int) -> int:
    return len(bytearray(nbytes))


def divide(by: int) -> int:
    return 1 // by


def lie() -> int:
    return "no number"  # type: ignore[return-value]


CALLED = (echo, forker, refuse, loop, end, take, divide, lie)
