"""A PyTorch module run on an example without randomness, forward and backward, and what of it no graph repeats.

Dropout passes its input on, samples are fixed. The loss is the sum of all outputs, times numbers that are drawn once,
so that each gradient takes part.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.errors import ModuleRefusedError
from weft.records import Array
from weft.torch_errors import chain, said
from weft.torch_takeover import DROPOUTS, NO_ASSIGNMENT, drop_path_of

_LARGE: Final = 1 << 22
"""Numbers in parameters and inputs. With more of them two samples are enough: weft's kernels for here and now are
several times slower than PyTorch's."""
_LOUDER: Final = 1e4
"""By which a loss is multiplied to see that gradients of a backward that somebody wrote grow alike."""
_SEED: Final = 5489
HALF: Final = 0.5
"""What every sample is: of a uniform distribution, and of a normal one, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Example:
    """The module with what it is fed."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def of(self, torch: Any, count: int) -> Example:
        """The same with so many samples: its first ones, again and again."""

        def resized(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.dim():
                return value
            return value.detach()[torch.arange(count) % value.shape[0]].requires_grad_(value.requires_grad)

        return Example(self.module, *torch.utils._pytree.tree_map(resized, (self.args, dict(self.kwargs))))

    def called(self, torch: Any) -> Any:
        """What the module gives for copies of the inputs, since it may write them."""

        def copied(value: Any) -> Any:
            return value.clone() if isinstance(value, torch.Tensor) else value

        args, kwargs = torch.utils._pytree.tree_map(copied, (self.args, dict(self.kwargs)))
        return self.module(*args, **kwargs)

    def tensors(self, torch: Any) -> list[Any]:
        leaves = torch.utils._pytree.tree_leaves((self.args, dict(self.kwargs)))
        return [each for each in leaves if isinstance(each, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class Run:
    """What PyTorch computes: outputs in order, gradients by parameter; None where autograd has none."""

    outputs: list[Any]
    gradients: dict[str, Array | None]
    own_backward: str | None
    """The name of a `torch.autograd.Function` that somebody wrote, if one takes part."""
    draws: list[str]
    """The functions that draw, without dropout."""
    names: list[str]
    """Of the outputs, where they are a mapping."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What the module did on the `whole` example, or on two samples of it where it is large."""

    whole: Example
    example: Example
    samples: int
    """Of the whole example; 1 where its inputs have no batch."""
    run: Run
    changed: list[str]
    """Buffers that forward has changed."""
    state: list[str]
    """A sentence for each attribute that forward has changed."""
    warnings: list[str]
    seconds: float
    """What it took."""

    @property
    def names(self) -> list[str]:
        return self.run.names


def run(torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, has_batch: bool) -> Ran:
    """Runs the module, forward and backward, without randomness. `has_batch`: all inputs begin with the batch.

    Raises ModuleRefusedError for what no graph repeats.
    """
    started = time.perf_counter()
    whole = example = Example(module, args, kwargs)
    tensors = whole.tensors(torch)
    samples = next((each.shape[0] for each in tensors if each.dim()), 1) if has_batch else 1
    size = sum(each.numel() for each in (*module.parameters(), *tensors))
    if size > _LARGE and samples > 2:
        example = whole.of(torch, 2)
    before = _attributes(torch, module)
    with (
        _drawing() as is_drawn,
        torch.random.fork_rng(devices=[]),
        kept_buffers(module) as changed_buffers,
        _padded_encoders(torch, module) as padded,
    ):
        torch.manual_seed(_SEED)
        found = run_once(torch, example)
        changed = changed_buffers()
        is_seeded = torch.initial_seed() != _SEED
        refused = is_seeded or is_drawn()
    if refused:
        raise ModuleRefusedError(
            "forward sets a seed, or draws from Python's random or from numpy.random, which a graph would repeat as it "
            "is; draw from torch (torch.rand, Dropout), or leave it out"
            + (". Or another thread set one meanwhile: have it wait" if threading.active_count() > 1 else "")
        )
    after = _attributes(torch, module)
    state = [
        f"forward changes {name!r}, which the module keeps for its next call; the graph has it as it is now"
        for name, value in after.items()
        if name in before and before[name] is not value and before[name] != value
    ]
    warnings = [
        "a TransformerEncoder has enable_nested_tensor on and is given src_key_padding_mask: PyTorch's eval() gives 0 "
        "where it masks, weft's evaluation what training gives"
    ]
    seconds = time.perf_counter() - started
    return Ran(whole, example, samples, found, changed, state, [*state, *(warnings if padded else [])], seconds)


def _attributes(torch: Any, module: Any) -> dict[str, Any]:
    """Numbers, and the identities of tensors, among the attributes of all modules."""
    return {
        f"{name}.{key}".lstrip("."): id(value) if isinstance(value, torch.Tensor | tuple) else value
        for name, each in module.named_modules()
        for key, value in vars(each).items()
        if (value is None or isinstance(value, int | float | tuple | torch.Tensor)) and key != "training"
    }


@contextmanager
def _padded_encoders(torch: Any, module: Any) -> Iterator[list[Any]]:
    """Gathers encoders that are given a mask of padding while the module runs, and write 0 there in eval()."""
    found: list[Any] = []

    def look(encoder: Any, args: Any, kwargs: Any) -> None:
        if encoder.use_nested_tensor and (len(args) > 2 or kwargs.get("src_key_padding_mask") is not None):
            found.append(encoder)

    handles = [
        each.register_forward_pre_hook(look, with_kwargs=True)
        for each in module.modules()
        if isinstance(each, torch.nn.TransformerEncoder)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


_RLOCK: Final = type(threading.RLock())
_DRAWS: Final = frozenset({"random", "getrandbits", "seed"})
"""What all functions of Python's `random` call."""


@contextmanager
def _drawing() -> Iterator[Callable[[], bool]]:
    """Whether this thread has drawn from the generators of Python and NumPy that all threads share, or has seeded them.
    Other threads that draw from NumPy's wait meanwhile."""
    generator, drawn = getattr(random.random, "__self__", None), []

    def look(_frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__self__", None) is generator and function.__name__ in _DRAWS:
            drawn.append(function)

    numbers: Any = np.random  # Its stubs lack a function.
    lock, profile = numbers.get_bit_generator().lock, sys.getprofile()
    with lock if isinstance(lock, _RLOCK) else nullcontext():  # Earlier releases of NumPy have one that cannot be held.
        before = _numpy_state()
        sys.setprofile(look)
        try:
            yield lambda: bool(drawn) or before != _numpy_state()
        finally:
            sys.setprofile(profile)


def _numpy_state() -> tuple[bytes, int, int]:
    state: Any = np.random.get_state(legacy=False)
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]


def run_once(torch: Any, example: Example, *, nudge: float = 0.0) -> Run:
    named = {name: each for name, each in example.module.named_parameters() if each.requires_grad}
    with (
        torch.enable_grad(),
        without_randomness(torch, example.module) as draws,
        _nudged(torch, named, nudge),
        refusing(),
    ):
        whole = example.called(torch)
        outputs = tensors_of(torch, whole)
        parts = [
            (output * torch.from_numpy(weights_of(place, tuple(output.shape))).to(output)).sum()
            for place, output in enumerate(outputs)
            if output.is_floating_point() and output.requires_grad
        ]
        if not parts:
            raise ModuleRefusedError("no output of the module depends on a parameter that requires a gradient")
        loss = sum(parts)
        own_backward = _own_backward(torch, loss)
        found = torch.autograd.grad(
            loss, list(named.values()), allow_unused=True, retain_graph=own_backward is not None
        )
        if own_backward is not None:
            louder = torch.autograd.grad(_LOUDER * loss, list(named.values()), allow_unused=True)
            _check_growth(torch, own_backward, found, louder)
    gradients = {name: None if each is None else array_of(torch, each) for name, each in zip(named, found, strict=True)}
    return Run(
        [array_of(torch, output).copy() for output in outputs], gradients, own_backward, draws, _keys(torch, whole)
    )


_NO_ROW: Final = "an id is not one of an embedding's rows: correct the data, or give the embedding more rows"
IDS_WANTED: Final = "scalar types: Long, Int"
"""What PyTorch says of floats where an embedding takes ids."""
OTHER_DTYPE: Final = (
    "an input's dtype is not the module's: save its column with .astype('float32'), or .astype('int64') for ids"
)
_REMEDIES: Final = {
    **dict.fromkeys(
        ("index out of range in self", "Expected i < index_size", "which is not in the valid range ["), _NO_ROW
    ),
    **dict.fromkeys(
        ("must have the same dtype", IDS_WANTED, "expected scalar type", "should be the same"),
        OTHER_DTYPE,
    ),
    **dict.fromkeys(
        (
            "shapes cannot be multiplied",
            "size mismatch",
            "channels, but got",
            "must match the size of tensor",
            "Sizes of tensors must match",
            "is invalid for input of size",
            "running_mean should contain",
            "normalized_shape=",
            "input.size(-1) must be equal to input_size",
        ),
        "shapes do not fit: correct the module's layers, or give it inputs of the shape that its first layer takes",
    ),
    **dict.fromkeys(
        ("Expected hidden size", "Expected hidden[0] size", "Expected hidden[1] size"),
        "the state that a recurrent layer starts from has another shape: leave it out, which is zeros, or make it of "
        "the input's batch, such as x.new_zeros(layers, x.shape[0], hidden_size)",
    ),
    "expected target dtype to be Long": "labels are numbers of classes: save their column with .astype('int64')",
    "is out of bounds.": "a label is not one of the classes: correct the data, or give the module more outputs",
}
"""What PyTorch says -> what helps. Of an id that is no row, an Embedding has one sentence, an EmbeddingBag two."""


UNVERIFIED: Final = "weft.from_torch(module, example, verify=False) skips that, and weft.fit takes the model it returns"


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what a module raises, which may be anything, into a ModuleRefusedError."""
    try:
        yield
    except ModuleRefusedError:
        raise
    except Exception as error:  # noqa: BLE001
        remedies = (remedy for told, remedy in _REMEDIES.items() if told in str(error))
        remedy = next(remedies, UNVERIFIED)
        raise ModuleRefusedError(
            f"the module could not be run for the comparison: {said(error)}; {remedy}",
            reason=chain(error),
        ) from None


def _own_backward(torch: Any, loss: Any) -> str | None:
    """The name of a `torch.autograd.Function` that somebody wrote, if one takes part."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return str(node.name()).removesuffix("Backward")
        waiting.extend(following for following, _ in node.next_functions)
    return None


def _check_growth(torch: Any, function: str, found: Sequence[Any], louder: Sequence[Any]) -> None:
    """Raises ModuleRefusedError where gradients do not grow as the loss does: their backward clips, or rounds."""
    for gradient, loud in zip(found, louder, strict=True):
        if gradient is None or loud is None:
            continue
        own = gradient.to_dense().double()
        apart = loud.to_dense().double() / _LOUDER - own
        if not bool(torch.linalg.vector_norm(apart) <= 1e-2 * torch.linalg.vector_norm(own)):
            raise ModuleRefusedError(
                f"the backward of {function}, a torch.autograd.Function, changes gradients by their size, and only "
                "what it computes forward is exported; clip by the optimizer's clipping, or leave it out"
            )


def tensors_of(torch: Any, outputs: Any) -> list[Any]:
    """Each tensor once, as a graph has its outputs."""
    found = [each for each in torch.utils._pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor)]
    return list({id(each): each for each in found}.values())


def _keys(torch: Any, outputs: Any) -> list[str]:
    """The keys of a mapping whose values are tensors, each another one."""
    if not isinstance(outputs, Mapping) or not all(isinstance(each, torch.Tensor) for each in outputs.values()):
        return []
    is_plain = all(isinstance(key, str) and key.isidentifier() for key in outputs)
    return list(outputs) if is_plain and len({id(each) for each in outputs.values()}) == len(outputs) else []


def array_of(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.dtype in {torch.bfloat16, torch.float16}:
        tensor = tensor.float()
    array: Array = tensor.cpu().numpy()
    return array


def weights_of(place: int, shape: tuple[int, ...]) -> Array:
    """Numbers by which an output counts in the loss, of norm 1 in the mean."""
    drawn = np.random.default_rng(place).standard_normal(shape, dtype=np.float32)
    return np.asarray(1 + drawn if not shape else drawn / np.float32(np.sqrt(max(drawn.size, 1))))


@contextmanager
def _nudged(torch: Any, named: Mapping[str, Any], nudge: float) -> Iterator[None]:
    if not nudge:
        yield
        return
    kept = {name: each.detach().clone() for name, each in named.items()}
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for each in named.values():
                noise = torch.randn(each.shape, generator=generator).to(each)
                each.mul_(1 + nudge * torch.finfo(each.dtype).eps * noise)
        yield
    finally:
        with torch.no_grad():
            for name, each in named.items():
                each.copy_(kept[name])


@contextmanager
def kept_buffers(module: Any) -> Iterator[Callable[[], list[str]]]:
    """Puts buffers back; what it gives lists those that were changed."""
    kept = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}

    def changed() -> list[str]:
        now = dict(module.named_buffers())
        return [name for name, old in kept.items() if name in now and not _same(now[name], old)]

    try:
        yield changed
    finally:
        for name, buffer in module.named_buffers():
            if name in kept and not _same(buffer, kept[name]):
                buffer.detach().copy_(kept[name])


def _same(left: Any, right: Any) -> bool:
    return left.shape == right.shape and bool(((left == right) | (left.isnan() & right.isnan())).all())


@contextmanager
def without_randomness(torch: Any, module: Any, *, is_training: bool = True) -> Iterator[list[str]]:
    """Switches randomness off: dropout passes its input on, and samples are fixed. What is given lists what drew.

    Raises ModuleRefusedError within `forward` for hooks on gradients, and for dropout that stays on in evaluation.
    """
    functional = torch.nn.functional
    hooks = {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}
    passing = {getattr(functional, name) for name in DROPOUTS if hasattr(functional, name)}
    passing |= {getattr(torch, name) for name in DROPOUTS if hasattr(torch, name)}

    class Passing(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if function == torch.Tensor.data.__set__:
                raise ModuleRefusedError(NO_ASSIGNMENT)
            if function in hooks:
                raise ModuleRefusedError(_NO_HOOKS.format("a tensor in forward"))
            if function in passing:
                given = {**dict(zip(("input", "p", "training"), args)), **kwargs}  # noqa: B905
                is_on = given.get("training", given.get("train", "alpha" not in function.__name__))
                if not is_training and is_on and given.get("p", 0.5):
                    raise ModuleRefusedError(_STAYS_ON.format(f"{function.__name__}()"))
                return given["input"]
            if function is functional.scaled_dot_product_attention:
                rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
                if rate and not is_training:
                    raise ModuleRefusedError(_STAYS_ON.format("the dropout_p of scaled_dot_product_attention()"))
                args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**kwargs, "dropout_p": 0.0}
                if len(args) > 4:
                    del kwargs["dropout_p"]
            return function(*args, **kwargs)

    class Fixed(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function._schema.name.removeprefix("aten::")
            fixed = _SAMPLES.get(name) or _SAMPLES.get(name.removesuffix("_"))
            if fixed is None:
                return function(*args, **(kwargs or {}))
            draws.append(name)
            made = args[0] if name.endswith("_") else function(*args, **(kwargs or {}))
            value = fixed(torch, args, kwargs or {})
            return made.copy_(value) if isinstance(value, torch.Tensor) else made.fill_(value)

    draws: list[str] = []
    rates = [(each, each.dropout) for each in module.modules() if isinstance(getattr(each, "dropout", None), float)]
    rates = rates if is_training else []
    try:
        for each, _ in rates:
            each.dropout = 0.0
        with _without_drop_paths(torch, module), Passing(), Fixed():
            yield draws
    finally:
        for each, rate in rates:
            each.dropout = rate


_NO_HOOKS: Final = (
    "a hook on gradients is registered on {}, and a graph has none: clip by the optimizer's clipping, scale by "
    "x * s + (x * (1 - s)).detach(), or leave the hook out"
)
_STAYS_ON: Final = (
    "{} drops also in eval(), and weft switches dropout off where a model is evaluated: give it training=self.training"
)


def check_hooks(torch: Any, module: Any) -> None:
    """Raises ModuleRefusedError, naming the module or the parameter, for hooks on gradients."""
    for name, each in module.named_modules():
        if each._backward_hooks or each._backward_pre_hooks:
            raise ModuleRefusedError(_NO_HOOKS.format(f"module {name!r}" if name else "the module"))
    for name, each in module.named_parameters():
        if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None):
            raise ModuleRefusedError(_NO_HOOKS.format(f"parameter {name!r}"))


@contextmanager
def _without_drop_paths(torch: Any, module: Any) -> Iterator[None]:
    """Modules that drop whole paths stay in evaluation, in which they pass their input on."""
    held = [each for each in module.modules() if drop_path_of(torch, each) is not None]
    for each in held:
        each.training = False
    try:
        yield
    finally:
        for each in held:
            each.training = True


def _bernoulli(torch: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    rate = kwargs.get("p", args[1] if len(args) > 1 else args[0])
    return (rate > HALF).to(args[0].dtype) if isinstance(rate, torch.Tensor) else float(rate > HALF)


def _uniform(_torch: Any, args: Any, kwargs: Mapping[str, Any]) -> float:
    low = kwargs.get("from", args[1] if len(args) > 1 else 0.0)
    high = kwargs.get("to", args[2] if len(args) > 2 else 1.0)
    return float(low + (high - low) * HALF)


def _normal(_torch: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    mean, std, *_ = (*args, 0.0, 1.0) if not args else (*args, 1.0)
    return kwargs.get("mean", mean) + kwargs.get("std", std) * HALF


_SAMPLES: Final[Mapping[str, Callable[[Any, Any, Mapping[str, Any]], Any]]] = {
    "rand": lambda *_: HALF,
    "rand_like": lambda *_: HALF,
    "randn": lambda *_: HALF,
    "randn_like": lambda *_: HALF,
    "uniform": _uniform,
    "normal": _normal,
    "normal_": lambda torch, args, kwargs: _normal(torch, args[1:], kwargs),
    "bernoulli": _bernoulli,
    "exponential": lambda *_: float(-np.log(HALF)),
}
"""ATen's functions that draw, without the `_` of those in place."""
