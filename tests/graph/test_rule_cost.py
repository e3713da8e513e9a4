"""What nodes cost, and which keys a rule may update."""

from __future__ import annotations

import numpy as np
import pytest

from counted_calls import counted_calls
from rule_documents import Document, momentum, normalized, outer, rule_document
from weft_graph.cost import node_cost, operations
from weft_graph.errors import GraphError, GraphRefusedError
from weft_graph.ir import Node
from weft_graph.rules.cost import MOST_BYTES_PER_ELEMENT, check_rule_for
from weft_graph.rules.graph import rule_graph_from_json
from weft_graph.schema import schemas
from weft_graph.types import DType, TensorType


def of(*shape: int, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


@pytest.mark.parametrize(
    ("node", "reads", "writes", "flops"),
    [
        (Node("Add", "n", ("a", "b"), ("y",)), [of(4, 5), of(5)], [of(4, 5)], 20),
        (Node("Relu", "n", ("a",), ("y",)), [of()], [of()], 1),
        (Node("MatMul", "n", ("a", "b"), ("y",)), [of(4, 7), of(7, 5)], [of(4, 5)], 2 * 4 * 7 * 5),
        (Node("MatMul", "n", ("a", "b"), ("y",)), [of(3, 4, 7), of(7)], [of(3, 4)], 2 * 3 * 4 * 7),
        (Node("Gemm", "n", ("a", "b"), ("y",)), [of(4, 7), of(7, 5)], [of(4, 5)], (2 * 7 + 3) * 20),
        (Node("Gemm", "n", ("a", "b"), ("y",), {"transA": 1}), [of(7, 4), of(7, 5)], [of(4, 5)], (2 * 7 + 3) * 20),
        (Node("ReduceSum", "n", ("a",), ("y",)), [of(4, 5)], [of(1, 1)], 20),
        (Node("Softmax", "n", ("a",), ("y",)), [of(4, 5)], [of(4, 5)], 100),
        (Node("Transpose", "n", ("a",), ("y",)), [of(4, 5)], [of(5, 4)], 20),
    ],
)
def test_operations_are_counted(node: Node, reads: list[TensorType], writes: list[TensorType], flops: int) -> None:
    cost = node_cost(node, reads, writes)
    made = sum(type_.nbytes for type_ in writes)
    assert (cost.flops, cost.made_bytes) == (flops, made)
    assert cost.moved_bytes == made + sum(type_.nbytes for type_ in reads)


def test_the_gradients_of_sampling_are_counted() -> None:
    """In proportion to what is sampled: of bilinear places four elements, and as many a dimension for the grid."""
    image, grid, result = of(1, 3, 9, 9), of(1, 5, 4, 2), of(1, 3, 5, 4)
    sample = Node("GridSampleGrad", "n", ("g", "x", "grid"), ("dx", "dgrid"), {"mode": "linear"}, "weft")
    assert operations(sample, [result, image, grid], [image]) == 2 * 60 * 4
    assert operations(sample, [result, image, grid], [image, grid]) == 2 * 60 * 4 * 3
    for op_type, width in (("RoiAlign", 4), ("MaxRoiPool", 5)):
        boxes, bins = of(6, width), of(6, 3, 2, 2)
        forward = operations(Node(op_type, "n", ("x", "rois"), ("y",)), [image, boxes], [bins])
        backward = Node(f"{op_type}Grad", "n", ("g", "x", "rois"), ("dx",), domain="weft")
        assert operations(backward, [bins, image, boxes], [image]) == forward > 1000


def test_what_nothing_counts_is_refused() -> None:
    with pytest.raises(GraphRefusedError, match=r"node 'n' \(Conv\): nothing counts its work"):
        node_cost(Node("Conv", "n", ("x", "w"), ("y",)), [of(1, 1, 3, 3), of(1, 1, 2, 2)], [of(1, 1, 2, 2)])


def test_nothing_random_and_nothing_of_the_converters_is_counted() -> None:
    counted = {(domain, name) for (domain, name), s in schemas().items() if s.pointwise or s.flops is not None}
    assert ("", "Dropout") not in counted
    assert {name for domain, name in counted if domain and not name.endswith("Grad")} == {"StopGradient"}


def check(document: Document, type_: TensorType, *, rows: bool = False) -> None:
    check_rule_for(rule_graph_from_json(document), "layer.weight", type_, rows=rows)


def test_a_rule_that_goes_element_by_element_is_for_every_key_and_table() -> None:
    for dtype in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        for shape in ((), (3,), (4, 5), (1 << 40,)):
            check(momentum(), of(*shape, dtype=dtype))
    check(momentum(), of(1 << 30, 16), rows=True)


def test_another_rule_is_not_for_tables() -> None:
    check(normalized(), of(1000, 16))
    with pytest.raises(GraphError, match=r"'layer.weight' is a table, .* node 'total' \(ReduceSum\) does not go") as it:
        check(normalized(), of(1000, 16), rows=True)
    assert it.value.pointer == "/graph"


def test_a_product_that_grows_with_the_square_is_for_small_keys_alone() -> None:
    check(outer(), of(100))
    says = r"key 'layer.weight' \(float32\[1024, 8\]\).* node 'square' \(Mul\) an update holds 268\d+ bytes at once"
    with pytest.raises(GraphRefusedError, match=says):
        check(outer(), of(1024, 8))


def test_a_flat_matrix_product_that_grows_with_the_square_is_refused() -> None:
    document = rule_document(
        [
            ("Unsqueeze", "column", ("gradient", "one")),
            ("Unsqueeze", "row", ("gradient", "zero")),
            ("MatMul", "square", ("column", "row")),
            ("MatMul", "move", ("square", "gradient")),
            ("Sub", "w", ("weight", "move")),
        ],
        {"weight": "w"},
        constants={"one": np.array([1]), "zero": np.array([0])},
    )
    with pytest.raises(GraphRefusedError, match=r"node 'square' \(MatMul\) an update"):
        check(document, of(1 << 20))


def test_operations_of_a_key_are_bounded() -> None:
    """Products of square matrices: 2 n^3 operations for n^2 elements."""
    document = rule_document(
        [
            *(("MatMul", f"p{n}", (f"p{n - 1}" if n else "gradient", "gradient")) for n in range(3)),
            ("Sub", "w", ("weight", "p2")),
        ],
        {"weight": "w"},
        shape=("n", "n"),
    )
    check(document, of(512, 512))
    with pytest.raises(GraphRefusedError, match=r"node 'p2' \(MatMul\) an update takes \d+ operations; at most"):
        check(document, of(1800, 1800))
    with pytest.raises(GraphRefusedError, match=r"rule 'test' is for weights of shape \[n, n\], not float32\[3, 4\]"):
        check(document, of(3, 4))


def test_bytes_that_a_whole_rule_reads_and_writes_are_bounded() -> None:
    """Pointwise nodes behind one sum: few operations, and each of them goes once over the key."""
    document = rule_document(
        [
            ("ReduceSum", "total", ("gradient",)),
            *(("Erf", f"e{n}", (f"e{n - 1}" if n else "gradient",)) for n in range(40)),
            ("Mul", "move", ("e39", "total")),
            ("Sub", "w", ("weight", "move")),
        ],
        {"weight": "w"},
    )
    check(document, of(1 << 22))
    with pytest.raises(GraphRefusedError, match=r"node 'e\d+' \(Erf\) an update reads and writes \d+ bytes; at most"):
        check(document, of(1 << 25))


def test_a_value_that_doubles_at_each_node_is_refused_at_once() -> None:
    document = rule_document(
        [
            *(("Concat", f"c{n}", (f"c{n - 1}" if n else "gradient",) * 2) for n in range(250)),
            ("ReduceSum", "total", ("c249",)),
            ("Mul", "move", ("total", "gradient")),
            ("Sub", "w", ("weight", "move")),
        ],
        {"weight": "w"},
        attributes={f"c{n}": {"axis": 0} for n in range(250)},
    )
    with counted_calls() as calls, pytest.raises(GraphError, match=r"c\d+"):
        check(document, of(8))
    assert calls.count < 1_000_000


def test_values_that_are_done_are_not_held() -> None:
    """Ten times as many values as may be held at once, each read by the next alone."""
    chain = [("Transpose", f"t{n}", (f"t{n - 1}" if n else "gradient",)) for n in range(200)]
    document = rule_document([*chain, ("Sub", "w", ("weight", "t199"))], {"weight": "w"})
    check(document, of(1 << 20))
    every = [("Transpose", f"t{n}", ("gradient",)) for n in range(100)]
    held = rule_document(
        [*every, *(("Add", f"s{n}", (f"s{n - 1}" if n else "gradient", f"t{n}")) for n in range(100)),
         ("Sub", "w", ("weight", "s99"))],
        {"weight": "w"},
    )  # fmt: skip
    with pytest.raises(GraphRefusedError, match=rf"at most {MOST_BYTES_PER_ELEMENT << 20} are"):
        check(held, of(1 << 20))
