"""Arrays as users have them, NumPy's or not, held against what a key is. Copies nothing that need not be copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.errors import StoreRefusedError

_CPU: Final = 1
"""DLPack's number of the host (kDLCPU)."""

_NO_ARRAY: Final = (TypeError, ValueError, OverflowError, BufferError, RuntimeError)
"""What libraries raise where NumPy cannot have an array of theirs."""

_OF_NUMPY: Final = frozenset(
    {"bool", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128"}
    | {"int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
"""What PyTorch's types are called that NumPy has too."""


def is_on_device(value: object) -> bool:
    """Whether it is an array in a GPU's memory: CuPy's, or whoever else's has the CUDA array interface."""
    return not isinstance(value, np.ndarray) and hasattr(value, "__cuda_array_interface__")


def form_of(value: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of an array on either side."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    interface = value.__cuda_array_interface__
    return np.dtype(interface["typestr"]), tuple(interface["shape"])


def as_array(value: object, dtype: np.dtype[Any], where: str) -> Any:
    """NumPy's array of what was given; a GPU's array as it is. Raises StoreRefusedError, which begins with `where`.

    Arrays keep their dtype, for a conversion would be a copy nobody asked for; Python's numbers and lists get `dtype`.
    """
    _check_plain(value, where)
    if isinstance(value, np.ndarray) or is_on_device(value):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return _from_dlpack(value)
        array = np.asarray(value)
        # No elements have no kind, and NumPy calls them float64.
        if array.size and (array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind")):
            raise TypeError(_not_such(value, array, dtype))
        return array if isinstance(value, np.generic) else np.asarray(value, dtype)
    except _NO_ARRAY as error:
        raise StoreRefusedError(f"{where}: {error}") from None


def _not_such(value: object, array: Array, dtype: np.dtype[Any]) -> str:
    """Why what NumPy made of a value is not taken."""
    if array.dtype.kind == "O":
        return f"{type(value).__name__} cannot be {dtype}"
    found = f"{type(value).__name__} of {array.dtype}" if isinstance(value, list | tuple) else type(value).__name__
    return f"{found} cannot be {dtype}" if dtype.kind == "f" else f"whole numbers are expected, not {found}"


def checked(value: object, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> Any:
    """`as_array` of that dtype and shape, C-contiguous on the host. Raises StoreRefusedError."""
    array = as_array(value, dtype, where)
    found = form_of(array)
    if found != (dtype, shape):
        how = f".to(torch.{dtype})" if _is_tensor(value) else f".astype({str(dtype)!r})"
        hint = f"; convert it with {how}" if found[0] != dtype and found[1] == shape else ""
        raise StoreRefusedError(f"{where}: it is {found[0]}{list(found[1])}, the key {dtype}{list(shape)}{hint}")
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) and shape else array


def checked_out(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> Any:
    """The array that is to be written, as it is: nothing else would be seen by the caller. Of a parameter that has a
    gradient it is the data. Raises StoreRefusedError."""
    if _is_tensor(out) and out.requires_grad and out.is_leaf:
        out = out.detach()
    _check_plain(out, f"{where}: out")
    if not isinstance(out, np.ndarray) and not is_on_device(out):
        try:
            views = [np.asarray(out) for _ in range(2)] if hasattr(out, "__dlpack__") else []
        except _NO_ARRAY as error:
            raise StoreRefusedError(f"{where}: out: {error}") from None
        # Two views of one array begin at one place; two copies, both alive, do not.
        if len({view.ctypes.data for view in views}) != 1:
            raise StoreRefusedError(f"{where}: out: an array that can be written, not {type(out).__name__}")
        out = views[0]
    if form_of(out) != (dtype, shape):
        found = form_of(out)
        raise StoreRefusedError(f"{where}: out: it is {found[0]}{list(found[1])}, the value {dtype}{list(shape)}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise StoreRefusedError(f"{where}: out: it cannot be written")
    return out


def checked_outs(
    outs: Sequence[Any], forms: Sequence[tuple[np.dtype[Any], tuple[int, ...]]], where: Callable[[int], str]
) -> list[Any]:
    """`checked_out` of each that is not None; `where(number)` begins the error of one."""
    return [
        None if out is None else checked_out(out, *form, where(number))
        for number, (out, form) in enumerate(zip(outs, forms, strict=True))
    ]


def checked_ids(ids: object, where: str) -> Any:
    """Ids of rows, whole numbers of any shape; a GPU's array as it is. Raises StoreRefusedError."""
    array = _of_python(ids, where) if isinstance(ids, int | list | tuple) else None
    if array is None:
        array = as_array(ids, np.dtype(np.int64), f"{where}: ids")
    dtype, _ = form_of(array)
    if isinstance(array, np.ndarray) and not array.size:
        return array.astype(np.int64)
    if dtype.kind not in "iu":
        raise StoreRefusedError(f"{where}: ids: whole numbers, not {dtype}")
    return array


def flat_ids(ids: Array, where: str, *, any_64_bits: bool = False) -> Array:
    """Checked ids as the store takes them (n) int64; uint64 stays where a table takes `any_64_bits`. Raises
    StoreRefusedError for one beyond 2**63 - 1 of another table."""
    if ids.dtype == np.uint64 and any_64_bits:
        return np.ascontiguousarray(ids.reshape(-1))
    if ids.dtype == np.uint64 and ids.size and int(ids.max()) > np.iinfo(np.int64).max:
        raise StoreRefusedError(f"{where}: ids: {int(ids.max())} is beyond 2**63 - 1")
    return np.ascontiguousarray(ids.reshape(-1), np.int64)


def _of_python(ids: object, where: str) -> Array | None:
    """Python's own whole numbers where some are such as only uint64 has: NumPy takes those beside others for float64.
    None for anything else; what is wrong with it is told by whoever makes an array of it, but for booleans, which NumPy
    takes beside whole numbers for 0 and 1."""
    try:
        kinds = set(map(type, np.asarray(ids, object).flat))
        if kinds.isdisjoint({bool, np.bool_}):
            return np.asarray(ids, np.uint64) if kinds == {int} and np.asarray(ids).dtype.kind != "i" else None
    except _NO_ARRAY:
        return None
    raise StoreRefusedError(f"{where}: ids: whole numbers, not bool")


def _is_tensor(value: object) -> bool:
    """Whether it is PyTorch's, which is not imported here."""
    return hasattr(value, "requires_grad") and hasattr(value, "layout")


def _check_plain(value: Any, where: str) -> None:
    """Raises StoreRefusedError for what is more than the numbers in its memory, or has such as NumPy has not."""
    told = None
    if isinstance(value, np.ma.MaskedArray):
        told = "a masked array, and a mask would be lost: fill it first, .filled(0)"
    elif not isinstance(value, np.ndarray) and _is_tensor(value):
        layout, dtype = (str(one).removeprefix("torch.") for one in (value.layout, value.dtype))
        if layout != "strided":
            told = f"a sparse tensor ({layout}): make it dense first, .to_dense()"
        elif dtype not in _OF_NUMPY:
            told = f"a tensor of {dtype}, which NumPy does not have: convert it first, .to(torch.float32)"
        elif value.requires_grad:
            told = "a tensor that requires a gradient: leave that behind first, .detach()"
        elif value.is_neg():
            told = "a tensor that is yet to be negated: do that first, .resolve_neg()"
    if told is not None:
        raise StoreRefusedError(f"{where}: it is {told}")


def _from_dlpack(value: Any) -> Array:
    device, _ = value.__dlpack_device__()
    if device != _CPU:
        raise TypeError(f"{type(value).__name__} is in the memory of a device that has no CUDA array interface")
    array: Array = np.from_dlpack(value)
    return array
