"""The step's time on paper: what each resource has to do in all, and the longest of them. Pure.

A step is a pipeline of frames: it takes as long as its busiest resource, plus one frame's way through the others. W
workers, S shards, M bytes of values, F frames between a worker and a shard:

- a network card carries M each way at a worker, W M / S at a shard;
- a worker's interpreter makes 2 calls, fills S F frames and takes in as many; ZeroMQ's thread moves them;
- a shard's interpreter takes in W F frames, adds (W - 1) M / S bytes, applies M / S, and answers with W F frames;
- on one host all of it shares the cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cost_model import Block, Constants, Frames, Layout, Machines, Processes, Role, layout_of
from step_costs import StepCosts

PROCESS_THREADS = 2
"""Of a process: its interpreter and ZeroMQ's thread; with fewer cores than these they share one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`busy_s` by resource; the step takes the largest of them and `fill_s`, one frame's way and back."""

    busy_s: dict[str, float]
    fill_s: float
    frames: int
    """Between one worker and all shards, one way."""

    @property
    def time_s(self) -> float:
        return max(self.busy_s.values()) + self.fill_s

    @property
    def bound(self) -> str:
        """The busiest resource."""
        return max(self.busy_s, key=lambda name: self.busy_s[name])


def estimate(
    key_bytes: Sequence[int], processes: Processes, constants: Constants, machines: Machines, frames: Frames
) -> Estimate:
    """One step of a list of keys. Raises ValueError where there is nothing to exchange."""
    workers, shards = processes.workers, processes.shards
    if workers < 1 or shards < 1 or not sum(key_bytes):
        raise ValueError(f"{workers} workers, {shards} shards, {sum(key_bytes)} bytes: no step")
    layout = _layout(tuple(key_bytes), shards, frames)
    costs = StepCosts(constants, layout.nbytes)
    busy = _worker(layout, costs, frames) | _shard(layout, workers, costs, frames)
    if machines.shared:
        interpreters = workers * busy["worker's interpreter"] + shards * busy["shard's interpreter"]
        zeromq = workers * busy["worker's ZeroMQ"] + shards * busy["shard's ZeroMQ"]
        busy["cores"] = (interpreters + zeromq) / machines.capacity[-1]
    elif len(machines.capacity) < PROCESS_THREADS:
        busy["cores"] = max(busy[f"{who} interpreter"] + busy[f"{who} ZeroMQ"] for who in ("worker's", "shard's"))
    if machines.bits_per_s is not None:
        per_byte = 8 / machines.bits_per_s
        fullest = max(sum(block.nbytes for block in own) for own in layout.blocks)
        busy["worker's network card"] = layout.nbytes * per_byte
        busy["shard's network card"] = workers * fullest * per_byte
    first = next(own[0] for own in layout.blocks if own)
    return Estimate(busy, _fill(first, costs, machines), sum(map(len, layout.blocks)))


@lru_cache(maxsize=64)
def _layout(key_bytes: tuple[int, ...], shards: int, frames: Frames) -> Layout:
    return layout_of(key_bytes, shards, frames)


def _worker(layout: Layout, costs: StepCosts, frames: Frames) -> dict[str, float]:
    load, count = _joined([block for own in layout.blocks for block in own])
    wire = Role.CLIENT_WIRE
    interpreter = costs.called(_calls(layout, frames)) + costs.filled(load, count) + costs.taken(load, count)
    zeromq = costs.begin(wire) + costs.push(wire, load, count) + costs.pull(wire, load, count)
    return {"worker's interpreter": interpreter, "worker's ZeroMQ": zeromq}


def _joined(blocks: Sequence[Block]) -> tuple[Block, int]:
    """The frames' loads together, and how many they are."""
    joined = sum(one.joined for one in blocks)
    return Block(sum(one.nbytes for one in blocks), sum(one.slices for one in blocks), 0, joined), len(blocks)


def _calls(layout: Layout, frames: Frames) -> int:
    """A caller's, in a step."""
    return frames.calls_per_key * layout.keys + frames.calls_per_step


def _shard(layout: Layout, workers: int, costs: StepCosts, frames: Frames) -> dict[str, float]:
    """The busiest shard's."""
    interpreter = zeromq = 0.0
    calls = workers * _calls(layout, frames) * costs.call(Role.SHARD) / len(layout.blocks)
    for load, count in {_joined(own) for own in layout.blocks}:
        taken = workers * (costs.accept(load, count) + costs.pull(Role.SHARD, load, count))
        merged = (workers - 1) * costs.add(load) + costs.apply(load)
        moved = costs.push(Role.SHARD_WIRE, load, count) + costs.pull(Role.SHARD_WIRE, load, count)
        interpreter = max(interpreter, costs.begin(Role.SHARD) + calls + taken + merged)
        zeromq = max(zeromq, costs.begin(Role.SHARD_WIRE) + workers * moved)
    return {"shard's interpreter": interpreter, "shard's ZeroMQ": zeromq}


def _fill(block: Block, costs: StepCosts, machines: Machines) -> float:
    """One frame's way there and back, with nothing else under way."""
    threads = (Role.CLIENT_WIRE, Role.SHARD_WIRE, Role.SHARD)
    there_and_back = sum(costs.push(role, block) + costs.pull(role, block) for role in threads)
    there_and_back += costs.filled(block) + costs.taken(block)
    wires = 0.0 if machines.bits_per_s is None else 4 * block.nbytes * 8 / machines.bits_per_s
    hops = 8 * costs.constants.wake_s + 2 * machines.latency_s
    return there_and_back + wires + hops
