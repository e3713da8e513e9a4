"""The public keys of clients, as a directory has them now."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Final, TypeAlias

from weft_kvstore.encryption.curve_keys import CurveKeyError
from weft_kvstore.encryption.key_files import PUBLIC_SUFFIX, read_public_key

SETTLED_NS: Final = 1_000_000_000
"""What was changed less long ago is read again: a file system's clock may not tell two changes apart."""

Stamp: TypeAlias = tuple[int, int, int, int]
Found: TypeAlias = str | CurveKeyError | OSError
"""A file's key, or why it has none."""

UNSETTLED: Final[Stamp] = (0, 0, 0, 0)
"""No file's: what has it is read again at the next look."""

_log = logging.getLogger("weft.shard")


class ClientKeys:
    """Of each file that ends in .key, its key. A file that has none costs itself alone, and is logged once for as long
    as it is so. Raises OSError and CurveKeyError, which names the file, where something is wrong at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, tuple[Stamp, Found]] = {}
        self._trouble: set[str] = set()
        self._look()
        for _, found in self._files.values():
            if not isinstance(found, str):
                raise found

    def __len__(self) -> int:
        """How many files had a key at the last look."""
        return sum(isinstance(found, str) for _, found in self._files.values())

    def has(self, public: str) -> bool:
        """Whether a file has this key. What is no longer there, or cannot be read, has none."""
        try:
            self._look()
            trouble = {str(found) for _, found in self._files.values() if not isinstance(found, str)}
        except OSError as error:
            self._files, trouble = {}, {str(error)}
        for told in sorted(trouble - self._trouble):
            _log.warning("keys of clients that are not let in: %s", told)
        self._trouble = trouble
        return any(found == public for _, found in self._files.values())

    def _look(self) -> None:
        """Reads what was changed since the last look. Raises OSError where there is no directory."""
        found: dict[str, tuple[Stamp, Found]] = {}
        settled = time.time_ns() - SETTLED_NS
        for name in sorted(os.listdir(self.directory)):
            if name.startswith(".") or not name.endswith(PUBLIC_SUFFIX):
                continue
            path = self.directory / name
            try:
                stamp = _stamp(path)
                known = self._files.get(name)
                if known is not None and known[0] == stamp:
                    found[name] = known
                else:
                    key = read_public_key(path)
                    found[name] = (stamp if max(stamp[:2]) < settled else UNSETTLED), key
            except FileNotFoundError:
                continue  # It has gone meanwhile, or leads to what is not there.
            except (CurveKeyError, OSError) as error:
                found[name] = UNSETTLED, error
        self._files = found


def _stamp(path: Path) -> Stamp:
    """What changes with a file's bytes; of a link, with those that it leads to."""
    told = path.stat()
    return told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino
