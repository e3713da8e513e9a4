"""Hypothesis strategies for graphs that are well formed (not necessarily legal) and for documents of any kind."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter, Subgraph
from weft_graph.types import DType, TensorType


def examples(count: int = 100) -> settings:
    """The same `count` examples in every run, however slow the machine is."""
    return settings(max_examples=count, derandomize=True, database=None, deadline=None)


names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
dtypes = st.sampled_from(list(DType))
dims = st.one_of(st.integers(0, 6), st.sampled_from(["batch", "tokens"]))
types = st.builds(TensorType, dtypes, st.lists(dims, max_size=4).map(tuple))
finite = st.floats(allow_nan=False, allow_infinity=False)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
attribute_values = st.one_of(
    st.booleans(),
    int64,
    finite,
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.lists(int64, max_size=4).map(tuple),
    st.lists(finite, min_size=1, max_size=4).map(tuple),
    st.lists(names, min_size=1, max_size=4).map(tuple),
)


@st.composite
def constants(draw: st.DrawFn, name: str) -> Constant:
    dtype, shape = draw(dtypes), tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    raw = draw(st.binary(min_size=dtype.itemsize * int(np.prod(shape)), max_size=dtype.itemsize * int(np.prod(shape))))
    if dtype is DType.BOOL:
        raw = bytes(byte & 1 for byte in raw)
    return Constant(name, np.frombuffer(raw, dtype=dtype.numpy).reshape(shape))


def _nested(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """A control-flow node, or one that takes no body, around bodies of anything."""
    few = st.lists(st.sampled_from("abcde"), max_size=3).map(tuple)
    body = st.builds(
        Subgraph, few, st.sampled_from([(), ("a",), ("a", "b")]), st.lists(inner, max_size=3).map(tuple), few
    )
    return st.builds(
        Node,
        st.sampled_from(["If", "Loop", "Scan", "Add"]),
        names,
        st.lists(st.sampled_from(["", "a", "b", "x", "flag"]), max_size=4).map(tuple),
        few,
        st.dictionaries(
            st.sampled_from(["body", "then_branch", "else_branch", "num_scan_inputs"]),
            st.one_of(body, st.integers(-1, 2)),
            max_size=3,
        ),
    )


def _leaf() -> st.SearchStrategy[Node]:
    few = st.lists(st.sampled_from("abcde"), max_size=2).map(tuple)
    return st.builds(Node, st.sampled_from(["Add", "Relu", "Identity", "Less", "Tanh"]), names, few, few)


nodes_with_bodies = st.recursive(_leaf(), _nested, max_leaves=8)
"""Nodes whose bodies are of any kind: names that nothing defines, too many values, bodies of other operators."""


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph whose values and nodes have names of their own; operators and wiring are arbitrary."""
    values = iter(draw(st.lists(names, min_size=10, max_size=10, unique=True)))
    node_names = draw(st.lists(names, max_size=3, unique=True))
    nodes = tuple(
        Node(
            op_type=draw(st.one_of(st.sampled_from(["Add", "Gemm", "Conv"]), names)),
            name=name,
            inputs=tuple(draw(st.lists(st.one_of(st.just(""), names), max_size=3))),
            outputs=(next(values), *draw(st.sampled_from([(), ("",)]))),
            attributes=draw(st.dictionaries(names, attribute_values, max_size=3)),
            domain=draw(st.sampled_from(["", "weft", "ai.onnx.ml"])),
        )
        for name in node_names
    )
    initializer = st.builds(Initializer, names, st.dictionaries(names, finite, max_size=2))
    return Graph(
        name=draw(names),
        inputs=tuple(Input(next(values), draw(types)) for _ in range(draw(st.integers(0, 2)))),
        parameters=tuple(
            Parameter(
                next(values),
                draw(types),
                draw(initializer),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.booleans()),
            )
            for _ in range(draw(st.integers(0, 2)))
        ),
        nodes=nodes,
        outputs=tuple(draw(st.lists(names, max_size=2))),
        constants=tuple(draw(constants(next(values))) for _ in range(draw(st.integers(0, 2)))),
    )


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(1 << 1000),
        st.floats(),
        st.text(max_size=6),
        st.just("\ud800"),
        st.binary(max_size=4),
        st.just(object()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.text(max_size=6), st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)
"""Any Python value, JSON or not."""
