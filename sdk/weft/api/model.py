"""ONNX files over HTTP, for who has no SDK: `POST /v1/models` makes of one what `POST /v1/jobs` takes.

| Call | Answer | Problems beside 401 and 413 `too-large` |
|---|---|---|
| `POST /v1/models?loss=&...` | 201 `ReadModel` | 422 `model-refused`, 503 `too-many-models`, `too-many-uploads`, \
`no-process`, 507 `not-stored` |

The body is the file, or a zip archive of one `.onnx` file and the files beside it that have its elements; the query is
a `ReadRequest`. A job has the answer's `graph`, `loss`, `metrics` and `init_from`, its `optimizer` where that is not
null, and says its data and run length. The parameters' values are kept as an upload is, for some hours. The file is
read by a process of its own, with bounds on memory and time.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from weft.api.base import Identifier, Model
from weft.api.job import FromUpload, ParameterInfo
from weft.api.optimizer import OptimizerSpec

_MOST_PATTERNS = 256
_MOST_DIGITS = 16
"""Of a dimension; the graph's own limits are far below."""
_AXES = 16


def shape_of(text: str) -> tuple[str, tuple[int | str, ...]]:
    """`x:batch,3` as an input's name and its dimensions; `x:` is a single number. Raises ValueError."""
    name, colon, dims = text.rpartition(":")
    parts = dims.split(",") if dims else []
    if not colon or not name or not all(map(_is_dim, parts)):
        raise ValueError(f"{text[:200]!r} should be an input's name, a colon and dimensions: x:batch,3,224,224")
    return name, tuple(int(part) if part.isdecimal() else part for part in parts)


def _is_dim(text: str) -> bool:
    return text.isidentifier() or (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS)


def _checked_shape(text: str) -> str:
    shape_of(text)
    return text


Word = Annotated[str, Field(max_length=256)]
Patterns = Annotated[list[str], Field(max_length=_MOST_PATTERNS)]
ShapeText = Annotated[
    str,
    AfterValidator(_checked_shape),
    WithJsonSchema({"type": "string", "pattern": r"^.+:(([A-Za-z_]\w*|[0-9]{1,15})(,([A-Za-z_]\w*|[0-9]{1,15}))*)?$"}),
]


class ReadRequest(Model):
    """How a file is read, and the loss that its graph gets, as the query says it, where lists repeat their word."""

    loss: Patterns = Field(default_factory=list)
    """cross_entropy, mse, l1, bce_with_logits, log_loss and bce of probabilities, nll of log-probabilities, or an
    output that is the loss already; none where left out. Several are added up: 0.5*mse counts half."""
    output: Patterns = Field(default_factory=list)
    """The output that the loss compares, or a value inside the model; the only output where left out. Of several losses
    one for each, in their order."""
    target: Patterns = Field(default_factory=list)
    """The input that it is compared with, added where it is new: `labels`, or `target`, where left out. Of several
    losses one for each, in their order."""
    metric: Patterns = Field(default_factory=list)
    """accuracy, losses, or outputs that are single numbers."""
    classes_axis: int | None = Field(default=None, ge=-_AXES, le=_AXES)
    """Where the output has its classes, if not where `with_loss` looks for them."""
    ignore_index: int | None = Field(default=None, ge=-(1 << 53), le=1 << 53)
    """Targets of this number do not count."""
    parameter: Patterns = Field(default_factory=list)
    """Patterns of initializers that train."""
    constant: Patterns = Field(default_factory=list)
    """Patterns of initializers that are part of the graph."""
    untrained: Patterns = Field(default_factory=list)
    """Patterns of initializers that the store keeps and no rule changes."""
    frozen: Patterns = Field(default_factory=list)
    """Patterns of parameters that do not train and of nodes that stay in inference."""
    shape: Annotated[list[ShapeText], Field(max_length=_MOST_PATTERNS)] = Field(default_factory=list)
    """Inputs' shapes in the place of the file's, as x:batch,3,224,224."""
    batch: Word = ""
    """What the file calls the dimension of the samples."""
    training: bool = True
    """Whether BatchNormalization and Dropout are switched to training."""


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
    targets: list[str] = Field(default_factory=list)
    """The inputs that losses compare with."""
    init_from: FromUpload | None = None
    """What a job with this graph begins with; None where the graph has no parameter."""
    optimizer: OptimizerSpec | None = None
    """What the file trains it by, where it has its own optimizer."""
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    parameters: list[ParameterInfo]
    warnings: list[str]
