"""Arrays that callers give and get: NumPy's, PyTorch's, CuPy's; checked, copied and written in place."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from weft_kernels.cuda.module import import_cupy
from weft_kernels.element_types import computed_in
from weft_kvstore.arrays import Array
from weft_kvstore.description.form import user_key
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreClosedError, StoreError, StoreRefusedError
from weft_kvstore.futures import finished, on_end, then

# --- Arrays as users have them, NumPy's or not, held against what a key is --------------------------------------------
# Copies nothing that need not be copied.


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
    _check_plain(value, where, dtype)
    if isinstance(value, np.ndarray) or is_on_device(value):
        return value
    try:
        if hasattr(value, "__dlpack__"):
            return _from_dlpack(value)
        array = np.asarray(value)
        if isinstance(value, np.generic):
            cast = np.can_cast(array.dtype, computed_in(dtype), "same_kind")
        else:  # Python's whole numbers have no sign of their own: NumPy refuses those that do not fit.
            cast = array.dtype.kind in "biu" or np.can_cast(array.dtype, computed_in(dtype), "same_kind")
        # No elements have no kind, and NumPy calls them float64.
        if array.size and (array.dtype.kind not in "biuf" or not cast):
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


def checked(value: object, dtype: np.dtype[Any], shape: tuple[int, ...], where: str, of: str = "the key") -> Any:
    """`as_array` of that dtype and shape, C-contiguous on the host. Raises StoreRefusedError, which says `of` what they
    are."""
    # A fast check first: a step has hundreds of keys, and its caller waits.
    if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and value.flags.c_contiguous:
        return value
    array = as_array(value, dtype, where)
    found = form_of(array)
    if found != (dtype, shape):
        how = f".to(torch.{dtype})" if _is_tensor(value) else f".astype({str(dtype)!r})"
        hint = f"; convert it with {how}" if found[0] != dtype and found[1] == shape else ""
        raise StoreRefusedError(f"{where}: it is {found[0]}{list(found[1])}, {of} {dtype}{list(shape)}{hint}")
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) and shape else array


def checked_out(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> Any:
    """The array that is to be written, as it is: nothing else would be seen by the caller. Of a parameter that has a
    gradient it is the data. Raises StoreRefusedError."""
    if _is_tensor(out) and out.requires_grad and out.is_leaf:
        out = out.detach()
    _check_plain(out, f"{where}: out", dtype)
    if not isinstance(out, np.ndarray) and not is_on_device(out):
        try:
            views = [_viewed(out) for _ in range(2)] if hasattr(out, "__dlpack__") else []
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


def is_several(value: object, shape: tuple[int, ...]) -> bool:
    """Whether it is a list of arrays of a key's shape: several for one key, as devices have them. A list of numbers, or
    of rows, is one array: its parts have fewer dimensions."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(hasattr(one, "shape") and hasattr(one, "dtype") and len(one.shape) == len(shape) for one in value) and (
        bool(shape) or not any(isinstance(one, np.generic) for one in value)
    )


def user_dtype(key: KeyDescription) -> np.dtype[Any]:
    """Of users' arrays of a key."""
    return np.dtype(key.half or key.dtype)


def as_kept(keys: Sequence[KeyDescription], arrays: Sequence[Array]) -> list[Array]:
    """Users' arrays as the shards keep the keys."""
    return [array.astype(key.dtype, copy=False) for key, array in zip(keys, arrays, strict=True)]


def as_users_have(keys: Sequence[KeyDescription], values: Sequence[Array]) -> list[Array]:
    """Values in the types that users have."""
    with np.errstate(over="ignore"):
        return [value.astype(user_dtype(key), copy=False) for key, value in zip(keys, values, strict=True)]


