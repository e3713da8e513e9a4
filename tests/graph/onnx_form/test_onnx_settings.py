"""What says how an operator works is a constant of the graph, though it is an array of floats."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import Array, floats, initializer, model
from weft_graph.convert import convert
from weft_graph.onnx_form.reader import read_model
from weft_graph.schema import OpSchema, schemas
from weft_graph.shapes.gradients import flat

make = helper.make_node
LOWEST = np.triu(np.full((8, 8), np.finfo(np.float32).min, dtype=np.float32), 1)

DATA = frozenset(
    {
        *(
            "A",
            "B",
            "C",
            "W",
            "R",
            "P",
            "X",
            "Y",
            "bias",
            "scale",
            "Scale",
            "weight",
            "slope",
            "initial_h",
            "initial_c",
        ),
        *("K", "V", "key", "value", "past_key", "past_value", "past_state", "past_cache", "update", "updates"),
        *("decay", "beta", "offset", "mask", "captured", "v_initial"),
    }
)
"""Formal inputs behind the first that people train, or that others compute: whoever adds one decides."""


def floating(*shape: int) -> Array:
    return np.ones(shape, dtype=np.float32)


def ints(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def trained(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], values: dict[str, Array]) -> set[str]:
    made = model(nodes, inputs, initializers=[initializer(name, array) for name, array in values.items()])
    return {parameter.name for parameter in read_model(made).graph.parameters}


def test_every_input_of_floats_has_an_answer() -> None:
    """Of operators that gradients flow through; an unmarked one would be trained where a file has an array for it."""
    unanswered = [
        f"{schema.op_type}.{formal.name}"
        for (domain, _), schema in schemas().items()
        if domain != "weft" and _flows(schema)
        for formal in schema.inputs[1:]
        if any(dtype.is_float for dtype in formal.dtypes) and formal.setting is None and formal.name not in DATA
    ]
    assert unanswered == []


def _flows(schema: OpSchema) -> bool:
    return schema.gradient is not None and schema.gradient is not flat


SETTINGS = {
    "rotary": (
        make("RotaryEmbedding", ["x", "cos", "sin", "places"], ["y"]),
        [floats("x", "batch", 2, 16, 8), ints("places", "batch", 16)],
        {"cos": floating(16, 4), "sin": floating(16, 4)},
    ),
    "window": (
        make("STFT", ["x", "step", "window"], ["y"]),
        [floats("x", "batch", 64, 1)],
        {"window": floating(16), "step": np.array(4)},
    ),
    "mask of attention": (
        make("Attention", ["q", "k", "v", "mask"], ["y"]),
        [floats(name, "batch", 2, 8, 4) for name in "qkv"],
        {"mask": floating(8, 8)},
    ),
    "grid": (make("GridSample", ["x", "grid"], ["y"]), [floats("x", 2, 3, 8, 8)], {"grid": floating(2, 4, 4, 2)}),
    "regions": (
        make("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[2, 2]),
        [floats("x", 2, 3, 8, 8)],
        {"rois": np.zeros((3, 5), np.float32)},
    ),
    "mask of lowest numbers": (make("Add", ["x", "mask"], ["y"]), [floats("x", "batch", 8, 8)], {"mask": LOWEST}),
    "mask of one number": (
        make("Add", ["x", "mask"], ["y"]),
        [floats("x", "batch", 8, 8)],
        {"mask": np.triu(np.full((8, 8), -10000.0, dtype=np.float32), 1)},
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_are_constants(case: str) -> None:
    node, inputs, values = SETTINGS[case]
    assert trained([node], inputs, values) == set()


def test_a_model_with_weights_of_classes_trains() -> None:
    nodes = [
        make("MatMul", ["x", "W"], ["scores"]),
        make("SoftmaxCrossEntropyLoss", ["scores", "labels", "weights"], ["y"]),
    ]
    values = [initializer("W", floating(4, 5)), initializer("weights", floating(5))]
    graph = read_model(model(nodes, [floats("x", "batch", 4), ints("labels", "batch")], initializers=values)).graph
    assert [parameter.name for parameter in graph.parameters] == ["W"]
    assert convert(graph, loss="y", metrics={}).train.nodes


def test_what_a_setting_is_computed_from_may_train() -> None:
    """Biases that a position's distance chooses, and a network that says where another one looks."""
    biases = [make("Gather", ["table", "distances"], ["bias"]), make("Attention", ["q", "k", "v", "bias"], ["y"])]
    values = {"table": floating(15), "distances": np.arange(64).reshape(8, 8) % 15}
    assert trained(biases, [floats(name, "batch", 2, 8, 4) for name in "qkv"], values) == {"table"}
    looking = [
        make("MatMul", ["x", "W"], ["flat"]),
        make("Reshape", ["flat", "shape"], ["grid"]),
        make("GridSample", ["images", "grid"], ["y"]),
    ]
    values = {"W": floating(6, 32), "shape": np.array([2, 4, 4, 2])}
    assert trained(looking, [floats("x", 2, 6), floats("images", 2, 3, 8, 8)], values) == {"W"}


def test_a_number_that_is_a_setting_and_data_trains() -> None:
    nodes = [
        make("Squeeze", ["w"], ["one"]),
        make("Pad", ["x", "pads", "one"], ["padded"]),
        make("Mul", ["padded", "w"], ["y"]),
    ]
    values = {"w": floating(1), "pads": np.array([0, 1, 0, 0])}
    assert trained(nodes, [floats("x", "batch", 4)], values) == {"w"}
