"""Files that a process holds open and somebody deletes, with their folder say: their names are given to new ones."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from weft.agent.private import opener


class FileLock:
    """A file that one process at a time locks. It holds the process's number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether the file that is locked has no name any more, so that others can lock another one. Does not block."""
        return self._file is not None and not os.fstat(self._file.fileno()).st_nlink

    def take(self) -> bool:
        """Locks the file that has the path now, and makes it where there is none; one locked before is released.

        False where another process has it: then nothing is changed. Raises OSError.
        """
        file = open(self.path, "a+", opener=opener)  # noqa: SIM115 - it is locked as long as it is open
        if not lock(file):
            file.close()
            return False
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self.release()
        self._file = file
        return True

    def release(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def lock(file: IO[str]) -> bool:
    """Locks an open file until it is closed. False where another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class OwnLog:
    """The file that standard error goes to. None is reopened that had no name at first, or is no regular file."""

    def __init__(self) -> None:
        self._path: str | None = None
        with suppress(OSError):  # it may be closed
            found = os.fstat(2)
            if stat.S_ISREG(found.st_mode) and found.st_nlink:
                self._path = os.readlink("/proc/self/fd/2")

    def reopen(self) -> None:
        """Where the file was deleted, standard error and output go to a new one of its name, once its folder is there
        again."""
        if self._path is None:
            return
        with suppress(OSError):
            before = os.fstat(2)
            if before.st_nlink:
                return
            with open(self._path, "ab", opener=opener) as file:
                for number in (1, 2):
                    if os.path.samestat(os.fstat(number), before):
                        os.dup2(file.fileno(), number)
