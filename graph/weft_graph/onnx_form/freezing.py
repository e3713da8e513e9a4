"""Keeps parameters as they are whose names a user gave as frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from weft_graph.onnx_form.imported import Imported
from weft_graph.onnx_form.initializers import matches


def freeze(read: Imported, patterns: Sequence[str]) -> Imported:
    """The model whose matching parameters do not train. A pattern that is no parameter's and no node's is a warning."""
    parameters = tuple(
        replace(each, trainable=each.trainable and not matches(each.name, patterns)) for each in read.graph.parameters
    )
    names = [*(each.name for each in parameters), *(node.name for node in read.graph.nodes)]
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    warnings = [f"frozen {pattern!r} is no parameter's name and no node's" for pattern in idle]
    frozen = {each.name: "frozen" for each in read.graph.parameters if matches(each.name, patterns)}
    graph = replace(read.graph, parameters=parameters)
    reasons = {**read.reasons, **frozen}
    return replace(read, graph=graph, warnings=(*read.warnings, *warnings), reasons=reasons)
