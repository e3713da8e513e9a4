"""Bodies whose outputs are large write them where the plan wants them, so that nothing is made beside and copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_kernels.kernel import KernelContext, kernel_of

Array = np.ndarray[Any, np.dtype[Any]]


def drawn(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


KERNEL = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
NODES = {
    "conv": (Node("Conv", "n", ("x", "w"), ("y",), KERNEL), (drawn(2, 3, 5, 5), drawn(4, 3, 3, 3))),
    "groups": (Node("Conv", "n", ("x", "w"), ("y",), {"group": 2}), (drawn(2, 4, 5, 5), drawn(6, 2, 3, 3))),
    "conv input": (
        Node("ConvInputGrad", "n", ("g", "x", "w"), ("y",), {}, "weft"),
        (drawn(2, 4, 3, 3), drawn(2, 3, 5, 5), drawn(4, 3, 3, 3)),
    ),
    "points input": (
        Node("ConvInputGrad", "n", ("g", "x", "w"), ("y",), {}, "weft"),
        (drawn(2, 4, 5, 5), drawn(2, 3, 5, 5), drawn(4, 3, 1, 1)),
    ),
    "conv transpose": (Node("ConvTranspose", "n", ("x", "w"), ("y",)), (drawn(2, 3, 4, 4), drawn(3, 2, 3, 3))),
    "softmax": (Node("Softmax", "n", ("x",), ("y",), {"axis": 1}), (drawn(4, 5, 6),)),
    "layer norm": (Node("LayerNormalization", "n", ("x", "w"), ("y",)), (drawn(4, 5, 6), drawn(6))),
    "concat": (Node("Concat", "n", ("x", "w"), ("y",), {"axis": 1}), (drawn(4, 5, 6), drawn(4, 2, 6))),
}


@pytest.mark.parametrize("channels_lead", [False, True], ids=["rows", "channels lead"])
@pytest.mark.parametrize("name", NODES)
def test_a_large_output_is_written_where_it_is_wanted(name: str, channels_lead: bool) -> None:
    node, inputs = NODES[name]
    run, attributes = kernel_of(node), schema_of(node).attributes_of(node)
    expected = run(KernelContext("n"), inputs, attributes)[0]
    place = np.full(expected.shape, np.nan, np.float32)
    if channels_lead:
        place = place.swapaxes(0, 1).copy().swapaxes(0, 1)
    made = run(KernelContext("n", placed=(place,)), inputs, attributes)[0]
    np.testing.assert_array_equal(made, expected)
    # A convolution's features lead in memory; where the plan has them otherwise, it is given an array of its own.
    assert np.shares_memory(made, place) == (channels_lead or not node.op_type.startswith("Conv"))
