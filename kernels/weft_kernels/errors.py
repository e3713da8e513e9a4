"""What the kernels room raises."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.types import array_text
from weft_kernels.kernel import Array


class KernelError(Exception):
    """An operator could not run on its inputs; the message names the node and the types of what it reads."""


class OutOfRangeError(ValueError):
    """A number that has to name one of some things does not: `value` is outside [`low`, `stop`). `what` it is, such as
    a label. `reader` is the node that reads it, where that is not the one that raises."""

    def __init__(self, what: str, value: int, low: int, stop: int, *, of: str = "", reader: str = "") -> None:
        by = f", read by node {reader!r}" if reader else ""
        super().__init__(f"{what} {value} is outside [{low}, {stop}){of}{by}")
        self.what, self.value, self.low, self.stop, self.reader = what, value, low, stop, reader


def failed(node: Node, inputs: Sequence[Array | None], error: Exception) -> KernelError:
    """An error that names the node and the types of what it reads; raise it."""
    shown = ", ".join(
        f"{name} is {array_text(array)}" for name, array in zip(node.inputs, inputs, strict=True) if array is not None
    )
    return KernelError(f"node {node.name!r} ({node.op_type}): {error} [{shown}]")
