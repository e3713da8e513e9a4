"""What of a job its programs' text needs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """On how many processes a job runs, how its values are cut, and a worker's sizes: the batch and the columns'."""

    workers: int
    shards: int
    slice_bytes: int
    dims: Mapping[str, int]
    slices: Mapping[str, int]
    """Of each key that is no table."""
    updated_by_workers: bool = False
    waits: bool = True
    """Whether a step waits for all workers' gradients of the last one: sync."""
    commits: str = ""
    """What each step waits for all workers for before any of it is applied, in words; nothing where it does not."""
