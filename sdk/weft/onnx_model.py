"""`weft.from_onnx`: a model from an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.api.optimizer import OptimizerSpec, optimizer_of
from weft.arguments import checked
from weft.errors import ArgumentError
from weft.model import Model
from weft.onnx_package import onnx_form

if TYPE_CHECKING:
    from onnx import ModelProto

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
    """Read an ONNX model: a path, bytes, or a `ModelProto`. External data beside the file is read too.

    Float initializers that lead to an output become parameters. Patterns such as `encoder.*` override this:
    `parameters` train, `constants` become part of the graph, `untrained` are kept as parameters that do not train.
    `frozen` parameters do not train, and `frozen` nodes stay in inference mode. `training` switches all other
    BatchNormalization and Dropout to training mode; a model's own optimizer becomes `Model.optimizer`. `lazy` tables
    update only the rows that a step reads. `verify` rejects a file that is known to train differently from the PyTorch
    module it came from. `batch` names the batch dimension; `shapes` replaces shapes of inputs, and `sequences` gives
    the lengths of sequence inputs.

    Raises OnnxError and its kin, which name the node or value, ArgumentError, and MissingPackageError where `onnx` is
    not installed.
    """
    check_source(source)
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
    with checked("the file's optimizer"):
        return optimizer_of(step.rule, step.hyper)


def _read(source: Any, options: Any) -> Any:
    files = onnx_form("weft_graph.onnx_form.files")
    if isinstance(source, bytes | bytearray | memoryview):
        return files.read_bytes(bytes(source), options)
    if isinstance(source, str | os.PathLike):
        return files.read_file(os.fspath(source), options)
    return onnx_form("weft_graph.onnx_form.reader").read_model(source, options)


def check_source(source: Any) -> None:
    """Raises ArgumentError for what is no ONNX model."""
    is_known = isinstance(source, bytes | bytearray | memoryview | str | os.PathLike)
    # Of the class too: a ModelProto that nobody has made is none.
    if not is_known and (isinstance(source, type) or not hasattr(source, "SerializeToString")):
        raise ArgumentError(
            f"a model is a path, bytes or an onnx.ModelProto, not {no_model(source)}; a PyTorch model is a "
            "torch.nn.Module, which weft.fit and weft.from_torch take"
        )


def no_model(given: Any) -> str:
    """What somebody gives in the place of a model, and what to give."""
    if isinstance(given, type):
        return f"the class {given.__name__}: make one of it, {given.__name__}(...)"
    if isinstance(given, Mapping):
        return f"{type(given).__name__}: values alone are no model, give the module that they are of"
    return type(given).__name__


def listed(argument: str, given: Patterns) -> tuple[str, ...]:
    """One pattern may stand for a list of one. Raises ArgumentError."""
    listed = (given,) if isinstance(given, str) else tuple(given)
    for each in listed:
        if not isinstance(each, str) or not each:
            raise ArgumentError(f"{argument} has {each!r}; a pattern is text such as 'encoder.*'")
    return listed
