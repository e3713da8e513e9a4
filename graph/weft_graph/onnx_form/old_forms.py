"""How operators were written in older opsets, and what they become in the newest one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from onnx import TensorProto

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.json_form import OPSET
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER, NUMBER_OF_DTYPE
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.errors import Array, OnnxError
from weft_graph.types import TensorType

# --- What an older form of an operator is, and what its rewriting sees and does ---------------------------------------


@dataclass(frozen=True, slots=True)
class Older:
    """One node of an older form. What comes before it in the newer form is emitted, in the newest form."""

    node: Node
    draft: Draft
    version: int

    def attribute(self, name: str, default: AttributeValue | None = None) -> AttributeValue | None:
        return self.node.attributes.get(name, default)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """A list attribute, or None where the node has none. Raises OnnxError where it is no list of numbers."""
        value = self.attribute(name)
        if value is None:
            return None
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)
        raise self.refusal(f"attribute {name!r} is no list of whole numbers")

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number. Raises OnnxError where it is none."""
        value = self.attribute(name, default)
        if isinstance(value, int | float):
            return value
        raise self.refusal(f"attribute {name!r} is no number")

    def input(self, index: int) -> str:
        """Input `index`, '' where the node leaves it out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def becomes(
        self,
        op_type: str = "",
        inputs: Sequence[str] | None = None,
        *,
        drop: Sequence[str] = (),
        outputs: Sequence[str] | None = None,
        **attributes: AttributeValue,
    ) -> Node:
        """The node with what is said changed, and without the attributes to drop."""
        left = {name: value for name, value in self.node.attributes.items() if name not in drop}
        return replace(
            self.node,
            op_type=op_type or self.node.op_type,
            inputs=self.node.inputs if inputs is None else tuple(inputs),
            outputs=self.node.outputs if outputs is None else tuple(outputs),
            attributes={**left, **attributes},
        )

    def emit(self, op_type: str, *inputs: str, **attributes: AttributeValue) -> str:
        """A node before this one; its only output's name."""
        return self.draft.emit(op_type, inputs, attributes, name=self.node.name)[0]

    def then(self, op_type: str, inputs: Sequence[str], output: str, **attributes: AttributeValue) -> Node:
        """A node that comes after this one and gives one of its outputs."""
        return Node(
            op_type, self.draft.shared.node_name(f"{self.node.name}/{op_type}"), tuple(inputs), (output,), attributes
        )

    def value(self, word: str) -> str:
        """A new name for a value between this node and one that comes after."""
        return self.draft.shared.value_name(f"{self.node.name}/{word}")

    def constant(self, array: Array, word: str) -> str:
        return self.draft.constant(array, f"{self.node.name}/{word}")

    def integers(self, numbers: Sequence[int], word: str) -> str:
        """A constant list of whole numbers."""
        return self.constant(np.asarray(numbers, dtype=np.int64), word)

    def scalar_like(self, number: float, value: str, word: str) -> str:
        """A number of the element type of `value`, which need not be known here."""
        type_ = self.draft.type_of(value)
        if type_ is not None:
            return self.constant(np.asarray(number).astype(type_.dtype.numpy), word)
        return self.emit("CastLike", self.constant(np.asarray(number, dtype=np.float64), word), value)

    def type_of(self, value: str) -> TensorType | None:
        return self.draft.type_of(value)

    def rank(self, value: str) -> int:
        """Raises OnnxError, naming the node, where the rank of a value is not known."""
        type_ = self.draft.type_of(value)
        if type_ is None:
            raise self.refusal(
                f"its form before opset {self.version + 1} needs the rank of {value!r}, which is not known"
            )
        return type_.rank

    def known(self, value: str) -> Array | None:
        """The value where it is known before any step."""
        return self.draft.value_of(value) if value else None

    def refusal(self, message: str) -> OnnxError:
        """An error that names the node; raise it."""
        name = self.node.name
        return OnnxError(f"node {name!r} ({self.node.op_type}, opset {self.version}): {message}", node=name)


