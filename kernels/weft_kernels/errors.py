"""What the kernels room raises."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.types import array_text
from weft_kernels.kernel import Array


class KernelError(Exception):
    """An operator could not run on its inputs; the message names the node and the types of what it reads."""


def failed(node: Node, inputs: Sequence[Array | None], error: Exception) -> KernelError:
    """An error that names the node and the types of what it reads; raise it."""
    shown = ", ".join(
        f"{name} is {array_text(array)}" for name, array in zip(node.inputs, inputs, strict=True) if array is not None
    )
    return KernelError(f"node {node.name!r} ({node.op_type}): {error} [{shown}]")
