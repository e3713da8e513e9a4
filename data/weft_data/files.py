"""Opening a path that somebody else chose: a regular file, under a permitted root, never waited on."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from weft_data.errors import UnreadableFileError


def open_regular(path: str, roots: Sequence[Path] | None) -> BinaryIO:
    """The file at `path`, opened to read. With `roots`, it must lie under one of them once every link is followed.

    Raises UnreadableFileError for what is missing, not permitted, outside the roots, or not a regular file: a
    directory, a device, a pipe (which would wait for its writer).
    """
    try:
        resolved = Path(path).resolve()
        if roots is None:
            handle = os.open(resolved, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        else:
            handle = _open_under(path, resolved, roots)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a NUL in the path
        remedy = ": copy the file there, or name one that is there" if isinstance(error, FileNotFoundError) else ""
        told = f"cannot open {_looked_at(path)}: {_reason(error)}{_relative(path)}{remedy}"
        raise UnreadableFileError(told, path=path) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        told = "is a directory: name a file in it" if stat.S_ISDIR(mode) else "is not a regular file"
        raise UnreadableFileError(f"{_looked_at(path)} {told}", path=path)
    return os.fdopen(handle, "rb")


def _open_under(path: str, resolved: Path, roots: Sequence[Path]) -> int:
    for root in roots:
        base = root.resolve()
        if resolved.is_relative_to(base):
            return _open_beneath(base, resolved.relative_to(base).parts)
    allowed = ", ".join(str(root) for root in roots) or "there is none"
    raise UnreadableFileError(
        f"{_looked_at(path)} is not below a directory that jobs may read data from ({allowed}){_relative(path)}: move "
        "it there, or start weft with --data-root",
        path=path,
    )


def _open_beneath(base: Path, parts: tuple[str, ...]) -> int:
    """Opens step by step and follows no link, so that a link put there after the path was resolved leads nowhere."""
    handle = os.open(base, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    for place, part in enumerate(parts):
        kind = os.O_DIRECTORY if place < len(parts) - 1 else os.O_NONBLOCK
        try:
            deeper = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | kind, dir_fd=handle)
        finally:
            os.close(handle)
        handle = deeper
    return handle


def _looked_at(path: str) -> str:
    """The absolute path, and the machine on which it was looked for."""
    return f"{Path.cwd() / path} on machine {socket.gethostname()}"


def _relative(path: str) -> str:
    """What a relative path starts from; nothing of an absolute one."""
    return "" if Path(path).is_absolute() else f" ({path!r} starts from {Path.cwd()}, where the cluster was started)"


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