Rewrite = Callable[[Older], Sequence[Node]]


@dataclass(frozen=True, slots=True)
class OldForm:
    """Nodes of `op_type` from opsets below `before` are rewritten to what they are in that opset.

    `rewrite` returns the node of the newer form and what comes after it.
    """

    op_type: str
    before: int
    rewrite: Rewrite


# --- Before opset 7 operators broadcast only where `broadcast` says so, and from `axis` on ----------------------------


_DROPPED = ("broadcast", "axis")
_PAIRS = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")


def _pairwise(old: Older) -> Sequence[Node]:
    """The second value's dimensions are those of the first from `axis` on: ones are put behind them."""
    axis, left, right = old.attribute("axis"), old.input(0), old.input(1)
    if not old.attribute("broadcast", 0) or not isinstance(axis, int):
        return [old.becomes(drop=_DROPPED)]
    whole, part = old.rank(left), old.rank(right)
    behind = whole - part - (axis + whole if axis < 0 else axis)
    if behind < 0:
        raise old.refusal(f"axis {axis} leaves no room for the {part} dimensions of {right!r} in {whole}")
    if behind == 0 or part == 0:
        return [old.becomes(drop=_DROPPED)]
    axes = old.integers(range(part, part + behind), "axes")
    return [old.becomes(inputs=(left, old.emit("Unsqueeze", right, axes)), drop=_DROPPED)]


def _gemm(old: Older) -> Sequence[Node]:
    return [old.becomes(drop=("broadcast",))]


def _prelu(old: Older) -> Sequence[Node]:
    """A slope for each channel stands against dimension 1."""
    data, slope = old.input(0), old.input(1)
    type_ = old.type_of(slope)
    if type_ is not None and (type_.rank != 1 or type_.shape == (1,)):
        return [old.node]
    behind = old.rank(data) - 2
    if behind < 1:
        return [old.node]
    axes = old.integers(range(1, 1 + behind), "axes")
    return [old.becomes(inputs=(data, old.emit("Unsqueeze", slope, axes)))]


_BROADCAST_FORMS = (
    *(OldForm(op_type, 7, _pairwise) for op_type in _PAIRS),
    OldForm("Gemm", 7, _gemm),
    OldForm("PRelu", 7, _prelu),
)


# --- Cast: a type that was said by name -------------------------------------------------------------------------------


def _number_of_name(old: Older) -> Sequence[Node]:
    name = old.attribute("to")
    if name not in TensorProto.DataType.keys():  # noqa: SIM118  # an enum of protobuf, not a dict
        raise old.refusal(f"{name!r} is no element type")
    return [old.becomes(to=TensorProto.DataType.Value(str(name)))]


_CAST_FORMS = (OldForm("Cast", 6, _number_of_name),)


# --- Clip: bounds that were attributes --------------------------------------------------------------------------------


_LARGEST = 3.4028234663852886e38


def _bounds_as_inputs(old: Older) -> Sequence[Node]:
    """The defaults of opset 6 are float32's largest numbers, which bound nothing."""
    low, high = old.number("min", -_LARGEST), old.number("max", _LARGEST)
    data = old.input(0)
    lower = old.scalar_like(low, data, "min") if low > -3.4e38 else ""
    upper = old.scalar_like(high, data, "max") if high < 3.4e38 else ""
    inputs = (data, lower, upper) if upper else (data, lower) if lower else (data,)
    return [old.becomes(inputs=inputs, drop=("min", "max"))]


_CLIP_FORMS = (OldForm("Clip", 11, _bounds_as_inputs),)


# --- ConstantOfShape of what no attribute of weft's graphs holds: an infinity, or a whole number beyond a float's -----


_EXACT: Final = 1 << 53
"""Whole numbers up to here are floats, also in JSON."""


