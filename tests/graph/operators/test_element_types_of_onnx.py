"""The element types that operators take, against those of ONNX's newest schemas."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest

from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import formal_at, schemas
from weft_graph.types import DType

NOT_HERE = {"string", "complex64", "complex128", "float6e2m3", "float6e3m2"}
"""Element types of ONNX's that no value of weft has."""

NO_ARITHMETIC = "no gradient flows through float8, and nothing is dropped from what is quantized"
NARROWER = {
    "Col2Im": "elements that overlap are summed, which truth values are not",
    "Dropout": NO_ARITHMETIC,
}
"""Operators that take fewer element types than ONNX's, with the reason."""

NAMES = {onnx.TensorProto.DataType.Name(number).lower(): dtype for dtype, number in NUMBER_OF_DTYPE.items()}


def _theirs(op_type: str) -> Iterator[tuple[str, int, str, set[str]]]:
    """(inputs or outputs, place, name, names of the element types) of each formal."""
    schema = onnx.defs.get_schema(op_type)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    for kind, formals in (("inputs", schema.inputs), ("outputs", schema.outputs)):
        for place, formal in enumerate(formals):
            types = allowed.get(formal.type_str, [formal.type_str])
            yield kind, place, formal.name, {t[7:-1] for t in types if t.startswith("tensor(")}


def _missing(op_type: str) -> dict[str, set[DType]]:
    """For each formal of ours what ONNX's takes beside."""
    ours, missing = schemas()["", op_type], {}
    for kind, place, name, types in _theirs(op_type):
        formal = formal_at(getattr(ours, kind), place)
        if formal is None:
            continue
        assert types - NOT_HERE <= set(NAMES), types
        lacking = {NAMES[each] for each in types - NOT_HERE} - formal.dtypes
        if lacking:
            missing[f"{kind} {name}"] = lacking
    return missing


OPERATORS = sorted(op_type for domain, op_type in schemas() if not domain)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_an_operator_takes_what_onnx_says(op_type: str) -> None:
    assert bool(_missing(op_type)) == (op_type in NARROWER), _missing(op_type)


def test_every_type_of_weft_is_one_of_onnx() -> None:
    assert set(NAMES.values()) == set(DType)
    assert set(NARROWER) <= set(OPERATORS)
