"""An array module that stands in for CuPy on a CPU, and is stricter: NumPy's numbers, and none of its leniency.

Its arrays refuse NumPy's arrays and functions, and to become Python's numbers by themselves; `asnumpy` and `asarray`
are the only ways between host and device, as with CuPy. It has the names that CuPy has, and no others: a function, a
method or a keyword that CuPy lacks is an AttributeError or a TypeError here.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from weft_kernels.cuda.module import LAUNCHERS

_OPERATORS = (
    ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"],
    ["lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert"],
)
_ATTRIBUTES = {"shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides", "flags"}
_ON_HOST_TOO = {
    "dtype",
    "newaxis",
    "inf",
    "nan",
    "pi",
    "e",
    "bool_",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "uint32",
} | {
    *("uint64", "float16", "float32", "float64", "finfo", "iinfo", "promote_types", "result_type", "can_cast"),
    *("issubdtype", "floating", "integer", "bool"),
}
"""What is neither made of arrays nor makes them: CuPy has NumPy's own."""

_MEETS_HOST = {"nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract", "sort", "argsort", "lexsort"} | {
    "linalg"
}
"""Functions of CuPy's that wait: for a size, for an error's number, or as Thrust's sorting does."""

_WRITE = {"copyto", "put", "place", "putmask", "fill_diagonal"} | {"ndarray.fill", "ndarray.put", "ndarray.sort"}
"""Functions that write to what they are given, and give nothing."""


class HostMixError(TypeError):
    """An array of the device met one of the host, or was made a number, where nobody asked for that."""


@cache
def _cupy() -> Any:
    import cupy

    return cupy


def _at_once(name: str, work: Callable[[], Any], *, writes: bool = False) -> Any:
    return work()


carry_out: Callable[..., Any] = _at_once
"""carry_out(name, work, writes=): does what a kernel does, and gives what it gives. With `writes` it writes to an array
that was there before. `strict_cupy` puts its own in here."""


