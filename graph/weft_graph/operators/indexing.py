"""Elements and rows by their indices: gathered, scattered, found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from weft_graph.attributes import as_int, as_str
from weft_graph.dimensions import Dim, agree, agree_all, product, total
from weft_graph.folding import FOLD_GATHER
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INDICES, INT64, optional, required, variadic
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype, infer_axis, infer_like
from weft_graph.shapes.flops import moved
from weft_graph.shapes.gradients import apply, given_attributes, incoming, scalar
from weft_graph.shapes.reductions import hits
from weft_graph.types import DType, Shape, TensorType

# ----------------------------------------------------------------------------------------------------------------------
# What operators that pick rows by index have in common: their type, known indices, the gradient of what they read.


def infer_gathered(context: InferContext, axis: int) -> TensorType:
    """Input 0 with the shape of input 1, the indices, in the place of dimension `axis`."""
    data, indices = context.input(0), context.input(1)
    return TensorType(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def check_known_indices(context: InferContext, axis: int, low: int, allowed: int | None = None) -> None:
    """Raises ShapeError where the indices and the dimension are known and an index is outside [low, dimension).

    `allowed` is an index that may be anything.
    """
    known, dim = context.constant(1), context.input(0).shape[axis]
    if known is None or not isinstance(dim, int):
        return
    outside = [index for index in known.reshape(-1).tolist() if not low <= index < dim and index != allowed]
    if outside:
        raise context.shape_error(f"index {outside[0]} is outside [{low}, {dim})")


def gathering_gradient(
    context: GradientContext, attributes: Mapping[str, AttributeValue], *, wraps: bool
) -> tuple[str | None, str | None]:
    """GatherGrad of the data, with these attributes; nothing of the indices, which may be below 0 if `wraps`."""
    attributes = {**attributes, "wraps": int(wraps)}
    data, indices = context.input(0), context.input(1)
    (gradient,) = context.emit("GatherGrad", (incoming(context), data, indices), attributes, domain=WEFT_DOMAIN)
    return gradient, None


def check_beside(context: InferContext, axis: int) -> None:
    """Raises ShapeError unless input 1 has the rank of input 0, and is no longer than it beside dimension `axis`."""
    data, indices = context.input(0), context.input(1)
    if indices.rank != data.rank:
        raise context.shape_error(f"indices {indices} must have the rank of the data {data}")
    for place, (dim, size) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if place != axis and isinstance(dim, int) and isinstance(size, int) and size > dim:
            raise context.shape_error(f"indices {indices} are longer than the data {data} along dimension {place}")


def infer_tuples(context: InferContext, batch_dims: int = 0) -> tuple[Shape, Shape]:
    """(the shape of all index tuples of input 1, the shape of the slice of input 0 that each names).

    A tuple names dimensions from `batch_dims` on; those before are the same in both inputs. Raises ShapeError, which
    names the node, where they do not fit.
    """
    data, indices = context.input(0), context.input(1)
    if not 0 <= batch_dims < min(data.rank, indices.rank):
        raise context.shape_error(f"batch_dims {batch_dims} must be below the ranks of {data} and {indices}")
    count = indices.shape[-1]
    if not isinstance(count, int):
        raise context.shape_error(f"it must be known before a step how many dimensions an index of {indices} names")
    if not 1 <= count <= data.rank - batch_dims:
        raise context.shape_error(
            f"{count} numbers an index do not name a slice of {data} after {batch_dims} dimensions"
        )
    if not agree_all(data.shape[:batch_dims], indices.shape[:batch_dims]):
        raise context.shape_error(f"the first {batch_dims} dimensions of {data} and {indices} differ")
    _check_known_tuples(context, data.shape[batch_dims : batch_dims + count])
    return indices.shape[:-1], data.shape[batch_dims + count :]


def _check_known_tuples(context: InferContext, dims: Shape) -> None:
    known = context.constant(1)
    for place, dim in enumerate(dims if known is not None else ()):
        numbers = [] if known is None or not isinstance(dim, int) else known[..., place].reshape(-1).tolist()
        outside = [index for index in numbers if not -_size(dim) <= index < _size(dim)]
        if outside:
            raise context.shape_error(f"index {outside[0]} is outside [{-_size(dim)}, {dim}) of dimension {place}")


def _size(dim: Dim) -> int:
    return dim if isinstance(dim, int) else 0


# --- What the operators that scatter have in common: their reductions, and the gradients of data and updates ----------
# Both ways of naming elements (one index each, or a tuple for each slice) have a gather that reads what a scatter
# writes, so the gradients are written once over the pair.


REDUCTIONS: Final = ("none", "add", "mul", "max", "min")


def infer_reduction(context: InferContext) -> str:
    """The attribute `reduction`, of operators on data, indices and updates, which are checked to be of one type."""
    check_same_dtype(context, 0, 2)
    reduction = as_str(context.attribute("reduction"))
    if reduction not in REDUCTIONS:
        raise context.shape_error(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    return reduction


@dataclass(frozen=True, slots=True)
class Scattering:
    """A scatter and the gather of the same indices, as the steps that gradients are made of."""

    context: GradientContext
    gather: str
    attributes: Mapping[str, AttributeValue]

    def read(self, data: str) -> str:
        """The elements of `data` that the indices name: the updates' shape."""
        inputs = (data, self.context.input(1))
        return self.context.emit(self.gather, inputs, self.attributes)[0]

    def write(self, data: str, updates: str, reduction: str) -> str:
        """The node's scatter of other data and updates."""
        attributes = {**self.attributes, "reduction": reduction}
        inputs = (data, self.context.input(1), updates)
        return self.context.emit(self.context.node.op_type, inputs, attributes)[0]

    def gradients(self) -> tuple[str | None, None, str | None]:
        """The gradients of the data and the updates. Where `none` writes an element twice they are undefined."""
        gradient = incoming(self.context)
        match as_str(self.context.attribute("reduction")):
            case "none":
                return self._replaced(gradient)
            case "add":
                return gradient, None, self.read(gradient)
            case "mul":
                return self._multiplied(gradient)
            case _:
                return self._chosen(gradient)

    def _replaced(self, gradient: str) -> tuple[str | None, None, str | None]:
        updates = self.context.input(2)
        zeros = _spread(self.context, scalar(self.context, 0, gradient), updates)
        return self.write(gradient, zeros, "none"), None, self.read(gradient)

    def _multiplied(self, gradient: str) -> tuple[str | None, None, str | None]:
        """An update's share is the product of all others at its place: with one zero among them, the rest's product."""
        context, data, updates = self.context, self.context.input(0), self.context.input(2)
        zero, one = scalar(context, 0, data), scalar(context, 1, data)
        factors = self.write(_spread(context, one, data), updates, "mul")
        by_data = apply(context, "Mul", gradient, factors)
        is_zero = apply(context, "Equal", updates, zero)
        safe = apply(context, "Where", is_zero, one, updates)
        zeros = self.write(_spread(context, zero, data), hits(context, updates, zero), "add")
        rest = self.read(apply(context, "Mul", gradient, self.write(data, safe, "mul")))
        others = apply(context, "Sub", self.read(zeros), hits(context, updates, zero))
        share = apply(context, "Where", apply(context, "Equal", others, zero), apply(context, "Div", rest, safe), zero)
        return by_data, None, share

    def _chosen(self, gradient: str) -> tuple[str | None, None, str | None]:
        """The data's element and its updates that are equal to the extreme share its gradient evenly."""
        context, data, updates, output = (
            self.context,
            self.context.input(0),
            self.context.input(2),
            self.context.output(0),
        )
        of_data, of_updates = hits(context, data, output), hits(context, updates, self.read(output))
        share = apply(context, "Div", gradient, self.write(of_data, of_updates, "add"))
        return apply(context, "Mul", share, of_data), None, apply(context, "Mul", self.read(share), of_updates)


