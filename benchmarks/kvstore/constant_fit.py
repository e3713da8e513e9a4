"""The cost model's constants from the probes: what each unit of work costs each thread. Pure.

A thread's processor time is the sum of the counts of its work times their costs; the costs are the non-negative ones
that come nearest, each probe's error counted relative to its time (Lawson and Hanson, "Solving least squares problems",
1974, chapter 23).

Costs are a lone thread's. Where threads of a probe ran at once, each took longer than alone by what the memory
benchmarks say, and its processor time is counted by so much less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from cost_model import Constants, Cost, Frames, Machines, MemorySpeed, Processes, Role, Work
from probe import Measured
from step_costs import NEAR_BYTES, memory_of
from step_simulation import simulate
from weft_kvstore.process import MMAP_THRESHOLD_BYTES

LEAST_S = 1e-6
"""A shorter time is noise: it does not weigh more than this."""
TRIAL_WAKE_S = 1e-4
LONGEST_WAKE_S = 1e-3


def work_of(one: Measured) -> Work:
    """What one iteration of a probe amounts to."""
    pulls, nbytes = one.probe.pulls, one.probe.nbytes
    near, far = (nbytes, 0) if nbytes <= NEAR_BYTES else (0, nbytes)
    return Work(
        rounds=1,
        calls=1 + pulls,
        push_frames=one.push_frames,
        pull_frames=one.pull_frames,
        push_slices=one.slices,
        pull_slices=one.slices * pulls,
        push_near=near,
        pull_near=near * pulls,
        push_far=far,
        pull_far=far * pulls,
        mapped=nbytes * pulls if nbytes >= MMAP_THRESHOLD_BYTES else 0,
    )


def lone_share(one: Measured, memory: MemorySpeed, cores: int) -> float:
    """How much of a probe's processor time its work would take a thread that runs alone.

    All cores are taken to have been busy at once for as long as the clock's time cannot hold the processor's.
    """
    processor_s = sum(one.processor_s.values())
    if cores < 2 or one.time_s <= 0 or processor_s <= one.time_s:
        return 1.0
    together_s = min(cores * (processor_s - one.time_s) / (cores - 1), processor_s)
    return 1 - together_s / processor_s * (1 - min(memory.together / cores, 1.0))


def costs_of(measured: Sequence[Measured], shares: Sequence[float] | None = None) -> dict[Role, Cost]:
    """Costs by role, each at least 0. `shares` of the probes' processor times are counted, None: all of them."""
    counts = np.array([work_of(one).row() for one in measured], np.float64)
    unit = np.maximum(counts.max(axis=0), 1e-300)  # bytes are millions where rounds are one
    lone = np.ones(len(measured)) if shares is None else np.array(shares)
    costs = {}
    for role in Role:
        times_s = np.maximum([one.processor_s[role] for one in measured] * lone, LEAST_S)
        found, _ = nnls(counts / unit / times_s[:, None], np.ones(len(measured)))
        costs[role] = Cost(*(found / unit).tolist())
    return costs


def fit(measured: Sequence[Measured], near: MemorySpeed, far: MemorySpeed, cores: int, frames: Frames) -> Constants:
    """All constants; the time a thread takes to wake from the smallest round trip. Raises ValueError without probes."""
    if not measured:
        raise ValueError("no probes to fit constants to")
    largest = max((one for one in measured if one.probe.frame_bytes is None), key=lambda one: one.probe.nbytes)
    frame_bytes = round(largest.probe.nbytes / max(largest.push_frames, 1.0))
    shares = [lone_share(one, near if one.probe.nbytes <= NEAR_BYTES else far, cores) for one in measured]
    constants = Constants(costs_of(measured, shares), 0.0, near, far, frame_bytes)
    smallest = min(measured, key=lambda one: (one.probe.nbytes, one.probe.pulls))
    at_once = probe_time_s(smallest, constants, cores, frames)
    later = probe_time_s(smallest, replace(constants, wake_s=TRIAL_WAKE_S), cores, frames)
    wake_s = TRIAL_WAKE_S * (smallest.time_s - at_once) / (later - at_once)
    return replace(constants, wake_s=min(max(wake_s, 0.0), LONGEST_WAKE_S))


def probe_time_s(one: Measured, constants: Constants, cores: int, frames: Frames) -> float:
    """What the simulation says of a probe with one pull."""
    cut = replace(
        frames,
        slice_bytes=one.probe.slice_bytes or frames.slice_bytes,
        frame_bytes=round(one.probe.nbytes / max(one.push_frames, 1.0)),
    )
    machines = loopback(cores, memory_of(constants, one.probe.nbytes))
    return simulate([one.probe.nbytes], Processes(1, 1), constants, machines, cut).time_s


def loopback(cores: int, memory: MemorySpeed) -> Machines:
    """One host, whose busy cores slow each other down as they do in that memory."""
    cores = max(cores, 1)
    together = min(max(memory.together, 1.0), cores)
    more = (together - 1) / (cores - 1) if cores > 1 else 0.0
    return Machines(True, tuple(1 + n * more for n in range(cores)))
