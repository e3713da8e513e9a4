"""ONNX's own node tests as cases of ours: the model's one node, its inputs and the outputs that ONNX expects."""

from __future__ import annotations

import importlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from weft_graph.ir import AttributeValue, Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import schemas

Array = np.ndarray[Any, np.dtype[Any]]

OUR_TYPES = {onnx.TensorProto.DataType.Name(number) for number in NUMBER_OF_DTYPE.values()}

OTHER_TYPES = {"STRING", "sequence_type", "optional_type"}
"""Types of ONNX's cases that weft does not have."""

ANOTHER_GENERATOR = "compares with the draws of another generator"
OLD_DFT = "DFT before opset 20, with its axis as an attribute"
OLD_DROPOUT = "Dropout before opset 13, with its ratio as an attribute"
LEFT_OUT = {
    "test_training_dropout": ANOTHER_GENERATOR,
    "test_training_dropout_default": ANOTHER_GENERATOR,
    "test_training_dropout_default_mask": ANOTHER_GENERATOR,
    "test_training_dropout_mask": ANOTHER_GENERATOR,
    "test_bernoulli": ANOTHER_GENERATOR,
    "test_bernoulli_double": ANOTHER_GENERATOR,
    "test_bernoulli_seed": ANOTHER_GENERATOR,
    **{f"test_dft_{form}opset19": OLD_DFT for form in ("", "axis_", "inverse_", "irfft_", "rfft_")},
    "test_dropout_default_old": OLD_DROPOUT,
    "test_dropout_random_old": OLD_DROPOUT,
}
"""Cases of our types that are not run, with the reason."""

