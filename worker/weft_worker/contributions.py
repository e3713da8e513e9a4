"""What a slot gives the store at each step: what its program says, held against what the store waits for."""

from __future__ import annotations

from dataclasses import dataclass

from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.program import Program
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kvstore.description.records import StoreDescription
from weft_worker.errors import TaskError


@dataclass(frozen=True, slots=True)
class Contributions:
    """Keys in the description's order. The slot contributes to `keys`: it sends `sent`, and declares `nothing`."""

    keys: tuple[str, ...]
    sent: tuple[str, ...]
    nothing: tuple[str, ...]


def contributions_of(train: Program, description: StoreDescription, slot: int) -> Contributions:
    """The slot's, by the program's Sends and its SendBarrier's `keys`, of which the store may wait for fewer.

    Raises TaskError, naming keys, where the program gives what the store does not expect, or not what it waits for.
    """
    barriers = _nodes(train, SEND_BARRIER)
    if len(barriers) != 1:
        raise TaskError(f"programs: the train program has {len(barriers)} nodes SendBarrier, and needs one")
    sent, declared = _keys(train, SEND) | _keys(train, SEND_ROWS), _listed(barriers[0])
    keys = tuple(key.key for key in description.keys if slot in key.slots)
    known = {key.key for key in description.keys}
    for wrong, problem in (
        (set(keys) - sent - declared, "the store waits for {}, which the program neither sends nor declares"),
        (sent - set(keys), "the program sends {}, for which the store does not wait"),
        (sent & declared, "the program sends {}, and its SendBarrier declares nothing for the same"),
        (declared - known, "the program's SendBarrier declares nothing for {}, which the store does not know"),
    ):
        if wrong:
            raise TaskError(f"slot {slot}: {problem.format(sorted(wrong))}")
    return Contributions(
        keys=keys,
        sent=tuple(key for key in keys if key in sent),
        nothing=tuple(key for key in keys if key in declared),
    )


def check_tables(program: Program, description: StoreDescription) -> None:
    """Raises TaskError, naming keys, where the program takes a table whole, or what is none by rows."""
    tables = {key.key for key in description.keys if key.rows}
    whole = _keys(program, FETCH) | _keys(program, SEND)
    by_rows = _keys(program, FETCH_ROWS) | _keys(program, SEND_ROWS)
    for wrong, problem in (
        (whole & tables, "moves {} whole, which the store keeps as tables"),
        (by_rows - tables, "moves rows of {}, which the store does not keep as tables"),
    ):
        if wrong:
            raise TaskError(f"programs: the {program.role.value} program {problem.format(sorted(wrong))}")


def _keys(program: Program, op_type: str) -> set[str]:
    return {str(node.attributes.get("key")) for node in _nodes(program, op_type)}


def _nodes(program: Program, op_type: str) -> tuple[Node, ...]:
    return tuple(node for node in program.nodes if node.domain == WEFT_DOMAIN and node.op_type == op_type)


def _listed(barrier: Node) -> set[str]:
    keys = barrier.attributes.get("keys")
    if not isinstance(keys, tuple):
        raise TaskError(f"programs: node {barrier.name!r} has {keys!r} for `keys`, which are none")
    return {str(key) for key in keys}
