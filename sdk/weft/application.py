"""An operator applied to values: operands become values, and the node is checked and typed at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.declared import constant_record
from weft.records import Application, ConstantRecord, InputRecord, Label, ParameterRecord, Value
from weft_graph.check import check
from weft_graph.errors import DTypeError, GraphRefusedError, UnknownOperatorError
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Graph, Input, Node
from weft_graph.schema import Formal, OpSchema, formal_at, name_at, schemas
from weft_graph.spelling import did_you_mean
from weft_graph.types import DType

_KINDS_OF_NUMBER: Mapping[type, str] = {bool: "biuf", int: "iuf", float: "f"}
"""NumPy kinds that a Python number may become without loss of meaning."""


def application(
    op_type: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    requested: int | None,
    label: Label | None,
    domain: str,
) -> Application:
    """The operator applied to these inputs, typed; see `weft.expression.apply_many`."""
    schema = _schema(op_type, domain)
    label = label or Label(snake(op_type))
    operands = _operands(schema, inputs)
    count = sum(not formal.optional for formal in schema.outputs) if requested is None else requested
    if count < 1 or formal_at(schema.outputs, count - 1) is None:
        raise GraphRefusedError(
            f"{op_type} gives 1 to {len(schema.outputs)} outputs, {count} are asked for", node=op_type
        )
    given = {name: _plain(schema, name, value) for name, value in attributes.items() if value is not None}
    node = Node(op_type, _shown(label), _words(schema, operands), _outputs(schema, count), given, domain)
    inference = _inferred(node, operands)
    known = inference.known.get(node.outputs[0])
    types = tuple(inference.types[name] for name in node.outputs)
    return Application(label, schema, operands, given, types, known)


def snake(op_type: str) -> str:
    """`GlobalAveragePool` as `global_average_pool`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()


def _inferred(node: Node, operands: Sequence[Value | None]) -> Inference:
    """Types and known values around the node, which was found legal."""
    read = {name: operand for name, operand in zip(node.inputs, operands, strict=True) if operand is not None}
    inputs = tuple(Input(name, operand.type) for name, operand in read.items())
    check(Graph(node.name, inputs, (), (node,), node.outputs))
    inference = Inference({name: operand.type for name, operand in read.items()})
    for name, operand in read.items():
        known = operand.known
        if known is not None:
            inference.known[name] = known
    try:
        inference.add(node)
    except DTypeError as error:
        raise DTypeError(f"{error.message}; .astype('float32') or the like converts a value", node=error.node) from None
    return inference


def _schema(op_type: str, domain: str) -> OpSchema:
    schema = schemas().get((domain, op_type))
    if schema is None:
        of_users = [name for other, name in schemas() if other == ONNX_DOMAIN]
        near = did_you_mean(op_type, of_users)
        raise UnknownOperatorError(f"there is no operator {op_type!r}{near}", node=op_type)
    return schema


def _operands(schema: OpSchema, inputs: Sequence[Any]) -> tuple[Value | None, ...]:
    """The inputs as values, without the optional ones that are left out at the end."""
    listed = list(inputs)
    while listed and listed[-1] is None:
        listed.pop()
    formals = [formal_at(schema.inputs, place) for place in range(len(listed))]
    if None in formals:
        raise GraphRefusedError(
            f"{schema.op_type} takes {len(schema.inputs)} inputs at most, given {len(listed)}", node=schema.op_type
        )
    pairs = [(formal, operand) for formal, operand in zip(formals, listed, strict=True) if formal is not None]
    return tuple(_operand(schema, formal, operand, pairs) for formal, operand in pairs)


def _operand(schema: OpSchema, formal: Formal, operand: Any, pairs: Iterable[tuple[Formal, Any]]) -> Value | None:
    if operand is None or isinstance(operand, Value):
        return operand
    beside = [o.dtype for f, o in pairs if isinstance(o, Value) and f.dtypes == formal.dtypes]
    try:
        if isinstance(operand, bool | int | float) and beside:
            return Value(constant_record(_number(operand, beside[0])))
        return Value(constant_record(operand))
    except (DTypeError, OverflowError, ValueError) as error:
        raise DTypeError(f"{schema.op_type}: input {formal.name!r}: {error}", node=schema.op_type) from None


def _number(value: bool | float, dtype: DType) -> np.ndarray:
    if dtype.numpy.kind not in _KINDS_OF_NUMBER[type(value)]:
        raise DTypeError(f"{value!r} is no {dtype}, which the operand beside it is; ops.cast gives that another type")
    return np.asarray(value, dtype=dtype.numpy)


def _plain(schema: OpSchema, name: str, value: Any) -> AttributeValue:
    """The value as the Python type that the schema asks for, where it is one in other clothes; `check` judges it."""
    plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    formal = schema.attributes.get(name)
    if formal is not None and formal.kind is float and isinstance(plain, int):
        return float(plain)
    if formal is not None and formal.kind is int and isinstance(plain, bool):
        return int(plain)
    if isinstance(plain, bool | int | float | str):
        return plain
    if isinstance(plain, list | tuple):
        return tuple(plain)
    raise GraphRefusedError(
        f"{schema.op_type}: attribute {name!r} is a {type(value).__name__}; an attribute is a number, text, or a list",
        node=schema.op_type,
    )


def _words(schema: OpSchema, operands: Sequence[Value | None]) -> tuple[str, ...]:
    """What messages call the operands: what the user named them, else what the operator does. Each once."""
    words: list[str] = []
    for place, operand in enumerate(operands):
        formal = formal_at(schema.inputs, place)
        assert formal is not None
        word = "" if operand is None else _word(operand) or formal.name
        words.append(f"{word}#{place}" if word and word in words else word)
    return tuple(words)


def _word(operand: Value) -> str:
    record = operand.record
    named = isinstance(record, InputRecord | ParameterRecord | ConstantRecord) and record.label is not None
    return _shown(record.label) if named and record.label is not None else ""


def _outputs(schema: OpSchema, count: int) -> tuple[str, ...]:
    """Names for the node's outputs that no operand can have."""
    return tuple(f"{schema.op_type}>{name_at(schema.outputs, place)}" for place in range(count))


def _shown(label: Label) -> str:
    """A wish for a name before it is granted."""
    parts = [label.local] if label.local else []
    scope = label.scope
    while scope is not None:
        parts += [scope.name] if scope.name else []
        scope = scope.parent
    return ".".join(reversed(parts))
