"""Kernels in CUDA for what CuPy has no fast function for: losses, draws, rows, windows."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from weft_graph.shapes.windows import Windows
from weft_kernels.cuda.module import MOST_BLOCKS, has_kernels, launch, launch_blocks
from weft_kernels.errors import OutOfRangeError
from weft_kernels.host import number
from weft_kernels.kernel import Array
from weft_kernels.random import Key

# --- Softmax cross-entropy on a GPU: see `sources/cross_entropy.cu` ---------------------------------------------------


_FILE: Final = "cross_entropy.cu"
_THREADS: Final = 128
_LABELS: Final = ("int32", "int64")


def cross_entropy_fits(xp: Any, dtype: np.dtype[Any], labels: Array) -> bool:
    """Whether the kernels take scores of that type and these labels, both of this module."""
    return has_kernels(xp) and dtype.kind == "f" and labels.dtype.name in _LABELS


def label_weights(
    xp: Any,
    labels: Array,
    classes: int,
    *,
    weights: Array | None,
    ignored: int | None,
    dtype: Any,
    checked: bool = False,
) -> Array:
    """What each label weighs, of the labels' shape: 1 or its class's weight, 0 where it is ignored.

    Waits for the device unless they were `checked`, to raise OutOfRangeError where a label that counts is outside
    [0, classes): nothing may learn from a label that is none.
    """
    labels = xp.ascontiguousarray(labels)
    result: Array = xp.empty(labels.shape, dtype=dtype)
    # Without class weights the kernel does not look at them.
    by_class = xp.empty(1, dtype=dtype) if weights is None else xp.ascontiguousarray(weights.astype(dtype, copy=False))
    wrong = xp.full(1, labels.size, dtype=xp.uint64)
    has = int(ignored is not None), np.int64(ignored or 0), int(weights is not None)
    numbers = (labels.size, classes, *has)
    types = (dtype, labels.dtype)
    launch(xp, _FILE, "label_weights", labels.size, labels, by_class, result, wrong, *numbers, types=types)
    row = labels.size if checked else int(number(xp, wrong[0]))
    if row < labels.size:
        label = int(number(xp, labels.reshape(-1)[row]))
        raise OutOfRangeError("label", label, 0, classes, of=", the classes of the scores")
    return result


def cross_entropy(
    xp: Any, scores: Array, labels: Array, weights: Array, out: Array | None = None
) -> tuple[Array, Array]:
    """(log-probabilities like `scores` (batch, classes, ...), losses like `labels` (batch, ...)): the first in `out` or
    a new array, the second new.

    `weights` are those of `label_weights`; nothing is waited for.
    """
    scores, labels = xp.ascontiguousarray(scores), xp.ascontiguousarray(labels)
    log_prob, losses = _rows_like(xp, scores, out), xp.empty(labels.shape, dtype=scores.dtype)
    inner = math.prod(labels.shape[1:])
    # Neighbouring threads read neighbouring numbers: of one row where its classes lie together, of many rows else.
    block = (1, _THREADS) if inner == 1 else (_THREADS, 1)
    if scores.size:
        grid = (min(-(-labels.size // block[0]), MOST_BLOCKS),)
        launch_blocks(
            xp,
            _FILE,
            "cross_entropy",
            grid,
            block,
            *(scores, labels, weights, log_prob, losses, labels.size, scores.shape[1], inner),
            types=(scores.dtype, labels.dtype),
            shared_bytes=_THREADS * max(scores.dtype.itemsize, 4),
        )
    return log_prob, losses


def _rows_like(xp: Any, array: Array, out: Array | None) -> Array:
    """`out` where it is as the array, in rows; else a new one."""
    fits = out is not None and out.shape == array.shape and out.dtype == array.dtype and out.flags.c_contiguous
    return out if out is not None and fits else xp.empty(array.shape, dtype=array.dtype)


def cross_entropy_grad(xp: Any, log_prob: Array, labels: Array, scale: Array, out: Array | None = None) -> Array:
    """scale * (softmax - one-hot label), like `log_prob` (batch, classes, ...), in `out` or a new array; `scale` is
    like `labels`."""
    log_prob, labels, scale = (xp.ascontiguousarray(array) for array in (log_prob, labels, scale))
    result = _rows_like(xp, log_prob, out)
    numbers = (labels.size, log_prob.shape[1], math.prod(labels.shape[1:]))
    types = (log_prob.dtype, labels.dtype)
    launch(xp, _FILE, "cross_entropy_grad", log_prob.size, log_prob, labels, scale, result, *numbers, types=types)
    return result


# --- Random masks made on a GPU, the same bits as on the host: see `sources/draws.cu` ---------------------------------


_DRAWS_FILE: Final = "draws.cu"


def kept(xp: Any, key: Key, start: int, shape: tuple[int, ...], threshold: int, *, out: Array | None = None) -> Array:
    """Whether draw `start` + e of the stream is `threshold` or more, bool, of that shape; in `out` or a new array."""
    result = xp.empty(shape, dtype=bool) if out is None or not out.flags.c_contiguous else out
    words = (np.uint64(key[0]), np.uint64(key[1]), np.int64(start), result.size, np.uint64(threshold))
    launch(xp, _DRAWS_FILE, "kept", result.size, result, *words)
    return result


# --- Rows by number on a GPU, each result summed in order by one thread: see `sources/rows.cu` ------------------------


_ROWS_FILE: Final = "rows.cu"


def rows_fit(xp: Any, rows: Array) -> bool:
    """Whether the kernels take rows of this module and element type."""
    return has_kernels(xp) and rows.dtype.kind == "f"


def gather_rows(xp: Any, table: Array, ids: Array, out: Array | None = None) -> Array:
    """Rows `ids` int64 of `table` (rows, ...), (*ids.shape, ...), in `out` or a new array; zeros where an id is
    negative."""
    table, ids = xp.ascontiguousarray(table), xp.ascontiguousarray(ids)
    fits = out is not None and out.dtype == table.dtype and out.flags.c_contiguous
    result = out if out is not None and fits else xp.empty((*ids.shape, *table.shape[1:]), dtype=table.dtype)
    width = result.size // max(ids.size, 1)
    launch(xp, _ROWS_FILE, "gather_rows", result.size, table, ids, result, ids.size, width, types=(table.dtype,))
    return result


def sum_rows(xp: Any, rows: Array, index: Array, count: int) -> Array:
    """The sum, for each of `count` places, of the rows (n, columns) whose index (n,) names it, in order.

    Sorted and summed by place, not added atomically: the same bits in every run. Rows of a negative index are left out.
    """
    rows = xp.ascontiguousarray(rows)
    order = xp.argsort(index, kind="stable")
    ordered = index[order]
    result: Array = xp.empty((count, rows.shape[1]), dtype=rows.dtype)
    numbers = (1, index.size, count, rows.shape[1])
    launch(xp, _ROWS_FILE, "sum_rows", result.size, rows, ordered, order, result, *numbers, types=(rows.dtype,))
    return result


def merge_rows(xp: Any, first_ids: Array, first: Array, second_ids: Array, second: Array) -> tuple[Array, Array]:
    """(ids, rows) of two slots' rows: their ids' union, ascending, and the first's row plus the second's.

    Each slot's ids are distinct and ascending. Waits for the device, which alone knows how many ids there are.
    """
    ids = xp.unique(xp.concatenate([first_ids, second_ids]))
    result: Array = xp.empty((ids.size, *first.shape[1:]), dtype=first.dtype)
    width = result.size // max(ids.size, 1)
    first, second = xp.ascontiguousarray(first), xp.ascontiguousarray(second)
    given = (first, first_ids, first_ids.size, second, second_ids, second_ids.size)
    launch(xp, _ROWS_FILE, "merge_rows", result.size, *given, ids, result, ids.size, width, types=(first.dtype,))
    return ids, result


# --- Convolution's and pooling's windows on a GPU: see `sources/windows.cu` -------------------------------------------


MOST_DIMENSIONS: Final = 3
_WINDOWS_FILE: Final = "windows.cu"


def windows_fit(xp: Any, array: Array, windows: Windows) -> bool:
    """Whether the kernels take arrays of this module, element type and number of spatial dimensions."""
    return has_kernels(xp) and array.dtype.kind == "f" and len(windows.size) <= MOST_DIMENSIONS


def columns(xp: Any, array: Array, windows: Windows, groups: int) -> Array:
    """As `weft_kernels.windows.columns`; a view where they are the array itself."""
    batch, channels = array.shape[:2]
    rows, width = channels * math.prod(windows.kernel), batch * math.prod(windows.count)
    turned = array.swapaxes(0, 1)
    if is_plain(windows) and turned.flags.c_contiguous:
        view: Array = turned.reshape(groups, rows // groups, width)
        return view
    result: Array = xp.empty((groups, rows // groups, width), dtype=array.dtype)
    data, *steps = images(xp, array)
    _launch(xp, "im2col", result.size, data, result, batch, channels, *steps, windows=windows, dtype=array.dtype)
    return result


def scattered(xp: Any, array: Array, windows: Windows, out: Array | None = None) -> Array:
    """As `weft_kernels.windows.scattered`, in `out` or a new array whose channels lead in memory."""
    channels, batch = array.shape[0], array.shape[1 + len(windows.size)]
    result = _place(out, (batch, channels, *windows.size), array.dtype)
    if result is None:
        result = xp.empty((channels, batch, *windows.size), dtype=array.dtype).swapaxes(0, 1)
    data, *steps = images(xp, result)
    lowered = xp.ascontiguousarray(array)
    _launch(xp, "col2im", result.size, lowered, data, batch, channels, *steps, windows=windows, dtype=array.dtype)
    return result


def max_pool(xp: Any, data: Array, windows: Windows, out: Array | None = None) -> Array:
    """The largest element of each window (batch, channels, windows ...), in `out` or a new array."""
    batch, channels = data.shape[:2]
    shape = (batch, channels, *windows.count)
    result = _place(out, shape, data.dtype)
    result = xp.empty(shape, dtype=data.dtype) if result is None else result
    (given, *read), (made, *written) = images(xp, data), images(xp, result)
    numbers = (batch, channels, *read, *written)
    _launch(xp, "max_pool", result.size, given, made, *numbers, windows=windows, dtype=data.dtype)
    return result


def max_pool_grad(
    xp: Any, gradient: Array, data: Array, output: Array, windows: Windows, *, out: Array | None = None
) -> Array:
    """The gradient of the input `data` (batch, channels, spatial ...), in `out` or a new array that lies as `data`."""
    batch, channels = data.shape[:2]
    chosen = xp.empty(output.shape, dtype=xp.int32)
    result = _place(out, data.shape, gradient.dtype)
    result = xp.empty_like(data, dtype=gradient.dtype) if result is None else result
    (given, *read), (largest, *compared) = images(xp, data), images(xp, output)
    (shares, *taken), (made, *written) = images(xp, gradient), images(xp, result)
    numbers = (batch, channels, *read, *compared)
    _launch(xp, "max_pool_choice", chosen.size, given, largest, chosen, *numbers, windows=windows, dtype=data.dtype)
    numbers = (batch, channels, *taken, *written)
    _launch(xp, "max_pool_spread", result.size, shares, chosen, made, *numbers, windows=windows, dtype=data.dtype)
    return result


def is_plain(windows: Windows) -> bool:
    """Whether every window is one element, and every element a window."""
    return windows.size == windows.count and math.prod(windows.kernel) == 1 and not any(windows.begin)


def images(xp: Any, array: Array) -> tuple[Array, int, int]:
    """(the array, elements from one sample to the next, from one channel to the next): as it lies in rows or with its
    channels leading, and a copy in rows of any other."""
    batch, channels = array.shape[:2]
    each, turned = math.prod(array.shape[2:]), array.swapaxes(0, 1)
    if turned.flags.c_contiguous and not array.flags.c_contiguous:
        return turned, each, batch * each
    return xp.ascontiguousarray(array), channels * each, each


def _place(out: Array | None, shape: tuple[int, ...], dtype: Any) -> Array | None:
    """`out`, where a kernel may write such images to it."""
    if out is None or tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        return None
    return out if out.flags.c_contiguous or out.swapaxes(0, 1).flags.c_contiguous else None


def _launch(xp: Any, kernel: str, count: int, *args: Array | int, windows: Windows, dtype: Any) -> None:
    launch(xp, _WINDOWS_FILE, kernel, count, *args, *_numbers(windows), types=(dtype,), reach=_reach(windows))


def _reach(windows: Windows) -> int:
    """The largest coordinate that a kernel works out, in the padding."""
    return max(map(sum, zip(windows.begin, windows.size, windows.reach, strict=True)), default=0)


def _numbers(windows: Windows) -> tuple[int, ...]:
    """Three numbers for each field, as the kernels take them; missing dimensions lead."""
    missing = MOST_DIMENSIONS - len(windows.size)
    ones, zeros = (1,) * missing, (0,) * missing
    return (
        *(*ones, *windows.size),
        *(*ones, *windows.kernel),
        *(*ones, *windows.strides),
        *(*ones, *windows.dilations),
        *(*zeros, *windows.begin),
        *(*ones, *windows.count),
    )
