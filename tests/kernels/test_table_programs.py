"""Programs that read tables by rows, run with plain arrays in the place of the store.

They must give what the same graph gives with the tables dense, to the bit, and what JAX gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from graph_tables import two_bags
from weft_graph.convert import convert
from weft_graph.infer import infer_program
from weft_graph.ir import Graph, Node
from weft_graph.program import LOSS_SCALE, Program
from weft_graph.types import array_type
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import KernelContext
from weft_kernels.run import KernelError, run_node

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = {"T": 11, "U": 7}


@dataclass
class Ran:
    """What a program gave: its outputs, and each key's gradient in the key's own shape."""

    outputs: dict[str, Array]
    gradients: dict[str, Array]
    rows_fetched: int = 0


def run_program(program: Program, feeds: Mapping[str, Array], parameters: Mapping[str, Array]) -> Ran:
    """Runs the nodes one by one; every value must be of the type that was inferred."""
    values = {**feeds, **{constant.name: constant.array for constant in program.constants}}
    if program.role == "train":
        values[LOSS_SCALE] = np.array(0.5, dtype=np.float32)
    types = infer_program(program, {"batch": len(feeds["x"])})
    ran = Ran({}, {})
    for node in program.nodes:
        outputs = _communicated(node, values, parameters, ran)
        if outputs is None:
            outputs = run_node(KernelContext(""), node, [values[name] for name in node.inputs])
        for name, array in zip(node.outputs, outputs, strict=True):
            assert array_type(array) == types[name], name
            values[name] = array
    ran.outputs = {name: values[value] for name, value in program.outputs.items()}
    return ran


def _communicated(
    node: Node, values: Mapping[str, Array], parameters: Mapping[str, Array], ran: Ran
) -> tuple[Array, ...] | None:
    key = str(node.attributes.get("key"))
    match node.op_type:
        case "Fetch":
            return (parameters[key],)
        case "FetchRows":
            ids = values[node.inputs[0]]
            named = ids[ids >= 0]
            assert (np.diff(named) > 0).all()
            assert (ids[len(named) :] == -1).all()
            ran.rows_fetched += len(named)
            rows = np.full((len(ids), *parameters[key].shape[1:]), np.nan, dtype=parameters[key].dtype)
            rows[: len(named)] = parameters[key][named]
            return (rows,)
        case "Send":
            ran.gradients[key] = values[node.inputs[0]]
        case "SendRows":
            ids, gradient = (values[name] for name in node.inputs)
            ran.gradients[key] = np.zeros_like(parameters[key])
            np.add.at(ran.gradients[key], ids[ids >= 0], gradient[ids >= 0])
        case "SendBarrier":
            pass
        case _:
            return None
    return ()


def dense(graph: Graph) -> Graph:
    return replace(graph, parameters=tuple(replace(p, row_sparse=False) for p in graph.parameters))


def parameters() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    shapes = {"w": (4, 4), "T": (11, 4), "U": (7, 4)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def reference(given: Mapping[str, Any], feeds: Mapping[str, Array], padding_id: int) -> Any:
    """Half of the mean of y squared, of `two_bags`."""
    a, b = feeds["a"], feeds["b"]
    ta = jnp.where((a == padding_id)[..., None], 0, given["T"][np.where(a == padding_id, 0, a)])
    u = given["U"][np.concatenate([b, np.where(b > 3, 0, b)], axis=1)]
    y = jnp.tanh(feeds["x"] @ given["w"]) + ta.sum(1) + given["T"][b].sum(1) * u.sum(1)
    return 0.5 * (y * y).mean()


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, dict[str, Array]]:
    """(padding id, feeds of `two_bags`): `a` has rows of T and padding, `b` rows of T and U, some from the end."""
    size, padding_id = draw(st.integers(1, 4)), draw(st.sampled_from([0, 4, -1, 50]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    a = rng.choice([*range(ROWS["T"]), *[padding_id] * draw(st.sampled_from([1, 100]))], (size, 3))
    b = rng.integers(-ROWS["U"], draw(st.integers(-6, ROWS["U"])), (size, 5))
    x = rng.standard_normal((size, 4)).astype(np.float32)
    return padding_id, {"x": x, "a": a.astype(np.int64), "b": b.astype(np.int32)}


@examples(40)
@given(batches())
def test_rows_give_what_whole_tables_give(batch: tuple[int, dict[str, Array]]) -> None:
    padding_id, feeds = batch
    graph, given_parameters = two_bags(padding_id), parameters()
    by_rows = convert(graph, loss="loss", metrics={})
    whole = convert(dense(graph), loss="loss", metrics={})
    assert [key.rows for key in by_rows.keys] == [False, True, True]
    assert not any(key.rows for key in whole.keys)
    found, expected = (run_program(programs.train, feeds, given_parameters) for programs in (by_rows, whole))
    assert found.rows_fetched > 0
    assert found.outputs["loss"].tobytes() == expected.outputs["loss"].tobytes()
    assert set(found.gradients) == set(expected.gradients) == {"w", "T", "U"}
    for key, gradient in expected.gradients.items():
        np.testing.assert_array_equal(found.gradients[key], gradient, err_msg=key)
    held_out = run_program(by_rows.evaluate, feeds, given_parameters).outputs["loss"]
    plain = evaluate(graph, feeds, parameters=given_parameters)["loss"]
    assert held_out.tobytes() == plain.tobytes() == found.outputs["loss"].tobytes()


@pytest.mark.parametrize("padding_id", [0, -1])
def test_rows_train_as_jax_does(padding_id: int) -> None:
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((6, 4)).astype(np.float32),
        "a": rng.integers(max(padding_id, -1), 11, (6, 3)),
        "b": rng.choice([-7, -3, -1, 1, 3, 6], (6, 5)).astype(np.int32),
    }
    given_parameters = parameters()
    found = run_program(convert(two_bags(padding_id), loss="loss", metrics={}).train, feeds, given_parameters)
    with jax.enable_x64(True):
        wide = {name: array.astype(np.float64) for name, array in given_parameters.items()}
        loss, expected = jax.value_and_grad(reference)(wide, feeds, padding_id)
    np.testing.assert_allclose(found.outputs["loss"], 2 * float(loss), rtol=1e-5)
    for key, gradient in expected.items():
        np.testing.assert_allclose(found.gradients[key], gradient, rtol=1e-4, atol=1e-6, err_msg=key)
    assert found.gradients["T"][0].any() == (padding_id != 0)


def test_a_row_that_is_not_there_is_said_of_the_users_node() -> None:
    feeds = {"x": np.zeros((1, 4), np.float32), "a": np.array([[1, 2, 11]]), "b": np.zeros((1, 5), np.int32)}
    program = convert(two_bags(), loss="loss", metrics={}).train
    with pytest.raises(KernelError, match=r"weft.unique_rows/T.*index 11 is outside \[0, 11\), read by node 'n_ta'"):
        run_program(program, feeds, parameters())
    with pytest.raises(KernelError, match=r"node 'n_ta' \(Embedding\): index 11 is outside \[0, 11\)"):
        evaluate(two_bags(), feeds, parameters=parameters())
