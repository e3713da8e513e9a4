"""Steps on many machines, as the model sees them: workers against shards, and where more workers stop helping.

Pure. Every process has a host of its own; what is not measured but assumed stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cost_model import Constants, Frames, Machines, Processes
from step_formula import Estimate, estimate
from step_simulation import simulate
from store_cases import FLOAT_BYTES, resnet50_shapes

WORKERS = tuple(8 << n for n in range(8))
SHARDS = tuple(1 << n for n in range(9))
GIGABITS = (10, 100)
LATENCY_S = 20e-6
"""One way between two hosts of a data centre."""
CORES = 4
"""Of a host; a process of the store uses two at most."""

LARGE_KEYS = 200
LARGE_BYTES = 1_000_000_000
COMPUTE_S = 0.25
"""A step's computing, which the exchange may hide behind."""
PLOTTED_SHARDS = (1, 4, 16, 64, 256)
SIMULATED_FRAMES = 4_000
"""More frames than this, of all workers together, are left to the formulas."""


Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Model:
    """A list of keys by size in bytes."""

    name: str
    key_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A step with so many workers and shards, on paper."""

    workers: int
    shards: int
    paper: Estimate


@dataclass(frozen=True, slots=True)
class Simulated:
    """The same by simulation."""

    model: str
    gigabits: int
    workers: int
    shards: int
    time_s: float


def models() -> tuple[Model, ...]:
    resnet = tuple(FLOAT_BYTES * math.prod(shape) for shape in resnet50_shapes())
    return Model("ResNet-50", resnet), Model("1 GB", (LARGE_BYTES // LARGE_KEYS,) * LARGE_KEYS)


def network(gigabits: float) -> Machines:
    return Machines(False, tuple(float(n + 1) for n in range(CORES)), gigabits * 1e9, LATENCY_S)


def cells(
    model: Model,
    gigabits: float,
    constants: Constants,
    frames: Frames,
    *,
    workers: Sequence[int] = WORKERS,
    shards: Sequence[int] = SHARDS,
) -> list[Cell]:
    """Every pair, shards the slower to change."""
    machines = network(gigabits)
    return [
        Cell(each, of, estimate(model.key_bytes, Processes(each, of), constants, machines, frames))
        for of in shards
        for each in workers
    ]


def simulated(
    constants: Constants, frames: Frames, *, frames_at_most: int = SIMULATED_FRAMES, progress: Progress = str
) -> list[Simulated]:
    """What of the plotted is small enough to be simulated."""
    found = []
    for model in models():
        for gigabits in GIGABITS:
            for cell in cells(model, gigabits, constants, frames, shards=PLOTTED_SHARDS):
                if cell.workers * cell.paper.frames <= frames_at_most:
                    progress(
                        f"{model.name} with {cell.workers} workers and {cell.shards} shard{'s' * (cell.shards > 1)}"
                    )
                    processes = Processes(cell.workers, cell.shards)
                    step = simulate(model.key_bytes, processes, constants, network(gigabits), frames)
                    found.append(Simulated(model.name, gigabits, cell.workers, cell.shards, step.time_s))
    return found


def knee(row: Sequence[Cell]) -> Cell | None:
    """Of one number of shards: the last at which a worker, not a shard, is what the step waits for."""
    before = [cell for cell in row if cell.paper.bound.startswith("worker")]
    return before[-1] if before else None


def hidden(row: Sequence[Cell], compute_s: float = COMPUTE_S) -> Cell | None:
    """Of one number of shards: the last whose exchange is no longer than the computing."""
    before = [cell for cell in row if cell.paper.time_s <= compute_s]
    return before[-1] if before else None
