"""How much of a shard jobs may take: settings, and what a job needs before it is opened. Values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Quotas:
    """The most that one job may take of a shard, and all jobs together; None: as much as there is.

    `bytes` are of values, of the rule's state, of what is noted of each slice, and of what waits: gradients and sums
    that are not merged, values set for versions to come, ids and rows of pulls. `keys` are those described that have a
    part on the shard, `rows` those of its tables. A job's name and term make a job. Raises ValueError for a number
    below 0.
    """

    job_bytes: int | None = None
    job_keys: int | None = None
    job_rows: int | None = None
    total_bytes: int | None = None
    total_keys: int | None = None
    total_rows: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value < 0:
                raise ValueError(f"{one.name} must be at least 0, not {value}")


NO_QUOTAS: Final = Quotas()


def option_of(setting: str) -> str:
    """The option of the shard's command line that says it."""
    return f"--{setting.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Holds:
    """Bytes, keys and rows of something."""

    nbytes: int = 0
    keys: int = 0
    rows: int = 0

    def __bool__(self) -> bool:
        return bool(self.nbytes or self.keys or self.rows)

    def __add__(self, other: Holds) -> Holds:
        return Holds(self.nbytes + other.nbytes, self.keys + other.keys, self.rows + other.rows)
