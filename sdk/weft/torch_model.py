"""`weft.from_torch`: a model from a PyTorch module. Only who calls it needs PyTorch.

The module is exported (`torch_takeover` says what the exporter has no word for), read as any ONNX file is, and compared
with what PyTorch computes (`torch_proof`).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import random
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from weft.errors import ArgumentError, MissingPackageError, ModuleRefusedError
from weft.model import Model
from weft.onnx_model import Patterns, from_onnx, listed, no_model
from weft.onnx_package import onnx_form
from weft.torch_errors import cause, chain, refusal
from weft.torch_proof import prove
from weft.torch_run import UNVERIFIED, Run, check_hooks, run
from weft.torch_takeover import check_memory, check_modules, taken_over
from weft_graph.types import BATCH

INSTALL = "pip install torch onnx onnxscript"

_ONE_AT_A_TIME: Final = threading.RLock()
"""PyTorch's exporter, and the runs that are compared, change what is all threads': dropout, generators, output."""


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
    lazy: Patterns = (),
    training: bool = True,
    verify: bool = True,
    opset: int | None = None,
) -> Model:
    """Export a PyTorch module. `example` is an input: a tensor, a tuple of tensors, or a mapping by argument name.

    The first dimension of every input is the batch, of any size, unless `dynamic` is False: then the model is evaluated
    and exported with the example's, and no job trains it. `dynamic` may also be what `torch.export` takes as
    `dynamic_shapes`. In a module in `train()`, parts in `eval()` stay so; a module
    in `eval()` is switched to training. The module itself is not changed. Parameters without `requires_grad` do not
    train; buffers are constants, except running statistics. Embeddings with `sparse=True` update only the rows that a
    step reads, as `SparseAdam` does.

    With `verify` the module runs on the example, forward and backward, and outputs and each parameter's gradient are
    compared with the graph's; a line on standard error has the result. The other options are those of `from_onnx`;
    `frozen` and the like are patterns of the module's names.

    Raises ModuleRefusedError for a module that cannot be exported, or whose graph would train or evaluate otherwise,
    MissingPackageError where PyTorch or its exporter is not installed, OnnxError and its kin for what weft cannot take.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module is a torch.nn.Module, not {no_model(module)}")
    args, kwargs = _apart(torch, *_arguments(torch, example))
    shapes = _shapes(torch, module, dynamic, args, kwargs)
    if verify:
        check_modules(torch, module)
        check_memory(torch, module)
        check_hooks(torch, module)
    with _ONE_AT_A_TIME, _in_training(module, training), _kept_generators(torch):
        # Before the export: what forward keeps for later (a mask in a cache) is then made of numbers.
        with _kept_attributes(module):
            ran = run(torch, module, args, kwargs, has_batch=dynamic is True) if verify and training else None
        given = (("input_names", input_names), ("output_names", output_names or (ran.names if ran else ())))
        names = {key: list(value) for key, value in given if value}
        program, proto, said = _exported(
            torch, module, args, kwargs, {**names, "opset_version": opset, "dynamic_shapes": shapes}
        )
        model = from_onnx(
            proto,
            parameters=parameters,
            constants=constants,
            untrained=untrained,
            frozen=(*listed("frozen", frozen), *_held(proto)),
            lazy=lazy,
            training=training,
            verify=verify,
        )
        if dynamic is True:
            _check_batch(model)
        trained = listed("parameters", parameters)
        idle = {name for name, value in module.named_parameters(remove_duplicate=False) if not value.requires_grad}
        model = _without_gradient(model, {name for name in idle if not _matches(name, trained)})
        # A Dropout that is not in the graph has a rate of 0, or is held in eval(): the module is exported as it trains.
        moot = onnx_form("weft_graph.onnx_form.torch_checks").folded(proto.graph.node)
        model = replace(model, warnings=(*(each for each in model.warnings if each not in moot), *said))
        if ran is not None:
            chosen = [
                name for each in (parameters, constants, untrained, frozen) for name in listed("parameters", each)
            ]
            feeds = _feeds(torch, program, model, args, kwargs)
            proof = prove(torch, ran, feeds, model.graph, model.values, lambda name: _matches(name, chosen))
            sys.stderr.write(f"weft: {proof}\n")
            model = replace(model, proof=proof, warnings=(*model.warnings, *ran.warnings))
    return model


