"""Graphs with tables that tests of several kinds start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sample_graphs import floats, line, node, scalar, tensor, weight
from weft_graph.ir import AttributeValue, Graph, Node, Parameter
from weft_graph.types import DType


def embedding(inputs: Sequence[str], output: str, **attributes: AttributeValue) -> Node:
    return replace(node("Embedding", inputs, [output], **attributes), domain="weft")


def table(
    name: str, *shape: int, trainable: bool = True, row_sparse: bool = True, lazy_update: bool = True
) -> Parameter:
    return replace(weight(name, *shape, trainable=trainable), row_sparse=row_sparse, lazy_update=lazy_update)


def looked_up(*nodes: Node, parameters: Sequence[Parameter], asked: Sequence[str] = ()) -> Graph:
    """Ids `a` (batch, 3) int64 and `b` (batch, 5) int32, numbers `x` (batch, 4); `loss` is the mean of `y` squared."""
    return line(
        [
            *nodes,
            node("Mul", ["y", "y"], ["square"]),
            node("ReduceMean", ["square"], ["loss"], keepdims=0),
        ],
        parameters,
        inputs={"x": floats("batch", 4), "a": tensor(DType.INT64, "batch", 3), "b": tensor(DType.INT32, "batch", 5)},
        outputs=["loss", *asked],
    )


def two_bags(padding_id: int = 0) -> Graph:
    """Tables T (11 rows of 4), read by Embedding with padding and by Gather, and U (7 rows), by computed ids; w dense.

    y = tanh(x w) + (the rows of T at a, summed) + (those at b, summed) * (those of U at ids made of b, summed).
    """
    graph = looked_up(
        node("MatMul", ["x", "w"], ["xw"]),
        node("Tanh", ["xw"], ["h"]),
        embedding(["T", "a"], "ta", padding_id=padding_id),
        node("Gather", ["T", "b"], ["tb"]),
        node("Greater", ["b", "three"], ["large"]),
        node("Where", ["large", "zero", "b"], ["small"]),
        node("Concat", ["b", "small"], ["twice"], axis=1),
        node("Cast", ["twice"], ["u_ids"], to=7),
        node("Gather", ["U", "u_ids"], ["u"]),
        *(node("ReduceSum", [name], [f"{name}_sum"], axes=(1,), keepdims=0) for name in ("ta", "tb", "u")),
        node("Mul", ["tb_sum", "u_sum"], ["both"]),
        node("Add", ["h", "ta_sum"], ["most"]),
        node("Add", ["most", "both"], ["y"]),
        parameters=[weight("w", 4, 4), table("T", 11, 4), table("U", 7, 4)],
    )
    return replace(graph, constants=(scalar("three", 3, "int32"), scalar("zero", 0, "int32")))
