"""Scan before opset 9: over batches of sequences, which is a Scan over the batch of a Scan over each sequence."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.onnx_form.versions.form import Older, OldForm


def _over_batches(old: Older) -> Sequence[Node]:
    body, directions = old.attribute("body"), old.ints("directions")
    if not isinstance(body, Subgraph):
        raise old.refusal("attribute 'body' is missing")
    if old.input(0):
        raise old.refusal("lengths of single sequences are in no newer opset")
    read = len(old.node.inputs) - len(body.captured)
    values, captured = old.node.inputs[1:read], old.node.inputs[read:]
    inner_names = tuple(old.value(f"sample{place}") for place in range(len(values)))
    inner_outputs = tuple(old.value(f"result{place}") for place in range(len(body.outputs)))
    turned: dict[str, AttributeValue] = {} if directions is None else {"scan_input_directions": directions}
    inner = old.becomes(inputs=(*inner_names, *body.captured), outputs=inner_outputs, drop=("directions",))
    inner = Node(
        "Scan",
        old.draft.shared.node_name(f"{old.node.name}/Scan"),
        inner.inputs,
        inner.outputs,
        {**inner.attributes, **turned},
    )
    outer = Subgraph(inner_names, body.captured, (inner,), inner_outputs)
    return [
        Node(
            "Scan",
            old.node.name,
            (*values, *captured),
            (*old.node.outputs, *("" for _ in inner_outputs[len(old.node.outputs) :])),
            {"body": outer, "num_scan_inputs": len(values)},
        )
    ]


FORMS = (OldForm("Scan", 9, _over_batches),)
