"""The probes whose times the cost model's constants come from: one key, one worker, one shard. Pure values.

Imported by the worker's side too, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from store_cases import KIB, MIB

SMALL_SLICE_BYTES = 8 * KIB
"""Many slices for few bytes: tells what a slice costs from what a byte costs."""
SMALL_FRAME_BYTES = 128 * KIB


@dataclass(frozen=True, slots=True)
class Probe:
    """A round trip of a key of `nbytes`: one push, then `pulls` of the new value at once.

    `slice_bytes`, `frame_bytes`: None for what the store takes by itself; the latter are both ends'.
    """

    nbytes: int
    pulls: int = 1
    slice_bytes: int | None = None
    frame_bytes: int | None = None

    @property
    def iterations(self) -> int:
        return 100 if self.nbytes < MIB else 24 if self.nbytes < 8 * MIB else 4 if self.nbytes < 32 * MIB else 2

    @property
    def name(self) -> str:
        size = f"{self.nbytes // MIB} MiB" if self.nbytes >= MIB else f"{self.nbytes // KIB} KiB"
        more = [f"{self.pulls} pulls"] if self.pulls > 1 else []
        more += [f"slices of {self.slice_bytes // KIB} KiB"] if self.slice_bytes else []
        more += [f"frames of {self.frame_bytes // KIB} KiB"] if self.frame_bytes else []
        return ", ".join([size, *more])

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Measured:
    """A probe's medians, for one iteration: seconds on the clock, processor's seconds by role, counts."""

    probe: Probe
    time_s: float
    processor_s: Mapping[str, float]
    push_frames: float
    pull_frames: float
    slices: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "name": self.probe.name}


def probes() -> tuple[Probe, ...]:
    """What is measured: 4 KiB to 64 MiB, and what tells slices, frames, calls, pushes and pulls apart."""
    sizes = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 24 * MIB, 64 * MIB)
    return (
        *(Probe(size) for size in sizes),
        *(Probe(size, pulls=pulls) for size, pulls in ((4 * KIB, 4), (MIB, 3), (16 * MIB, 3))),
        *(Probe(size, slice_bytes=SMALL_SLICE_BYTES) for size in (64 * KIB, 512 * KIB, 2 * MIB)),
        Probe(512 * KIB, pulls=3, slice_bytes=SMALL_SLICE_BYTES),
        *(Probe(size, frame_bytes=SMALL_FRAME_BYTES) for size in (4 * MIB, 16 * MIB)),
    )
