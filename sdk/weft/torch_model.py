"""`weft.from_torch`: a model from a PyTorch module. Only who calls it needs PyTorch.

The module is exported (`torch_takeover` says what the exporter has no word for), read as any ONNX file is, and compared
with what PyTorch computes (`torch_proof`).
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final

from weft.errors import ArgumentError, MissingPackageError, ModuleRefusedError, WeftError
from weft.model import Model
from weft.onnx_model import Patterns, from_onnx, listed
from weft.onnx_package import onnx_form
from weft.torch_proof import Example, prove
from weft.torch_takeover import check_modules, taken_over
from weft_graph.errors import GraphError

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
    lazy: Patterns = (),
    training: bool = True,
    verify: bool = True,
    opset: int | None = None,
) -> Model:
    """The model that the module computes for inputs like `example`: a tensor, a tuple of them, or a mapping by name.

    The first dimension of every input is the batch, of any size, unless `dynamic` is False; `dynamic` may also be what
    `torch.export` takes as `dynamic_shapes`. A module in `train()` is exported as it is, with what it holds in
    `eval()`; one in `eval()` is switched to training whole. It is as it was afterwards. Parameters that do not require
    a gradient are kept as they are; buffers are constants, but for running statistics. Embeddings with `sparse=True`
    are updated lazily, at the rows that a step reads, as by `SparseAdam`; others as PyTorch's optimizers do it.

    With `verify` the module runs on the example, forward and backward, and its outputs and gradients are compared with
    the graph's, by parameter; a line on standard error says what was compared. The other options are those of
    `from_onnx`; `frozen` and its like are patterns of the module's own names.

    Raises ModuleRefusedError for a module that cannot be exported, or whose graph would train or evaluate otherwise,
    MissingPackageError where PyTorch or its exporter is not installed, OnnxError and its kin for what weft cannot take.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"module is a torch.nn.Module, not {type(module).__name__}")
    args, kwargs = _apart(torch, *_arguments(torch, example))
    shapes = _shapes(torch, module, dynamic, args, kwargs)
    names = {key: list(value) for key, value in (("input_names", input_names), ("output_names", output_names)) if value}
    if verify:
        check_modules(torch, module)
    with _in_training(module, training):
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
        trained = listed("parameters", parameters)
        idle = {name for name, value in module.named_parameters(remove_duplicate=False) if not value.requires_grad}
        model = _without_gradient(model, {name for name in idle if not _matches(name, trained)})
        # A Dropout that is not in the graph has a rate of 0, or is held in eval(): the module is exported as it trains.
        moot = onnx_form("weft_graph.onnx_form.torch_export").folded(proto.graph.node)
        model = replace(model, warnings=(*(each for each in model.warnings if each not in moot), *said))
        if verify and training:
            chosen = [
                name for each in (parameters, constants, untrained, frozen) for name in listed("parameters", each)
            ]
            try:
                made = Example(module, args, kwargs, _feeds(torch, program, model, args, kwargs))
                proof = prove(torch, made, model.graph, model.values, lambda name: _matches(name, chosen))
            except (WeftError, GraphError):
                raise
            except Exception as error:  # noqa: BLE001  # a module raises what it likes
                raise ModuleRefusedError(
                    f"the module could not be run for the comparison: {_said(error)}; verify=False skips that",
                    reason=_chain(error),
                ) from None
            sys.stderr.write(f"weft: {proof}\n")
            model = replace(model, proof=proof)
    return model


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
    """A tensor that is given twice is two inputs; the exporter would make one of them."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.clone()

    return tuple(own(value) for value in args), {name: own(value) for name, value in kwargs.items()}


def _feeds(torch: Any, program: Any, model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The example's arrays by the graph's inputs. Raises ModuleRefusedError."""
    given = getattr(getattr(program, "exported_program", None), "example_inputs", None) or (args, kwargs)
    tensors = [each for each in torch.utils._pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]
    names = [input_.name for input_ in model.graph.inputs]
    if len(tensors) != len(names):
        raise ModuleRefusedError(
            f"the example has {len(tensors)} tensors and the graph {len(names)} inputs ({', '.join(names)}), so they "
            "cannot be compared; verify=False skips that"
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
    for name, value in (*((f"example[{place}]", each) for place, each in enumerate(args)), *kwargs.items()):
        if isinstance(value, torch.Tensor) and value.dim():
            sizes.setdefault(value.shape[0], name)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] < 2:
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
    if kwargs:
        return {name: first(value) for name, value in kwargs.items()}
    firsts = [first(value) for value in args]
    named = _before_others(module)
    return tuple(firsts) if named is None else (*firsts[:named], tuple(firsts[named:]))


