"""Layers that look rows up in a table: Embedding, and EmbeddingBag, which adds up the rows of a sample."""

from __future__ import annotations

import operator
from typing import Literal

from weft import ops
from weft.declared import element_type
from weft.errors import ArgumentError
from weft.expression import Expression, Operand
from weft.nn.initializers import Init, normal
from weft.nn.layer import Layer, as_expression, at_least_one
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.types import DType

REDUCTIONS = ("mean", "sum")
STANDARD_NORMAL = normal(1.0)


class Embedding(Layer):
    """Rows of a table: ids (batch, ...) of integers give (batch, ..., embedding_dim).

    Parameter: weight (num_embeddings, embedding_dim), which starts as `init` says, normal with deviation 1 unless set.
    The table is fetched and pushed by rows, so that it may be larger than a worker's memory; with `row_sparse=False` it
    travels whole. `padding_idx`, a row's number or any other such as -1, stands for nothing: it gives zeros, which do
    not train.

    With `lazy_update` a rule passes by the rows that a step does not touch; without, momentum and weight decay reach
    them at every step, as in PyTorch's `nn.Embedding(sparse=False)`.
    """

    kind = "embedding"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        row_sparse: bool = True,
        lazy_update: bool = True,
        dtype: DType | str = DType.FLOAT32,
        init: Init = STANDARD_NORMAL,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.num_embeddings = at_least_one("num_embeddings", num_embeddings)
        self.embedding_dim = at_least_one("embedding_dim", embedding_dim)
        self.padding_idx = None if padding_idx is None else operator.index(padding_idx)
        self.row_sparse = row_sparse
        self.lazy_update = lazy_update
        self.dtype = dtype
        self.init = init

    def __call__(self, x: Operand, /) -> Expression:
        return self.looked_up(as_expression(x), at_head=True)

    def looked_up(self, ids: Expression, *, at_head: bool) -> Expression:
        """The rows; `at_head` they are the layer's value, else a step on the way to it."""
        if ids.dtype not in (DType.INT32, DType.INT64):
            raise DTypeError(
                f"layer {self.scope.name!r} takes ids of int32 or int64, and is called with {ids.type}",
                node=self.scope.name,
            )
        shape = (self.num_embeddings, self.embedding_dim)
        weight = self.parameter(
            "weight",
            shape,
            self.init,
            self._element_type(),
            row_sparse=self.row_sparse,
            lazy_update=self.lazy_update,
        )
        return ops.embedding(weight, ids, padding_id=self.padding_idx, name=self.label("" if at_head else "rows"))

    def _element_type(self) -> DType:
        return element_type(self.dtype, self.scope.name)


class EmbeddingBag(Embedding):
    """The mean or the sum of each sample's rows: ids (batch, ..., bag) of integers give (batch, ..., embedding_dim).

    As `Embedding`, of which it has the arguments; `mode` is "mean" or "sum". The padding of a bag that is not full
    does not count: a mean is over the others, and a bag of padding alone gives zeros.
    """

    kind = "embedding_bag"

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
        row_sparse: bool = True,
        mode: Literal["mean", "sum"] = "mean",
        lazy_update: bool = True,
        dtype: DType | str = DType.FLOAT32,
        init: Init = STANDARD_NORMAL,
        name: str | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            row_sparse=row_sparse,
            lazy_update=lazy_update,
            dtype=dtype,
            init=init,
            name=name,
        )
        if mode not in REDUCTIONS:
            raise ArgumentError(f"mode is {mode!r}; it should be one of {', '.join(REDUCTIONS)}")
        self.mode = mode

    def __call__(self, x: Operand, /) -> Expression:
        ids = as_expression(x)
        if ids.rank < 2:
            raise ShapeError(
                f"layer {self.scope.name!r} takes bags of ids, (batch, bag), and is called with {ids.type}",
                node=self.scope.name,
            )
        rows = self.looked_up(ids, at_head=False)
        if self.mode == "sum":
            return ops.reduce_sum(rows, ids.rank - 1, name=self.label())
        if self.padding_idx is None:
            return ops.reduce_mean(rows, ids.rank - 1, name=self.label())
        total = ops.reduce_sum(rows, ids.rank - 1, name=self.label("sum"))
        return ops.div(total, self._counts(ids, self.padding_idx, rows.dtype), name=self.label())

    def _counts(self, ids: Expression, padding_idx: int, dtype: DType) -> Expression:
        """How many ids of each bag are no padding (batch, ..., 1), 1 where none is."""
        padding = ops.equal(ids, padding_idx, name=self.label("padding"))
        present = ops.sub(1.0, ops.cast(padding, dtype, name=self.label("absent")), name=self.label("present"))
        count = ops.reduce_sum(present, ids.rank - 1, keepdims=True, name=self.label("count"))
        return ops.where(ops.greater(count, 0.0), count, 1.0, name=self.label("divisor"))
