"""Switches BatchNormalization and Dropout to training, or to inference where they are frozen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.imported import ReadOptions


def drop_unread_statistics(draft: Draft, outputs: Collection[str]) -> None:
    """The format wants new statistics named where BatchNormalization trains; weft's converter names them itself."""
    read = {name for node in draft.nodes for name in node.inputs}.union(outputs)
    for place, node in enumerate(draft.nodes):
        is_normalization = node.op_type == "BatchNormalization" and node.domain == ONNX_DOMAIN
        if is_normalization and not read.intersection(node.outputs[1:]):
            draft.nodes[place] = replace(node, outputs=node.outputs[:1])


def switch(draft: Draft, initializers: Collection[str], options: ReadOptions, held: Collection[str] = ()) -> list[str]:
    """Rewrites the draft's nodes, and says which of them could not be switched. Those in `held` are frozen too.

    BatchNormalization trains only where its running statistics are `initializers`, so that their new values can be
    kept. Nodes in bodies stay as they are.
    """
    warnings: list[str] = []
    for place, node in enumerate(draft.nodes):
        rewrite = _SWITCHES.get(node.op_type) if node.domain == ONNX_DOMAIN else None
        if rewrite is None:
            continue
        is_frozen = node.name in held or any(fnmatchcase(node.name, pattern) for pattern in options.frozen)
        if is_frozen or options.training:
            draft.nodes[place] = rewrite(draft, node, initializers, not is_frozen, warnings)
    return warnings


def _batch_normalization(
    _draft: Draft, node: Node, initializers: Collection[str], trains: bool, warnings: list[str]
) -> Node:
    if not trains:
        return replace(node, outputs=node.outputs[:1], attributes={**node.attributes, "training_mode": 0})
    if all(name in initializers for name in node.inputs[3:5]):
        return replace(node, attributes={**node.attributes, "training_mode": 1})
    if not node.attributes.get("training_mode", 0):
        warnings.append(
            f"node {node.name!r} (BatchNormalization) stays in inference: its mean and variance are no initializers, "
            "so running statistics could not be kept"
        )
    return node


def _dropout(draft: Draft, node: Node, _initializers: Collection[str], trains: bool, _warnings: list[str]) -> Node:
    """A `training_mode` that is fed stays."""
    given = (*node.inputs, "", "")[:3]
    known = draft.value_of(given[2]) if given[2] else None
    if given[2] and known is None:
        return node
    if not trains:
        return replace(node, inputs=node.inputs[:2])
    if known is not None and known.all():
        return node
    is_on = draft.constant(np.asarray(True), f"{node.name}/training_mode")
    return replace(node, inputs=(*given[:2], is_on))


_SWITCHES: Final[Mapping[str, Callable[[Draft, Node, Collection[str], bool, list[str]], Node]]] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
}
