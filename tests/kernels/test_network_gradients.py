"""A whole network, differentiated once with a symbolic batch: against JAX, and cut over workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weft_graph.differentiation import Differentiated, differentiate
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.program import LOSS_SCALE
from weft_graph.types import BATCH, DType, TensorType
from weft_kernels.initializers import first_values
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_nodes

Array = np.ndarray[Any, np.dtype[Any]]
D = DType.FLOAT64
NORMAL = Initializer("RandomNormal", {"mean": 0.0, "scale": 0.3})
SHAPES = {"filters": (4, 2, 3, 3), "bias": (4,), "w1": (16, 5), "b1": (5,), "w2": (5, 3)}


def network(*, dropout: bool = False) -> Graph:
    """Conv, Relu, MaxPool, Reshape, Gemm, Tanh, MatMul and the loss, on images (batch, 2, 6, 6)."""
    middle = [Node("Tanh", "tanh", ("hidden",), ("active",))]
    if dropout:
        middle.append(Node("Dropout", "drop", ("active", "ratio", "on"), ("dropped",)))
    else:
        middle.append(Node("Identity", "keep", ("active",), ("dropped",)))
    return Graph(
        name="network",
        inputs=(Input("x", TensorType(D, (BATCH, 2, 6, 6))), Input("y", TensorType(DType.INT64, (BATCH,)))),
        parameters=tuple(Parameter(name, TensorType(D, shape), NORMAL) for name, shape in SHAPES.items()),
        nodes=(
            Node("Conv", "conv", ("x", "filters", "bias"), ("maps",)),
            Node("Relu", "relu", ("maps",), ("positive",)),
            Node("MaxPool", "pool", ("positive",), ("pooled",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
            Node("Reshape", "rows", ("pooled", "shape"), ("flat",)),
            Node("Gemm", "layer", ("flat", "w1", "b1"), ("hidden",)),
            *middle,
            Node("MatMul", "head", ("dropped", "w2"), ("scores",)),
            Node("SoftmaxCrossEntropyLoss", "criterion", ("scores", "y"), ("loss",)),
        ),
        outputs=("loss",),
        constants=(
            Constant("shape", np.array([-1, 16])),
            Constant("ratio", np.array(0.4)),
            Constant("on", np.array(True)),
        ),
    )


def reference(parameters: Mapping[str, Any], x: Array, y: Array) -> Any:
    maps = jax.lax.conv_general_dilated(x, parameters["filters"], (1, 1), "VALID") + parameters["bias"][:, None, None]
    pooled = jax.nn.relu(maps).reshape(len(x), 4, 2, 2, 2, 2).max(axis=(3, 5))
    hidden = jnp.tanh(pooled.reshape(len(x), 16) @ parameters["w1"] + parameters["b1"])
    log_prob = jax.nn.log_softmax(hidden @ parameters["w2"])
    return -log_prob[jnp.arange(len(y)), y].mean()


def parameters() -> dict[str, Array]:
    return {
        name: first_values(NORMAL, seed=1, key=name, start=0, stop=int(np.prod(shape)), dtype="float64").reshape(shape)
        for name, shape in SHAPES.items()
    }


def batch(samples: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(samples)
    return rng.standard_normal((samples, 2, 6, 6)), rng.integers(0, 3, samples)


def gradients(
    result: Differentiated, x: Array, y: Array, *, share: float = 1.0, first_sample: int = 0
) -> dict[str, Array]:
    values: dict[str, Array] = {"x": x, "y": y, LOSS_SCALE: np.array(share), **parameters()}
    values.update((constant.name, constant.array) for constant in result.graph.constants)
    context = KernelContext("", seed=2, step=3, first_sample=first_sample, samples=len(x))
    run_nodes(context, result.graph.nodes, values, keep=result.gradients.values())
    return {name: values[gradient] for name, gradient in result.gradients.items()}


@pytest.mark.parametrize("samples", [1, 5])
def test_gradients_are_those_of_jax_at_any_batch(samples: int) -> None:
    result = differentiate(network(), "loss")
    x, y = batch(samples)
    with jax.enable_x64(True):
        expected = jax.jit(jax.grad(reference))(parameters(), x, y)
    given = gradients(result, x, y)
    assert set(given) == set(SHAPES)
    for name, gradient in given.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("dropout", [False, True])
def test_parts_of_a_batch_sum_up_to_the_gradient_of_the_whole(dropout: bool) -> None:
    """Each part's loss is scaled by its share of the samples; dropout draws by the sample's place in the step."""
    result = differentiate(network(dropout=dropout), "loss")
    x, y = batch(7)
    whole = gradients(result, x, y)
    total = {name: np.zeros_like(gradient) for name, gradient in whole.items()}
    for start, stop in ((0, 3), (3, 5), (5, 7)):
        part = gradients(result, x[start:stop], y[start:stop], share=(stop - start) / 7, first_sample=start)
        for name, gradient in part.items():
            total[name] += gradient
    for name, gradient in whole.items():
        np.testing.assert_allclose(total[name], gradient, rtol=1e-10, atol=1e-14, err_msg=name)


def test_backward_types_keep_the_batch_symbolic() -> None:
    result = differentiate(network(), "loss")
    assert result.types["flat"] == TensorType(D, (BATCH, 16))
    for name, gradient in result.gradients.items():
        assert result.types[gradient] == TensorType(D, SHAPES[name])
