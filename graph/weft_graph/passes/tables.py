"""The pass that finds which parameters are tables, read by rows alone, and why others that are read so are dense.

What row-sparse gradients are elsewhere (sparse embeddings), decided from the readers of a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from weft_graph.attributes import as_int
from weft_graph.ir import ONNX_DOMAIN, WEFT_DOMAIN, Node, Parameter
from weft_graph.names import bodies_of
from weft_graph.passes.draft import Draft, Tables
from weft_graph.passes.options import Options
from weft_graph.schema import schema_of
from weft_graph.weft_domain import EMBEDDING

_COPYING: Final = frozenset({(ONNX_DOMAIN, "Identity"), (ONNX_DOMAIN, "Cast"), (ONNX_DOMAIN, "Transpose")})
"""Operators that give their whole input again, of the same rank."""


def tables(draft: Draft, options: Options) -> Draft:
    """The draft with its tables found."""
    outputs = draft.outputs.values()
    found = find_tables(draft.graph.parameters, draft.graph.nodes, outputs, whole_rule=options.whole_rule)
    return replace(draft, tables=found)


def find_tables(
    parameters: Iterable[Parameter], nodes: Iterable[Node], outputs: Collection[str], *, whole_rule: str = ""
) -> Tables:
    """The parameters that are read by Gather along their first axis and by Embedding, and by nothing else.

    `nodes` are those that will run, in an order that can be run, `outputs` the values that the job asks for: what is
    asked for is needed whole. `whole_rule` is that of `Options`.
    """
    known = {parameter.name: parameter for parameter in parameters}
    copies = {name: name for name in known}
    by_rows: set[str] = set()
    whole: dict[str, str] = {}
    for node in nodes:
        if (node.domain, node.op_type) in _COPYING and node.inputs[0] in copies:
            copies[node.outputs[0]] = copies[node.inputs[0]]
        for place, name in enumerate(node.inputs):
            if name not in known:
                # Rows of a copy of the parameter: it is whole, and somebody meant a table.
                if name in copies and is_row_read(node, place, known[copies[name]].type.rank):
                    by_rows.add(copies[name])
                continue
            if is_row_read(node, place, known[name].type.rank):
                by_rows.add(name)
                continue
            reader = row_reader_inside(node, place, known[name].type.rank)
            if reader is not None:
                by_rows.add(name)
                whole.setdefault(name, f"node {reader!r} reads it in a body of node {node.name!r} ({node.op_type})")
            else:
                whole.setdefault(name, f"node {node.name!r} ({node.op_type}) reads it otherwise than by rows")
    dense: dict[str, str] = {}
    for name in (name for name in known if name in by_rows):
        if name in whole:
            dense[name] = whole[name]
        elif name in outputs:
            dense[name] = "the job asks for its value"
        elif because := _asked_to_be_dense(known[name], whole_rule):
            dense[name] = because
    keys = tuple(name for name in known if name in by_rows and name not in dense)
    return Tables(keys, MappingProxyType(dense))


def _asked_to_be_dense(parameter: Parameter, whole_rule: str) -> str:
    """Why what the parameter says of itself makes it no table; empty where it may be one."""
    if not parameter.row_sparse:
        return "row_sparse is false"
    if whole_rule and parameter.trainable and not parameter.lazy_update:
        return f"lazy_update is false, and {whole_rule}"
    return ""


def row_reader_inside(node: Node, place: int, rank: int) -> str | None:
    """The name of a node in one of the node's bodies that reads input `place`, which the bodies capture, by rows."""
    for body in bodies_of(node).values():
        captured = place - (len(node.inputs) - len(body.captured))
        name = body.captured[captured] if captured >= 0 else None
        for inner in body.nodes:
            for inner_place, read in enumerate(inner.inputs):
                if name is not None and read == name:
                    found = inner.name if is_row_read(inner, inner_place, rank) else None
                    found = found or row_reader_inside(inner, inner_place, rank)
                    if found is not None:
                        return found
    return None


def is_row_read(node: Node, place: int, rank: int) -> bool:
    """Whether input `place`, a value of that rank, is read by index along its first axis alone."""
    if place != 0:
        return False
    if (node.domain, node.op_type) == (ONNX_DOMAIN, "Gather"):
        return as_int(schema_of(node).attribute(node, "axis")) in {0, -rank}
    return (node.domain, node.op_type) == (WEFT_DOMAIN, EMBEDDING)
