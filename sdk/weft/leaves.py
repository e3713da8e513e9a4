"""The leaves of expressions: inputs, parameters and constants, which are computed from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.declared import constant_record, declared_name, declared_shape, element_type
from weft.expression import Expression
from weft.records import InputRecord, Label, ParameterRecord, Scope
from weft_graph.errors import ShapeError
from weft_graph.ir import Initializer
from weft_graph.types import BATCH, DType, TensorType


def input(name: str, shape: Sequence[int | str] = (BATCH,), dtype: DType | str = "float32") -> Expression:  # noqa: A001 - ONNX's word
    """A value that is fed at each step: a column of the data. `shape` begins with "batch" where rows are samples."""
    type_ = TensorType(element_type(dtype, name), declared_shape(shape, name))
    return Expression(InputRecord(Label(declared_name(name), given=True), (type_,)))


def parameter(
    name: str,
    shape: Sequence[int],
    initializer: Initializer,
    dtype: DType | str = "float32",
    *,
    trainable: bool = True,
    row_sparse: bool = True,
    lazy_update: bool = True,
    scope: Scope | None = None,
) -> Expression:
    """A value that the store keeps and a rule updates; `shape` is all numbers. See `weft.nn.initializers`.

    One that only `ops.gather` (by axis 0) and `ops.embedding` read is a table: it is fetched and pushed by rows, and no
    worker holds the whole of it, unless `row_sparse` is False. Rows that a step does not touch stay as they are; with
    `lazy_update=False` momentum and weight decay reach them too, as in PyTorch's `nn.Embedding(sparse=False)`.
    """
    type_ = TensorType(element_type(dtype, name), declared_shape(shape, name))
    if not type_.is_static:
        raise ShapeError(f"parameter {name!r}: the store keeps numbers of fixed shape, this one is {type_}", node=name)
    label = Label(declared_name(name), scope, given=scope is None)
    return Expression(ParameterRecord(label, (type_,), initializer, trainable, row_sparse, lazy_update))


def constant(value: Any, dtype: DType | str | None = None, *, name: str | None = None) -> Expression:
    """A value that is part of the graph. Python's floats become float32; an array keeps its dtype unless one is given.

    The array is copied. Raises DTypeError for an element type that tensors cannot have.
    """
    return Expression(constant_record(value, dtype, name))
