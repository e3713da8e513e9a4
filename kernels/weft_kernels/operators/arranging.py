"""Elements in another order, shape or number: what moves them and does not compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from weft_graph.attributes import as_float, as_int, as_ints, as_str
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.shapes.arranging import inside, kept, padded, reshaped, sides_of, slices_of, split_ends
from weft_graph.shapes.broadcasting import broadcast
from weft_kernels.arguments import optional, required
from weft_kernels.host import any_of
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.reductions import axes_of

# ----------------------------------------------------------------------------------------------------------------------
# Lists of whole numbers that a node has as an attribute, in older forms, or as an input that is read on the host.


def integers(given: Array | None, attributes: Mapping[str, AttributeValue], name: str) -> tuple[int, ...] | None:
    """The attribute `name`, else the input's numbers, else None."""
    if name in attributes:
        return as_ints(attributes[name])
    return None if given is None else tuple(int(number) for number in given.reshape(-1).tolist())


@kernel("Identity")
def identity(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The input itself."""
    (x,) = required(inputs)
    return (x,)


@kernel("Copy", domain=WEFT_DOMAIN)
def copy(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The value itself: a process computes on one device, and what is on it needs no copy."""
    (value,) = required(inputs)
    return (value,)


@kernel("StopGradient", domain=WEFT_DOMAIN)
def stop_gradient(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The input itself, whose gradient ends here."""
    (x,) = required(inputs)
    return (x,)


@kernel("Reshape", host_inputs=(1,))
def reshape(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The array in another shape; a view where its layout allows one."""
    data, target = required(inputs)
    allow_zero = bool(as_int(attributes["allowzero"]))
    return (data.reshape(reshaped(data.shape, target.tolist(), allow_zero=allow_zero)),)


@kernel("ReshapeLike", domain=WEFT_DOMAIN)
def reshape_like(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The array in another's shape; a view where its layout allows one."""
    data, like = required(inputs)
    return (data.reshape(like.shape),)


@kernel("Flatten")
def flatten(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A matrix view of the array where its layout allows one."""
    (data,) = required(inputs)
    axis = as_int(attributes["axis"])
    axis = axis + data.ndim if axis < 0 else axis
    # Both sides are computed: -1 is ambiguous where the array is empty.
    return (data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:])),)


@kernel("Squeeze", host_inputs=(1,))
def squeeze(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A view without dimensions of 1."""
    (data,) = required(inputs, 1)
    return (context.xp.squeeze(data, axis=axes_of(optional(inputs, 1), attributes, data.ndim)),)


@kernel("Unsqueeze", host_inputs=(1,))
def unsqueeze(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A view with further dimensions of 1."""
    (data,) = required(inputs, 1)
    given = optional(inputs, 1)
    added = len(as_ints(attributes["axes"])) if given is None else given.size
    axes = axes_of(given, attributes, data.ndim + added)
    return (context.xp.expand_dims(data, axis=axes or ()),)


@kernel("Expand", host_inputs=(1,))
def expand(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A view in which dimensions of 1 are repeated."""
    data, target = required(inputs)
    shape = broadcast(data.shape, tuple(target.tolist()))
    return (context.xp.broadcast_to(data, shape),)


@kernel("Transpose")
def transpose(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A view with its dimensions in another order."""
    (data,) = required(inputs)
    return (data.transpose(as_ints(attributes["perm"]) if "perm" in attributes else None),)


@kernel("Concat")
def concat(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Arrays joined along an axis."""
    return (context.xp.concatenate(required(inputs), axis=as_int(attributes["axis"]), out=context.out(0)),)


@kernel("ConcatGrad", domain=WEFT_DOMAIN)
def concat_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Views of the gradient, one for each array that was joined."""
    gradient, *parts = required(inputs)
    axis = as_int(attributes["axis"])
    ends = tuple(itertools.accumulate(part.shape[axis] for part in parts))
    return tuple(context.xp.split(gradient, ends[:-1], axis=axis))


@kernel("Split", host_inputs=(1,))
def split(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Views of one piece after the other along an axis."""
    (data,) = required(inputs, 1)
    axis = as_int(attributes["axis"])
    assert context.asked is not None, "a node of Split says how many outputs it has"
    ends = split_ends(data.shape[axis], len(context.asked), integers(optional(inputs, 1), attributes, "split"))
    return tuple(context.xp.split(data, ends[1:-1], axis=axis))


@kernel("SplitGrad", domain=WEFT_DOMAIN, host_inputs=(1,))
def split_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The pieces' gradients one after the other, 0 for one that is left out."""
    (data,) = required(inputs, 1)
    axis, pieces = as_int(attributes["axis"]), inputs[2:]
    ends = split_ends(data.shape[axis], len(pieces), integers(optional(inputs, 1), attributes, "split"))
    result = context.xp.zeros(data.shape, dtype=data.dtype)
    along = result.swapaxes(0, axis)
    for (begin, end), piece in zip(itertools.pairwise(ends), pieces, strict=True):
        if piece is not None:
            along[begin:end] = piece.swapaxes(0, axis)
    return (result,)


@kernel("Slice", host_inputs=(1, 2, 3, 4))
def slice_(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A view of every so many elements between two bounds."""
    (data,) = required(inputs, 1)
    starts, ends = (
        integers(optional(inputs, 1), attributes, "starts"),
        integers(optional(inputs, 2), attributes, "ends"),
    )
    axes, steps = integers(optional(inputs, 3), attributes, "axes"), integers(optional(inputs, 4), attributes, "steps")
    parts = slices_of(data.shape, starts or (), ends or (), axes, steps)
    return (data[parts],)


@kernel("SliceGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3, 4, 5))
def slice_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The gradient where elements were taken from, 0 elsewhere."""
    gradient, data = required(inputs, 2)
    starts, ends = (
        integers(optional(inputs, 2), attributes, "starts"),
        integers(optional(inputs, 3), attributes, "ends"),
    )
    axes, steps = integers(optional(inputs, 4), attributes, "axes"), integers(optional(inputs, 5), attributes, "steps")
    parts = slices_of(data.shape, starts or (), ends or (), axes, steps)
    result = context.xp.zeros(data.shape, dtype=gradient.dtype)
    result[parts] = gradient
    return (result,)


@kernel("Pad", host_inputs=(1, 2, 3))
def pad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The data inside a wider array, whose rest is a constant or repeats the data."""
    xp = context.xp
    (data,) = required(inputs, 1)
    mode = as_str(attributes["mode"])
    pads = integers(optional(inputs, 1), attributes, "pads") or ()
    sides = sides_of(data.ndim, pads, integers(optional(inputs, 3), {}, "axes"))
    left = data[kept(sides)]
    if mode != "constant":
        return (xp.pad(left, tuple((max(begin, 0), max(end, 0)) for begin, end in sides), mode=mode),)
    constant = optional(inputs, 2)
    value = as_float(attributes["value"]) if constant is None else constant.reshape(-1)[0]
    result = xp.full(padded(data.shape, sides, mode), value, dtype=data.dtype)
    result[inside(sides)] = left
    return (result,)


@kernel("PadGrad", domain=WEFT_DOMAIN, host_inputs=(2, 3), in_float32=("float16", "bfloat16"))
def pad_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Each element's gradient, to which those of its repetitions are added."""
    gradient, data = required(inputs, 2)
    mode = as_str(attributes["mode"])
    pads = integers(optional(inputs, 2), attributes, "pads") or ()
    sides = sides_of(data.ndim, pads, integers(optional(inputs, 3), {}, "axes"))
    result = context.xp.zeros(data.shape, dtype=gradient.dtype)
    if mode == "constant":
        result[kept(sides)] = gradient[inside(sides)]
    else:
        for axis, (begin, end) in enumerate(sides):
            gradient = _folded(gradient.swapaxes(0, axis), max(begin, 0), max(end, 0), mode).swapaxes(0, axis)
        result[kept(sides)] = gradient
    return (result,)


def _folded(gradient: Array, begin: int, end: int, mode: str) -> Array:
    """The gradient without its first `begin` and last `end` rows, which are added to the rows that they repeat."""
    if begin == end == 0:
        return gradient
    size = gradient.shape[0] - begin - end
    repeated = np.pad(np.arange(size), (begin, end), mode=mode)  # type: ignore[call-overload]  # one of Pad's modes
    result = gradient[begin : begin + size].copy()
    for row in (*range(begin), *range(begin + size, begin + size + end)):
        result[repeated[row]] += gradient[row]
    return result


@kernel("Tile", host_inputs=(1,))
def tile(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Copies one after the other along each dimension."""
    data, repeats = required(inputs)
    return (context.xp.tile(data, tuple(repeats.tolist())),)


@kernel("TileGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"))
def tile_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The sum of all copies' gradients."""
    gradient, data = required(inputs)
    if data.size == 0:
        return (context.xp.zeros(data.shape, dtype=gradient.dtype),)
    copies = [(whole // size, size) for whole, size in zip(gradient.shape, data.shape, strict=True)]
    apart = gradient.reshape(tuple(itertools.chain.from_iterable(copies)))
    return (context.xp.sum(apart, axis=tuple(range(0, 2 * data.ndim, 2)), dtype=gradient.dtype),)


@kernel("Trilu", host_inputs=(1,))
def trilu(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """A triangle of matrices."""
    xp = context.xp
    (data,) = required(inputs, 1)
    given = optional(inputs, 1)
    diagonal = 0 if given is None else int(given.reshape(-1)[0])
    rows, columns = xp.arange(data.shape[-2])[:, None], xp.arange(data.shape[-1])
    # Differences, because k may be as large as an int64 gets.
    inside = columns - rows >= diagonal if as_int(attributes["upper"]) else columns - rows <= diagonal
    return (xp.where(inside, data, data.dtype.type(0)),)


@kernel("DiagonalGrad", domain=WEFT_DOMAIN)
def diagonal_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Zeros with the gradient in a diagonal."""
    xp = context.xp
    gradient, operand = required(inputs)
    labels = as_str(attributes["labels"])
    once = "".join(dict.fromkeys(labels))
    # One index for each letter, along its own dimension: dimensions that share a letter are walked together.
    index = {
        label: xp.arange(size).reshape(-1, *(1,) * (len(once) - 1 - axis))
        for axis, (label, size) in enumerate(zip(once, gradient.shape, strict=True))
    }
    result = xp.zeros(operand.shape, dtype=gradient.dtype)
    result[tuple(index[label] for label in labels)] = gradient
    return (result,)


@kernel("DepthToSpace")
def depth_to_space(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Channels in another order of dimensions, and so beside height and width."""
    (data,) = required(inputs)
    side = as_int(attributes["blocksize"])
    batch, channels, high, wide = data.shape
    depth = channels // (side * side)
    if attributes["mode"] == "DCR":
        blocks = data.reshape(batch, side, side, depth, high, wide).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = data.reshape(batch, depth, side, side, high, wide).transpose(0, 1, 4, 2, 5, 3)
    return (blocks.reshape(batch, depth, high * side, wide * side),)


@kernel("SpaceToDepth")
def space_to_depth(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The places of each block in another order of dimensions, and so beside the channels."""
    (data,) = required(inputs)
    side = as_int(attributes["blocksize"])
    batch, depth, high, wide = data.shape
    blocks = data.reshape(batch, depth, high // side, side, wide // side, side)
    order = (0, 3, 5, 1, 2, 4) if attributes["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    return (blocks.transpose(order).reshape(batch, depth * side * side, high // side, wide // side),)


@kernel("ReverseSequence", waits=True)
def reverse_sequence(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The first elements of each sample in reverse order."""
    xp = context.xp
    data, lengths = required(inputs)
    batch, time = as_int(attributes["batch_axis"]), as_int(attributes["time_axis"])
    samples, steps = data.shape[batch], data.shape[time]
    if lengths.shape != (samples,):
        raise ValueError(f"sequence_lens has shape {lengths.shape}, and there are {samples} samples")
    if any_of(xp, (lengths < 0) | (lengths > steps)):
        raise ValueError(f"sequence_lens must be within 0 to {steps}, the elements of a sample")
    place = xp.arange(steps)[:, None]
    source = xp.where(place < lengths, lengths - 1 - place, place)
    sample = xp.arange(samples)
    chosen = (source, sample[None, :]) if time == 0 else (sample[:, None], source.T)
    return (data[chosen],)
