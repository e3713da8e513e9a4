"""A program's nodes as lines, in the order they run in: what a compiler's dump of its intermediate form shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.names import RESERVED_PREFIX, bodies_of
from weft_graph.parts import parts_of
from weft_graph.program import Program
from weft_graph.program_text.lines import WIDTH, cut, folded, name_text, type_text
from weft_graph.program_text.values import value_names
from weft_graph.schema import schemas
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_ROWS, TRANSFER, UNIQUE_ROWS, is_communication

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
