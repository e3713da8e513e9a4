"""Why an ONNX model cannot be read."""

from __future__ import annotations

from weft_graph.errors import GraphRefusedError


class OnnxError(GraphRefusedError):
    """The file is no model, or holds what weft's graphs cannot; the message names the node, value or field."""
