"""`weft.from_torch`: a model from a PyTorch module. Only who calls it needs PyTorch."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from weft.errors import ArgumentError, MissingPackageError
from weft.model import Model
from weft.onnx_model import Patterns, from_onnx, listed

INSTALL = "pip install torch onnx onnxscript"


def from_torch(
    module: Any,
    example: Any,
    *,
    dynamic: bool | Mapping[str, Any] | Sequence[Any] = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    parameters: Patterns = (),
    constants: Patterns = (),
    untrained: Patterns = (),
    frozen: Patterns = (),
    training: bool = True,
    opset: int | None = None,
) -> Model:
    """The model that the module computes for inputs like `example`: a tensor, a tuple of them, or a mapping by name.

    The first dimension of every input is the batch, of any size, unless `dynamic` is False; `dynamic` may also be what
    `torch.export` takes as `dynamic_shapes`. The module is exported in training mode, and is as it was afterwards.
    Parameters that do not require a gradient are kept as they are; buffers are constants, but for running statistics.
    The other options are those of `from_onnx`; `frozen` and its like are patterns of the module's own names.

    Raises MissingPackageError where PyTorch or its exporter is not installed, OnnxError and its kin for what weft
    cannot take, and what PyTorch raises for what it cannot export.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module is a torch.nn.Module, not {type(module).__name__}")
    args, kwargs = _arguments(torch, example)
    names = {key: list(value) for key, value in (("input_names", input_names), ("output_names", output_names)) if value}
    with _in_training(module, training), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Exporting a model while it is in training mode")
        program = torch.onnx.export(
            module,
            args,
            kwargs=kwargs or None,
            **names,
            opset_version=opset,
            dynamo=True,
            optimize=False,  # it would fold what is to train
            dynamic_shapes=_shapes(torch, dynamic, args, kwargs),
            verbose=False,
        )
    idle = [name for name, value in module.named_parameters(remove_duplicate=False) if not value.requires_grad]
    model = from_onnx(
        program.model_proto,
        parameters=parameters,
        constants=constants,
        untrained=untrained,
        frozen=frozen,
        training=training,
    )
    trained = listed("parameters", parameters)
    return _without_gradient(model, {name for name in idle if not any(fnmatchcase(name, each) for each in trained)})


def _without_gradient(model: Model, names: Collection[str]) -> Model:
    """The model in which these do not train."""
    kept = tuple(replace(each, trainable=each.trainable and each.name not in names) for each in model.graph.parameters)
    return replace(model, graph=replace(model.graph, parameters=kept))


def _torch() -> Any:
    try:
        importlib.import_module("onnxscript")  # PyTorch's exporter asks for it late
        return importlib.import_module("torch")  # a user's package, no dependency of weft's
    except ImportError as error:
        raise MissingPackageError(f"from_torch needs the package {error.name}: {INSTALL}") from None


def _arguments(torch: Any, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(by place, by name). Raises ArgumentError."""
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list) and example:
        return tuple(example), {}
    raise ArgumentError(
        f"example is a tensor, a tuple of tensors, or a mapping from argument to tensor, not {type(example).__name__}"
    )


def _shapes(torch: Any, dynamic: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What `torch.export` calls dynamic shapes: the first dimension of every tensor is the batch."""
    if not isinstance(dynamic, bool):
        return dynamic
    if not dynamic:
        return None
    batch = torch.export.Dim("batch")

    def first(value: Any) -> Any:
        return {0: batch} if isinstance(value, torch.Tensor) and value.dim() else None

    for name, value in (*((f"example[{place}]", each) for place, each in enumerate(args)), *kwargs.items()):
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] < 2:
            raise ArgumentError(
                f"{name} has {value.shape[0]} samples; an example has two or more, or the exporter takes the batch for "
                "a number that never changes"
            )
    return {name: first(value) for name, value in kwargs.items()} if kwargs else tuple(first(value) for value in args)


@contextmanager
def _in_training(module: Any, training: bool) -> Iterator[None]:
    """Every module's own mode is put back, since some may be frozen in inference."""
    modes = [(each, each.training) for each in module.modules()]
    if training and not module.training:
        module.train()
    elif not training:
        module.eval()
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode
