"""Whether a job's groups of nodes have places, and whether workers are there for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from weft.api.job import JobSpec
from weft.api.problem import FieldError
from weft_graph.ir import Graph
from weft_graph.json_place import escape_token
from weft_graph.passes.places import place_of
from weft_server.planning.data_check import listed

_FIELD = "/parallelism/placement"


def placement_errors(spec: JobSpec, graph: Graph) -> Iterator[FieldError]:
    """What is wrong with the job's placement; nothing where it has none."""
    placement = spec.parallelism.placement
    if not placement:
        return
    groups = dict.fromkeys(node.group for node in graph.nodes if node.group)
    for group in placement:
        if group not in groups:
            detail = f"no node of the graph is in group {group!r}; there are {listed(groups)}"
            yield FieldError(pointer=f"{_FIELD}/{escape_token(group)}", detail=detail)
    for index, node in enumerate(graph.nodes):
        if node.group and node.group not in placement:
            detail = f"node {node.name!r} is in group {node.group!r}, which /parallelism/placement gives no place"
            yield FieldError(pointer=f"/graph/nodes/{index}/group", detail=detail, node=node.name)
    places = dict.fromkeys(place_of(text) for text in placement.values())
    if len(places) > 1 or any(place.stage for place in places):
        detail = (
            f"groups are at {listed(map(str, places))}, and a worker computes all of a step on the one device of its "
            "settings; give every group the same place, of stage 0"
        )
        yield FieldError(pointer=_FIELD, detail=detail)
