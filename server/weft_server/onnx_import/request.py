"""What the fork that reads a model is asked, and what it answers."""

from __future__ import annotations

from pydantic import Field

from weft.api.base import Model
from weft.api.model import ReadRequest
from weft.api.problem import FieldError

MODEL, PARTS, ANSWER, VALUES = "model", "parts", "answer.json", "values.safetensors"
"""What a request's folder has: what was sent, an archive's files, and what is made of it."""


class ModelRequest(Model):
    """One file to read. In `folder` is `model`; there, `answer.json` and `values.safetensors` are written."""

    id: str
    folder: str
    options: ReadRequest
    most_bytes: int
    """Of all that an archive holds, and of a tensor."""


class ModelOutcome(Model):
    """How it went. Without errors the answer is written."""

    errors: list[FieldError] = Field(default_factory=list)
    parameters: int = 0
    """Tensors in the document of values; there is none where it is 0."""