def _spread(context: GradientContext, number: str, like: str) -> str:
    """The scalar at every place of `like`, without memory of its own."""
    attributes: dict[str, AttributeValue] = {"keepdims": 0}
    return context.emit("ReduceSumGrad", (number, like), attributes, domain=WEFT_DOMAIN)[0]


def _infer_gather(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    axis = infer_axis(context, data.rank)
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (infer_gathered(context, axis),)


def _gather_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return gathering_gradient(context, {"axis": as_int(context.attribute("axis"))}, wraps=True)


GATHER = OpSchema(
    op_type="Gather",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer_gather,
    gradient=_gather_gradient,
    attributes={"axis": Attribute(int, default=0)},
    follows=True,
    folding=FOLD_GATHER,
)
"""Gather: the entries of `data` along `axis` that `indices` name; those below 0 count from the end."""


GATHER_GRAD = OpSchema(
    op_type="GatherGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), required("indices", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={
        "axis": Attribute(int, default=0),
        "wraps": Attribute(int, required=True),
        "padding_id": Attribute(int),
    },
    domain=WEFT_DOMAIN,
    shape_only=(1,),
)
"""GatherGrad(gradient, data, indices): the sum, for each entry of `data` along `axis`, of the gradients that name it.

Gradients of one entry are added in the order of the indices. Entries that no index names have gradient 0, and an index
that is `padding_id` names none. An index below 0 counts from the end if `wraps`, and is an error otherwise.
"""


