"""What each part of a step costs the threads, from the constants. Pure; shared by simulation and formulas.

A shard's work for a push is measured with one worker, where each push is applied. With more of them a step is applied
once: that part comes from the memory benchmarks, as does the addition of the other workers' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_model import WORKER_INTERPRETER, Block, Constants, MemorySpeed, Role, Work

NEAR_BYTES = 8 << 20
"""Values of more than this do not stay in a cache from one step to the next."""

APPLIED_SHARE = 0.5
"""Of a shard's bookkeeping for a pushed slice: what is done once a step, not once a push."""


def memory_of(constants: Constants, nbytes: int) -> MemorySpeed:
    """The memory in which a step's values are."""
    return constants.near if nbytes <= NEAR_BYTES else constants.far


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of the parts of a step whose values have `nbytes` in all."""

    constants: Constants
    nbytes: int

    def begin(self, role: Role) -> float:
        return self.constants.costs[role].of(Work(rounds=1))

    def call(self, role: Role) -> float:
        return self.constants.costs[role].of(Work(calls=1))

    def push(self, role: Role, block: Block, frames: int = 1) -> float:
        """Frames of gradients, on their way through a thread; at the shard with the merging, were there no others.

        `block` may be several frames' loads together, as everywhere here: costs are linear.
        """
        near, far = self._bytes(block.nbytes)
        work = Work(push_frames=frames, push_slices=block.slices, push_near=near, push_far=far)
        return self.constants.costs[role].of(work)

    def filled(self, block: Block, frames: int = 1) -> float:
        """Frames of gradients at a worker's interpreter. A probe's lie in one array: what joins them is not in its
        times, and comes from the memory benchmarks."""
        return sum(self.push(role, block, frames) for role in WORKER_INTERPRETER) + block.joined / self._memory.copy

    def taken(self, block: Block, frames: int = 1) -> float:
        """Frames of values at a worker's interpreter."""
        return sum(self.pull(role, block, frames) for role in WORKER_INTERPRETER)

    def called(self, calls: float) -> float:
        """A worker's interpreter at the begin of a step, and for so many calls of it."""
        return sum(self.begin(role) + calls * self.call(role) for role in WORKER_INTERPRETER)

    def pull(self, role: Role, block: Block, frames: int = 1) -> float:
        """Frames of values, on their way through a thread."""
        near, far = self._bytes(block.nbytes)
        work = Work(pull_frames=frames, pull_slices=block.slices, pull_near=near, pull_far=far)
        return self.constants.costs[role].of(work)

    def apply(self, block: Block) -> float:
        """The part of a lone push that a step has once, whatever the number of workers."""
        cost = self.constants.costs[Role.SHARD]
        per_byte = cost.push_near if self.nbytes <= NEAR_BYTES else cost.push_far
        bytes_s = block.nbytes * min(1 / self._memory.descent, per_byte)
        return bytes_s + APPLIED_SHARE * cost.push_slices * block.slices

    def accept(self, block: Block, frames: int = 1) -> float:
        """One worker's frames at the shard, without the update."""
        return self.push(Role.SHARD, block, frames) - self.apply(block)

    def add(self, block: Block) -> float:
        """The addition of another worker's gradients."""
        return block.nbytes / self._memory.add

    @property
    def _memory(self) -> MemorySpeed:
        return memory_of(self.constants, self.nbytes)

    def _bytes(self, nbytes: int) -> tuple[int, int]:
        return (nbytes, 0) if self.nbytes <= NEAR_BYTES else (0, nbytes)
