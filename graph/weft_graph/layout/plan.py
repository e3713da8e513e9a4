"""Where the values of a program lie in memory: who shares it, and at which offset."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final

import numpy as np

from weft_graph.ir import Node
from weft_graph.layout.live_ranges import Lives
from weft_graph.program import Program
from weft_graph.schema import Strides
from weft_graph.types import TensorType
from weft_graph.weft_domain import is_communication

# --- Where in one piece of memory the blocks of a step lie, so that those held at one time do not overlap -------------
# Greedy by size with the tightest gap: Y. Pisarchyk and J. Lee, "Efficient memory management for deep neural net
# inference", 2020, arXiv:2001.03288, section 5. Finding the least size is NP-hard; the largest blocks are what
# decides, and the small ones fit between them.


@dataclass(frozen=True, slots=True)
class Block:
    """`size` bytes that are held from node `first` to node `last`, both included."""

    size: int
    first: int
    last: int


Order = Callable[[Block], tuple[int, ...]]

_ORDERS: Final[tuple[Order, ...]] = (
    lambda block: (-block.size, block.first),
    lambda block: (-block.size * (block.last - block.first + 1), block.first),
    lambda block: (block.first - block.last, -block.size),
)
"""In which order blocks are placed; the second and third are tried where the first wastes more than `GOOD_WASTE`."""

GOOD_WASTE: Final = 0.02
MOST_FITTED: Final = 1 << 13
"""Blocks that are fitted among each other, the largest: the time that it takes grows with their square."""
MOST_BYTES: Final = 1 << 62


def largest_live(blocks: Sequence[Block]) -> int:
    """The most bytes that are held at one time: no placement takes less."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    live = most = 0
    for moment in sorted(changes):
        live += changes[moment]
        most = max(most, live)
    return most


