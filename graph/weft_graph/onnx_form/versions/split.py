"""Split: how many pieces there are is said by the outputs, and of newer opsets by an attribute that repeats it."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.json_form import OPSET
from weft_graph.onnx_form.versions.form import Older, OldForm


def _without_count(old: Older) -> Sequence[Node]:
    """One that contradicts the outputs stays, for inference to refuse."""
    repeats = old.attribute("num_outputs") == len(old.node.outputs)
    return [old.becomes(drop=("num_outputs",) if repeats else ())]


FORMS = (OldForm("Split", OPSET + 1, _without_count),)
