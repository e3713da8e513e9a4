"""A file that is replaced in one move, or stays as it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file beside `target` that takes its place when the block ends well, and is gone when it does not.

    A link is followed. What is there and no regular file, a device or a pipe, is written to and never replaced.
    Raises OSError, which names what the user named: the folder that cannot be written in, or the target.
    """
    target = target.resolve()
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:
            yield file
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}.partial")
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(target))
    try:
        file = scratch.open("wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(target.parent)) from None
    try:
        with file:
            yield file
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
