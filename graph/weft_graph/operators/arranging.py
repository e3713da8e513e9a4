"""Elements in another order, shape or number: what moves them and does not compute."""

from __future__ import annotations

from weft_graph.attributes import as_int, as_ints, as_str
from weft_graph.dimensions import Dim, agree, agree_all, is_unknown, product, quotient, settled, total, unknown_of
from weft_graph.folding import FOLD_CONCAT, FOLD_EXPANDED, FOLD_MOVED, FOLD_SLICE
from weft_graph.formals import ANY, FLOATS, INDICES, INT64, optional, required, setting, variadic
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.arranging import (
    MODES,
    bounds_of,
    infer_amounts,
    infer_required_amounts,
    infer_shape,
    open_padded,
    open_sides_of,
    part,
    repeated,
    reshaped,
    sliced,
    split_sizes,
    squeezed,
    transposed,
)
from weft_graph.shapes.broadcasting import (
    OpenAxes,
    broadcast,
    check_same_dtype,
    infer_axes,
    infer_axis,
    infer_like,
    infer_unary,
    sum_to,
)
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gradients import apply, flat, given_attributes, incoming
from weft_graph.types import Shape, TensorType


def _identity_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (incoming(context),)


IDENTITY = OpSchema(
    op_type="Identity",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=infer_unary,
    gradient=_identity_gradient,
    pointwise=True,
    views=True,
    follows=True,
    folding=FOLD_MOVED,
)
"""Y = X."""


COPY = OpSchema(
    op_type="Copy",
    inputs=(required("value", ANY),),
    outputs=(required("copy", ANY),),
    infer=infer_unary,
    attributes={
        "source": Attribute(str, required=True),
        "target": Attribute(str, required=True),
        "priority": Attribute(int, default=0),
    },
    domain=WEFT_DOMAIN,
    views=True,
)
"""Copy(value): the value on another device of the same worker, `target`; `priority` is of copies at the same time."""


STOP_GRADIENT = OpSchema(
    op_type="StopGradient",
    inputs=(required("X", ANY),),
    outputs=(required("Y", ANY),),
    infer=infer_unary,
    gradient=flat,
    domain=WEFT_DOMAIN,
    pointwise=True,
    views=True,
)
"""StopGradient: Y = X, a constant as far as gradients are concerned: nothing flows back through it.

ONNX has no word for it; what is exported has Identity in its place.
"""


