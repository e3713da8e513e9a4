"""Recurrent networks: what was asked for by an attribute is asked for by naming an output."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _named_outputs(old: Older) -> Sequence[Node]:
    return [old.becomes(drop=("output_sequence",))]


FORMS = tuple(OldForm(op_type, 7, _named_outputs) for op_type in ("RNN", "LSTM", "GRU"))
