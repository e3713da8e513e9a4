"""The lines of a program as people read it: values, settings, nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import Final

import numpy as np

from weft_graph.ir import AttributeValue, Constant, Node, Subgraph
from weft_graph.names import RESERVED_PREFIX, TABLE_IDS, TABLE_INDEX, TABLE_ROWS, bodies_of
from weft_graph.program import LOSS_SCALE, Program, parts_of
from weft_graph.schema import schemas
from weft_graph.types import DType, TensorType
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_ROWS, TRANSFER, UNIQUE_ROWS, is_communication

# --- Lines of text for people: at most `WIDTH` characters wide, numbers with units, tables, folded sentences ----------


WIDTH: Final = 100
"""Characters of a line: half of a wide screen, and what a page of documentation holds."""

_NAME_CHARACTERS: Final = 40
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT: Final = {
    DType.BOOL: "bool",
    DType.BFLOAT16: "bf16",
    **{dtype: dtype.value.replace("uint", "u").replace("int", "i") for dtype in DType if "int" in dtype.value},
    DType.FLOAT16: "f16",
    DType.FLOAT32: "f32",
    DType.FLOAT64: "f64",
}


def size_text(count: int) -> str:
    """Bytes as `600 B`, `12.5 KiB`, `3 MiB`."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def type_text(type_: TensorType) -> str:
    """A type as papers and compilers write it: `f32[batch,3]`."""
    return f"{_SHORT.get(type_.dtype, type_.dtype.value)}[{','.join(map(str, type_.shape))}]"


