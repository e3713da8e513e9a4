"""Type inference of the operators that arrange, pad, reduce and contract: symbolic dimensions, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.errors import DTypeError, GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.types import DType, TensorType

B = "batch"
FAR = (1 << 63) - 1
FIRST = Initializer("ConstantOfShape", {"value": 1.0})


def graph_of(op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], outputs: int = 1) -> Graph:
    """A graph of one node. An input is a shape (float32), a list (an int64 constant) or None (left out)."""
    names = tuple("" if given is None else f"in{place}" for place, given in enumerate(inputs))
    pairs = list(zip(names, inputs, strict=True))
    return Graph(
        name="one",
        inputs=tuple(Input(n, TensorType(DType.FLOAT32, given)) for n, given in pairs if isinstance(given, tuple)),
        parameters=(),
        nodes=(Node(op_type, "node", names, tuple(f"out{place}" for place in range(outputs)), attributes),),
        outputs=tuple(f"out{place}" for place in range(outputs)),
        constants=tuple(Constant(n, np.array(given, dtype=np.int64)) for n, given in pairs if isinstance(given, list)),
    )


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "expected"),
    [
        ("Max", ((B, 3), (3,), ()), {}, (B, 3)),
        ("Slice", ((B, 6), [1], [4], [1]), {}, (B, 3)),
        ("Slice", ((B, 6), [0, 0], [FAR, 2]), {}, (B, 2)),
        ("Slice", ((B, 6), [-1], [-FAR], [0], [-1]), {}, (B, 6)),
        ("Pad", ((B, 3), [0, 1, 0, 2]), {}, (B, 6)),
        ("Pad", ((B, 3), [1, 0, 1, 0]), {}, ("batch+2", 3)),
        ("Pad", ((B, 3), [1, 0, 0, 0]), {"mode": "reflect"}, ("batch+1", 3)),
        ("Expand", ((B, 1), [1, 5]), {}, (B, 5)),
        ("Tile", ((B, 2), [3, 2]), {}, ("3*batch", 4)),
        ("OneHot", ((B,), [4], [0, 1]), {}, (B, 4)),
        ("OneHot", ((B,), [4], [0, 1]), {"axis": 0}, (4, B)),
        ("Shape", ((B, 2, 3),), {"start": 1}, (2,)),
        ("ConstantOfShape", ([2, 0],), {}, (2, 0)),
        ("Range", ([0], [7], [2]), {}, (4,)),
        ("Trilu", ((B, 3, 3),), {}, (B, 3, 3)),
        ("ReduceMax", ((B, 3, 4), [1]), {"keepdims": 0}, (B, 4)),
        ("LayerNormalization", ((B, 3, 4), (4,)), {}, (B, 3, 4)),
        ("ConvTranspose", ((B, 2, 3, 3), (2, 4, 3, 3)), {"strides": (2, 2), "pads": (1, 1, 1, 1)}, (B, 4, 5, 5)),
        ("Einsum", ((B, 3), (3, 4)), {"equation": "bi, ij -> bj"}, (B, 4)),
        ("Einsum", ((B, 2, 3), (3, 4)), {"equation": "...i,ij"}, (B, 2, 4)),
        ("NegativeLogLikelihoodLoss", ((B, 3), None), {}, None),
    ],
)
def test_types_follow_and_the_batch_stays_a_name(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], expected: Any
) -> None:
    graph = graph_of(op_type, inputs, attributes)
    if expected is None:
        with pytest.raises(GraphRefusedError, match="'target' is left out"):
            check(graph)
        return
    check(graph)
    assert infer(graph)["out0"].shape == expected


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Slice", ((4,), [0], [4], [0], [0]), {}, "the step along axis 0 is 0"),
        ("Slice", ((4, 4), [0, 0], [4, 4], [1, -1]), {}, "name dimension 1 twice"),
        ("Slice", ((4,), [0, 0], [4]), {}, "2 starts, 1 ends, 2 axes and 2 steps do not match"),
        ("Slice", ((4,), [0], [4]), {"starts": (0,)}, "starts is an input and an attribute"),
        ("Slice", ((4,), (1,), [4]), {}, "input 'starts' is float32"),
        ("Slice", ((4,),), {}, "starts is missing"),
        ("Pad", ((2, 3), [1, 1]), {}, "two numbers for each of 2 dimensions"),
        ("Pad", ((2, 3), [0, -2, 0, -2]), {}, "take away more than the 3 elements"),
        ("Pad", ((0, 3), [1, 0, 0, 0]), {"mode": "edge"}, "nothing to repeat"),
        ("Pad", ((2, 3), [0, 0, 0, 0]), {"mode": "mirror"}, "'mirror' is none of"),
        ("Pad", ((2, 3), [FAR, 0, FAR, 0]), {}, "more than .* elements"),
        ("Expand", ((2, 3), [4]), {}, "does not broadcast with shape"),
        ("Expand", ((2, 3), [-1, 3]), {}, "a dimension below 0"),
        ("Tile", ((2, 3), [2]), {}, "must be 2 numbers"),
        ("Tile", ((2, 3), [FAR, FAR]), {}, "more than .* elements"),
        ("ConstantOfShape", ([1 << 40, 1 << 40],), {}, "more than .* elements"),
        ("ConstantOfShape", ([2],), {"dtype": 8}, "element type 8, which is none of"),
        ("Range", ([0], [FAR], [1]), {}, "more than .* elements"),
        ("Range", ([0], [7], [0]), {}, "no range from 0 to 7 by 0"),
        ("OneHot", ((B,), [0], [0, 1]), {}, "at least 1"),
        ("Clip", ((4,), (2,)), {}, "must be a scalar"),
        ("Clip", ((4,), ()), {"min": 0.0}, "an input and an attribute"),
        ("PRelu", ((4,), (2, 4)), {}, "does not broadcast to"),
        ("Gelu", ((4,),), {"approximate": "erf"}, "'erf' is none of"),
        ("Celu", ((4,),), {"alpha": 0.0}, "alpha must not be 0"),
        ("LayerNormalization", ((B, 4), (B, 4)), {}, "does not broadcast to the dimensions"),
        ("LayerNormalization", ((B, 4), (4,)), {"stash_type": 7}, "stash_type"),
        ("GroupNormalization", ((B, 4, 2), (2,), (2,)), {"num_groups": 2}, "one number a channel"),
        ("GroupNormalization", ((B, 4, 2), (4,), (4,)), {"num_groups": 3}, "do not fall into 3 groups"),
        ("InstanceNormalization", ((B, 4), (4,), (4,)), {}, "spatial"),
        ("LRN", ((B, 4),), {"size": 0}, "at least 1"),
        ("LpNormalization", ((B, 4),), {"p": 3}, "none of 1, 2"),
        ("ConvTranspose", ((B, 2, 3), (3, 1, 2)), {}, "has 2 channels, weights .* take 3"),
        ("ConvTranspose", ((B, 2, 3), (2, 1, 2)), {"output_padding": (1,)}, "below the strides"),
        ("ConvTranspose", ((B, 1, 3), (1, 1, 2)), {"pads": (9, 9)}, "gives no output"),
        ("ConvTranspose", ((B, 1, 2), (1, 1, 2)), {"dilations": (1 << 40,), "pads": (1 << 40, 0)}, "too many"),
        ("Einsum", ((2, 3), (4, 5)), {"equation": "ij,jk->ik"}, "label 'j' is 3 in one operand and 4"),
        ("Einsum", ((2, 3),), {"equation": "ij,jk->ik"}, "is of 2 operands, given 1"),
        ("Einsum", ((2, 3),), {"equation": "i->i"}, "for an operand of 2 dimensions"),
        ("Einsum", ((2, 3),), {"equation": "ij->ii"}, "each once among the operands"),
        ("Einsum", ((2, 3),), {"equation": "i$->i"}, "terms are of letters"),
        ("Einsum", ((2, 3),), {"equation": "......ij"}, "terms are of letters"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_sides(
    op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    graph = graph_of(op_type, inputs, attributes)
    check(graph)
    with pytest.raises((ShapeError, DTypeError), match=message) as caught:
        infer(graph)
    assert caught.value.node == "node"


def test_split_says_how_many_pieces_it_has() -> None:
    with pytest.raises(ShapeError, match="num_outputs is 3, and the node has 2 outputs"):
        infer(graph_of("Split", ((6,),), {"num_outputs": 3}, outputs=2))
    with pytest.raises(ShapeError, match="a dimension of 9 does not fall into 7 parts of 2"):
        infer(graph_of("Split", ((9,),), {}, outputs=7))
    types = infer(graph_of("Split", ((B, 5),), {"axis": 1}, outputs=3))
    assert [types[f"out{place}"].shape for place in range(3)] == [(B, 2), (B, 2), (B, 1)]


def _trained_through(*nodes: Node) -> Graph:
    weight = Parameter("w", TensorType(DType.FLOAT32, (3, 3)), FIRST)
    total = Node("ReduceSum", "total", (nodes[-1].outputs[0],), ("loss",), {"keepdims": 0})
    return Graph("g", (), (weight,), (*nodes, total), ("loss",))


def test_a_parameter_behind_a_step_alone_is_refused_and_beside_one_is_trained() -> None:
    step = Node("Round", "step", ("w",), ("rounded",))
    with pytest.raises(GraphRefusedError, match="has no path with a gradient to parameter 'w'"):
        differentiate(_trained_through(step), "loss")
    beside = Node("Mul", "beside", ("w", "rounded"), ("product",))
    assert set(differentiate(_trained_through(step, beside), "loss").gradients) == {"w"}


def test_a_statistic_of_layer_normalization_has_no_gradient_and_says_so() -> None:
    graph = _trained_through(
        Node("LayerNormalization", "norm", ("w", "w"), ("normal", "mean"), {"axis": 0}),
        Node("Neg", "neg", ("mean",), ("negative",)),
    )
    with pytest.raises(NoGradientError, match="the statistics have no gradient"):
        differentiate(graph, "loss")