def _expanded(old: Older) -> Sequence[Node]:
    value, number = old.attribute("value"), old.attribute("dtype")
    if not isinstance(value, int | float) or not isinstance(number, int):
        return [old.node]
    if math.isfinite(value) and abs(value) <= _EXACT:
        return [old.node]
    filled = old.constant(np.asarray(value).astype(DTYPE_OF_NUMBER[number].numpy), "value")
    return [old.becomes("Expand", (filled, old.input(0)), drop=("value", "dtype"))]


_CONSTANT_OF_SHAPE_FORMS = (OldForm("ConstantOfShape", OPSET + 1, _expanded),)


# --- Dropout: a ratio that was an attribute, and a mask in the type of the data ---------------------------------------


def _ratio_as_input(old: Older) -> Sequence[Node]:
    """Without `training_mode` it is the identity, as it was in files that were made for inference."""
    ratio = old.constant(np.asarray(old.number("ratio", 0.5), dtype=np.float32), "ratio")
    return [old.becomes(inputs=(old.input(0), ratio), drop=("ratio", "is_test"))]


def _mask_of_booleans(old: Older) -> Sequence[Node]:
    outputs = old.node.outputs
    if len(outputs) < 2 or not outputs[1]:
        return [old.node]
    type_ = old.type_of(old.input(0))
    if type_ is None:
        raise old.refusal("the element type of its mask is not known")
    mask = old.value("mask")
    cast = old.then("Cast", (mask,), outputs[1], to=NUMBER_OF_DTYPE[type_.dtype])
    return [old.becomes(outputs=(outputs[0], mask)), cast]


_DROPOUT_FORMS = (OldForm("Dropout", 10, _mask_of_booleans), OldForm("Dropout", 12, _ratio_as_input))


# --- Lists that became inputs: axes, lengths, bounds, shapes ----------------------------------------------------------


_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)


def _becoming_input(name: str) -> Rewrite:
    def rewrite(old: Older) -> Sequence[Node]:
        numbers = old.ints(name)
        if numbers is None:
            return [old.becomes(drop=(name,))]
        return [old.becomes(inputs=(old.input(0), old.integers(numbers, name)), drop=(name,))]

    return rewrite


def _top_k(old: Older) -> Sequence[Node]:
    k = old.integers([int(old.number("k", 0))], "k")
    return [old.becomes(inputs=(old.input(0), k), drop=("k",))]


def _slice(old: Older) -> Sequence[Node]:
    lists = [old.ints(name) for name in ("starts", "ends", "axes")]
    names = [
        "" if numbers is None else old.integers(numbers, word)
        for numbers, word in zip(lists, ("starts", "ends", "axes"), strict=True)
    ]
    if not all(names[:2]):
        raise old.refusal("attributes 'starts' and 'ends' are missing")
    given = names if names[2] else names[:2]
    return [old.becomes(inputs=(old.input(0), *given), drop=("starts", "ends", "axes"))]


def _reshape(old: Older) -> Sequence[Node]:
    shape = old.ints("shape")
    if shape is None:
        raise old.refusal("attribute 'shape' is missing")
    return [old.becomes(inputs=(old.input(0), old.integers(shape, "shape")), drop=("shape",))]


def _tile(old: Older) -> Sequence[Node]:
    """In the first form one axis is tiled, and both the count and the axis are values."""
    tiles, axis = old.known(old.input(1)), old.known(old.input(2))
    if tiles is None or axis is None or tiles.size != 1 or axis.size != 1:
        raise old.refusal("its tiles and axis are no constants")
    repeats = [1] * old.rank(old.input(0))
    if not 0 <= int(axis.item()) < len(repeats):
        raise old.refusal(f"axis {int(axis.item())} is outside {len(repeats)} dimensions")
    repeats[int(axis.item())] = int(tiles.item())
    return [old.becomes(inputs=(old.input(0), old.integers(repeats, "repeats")))]