def _infer_reshape(context: InferContext) -> tuple[TensorType, ...]:
    data, target = context.input(0), context.dims(1)
    if target is None or context.input(1).rank != 1:
        raise context.shape_error(f"the shape must be a list of as many numbers as dimensions, got {context.input(1)}")
    allow_zero = bool(as_int(context.attribute("allowzero")))
    try:
        shape = reshaped(data.shape, target, allow_zero=allow_zero)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _reshaped_back(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


RESHAPE = OpSchema(
    op_type="Reshape",
    inputs=(required("data", ANY), required("shape", INT64)),
    outputs=(required("reshaped", ANY),),
    infer=_infer_reshape,
    gradient=_reshaped_back,
    attributes={"allowzero": Attribute(int, default=0)},
    flops=moved,
    views=True,
    follows=True,
    folding=FOLD_MOVED,
)
"""Reshape: the elements in their order, in another shape; 0 copies a dimension, -1 is what is left."""


def _infer_reshape_like(context: InferContext) -> tuple[TensorType, ...]:
    data, like = context.input(0), context.input(1)
    if not agree(product(data.shape), product(like.shape)):
        raise context.shape_error(f"{data} and {like} differ in their number of elements")
    return (TensorType(data.dtype, like.shape),)


RESHAPE_LIKE = OpSchema(
    op_type="ReshapeLike",
    inputs=(required("data", ANY), required("like", ANY)),
    outputs=(required("reshaped", ANY),),
    infer=_infer_reshape_like,
    domain=WEFT_DOMAIN,
    views=True,
    shape_only=(1,),
)
"""ReshapeLike(data, like): the elements of data, in their order, in the shape of `like`."""


def _infer_flatten(context: InferContext) -> tuple[TensorType, ...]:
    data, axis = context.input(0), as_int(context.attribute("axis"))
    if not -data.rank <= axis <= data.rank:
        raise context.shape_error(f"axis {axis} is outside [{-data.rank}, {data.rank}] of {data}")
    axis = axis + data.rank if axis < 0 else axis
    return (TensorType(data.dtype, (product(data.shape[:axis]), product(data.shape[axis:]))),)


def _flatten_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("ReshapeLike", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


FLATTEN = OpSchema(
    op_type="Flatten",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer_flatten,
    gradient=_flatten_gradient,
    attributes={"axis": Attribute(int, default=1)},
    flops=moved,
    views=True,
    follows=True,
    folding=FOLD_MOVED,
)
"""Flatten: a matrix whose rows are the dimensions before `axis` and whose columns are those from it on."""


def _infer_squeeze(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    axes = infer_axes(context, data.rank)
    if isinstance(axes, OpenAxes):
        return (TensorType(data.dtype, _open_dims(context, data, axes)),)
    if axes is None:
        if not all(isinstance(dim, int) or is_unknown(dim) for dim in data.shape):
            raise context.shape_error(f"axes must be given: whether a dimension of {data} is 1 is not known")
        # What a step decides is taken not to be 1; a step in which it is fails, as the output has another rank then.
        axes = tuple(axis for axis, dim in enumerate(data.shape) if dim == 1)
    wrong = [axis for axis in axes if not agree(data.shape[axis], 1)]
    if wrong:
        raise context.shape_error(f"dimension {wrong[0]} of {data} is {data.shape[wrong[0]]}, not 1")
    return (TensorType(data.dtype, tuple(dim for axis, dim in enumerate(data.shape) if axis not in axes)),)


def _open_dims(context: InferContext, data: TensorType, axes: OpenAxes) -> Shape:
    if axes.count is None:
        raise context.shape_error(f"it must be known before a step how many axes there are; the input is {data}")
    return tuple(context.unknown() for _ in range(data.rank - axes.count))


SQUEEZE = OpSchema(
    op_type="Squeeze",
    inputs=(required("data", ANY), optional("axes", INT64)),
    outputs=(required("squeezed", ANY),),
    infer=_infer_squeeze,
    gradient=_reshaped_back,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
    views=squeezed,
    follows=True,
    folding=FOLD_MOVED,
)
"""Squeeze: without the dimensions of 1 that `axes` names, or without all of them."""


def _infer_unsqueeze(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    given = context.attribute("axes")
    type_ = context.optional_input(1)
    if given is None and type_ is None:
        raise context.shape_error("axes are missing")
    count = len(as_ints(given)) if type_ is None else product(type_.shape)
    if not isinstance(count, int):
        raise context.shape_error(f"it must be known before a step how many axes there are, got {type_}")
    rank = data.rank + count
    axes = infer_axes(context, rank)
    if isinstance(axes, OpenAxes):
        return (TensorType(data.dtype, tuple(context.unknown() for _ in range(rank))),)
    axes = axes or ()
    rest = iter(data.shape)
    return (TensorType(data.dtype, tuple(1 if axis in axes else next(rest) for axis in range(rank))),)


UNSQUEEZE = OpSchema(
    op_type="Unsqueeze",
    inputs=(required("data", ANY), optional("axes", INT64)),
    outputs=(required("expanded", ANY),),
    infer=_infer_unsqueeze,
    gradient=_reshaped_back,
    attributes={"axes": Attribute(tuple)},
    flops=moved,
    views=squeezed,
    follows=True,
    folding=FOLD_MOVED,
)
"""Unsqueeze: with a dimension of 1 at each of `axes`, counted in the output."""


def _infer_expand(context: InferContext) -> tuple[TensorType, ...]:
    data, target = context.input(0), infer_shape(context, 1, "shape")
    shape = broadcast(data.shape, target)
    if shape is None:
        raise context.shape_error(f"{data} does not broadcast with shape {list(target)}")
    return (TensorType(data.dtype, shape),)


def _expand_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return sum_to(context, incoming(context), context.input(0)), None


EXPAND = OpSchema(
    op_type="Expand",
    inputs=(required("input", ANY), required("shape", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer_expand,
    gradient=_expand_gradient,
    flops=moved,
    views=repeated,
    follows=True,
    folding=FOLD_EXPANDED,
)
"""Expand: the input, broadcast together with `shape`."""


def _infer_transpose(context: InferContext) -> tuple[TensorType, ...]:
    data, given = context.input(0), context.attribute("perm")
    order = tuple(range(data.rank))[::-1] if given is None else as_ints(given)
    if sorted(order) != list(range(data.rank)):
        raise context.shape_error(f"perm {order} is not an order of the dimensions of {data}")
    return (TensorType(data.dtype, tuple(data.shape[axis] for axis in order)),)


def _transpose_gradient(context: GradientContext) -> tuple[str | None, ...]:
    given = context.attribute("perm")
    if given is None:
        return context.emit("Transpose", (incoming(context),))
    order = as_ints(given)
    inverse = tuple(order.index(axis) for axis in range(len(order)))
    return context.emit("Transpose", (incoming(context),), {"perm": inverse})


TRANSPOSE = OpSchema(
    op_type="Transpose",
    inputs=(required("data", ANY),),
    outputs=(required("transposed", ANY),),
    infer=_infer_transpose,
    gradient=_transpose_gradient,
    attributes={"perm": Attribute(tuple)},
    flops=moved,
    views=transposed,
    follows=True,
)
"""Transpose: the dimensions in the order `perm`; reversed where it is left out."""


def _infer_concat(context: InferContext) -> tuple[TensorType, ...]:
    indices = range(len(context.node.inputs))
    check_same_dtype(context, *indices)
    first = context.input(0)
    axis = infer_axis(context, first.rank)
    along: list[Dim] = []
    beside = first.shape
    for index in indices:
        part = context.input(index)
        if not agree_all((*part.shape[:axis], *part.shape[axis + 1 :]), (*beside[:axis], *beside[axis + 1 :])):
            raise context.shape_error(f"inputs differ beside axis {axis}: {first} and {part}")
        along.append(part.shape[axis])
        beside = tuple(map(settled, beside, part.shape))
    return (TensorType(first.dtype, (*beside[:axis], total(along), *beside[axis + 1 :])),)


def _concat_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = context.node.inputs
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("ConcatGrad", (incoming(context), *inputs), attributes, domain=WEFT_DOMAIN, outputs=len(inputs))


CONCAT = OpSchema(
    op_type="Concat",
    inputs=(variadic("inputs", ANY),),
    outputs=(required("concat_result", ANY),),
    infer=_infer_concat,
    gradient=_concat_gradient,
    attributes={"axis": Attribute(int, required=True)},
    flops=moved,
    follows=True,
    folding=FOLD_CONCAT,
)
"""Concat: the inputs one after the other along `axis`."""


def _infer_concat_grad(context: InferContext) -> tuple[TensorType, ...]:
    return tuple(context.input(index) for index in range(1, len(context.node.inputs)))


CONCAT_GRAD = OpSchema(
    op_type="ConcatGrad",
    inputs=(required("gradient", FLOATS), variadic("inputs", ANY)),
    outputs=(variadic("input_gradients", FLOATS),),
    infer=_infer_concat_grad,
    attributes={"axis": Attribute(int, required=True)},
    domain=WEFT_DOMAIN,
    shape_only=range(1, PROGRAM_LIMITS.node_values),
    views=part,
)
"""ConcatGrad(gradient, inputs ...): the part of the gradient that belongs to each input of Concat."""


def _infer_split(context: InferContext) -> tuple[TensorType, ...]:
    data, parts = context.input(0), len(context.node.outputs)
    axis = infer_axis(context, data.rank)
    declared = context.attribute("num_outputs")
    if declared is not None and as_int(declared) != parts:
        raise context.shape_error(f"num_outputs is {declared}, and the node has {parts} outputs")
    try:
        sizes = split_sizes(data.shape[axis], parts, infer_amounts(context, 1, "split"))
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    lengths = (context.unknown(data.shape[axis]) if size is None else size for size in sizes)
    return tuple(TensorType(data.dtype, (*data.shape[:axis], size, *data.shape[axis + 1 :])) for size in lengths)


def _split_gradient(context: GradientContext) -> tuple[str | None, ...]:
    parts = range(len(context.node.outputs))
    inputs = (context.input(0), context.input(1), *(context.gradient(index) or "" for index in parts))
    attributes = given_attributes(context, ("axis", "split"))
    (data,) = context.emit("SplitGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


SPLIT = OpSchema(
    op_type="Split",
    inputs=(required("input", ANY), optional("split", INT64)),
    outputs=(variadic("outputs", ANY),),
    infer=_infer_split,
    gradient=_split_gradient,
    attributes={"axis": Attribute(int, default=0), "num_outputs": Attribute(int), "split": Attribute(tuple)},
    flops=moved,
    views=part,
    follows=True,
)
"""Split: pieces along `axis`, of the lengths `split` (an input, or an attribute before opset 13), or equal ones.

Of equal pieces the last is the shorter where the dimension is no multiple.
"""


SPLIT_GRAD = OpSchema(
    op_type="SplitGrad",
    inputs=(required("input", FLOATS), optional("split", INT64), variadic("gradients", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    attributes={"axis": Attribute(int, default=0), "split": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(0,),
)
"""SplitGrad(input, split, gradients ...): the pieces' gradients one after the other, 0 for one that is left out."""


def _infer_slice(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    starts = infer_required_amounts(context, 1, "starts")
    ends = infer_required_amounts(context, 2, "ends")
    axes, steps = infer_amounts(context, 3, "axes"), infer_amounts(context, 4, "steps")
    try:
        shape = sliced(data.shape, bounds_of(data.rank, starts, ends, axes, steps), context.unknown)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _slice_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("starts", "ends", "axes"))
    (data,) = context.emit("SliceGrad", (incoming(context), *context.node.inputs), attributes, domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


SLICE = OpSchema(
    op_type="Slice",
    inputs=(
        required("data", ANY),
        optional("starts", INDICES),
        optional("ends", INDICES),
        optional("axes", INDICES),
        optional("steps", INDICES),
    ),
    outputs=(required("output", ANY),),
    infer=_infer_slice,
    gradient=_slice_gradient,
    attributes={"starts": Attribute(tuple), "ends": Attribute(tuple), "axes": Attribute(tuple)},
    flops=moved,
    views=part,
    follows=True,
    folding=FOLD_SLICE,
)
"""Slice: along each of `axes` the elements from a start to before an end, by a step that may go backwards.

Before opset 10 the lists are attributes.
"""


SLICE_GRAD = OpSchema(
    op_type="SliceGrad",
    inputs=(
        required("gradient", FLOATS),
        required("data", FLOATS),
        optional("starts", INDICES),
        optional("ends", INDICES),
        optional("axes", INDICES),
        optional("steps", INDICES),
    ),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"starts": Attribute(tuple), "ends": Attribute(tuple), "axes": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
"""SliceGrad(gradient, data, starts, ends, axes, steps): the gradient where Slice took from, 0 elsewhere."""


def _infer_pad(context: InferContext) -> tuple[TensorType, ...]:
    data, value = context.input(0), context.optional_input(2)
    mode = as_str(context.attribute("mode"))
    if mode not in MODES:
        raise context.shape_error(f"mode {mode!r} is none of {', '.join(MODES)}")
    if value is not None:
        check_same_dtype(context, 0, 2)
        if not agree(product(value.shape), 1):
            raise context.shape_error(f"constant_value {value} must be one number")
    pads, axes = infer_required_amounts(context, 1, "pads"), infer_amounts(context, 3, "axes")
    try:
        shape = open_padded(data.shape, open_sides_of(data.rank, pads, axes), mode, context.unknown)
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(data.dtype, shape),)


def _pad_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    inputs = (gradient, context.input(0), context.input(1), context.input(3))
    (data,) = context.emit("PadGrad", inputs, given_attributes(context, ("mode", "pads")), domain=WEFT_DOMAIN)
    gradients: list[str | None] = [data, *(None,) * (len(context.node.inputs) - 1)]
    if context.needs(2) and context.attribute("mode") == "constant":
        # What does not reach the data reaches the constant.
        whole, inner = (apply(context, "ReduceSum", value, keepdims=0) for value in (gradient, data))
        outer = apply(context, "Sub", whole, inner)
        (gradients[2],) = context.emit("ReshapeLike", (outer, context.input(2)), domain=WEFT_DOMAIN)
    return tuple(gradients)


PAD = OpSchema(
    op_type="Pad",
    inputs=(
        required("data", ANY),
        optional("pads", INT64),
        setting(optional("constant_value", ANY)),
        optional("axes", INDICES),
    ),
    outputs=(required("output", ANY),),
    infer=_infer_pad,
    gradient=_pad_gradient,
    attributes={
        "mode": Attribute(str, default="constant"),
        "pads": Attribute(tuple),
        "value": Attribute(float, default=0.0),
    },
    flops=moved,
    follows=True,
)
"""Pad: elements before and after dimensions: a constant, the edge, a reflection or the other end.

Negative pads take elements away. Before opset 11 `pads` and `value` are attributes.
"""


PAD_GRAD = OpSchema(
    op_type="PadGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), optional("pads", INT64), optional("axes", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"mode": Attribute(str, default="constant"), "pads": Attribute(tuple)},
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
"""PadGrad(gradient, data, pads, axes): each element's gradient and those of its repetitions; Pad's attributes."""


def _infer_tile(context: InferContext) -> tuple[TensorType, ...]:
    data, repeats = context.input(0), context.dims(1)
    if repeats is None or len(repeats) != data.rank or any(isinstance(n, int) and n < 0 for n in repeats):
        shown = context.input(1) if repeats is None else list(repeats)
        raise context.shape_error(f"repeats {shown} must be {data.rank} numbers, none below 0")
    return (TensorType(data.dtype, tuple(product(pair) for pair in zip(data.shape, repeats, strict=True))),)


def _tile_gradient(context: GradientContext) -> tuple[str | None, ...]:
    (data,) = context.emit("TileGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)
    return data, None


TILE = OpSchema(
    op_type="Tile",
    inputs=(required("input", ANY), required("repeats", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer_tile,
    gradient=_tile_gradient,
    flops=moved,
    follows=True,
)
"""Tile: each dimension as often as `repeats` says, one copy after the other."""


TILE_GRAD = OpSchema(
    op_type="TileGrad",
    inputs=(required("gradient", FLOATS), required("input", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_like(1),
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
"""TileGrad(gradient, input): the sum of all copies' gradients."""


def _infer_trilu(context: InferContext) -> tuple[TensorType, ...]:
    data, diagonal = context.input(0), context.optional_input(1)
    if data.rank < 2:
        raise context.shape_error(f"the input must be a matrix or a stack of them, got {data}")
    if diagonal is not None and not agree(product(diagonal.shape), 1):
        raise context.shape_error(f"k {diagonal} must be one number")
    return (data,)


def _trilu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("upper",))
    (data,) = context.emit("Trilu", (incoming(context), *context.node.inputs[1:]), attributes)
    return (data, None)[: len(context.node.inputs)]


TRILU = OpSchema(
    op_type="Trilu",
    inputs=(required("input", ANY), optional("k", INT64)),
    outputs=(required("output", ANY),),
    infer=_infer_trilu,
    gradient=_trilu_gradient,
    attributes={"upper": Attribute(int, default=1)},
    flops=moved,
    follows=True,
)
"""Trilu: the upper or lower triangle of matrices, from diagonal `k` on; 0 elsewhere."""


DIAGONAL_GRAD = OpSchema(
    op_type="DiagonalGrad",
    inputs=(required("gradient", FLOATS), required("operand", FLOATS)),
    outputs=(required("operand_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"labels": Attribute(str, required=True)},
    domain=WEFT_DOMAIN,
)
"""DiagonalGrad(gradient, operand): the operand's gradient, 0 but in the diagonal of dimensions that share a label.

`labels` has a letter for each dimension of the operand; the gradient's dimensions are these letters, each once, in the
order in which they first stand.
"""


DEPTH_TO_SPACE_MODES = ("DCR", "CRD")


DEPTH_TO_SPACE_BLOCK_ATTRIBUTES = {"blocksize": Attribute(int, required=True), "mode": Attribute(str, default="DCR")}


def depth_to_space_infer_block(context: InferContext) -> int:
    """The block's side. Raises ShapeError where it, the mode or the input's rank is wrong."""
    data, side = context.input(0), as_int(context.attribute("blocksize"))
    if data.rank != 4 or side < 1:
        raise context.shape_error(
            f"the input must be (batch, channels, h, w) and blocksize {side} at least 1, got {data}"
        )
    if context.attribute("mode") not in DEPTH_TO_SPACE_MODES:
        raise context.shape_error(f"mode {context.attribute('mode')!r} is none of {', '.join(DEPTH_TO_SPACE_MODES)}")
    return side


def depth_to_space_reverse_gradient(context: GradientContext, op_type: str) -> str:
    """The gradient laid out the other way: nothing is added up."""
    attributes: dict[str, AttributeValue] = {
        "blocksize": as_int(context.attribute("blocksize")),
        "mode": str(context.attribute("mode")),
    }
    return apply(context, op_type, incoming(context), **attributes)


def _infer_depth_to_space(context: InferContext) -> tuple[TensorType, ...]:
    data, side = context.input(0), depth_to_space_infer_block(context)
    batch, channels, high, wide = data.shape
    depth = quotient((channels,), (side * side,))
    if depth is None and is_unknown(channels):
        depth = unknown_of("over", channels, side * side)
    if depth is None:
        raise context.shape_error(
            f"{channels} channels do not fall into blocks of {side} x {side}; the input is {data}"
        )
    return (TensorType(data.dtype, (batch, depth, product((high, side)), product((wide, side)))),)


def _depth_to_space_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (depth_to_space_reverse_gradient(context, "SpaceToDepth"),)


DEPTH_TO_SPACE = OpSchema(
    op_type="DepthToSpace",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer_depth_to_space,
    gradient=_depth_to_space_gradient,
    attributes=DEPTH_TO_SPACE_BLOCK_ATTRIBUTES,
    flops=moved,
    follows=True,
)
"""DepthToSpace: channels laid out as blocks of height and width; with CRD it is PixelShuffle of Shi et al. 2016."""


def _infer_space_to_depth(context: InferContext) -> tuple[TensorType, ...]:
    data, side = context.input(0), depth_to_space_infer_block(context)
    batch, channels, high, wide = data.shape
    rows, columns = (_blocks(dim, side) for dim in (high, wide))
    if rows is None or columns is None:
        raise context.shape_error(f"{high} x {wide} does not fall into blocks of {side} x {side}; the input is {data}")
    return (TensorType(data.dtype, (batch, product((channels, side * side)), rows, columns)),)


def _blocks(dim: Dim, side: int) -> Dim | None:
    """How many blocks a dimension is, or None where it is none for any size."""
    return unknown_of("over", dim, side) if is_unknown(dim) else quotient((dim,), (side,))


def _space_to_depth_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (depth_to_space_reverse_gradient(context, "DepthToSpace"),)


SPACE_TO_DEPTH = OpSchema(
    op_type="SpaceToDepth",
    inputs=(required("input", ANY),),
    outputs=(required("output", ANY),),
    infer=_infer_space_to_depth,
    gradient=_space_to_depth_gradient,
    attributes=DEPTH_TO_SPACE_BLOCK_ATTRIBUTES,
    flops=moved,
    follows=True,
)
"""SpaceToDepth: blocks of height and width laid out as channels, the reverse of DepthToSpace."""


def _infer_reverse_sequence(context: InferContext) -> tuple[TensorType, ...]:
    data, lengths = context.input(0), context.input(1)
    batch, time = (as_int(context.attribute(name)) for name in ("batch_axis", "time_axis"))
    if data.rank < 2 or {batch, time} != {0, 1}:
        raise context.shape_error(f"batch_axis {batch} and time_axis {time} must be 0 and 1, in any order, of {data}")
    if not agree_all(lengths.shape, data.shape[batch : batch + 1]):
        raise context.shape_error(f"sequence_lens {lengths} must be one for each sample of {data}")
    return (data,)


def _reverse_sequence_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("batch_axis", "time_axis"))
    return context.emit("ReverseSequence", (incoming(context), context.input(1)), attributes)[0], None


REVERSE_SEQUENCE = OpSchema(
    op_type="ReverseSequence",
    inputs=(required("input", ANY), required("sequence_lens", INT64)),
    outputs=(required("Y", ANY),),
    infer=_infer_reverse_sequence,
    gradient=_reverse_sequence_gradient,
    attributes={"batch_axis": Attribute(int, default=1), "time_axis": Attribute(int, default=0)},
    flops=moved,
    follows=True,
)
"""ReverseSequence: each sample's first `sequence_lens` elements in reverse order, the others where they were."""
