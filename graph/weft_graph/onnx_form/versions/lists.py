"""Lists that became inputs: axes, lengths, bounds, shapes."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm, Rewrite

_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)


def _becoming_input(name: str) -> Rewrite:
    def rewrite(old: Older) -> Sequence[Node]:
        numbers = old.ints(name)
        if numbers is None:
            return [old.becomes(drop=(name,))]
        return [old.becomes(inputs=(old.input(0), old.integers(numbers, name)), drop=(name,))]

    return rewrite


def _top_k(old: Older) -> Sequence[Node]:
    k = old.integers([int(old.number("k", 0))], "k")
    return [old.becomes(inputs=(old.input(0), k), drop=("k",))]


def _slice(old: Older) -> Sequence[Node]:
    lists = [old.ints(name) for name in ("starts", "ends", "axes")]
    names = [
        "" if numbers is None else old.integers(numbers, word)
        for numbers, word in zip(lists, ("starts", "ends", "axes"), strict=True)
    ]
    if not all(names[:2]):
        raise old.refusal("attributes 'starts' and 'ends' are missing")
    given = names if names[2] else names[:2]
    return [old.becomes(inputs=(old.input(0), *given), drop=("starts", "ends", "axes"))]


def _reshape(old: Older) -> Sequence[Node]:
    shape = old.ints("shape")
    if shape is None:
        raise old.refusal("attribute 'shape' is missing")
    return [old.becomes(inputs=(old.input(0), old.integers(shape, "shape")), drop=("shape",))]


def _tile(old: Older) -> Sequence[Node]:
    """In the first form one axis is tiled, and both the count and the axis are values."""
    tiles, axis = old.known(old.input(1)), old.known(old.input(2))
    if tiles is None or axis is None or tiles.size != 1 or axis.size != 1:
        raise old.refusal("its tiles and axis are no constants")
    repeats = [1] * old.rank(old.input(0))
    if not 0 <= int(axis.item()) < len(repeats):
        raise old.refusal(f"axis {int(axis.item())} is outside {len(repeats)} dimensions")
    repeats[int(axis.item())] = int(tiles.item())
    return [old.becomes(inputs=(old.input(0), old.integers(repeats, "repeats")))]


def _split(old: Older) -> Sequence[Node]:
    """The very first form takes the lengths as an attribute or as an input."""
    lengths = old.ints("split")
    if lengths is None:
        return [old.becomes(drop=("split",))]
    return [old.becomes(inputs=(old.input(0), old.integers(lengths, "split")), drop=("split",))]


def _concat(old: Older) -> Sequence[Node]:
    return [old.becomes(axis=int(old.number("axis", 1)))]


FORMS = (
    *(OldForm(op_type, 18, _becoming_input("axes")) for op_type in _REDUCTIONS),
    OldForm("ReduceSum", 13, _becoming_input("axes")),
    OldForm("Squeeze", 13, _becoming_input("axes")),
    OldForm("Unsqueeze", 13, _becoming_input("axes")),
    OldForm("Split", 13, _split),
    OldForm("TopK", 10, _top_k),
    OldForm("Slice", 10, _slice),
    OldForm("Reshape", 5, _reshape),
    OldForm("Tile", 6, _tile),
    OldForm("Concat", 4, _concat),
)