def try_out(module: Any, example: Any) -> Run:
    """What the module computes of the example, without an export, which takes far longer. Raises as `from_torch`."""
    torch = _torch()
    args, kwargs = _apart(torch, *_arguments(torch, example))
    with (
        _ONE_AT_A_TIME,
        _in_training(module, training=True),
        _kept_generators(torch),
        _kept_attributes(module),
    ):
        return run(torch, module, args, kwargs, has_batch=True).run


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _held(proto: Any) -> list[str]:
    """Names of the nodes of BatchNorm modules that are in `eval()`: the format says it of no node that was exported."""
    return [
        node.name
        for node in proto.graph.node
        if node.op_type == "BatchNormalization" and any("_no_training" in each.value for each in node.metadata_props)
    ]


def _without_gradient(model: Model, names: Collection[str]) -> Model:
    """The model in which these do not train."""
    kept = tuple(replace(each, trainable=each.trainable and each.name not in names) for each in model.graph.parameters)
    off = {each.name: "requires_grad is off" for each in kept if each.name in names}
    return replace(model, graph=replace(model.graph, parameters=kept), reasons={**model.reasons, **off})


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


def _apart(torch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies: forward may write its inputs, and of a tensor that is given twice the exporter would make one input."""

    def own(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, torch.Tensor) and value.layout is torch.strided else value

    apart: tuple[tuple[Any, ...], dict[str, Any]] = torch.utils._pytree.tree_map(own, (args, dict(kwargs)))
    return apart


def _feeds(torch: Any, program: Any, model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The example's arrays by the graph's inputs. Raises ModuleRefusedError."""
    given = getattr(getattr(program, "exported_program", None), "example_inputs", None) or (args, kwargs)
    tensors = [each for each in torch.utils._pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]
    names = [input_.name for input_ in model.graph.inputs]
    if len(tensors) != len(names):
        raise ModuleRefusedError(
            f"the example has {len(tensors)} tensors and the graph {len(names)} inputs ({', '.join(names)}), so they "
            f"cannot be compared; {UNVERIFIED}"
        )
    return {
        name: each.detach().cpu().numpy().astype(model.graph.inputs[place].type.dtype.numpy)
        if each.dtype is not torch.bfloat16
        else each.detach().float().cpu().numpy().astype(model.graph.inputs[place].type.dtype.numpy)
        for place, (name, each) in enumerate(zip(names, tensors, strict=True))
    }


def _shapes(torch: Any, module: Any, dynamic: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What `torch.export` calls dynamic shapes: the first dimension of every tensor is the batch."""
    if not isinstance(dynamic, bool):
        return dynamic
    if not dynamic:
        return None
    batch = torch.export.Dim("batch")

    def first(value: Any) -> Any:
        return {0: batch} if isinstance(value, torch.Tensor) and value.dim() else None

    sizes: dict[int, str] = {}
    paths, _ = torch.utils._pytree.tree_flatten_with_path((args, dict(kwargs)))
    for path, value in paths:
        if not isinstance(value, torch.Tensor) or not value.dim():
            continue
        by_place = torch.utils._pytree.keystr(path[1:])
        name = f"example{by_place}" if path[0].idx == 0 else str(path[1].key)
        sizes.setdefault(value.shape[0], name)
        if value.shape[0] < 2:
            raise ArgumentError(
                f"{name} has {value.shape[0]} samples; an example has two or more, or the exporter takes the batch for "
                "a number that never changes"
            )
    if len(sizes) > 1:
        (one, its), (two, other), *_ = sizes.items()
        raise ArgumentError(
            f"{its} has {one} samples and {other} has {two}; where inputs do not all begin with the batch, `dynamic` "
            'says which do, as torch.export does: dynamic={"x": {0: "batch"}, "table": None}'
        )
    firsts, by_name = torch.utils._pytree.tree_map(first, (args, dict(kwargs)))
    rest, names = _signature(module)  # to the exporter `*args` are one argument
    unnamed = sorted(kwargs.keys() - names) if names else []
    if unnamed:
        raise ArgumentError(
            f"forward does not name {unnamed[0]!r}, which the exporter asks for: put the module in one whose forward "
            f"names it, forward(self, {', '.join(kwargs)})"
        )
    if kwargs:
        return by_name
    return firsts if rest is None else (*firsts[:rest], tuple(firsts[rest:]))


def _check_batch(model: Model) -> None:
    """Raises ModuleRefusedError where the exporter has fixed the batch, which forward made a number."""
    for each in model.graph.inputs:
        if each.type.shape and each.type.shape[0] != BATCH:
            raise ModuleRefusedError(
                f"the batch of input {each.name!r} is fixed at {each.type.shape[0]} samples, the example's: forward "
                "makes a number of it, as len(x), int(x.shape[0]) and x.split(n) do, or an operator asks for it, as "
                "einsum of three and take_along_dim do. Write that otherwise, such as x.new_zeros(x.shape[0], 8) for "
                "zeros: batches of a job are of several sizes"
            )


def _signature(module: Any) -> tuple[int | None, set[str]]:
    """(how many arguments `forward` names before `*args`, None without these, all names)."""
    try:
        found = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return None, set()
    kinds = [each.kind for each in found.values()]
    rest = kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else None
    return rest, {name for name, each in found.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}


# --- Exporting -----------------------------------------------------------------------------------------------------


def _exported(
    torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, Any, list[str]]:
    """(what the exporter made, the same as a ModelProto, a sentence where it warned). Raises ModuleRefusedError.

    Some modules export without gradients alone (T5's and Swin's masks, weight_norm of old): that is tried second.
    """
    failure: Exception | None = None
    for has_gradients in (True, False):
        try:
            with torch.set_grad_enabled(has_gradients), taken_over(torch, module), _one_voice() as heard:
                program = torch.onnx.export(
                    module,
                    # A dictionary at the end would be taken for arguments by name.
                    (*args, {}) if args and isinstance(args[-1], dict) else args,
                    kwargs=dict(kwargs) or None,
                    **options,
                    dynamo=True,
                    optimize=False,  # it would fold what is to train
                    verbose=False,
                )
                proto = program.model_proto  # it is made when it is asked for
                if has_gradients:
                    key = onnx_form("weft_graph.onnx_form.own_metadata").TAKEN_OVER
                    proto.graph.metadata_props.add(key=key, value="true")
            return program, proto, heard
        except ModuleRefusedError:
            raise
        except Exception as error:  # noqa: BLE001  # the exporter raises whatever the module does
            refused = cause(error, ModuleRefusedError)
            if refused is not None:
                raise ModuleRefusedError(str(refused)) from None
            failure = failure or error
    assert failure is not None
    raise ModuleRefusedError(refusal(failure), reason=chain(failure)) from None


class _OfOthers:
    """A stream without what the thread that made this writes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _one_voice() -> Iterator[list[str]]:
    """Gathers the exporter's warnings, of Python's two kinds, into one sentence."""
    sentences: list[str] = []
    known = [*logging.root.manager.loggerDict.values()]
    loggers = [logging.root, *(each for each in known if isinstance(each, logging.Logger))]
    handlers = [handler for each in loggers for handler in each.handlers]
    handlers += [logging.lastResort] if logging.lastResort is not None else []
    mine = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != mine

    try:
        for handler in handlers:
            handler.addFilter(is_of_others)  # What goes wrong is in the exception, too.
        with (
            warnings.catch_warnings(record=True) as caught,
            redirect_stdout(_OfOthers(sys.stdout)),  # of what cannot be exported pages of graphs are printed
            redirect_stderr(_OfOthers(sys.stderr)),
        ):
            warnings.simplefilter("always")
            yield sentences
    finally:
        for handler in handlers:
            handler.removeFilter(is_of_others)
    told = dict.fromkeys(str(each.message).strip().partition("\n")[0] for each in caught if _concerns(each))
    if told:
        first = next(iter(told))
        others = f", and {len(told) - 1} others" if len(told) > 1 else ""
        sentences.append(f"PyTorch's exporter warned: {first[:200]}{others}")


def _concerns(warning: warnings.WarningMessage) -> bool:
    """Whether the warning is a user's to act on: not that the module trains, nor what PyTorch says of itself."""
    if issubclass(warning.category, DeprecationWarning | FutureWarning | PendingDeprecationWarning | ResourceWarning):
        return False
    text = str(warning.message)
    return not any(part in text for part in _MEANINGLESS)


_MEANINGLESS: Final = (
    "in training mode", "torch.jit", "_pytree", "The axis name", "_flat_weights", "different number of inputs",
    "side effects", "was assigned during export",
)  # fmt: skip


@contextmanager
def _kept_generators(torch: Any) -> Iterator[None]:
    """Random generators go on where they stood."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _kept_attributes(module: Any) -> Iterator[None]:
    kept = [(each, dict(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes in kept:
            vars(each).clear()
            vars(each).update(attributes)


@contextmanager
def _in_training(module: Any, training: bool) -> Iterator[None]:
    """Every module is afterwards as it was: its mode, since some may be held in inference, and what forward sets."""
    caches = [
        (value, value.copy())
        for each in module.modules()
        for name, value in vars(each).items()
        if type(value) in {dict, list, set} and not name.startswith("_")
    ]
    try:
        with _kept_attributes(module):
            if training and not module.training:
                module.train()
            elif not training:
                module.eval()
            yield
    finally:
        for value, before in caches:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
