"""What weft writes beside its nodes and initializers, so that a graph comes back from a file as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx

from weft_graph.onnx_form.text import text

ROLE: Final = "weft.role"
"""Of an initializer: `parameter`, `untrained` or `constant`."""
ROW_SPARSE: Final = "weft.row_sparse"
"""Of a parameter: `false` where it is never fetched by rows."""
GROUP: Final = "weft.group"
"""Of a node: the group that it is placed with."""
OPERATOR: Final = "weft.operator"
"""Of an Identity: the operator of weft's own domain that it stands for."""


def own_metadata(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    """The entries that weft wrote."""
    found = ((text(entry.key, "a key of metadata"), entry.value) for entry in entries)
    return {key: text(value, f"metadata {key!r}") for key, value in found if key.startswith("weft.")}
