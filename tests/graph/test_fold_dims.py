"""What exporters write between Shape and what takes a shape, on dimensions that are names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sample_graphs import floats, ints, line, node, scalar, tensor, weight
from weft_graph.convert import convert
from weft_graph.dimensions import is_unknown
from weft_graph.infer import infer, infer_program
from weft_graph.ir import Constant, Graph, Node
from weft_graph.types import DType

NUMBERS = [ints("i0", 0), ints("i1", 1), ints("i2", 2), ints("i4", 4), ints("i6", 6), ints("all", -1), ints("none")]
SCALARS = [
    scalar("zero", 0, "int64"),
    scalar("one", 1, "int64"),
    scalar("two", 2, "int64"),
    scalar("z", 0.0, "float32"),
]


def shape(nodes: list[Node], of: str = "y", **inputs: Any) -> str:
    """The type's dimensions, after `x` (batch, tokens, 6) and these nodes."""
    used = {name for part in nodes for name in part.inputs}
    constants = [constant for constant in (*NUMBERS, *SCALARS) if constant.name in used]
    given = {"x": floats("batch", "tokens", 6), **inputs}
    graph = line(nodes, inputs=given, constants=constants, outputs=[of])
    return ", ".join(map(str, infer(graph)[of].shape))


def size(axis: int, output: str) -> list[Node]:
    """One dimension of x, as torch writes `x.shape[axis]`."""
    return [
        node("Shape", ["x"], [f"{output}_list"], start=axis, end=axis + 1),
        node("Squeeze", [f"{output}_list"], [output]),
    ]