WITHOUT_CASES = {
    **dict.fromkeys(("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), "draws"),
    **dict.fromkeys(("GlobalLpPool", "MaxRoiPool"), "no case"),
    "Bernoulli": "draws, and its cases are another generator's",
}
"""Operators that ONNX has no case of a single node for, or none that can be run, with what they are."""


WITH_BODIES = {"If", "Loop", "Scan"}
"""Operators whose nodes are no nodes alone: ONNX's models of them are run by the tests of the backend."""


@dataclass(frozen=True)
class NodeCase:
    """A case of a single node. `tensors` has every input by name, `expected` an array for each output that counts.

    `element_types` are ONNX's names of the types of all of these; what is no tensor goes by its kind (`sequence_type`).
    """

    name: str
    op_type: str
    opset: int
    proto: onnx.NodeProto
    tensors: dict[str, Any]
    expected: tuple[Any, ...]
    element_types: frozenset[str]
    rtol: float
    atol: float

    @property
    def node(self) -> Node:
        attributes: dict[str, AttributeValue] = {}
        for attribute in self.proto.attribute:
            attributes.update(_attribute(attribute))
        return Node(self.op_type, self.name, tuple(self.proto.input), tuple(self.proto.output), attributes)


@cache
def node_cases() -> dict[str, NodeCase]:
    """Every case whose one node is an operator of ours, by the case's name."""
    ours = {op_type for domain, op_type in schemas() if domain == ""}
    return {case.name: case for test in node_tests() for case in _cases(test, ours)}


@cache
def node_tests() -> list[Any]:
    """ONNX's node tests, which the package makes when it is asked for the first time."""
    with warnings.catch_warnings(), _made_quickly():
        warnings.simplefilter("ignore")  # making the cases overflows on purpose, inside the onnx package
        tests: list[Any] = load_model_tests(kind="node")
    return tests


@contextmanager
def _made_quickly() -> Iterator[None]:
    """Most of the time went into the elements of pooling's windows, gathered one by one, and into the sources of the
    cases, which ONNX's documentation shows."""
    pooling = importlib.import_module("onnx.reference.ops.op_pool_common")
    base = importlib.import_module("onnx.backend.test.case.base")
    own, snippet = pooling.pool, base.process_snippet
    pooling.pool, base.process_snippet = _pool, lambda op_name, name, export: ("", "")
    try:
        yield
    finally:
        pooling.pool, base.process_snippet = own, snippet


def _pool(
    padded: Array,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: int = 0,
    p: int = 1,
) -> Array:
    """`onnx.reference.ops.op_pool_common.pool`: the same elements of each window, in the same order, in one access."""
    dims = len(x_shape) - 2
    dilations = [1] * dims if dilations is None else dilations
    strides = strides or [1] * dims

    def wide(given: Sequence[int] | None) -> Sequence[int]:
        return [0] * (2 * dims) if given is None else list(given) * 2 * dims if len(given) == 1 else given

    required, around = wide(pads_required), wide(pads)
    combine: Callable[[Array], Any] = {
        "AVG": lambda rows: np.mean(rows, axis=-1),
        "MAX": lambda rows: np.max(rows, axis=-1),
        "LPPOOL": lambda rows: np.sum(np.abs(rows) ** p, axis=-1) ** (1.0 / p),
    }[pooling_type]
    by_length: list[dict[int, list[tuple[int, list[int]]]]] = []
    """Of each dimension: where windows of so many elements are in the output, and which elements these are."""
    for dim in range(dims):
        size, reach = x_shape[dim + 2], 1 + (kernel[dim] - 1) * dilations[dim]
        count = int((size + required[dim] + required[dim + dims] - reach) / strides[dim] + 1)
        end = size + around[dim] + around[dim + dims]
        lengths: dict[int, list[tuple[int, list[int]]]] = {}
        for place in range(count):
            start = strides[dim] * place
            chosen = [at for at in range(start, start + reach, dilations[dim]) if at < end]
            lengths.setdefault(len(chosen), []).append((place, chosen))
        by_length.append(lengths)
    y = np.zeros([*x_shape[:2], *out_shape], dtype=padded.dtype)
    for windows in itertools.product(*(lengths.values() for lengths in by_length)):
        places = np.ix_(range(x_shape[0]), range(x_shape[1]), *([place for place, _ in each] for each in windows))
        elements = [np.array([chosen for _, chosen in each]) for each in windows]
        apart = [
            each.reshape(
                [
                    *(len(each) if at == dim else 1 for at in range(dims)),
                    *(each.shape[1] if at == dim else 1 for at in range(dims)),
                ]
            )
            for dim, each in enumerate(elements)
        ]
        gathered = padded[:, :, *apart]
        rows = gathered.reshape([*gathered.shape[: 2 + dims], -1])
        found = combine(rows)
        if not (count_include_pad == 1 and pooling_type != "MAX"):
            for place in np.argwhere(np.isnan(rows).any(axis=-1)):
                row = rows[tuple(place)]
                found[tuple(place)] = combine(row[~np.isnan(row)])
        y[places] = found
    return y


def cases_to_run() -> dict[str, NodeCase]:
    """Those of weft's types that are not left out."""
    return {n: case for n, case in node_cases().items() if case.element_types <= OUR_TYPES and n not in LEFT_OUT}


def _cases(test: Any, ours: set[str]) -> Iterator[NodeCase]:
    graph = test.model.graph
    if len(graph.node) != 1 or any(a.type == onnx.AttributeProto.GRAPH for a in graph.node[0].attribute):
        return
    if graph.node[0].op_type not in ours or graph.node[0].domain not in {"", "ai.onnx"}:
        return
    names = [value.name for value in graph.input]
    versions = {entry.domain: entry.version for entry in test.model.opset_import}
    for number, (inputs, outputs) in enumerate(test.data_sets):
        name = test.name if len(test.data_sets) == 1 else f"{test.name}/{number}"
        tensors = {name: _array(value) for name, value in zip(names, inputs, strict=True)}
        expected = tuple(_array(value) for value in outputs)
        types = frozenset(_element_type(value) for value in (*graph.input, *graph.output))
        proto = graph.node[0]
        yield NodeCase(name, proto.op_type, versions[""], proto, tensors, expected, types, test.rtol, test.atol)


def _array(value: Any) -> Any:
    """The onnx package gives some tensors as messages, and some zero-dim ones as NumPy's or Python's scalars."""
    if isinstance(value, onnx.TensorProto) and value.data_type in onnx.helper.get_all_tensor_dtypes():
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | bool | float) else value


def _element_type(value: onnx.ValueInfoProto) -> str:
    kind: str = value.type.WhichOneof("value")
    return onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type) if kind == "tensor_type" else kind


def _attribute(attribute: onnx.AttributeProto) -> dict[str, AttributeValue]:
    """A tensor of one element is that number and, beside it, its type: so is ConstantOfShape's."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return {attribute.name: onnx.numpy_helper.to_array(value).item(), "dtype": value.data_type}
    if isinstance(value, bytes):
        return {attribute.name: value.decode()}
    return {attribute.name: tuple(value) if attribute.type == onnx.AttributeProto.INTS else value}
