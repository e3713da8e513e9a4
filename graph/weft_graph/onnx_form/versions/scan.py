"""Scan with a batch in front: a scan over the batch, whose body scans one sample's sequence."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.onnx_form.versions.form import Older, OldForm


def _over_the_batch(old: Older) -> Sequence[Node]:
    body = old.attribute("body")
    if not isinstance(body, Subgraph):
        raise old.refusal("attribute 'body' is no graph")
    if old.input(0):
        raise old.refusal("sequences of different lengths (input 'sequence_lens') are not read")
    reads = tuple(f"sample/{name}" for name in body.inputs)
    made = tuple(f"sample/{place}" for place in range(len(body.outputs)))
    attributes: dict[str, AttributeValue] = {"body": body}
    attributes["num_scan_inputs"] = int(old.number("num_scan_inputs", 0))
    directions = old.ints("directions")
    if directions is not None:
        attributes["scan_input_directions"] = directions
    one = Node(
        "Scan", old.draft.shared.node_name(f"{old.node.name}/sample"), (*reads, *body.captured), made, attributes
    )
    outer = Subgraph(reads, body.captured, (one,), made)
    scan = old.becomes(
        inputs=old.node.inputs[1:],
        drop=("directions",),
        body=outer,
        num_scan_inputs=len(body.inputs),
    )
    return [scan]


FORMS = (OldForm("Scan", 9, _over_the_batch),)
