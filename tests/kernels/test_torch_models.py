"""Whole networks that PyTorch exported, against the gradients of its own autograd; see `tests/torch_models`.

The fixtures hold projections of PyTorch's gradients onto drawn directions, whose differences are as large, in the mean,
as the gradients' difference itself.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from weft_graph.check import check
from weft_graph.differentiation import differentiate
from weft_graph.onnx_form.errors import Imported
from weft_graph.onnx_form.reader import read_model
from weft_graph.program import LOSS_SCALE
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_nodes

FIXTURES = Path(__file__).parents[1] / "torch_models"
sys.path.insert(0, str(FIXTURES))
from values import PROJECTIONS, given, parameter, projected  # noqa: E402  # what the fixtures were made with

NETWORKS = sorted(path.stem for path in FIXTURES.glob("*.json"))
EXACT = 1e-8
"""Norm-wise and relative, of every parameter's gradient in float64."""


@cache
def _reference(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return document


def _imported(name: str, dtype: str) -> Imported:
    """The exported network with its weights put back."""
    model = onnx.load(FIXTURES / f"{name}.{dtype}.onnx")
    names = _reference(name)["aliases"]
    for tensor in model.graph.initializer:
        if not tensor.raw_data and tensor.dims:
            drawn = parameter(names.get(tensor.name, tensor.name), tuple(tensor.dims))
            tensor.raw_data = drawn.astype(dtype).tobytes()
    return read_model(model)


@cache
def _gradients(name: str, dtype: str) -> tuple[float, dict[str, Array]]:
    """The loss, and each parameter's gradient by PyTorch's name for it."""
    imported = _imported(name, dtype)
    check(imported.graph)
    (loss,) = imported.graph.outputs[:1]
    derived = differentiate(imported.graph, loss)
    inputs = {key: given(name, key, *what) for key, what in _reference(name)["inputs"].items()}
    values = {key: array.astype(dtype) if array.dtype.kind == "f" else array for key, array in inputs.items()}
    values.update(imported.values)
    values.update((constant.name, constant.array) for constant in derived.graph.constants)
    values[LOSS_SCALE] = np.ones((), dtype)
    samples = next(iter(inputs.values())).shape[0]
    wanted = [loss, *derived.gradients.values()]
    run_nodes(KernelContext("", samples=samples), derived.graph.nodes, values, keep=wanted)
    aliases = _reference(name)["aliases"]
    gradients = {aliases.get(key, key): values[value] for key, value in derived.gradients.items()}
    return float(values[loss]), gradients


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_in_float64_are_those_of_pytorch(name: str) -> None:
    reference = _reference(name)
    loss, gradients = _gradients(name, "float64")
    assert loss == pytest.approx(reference["loss"], rel=1e-10)
    assert gradients.keys() == reference["gradients"].keys()
    for key, expected in reference["gradients"].items():
        differences = np.subtract(projected(key, gradients[key]), expected["projections"])
        error = np.linalg.norm(differences) / np.sqrt(PROJECTIONS)
        assert error <= EXACT * expected["norm"] + 1e-14 * _largest(reference), key


@pytest.mark.parametrize("name", NETWORKS)
def test_float32_is_as_near_to_float64_as_pytorch_is(name: str) -> None:
    """At most twice its error, of the whole gradient and of the middle one of all parameters.

    One parameter's error alone is luck: a sum near 0 that rounds to the other side of a Relu changes it a thousandfold.
    """
    reference = _reference(name)["gradients"]
    _, exact = _gradients(name, "float64")
    _, single = _gradients(name, "float32")
    ours = np.array([np.linalg.norm(single[key].astype(np.float64) - exact[key]) for key in reference])
    theirs = np.array([entry["float32_error"] * entry["norm"] for entry in reference.values()])
    assert np.linalg.norm(ours) <= 2 * np.linalg.norm(theirs)
    assert np.median(ours / np.maximum(theirs, 1e-300)) <= 2


def _largest(reference: dict[str, Any]) -> float:
    """What a gradient that is zero but for rounding is held against: biases before a normalization have none."""
    return max(float(entry["norm"]) for entry in reference["gradients"].values())
