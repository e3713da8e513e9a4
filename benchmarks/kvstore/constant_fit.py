"""The cost model's constants from the probes: what each unit of work costs each thread. Pure.

A thread's processor time is the sum of the counts of its work times their costs; the costs are the non-negative ones
that come nearest, each probe's error counted relative to its time (Lawson and Hanson, "Solving least squares problems",
1974, chapter 23).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from cost_model import Constants, Cost, Frames, Machines, MemorySpeed, Processes, Role, Work
from probe import Measured
from step_costs import NEAR_BYTES
from step_simulation import simulate
from weft_kvstore.runtime.process import MMAP_THRESHOLD_BYTES

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


def costs_of(measured: Sequence[Measured]) -> dict[Role, Cost]:
    """Costs by role, each at least 0."""
    counts = np.array([work_of(one).row() for one in measured], np.float64)
    unit = np.maximum(counts.max(axis=0), 1e-300)  # bytes are millions where rounds are one
    costs = {}
    for role in Role:
        times_s = np.array([max(one.processor_s[role], LEAST_S) for one in measured])
        found, _ = nnls(counts / unit / times_s[:, None], np.ones(len(measured)))
        costs[role] = Cost(*(found / unit).tolist())
    return costs


def fit(measured: Sequence[Measured], near: MemorySpeed, far: MemorySpeed, cores: int, frames: Frames) -> Constants:
    """All constants; the time a thread takes to wake from the smallest round trip. Raises ValueError without probes."""
    if not measured:
        raise ValueError("no probes to fit constants to")
    largest = max((one for one in measured if one.probe.frame_bytes is None), key=lambda one: one.probe.nbytes)
    frame_bytes = round(largest.probe.nbytes / max(largest.push_frames, 1.0))
    constants = Constants(costs_of(measured), 0.0, near, far, frame_bytes)
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
    return simulate([one.probe.nbytes], Processes(1, 1), constants, loopback(cores), cut).time_s


def loopback(cores: int) -> Machines:
    """One host. How much busy cores slow each other down is in the costs: the probes keep two busy as well."""
    return Machines(True, tuple(float(n + 1) for n in range(max(cores, 1))))
