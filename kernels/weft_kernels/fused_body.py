"""Runs the body of a Fused on NumPy's arrays, a part that stays in a core's cache at a time.

The bits are those of the nodes run one after the other: parts begin behind whole blocks of elements, and a body whose
arrays do not lie in order is run whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft_graph.ir import Subgraph
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.body import Body
from weft_kernels.broadcast_shape import BroadcastShape, broadcast_shape
from weft_kernels.kernel import Array, KernelContext


def run_fused(context: KernelContext, subgraph: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The body's outputs, of the shape that the inputs broadcast to. Raises KernelError."""
    body = Body(context, subgraph, ())
    shape = broadcast_shape([array.shape for array in inputs])
    if not _is_cut(shape, inputs):
        return body(inputs)
    arrays = [array.reshape(shape.of(number)) for number, array in enumerate(inputs)]
    results: list[Array] = []
    for part in shape.parts():
        made = body([array[shape.taken(number, part)] for number, array in enumerate(arrays)])
        if not results:
            results = [np.empty(shape.dims, each.dtype) for each in made]
        for result, each in zip(results, made, strict=True):
            result[part] = each
    return tuple(result.reshape(shape.shape) for result in results)


def _is_cut(shape: BroadcastShape, inputs: Sequence[Array]) -> bool:
    return math.prod(shape.dims) > CACHE_ELEMENTS and all(array.flags.c_contiguous for array in inputs)
