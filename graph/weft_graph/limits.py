"""How large a document may be: what a reader refuses before it makes anything of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds, all included. They keep a hostile document from costing more than its own size in memory."""

    name: int
    """Characters of a node's, value's or symbolic dimension's name."""
    text: int
    """Characters of an attribute that is text."""
    rank: int
    dim: int
    elements: int
    """Elements of one tensor."""
    records: int
    """Inputs, parameters, constants or outputs of a graph."""
    nodes: int
    node_values: int
    """Inputs or outputs of one node."""
    values: int
    """Inputs and outputs of all nodes together: what checking and converting take time for."""
    attributes: int
    attribute_items: int
    """Items of an attribute that is a list."""
    constant_bytes: int
    """Bytes of all constants together."""


MOST_NESTED: Final = 8
"""Bodies inside bodies; a loop in a branch of a loop is three."""

GRAPH_LIMITS: Final = Limits(
    name=256,
    text=4096,
    rank=16,
    dim=1 << 40,
    elements=1 << 40,
    records=1 << 16,
    nodes=1 << 16,
    node_values=1 << 12,
    values=1 << 17,
    attributes=64,
    attribute_items=1 << 12,
    constant_bytes=1 << 26,
)
"""For what users submit. A dimension may be that of a table that no single machine holds."""

PROGRAM_LIMITS: Final = Limits(
    name=2048,
    text=4096,
    rank=16,
    dim=1 << 53,
    elements=1 << 53,
    records=1 << 20,
    nodes=1 << 20,
    node_values=1 << 12,
    values=1 << 23,
    attributes=64,
    attribute_items=1 << 16,
    constant_bytes=1 << 27,
)
"""For what the converter made of a graph within `GRAPH_LIMITS`: backward nodes, and names derived from names."""