def _infer_embedding(context: InferContext) -> tuple[TensorType, ...]:
    table, padding = context.input(0), context.attribute("padding_id")
    if table.rank == 0:
        raise context.shape_error("a table has rows, and a zero-dim tensor has none")
    check_known_indices(context, 0, low=0, allowed=None if padding is None else as_int(padding))
    return (infer_gathered(context, 0),)


def _embedding_gradient(context: GradientContext) -> tuple[str | None, ...]:
    padding = context.attribute("padding_id")
    attributes: dict[str, AttributeValue] = {"axis": 0}
    if padding is not None:
        attributes["padding_id"] = padding
    return gathering_gradient(context, attributes, wraps=False)


EMBEDDING = OpSchema(
    op_type="Embedding",
    inputs=(required("table", FLOATS), required("ids", INDICES)),
    outputs=(required("rows", FLOATS),),
    infer=_infer_embedding,
    gradient=_embedding_gradient,
    attributes={"padding_id": Attribute(int)},
    domain=WEFT_DOMAIN,
)
"""Embedding(table, ids; padding_id): the rows of `table` that `ids` name, and rows of zeros for the id `padding_id`.

Ids are row numbers from 0, and `padding_id` may be any number besides: it is compared with the ids as they are, and a
row of that number neither is read nor has a gradient. ONNX has no word for it; Gather has no padding.
"""


def _infer_gather_elements(context: InferContext) -> tuple[TensorType, ...]:
    data, indices = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    check_beside(context, axis)
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (TensorType(data.dtype, indices.shape),)


