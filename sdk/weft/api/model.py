"""ONNX files over HTTP, for who has no SDK: `POST /v1/models` makes of one what `POST /v1/jobs` takes.

| Call | Answer | Problems beside 401 and 413 `too-large` |
|---|---|---|
| `POST /v1/models?loss=&...` | 201 `ReadModel` | 422 `model-refused`, 503 `too-many-models`, `too-many-uploads`, \
`model-not-read`, 507 `not-stored` |

The body is the file, or a zip archive of one `.onnx` file and the files beside it that have its elements. A job has the
answer's `graph`, `loss`, `metrics` and `init_from`, and says its data, rule and run length. The parameters' values are
kept as an upload is, for some hours. The file is read by a process of its own, with bounds on memory and time.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from weft.api.base import Identifier, Model
from weft.api.job import FromUpload, ParameterInfo


class ValueInfo(Model):
    """An input or output: its name and type. A dimension is a number or a name, such as `batch`."""

    name: str
    dtype: str
    shape: list[int | str]


class ReadModel(Model):
    """What a file was read as."""

    id: Identifier
    """The upload that has the parameters' values."""
    graph: dict[str, Any]
    """With its loss and metrics, where a loss was asked for; its outputs are those first, then the file's."""
    loss: str | None = None
    """The graph's output that is the loss."""
    metrics: dict[str, str] = Field(default_factory=dict)
    target: str | None = None
    """The input that the loss compares with."""
    init_from: FromUpload | None = None
    """What a job with this graph begins with; None where the graph has no parameter."""
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    parameters: list[ParameterInfo]
    warnings: list[str]
