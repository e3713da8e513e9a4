"""Writes docs/converter.md: what each pass of the converter does to a small example.

Run it with `python docs/draw_converter.py`; a test compares the page with what the converter does now.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from weft_graph.convert import convert
from weft_graph.ir import AttributeValue, Constant, Graph, Initializer, Input, Node, Parameter, Subgraph
from weft_graph.passes.pipeline import ROLES, SHARED, Pass
from weft_graph.program import Programs, Role
from weft_graph.program_text.listing import Setting
from weft_graph.program_text.passes import PassRun, Recorder, passes_text
from weft_graph.program_text.program import programs_text
from weft_graph.types import DType, Shape, TensorType

PAGE = Path(__file__).with_name("converter.md")

_WIDTH, _WORDS, _CLASSES, _LENGTH = 32, 10_000, 8, 16
_DRAWN: Final = Initializer("RandomNormal", {"mean": 0.0, "scale": 0.1})

INTRODUCTION: Final = """# The converter

Written by `python docs/draw_converter.py` from what the converter does; a test compares.

A job's graph becomes one program for training and one for evaluation. Each pass of the converter is a pure function
`(Draft, Options) -> Draft` in a module of `weft_graph.passes`; `weft_graph.passes.pipeline` lists them. A `Draft` is a
frozen record: ordered nodes, types, outputs, gradients, what is sent, priorities of keys, which parameters are tables.
`convert(..., watch=f)` calls `f(pass, before, after)` after each pass; `weft programs JOB --passes`, this page and the
passes' tests use it.

## The passes
"""

EXAMPLE: Final = """
## An example

A classifier of short texts, as an exporter writes it: embeddings of 16 words, a gate (`Sigmoid` and `Mul`, computed
twice), a scale by the square root of the width, a mean over the words, and a branch on a constant.

What each pass does to it, as `weft programs JOB --passes` prints it:
"""


def tensor(dtype: DType, *shape: int | str) -> TensorType:
    """A type whose first dimension is most often the batch."""
    return TensorType(dtype, tuple(shape))


def node(op_type: str, inputs: Sequence[str], output: str, **attributes: int | tuple[int, ...]) -> Node:
    """A node that is called as its output is."""
    return Node(op_type, output, tuple(inputs), (output,), attributes)


def _branches() -> dict[str, AttributeValue]:
    """The gated values, or a Relu of what was before the gate."""
    outside = ("gated_text", "plain_text")
    then = Subgraph((), outside, (node("Identity", ["gated_text"], "passed_on"),), ("passed_on",))
    other = Subgraph((), outside, (node("Relu", ["plain_text"], "cut_off"),), ("cut_off",))
    return {"then_branch": then, "else_branch": other}


def example() -> Graph:
    """The graph that the page shows."""

    def parameter(name: str, *shape: int) -> Parameter:
        return Parameter(name, TensorType(DType.FLOAT32, shape), _DRAWN)

    shape: Shape = ("batch", _LENGTH)
    nodes = (
        node("Gather", ["words", "ids"], "embedded"),
        node("Shape", ["words"], "size", start=1),
        node("Squeeze", ["size"], "width"),
        node("Cast", ["width"], "width_float", to=1),
        node("Sqrt", ["width_float"], "scale"),
        node("Div", ["embedded", "scale"], "scaled"),
        node("MatMul", ["scaled", "inner"], "hidden"),
        node("Add", ["hidden", "inner_bias"], "biased"),
        node("Sigmoid", ["biased"], "gate"),
        node("Mul", ["biased", "gate"], "gated"),
        node("Sigmoid", ["biased"], "gate_again"),
        node("Mul", ["gate_again", "gated"], "twice_gated"),
        Node("If", "choice", ("is_gated", "twice_gated", "biased"), ("kept",), _branches()),
        node("ReduceMean", ["kept", "words_axis"], "text", keepdims=0),
        node("MatMul", ["text", "outer"], "scores"),
        node("SoftmaxCrossEntropyLoss", ["scores", "label"], "loss"),
        node("Softmax", ["scores"], "unused", axis=1),
    )
    return Graph(
        name="texts",
        inputs=(Input("ids", TensorType(DType.INT64, shape)), Input("label", tensor(DType.INT64, "batch"))),
        parameters=(
            parameter("words", _WORDS, _WIDTH),
            parameter("inner", _WIDTH, _WIDTH),
            parameter("inner_bias", _WIDTH),
            parameter("outer", _WIDTH, _CLASSES),
        ),
        nodes=nodes,
        outputs=("loss",),
        constants=(Constant("words_axis", np.array([1])), Constant("is_gated", np.array(True))),
    )


def converted() -> tuple[Programs, list[PassRun]]:
    """The example's programs, and what each pass did."""
    recorder = Recorder()
    return convert(example(), loss="loss", metrics={}, watch=recorder), recorder.runs


def setting(programs: Programs) -> Setting:
    """Two workers with 32 samples each, two shards."""
    slices = {key.key: 1 for key in programs.keys if not key.rows}
    return Setting(workers=2, shards=2, slice_bytes=1 << 17, dims={"batch": 32}, slices=slices)


def page() -> str:
    """The page's text."""
    programs, runs = converted()
    passes = passes_text(runs, dims={"batch": 32})
    whole = programs_text(programs, setting(programs))
    return "\n".join(
        (
            INTRODUCTION,
            *_table(),
            EXAMPLE,
            f"```text\n{passes}\n```",
            "\nAnd what comes out of it, as `weft programs JOB` prints it for two workers with 32 texts each:\n",
            f"```text\n{whole}\n```\n",
        )
    )


def _table() -> list[str]:
    """Each pass once, with the roles that run it and what its function says."""
    where: dict[str, list[str]] = {}
    first: dict[str, Pass] = {}
    for role, passes in (("both", SHARED), *((role.value, ROLES[role]) for role in Role)):
        for each in passes:
            first.setdefault(each.name, each)
            if role not in where.setdefault(each.name, []):
                where[each.name].append(role)
    rows = [f"| {name} | {', '.join(where[name])} | {_said(each)} |" for name, each in first.items()]
    return ["| Pass | Programs | What it does |", "|---|---|---|", *rows]


def _said(each: Pass) -> str:
    """The first paragraph of the function's docstring."""
    return " ".join((each.run.__doc__ or "").split("\n\n")[0].split())


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
