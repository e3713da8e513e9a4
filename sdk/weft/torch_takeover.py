"""What PyTorch's exporter has no right word for, said in words that it has: active while a module is exported.

| In the module | Exported as |
|---|---|
| `torch.no_grad()` | what is computed in it, detached |
| Dropout1d to 3d, alpha dropout, classes named `DropPath` or `StochasticDepth` | products with Dropout of ones |
| `cross_entropy` of probabilities, or with `label_smoothing` | `log_softmax` and sums |
| `scatter_reduce`, `index_reduce` of a mean | sums over counts |
| `embedding_bag` | `embedding` and a sum, mean or maximum over its rows |
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from weft.errors import ModuleRefusedError

DROPOUTS: Final = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
"""Functions of `torch` and of `torch.nn.functional`."""
NO_ASSIGNMENT: Final = (
    "forward assigns .data of a tensor, and only the optimizer changes parameters: clip them there, or compute with "
    "the changed value"
)
_DROP_PATH: Final = re.compile(r"(DropPath|StochasticDepth)$")


@contextmanager
def taken_over(torch: Any, module: Any) -> Iterator[None]:
    """Calls of the module are rewritten as the table says; what has no words raises ModuleRefusedError in `forward`."""
    functional = torch.nn.functional
    rewrites = _Rewrites(torch).table()
    unstable = {torch.logcumsumexp, torch.Tensor.logcumsumexp, torch.special.log_ndtr}

    def detached(value: Any) -> Any:
        return value.detach() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Sees each call of PyTorch's functions before the exporter does."""

        within = False
        """Whether the module's forward runs with gradients, so that blocks without them are its own."""
        grad_is_off = False

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is torch._C._set_grad_enabled:  # what torch.no_grad() calls
                self.grad_is_off = self.within and not args[0]
                return function(*args, **kwargs)
            if function == torch.Tensor.data.__get__:  # the exporter crashes on it
                return args[0].detach()
            if function == torch.Tensor.data.__set__:
                raise ModuleRefusedError(NO_ASSIGNMENT)
            if getattr(function, "__name__", "") == "_pack_padded_sequence":
                raise ModuleRefusedError(
                    "packed sequences have no form in ONNX: give the RNN the padded ones, and mask its outputs, or "
                    "take outputs[arange, lengths - 1]. A backward direction then reads the padding"
                )
            if function in unstable:
                raise ModuleRefusedError(
                    f"{function.__name__} has no form in ONNX that bears large numbers: write it with logsumexp"
                )
            if function is functional.embedding:
                _check_embedding(args, kwargs)
            rewrite = rewrites.get(function)
            result = NotImplemented if rewrite is None else rewrite(*args, **kwargs)
            if result is NotImplemented:
                result = function(*args, **kwargs)
            return torch.utils._pytree.tree_map(detached, result) if self.grad_is_off else result

    with ExitStack() as stack:
        for each in module.modules():
            found = drop_path_of(torch, each)
            if found is not None:
                _replace_forward(stack, each, _drop_path(functional, each, *found))
        mode = Mode()
        whole = module.forward

        @functools.wraps(whole)
        def forward(*args: Any, **kwargs: Any) -> Any:
            mode.within = torch.is_grad_enabled()
            try:
                return whole(*args, **kwargs)
            finally:
                mode.within = mode.grad_is_off = False

        _replace_forward(stack, module, forward)
        _keep_recurrent_whole(torch)
        stack.enter_context(mode)
        yield