def counted(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `3 keys`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: Iterable[str], most: int = 8) -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` the first ones and how many there are besides."""
    given = list(words)
    if len(given) > most:
        given = [*given[: most - 1], f"{len(given) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(given[:-1]), given[-1]))) if given else ""


def paragraph(*sentences: str, indent: str = "") -> list[str]:
    """The sentences, one behind the other, folded."""
    return folded(" ".join(filter(None, sentences)), indent, indent)


def folded(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """The text in lines, the first of which begins with `indent`, the others with `hanging`. Long words stay whole."""
    return wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], most: int = 36) -> Iterator[str]:
    """Columns as wide as their widest cell, two blanks between them and before the first; wider cells are cut."""
    cells = [[cut(cell, most) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()


def name_text(name: str) -> str:
    """A name that a user gave, on one line: not too long, and nothing in it that a terminal would obey."""
    return cut(plain(name), _NAME_CHARACTERS)


def plain(text: str) -> str:
    """The text with a dot in the place of what is no letter, digit, sign or blank."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def cut(text: str, most: int) -> str:
    """The text, with an ellipsis in the place of what is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- What of a job its programs' text needs beside them ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """On how many processes a job runs, how its values are cut, and a worker's sizes: the batch and the columns'."""

    workers: int
    shards: int
    """0: the one worker keeps the values."""
    slice_bytes: int
    dims: Mapping[str, int]
    slices: Mapping[str, int]
    """Of each key that is no table."""
    updated_by_workers: bool = False
    waits: bool = True
    """Whether a step waits for all workers' gradients of the last one: sync."""
    commits: str = ""
    """What each step waits for all workers for before any of it is applied, in words; nothing where it does not."""


# --- What a program's values are called in its text: users' values by their names, the converter's by numbers ---------


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


_TYPE_COLUMN = 64
_USUAL = {"strides": 1, "dilations": 1, "pads": 0}


def is_store(node: Node) -> bool:
    """Whether the node talks to the store."""
    return is_communication(node) and node.op_type != TRANSFER


def numbered(program: Program) -> dict[str, int]:
    """The numbers of nodes that compute, from 1 on, by name."""
    computing = (node for node in program.nodes if not is_store(node))
    return {node.name: number for number, node in enumerate(computing, 1)}


def listing(program: Program) -> list[str]:
    """The program's lines: a node each, with what it writes, and what is fetched and sent between them."""
    numbers = numbered(program)
    shown = _Listing(program, numbers, value_names(program, numbers))
    return list(shown.lines())


class _Listing:
    def __init__(self, program: Program, numbers: Mapping[str, int], names: Mapping[str, str]) -> None:
        self.program = program
        self.numbers = numbers
        self.names = names

    def lines(self) -> Iterator[str]:
        part = place = ""
        backward = {node.name for node in parts_of(self.program.nodes)[1]}
        for is_run, group in groupby(self.program.nodes, key=lambda node: node.op_type if is_store(node) else ""):
            if is_run:
                yield from self._store_lines(is_run, list(group))
                continue
            for node in group:
                now = "backward" if node.name in backward else "forward"
                if now != part and backward:
                    yield f"  {now}"
                part = now
                if node.group != place:
                    place = node.group
                    yield f"  on {name_text(place)}"
                yield from self._node_lines(node)

    def _store_lines(self, op_type: str, nodes: Sequence[Node]) -> Iterator[str]:
        keys = [name_text(str(node.attributes.get("key", ""))) for node in nodes]
        if op_type == FETCH:
            text = f"fetch {', '.join(keys)}"
        elif op_type == SEND:
            sent = (f"{key} = {self._name(node.inputs[0])}" for key, node in zip(keys, nodes, strict=True))
            text = f"send {', '.join(sent)}"
        elif op_type == FETCH_ROWS:
            text = "fetch rows " + ", ".join(
                f"{self._name(node.outputs[0])} at {self._name(node.inputs[0])}" for node in nodes
            )
        elif op_type == SEND_ROWS:
            text = "send rows " + ", ".join(
                f"{key} at {self._name(node.inputs[0])} = {self._name(node.inputs[1])}"
                for key, node in zip(keys, nodes, strict=True)
            )
        else:
            text = self._barrier(nodes[0])
        yield from folded(text, "      → " if op_type in {FETCH, FETCH_ROWS} else "      ← ", " " * 10)

    def _barrier(self, node: Node) -> str:
        nothing = node.attributes.get("keys", ())
        keys = [name_text(str(key)) for key in nothing] if isinstance(nothing, tuple) else []
        return "barrier: all of this step is sent" + (f"; nothing ever for {', '.join(keys)}" if keys else "")

    def _node_lines(self, node: Node) -> Iterator[str]:
        text = f"{self.numbers[node.name]:>4}  {self._text(node, self.names)}"
        types = ", ".join(type_text(self.program.types[name]) for name in node.outputs if name)
        if node.outputs[:1] != (node.name,) and not node.name.startswith(RESERVED_PREFIX):
            types = _named(types, node.name)
        *first, last = folded(text, "", " " * 10) or [text]
        yield from first
        if len(last) + 2 + min(len(types), _TYPE_COLUMN) <= WIDTH:
            yield _beside(last, types)
        else:
            yield last
            yield _beside("", types)
        yield from self._body_lines(node)

    def _body_lines(self, node: Node) -> Iterator[str]:
        for name, body in bodies_of(node).items():
            inner = dict(self.names)
            inner.update((own, name_text(own)) for own in (*body.inputs, *body.captured) if own not in inner)
            for each in body.nodes:
                inner.update((own, self.names.get(own, name_text(own))) for own in each.outputs)
            for index, each in enumerate(body.nodes):
                for output in each.outputs:
                    if output.startswith("weft.") and output not in self.names:
                        inner[output] = f"%{chr(ord('a') + index % 26)}{index // 26 or ''}"
            steps = "; ".join(self._text(each, inner) for each in body.nodes)
            head = "" if name == "body" else f"{name}: "
            yield from folded(f"{head}{steps}", " " * 10, " " * 12)

    def _text(self, node: Node, names: Mapping[str, str]) -> str:
        outputs = ", ".join(names.get(name, name_text(name)) for name in node.outputs if name)
        inputs = [names.get(name, name_text(name)) if name else "-" for name in node.inputs]
        while inputs and inputs[-1] == "-":
            inputs.pop()
        attributes = "".join(f" {name}={_value(value)}" for name, value in _given(node))
        return f"{outputs} = {node.op_type}({', '.join(inputs)}){cut(attributes, WIDTH - 20)}"

    def _name(self, value: str) -> str:
        return self.names.get(value, value)


def _named(types: str, name: str) -> str:
    """The types, and what errors call the node where it has a name of its own and there is room."""
    both = f"{types}  {name_text(name)}"
    return both if len(both) <= WIDTH - _TYPE_COLUMN else types


def _beside(text: str, types: str) -> str:
    """The types in their column, or as far left as they fit."""
    room = WIDTH - max(len(text) + 2, 20)
    types = cut(types, room)
    column = min(_TYPE_COLUMN, WIDTH - len(types))
    return f"{text:<{max(column, len(text) + 2)}}{types}"


def _given(node: Node) -> Iterator[tuple[str, AttributeValue]]:
    """The attributes that say more than their defaults do; bodies have lines of their own.

    Those of UniqueRows are for its kernel alone.
    """
    if node.op_type == UNIQUE_ROWS:
        return
    schema = schemas().get((node.domain, node.op_type))
    for name, value in node.attributes.items():
        default = None if schema is None or name not in schema.attributes else schema.attributes[name].default
        if not isinstance(value, Subgraph) and value != default and not _is_usual(name, value):
            yield name, value


def _is_usual(name: str, value: AttributeValue) -> bool:
    """Whether it is what ONNX takes where the attribute is left out: of a length that no default has."""
    return isinstance(value, tuple) and name in _USUAL and set(value) == {_USUAL[name]}


def _value(value: AttributeValue) -> str:
    return name_text(f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value))
