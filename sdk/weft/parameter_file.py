"""Parameters as safetensors: read back from a file, and written to be set. A file is replaced in one move."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.api.job import ParameterInfo
from weft.api.values import AVERAGE, SAFETENSORS, STATE, state_key, state_tensor
from weft.errors import ArgumentError


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of a safetensors file by name, as `JobHandle.save` and `weft params save` write them.

    Raises ArgumentError where the file is none, OSError where it cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    with open(path, "rb"):  # safetensors' own error does not say which file is missing
        pass
    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:  # KeyError: an element type that NumPy has not
        raise ArgumentError(
            f"{os.fspath(path)} is no safetensors file of NumPy's element types ({error}): job.save(path) and `weft "
            "params save` write one"
        ) from None


def refuse_parameter_file(path: str | os.PathLike[str], instead: str) -> None:
    """Raises ArgumentError where an ONNX file would get the name of a safetensors file."""
    if os.fspath(path).endswith(SAFETENSORS):
        remedy = f"end its name in .onnx, or write the parameters alone with {instead}"
        raise ArgumentError(f"{os.fspath(path)} would be an ONNX file: {remedy}")


def save_values(values: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write arrays by name as a safetensors file. Raises OSError."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, path)


def document_of(values: Mapping[str, Any], parameters: Sequence[ParameterInfo]) -> bytes:
    """The values as a safetensors document, each with its parameter's element type and shape.

    A number fills its parameter. Raises ArgumentError, which names what does not fit.
    """
    from safetensors.numpy import save

    known = {parameter.name: parameter for parameter in parameters}
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ArgumentError(f"the job has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    if not values:
        raise ArgumentError("no parameter is named")
    return save({name: _fitted(known[name], value) for name, value in values.items()})


def averages_of(
    values: Mapping[str, np.ndarray[Any, np.dtype[Any]]], *, state: bool = False
) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Parameters with their averages in their places, of values that came with state; the state too, if asked for.

    What no optimizer updates has no average, and stays as it is. Raises ArgumentError where nothing has one.
    """
    ahead = {state_key(name): array for name, array in values.items() if name.startswith(state_tensor(AVERAGE, ""))}
    if not ahead:
        raise ArgumentError("the job keeps no averages: submit it with ema=0.999")
    kept = {name: array for name, array in values.items() if state or not name.startswith(STATE)}
    return {name: np.asarray(array + ahead[name]) if name in ahead else array for name, array in kept.items()}


def _fitted(parameter: ParameterInfo, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    array = np.asarray(value)
    wanted, shape = np.dtype(parameter.dtype), tuple(parameter.shape)
    lossless = np.can_cast(array.dtype, wanted, casting="same_kind") or (array.ndim == 0 and array.dtype.kind in "iu")
    if not lossless:
        raise ArgumentError(f"{parameter.name!r} is {wanted}, and is to be set from {array.dtype}")
    if array.shape not in {(), shape}:
        raise ArgumentError(f"{parameter.name!r} has shape {shape}, and is to be set from an array of {array.shape}")
    return np.ascontiguousarray(np.broadcast_to(array, shape), dtype=wanted)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file beside `target` that takes its place when the block ends well, and is gone when it does not.

    A link is followed. What is there and no regular file, a device or a pipe, is written to and never replaced.
    Raises OSError, which names what the user named: the folder that cannot be written in, or the target.
    """
    target = target.resolve()
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:
            yield file
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}.partial")
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", os.fspath(target))
    try:
        file = scratch.open("wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(target.parent)) from None
    try:
        with file:
            yield file
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
