"""DFT: the discrete Fourier transform along one axis; the last dimension is 1 (real) or 2 (real and imaginary part).

With `onesided` half of the bins stand for a real signal, on the way there and, with `inverse`, on the way back.
"""

from __future__ import annotations

from weft_graph.dimensions.dims import Dim, product
from weft_graph.formals import FLOATS, INDICES, INT64, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import normalised
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flow import incoming
from weft_graph.shapes.spatial_flops import transformed
from weft_graph.shapes.spectra import bins_of, samples_of
from weft_graph.types import TensorType

DFT_ATTRIBUTES = {"inverse": Attribute(int, default=0), "onesided": Attribute(int, default=0)}


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    inverse, onesided = bool(context.attribute("inverse")), bool(context.attribute("onesided"))
    if data.rank < 2 or data.shape[-1] not in {1, 2}:
        raise context.shape_error(f"the last dimension must be 1 (real) or 2 (complex), got {data}")
    if onesided and inverse != (data.shape[-1] == 2):
        kind = "complex" if inverse else "real"
        raise context.shape_error(f"a one-sided transform of this direction takes {kind} input, got {data}")
    axis, length = _axis(context, data), _length(context)
    parts = 1 if onesided and inverse else 2
    if axis is None:
        # Which dimension changes only a step's values decide, unless none does.
        kept = length is None and not onesided
        return (TensorType(data.dtype, (*(dim if kept else context.unknown() for dim in data.shape[:-1]), parts)),)
    if length is None:
        length = samples_of(data.shape[axis]) if onesided and inverse else data.shape[axis]
    if isinstance(length, int) and length < 1:
        raise context.shape_error(f"a transform of {length} samples; the input is {data}")
    shape = list(data.shape)
    shape[axis] = bins_of(length) if onesided and not inverse else length
    shape[-1] = parts
    return (TensorType(data.dtype, tuple(shape)),)


def _axis(context: InferContext, data: TensorType) -> int | None:
    """The axis counted from the front, None where it is not known before a step."""
    axis, given = -2, context.optional_input(2)
    if given is not None:
        known = context.constant(2)
        if product(given.shape) != 1:
            raise context.shape_error(f"axis must be one number, got {given}")
        if known is None:
            return None
        axis = int(known.reshape(-1)[0])
    try:
        counted = normalised(axis, data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {data}") from None
    if counted == data.rank - 1:
        raise context.shape_error(f"axis {axis} is that of real and imaginary part; the input is {data}")
    return counted


def _length(context: InferContext) -> Dim | None:
    if context.optional_input(1) is None:
        return None
    lengths = context.dims(1)
    if lengths is None or len(lengths) != 1:
        raise context.shape_error(f"dft_length must be one number, got {context.input(1)}")
    return lengths[0]


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    (data,) = context.emit("DFTGrad", inputs, given_attributes(context, DFT_ATTRIBUTES), domain=WEFT_DOMAIN)
    return (data, *(None,) * (len(context.node.inputs) - 1))


SCHEMA = OpSchema(
    op_type="DFT",
    inputs=(required("input", FLOATS), optional("dft_length", INDICES), optional("axis", INT64)),
    outputs=(required("output", FLOATS),),
    infer=_infer,
    gradient=_gradient,
    attributes=DFT_ATTRIBUTES,
    flops=transformed,
)
