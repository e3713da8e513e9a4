"""A job's graph with its trained parameters, cut to what is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.api.job import JobSpec
from weft.cutting import cut
from weft.errors import ArgumentError
from weft.model import Model
from weft.records import Array
from weft_graph.json_form import graph_from_json

_SHOWN = 8
"""Values that a message lists, the last of the graph."""


def trained_model(
    spec: JobSpec, outputs: Iterable[str] | None, values: Callable[[Sequence[str]], Mapping[str, Array]]
) -> Model:
    """See `JobHandle.model`; `values` brings those of some parameters."""
    graph = graph_from_json(spec.graph)
    judged = {spec.loss, *spec.metrics.values()}
    if isinstance(outputs, str):
        outputs = (outputs,)
    wanted = tuple(outputs or (name for name in graph.outputs if name not in judged))
    if not wanted:
        last = [value for node in graph.nodes[-_SHOWN:] for value in node.outputs if value and value not in judged]
        raise ArgumentError(
            f"job {spec.name!r} gives its loss and metrics alone; say which values are the outputs: "
            f"{', '.join(last)}, ..."
        )
    served = cut(graph, *wanted)
    names = [parameter.name for parameter in served.parameters]
    return Model(served, dict(values(names)) if names else {})
