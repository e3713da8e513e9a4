"""The memory part of a plan: which values of a step share memory, and where each lies in one arena.

A layout is a function of the nodes, their order and the static types. What is no kernel's own lies outside of the
arena: inputs, constants, what is fetched; what the store is handed, which holds it until it was acknowledged; the job's
outputs; and values whose dimensions only values decide, which are allocated when they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from weft_graph.ir import Node
from weft_graph.layout.live_ranges import Lives
from weft_graph.layout.offsets import Block, largest_live, offsets
from weft_graph.program import Program
from weft_graph.schema import Strides
from weft_graph.types import TensorType
from weft_graph.weft_domain import is_communication

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
