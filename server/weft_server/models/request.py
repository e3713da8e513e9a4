"""What the process that reads models is asked, and what it answers: values, as JSON lines."""

from __future__ import annotations

from pydantic import Field

from weft.api.base import Model
from weft.api.problem import FieldError

MODEL, ANSWER, VALUES = "model", "answer.json", "values.safetensors"
"""Files of a request's folder: what was sent, and what is made of it."""


class ModelOptions(Model):
    """How a file is read, and the loss that its graph gets; see `weft_graph.losses.with_loss` for the latter."""

    parameters: list[str] = Field(default_factory=list)
    constants: list[str] = Field(default_factory=list)
    untrained: list[str] = Field(default_factory=list)
    frozen: list[str] = Field(default_factory=list)
    shapes: dict[str, list[int | str]] = Field(default_factory=dict)
    training: bool = True
    batch: str = ""
    loss: str = ""
    output: str = ""
    target: str = ""
    classes_axis: int | None = None
    ignore_index: int | None = None
    metrics: list[str] = Field(default_factory=list)


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
    options: ModelOptions
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
