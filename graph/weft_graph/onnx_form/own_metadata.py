"""What weft writes beside its nodes and initializers, so that a graph comes back from a file as it was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import onnx

from weft_graph.onnx_form.errors import text

ROLE: Final = "weft.role"
"""Of an initializer: `parameter`, `untrained` or `constant`."""
ROW_SPARSE: Final = "weft.row_sparse"
"""Of a parameter: `false` where it is never fetched by rows."""
LAZY: Final = "weft.lazy_update"
"""Of a parameter: `false` where its rule does not pass by rows that a step does not touch."""
GROUP: Final = "weft.group"
"""Of a node: the group that it is placed with."""
OPERATOR: Final = "weft.operator"
"""Of an Identity or a Gather: the operator of weft's own domain that it stands for."""

TAKEN_OVER: Final = "weft.taken_over"
"""Of a graph: `true` where weft had it exported, with what is computed without gradients detached."""

WAS: Final = "weft.was"
"""Of an Identity in a file for serving: the operator that training had in its place."""


def served(protos: Iterable[onnx.NodeProto]) -> list[str]:
    """A sentence for each node that training had another operator for."""
    told = ((proto, own_metadata(proto.metadata_props).get(WAS)) for proto in protos)
    return [
        f"node {proto.name!r} ({proto.op_type}) was a {was}, which this file, written for serving, does without; "
        "to train on as before, export with --training, training=True in Python"
        for proto, was in told
        if was
    ]


def own_metadata(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    """The entries that weft wrote."""
    found = ((text(entry.key, "a key of metadata"), entry.value) for entry in entries)
    return {key: text(value, f"metadata {key!r}") for key, value in found if key.startswith("weft.")}
