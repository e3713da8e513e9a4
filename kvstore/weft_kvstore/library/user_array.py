"""Arrays as users have them, NumPy's or not, held against what a key is. Copies nothing that need not be copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.errors import StoreRefusedError

_CPU: Final = 1
"""DLPack's number of the host (kDLCPU)."""


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
    _check_unmasked(value, where)
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
    except (TypeError, ValueError, OverflowError, BufferError, RuntimeError) as error:
        # RuntimeError: PyTorch's, for a tensor that needs a gradient
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
        hint = f"; convert it with .astype({str(dtype)!r})" if found[0] != dtype and found[1] == shape else ""
        raise StoreRefusedError(f"{where}: it is {found[0]}{list(found[1])}, the key {dtype}{list(shape)}{hint}")
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) and shape else array


def checked_out(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> Any:
    """The array that is to be written, as it is: nothing else would be seen by the caller. Raises StoreRefusedError."""
    _check_unmasked(out, f"{where}: out")
    if not isinstance(out, np.ndarray) and not is_on_device(out):
        view = np.asarray(out) if hasattr(out, "__dlpack__") else None
        # Two views of one array begin at one place; two copies, both alive, do not.
        if view is None or view.ctypes.data != np.asarray(out).ctypes.data:
            raise StoreRefusedError(f"{where}: out: an array that can be written, not {type(out).__name__}")
        out = view
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
    array = _beyond_int64(ids)
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


def _beyond_int64(ids: object) -> Array | None:
    """Python's own whole numbers where some are such as only uint64 has: NumPy takes those beside others for float64.
    None for anything else; what is wrong with it is told by whoever makes an array of it."""
    if not isinstance(ids, int | list | tuple):
        return None
    try:
        if np.asarray(ids).dtype.kind == "i" or set(map(type, np.asarray(ids, object).flat)) != {int}:
            return None
        return np.asarray(ids, np.uint64)
    except (TypeError, ValueError, OverflowError):
        return None


def _check_unmasked(value: object, where: str) -> None:
    """Raises StoreRefusedError for an array that has values which do not count: to the store they all do."""
    if isinstance(value, np.ma.MaskedArray):
        raise StoreRefusedError(f"{where}: it is a masked array, and a mask would be lost: fill it first, .filled(0)")


def _from_dlpack(value: Any) -> Array:
    device, _ = value.__dlpack_device__()
    if device != _CPU:
        raise TypeError(f"{type(value).__name__} is in the memory of a device that has no CUDA array interface")
    array: Array = np.from_dlpack(value)
    return array
