"""Programs as text for people who know the field: sentences first, then every node in the order it runs in."""

from __future__ import annotations

from collections.abc import Iterator

from weft_graph.parts import parts_of
from weft_graph.program import Program, Programs, Role
from weft_graph.program_text.lines import counted, folded, type_text
from weft_graph.program_text.listing import is_store, listing
from weft_graph.program_text.setting import Setting
from weft_graph.program_text.story import story
from weft_graph.program_text.values import is_literal, value_names


def programs_text(programs: Programs, setting: Setting | None = None) -> str:
    """Where parameters live, what travels when and what a step holds, then both programs. No line is longer than 100.

    Without `setting`, what depends on the job's processes and sizes is left out.
    """
    parts = (story(programs, setting), program_lines(programs.train), program_lines(programs.evaluate))
    return "\n\n".join("\n".join(part) for part in parts)


def program_lines(program: Program) -> Iterator[str]:
    """The program's nodes below what it is given and asked for."""
    computing = [node for node in program.nodes if not is_store(node)]
    forward, backward = map(len, parts_of(computing))
    count = counted(len(computing), "node")
    parts = f", {forward} forward and {backward} backward" if backward else ""
    yield f"{'training' if program.role is Role.TRAIN else 'evaluation'} step: {count}{parts}"
    names = value_names(program, {})
    inputs = ", ".join(f"{names[given.name]} {type_text(given.type)}" for given in program.inputs)
    large = [constant for constant in program.constants if not is_literal(constant)]
    constants = ", ".join(f"{names[each.name]} {type_text(program.types[each.name])}" for each in large)
    outputs = ", ".join(name if name == value else f"{name} = {value}" for name, value in program.outputs.items())
    for what, text in (("given", inputs), ("constants", constants), ("asked", outputs)):
        if text:
            yield from folded(text, f"  {what:<9} ", " " * 12)
    yield ""
    yield from listing(program)