def _split(old: Older) -> Sequence[Node]:
    """The very first form takes the lengths as an attribute or as an input."""
    lengths = old.ints("split")
    if lengths is None:
        return [old.becomes(drop=("split",))]
    return [old.becomes(inputs=(old.input(0), old.integers(lengths, "split")), drop=("split",))]


def _concat(old: Older) -> Sequence[Node]:
    return [old.becomes(axis=int(old.number("axis", 1)))]


_LISTS_FORMS = (
    *(OldForm(op_type, 18, _becoming_input("axes")) for op_type in _REDUCTIONS),
    OldForm("ReduceSum", 13, _becoming_input("axes")),
    OldForm("Squeeze", 13, _becoming_input("axes")),
    OldForm("Unsqueeze", 13, _becoming_input("axes")),
    OldForm("Split", 13, _split),
    OldForm("TopK", 10, _top_k),
    OldForm("Slice", 10, _slice),
    OldForm("Reshape", 5, _reshape),
    OldForm("Tile", 6, _tile),
    OldForm("Concat", 4, _concat),
)


# --- BatchNormalization before it had a training mode, GroupNormalization by groups, Selu's rounded numbers -----------


def _batch_9(old: Older) -> Sequence[Node]:
    """Mean and variance of the first two dimensions alone exist no more."""
    if not old.attribute("spatial", 1):
        raise old.refusal("spatial 0, a mean for each element of a sample, is in no newer opset")
    return [old.becomes(drop=("spatial", "is_test"))]


def _batch_14(old: Older) -> Sequence[Node]:
    """It trains where it gives more than its result; the statistics of the batch alone are given no more."""
    outputs = old.node.outputs
    if any(outputs[3:]):
        raise old.refusal("outputs 'saved_mean' and 'saved_var' are in no newer opset")
    training = int(any(outputs[1:]))
    return [old.becomes(outputs=outputs[:3] if training else outputs[:1], training_mode=training)]


