"""Why an ONNX model cannot be read."""

from __future__ import annotations

from weft_graph.errors import GraphRefusedError


class OnnxError(GraphRefusedError):
    """The file is no model, or holds what weft's graphs cannot; the message names the node, value or field."""


class UnsettledError(OnnxError):
    """A sequence's length or place, or whether it is there, is not known before a step: values of inputs may tell."""