def _gather_elements_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("GatherElementsGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


GATHER_ELEMENTS = OpSchema(
    op_type="GatherElements",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer_gather_elements,
    gradient=_gather_elements_gradient,
    attributes={"axis": Attribute(int, default=0)},
    flops=moved,
    follows=True,
)
"""GatherElements: one element of the data for each index, which counts along `axis` and from the end below 0."""


GATHER_ELEMENTS_GRAD = OpSchema(
    op_type="GatherElementsGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), required("indices", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"axis": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
)
"""GatherElementsGrad: the data's gradient, with gradients of one element added in the order of the indices."""


def _infer_gather_nd(context: InferContext) -> tuple[TensorType, ...]:
    tuples, part = infer_tuples(context, as_int(context.attribute("batch_dims")))
    return (TensorType(context.input(0).dtype, (*tuples, *part)),)


def _gather_nd_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.input(1))
    attributes = {"batch_dims": as_int(context.attribute("batch_dims"))}
    return context.emit("GatherNDGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


GATHER_ND = OpSchema(
    op_type="GatherND",
    inputs=(required("data", ANY), required("indices", INDICES)),
    outputs=(required("output", ANY),),
    infer=_infer_gather_nd,
    gradient=_gather_nd_gradient,
    attributes={"batch_dims": Attribute(int, default=0)},
    flops=moved,
    follows=True,
)
"""GatherND: a slice of the data for each tuple of indices, which are the last dimension of the indices."""


GATHER_ND_GRAD = OpSchema(
    op_type="GatherNDGrad",
    inputs=(required("gradient", FLOATS), required("data", FLOATS), required("indices", INDICES)),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"batch_dims": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
)
"""GatherNDGrad: the data's gradient, with gradients of one slice added in the order of the indices."""


def _infer_scatter_elements(context: InferContext) -> tuple[TensorType, ...]:
    data, indices, updates = (context.input(index) for index in range(3))
    infer_reduction(context)
    axis = infer_axis(context, data.rank)
    check_beside(context, axis)
    if not agree_all(indices.shape, updates.shape):
        raise context.shape_error(f"updates {updates} must be one for each of the indices {indices}")
    dim = data.shape[axis]
    check_known_indices(context, axis, low=-dim if isinstance(dim, int) else 0)
    return (data,)


def _scatter_elements_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return Scattering(context, "GatherElements", {"axis": as_int(context.attribute("axis"))}).gradients()


SCATTER_ELEMENTS = OpSchema(
    op_type="ScatterElements",
    inputs=(required("data", ANY), required("indices", INDICES), required("updates", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer_scatter_elements,
    gradient=_scatter_elements_gradient,
    attributes={"axis": Attribute(int, default=0), "reduction": Attribute(str, default="none")},
    flops=moved,
)
"""ScatterElements: the data with an update for each index along `axis`, put there or combined with what is there."""


def _infer_scatter_nd(context: InferContext) -> tuple[TensorType, ...]:
    data, updates = context.input(0), context.input(2)
    infer_reduction(context)
    tuples, part = infer_tuples(context)
    if not agree_all(updates.shape, (*tuples, *part)):
        raise context.shape_error(f"updates {updates} must be of the shape {[*tuples, *part]}")
    return (data,)


def _scatter_nd_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return Scattering(context, "GatherND", {}).gradients()


SCATTER_ND = OpSchema(
    op_type="ScatterND",
    inputs=(required("data", ANY), required("indices", INDICES), required("updates", ANY)),
    outputs=(required("output", ANY),),
    infer=_infer_scatter_nd,
    gradient=_scatter_nd_gradient,
    attributes={"reduction": Attribute(str, default="none")},
    flops=moved,
)
"""ScatterND: the data with a slice of updates for each tuple of indices, put there or combined with what is there."""


TENSOR_SCATTER_ATTRIBUTES = {"axis": Attribute(int, default=-2), "mode": Attribute(str, default="linear")}


def _infer_tensor_scatter(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    cache, update, places = context.input(0), context.input(1), context.optional_input(2)
    axis = infer_axis(context, cache.rank)
    if axis == 0:
        raise context.shape_error(f"axis 0 of {cache} is the samples'; sequences have another one")
    if as_str(context.attribute("mode")) not in {"linear", "circular"}:
        raise context.shape_error(f"mode {context.attribute('mode')!r} is none of linear, circular")
    others = [(a, b) for place, (a, b) in enumerate(zip(cache.shape, update.shape, strict=False)) if place != axis]
    if update.rank != cache.rank or not all(agree(a, b) for a, b in others):
        raise context.shape_error(f"update {update} and {cache} differ in more than dimension {axis}")
    new, length = update.shape[axis], cache.shape[axis]
    if isinstance(new, int) and isinstance(length, int) and new > length:
        raise context.shape_error(f"update {update} is longer than {cache}")
    if places is not None and (places.rank != 1 or not agree(places.shape[0], cache.shape[0])):
        raise context.shape_error(f"write_indices {places} are not one a sample of {cache}")
    return (cache,)


def _tensor_scatter_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs[1:])
    attributes = given_attributes(context, TENSOR_SCATTER_ATTRIBUTES)
    of_cache, of_update = context.emit("TensorScatterGrad", inputs, attributes, domain=WEFT_DOMAIN, outputs=2)
    return (of_cache, of_update, None)[: len(context.node.inputs)]


TENSOR_SCATTER = OpSchema(
    op_type="TensorScatter",
    inputs=(required("past_cache", ANY), required("update", ANY), optional("write_indices", INT64)),
    outputs=(required("present_cache", ANY),),
    infer=_infer_tensor_scatter,
    gradient=_tensor_scatter_gradient,
    attributes=TENSOR_SCATTER_ATTRIBUTES,
    flops=moved,
)
"""TensorScatter: a cache with new parts of sequences written into it, from each sample's own place on.

`linear` writes within the cache's length, `circular` goes on at its beginning. Caches of strings are not taken.
"""


def _infer_tensor_scatter_grad(context: InferContext) -> tuple[TensorType, ...]:
    return context.input(0), context.input(1)


TENSOR_SCATTER_GRAD = OpSchema(
    op_type="TensorScatterGrad",
    inputs=(required("gradient", FLOATS), required("update", FLOATS), optional("write_indices", INT64)),
    outputs=(required("past_cache_gradient", FLOATS), required("update_gradient", FLOATS)),
    infer=_infer_tensor_scatter_grad,
    attributes=TENSOR_SCATTER_ATTRIBUTES,
    domain=WEFT_DOMAIN,
)
"""TensorScatterGrad(gradient, update, write_indices): the gradients of the cache and of the update."""


def _infer_compress(context: InferContext) -> tuple[TensorType, ...]:
    data, condition = context.input(0), context.input(1)
    before: Shape
    after: Shape
    if condition.rank != 1:
        raise context.shape_error(f"the condition must be a list, got {condition}")
    if context.attribute("axis") is None:
        whole, before, after = product(data.shape), (), ()
    else:
        axis = infer_axis(context, data.rank)
        whole, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    length = condition.shape[0]
    if isinstance(length, int) and isinstance(whole, int) and length > whole:
        raise context.shape_error(f"the condition {condition} is longer than the {whole} that {data} has")
    return (TensorType(data.dtype, (*before, context.unknown(whole), *after)),)


def _compress_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data = incoming(context), context.input(0)
    places = apply(context, "NonZero", context.input(1))
    chosen = apply(context, "Squeeze", places, context.constant(np.zeros(1, dtype=np.int64)))
    axis = context.attribute("axis")
    if axis is not None:
        attributes = {"axis": as_int(axis), "wraps": 0}
        return context.emit("GatherGrad", (gradient, data, chosen), attributes, domain=WEFT_DOMAIN)[0], None
    flat = apply(context, "Reshape", data, context.constant(np.array([-1], dtype=np.int64)))
    (part,) = context.emit("GatherGrad", (gradient, flat, chosen), {"axis": 0, "wraps": 0}, domain=WEFT_DOMAIN)
    return context.emit("ReshapeLike", (part, data), domain=WEFT_DOMAIN)[0], None


COMPRESS = OpSchema(
    op_type="Compress",
    inputs=(required("input", ANY), required("condition", BOOLEANS)),
    outputs=(required("output", ANY),),
    infer=_infer_compress,
    gradient=_compress_gradient,
    attributes={"axis": Attribute(int)},
)
"""Compress: the elements, or the slices along `axis`, whose condition is true; those behind its end are left out."""


def _infer_non_zero(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(DType.INT64, (data.rank, context.unknown(product(data.shape)))),)


NON_ZERO = OpSchema(
    op_type="NonZero", inputs=(required("X", ANY),), outputs=(required("Y", INT64),), infer=_infer_non_zero
)
"""NonZero: where the elements are that are not zero, a row for each dimension and a column for each of them."""


def _infer_unique(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    before: Shape
    after: Shape
    if context.attribute("axis") is None:
        whole, before, after = product(data.shape), (), ()
    else:
        axis = infer_axis(context, data.rank)
        whole, before, after = data.shape[axis], data.shape[:axis], data.shape[axis + 1 :]
    count = context.unknown(whole)
    numbers = TensorType(DType.INT64, (count,))
    return TensorType(data.dtype, (*before, count, *after)), numbers, TensorType(DType.INT64, (whole,)), numbers


def _unique_gradient(context: GradientContext) -> tuple[str | None, ...]:
    """The first of equals has it all: the output is read from there."""
    gradient, data, first = incoming(context), context.input(0), context.output(1)
    axis = context.attribute("axis")
    if axis is not None:
        along = {"axis": as_int(axis), "wraps": 0}
        return context.emit("GatherGrad", (gradient, data, first), along, domain=WEFT_DOMAIN)
    flat = apply(context, "Reshape", data, context.constant(np.array([-1], dtype=np.int64)))
    (part,) = context.emit("GatherGrad", (gradient, flat, first), {"axis": 0, "wraps": 0}, domain=WEFT_DOMAIN)
    return context.emit("ReshapeLike", (part, data), domain=WEFT_DOMAIN)


UNIQUE = OpSchema(
    op_type="Unique",
    inputs=(required("X", ANY),),
    outputs=(
        required("Y", ANY),
        optional("indices", INT64),
        optional("inverse_indices", INT64),
        optional("counts", INT64),
    ),
    infer=_infer_unique,
    gradient=_unique_gradient,
    attributes={"axis": Attribute(int), "sorted": Attribute(int, default=1)},
)
"""Unique: the distinct elements, or slices along `axis`, where each was first, where each is now, and how often."""


def _infer_unique_rows(context: InferContext) -> tuple[TensorType, ...]:
    shapes = [context.input(index).shape for index in range(len(context.node.inputs))]
    count = total(product(shape) for shape in shapes)
    return TensorType(DType.INT64, (count,)), *(TensorType(DType.INT64, shape) for shape in shapes)


UNIQUE_ROWS = OpSchema(
    op_type="UniqueRows",
    inputs=(variadic("ids", INDICES),),
    outputs=(required("rows_ids", INT64), variadic("index", INT64)),
    infer=_infer_unique_rows,
    attributes={
        "rows": Attribute(int, required=True),
        "readers": Attribute(tuple, required=True),
        "wraps": Attribute(tuple, required=True),
        "padded": Attribute(tuple, required=True),
        "padding_ids": Attribute(tuple, required=True),
    },
    domain=WEFT_DOMAIN,
)
"""UniqueRows(ids ...): the rows of a table that a step reads, each once, and for each `ids` where its rows are.

`rows_ids` has as many elements as all ids together: the distinct ids, ascending, and then -1 for each place left over.
Each `index` has the shape of its `ids`, and `rows_ids[index]` is the row that the id names.

The attributes `readers`, `wraps`, `padded` and `padding_ids` have an item for each `ids`: the name of the node that
reads the table by them, for messages; 1 where ids below 0 count from the end, as Gather's do; 1 where the id in
`padding_ids` names no row, as Embedding's `padding_id`: its index is -1, and it is not among `rows_ids`. `rows` is how
many rows the table has.
"""
