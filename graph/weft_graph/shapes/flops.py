"""Work of operators that is not one operation for each element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft_graph.attributes import as_int, as_ints
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


# ----------------------------------------------------------------------------------------------------------------------
# How much work operators over windows and sampled places are: operations on elements, by the types around a node.


_TAPS: Final = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}
_BOX_SAMPLES: Final = 16
"""Points that RoiAlign samples for an element of its result, where the boxes decide how many."""


def _of(types: Reads, index: int) -> TensorType:
    found = types[index]
    assert found is not None
    return found


def convolved(_node: Node, reads: Reads, writes: Writes) -> int:
    """A product and a sum for each element of the result and of one feature's weights."""
    features, *each = _of(reads, 1).static_shape
    return 2 * writes[0].size * math.prod(each) if features else 0


def spread(_node: Node, reads: Reads, _writes: Writes) -> int:
    """ConvTranspose: a product and a sum for each element of the input and of one channel's weights."""
    channels, *each = _of(reads, 1).static_shape
    return 2 * _of(reads, 0).size * math.prod(each) if channels else 0


def convolution_gradient(_node: Node, reads: Reads, _writes: Writes) -> int:
    """Those of Conv's input and weights: inputs are the gradient, the input, the weights."""
    features, *each = _of(reads, 2).static_shape
    return 2 * _of(reads, 0).size * math.prod(each) if features else 0


def windowed(node: Node, _reads: Reads, writes: Writes) -> int:
    """A pool: one for each place of every window."""
    return writes[0].size * math.prod(as_ints(node.attributes.get("kernel_shape", ())))


def windowed_gradient(node: Node, reads: Reads, _writes: Writes) -> int:
    """A pool's gradient: as much as the pool."""
    return _of(reads, 0).size * math.prod(as_ints(node.attributes.get("kernel_shape", ())))


def resampled(node: Node, reads: Reads, writes: Writes) -> int:
    """Resize: a product and a sum for each element that one is made of; dimension by dimension."""
    taps = _TAPS[str(node.attributes.get("mode", "nearest"))]
    return 2 * taps * max(writes[0].size, _of(reads, 0).size)


def sampled(node: Node, reads: Reads, writes: Writes) -> int:
    """GridSample: a product and a sum for each of the elements around a place."""
    taps = _TAPS.get(str(node.attributes.get("mode", "linear")), 4)
    return int(2 * writes[0].size * taps ** (_of(reads, 0).rank - 2))


def boxes(node: Node, _reads: Reads, writes: Writes) -> int:
    """RoiAlign: four elements for each sampled point of a box."""
    return 8 * _BOX_SAMPLES * writes[0].size


def sampled_gradient(node: Node, reads: Reads, writes: Writes) -> int:
    """GridSample's: those of the input as much as GridSample, and once more a dimension for those of the places."""
    taps, dimensions = _TAPS.get(str(node.attributes.get("mode", "linear")), 4), _of(reads, 1).rank - 2
    return int(2 * _of(reads, 0).size * taps**dimensions * (1 + dimensions * (len(writes) > 1)))


def boxes_gradient(_node: Node, reads: Reads, _writes: Writes) -> int:
    """RoiAlign's: as much as RoiAlign, whose result the gradient is as large as."""
    return 8 * _BOX_SAMPLES * _of(reads, 0).size


def transformed(_node: Node, _reads: Reads, writes: Writes) -> int:
    """A Fourier transform: five for each element and each halving."""
    size = writes[0].size
    return 5 * size * max(1, size.bit_length())
