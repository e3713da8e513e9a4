"""What a program's values are called in its text: users' values by their names, the converter's by numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft_graph.ir import Constant
from weft_graph.names import RESERVED_PREFIX, TABLE_IDS, TABLE_INDEX, TABLE_ROWS
from weft_graph.program import LOSS_SCALE, Program
from weft_graph.program_text.lines import name_text

_SHOWN_ELEMENTS = 4
_OF_TABLES = {TABLE_ROWS: ".rows", TABLE_IDS: ".ids", TABLE_INDEX: ".index"}


def value_names(program: Program, numbers: Mapping[str, int]) -> dict[str, str]:
    """A word for each value of the program; `numbers` has those of its nodes.

    A small constant is what it holds. `%7` is what node 7 makes, `%7.1` its second output.
    """
    names = {input_.name: _shown(input_.name) for input_ in program.inputs}
    names[LOSS_SCALE] = "loss_scale"
    for constant in program.constants:
        if is_literal(constant):
            names[constant.name] = _literal(constant.array)
        else:
            names[constant.name] = _shown(constant.name)
    for node in program.nodes:
        for place, name in enumerate(node.outputs):
            if name:
                number = numbers.get(node.name)
                names[name] = _made(name, f"%{number}" + (f".{place}" if place else ""))
    return names


def is_literal(constant: Constant) -> bool:
    """Whether the constant stands as what it holds where it is read."""
    return constant.array.size <= _SHOWN_ELEMENTS


def _made(name: str, number: str) -> str:
    if not name.startswith(RESERVED_PREFIX):
        return _shown(name)
    for prefix, what in _OF_TABLES.items():
        if name.startswith(prefix):
            if what == ".index":
                key, _, place = name.removeprefix(prefix).rpartition(":")
                return f"{name_text(key)}{what}{place}"
            return f"{name_text(name.removeprefix(prefix))}{what}"
    return number


def _shown(name: str) -> str:
    return name_text(name.removeprefix(RESERVED_PREFIX))


def _literal(array: np.ndarray) -> str:
    if array.dtype.kind == "b":
        return str(array.tolist()).lower()
    numbers = [f"{number:.6g}" for number in array.reshape(-1).astype(np.float64).tolist()]
    return numbers[0] if array.ndim == 0 else f"[{', '.join(numbers)}]"