def _group_21(old: Older) -> Sequence[Node]:
    """Scale and bias are by group, and become numbers for each channel."""
    type_ = old.type_of(old.input(0))
    groups = int(old.number("num_groups", 0))
    channels = None if type_ is None or type_.rank < 2 else type_.shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise old.refusal("the count of its channels is not known, or no multiple of its groups")
    one, shape = old.integers([1], "axes"), old.integers([groups, channels // groups], "shape")
    flat = old.integers([channels], "channels")
    widened = (
        old.emit("Reshape", old.emit("Expand", old.emit("Unsqueeze", old.input(index), one), shape), flat)
        for index in (1, 2)
    )
    return [old.becomes(inputs=(old.input(0), *widened))]


def _selu_6(old: Older) -> Sequence[Node]:
    return [old.becomes(alpha=old.number("alpha", 1.6732), gamma=old.number("gamma", 1.0507))]


_NORMALIZATION_FORMS = (
    OldForm("BatchNormalization", 9, _batch_9),
    OldForm("BatchNormalization", 14, _batch_14),
    OldForm("GroupNormalization", 21, _group_21),
    OldForm("Selu", 6, _selu_6),
)


# --- Pad: amounts and value that were attributes ----------------------------------------------------------------------


def _first(old: Older) -> Sequence[Node]:
    paddings = old.ints("paddings")
    if paddings is None:
        raise old.refusal("attribute 'paddings' is missing")
    return [old.becomes(drop=("paddings",), pads=paddings)]


def _amounts_as_inputs(old: Older) -> Sequence[Node]:
    pads, data = old.ints("pads"), old.input(0)
    if pads is None:
        raise old.refusal("attribute 'pads' is missing")
    inputs = [data, old.integers(pads, "pads")]
    if old.number("value", 0.0) != 0:
        inputs.append(old.scalar_like(old.number("value", 0.0), data, "value"))
    return [old.becomes(inputs=inputs, drop=("pads", "value"))]


_PADDING_FORMS = (OldForm("Pad", 2, _first), OldForm("Pad", 11, _amounts_as_inputs))


# --- Recurrent networks: what was asked for by an attribute is asked for by naming an output --------------------------


def _named_outputs(old: Older) -> Sequence[Node]:
    return [old.becomes(drop=("output_sequence",))]


_RECURRENT_FORMS = tuple(OldForm(op_type, 7, _named_outputs) for op_type in ("RNN", "LSTM", "GRU"))


# --- Upsample, and Resize as it was: coordinates without an offset, and the element below -----------------------------


def _mode(old: Older) -> str:
    return {"nearest": "nearest"}.get(str(old.attribute("mode", "nearest")), "linear")


def _upsample_1(old: Older) -> Sequence[Node]:
    """It scales the last two of four dimensions."""
    scales = (1.0, 1.0, float(old.number("height_scale", 1)), float(old.number("width_scale", 1)))
    return [old.becomes(drop=("height_scale", "width_scale"), scales=scales, mode=_mode(old))]


def _upsample_7(old: Older) -> Sequence[Node]:
    scales = old.attribute("scales")
    if not isinstance(scales, tuple) or not all(isinstance(scale, int | float) for scale in scales):
        raise old.refusal("attribute 'scales' is missing")
    given = old.constant(np.asarray(scales, dtype=np.float32), "scales")
    return [old.becomes(inputs=(old.input(0), given), drop=("scales",))]


def _as_resize_10(old: Older) -> Sequence[Node]:
    """Resize took Upsample's place, and was the same at first."""
    return [old.becomes("Resize")]


def _as_resize_11(old: Older) -> Sequence[Node]:
    return [
        old.becomes(
            "Resize",
            (old.input(0), "", old.input(1)),
            mode=_mode(old),
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    ]


def _lists_left_out(old: Older) -> Sequence[Node]:
    """Before opset 13 scales, and before 18 a region, that say nothing were there as empty lists."""
    inputs = [old.input(0), *("" if _is_empty(old, index) else old.input(index) for index in range(1, 4))]
    while not inputs[-1]:
        inputs.pop()
    return [old.becomes(inputs=inputs)]


def _is_empty(old: Older, index: int) -> bool:
    known = old.known(old.input(index))
    type_ = old.type_of(old.input(index)) if old.input(index) else None
    return (known is not None and known.size == 0) or (type_ is not None and type_.shape == (0,))


_RESIZE_FORMS = (
    OldForm("Upsample", 7, _upsample_1),
    OldForm("Upsample", 9, _upsample_7),
    OldForm("Upsample", 10, _as_resize_10),
    OldForm("Resize", 11, _as_resize_11),
    OldForm("Resize", 18, _lists_left_out),
)


# --- GridSample's and RoiAlign's words, pooling by a norm, DFT's axis, Scatter's name ---------------------------------


def _grid_sample(old: Older) -> Sequence[Node]:
    mode = str(old.attribute("mode", "bilinear"))
    return [old.becomes(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))]


def _roi_align(old: Older) -> Sequence[Node]:
    return [old.becomes(coordinate_transformation_mode="output_half_pixel")]


def _norm_pool(old: Older) -> Sequence[Node]:
    """The norm's power is a whole number."""
    power = old.number("p", 2.0)
    if power != int(power):
        raise old.refusal(f"power {power} is no whole number")
    return [old.becomes(p=int(power))]


def _dft(old: Older) -> Sequence[Node]:
    axis = old.constant(np.asarray(int(old.number("axis", 1)), dtype=np.int64), "axis")
    return [old.becomes(inputs=(old.input(0), old.input(1), axis), drop=("axis",))]


def _scatter(old: Older) -> Sequence[Node]:
    return [old.becomes("ScatterElements")]


_SAMPLING_FORMS = (
    OldForm("GridSample", 20, _grid_sample),
    OldForm("RoiAlign", 16, _roi_align),
    OldForm("GlobalLpPool", 2, _norm_pool),
    OldForm("LpPool", 2, _norm_pool),
    OldForm("DFT", 20, _dft),
    OldForm("Scatter", 11, _scatter),
)


# --- Scan before opset 9: over batches of sequences, which is a Scan over the batch of a Scan over each sequence ------


def _over_batches(old: Older) -> Sequence[Node]:
    body, directions = old.attribute("body"), old.ints("directions")
    if not isinstance(body, Subgraph):
        raise old.refusal("attribute 'body' is missing")
    if old.input(0):
        raise old.refusal("lengths of single sequences are in no newer opset")
    read = len(old.node.inputs) - len(body.captured)
    values, captured = old.node.inputs[1:read], old.node.inputs[read:]
    inner_names = tuple(old.value(f"sample{place}") for place in range(len(values)))
    inner_outputs = tuple(old.value(f"result{place}") for place in range(len(body.outputs)))
    turned: dict[str, AttributeValue] = {} if directions is None else {"scan_input_directions": directions}
    inner = old.becomes(inputs=(*inner_names, *body.captured), outputs=inner_outputs, drop=("directions",))
    inner = Node(
        "Scan",
        old.draft.shared.node_name(f"{old.node.name}/Scan"),
        inner.inputs,
        inner.outputs,
        {**inner.attributes, **turned},
    )
    outer = Subgraph(inner_names, body.captured, (inner,), inner_outputs)
    return [
        Node(
            "Scan",
            old.node.name,
            (*values, *captured),
            (*old.node.outputs, *("" for _ in inner_outputs[len(old.node.outputs) :])),
            {"body": outer, "num_scan_inputs": len(values)},
        )
    ]


_SCAN_FORMS = (OldForm("Scan", 9, _over_batches),)


# --- Softmax, LogSoftmax, Hardmax: before opset 13 the input is taken as a matrix, cut at `axis` ----------------------


def _over_a_matrix(old: Older) -> Sequence[Node]:
    """Over the last axis alone both forms are one; else the matrix is made, and taken apart afterwards."""
    axis, data, result = int(old.number("axis", 1)), old.input(0), old.node.outputs[0]
    type_ = old.type_of(data)
    if axis == -1 or (type_ is not None and axis == type_.rank - 1):
        return [old.becomes(axis=-1)]
    if axis < 0:
        axis += old.rank(data)
    matrix, normalized = old.emit("Flatten", data, axis=axis), old.value("matrix")
    shape = old.emit("Shape", data)
    return [
        old.becomes(inputs=(matrix,), outputs=(normalized,), axis=-1),
        old.then("Reshape", (normalized, shape), result),
    ]


_SOFTMAX_FORMS = tuple(OldForm(op_type, 13, _over_a_matrix) for op_type in ("Softmax", "LogSoftmax", "Hardmax"))


# --- Split: how many pieces there are is said by the outputs, and of newer opsets by an attribute that repeats it -----


def _without_count(old: Older) -> Sequence[Node]:
    """One that contradicts the outputs stays, for inference to refuse."""
    repeats = old.attribute("num_outputs") == len(old.node.outputs)
    return [old.becomes(drop=("num_outputs",) if repeats else ())]


_SPLIT_FORMS = (OldForm("Split", OPSET + 1, _without_count),)


FORMS: Final = (
    *_BROADCAST_FORMS,
    *_CAST_FORMS,
    *_CLIP_FORMS,
    *_CONSTANT_OF_SHAPE_FORMS,
    *_DROPOUT_FORMS,
    *_LISTS_FORMS,
    *_NORMALIZATION_FORMS,
    *_PADDING_FORMS,
    *_RECURRENT_FORMS,
    *_RESIZE_FORMS,
    *_SAMPLING_FORMS,
    *_SCAN_FORMS,
    *_SOFTMAX_FORMS,
    *_SPLIT_FORMS,
)
"""Every form that an operator has had, and what it becomes."""
