"""Schemas of operators that compute element by element, a row each."""

from __future__ import annotations

from collections.abc import Mapping

from weft_graph.formals import required
from weft_graph.schema import Attribute, Folding, Gradient, Infer, OpSchema
from weft_graph.shapes.broadcasting import infer_binary, infer_unary
from weft_graph.types import DType


def unary(
    op_type: str,
    takes: frozenset[DType],
    gradient: Gradient | None = None,
    *,
    gives: frozenset[DType] | None = None,
    names: tuple[str, str] = ("X", "Y"),
    attributes: Mapping[str, Attribute] | None = None,
    follows: bool = False,
    folding: Folding | None = None,
) -> OpSchema:
    """One input, one output of its shape and type. `names`: what ONNX calls both."""
    return OpSchema(
        op_type=op_type,
        inputs=(required(names[0], takes),),
        outputs=(required(names[1], gives or takes),),
        infer=infer_unary,
        gradient=gradient,
        attributes=attributes or {},
        pointwise=True,
        follows=follows,
        folding=folding,
    )


def binary(
    op_type: str,
    takes: frozenset[DType],
    gradient: Gradient | None = None,
    *,
    gives: frozenset[DType] | None = None,
    infer: Infer = infer_binary,
    names: tuple[str, str, str] = ("A", "B", "C"),
    commutative: bool = False,
    follows: bool = False,
    folding: Folding | None = None,
) -> OpSchema:
    """Two inputs of one element type, broadcast; an output of theirs, or as `infer` says. `names`: as in `unary`."""
    return OpSchema(
        op_type=op_type,
        inputs=(required(names[0], takes), required(names[1], takes)),
        outputs=(required(names[2], gives or takes),),
        infer=infer,
        gradient=gradient,
        pointwise=True,
        commutative=commutative,
        follows=follows,
        folding=folding,
    )
