"""Where a table's rows are kept on a shard: a setting of the shard's process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAST_MEMORY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's values and state take at most about `memory_bytes` of memory on a shard: what may become larger lies in
    a file of `directory`, which may be given as a string. Its index of ids, and what counts uses, are in memory always.
    Raises ValueError, also for what is no path or no whole number."""

    directory: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike):
            raise ValueError(f"directory: a path, not {self.directory!r}")
        object.__setattr__(self, "directory", Path(self.directory))
        if isinstance(self.memory_bytes, bool) or not isinstance(self.memory_bytes, int):
            raise ValueError(f"memory_bytes: a whole number of bytes, such as 1 << 30, not {self.memory_bytes!r}")
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {LEAST_MEMORY_BYTES}, not {self.memory_bytes}")