def offsets(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    """(offset of each block, bytes in all). Every offset is a multiple of `alignment`."""
    if sum(block.size for block in blocks) > MOST_BYTES:
        return _side_by_side(blocks, alignment)
    fitted = sorted(range(len(blocks)), key=lambda index: -blocks[index].size)[:MOST_FITTED]
    result, whole = [0] * len(blocks), 0
    if fitted:
        placed, whole = _fitted([blocks[index] for index in fitted], alignment)
        for index, offset in zip(fitted, placed, strict=True):
            result[index] = offset
    chosen = set(fitted)
    rest = [index for index in range(len(blocks)) if index not in chosen]
    return result, _by_classes(blocks, rest, alignment, result, whole)


def _side_by_side(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    """As if all were held at once: for sizes that no machine has."""
    ends = list(accumulate((_aligned(block.size, alignment) for block in blocks), initial=0))
    return ends[:-1], ends[-1]


def _fitted(blocks: Sequence[Block], alignment: int) -> tuple[list[int], int]:
    enough = largest_live(blocks) * (1 + GOOD_WASTE)
    best: tuple[list[int], int] | None = None
    for order in _ORDERS:
        found = _placed(blocks, order, alignment)
        best = found if best is None or found[1] < best[1] else best
        if best[1] <= enough:
            break
    assert best is not None
    return best


def _by_classes(blocks: Sequence[Block], rest: Sequence[int], alignment: int, result: list[int], whole: int) -> int:
    """Places what is left of very many blocks behind the others: a place that is free again serves blocks of up to its
    size, a power of two. Returns the bytes in all."""
    free: dict[int, list[int]] = {}
    busy: list[tuple[int, int, int]] = []
    for index in sorted(rest, key=lambda index: blocks[index].first):
        block = blocks[index]
        while busy and busy[0][0] < block.first:
            _, size, offset = heapq.heappop(busy)
            free.setdefault(size, []).append(offset)
        size = _aligned(1 << max(block.size - 1, 0).bit_length(), alignment)
        if free.get(size):
            result[index] = free[size].pop()
        else:
            result[index], whole = whole, whole + size
        heapq.heappush(busy, (block.last, size, result[index]))
    return whole


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _placed(blocks: Sequence[Block], order: Order, alignment: int) -> tuple[list[int], int]:
    result = [0] * len(blocks)
    first, last, start, end = (np.empty(len(blocks), np.int64) for _ in range(4))
    whole = 0
    for count, index in enumerate(sorted(range(len(blocks)), key=lambda index: order(blocks[index]))):
        block = blocks[index]
        beside = (first[:count] <= block.last) & (last[:count] >= block.first)
        offset = _tightest_gap(start[:count][beside], end[:count][beside], block.size, alignment)
        result[index] = offset
        first[count], last[count] = block.first, block.last
        start[count], end[count] = offset, offset + _aligned(block.size, alignment)
        whole = max(whole, int(end[count]))
    return result, whole


def _tightest_gap(start: np.ndarray, end: np.ndarray, size: int, alignment: int) -> int:
    """The place between what lies from `start` to `end` that leaves least over, else the place behind it all."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    covered = np.maximum.accumulate(end[order])
    begins = np.concatenate((np.zeros(1, np.int64), covered))
    room = np.append(start[order] - begins[:-1], np.iinfo(np.int64).max)
    fits = np.where(room >= size, room, np.iinfo(np.int64).max)
    return int(begins[int(np.argmin(fits))]) if fits.min() < np.iinfo(np.int64).max else int(covered[-1])


ALIGNMENT: Final = 64
"""Bytes: a cache line of a CPU. A GPU's kernels read best at multiples of 256."""
CUDA_ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the values of a step lie.

    `offsets` has the values that own memory of the arena, by bytes from its start. `strides`, in elements, has every
    value that a kernel makes with memory of its own, in the arena or outside. `views` has, for each value that lies in
    another's memory, that value. `kept` are values of known size that lie outside of the arena. Nodes that run in their
    order, one at a time, find every value whole.
    """

    offsets: Mapping[str, int]
    strides: Mapping[str, Strides]
    views: Mapping[str, str]
    arena_bytes: int
    live_bytes: int
    """The most that is held in the arena at one time: no placement in this order takes less."""
    intermediate_bytes: int
    """All that kernels make, as if each value had memory of its own for the whole step."""
    kept_bytes: int
    """What kernels make outside of the arena, all held at once: mainly gradients that the store is handed."""

    @property
    def peak_bytes(self) -> int:
        """Activations and gradients at their peak, with every gradient held until the step's end."""
        return self.arena_bytes + self.kept_bytes


def layout(program: Program, types: Mapping[str, TensorType], *, alignment: int = ALIGNMENT) -> Layout:
    """The layout of a program whose values have these types: static but for dimensions that only values decide."""
    lives = Lives(program.nodes, types, program.outputs.values())
    block_of, blocks = _blocks(lives, types)
    placed, arena_bytes = offsets(blocks, alignment)
    places = {owner: placed[block] for owner, block in block_of.items()}
    return Layout(
        offsets=MappingProxyType(places),
        strides=MappingProxyType(_strides(lives)),
        views=MappingProxyType(lives.views),
        arena_bytes=arena_bytes,
        live_bytes=largest_live(blocks),
        intermediate_bytes=_intermediate_bytes(program.nodes, types, lives.views),
        kept_bytes=sum(
            types[storage.owner].nbytes
            for storage in lives.storages.values()
            if storage.kept and not storage.given and types[storage.owner].is_static
        ),
    )


def live_bytes(nodes: Sequence[Node], types: Mapping[str, TensorType], kept: Iterable[str]) -> int:
    """The most bytes that kernels' values take at one time, but for those of `kept`, as `Layout.live_bytes`.

    Values whose size is not known count as nothing.
    """
    return largest_live(_blocks(Lives(nodes, types, kept), types)[1])


def _blocks(lives: Lives, types: Mapping[str, TensorType]) -> tuple[dict[str, int], list[Block]]:
    """(the block of each owner in the arena, the blocks): values that follow each other in one place are one block."""
    block_of: dict[str, int] = {}
    blocks: list[Block] = []
    owned = [storage for storage in lives.storages.values() if not storage.given and not storage.kept]
    for storage in sorted(owned, key=lambda storage: storage.first):
        source = lives.in_place.get(storage.owner)
        if source is None:
            block_of[storage.owner] = len(blocks)
            blocks.append(Block(types[storage.owner].nbytes, storage.first, storage.last))
        else:
            block = block_of[storage.owner] = block_of[source]
            blocks[block] = Block(blocks[block].size, blocks[block].first, storage.last)
    return block_of, blocks


def _strides(lives: Lives) -> dict[str, Strides]:
    owned = (name for name, storage in lives.storages.items() if not storage.given)
    return {name: strides for name in owned if (strides := lives.strides[name]) is not None}


def _intermediate_bytes(nodes: Sequence[Node], types: Mapping[str, TensorType], views: Mapping[str, str]) -> int:
    computed = (node for node in nodes if not is_communication(node))
    made = (name for node in computed for name in node.outputs if name and name not in views)
    return sum(types[name].nbytes for name in made if types[name].is_static)
