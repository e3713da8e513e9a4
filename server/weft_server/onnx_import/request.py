"""What the process that reads models is asked, and what it answers: values, as JSON lines."""

from __future__ import annotations

from pydantic import Field

from weft.api.base import Model
from weft.api.model import ReadRequest
from weft.api.problem import FieldError

MODEL, PARTS, ANSWER, VALUES = "model", "parts", "answer.json", "values.safetensors"
"""What a request's folder has: what was sent, an archive's files, and what is made of it."""


class ModelLimits(Model):
    """What reading one file may take."""

    memory_bytes: int
    """Of address space: what the process has at its start counts too."""
    seconds: float
    """Of the processor, and of the clock."""
    file_bytes: int
    """Of each file that it writes, and of all that an archive holds."""


class ModelRequest(Model):
    """One file to read. In `folder` is `model`; there, `answer.json` and `values.safetensors` are written."""

    id: str
    folder: str
    options: ReadRequest
    limits: ModelLimits


class ModelOutcome(Model):
    """How it went. Without errors the answer is written."""

    errors: list[FieldError] = Field(default_factory=list)
    parameters: int = 0
    """Tensors in the document of values; there is none where it is 0."""
    peak_bytes: int = 0
    """Resident memory of the process that read it, at most."""
    is_defect: bool = False
    """Whether reading broke in a way that no file should bring about."""
