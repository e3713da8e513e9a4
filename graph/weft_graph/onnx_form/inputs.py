"""The inputs of a model, and what their dimensions are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx

from weft_graph.dimensions.dims import Dim
from weft_graph.ir import Input
from weft_graph.names import FreshNames
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.frame import Frame, Maybe, Value, items_of
from weft_graph.onnx_form.imported import ReadOptions
from weft_graph.onnx_form.text import text
from weft_graph.onnx_form.value_types import element_type, file_dims, is_tensor, word_of
from weft_graph.types import BATCH, TensorType

_Dims = list[int | str]


def read_inputs(protos: Sequence[onnx.ValueInfoProto], frame: Frame, options: ReadOptions) -> tuple[Input, ...]:
    """Defines the inputs in the frame. Raises OnnxError, naming the input, for one whose shape nothing says."""
    declared: list[tuple[str, onnx.ValueInfoProto, _Dims]] = []
    for proto in protos:
        name = text(proto.name, "the name of an input")
        value = _defined(name, proto, frame, options)
        for item in items_of(value):
            declared.append((item, proto, _dims(item, name, proto, options)))
    _check_given(declared, [proto.name for proto in protos], options)
    names = _dimension_names([(name, dims) for name, _, dims in declared], options)
    return tuple(
        Input(name, TensorType(element_type(proto, f"input {proto.name!r}"), _named(name, dims, names)))
        for name, proto, dims in declared
    )


def _defined(name: str, proto: onnx.ValueInfoProto, frame: Frame, options: ReadOptions) -> Value:
    if is_tensor(proto):
        return frame.define(name, f"input {name!r}")
    if name not in options.sequences:
        element_type(proto, f"input {name!r}")
        kind = str(proto.type.WhichOneof("value")).removesuffix("_type")
        raise OnnxError(
            f"input {name!r} is a value of kind {kind}, and weft's graphs have tensors alone; the option `sequences` "
            "says how many items it has",
            node=name,
        )
    count = options.sequences[name]
    kind = proto.type.WhichOneof("value")
    value: Value
    if kind == "optional_type" and (count is None or proto.type.optional_type.elem_type.HasField("tensor_type")):
        value = Maybe(None if count is None else frame.reserved.get(name) or frame.shared.value_name(name))
    else:
        items = tuple(frame.shared.value_name(f"{name}.{place}") for place in range(count or 0))
        value = items if kind == "sequence_type" else Maybe(items)
    frame.names[name] = value
    return value


def _dims(item: str, name: str, proto: onnx.ValueInfoProto, options: ReadOptions) -> _Dims:
    given = options.shapes.get(item, options.shapes.get(name))
    if given is not None:
        return list(given)
    dims = file_dims(proto, f"input {name!r}") if is_tensor(proto) else None
    if dims is None:
        raise OnnxError(f"input {name!r}: the model does not say its shape; the option `shapes` does", node=name)
    if len(dims) > options.limits.rank:
        raise OnnxError(f"input {name!r} has {len(dims)} dimensions, at most {options.limits.rank}", node=name)
    return dims


def _check_given(
    declared: Sequence[tuple[str, onnx.ValueInfoProto, _Dims]], inputs: Sequence[str], options: ReadOptions
) -> None:
    known = {*(name for name, _, _ in declared), *inputs}
    for option, names in (("shapes", options.shapes), ("sequences", options.sequences)):
        for name in names:
            if name not in known:
                shown = ", ".join(map(repr, inputs)) or "none"
                raise OnnxError(f"option `{option}` names {name!r}, which is no input; there are {shown}", node=name)


def _dimension_names(shapes: Sequence[tuple[str, _Dims]], options: ReadOptions) -> Mapping[str, str]:
    """The word for each name that the file has. What most inputs begin with is `batch`; without names, all first
    dimensions that the file leaves open are."""
    firsts = Counter(dims[0] for _, dims in shapes if dims and isinstance(dims[0], str))
    named = {name: count for name, count in firsts.items() if name}
    every = dict.fromkeys(dim for _, dims in shapes for dim in dims if isinstance(dim, str) and dim)
    if options.batch and options.batch not in every:
        shown = ", ".join(map(repr, every)) or "none"
        raise OnnxError(f"option `batch`: no input has a dimension {options.batch!r}; there are {shown}")
    fallback = BATCH if BATCH in every else ""
    batch = options.batch or max(named, key=lambda name: (named[name], name == BATCH), default=fallback)
    words = FreshNames([BATCH])
    return {name: BATCH if name == batch else words.fresh(word_of(name)).replace(".", "_") for name in every}


def _named(item: str, dims: _Dims, names: Mapping[str, str]) -> tuple[Dim, ...]:
    """A first dimension that the file leaves open is the batch where no dimension is; others are the input's own."""
    has_batch = BATCH in names.values()
    made: list[Dim] = []
    for place, dim in enumerate(dims):
        if isinstance(dim, int) or dim:
            made.append(dim if isinstance(dim, int) else names[dim])
        else:
            made.append(BATCH if place == 0 and not has_batch else f"{word_of(item)}_{place}")
    return tuple(made)
