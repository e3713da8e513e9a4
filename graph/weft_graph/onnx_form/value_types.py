"""What a file says of its values' types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import onnx

from weft_graph.dimensions.dims import UNKNOWN_PREFIX, Dim
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.tensors import dtype_of
from weft_graph.onnx_form.text import text
from weft_graph.types import DType, TensorType

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def declared_types(values: Iterable[onnx.ValueInfoProto], names: Mapping[str, str]) -> dict[str, TensorType]:
    """Types by the names that values have in weft's graph, of those whose rank the file says. It is not to be trusted:
    a dimension that is no number is unknown, and what inference finds goes before."""
    found: dict[str, TensorType] = {}
    for value in values:
        name = names.get(text(value.name, "the name of a value"))
        tensor = value.type.tensor_type
        if name is None or not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dtype = DTYPE_OF_NUMBER.get(tensor.elem_type)
        if dtype is not None:
            found[name] = TensorType(dtype, tuple(_dim(dim, name, place) for place, dim in enumerate(tensor.shape.dim)))
    return found


def _dim(dim: onnx.TensorShapeProto.Dimension, name: str, place: int) -> Dim:
    is_number = dim.HasField("dim_value") and dim.dim_value >= 0
    return dim.dim_value if is_number else f"{UNKNOWN_PREFIX}{word_of(name)}_{place}"


def element_type(value: onnx.ValueInfoProto, what: str) -> DType:
    """The element type of an input that is a tensor, or of the items of one that is a sequence or optional.

    Raises OnnxError for what is neither.
    """
    type_ = value.type
    while type_.WhichOneof("value") in {"sequence_type", "optional_type"}:
        type_ = type_.sequence_type.elem_type if type_.HasField("sequence_type") else type_.optional_type.elem_type
    if type_.WhichOneof("value") != "tensor_type":
        raise OnnxError(f"{what} is of {type_.WhichOneof('value') or 'no type'}, and weft's graphs have tensors alone")
    return dtype_of(type_.tensor_type.elem_type, what)


def is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def file_dims(value: onnx.ValueInfoProto, what: str) -> list[int | str] | None:
    """The dimensions of an input: numbers, the file's names, '' for one of which it says nothing; None without shape.

    Raises OnnxError for a dimension below 0.
    """
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str] = []
    for place, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise OnnxError(f"{what}: dimension {place} is {dim.dim_value}, which is below 0", node=value.name)
            dims.append(dim.dim_value)
        else:
            dims.append(text(dim.dim_param, f"{what}: dimension {place}"))
    return dims


def word_of(name: str) -> str:
    """The name as a plain word, which is what a dimension's name must be."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if _WORD.fullmatch(word) else f"_{word}"