CASES: dict[str, tuple[list[Node], str]] = {
    "view": (
        [
            node("Shape", ["x"], ["s"], start=0, end=2),
            node("ReduceProd", ["s", "i0"], ["rows"]),
            node("Concat", ["rows", "i6"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ],
        "batch*tokens, 6",
    ),
    "heads": (
        [
            node("Shape", ["x"], ["s"], start=0, end=2),
            node("Concat", ["s", "i2", "all"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ],
        "batch, tokens, 2, 3",
    ),
    "expand with -1": (
        [
            node("Shape", ["x"], ["s"], start=0, end=2),
            node("Concat", ["s", "all"], ["asked"], axis=0),
            node("Shape", ["asked"], ["rank"]),
            node("ConstantOfShape", ["rank"], ["ones"], value=1, dtype=7),
            node("Neg", ["ones"], ["minus"]),
            node("Equal", ["asked", "minus"], ["kept"]),
            node("Where", ["kept", "ones", "asked"], ["target"]),
            node("Expand", ["w", "target"], ["y"]),
        ],
        "batch, tokens, 6",
    ),
    "arange": (
        [
            *size(1, "n"),
            node("CastLike", ["z", "n"], ["start"]),
            node("Range", ["start", "n", "one"], ["y"]),
        ],
        "tokens",
    ),
    "arange by two": (
        [*size(0, "n"), node("Add", ["n", "n"], ["m"]), node("Range", ["zero", "m", "two"], ["y"])],
        "batch",
    ),
    "roll": (
        [
            node("Shape", ["x"], ["n"], start=1, end=2),
            node("Mod", ["all", "n"], ["cut"]),
            node("Slice", ["x", "i0", "cut", "i1"], ["head"]),
            node("Slice", ["x", "cut", "n", "i1"], ["tail"]),
            node("Concat", ["tail", "head"], ["y"], axis=1),
        ],
        "batch, tokens, 6",
    ),
    "shifted": (
        [
            node("Shape", ["x"], ["n"], start=1, end=2),
            node("Sub", ["n", "i1"], ["less"]),
            node("Slice", ["x", "i1", "n", "i1"], ["later"]),
            node("Slice", ["x", "i0", "less", "i1"], ["earlier"]),
            node("Sub", ["later", "earlier"], ["y"]),
        ],
        "batch, tokens-1, 6",
    ),
    "pad": (
        [
            node("Shape", ["x"], ["n"], start=1, end=2),
            node("Concat", ["i0", "n"], ["pads"], axis=0),
            node("Pad", ["x", "pads", "", "i1"], ["y"]),
        ],
        "batch, 2*tokens, 6",
    ),
    "half": (
        [
            node("Shape", ["x"], ["n"], start=0, end=1),
            node("Mul", ["n", "i6"], ["sixfold"]),
            node("Div", ["sixfold", "i2"], ["threefold"]),
            node("Concat", ["threefold", "all"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["y"]),
        ],
        "3*batch, 2*tokens",
    ),
    "size": (
        [node("Size", ["x"], ["n"]), node("Unsqueeze", ["n", "i0"], ["s"]), node("Reshape", ["x", "s"], ["y"])],
        "6*batch*tokens",
    ),
    "largest": (
        [
            node("Shape", ["x"], ["n"], start=0, end=1),
            node("Max", ["n", "i1"], ["m"]),
            node("ConstantOfShape", ["m"], ["y"]),
        ],
        "batch",
    ),
    "tile": ([node("Shape", ["x"], ["s"]), node("Tile", ["w", "s"], ["y"])], "batch, tokens, 6"),
    "depth": ([*size(1, "n"), node("OneHot", ["ids", "n", "switch"], ["y"])], "batch, tokens"),
}


@pytest.mark.parametrize("name", CASES)
def test_dimensions_keep_their_names(name: str) -> None:
    nodes, expected = CASES[name]
    more = {
        "w": floats(1, 1, 1) if name == "tile" else floats(6),
        "ids": tensor(DType.INT64, "batch"),
        "switch": floats(2),
    }
    assert shape(nodes, **{k: v for k, v in more.items() if any(k in part.inputs for part in nodes)}) == expected


def test_what_is_known_of_a_list_stays_beside_what_is_not() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "count"], ["target"], axis=0),
        node("Expand", ["w", "target"], ["y"]),
    ]
    first, second = shape(nodes, w=floats(1, 1), count=tensor(DType.INT64, 1)).split(", ")
    assert first == "batch"
    assert is_unknown(second)


def test_equal_parts_have_one_name_and_others_another() -> None:
    """A pool halves whatever length: two of the same input may be added, and nothing says that others may not."""
    nodes = [
        node("AveragePool", ["x"], ["a"], kernel_shape=(2,), strides=(2,)),
        node("MaxPool", ["x"], ["b"], kernel_shape=(2,), strides=(2,)),
        node("Add", ["a", "b"], ["y"]),
    ]
    halves = shape(nodes, x=floats("batch", 6, "tokens")).split(", ")
    assert halves[:2] == ["batch", "6"]
    assert halves[2] == shape(nodes[:1], of="a", x=floats("batch", 6, "tokens")).split(", ")[2]


def test_names_of_unknown_dimensions_do_not_depend_on_the_other_nodes() -> None:
    """A program's types are inferred again after passes, and what they name must be the same then."""
    chosen = [node("NonZero", ["x"], ["rows"], "choose"), node("Cast", ["rows"], ["y"], to=1)]
    before = [node("NonZero", ["x"], ["other"], "another")]
    alone, beside = (infer(line(nodes, outputs=["y"]))["y"] for nodes in (chosen, [*before, *chosen]))
    assert alone == beside == floats(2, "?choose")


def graph_with_mask() -> Graph:
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Greater", ["x", "edge"], ["above"]),
        node("NonZero", ["above"], ["places"]),
        node("Transpose", ["places"], ["pairs"], perm=(1, 0)),
        node("GatherND", ["h", "pairs"], ["chosen"]),
        node("ReduceSum", ["chosen"], ["loss"], keepdims=0),
    ]
    return line(nodes, [weight("w", 4, 4)], constants=[Constant("edge", np.array(0, np.float32))])


def test_a_converted_program_has_the_types_that_are_inferred_from_it_again() -> None:
    programs = convert(graph_with_mask(), loss="loss", metrics={})
    assert dict(infer_program(programs.train, {})) == dict(programs.train.types)


@pytest.mark.parametrize(("op_type", "turns"), [("Mul", 200), ("Add", 7_000)])
def test_values_that_grow_with_each_node_are_given_up(op_type: str, turns: int) -> None:
    """Squared 200 times a name would stand in a product 2 ** 200 times; doubled 7,000 times it has 2,108 digits."""
    nodes = [node("Shape", ["x"], ["s0"], end=1)]
    nodes += [node(op_type, [f"s{turn}", f"s{turn}"], [f"s{turn + 1}"]) for turn in range(turns)]
    first, last = (node("ConstantOfShape", [f"s{turn}"], [f"y{turn}"]) for turn in (5, turns))
    assert shape([*nodes[:7], first], "y5") == ("*".join(["batch"] * 32) if op_type == "Mul" else "32*batch")
    assert shape([*nodes, last], f"y{turns}") == f"?n_y{turns}"