def _keep_recurrent_whole(torch: Any) -> None:
    """Recurrent calls are exported whole. After a first export PyTorch 2.13 cuts them into steps, whose number is then
    fixed: it has learned to call kernels in Python for them, which it forgets here."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        getattr(torch.ops.aten, name).input._dispatch_cache.clear()


def _check_embedding(args: Any, kwargs: Mapping[str, Any]) -> None:
    """Raises ModuleRefusedError for what changes weights or scales gradients."""
    given = dict(zip(("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"), args))  # noqa: B905
    given.update(kwargs)
    for option in ("max_norm", "scale_grad_by_freq"):
        if given.get(option):
            raise ModuleRefusedError(_NO_EMBEDDING[option])


_NO_EMBEDDING: Final = {
    "max_norm": "an embedding has max_norm, which changes its rows in forward; weft lets only the optimizer change "
    "parameters. Leave max_norm out",
    "scale_grad_by_freq": "an embedding has scale_grad_by_freq, which weft's gradients do not follow. Leave it out",
}


def check_modules(torch: Any, module: Any) -> None:
    """Raises ModuleRefusedError, naming the module and its option, for what cannot be taken over."""
    for name, each in module.named_modules():
        where = f"module {name!r} ({type(each).__name__})" if name else f"the module ({type(each).__name__})"
        if isinstance(each, torch.jit.ScriptModule):
            raise ModuleRefusedError(
                f"{where} is scripted, which cannot be exported: give the module that was scripted"
            )
        is_norm = isinstance(each, torch.nn.modules.batchnorm._BatchNorm)
        if is_norm and each.momentum is None and each.track_running_stats:
            raise ModuleRefusedError(
                f"{where} has momentum=None, an average of all steps, which weft does not keep: give it a momentum"
            )
        if isinstance(each, torch.nn.Dropout) and each.p == 1:
            raise ModuleRefusedError(f"{where} has p=1, so nothing behind it would train: leave it out")
        if not isinstance(each, torch.nn.Embedding | torch.nn.EmbeddingBag):
            continue
        for option in ("max_norm", "scale_grad_by_freq"):
            if getattr(each, option):
                raise ModuleRefusedError(f"{where} has {_NO_EMBEDDING[option].partition(' has ')[2]}")


def check_memory(torch: Any, module: Any) -> None:
    """Raises ModuleRefusedError for parameters that share memory and are not one: each would train by itself."""
    owned: dict[str, Any] = {}
    for name, each in module.named_parameters():
        if isinstance(each, torch.nn.parameter.UninitializedTensorMixin):
            raise ModuleRefusedError(f"parameter {name!r} has no shape yet: run the module once on the example before")
        owned[name] = each
    others = dict(module.named_buffers())
    for name, each in module.named_modules():
        held = {key: value for key, value in vars(each).items() if isinstance(value, torch.Tensor)}
        others.update({f"{name}.{key}".lstrip("."): value for key, value in held.items()})
    spans: list[tuple[int, int, str]] = []
    for name, each in (*owned.items(), *others.items()):
        if each.layout is torch.strided and each.numel() and each.grad_fn is None and each.device.type != "meta":
            spans.append((each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), name))
    for (_, stop, name), (start, _, other) in itertools.pairwise(sorted(spans)):
        if start < stop and (name in owned or other in owned):
            raise ModuleRefusedError(
                f"{name!r} and {other!r} share memory and are two tensors, which would train apart: assign the "
                "parameter itself (b.weight = a.weight), and compute what follows from it, as its transpose, in forward"
            )


def drop_path_of(torch: Any, module: Any) -> tuple[float, bool] | None:
    """(rate, whether the samples of a batch are dropped together) of a module that drops paths, as it is seen to do.

    None for another one, also if it has such a name, and where none is dropped.
    """
    rate = getattr(module, "drop_prob", getattr(module, "p", None))
    if not _DROP_PATH.search(type(module).__name__) or not isinstance(rate, float) or not 0 < rate < 1:
        return None
    if not module.training:
        return None
    is_whole = getattr(module, "mode", "row") == "batch"
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = [module(torch.ones(1 if is_whole else 1024, 1)) for _ in range(1024 if is_whole else 1)]
            drawn = torch.cat(found).reshape(-1)
    except Exception:  # noqa: BLE001  # it takes something else than a DropPath does
        return None
    kept = drawn[drawn != 0]
    is_scaled = bool(torch.allclose(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-3))
    return (rate, is_whole) if is_scaled and abs(1 - len(kept) / 1024 - rate) < 0.1 else None  # of 1,024 draws


def _drop_path(functional: Any, module: Any, rate: float, is_whole: bool) -> Callable[..., Any]:
    """A DropPath's forward that draws by Dropout."""

    def forward(x: Any, *_: Any, **__: Any) -> Any:
        samples = 1 if is_whole else x.shape[0]
        return x * functional.dropout(x.new_ones((samples,) + (1,) * (x.ndim - 1)), rate, module.training)

    return forward


def _replace_forward(stack: ExitStack, module: Any, forward: Callable[..., Any]) -> None:
    """Until the stack is closed."""
    had = module.__dict__.get("forward")
    module.forward = forward

    def restore() -> None:
        if had is None:
            del module.forward
        else:
            module.forward = had

    stack.callback(restore)


