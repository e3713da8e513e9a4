"""ONNX's own backend suite through weft's kernels, and the backend's face."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_suite import cases, failures, left_out, reason
from weft_graph.errors import GraphError
from weft_graph.onnx_form.errors import UnsettledError
from weft_kernels.onnx_backend import Backend

pytestmark = pytest.mark.timeout(400)

TOTAL = 2033
ONNXRUNTIME_PASSES = 1445
AGAIN = "run: python tests/onnx_suite.py, and python docs/draw_onnx_suite.py"


@pytest.fixture(scope="module")
def failed() -> dict[str, str]:
    return failures(list(cases(Backend).values()))


def test_the_list_of_what_is_left_out_only_shrinks(failed: dict[str, str]) -> None:
    listed = left_out()
    new = {name: reason for name, reason in failed.items() if name not in listed}
    assert not new, f"these passed before: {new}"
    passing = sorted(set(listed) - set(failed))
    assert not passing, f"these pass now; {AGAIN}: {passing}"
    assert {name: reason(name, error) for name, error in failed.items()} == listed, AGAIN


def test_more_of_the_suite_passes_than_in_onnxruntime(failed: dict[str, str]) -> None:
    every = cases(Backend)
    assert len(every) == TOTAL
    assert len(every) - len(failed) > ONNXRUNTIME_PASSES
    older = {name for name, case in every.items() if case.opset <= 26}
    assert len(older - set(failed)) > 0.84 * len(older)


def test_nothing_else_computes() -> None:
    """The suite's own reference is out of reach while weft runs, and there again afterwards."""
    seen: list[str] = []

    class Peeking(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: object):  # type: ignore[no-untyped-def]
            for module in ("onnx.reference", "onnxruntime"):
                try:
                    __import__(module)
                except ImportError as error:
                    seen.append(str(error))
            return super().prepare(model, device, **kwargs)

    case = next(case for name, case in cases(Peeking).items() if name == "test_relu_cpu")
    assert not failures([case])
    assert [text.split()[0] for text in seen] == ["onnx.reference", "onnxruntime"]
    __import__("onnx.reference")


def test_a_node_runs_alone() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    x = np.array([1.0, 5.0], dtype=np.float32)
    (clipped,) = Backend.run_node(node, [x, np.float32(3)])
    assert clipped.tolist() == [1, 3]


def test_a_node_of_an_older_opset_runs_alone() -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[0], keepdims=0)
    (summed,) = Backend.run_node(node, [np.ones((2, 3), np.float32)], opset_version=11)
    assert summed.tolist() == [2, 2, 2]


def test_inputs_may_have_any_shape_that_fits() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    prepared = Backend.prepare(helper.make_model(graph))
    for shape in ((3,), (2, 0), ()):
        (result,) = prepared.run([np.full(shape, -1, np.float32)])
        assert result.shape == shape
        assert not result.any()


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="CUDA"):
        Backend.prepare(onnx.ModelProto(), "CUDA")


def items_at(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A model of a sequence of which an input chooses the item."""
    chosen = helper.make_node("SequenceAt", ["items", "place"], ["item"])
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["a", "b"], ["items"]), chosen, *nodes],
        "g",
        [
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "ab"),
            helper.make_tensor_value_info("place", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph)


def test_places_in_sequences_may_be_inputs() -> None:
    prepared = Backend.prepare(items_at(helper.make_node("Neg", ["item"], ["y"])))
    a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    for place, expected in ((0, [-1, -2]), (1, [-3, -4])):
        (result,) = prepared.run([a, b, np.array(place)])
        assert result.tolist() == expected


def test_what_is_said_is_the_error_of_the_model_as_it_is() -> None:
    prepared = Backend.prepare(items_at(helper.make_node("Ghost", ["item"], ["y"])))
    array = np.zeros(2, np.float32)
    with pytest.raises(UnsettledError, match="input 1 is not known before a step"):
        prepared.run([array, array, np.array(0)])


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(GraphError, match="no graph"):
        Backend.prepare(onnx.ModelProto()).run([])