def sum_of(arrays: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """The sum of arrays of one shape in their order, in `dtype`: a new array. float16 is added up in float32."""
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    total: Array = arrays[0].astype(wide)
    for array in arrays[1:]:
        np.add(total, array, out=total, dtype=wide)
    with np.errstate(over="ignore"):
        return total.astype(dtype, copy=False)


Outs: TypeAlias = list[list[tuple[Any, Any]]]
"""Of each key the arrays that its value goes to: as the caller has given it, and as it is written."""


def checked_ids(ids: object, where: str) -> Any:
    """Ids of rows, whole numbers of any shape; a GPU's array as it is. Raises StoreRefusedError."""
    array = _of_python(ids, where) if isinstance(ids, int | list | tuple) else None
    if array is None:
        array = as_array(ids, np.dtype(np.int64), f"{where}: ids")
    dtype, _ = form_of(array)
    if isinstance(array, np.ndarray) and not array.size:
        return array.astype(np.int64)
    if dtype.kind not in "iu":
        remedy = "convert them with .astype('int64'), once none is NaN"
        if dtype.kind == "b":
            remedy = "np.flatnonzero says which are"
        raise StoreRefusedError(f"{where}: ids: whole numbers, not {dtype}; {remedy}")
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


def _check_plain(value: Any, where: str, dtype: np.dtype[Any]) -> None:
    """Raises StoreRefusedError for what is more than the numbers in its memory, or has such as NumPy has not."""
    detail = None
    if isinstance(value, np.ma.MaskedArray):
        detail = "a masked array, and a mask would be lost: fill it first, .filled(0)"
    elif not isinstance(value, np.ndarray) and _is_tensor(value):
        layout, found = (str(one).removeprefix("torch.") for one in (value.layout, value.dtype))
        if layout != "strided":
            detail = f"a sparse tensor ({layout}): make it dense first, .to_dense()"
        elif found == "bfloat16" == dtype.name and not value.is_cpu:
            detail = "a tensor of bfloat16 that is not on the host: bring it there first, .cpu()"
        elif found not in _OF_NUMPY and not found == "bfloat16" == dtype.name:
            detail = f"a tensor of {found}, which NumPy does not have: convert it first, .to(torch.{dtype})"
        elif value.requires_grad:
            detail = "a tensor that requires a gradient: leave that behind first, .detach()"
        elif value.is_neg():
            detail = "a tensor that is yet to be negated: do that first, .resolve_neg()"
    if detail is not None:
        raise StoreRefusedError(f"{where}: it is {detail}")


def _viewed(value: Any) -> Array:
    """NumPy's view of a tensor of the host."""
    return _bits(value) if _is_bfloat16(value) else np.asarray(value)


def _is_bfloat16(value: Any) -> bool:
    return _is_tensor(value) and str(value.dtype) == "torch.bfloat16"


def _bits(value: Any) -> Array:
    """A tensor of bfloat16, which PyTorch hands to nobody, by way of its bits."""
    array: Array = np.from_dlpack(value.view(sys.modules["torch"].int16)).view("bfloat16")
    return array


def _from_dlpack(value: Any) -> Array:
    if _is_bfloat16(value):
        return _bits(value)
    device, _ = value.__dlpack_device__()
    if device != _CPU:
        raise TypeError(f"{type(value).__name__} is in the memory of a device that has no CUDA array interface")
    array: Array = np.from_dlpack(value)
    return array


# --- A user's arrays on their way between the host and a GPU: CuPy, pinned memory, events, one thread -----------------


DeviceArray = Any
"""CuPy's array."""

R = TypeVar("R")


class ArrayTraffic:
    """Arrays of the host pass at once; CuPy is loaded, and a thread started, when the first one of a GPU comes. Those
    may be of any library with the CUDA array interface, and of any GPU. No caller waits for a copy.

    Of one key, what was brought first begins first: where an array of a GPU is under way, what comes after it waits
    behind it, in the order of the copies. `under_way` counts by key what is on its way to the host and has not begun.
    """

    def __init__(self) -> None:
        self.under_way: Counter[str] = Counter()
        self._cupy: Any = None
        self._pool: ThreadPoolExecutor | None = None
        """Waits for copies in the order in which they were begun."""
        self._thread: int | None = None
        self._streams: dict[int, Any] = {}
        self._lock = threading.Lock()
        """Held while something of this is made, and while what is under way is counted."""

    def close(self) -> None:
        """Ends after the copies that were begun. Idempotent."""
        with self._lock:
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=threading.get_ident() != self._thread)

    def load(self, values: list[Any]) -> None:
        """Raises StoreError where arrays cannot be brought, as CuPy is not installed."""
        if any(map(is_on_device, values)):
            self._loaded()

    def bring(
        self, where: str, names: Sequence[str], values: list[Any], begin: Callable[[list[Array]], Future[R]]
    ) -> Future[R]:
        """Begins with these arrays once all of them are on the host and all of before, of these keys, has begun: at
        once where that is so. What raises has begun nothing. Arrays of a GPU are copied behind what the caller's stream
        has under way, and held until then; what is started later may write them only then."""
        there = [number for number, value in enumerate(values) if is_on_device(value)]
        if not there and (not self.under_way or self.under_way.keys().isdisjoint(names)):
            return begin(values)
        cupy = self._loaded()
        started = [self._start_to_host(cupy.asarray(values[number])) for number in there]

        def finish() -> list[Array]:
            found = list(values)
            for number, (source, host, done) in zip(there, started, strict=True):
                with source.device:
                    done.synchronize()
                found[number] = host
            return found

        copied = self._put(finish, _where(where, names))
        with self._lock:
            self.under_way.update(names)
        begun = then(copied, begin)
        on_end(copied, lambda _: self._has_begun(names))  # After `begin`, or where there is none.
        return begun

    def deliver(
        self, where: str, names: Sequence[str], pulled: Future[list[Any]], outs: Outs, *, single: bool
    ) -> Future[Any]:
        """What was pulled, of each key in the caller's own arrays where some were given, which are the result then.
        Those of a GPU are written behind what the caller's stream has under way now: kernels may read them until then.
        Once the future has ended any stream may read them."""
        targets: list[tuple[int, DeviceArray, Any]] = []
        for number, written in [(number, one) for number, group in enumerate(outs) for _, one in group]:
            if is_on_device(written):
                array = self._loaded().asarray(written)
                with array.device:
                    targets.append((number, array, self._cupy.cuda.get_current_stream().record()))

        def give(values: list[Any]) -> Future[Any]:
            found = []
            for value, group in zip(values, outs, strict=True):
                for _, written in group:
                    if written is not value and not is_on_device(written):
                        np.copyto(written, value)
                delivered = [out for out, _ in group] or [value]
                found.append(delivered if len(delivered) > 1 else delivered[0])
            result = found[0] if single else found
            if not targets:
                return finished(result)

            def finish() -> Any:
                for number, array, free in targets:
                    with array.device:
                        stream = self._stream(array.device.id)
                        with stream:
                            stream.wait_event(free)
                            array[...] = self._cupy.asarray(values[number])
                        stream.synchronize()
                return result

            return self._put(finish, _where(where, names))

        return then(pulled, give)

    def _start_to_host(self, array: DeviceArray) -> tuple[DeviceArray, Array, Any]:
        """Begins a copy to pinned memory: what is copied, where to, and the event that ends it."""
        with array.device:
            source = self._cupy.ascontiguousarray(array)
            computed = self._cupy.cuda.get_current_stream().record()
            stream = self._stream(array.device.id)
            with stream:
                stream.wait_event(computed)
                memory = self._cupy.cuda.alloc_pinned_memory(max(source.nbytes, 1))
                host: Array = np.ndarray(source.shape, source.dtype, buffer=memory)
                source.get(out=host, blocking=False)
                return source, host, stream.record()

    def _stream(self, device: int) -> Any:
        """The stream for copies of a GPU, which is the current one."""
        with self._lock:
            if device not in self._streams:
                self._streams[device] = self._cupy.cuda.Stream(non_blocking=True)
            return self._streams[device]

    def _put(self, work: Callable[[], R], where: str) -> Future[R]:
        """Has work done on the thread for copies. `where` begins its errors."""

        def carry_out() -> R:
            try:
                return work()
            except Exception as error:
                raise StoreError(f"{where}: a copy between GPU and host failed: {error}") from error

        assert self._pool is not None
        try:
            return self._pool.submit(carry_out)
        except RuntimeError:
            future: Future[R] = Future()
            future.set_exception(StoreClosedError(f"{where}: the store was closed"))
            return future

    def _has_begun(self, names: Sequence[str]) -> None:
        with self._lock:
            self.under_way.subtract(names)
            for name in names:
                if not self.under_way[name]:
                    del self.under_way[name]

    def _loaded(self) -> Any:
        """CuPy; there is a thread for copies too. Raises StoreError where it is not installed."""
        with self._lock:
            if self._pool is None:
                try:
                    self._cupy = import_cupy()
                except ImportError as error:
                    detail = f"an array of a GPU was given, and CuPy is not there: pip install 'weft[cuda]' ({error})"
                    raise StoreError(detail) from None

                def begin() -> None:
                    self._thread = threading.get_ident()

                self._pool = ThreadPoolExecutor(1, "weft-store-copies", begin)
            return self._cupy


def _where(call: str, names: Sequence[str]) -> str:
    """How an error of a call of some keys begins."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{call} of key {user_key(names[0])!r}{more}" if names else call