class _Rewrites:
    """What stands for calls of PyTorch's functions, by their arguments; NotImplemented where a call is right."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.functional = torch.nn.functional

    def table(self) -> dict[Any, Callable[..., Any]]:
        """By function."""
        torch, functional = self.torch, self.functional
        return {
            functional.dropout1d: self.dropout(self.channels_of_1d),
            functional.dropout2d: self.dropout(self.channels),
            functional.dropout3d: self.dropout(self.channels),
            torch.feature_dropout: self.dropout(self.channels),
            functional.alpha_dropout: self.dropout(self.alpha, training=False),
            torch.alpha_dropout: self.dropout(self.alpha),
            functional.feature_alpha_dropout: self.dropout(self.feature_alpha, training=False),
            torch.feature_alpha_dropout: self.dropout(self.feature_alpha),
            functional.cross_entropy: self.cross_entropy,
            functional.binary_cross_entropy: self.binary_cross_entropy,
            functional.gaussian_nll_loss: self.gaussian_nll_loss,
            torch.logaddexp2: self.logaddexp2,
            torch.normal: self.normal,
            torch.squeeze: self.squeeze,
            torch.Tensor.squeeze: self.squeeze,
            functional.embedding_bag: self.embedding_bag,
            torch.scatter_reduce: self.scatter_reduce,
            torch.Tensor.scatter_reduce: self.scatter_reduce,
            torch.Tensor.scatter_reduce_: self.in_place(self.scatter_reduce),
            torch.index_reduce: self.index_reduce,
            torch.Tensor.index_reduce: self.index_reduce,
            torch.Tensor.index_reduce_: self.in_place(self.index_reduce),
        }

    @staticmethod
    def dropout(function: Callable[..., Any], training: bool = True) -> Callable[..., Any]:
        """One of PyTorch's functions of dropout. `function(x, p)` gives what its mode of dropping computes."""

        def dropped(
            input: Any, p: float = 0.5, training: bool = training, inplace: bool = False, *, train: bool | None = None
        ) -> Any:
            if not (training if train is None else train) or not p:
                return input
            if p == 1:
                return NotImplemented
            result = function(input, p)
            return input.copy_(result) if inplace else result

        return dropped

    def channels(self, x: Any, p: float) -> Any:
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if x.ndim > 2 else x.shape
        return x * self.functional.dropout(x.new_ones(shape), p, True)

    def channels_of_1d(self, x: Any, p: float) -> Any:
        return x * self.functional.dropout(x.new_ones((*x.shape[:-1], 1)), p, True)

    def alpha(self, x: Any, p: float, *, by_channel: bool = False) -> Any:
        """Klambauer et al. 2017. Dropout of ones is 0 or 1 / (1 - p) in training, and 1 in evaluation: the polynomials
        of it take the values there that are wanted at each of the three."""
        low, scale = -1.7580993408473766, 1 / (1 - p)
        a = ((1 - p) * (1 + p * low**2)) ** -0.5
        b = -a * low * p
        mask = self.functional.dropout(
            x.new_ones((*x.shape[:2], *(1,) * (x.ndim - 2)) if by_channel else x.shape), p, True
        )
        bend = (a / scale - 1) / (scale - 1)
        times = mask * ((1 - bend) + bend * mask)
        first = a * low + b  # at 0; b at `scale`, 0 at 1
        second = ((b - first) / scale + first) / (scale - 1)
        plus = first + mask * (-first - second) + mask * mask * second
        return x * times + plus

    def feature_alpha(self, x: Any, p: float) -> Any:
        return self.alpha(x, p, by_channel=True)

    def cross_entropy(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        of_probabilities = target.is_floating_point()
        if not (label_smoothing or of_probabilities):
            return NotImplemented
        if size_average is not None or reduce is not None:
            reduction = self.torch.nn._reduction.legacy_get_string(size_average, reduce, emit_warning=False)
        axis = 1 if input.ndim > 1 else 0
        logs = self.functional.log_softmax(input, axis)
        if weight is not None:
            shape = [1] * logs.ndim
            shape[axis] = -1
            logs = logs * weight.reshape(shape)
        spread = logs.mean(axis)
        if of_probabilities:
            each = -((1 - label_smoothing) * (logs * target).sum(axis) + label_smoothing * spread)
            share = self.torch.ones_like(each)
        else:
            is_counted = target != ignore_index
            known = self.torch.where(is_counted, target, self.torch.zeros_like(target))
            picked = self.torch.gather(logs, axis, known.unsqueeze(axis)).squeeze(axis)
            share = is_counted.to(logs.dtype)
            each = -((1 - label_smoothing) * picked + label_smoothing * spread) * share
            share = share if weight is None else share * weight[known]
        if reduction == "none":
            return each
        if reduction == "sum":
            return each.sum()
        total = share.sum()  # of nothing the loss is no number, and its gradient 0
        nothing = total == 0
        return self.torch.where(nothing, total / total, each.sum() / self.torch.where(nothing, 1.0, total)).to(
            each.dtype
        )

    def binary_cross_entropy(
        self,
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
    ) -> Any:
        """PyTorch bounds the logarithms by -100, and the gradient by the least product of both probabilities."""
        if size_average is not None or reduce is not None:
            reduction = self.torch.nn._reduction.legacy_get_string(size_average, reduce, emit_warning=False)
        p, rest = input.detach(), 1 - input.detach()
        where = self.torch.where
        logs = [where(one > 0, where(one > 0, one, 1.0).log(), -100.0).clamp(min=-100.0) for one in (p, rest)]
        slope = (p - target) / (p * rest).clamp(min=1e-12)
        loss = -(target * logs[0] + (1 - target) * logs[1]) + slope.detach() * (input - p)
        loss = loss if weight is None else loss * weight
        return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()

    def gaussian_nll_loss(
        self, input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Any:
        """Without its look at the values of `var`."""
        if not isinstance(var, self.torch.Tensor):
            var = self.torch.full_like(input, var)
        if var.shape != input.shape and var.shape == input.shape[:-1]:
            var = var.unsqueeze(-1)
        var = var + (var.clamp(min=eps) - var).detach()
        loss = 0.5 * (var.log() + (input - target) ** 2 / var)
        if full:
            loss = loss + 0.5 * math.log(2 * math.pi)
        return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()

    def normal(self, mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Any:
        like = next((each for each in (mean, std) if isinstance(each, self.torch.Tensor)), None)
        if like is None or args or kwargs:
            return NotImplemented
        return mean + std * self.torch.randn_like(like)

    def squeeze(self, input: Any, *dims: Any, **kwargs: Any) -> Any:
        """Without dimensions: those of 1 that have no symbol, for a batch of 1 stays a batch."""
        if dims or kwargs:
            return NotImplemented
        ones = tuple(place for place, size in enumerate(input.shape) if type(size) is int and size == 1)
        return self.torch.squeeze(input, ones)

    def logaddexp2(self, input: Any, other: Any) -> Any:
        return self.torch.logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)

    def scatter_reduce(
        self, input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
    ) -> Any:
        if reduce != "mean":
            return NotImplemented
        own = self.torch.ones_like(input) if include_self else self.torch.zeros_like(input)
        counts = own.scatter_add(dim, index, self.torch.ones_like(src))
        touched = self.torch.zeros_like(input).scatter_add(dim, index, self.torch.ones_like(src)) > 0
        start = input if include_self else self.torch.where(touched, self.torch.zeros_like(input), input)
        total = start.scatter_add(dim, index, src)
        return self.torch.where(touched, total / counts.clamp(min=1), input)

    def index_reduce(
        self, input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
    ) -> Any:
        if reduce != "mean":
            return NotImplemented
        shape = [1] * source.ndim
        shape[dim] = -1
        wide = index.reshape(shape).expand_as(source)
        return self.scatter_reduce(input, dim, wide, source, reduce, include_self=include_self)

    @staticmethod
    def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(input: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(input, *args, **kwargs)
            return result if result is NotImplemented else input.copy_(result)

        return changed

    def embedding_bag(
        self,
        input: Any,
        weight: Any,
        offsets: Any = None,
        max_norm: float | None = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Any:
        for option, value in (("max_norm", max_norm), ("scale_grad_by_freq", scale_grad_by_freq)):
            if value:
                raise ModuleRefusedError(_NO_EMBEDDING[option])
        rows = self.functional.embedding(input, weight, padding_idx, sparse=sparse)
        if padding_idx is None:
            counted = self.torch.ones_like(input)
        else:
            counted = (input != (padding_idx if padding_idx >= 0 else weight.shape[0] + padding_idx)).to(
                self.torch.int64
            )
        share = counted.to(rows.dtype).unsqueeze(-1)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if offsets is None:
            if mode == "max":
                low = self.torch.finfo(rows.dtype).min
                most = self.torch.where(share > 0, rows, self.torch.full_like(rows, low)).amax(1)
                return self.torch.where(share.sum(1) > 0, most, self.torch.zeros_like(most))
            total = (rows * share).sum(1)
            return total / share.sum(1).clamp(min=1) if mode == "mean" else total
        starts = offsets[:-1] if include_last_offset else offsets
        places = self.torch.arange(input.shape[0], device=input.device)
        if include_last_offset:
            share = share * (places < offsets[-1]).to(rows.dtype).unsqueeze(-1)
        bag = (places.unsqueeze(1) >= starts.unsqueeze(0)).to(self.torch.int64).sum(1) - 1
        empty = rows.new_zeros((starts.shape[0], rows.shape[1]))
        wide = bag.unsqueeze(1).expand_as(rows)
        if mode == "max":
            raise ModuleRefusedError(
                "an EmbeddingBag takes the maximum over bags that offsets name, which weft has no gradient of; feed it "
                "ids of two dimensions, padded, with padding_idx"
            )
        total = empty.scatter_add(0, wide, rows * share)
        if mode == "sum":
            return total
        return total / empty.scatter_add(0, wide, share.expand_as(rows)).clamp(min=1)
