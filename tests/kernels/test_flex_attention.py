"""FlexAttention through bodies: values and gradients are JAX's, also of what the bodies capture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradient_case import floats
from weft_graph.differentiation import differentiate
from weft_graph.errors import ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter, Subgraph
from weft_graph.program import LOSS_SCALE
from weft_graph.topological import topological_order
from weft_graph.types import TensorType, array_type
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_nodes

DOMAIN = "ai.onnx.preview"
ARRAYS = {
    "q": floats(2, 4, 3, 2),
    "k": floats(2, 2, 5, 2, seed=1),
    "v": floats(2, 2, 5, 3, seed=2),
    "bias": floats(4, 1, 5, seed=3),
    "gate": floats(3, 1, seed=4),
}
WEIGHTS = floats(2, 4, 3, 3, seed=5)

SCORE_MOD = Subgraph(
    ("scores",),
    ("bias", "gate"),
    (
        Node("Tanh", "cap", ("scores",), ("level",)),
        Node("Mul", "double", ("level", "two"), ("doubled",)),
        Node("Add", "add_bias", ("doubled", "bias"), ("changed",)),
    ),
    ("changed",),
    (Constant("two", np.array(2.0)),),
)
PROB_MOD = Subgraph(
    ("given",),
    ("bias", "gate"),
    (Node("Mul", "square", ("given", "given"), ("squared",)), Node("Mul", "shut", ("squared", "gate"), ("gated",))),
    ("gated",),
)


def graph_of(bodies: dict[str, Subgraph], trained: set[str]) -> Graph:
    """The sum of what attention gives, each element with a weight of its own."""
    names = ["q", "k", "v", *(["bias", "gate"] if bodies else [])]
    start = Initializer("ConstantOfShape", {"value": 0.0})
    return Graph(
        name="flex",
        inputs=tuple(Input(n, array_type(ARRAYS[n])) for n in names if n not in trained),
        parameters=tuple(Parameter(n, array_type(ARRAYS[n]), start) for n in names if n in trained),
        nodes=(
            Node("FlexAttention", "flex", tuple(names), ("y",), {"scale": 0.7, **bodies}, DOMAIN),
            Node("Mul", "weigh", ("y", "weights"), ("weighed",)),
            Node("ReduceSum", "add_up", ("weighed",), ("loss",), {"keepdims": 0}),
        ),
        outputs=("loss",),
        constants=(Constant("weights", WEIGHTS),),
    )


def reference(arrays: dict[str, Any], bodies: dict[str, Subgraph]) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", arrays["q"], jnp.repeat(arrays["k"], 2, 1)) * 0.7
    if "score_mod" in bodies:
        scores = jnp.tanh(scores) * 2 + arrays["bias"]
    weights = jax.nn.softmax(scores, axis=-1)
    if "prob_mod" in bodies:
        weights = weights * weights * arrays["gate"]
    return jnp.sum(jnp.einsum("bhqk,bhkd->bhqd", weights, jnp.repeat(arrays["v"], 2, 1)) * WEIGHTS)


BOTH = {"score_mod": SCORE_MOD, "prob_mod": PROB_MOD}


@pytest.mark.parametrize(
    ("bodies", "trained"),
    [
        (BOTH, {"q", "k", "v", "bias", "gate"}),
        ({"score_mod": SCORE_MOD}, {"q", "bias"}),
        ({"prob_mod": PROB_MOD}, {"k", "gate"}),
        (BOTH, {"v"}),
        (BOTH, {"bias"}),
        (BOTH, {"gate"}),
    ],
    ids=["all", "scores", "probabilities", "values_alone", "bias_alone", "gate_alone"],
)
def test_gradients_through_bodies_are_those_of_jax(bodies: dict[str, Subgraph], trained: set[str]) -> None:
    result = differentiate(graph_of(bodies, trained), "loss")
    values = {**ARRAYS, LOSS_SCALE: np.array(1.0)}
    values.update((constant.name, constant.array) for constant in result.graph.constants)
    run_nodes(
        KernelContext(""), topological_order(result.graph.nodes), values, keep=["loss", *result.gradients.values()]
    )
    with jax.enable_x64(True):
        rest = {name: array for name, array in ARRAYS.items() if name not in trained}
        loss, wanted = jax.value_and_grad(lambda given: reference({**rest, **given}, bodies))(
            {name: ARRAYS[name] for name in trained}
        )
    np.testing.assert_allclose(values["loss"], loss, rtol=1e-12)
    assert set(result.gradients) == trained
    for name, gradient in result.gradients.items():
        np.testing.assert_allclose(values[gradient], wanted[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_body_that_changes_the_shape_is_refused() -> None:
    shorter = replace(
        PROB_MOD,
        nodes=(Node("ReduceMax", "shorten", ("given",), ("gated",), {"axes": (3,)}),),
    )
    with pytest.raises(ShapeError, match="prob_mod makes"):
        infer(graph_of({"prob_mod": shorter}, set()))
    two = replace(PROB_MOD, outputs=("gated", "squared"))
    with pytest.raises(ShapeError, match="prob_mod takes one tensor, gives one"):
        infer(graph_of({"prob_mod": two}, set()))
    assert infer(graph_of(BOTH, set()))["y"] == TensorType(array_type(WEIGHTS).dtype, (2, 4, 3, 3))
