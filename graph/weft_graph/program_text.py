"""Programs as tables for people: what runs in which order, on what, and what is fetched and sent when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.names import bodies_of
from weft_graph.program import KeyPlan, Program, Programs
from weft_graph.types import TensorType
from weft_graph.weft_domain import FETCH_ROWS, SEND_ROWS

_CELL_CHARACTERS = 72
"""Wider cells are cut: a node that joins a hundred values would make every line as wide."""


def programs_text(programs: Programs) -> str:
    """The keys, what is said of tables where there are some, and both programs, one below the other."""
    about = (keys_text(programs.keys), tables_text(programs))
    return "\n\n".join((*filter(None, about), program_text(programs.train), program_text(programs.evaluate)))


def keys_text(keys: Iterable[KeyPlan]) -> str:
    """A table of keys, the most urgent first."""
    rows = [
        (
            str(key.priority),
            key.key,
            str(key.type),
            _call(key.initializer.op_type, key.initializer.attributes),
            key.update,
        )
        for key in sorted(keys, key=lambda key: key.priority)
    ]
    return "\n".join(("keys", *_table(("priority", "key", "type", "first value", "update"), rows)))


def tables_text(programs: Programs) -> str:
    """Which keys are tables and what of them travels, and why others that are read by rows are dense; empty if none."""
    evaluate = programs.evaluate
    pushed = {node.attributes["key"] for node in programs.train.nodes if node.op_type == SEND_ROWS}
    rows = {node.attributes["key"]: node.outputs[0] for node in evaluate.nodes if node.op_type == FETCH_ROWS}
    # An evaluation program has no backward nodes, so what reads the rows there is the user's.
    readers: dict[str, list[str]] = {value: [] for value in rows.values()}
    for node in evaluate.nodes:
        if node.inputs and node.inputs[0] in readers:
            readers[node.inputs[0]].append(node.name)
    tables = [
        f"  {key.key}: a step fetches at most {evaluate.types[rows[key.key]].shape[0]} of {key.type.shape[0]} rows, "
        f"those named at {_cut(', '.join(readers[rows[key.key]]))}, "
        + ("and pushes their gradients" if key.key in pushed else "and pushes nothing: it is not trained")
        for key in programs.keys
        if key.key in rows
    ]
    dense = [f"  {key.key}: {key.dense_because}" for key in programs.keys if key.dense_because]
    parts = {"tables, fetched and pushed by rows": tables, "read by rows, and dense all the same": dense}
    return "\n\n".join("\n".join((head, *lines)) for head, lines in parts.items() if lines)


def program_text(program: Program) -> str:
    """A table of the program's nodes in the order they run in, below its inputs, constants and outputs."""
    inputs = ", ".join(f"{input_.name} {input_.type}" for input_ in program.inputs)
    constants = ", ".join(f"{constant.name} {program.types[constant.name]}" for constant in program.constants)
    outputs = ", ".join(f"{name} = {value}" for name, value in program.outputs.items())
    rows = [
        row
        for index, node in enumerate(program.nodes)
        for row in (_node_row(str(index), node, program.types), *_body_rows(node, 1))
    ]
    head = [f"program {program.role}: {len(program.nodes)} nodes", f"  inputs     {inputs or '-'}"]
    head += [f"  constants  {constants or '-'}", f"  outputs    {outputs or '-'}"]
    return "\n".join((*head, *_table(("#", "node", "operator", "reads", "writes"), rows)))


_Row = tuple[str, str, str, str, str]


def _node_row(number: str, node: Node, types: Mapping[str, TensorType], depth: int = 0) -> _Row:
    return (
        number,
        f"{_indent(depth)}{node.name}",
        _call(node.op_type, node.attributes),
        ", ".join(name or "-" for name in node.inputs),
        ", ".join(_typed(name, types) for name in node.outputs if name),
    )


def _body_rows(node: Node, depth: int) -> Iterator[_Row]:
    """What the node's bodies do, below it and further in; a body's values have no types of their own."""
    for name, body in bodies_of(node).items():
        reads = (*body.inputs, *(f"{captured} from outside" for captured in body.captured))
        yield "", f"{_indent(depth)}{name}", "body", ", ".join(reads) or "-", ", ".join(body.outputs)
        for inner in body.nodes:
            yield _node_row("", inner, {}, depth + 1)
            yield from _body_rows(inner, depth + 2)


def _indent(depth: int) -> str:
    return "  " * depth


def _typed(name: str, types: Mapping[str, TensorType]) -> str:
    return f"{name} {types[name]}" if name in types else name


def _call(op_type: str, attributes: Mapping[str, AttributeValue]) -> str:
    given = ", ".join(f"{name}={_value(value)}" for name, value in attributes.items())
    return f"{op_type}({given})" if given else op_type


def _value(value: AttributeValue) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, Subgraph):
        return f"{len(value.nodes)} nodes"
    return str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two blanks between them, two before the first."""
    cells = [[_cut(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return [f"  {line}".rstrip() for line in lines]


def _cut(cell: str) -> str:
    return cell if len(cell) <= _CELL_CHARACTERS else f"{cell[: _CELL_CHARACTERS - 3]}..."
