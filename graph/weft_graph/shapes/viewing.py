"""The rules of operators whose outputs are views of their first input: where the elements lie in its memory."""

from __future__ import annotations

from weft_graph.attributes import as_ints
from weft_graph.ir import Node
from weft_graph.layout.strides import NO_VIEW, expanded, numbers, permuted
from weft_graph.schema import Strides
from weft_graph.types import Shape


def transposed(node: Node, shape: Shape, strides: Strides | None, _target: Shape) -> Strides | None:
    """Transpose."""
    if strides is None:
        return None
    axes = node.attributes.get("perm")
    return permuted(strides, range(len(shape))[::-1] if axes is None else as_ints(axes))


def repeated(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Expand: elements that are repeated lie on one place."""
    sizes, wide = numbers(shape), numbers(target)
    return None if strides is None or sizes is None or wide is None else expanded(sizes, strides, wide)


def part(_node: Node, _shape: Shape, _strides: Strides | None, _target: Shape) -> Strides | None:
    """Slice and Split: some of the elements, every so many of them."""
    return None


def squeezed(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Squeeze and Unsqueeze: dimensions of 1 come and go."""
    sizes, other = numbers(shape), numbers(target)
    if strides is None or sizes is None or other is None:
        return None
    kept = iter(step for size, step in zip(sizes, strides, strict=True) if size != 1)
    return tuple(1 if size == 1 else next(kept) for size in other)


def same(_node: Node, shape: Shape, strides: Strides | None, target: Shape) -> Strides | None:
    """Where nothing is to be done, the input itself is given; otherwise it is no view."""
    return strides if shape == target else NO_VIEW
