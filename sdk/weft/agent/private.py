"""Files of weft's own are for one user: on loopback there are no tokens, and files' permissions are what protects."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

UMASK = 0o077
"""Of daemons and of what they start: nobody else reads or writes what they make."""


def make_directory(directory: Path, own: Iterable[str] = ()) -> None:
    """Makes a directory that others cannot look into. One that is there is left as it is, its user's choice; but what
    is `own` of weft's in it, made by an earlier release, is closed to others."""
    directory.mkdir(mode=0o777 & ~UMASK, parents=True, exist_ok=True)
    for name in own:
        with contextlib.suppress(OSError):  # it is not there, or is another user's
            path = directory / name
            path.chmod(path.stat().st_mode & ~UMASK & 0o777)


def opener(path: str, flags: int) -> int:
    """For `open`: a new file is this user's alone."""
    return os.open(path, flags, 0o666 & ~UMASK)