def _before_others(module: Any) -> int | None:
    """How many arguments `forward` names before its `*args`, which the exporter takes as one; None without these."""
    try:
        kinds = [each.kind for each in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        return None
    return kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else None


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
                    args,
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
            refused = _cause(error, ModuleRefusedError)
            if refused is not None:
                raise ModuleRefusedError(str(refused)) from None
            failure = failure or error
    assert failure is not None
    raise ModuleRefusedError(_refusal(failure), reason=_chain(failure)) from None


@contextmanager
def _one_voice() -> Iterator[list[str]]:
    """Gathers the exporter's warnings, of Python's two kinds, into one sentence."""
    sentences: list[str] = []
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what goes wrong is in the exception, too
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield sentences
    finally:
        logging.disable(disabled)
    told = dict.fromkeys(str(each.message).strip().partition("\n")[0] for each in caught if _concerns(each))
    if told:
        first = next(iter(told))
        others = f", and {len(told) - 1} others" if len(told) > 1 else ""
        sentences.append(f"PyTorch's exporter warned: {first[:200]}{others}")


def _concerns(warning: warnings.WarningMessage) -> bool:
    """Whether the warning is a user's to act on: not that the module trains, nor what PyTorch says of itself."""
    if issubclass(warning.category, DeprecationWarning | FutureWarning | PendingDeprecationWarning):
        return False
    text = str(warning.message)
    return not any(part in text for part in ("in training mode", "torch.jit", "_pytree", "The axis name"))


_REMEDIES: Final = (
    (
        r"FakeTensor",
        "a tensor is read by .data, or made in forward: use .detach(), or register it as a buffer",
    ),
    (
        r"DynamicCache|past_key_values|EncoderDecoderCache|Cache\b",
        "call the model with use_cache=False, in a module whose forward returns tensors",
    ),
    (
        r"grouped_mm|experts|[Mm]oe\b",
        'for a mixture of experts of transformers: model.set_experts_implementation("batched_mm")',
    ),
    (
        r"masking_utils|sdpa_mask|vmap",
        'build the model with attn_implementation="eager": its masks are computed in a way that cannot be exported',
    ),
    (
        r"GuardOnDataDependent|data-dependent|Could not guard|unbacked|\bu\d+\b",
        "what is computed, or its size, depends on values: write it with torch.where and masks, for all samples alike",
    ),
    (
        r"Constraints violated|[Ss]pecializ|dynamic_shapes|dynamic shapes|Not all values of|mark_dynamic",
        "the batch cannot have any size: pass dynamic=False, or what torch.export takes as dynamic_shapes",
    ),
    (
        r"No ONNX function|DispatchError|No decompositions|not supported|ConversionError|NotImplementedError",
        "one of its operators has no form in ONNX: write it with others",
    ),
)
"""What the exporter says -> what helps."""


def _refusal(error: Exception) -> str:
    """One sentence of the exporter's, and the remedy."""
    whole = _chain(error)
    operator = re.search(r"No ONNX function found for <OpOverload\(op='([\w.]+)'", whole)
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, whole)), "")
    said = f"no ONNX form of {operator[1]}" if operator else _said(error)
    ends = f". {remedy[0].upper()}{remedy[1:]}" if remedy else ""
    return f"PyTorch cannot export the module: {said}{ends}. `reason` of this error has all that the exporter said"


def _said(error: Exception) -> str:
    """The innermost exception in its own words, a line of them."""
    inner: BaseException = error
    while (inner.__cause__ or inner.__context__) is not None:
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(("-", "#", "⬆", "<", "*"))), "")
    return f"{type(inner).__name__}: {first[:240]}" if first else type(inner).__name__


def _chain(error: BaseException) -> str:
    """All that an exception and its causes say."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 16:
        frames = seen.__traceback__
        files = []
        while frames is not None:
            files.append(frames.tb_frame.f_code.co_filename.rpartition("/")[2])
            frames = frames.tb_next
        parts.append(f"{type(seen).__name__}: {seen}\n(in {', '.join(dict.fromkeys(files))})")
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The exception of that kind behind another."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, kind):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


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
