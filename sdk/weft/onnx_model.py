"""`weft.from_onnx`: a model from an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import ArgumentError
from weft.model import Model
from weft.onnx_package import onnx_form
from weft.optimizers import BY_NAME

if TYPE_CHECKING:
    from onnx import ModelProto

    from weft.api.optimizer import OptimizerSpec
    from weft_graph.onnx_form.errors import TrainingStep

Patterns = str | Sequence[str]


def from_onnx(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    parameters: Patterns = (),
    constants: Patterns = (),
    untrained: Patterns = (),
    frozen: Patterns = (),
    lazy: Patterns = (),
    training: bool = True,
    verify: bool = True,
    batch: str | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    sequences: Mapping[str, int | None] | None = None,
) -> Model:
    """The model in a file, in its bytes or in a `ModelProto`; elements in files beside it are read from there.

    Floats that lead to an output become parameters. Patterns such as `encoder.*` say otherwise: `parameters` train,
    `constants` become part of the graph, `untrained` are kept by the store, whatever they are read for. Parameters that
    are `frozen` do not train, and nodes that are stay in inference; all other BatchNormalization and Dropout is
    switched to training by `training`, and a model's own optimizer becomes `Model.optimizer`. Tables that are `lazy`
    keep rows that a step does not read as they are, others do to them what a gradient of zeros does. A file that is
    known to train otherwise than the PyTorch module that it was written from is refused unless `verify` is off. `batch`
    is what the file calls the dimension of the samples; `shapes` are inputs' shapes in the place of the file's,
    `sequences` the lengths of inputs that are sequences.

    Raises OnnxError and its kin, which name the node or value, ArgumentError, and MissingPackageError where `onnx` is
    not installed.
    """
    options = onnx_form("weft_graph.onnx_form.errors").ReadOptions(
        parameters=listed("parameters", parameters),
        constants=listed("constants", constants),
        untrained=listed("untrained", untrained),
        frozen=listed("frozen", frozen),
        lazy=listed("lazy", lazy),
        verify=verify,
        training=training,
        batch=batch or "",
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        sequences=dict(sequences or {}),
    )
    read = _read(source, options)
    return Model(read.graph, read.values, read.warnings, read.sequences, _optimizer(read.step), reasons=read.reasons)


def _optimizer(step: TrainingStep | None) -> OptimizerSpec | None:
    """What the file's own optimizer is here; a rate that is fed at each step is the rule's default.

    Raises ArgumentError for a number that the rule does not take.
    """
    if step is None:
        return None
    return BY_NAME[step.rule](**step.hyper)


def _read(source: Any, options: Any) -> Any:
    files = onnx_form("weft_graph.onnx_form.files")
    if isinstance(source, bytes | bytearray | memoryview):
        return files.read_bytes(bytes(source), options)
    if isinstance(source, str | os.PathLike):
        return files.read_file(os.fspath(source), options)
    if hasattr(source, "SerializeToString"):
        return onnx_form("weft_graph.onnx_form.reader").read_model(source, options)
    raise ArgumentError(f"a model is a path, bytes or an onnx.ModelProto, not {type(source).__name__}")


def listed(argument: str, given: Patterns) -> tuple[str, ...]:
    """One pattern may stand for a list of one. Raises ArgumentError."""
    listed = (given,) if isinstance(given, str) else tuple(given)
    for each in listed:
        if not isinstance(each, str) or not each:
            raise ArgumentError(f"{argument} has {each!r}; a pattern is text such as 'encoder.*'")
    return listed
