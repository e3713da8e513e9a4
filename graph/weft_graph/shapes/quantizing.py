"""What quantization has in common: how finely scales and zero points are given, and the types that go together."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions import Dim, agree, agree_all, product
from weft_graph.schema import InferContext
from weft_graph.shapes.broadcasting import normalised
from weft_graph.types import TensorType


def scale_axis(axis: int, rank: int) -> int:
    """The axis that scales run along, counted from the front: data of one dimension has no other."""
    return 0 if rank == 1 else normalised(axis, rank)


def check_granularity(
    context: InferContext, data: TensorType, scale: TensorType, zero_point: TensorType | None
) -> None:
    """Raises ShapeError unless the scale is one number, one for each place along `axis`, or one for each block there.

    A zero point has the scale's shape.
    """
    if zero_point is not None and not _alike(zero_point, scale):
        raise context.shape_error(f"zero point {zero_point} must have the shape of the scale {scale}")
    block = as_int(context.attribute("block_size"))
    if block < 0:
        raise context.shape_error(f"block_size {block} is below 0")
    if block == 0 and scale.rank < 2 and product(scale.shape) == 1:
        return
    try:
        axis = scale_axis(as_int(context.attribute("axis")), data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {data}") from None
    if block == 0:
        if scale.rank != 1 or not agree(scale.shape[0], data.shape[axis]):
            raise context.shape_error(f"scale {scale} must be one number, or one for each place of {data} along {axis}")
        return
    expected = tuple(_blocks(dim, block) if place == axis else dim for place, dim in enumerate(data.shape))
    if scale.rank != data.rank or not all(
        isinstance(mine, str) or agree(mine, dim) for mine, dim in zip(expected, scale.shape, strict=True)
    ):
        raise context.shape_error(
            f"scale {scale} must have one number for each block of {block} of {data} along {axis}"
        )


def _alike(zero_point: TensorType, scale: TensorType) -> bool:
    """Whether both have one shape; one number may be a list of one."""
    both = (zero_point, scale)
    return agree_all(zero_point.shape, scale.shape) or all(t.rank < 2 and product(t.shape) == 1 for t in both)


def _blocks(dim: Dim, block: int) -> Dim:
    return -(-dim // block) if isinstance(dim, int) else dim


def check_one_each(context: InferContext, scale: int, zero_point: int, of: int, what: str) -> None:
    """Raises DTypeError or ShapeError unless inputs `scale` and `zero_point` have one shape, and the latter the type
    of the data, input `of`."""
    data, factor, zero = context.input(of), context.input(scale), context.input(zero_point)
    if zero.dtype != data.dtype:
        raise context.dtype_error(f"the zero point of {what} is {zero}, and {what} is {data}")
    if not _alike(zero, factor):
        raise context.shape_error(f"the zero point of {what} {zero} must have the shape of its scale {factor}")


def check_operand(context: InferContext, given: TensorType, data: TensorType, *, by_row: bool, what: str) -> None:
    """Raises ShapeError unless `given` is one number, or one for each row (or column) of the matrices `data`.

    That is a list, or a stack of matrices with one column (or one row).
    """
    if given.rank < 2 and product(given.shape) == 1:
        return
    count = data.shape[-2 if by_row else -1] if data.rank > 1 else 1
    ending: tuple[Dim, ...] = (count, 1) if by_row else (1, count)
    is_list = given.rank == 1 and data.rank == 2 and agree(given.shape[0], count)
    is_stack = given.rank == data.rank and agree_all(given.shape, (*data.shape[:-2], *ending))
    if not is_list and not is_stack:
        raise context.shape_error(f"{what} {given} must be one number, or one for each {'row' if by_row else 'column'}")


def check_channels(context: InferContext, given: TensorType, channels: Dim, what: str) -> None:
    """Raises ShapeError unless `given` is one number or, where there are several channels, one for each."""
    if given.rank > 1 or (product(given.shape) != 1 and not agree_all(given.shape, (channels,))):
        raise context.shape_error(f"{what} {given} must be one number, or a list of {channels}")