class StrictArray:
    """A device's array. `held` is for this module alone."""

    __slots__ = ("held",)
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # as NumPy's

    def __init__(self, held: Any) -> None:
        self.held = np.asarray(held)

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.held.__array_interface__["data"][0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(_cupy().ndarray, name):
            raise AttributeError(f"CuPy's array has no {name!r}")
        if name in _ATTRIBUTES:
            return getattr(self.held, name)
        if name in {"item", "tolist", "tobytes"}:
            raise HostMixError(f"{name}() brings an array to the host by the way; use weft_kernels.host")
        value = getattr(self.held, name)
        return _called(f"ndarray.{name}", value) if callable(value) else _device(value)

    def __getitem__(self, index: Any) -> StrictArray:
        if any(isinstance(part, StrictArray) and part.dtype == bool for part in _parts(index)):
            met.append("a mask as an index")
        inside = _index(index)
        return StrictArray(carry_out("getitem", lambda: self.held[inside]))

    def __setitem__(self, index: Any, value: Any) -> None:
        inside, given = _index(index), _host(value, "an assignment")
        carry_out("setitem", lambda: self.held.__setitem__(inside, given), writes=True)

    def get(self, *, out: Any = None, blocking: bool = True) -> None:
        if blocking:
            raise HostMixError("get() brings an array to the host by the way; use weft_kernels.host")
        assert out.flags.c_contiguous
        assert self.held.flags.c_contiguous, "CuPy copies what is contiguous"
        carry_out("get", lambda: np.copyto(out, self.held), writes=True)

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[StrictArray]:
        return (StrictArray(part) for part in self.held)

    def __repr__(self) -> str:
        return f"StrictArray({self.held!r})"

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise HostMixError("a device's array is made a host's number or array by the way; use weft_kernels.host")

    __array__ = __array_function__ = __bool__ = __int__ = __float__ = __index__ = __complex__ = _refuse


def _binary(name: str) -> Any:
    def operate(self: StrictArray, *others: Any) -> Any:
        given = [_host(other, name) for other in others]
        result = carry_out(name, lambda: getattr(self.held, name)(*given))
        _counted(result, ())
        return _device(result)

    return operate


def _in_place(name: str) -> Any:
    def operate(self: StrictArray, other: Any) -> StrictArray:
        given = _host(other, name)
        changed = carry_out(name, lambda: getattr(self.held, name)(given), writes=True)
        assert changed is None or changed is self.held
        return self

    return operate


for _name in _OPERATORS[0]:
    setattr(StrictArray, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(StrictArray, f"__r{_name}__", _binary(f"__r{_name}__"))
    setattr(StrictArray, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in _OPERATORS[1]:
    setattr(StrictArray, f"__{_name}__", _binary(f"__{_name}__"))


def _host(value: Any, where: str) -> Any:
    """The held array of a device's one, a number as it is. Raises HostMixError for an array of NumPy's."""
    if isinstance(value, StrictArray):
        return value.held
    if isinstance(value, np.ndarray):
        raise HostMixError(f"{where}: an array of NumPy's, {value.dtype}{list(value.shape)}, is given to the device")
    if isinstance(value, list | tuple):
        return type(value)(_host(part, where) for part in value)
    return value


def _index(index: Any) -> Any:
    return _host(index, "an index")


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _counted(result: Any, given: Iterable[Any]) -> None:
    """Notes the bytes of each array that lies in no memory of what was given."""
    for each in result if isinstance(result, list | tuple) else (result,):
        if isinstance(each, np.generic) or (
            isinstance(each, np.ndarray)
            and not any(isinstance(one, np.ndarray) and np.may_share_memory(each, one) for one in given)
        ):
            allocated.append(each.nbytes)


def _device(value: Any) -> Any:
    """Arrays as the device's; NumPy's scalars too, where CuPy gives arrays without dimensions."""
    if isinstance(value, np.ndarray | np.generic):
        return StrictArray(value)
    if isinstance(value, list | tuple):
        parts = (_device(part) for part in value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _called(name: str, function: Any, like: Any = None) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if like is not None:
            like.bind(*args, **kwargs)
        given, named = [_host(arg, name) for arg in args], {key: _host(value, name) for key, value in kwargs.items()}
        has_out = isinstance(kwargs.get("out"), StrictArray)
        result = carry_out(name, lambda: function(*given, **named), writes=has_out or name in _WRITE)
        if name.removeprefix("ndarray.").split(".")[0] in _MEETS_HOST:
            met.append(name)
        if has_out:
            return kwargs["out"]
        parts = (part for arg in given if isinstance(arg, list | tuple) for part in arg)
        _counted(result, [*given, *parts, getattr(function, "__self__", None)])
        return _device(result)

    return call


class StrictModule(types.ModuleType):
    """The module itself: what bodies have as `xp`."""

    ndarray = StrictArray

    def __getattr__(self, name: str) -> Any:
        if not hasattr(_cupy(), name):
            raise AttributeError(f"CuPy has no {name!r}")
        if name in _ON_HOST_TOO:
            return getattr(np, name)
        if name == "lib":
            return _Lib
        if name == "fft":
            return _Fft()
        if name in {"linalg", "fft"}:
            return _Part(name)
        return _like(_cupy(), np, name)

    @staticmethod
    def asnumpy(array: Any) -> Any:
        """To the host, a copy, as CuPy's. Counted."""
        assert isinstance(array, StrictArray), f"{type(array).__name__} is not on the device"
        brought.append(array.held.shape)
        met.append("asnumpy")
        return array.held.copy()

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> StrictArray:
        """To the device, a copy where it comes from the host."""
        if not isinstance(value, StrictArray):
            met.append("asarray")
        return StrictArray(np.array(value.held if isinstance(value, StrictArray) else value, dtype=dtype))

    array = asarray

    @staticmethod
    def matmul(left: StrictArray, right: StrictArray, out: StrictArray | None = None) -> StrictArray:
        """Of the operands' type, as cuBLAS' products of bfloat16 are; NumPy makes float32 of them.

        CuPy takes two matrices as they are where they lie in rows or in columns. Of stacks it copies what does not lie
        in rows, and makes pointers to each matrix where one stack repeats. It writes to nothing but rows.
        """
        two = left.ndim <= 2 and right.ndim <= 2
        for each in (left, right, *(() if out is None else (out,))):
            flags = each.held.flags
            if not (flags.c_contiguous or (two and each is not out and flags.f_contiguous)):
                allocated.append(each.nbytes)
        if not two and left.shape[:-2] != right.shape[:-2]:
            allocated.append(8 * left.size)
        both = left.dtype == right.dtype and out is None

        def product(one: Any, other: Any, **named: Any) -> Any:
            made = np.matmul(one, other, **named)
            return np.asarray(made).astype(one.dtype, copy=False) if both else made

        found: StrictArray = _called("matmul", product)(left, right, out=out)
        return found


def _like(theirs: Any, ours: Any, name: str, shown: str = "") -> Any:
    """NumPy's function of that name, which takes what CuPy's takes."""
    function = getattr(theirs, name)
    try:
        like = inspect.signature(function) if inspect.isfunction(function) else None
    except ValueError:
        like = None
    return _called(shown or name, getattr(ours, name), like)


class _Part:
    """`linalg` or `fft`, with the names that CuPy's has."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(_cupy(), self._name)
        if not hasattr(theirs, name):
            raise AttributeError(f"CuPy's {self._name} has no {name!r}")
        return _like(theirs, getattr(np, self._name), name, f"{self._name}.{name}")


class _Lib:
    class stride_tricks:
        @staticmethod
        def sliding_window_view(array: StrictArray, *args: Any, **kwargs: Any) -> StrictArray:
            return StrictArray(np.lib.stride_tricks.sliding_window_view(array.held, *args, **kwargs))


class _Fft:
    """Fourier transforms, those that CuPy has."""

    def __getattr__(self, name: str) -> Any:
        if not hasattr(_cupy().fft, name):
            raise AttributeError(f"CuPy has no fft.{name!r}")
        return _called(f"fft.{name}", getattr(np.fft, name))


brought: list[tuple[int, ...]] = []
"""Shapes of what was brought to the host since a test cleared it."""

met: list[str] = []
"""What exchanged something with the host, since a test cleared it."""

allocated: list[int] = []
"""Bytes of each array that was made, since a test cleared it."""

strict = StrictModule("strict_arrays_module")


def to_device(array: Any) -> StrictArray:
    return StrictArray(np.array(array, order="K"))


def to_host(array: StrictArray) -> Any:
    return array.held


@contextmanager
def own_kernels() -> Iterator[StrictModule]:
    """While it is entered, the module has this project's CUDA kernels, which run on the CPU thread by thread."""
    from cuda_on_host import launch_on_host

    def launch(source: Any, entry: str, grid: Any, block: Any, args: Any, *, shared_bytes: int) -> None:
        for arg in args:
            if isinstance(arg, np.ndarray):
                raise HostMixError(f"{entry}: an array of the host is given to a kernel")
        held = [arg.held if isinstance(arg, StrictArray) else arg for arg in args]
        launched.append(entry)
        work = partial(launch_on_host, source, entry, grid, block, held, shared_bytes=shared_bytes)
        carry_out(entry, work, writes=True)

    LAUNCHERS[strict.__name__] = launch
    try:
        yield strict
    finally:
        del LAUNCHERS[strict.__name__]


launched: list[str] = []
"""Entries that were launched since a test cleared it."""
