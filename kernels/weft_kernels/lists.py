"""Lists of whole numbers that a node has as an attribute, in older forms, or as an input that is read on the host."""

from __future__ import annotations

from collections.abc import Mapping

from weft_graph.attributes import as_ints
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array


def integers(given: Array | None, attributes: Mapping[str, AttributeValue], name: str) -> tuple[int, ...] | None:
    """The attribute `name`, else the input's numbers, else None."""
    if name in attributes:
        return as_ints(attributes[name])
    return None if given is None else tuple(int(number) for number in given.reshape(-1).tolist())
