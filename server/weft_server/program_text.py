"""Programs as text that people can read: a line for each value and node, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator

from weft_graph.ir import Node
from weft_graph.program import KeyPlan, Program, Programs


def programs_text(programs: Programs) -> str:
    """All of it: the keys that the store is to hold, then the program of each role."""
    lines = ["keys", *(f"  {_key(key)}" for key in programs.keys)]
    for program in (programs.train, programs.evaluate):
        lines += ["", str(program.role), *(f"  {line}" for line in _program(program))]
    return "\n".join(lines) + "\n"


def _key(key: KeyPlan) -> str:
    numbers = ", ".join(f"{name}={value:g}" for name, value in key.initializer.attributes.items())
    first = f"{key.initializer.op_type}({numbers})"
    return f"{key.key}: {key.type} = {first}; update {key.update}; priority {key.priority}"


def _program(program: Program) -> Iterator[str]:
    for each in program.inputs:
        yield f"input {each.name}: {each.type}"
    for constant in program.constants:
        yield f"constant {constant.name}: {constant.array.dtype}{list(constant.array.shape)}"
    for node in program.nodes:
        yield _node(node, program)
    for name, value in program.outputs.items():
        yield f"output {name} = {value}"


def _node(node: Node, program: Program) -> str:
    written = ", ".join(_typed(value, program) for value in node.outputs if value)
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    attributes = ", ".join(f"{name}={value!r}" for name, value in sorted(node.attributes.items()))
    call = f"{operator}({', '.join(value or '-' for value in node.inputs)})"
    return f"{written + ' = ' if written else ''}{call}{f' {{{attributes}}}' if attributes else ''}  # {node.name}"


def _typed(value: str, program: Program) -> str:
    known = program.types.get(value)
    return f"{value}: {known}" if known is not None else value
