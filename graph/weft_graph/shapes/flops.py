"""How much work operators are that do not go element by element: operations on elements, by the types around a node."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.attributes import as_int
from weft_graph.ir import Node
from weft_graph.types import TensorType

Reads = Sequence[TensorType | None]
Writes = Sequence[TensorType]


def moved(_node: Node, _reads: Reads, writes: Writes) -> int:
    """One for each element that is put somewhere: a copy at worst."""
    return sum(type_.size for type_ in writes)


def reduced(_node: Node, reads: Reads, _writes: Writes) -> int:
    """One for each element that is read."""
    return sum(type_.size for type_ in reads if type_ is not None)


def normalized(_node: Node, reads: Reads, _writes: Writes) -> int:
    """Softmax and its like: largest, difference, exponential, sum and quotient."""
    data = reads[0]
    assert data is not None
    return 5 * data.size


def stacked_products(_node: Node, reads: Reads, writes: Writes) -> int:
    """MatMul: a product and a sum for each element of the result and of the inner dimension."""
    left = reads[0]
    assert left is not None
    return 2 * writes[0].size * left.static_shape[-1]


def scaled_product(node: Node, reads: Reads, writes: Writes) -> int:
    """Gemm: the product of two matrices, scaled, and a third one added."""
    left = reads[0]
    assert left is not None
    inner = left.static_shape[0 if as_int(node.attributes.get("transA", 0)) else 1]
    return (2 * inner + 3) * writes[0].size


def product_gradient(_node: Node, reads: Reads, _writes: Writes) -> int:
    """Those of MatMul's operands, whose inputs are the gradient, the left and the right one: as much as MatMul."""
    gradient, left, _ = reads
    assert gradient is not None
    assert left is not None
    return 2 * gradient.size * left.static_shape[-1]
