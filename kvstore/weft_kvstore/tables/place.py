"""Where a table's rows are kept on a shard: a setting of the shard's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

LEAST_MEMORY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's values and state take at most about `memory_bytes` of memory on a shard: what may become larger lies in
    a file of `directory`. Its index of ids, and what counts uses, are in memory always. Raises ValueError."""

    directory: Path
    memory_bytes: int

    def __post_init__(self) -> None:
        if self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {LEAST_MEMORY_BYTES}, not {self.memory_bytes}")
