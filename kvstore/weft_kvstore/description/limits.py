"""How large a store may be, and its first numbers: what nobody could lay out is told before anybody tries. Pure."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.description.check import DTYPES, DescriptionError
from weft_kvstore.description.records import InitializerDescription, KeyDescription, StoreDescription

MAX_SLOTS: Final = 1 << 16
"""Of a store: each shard counts the steps of each slot, of every slice."""

MAX_SLICES: Final = 1 << 24
"""Of all keys: every process deals each of them to a shard. 2 TiB, of the slices that are cut unless told."""

MAX_DIMENSIONS: Final = 64
MAX_BYTES: Final = (1 << 63) - 1
"""What an array of NumPy has at most."""

MAX_PORT: Final = (1 << 16) - 1


def check_slots(slots: int) -> None:
    """Raises DescriptionError for more slots than there may be; to be called before anything has one entry for each."""
    if slots > MAX_SLOTS:
        raise DescriptionError(f"slots: at most {MAX_SLOTS}, not {slots}")


def check_size(description: StoreDescription) -> None:
    """Raises DescriptionError for the first key that is too large, or whose first value would be infinite. The
    description is a legal one else."""
    check_slots(description.slots)
    slices = 0
    for key in description.keys:
        _check_shape(key)
        _check_first_value(key)
        if not key.rows:
            slices += -(-key.nbytes // description.slice_bytes)
        if slices > MAX_SLICES:
            told = f"with it there are {slices} slices of {description.slice_bytes} bytes, {MAX_SLICES} may be"
            raise DescriptionError(f"key {key.key!r}: {told}; a larger slice_bytes makes fewer")


def check_first(number: float, dtype: str, where: str) -> None:
    """Raises DescriptionError where a key cannot have this as the first value of each element; `where` begins it. Of a
    dtype that there is not, nothing is said."""
    if dtype not in DTYPES:
        return
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.dtype(dtype).type(number)))
    else:
        limits = np.iinfo(dtype)
        fits = float(number).is_integer() and limits.min <= number <= limits.max
    if not fits:
        raise DescriptionError(f"{where}: {number!r} is no {dtype}")


def check_drawn(initializer: InitializerDescription, dtype: str, where: str) -> None:
    """Raises DescriptionError where the numbers of an initializer, or the width of a range, are none that a key of a
    floating type can have: its first values would be infinite."""
    numbers = {name: one for name, one in initializer.attributes.items() if isinstance(one, int | float)}
    if dtype not in DTYPES or np.dtype(dtype).kind != "f":
        return
    if {"low", "high"} <= numbers.keys():
        numbers["high - low"] = numbers["high"] - numbers["low"]
    for name, number in numbers.items():
        check_first(number, dtype, f"{where}: {name}")


def check_port(endpoint: str, where: str) -> None:
    """Raises DescriptionError for a port that there is not: a socket would take another one instead."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > MAX_PORT:
        raise DescriptionError(f"{where}: a port from 0 to {MAX_PORT}, not {port}")


def check_text(text: str, where: str) -> None:
    """Raises DescriptionError for what cannot be sent: half of a pair of surrogates, which JSON can say."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DescriptionError(f"{where}: {text!r} is no text: {error.reason}") from None


def _check_shape(key: KeyDescription) -> None:
    if len(key.shape) > MAX_DIMENSIONS:
        raise DescriptionError(f"key {key.key!r}: shape: {len(key.shape)} dimensions, {MAX_DIMENSIONS} may be")
    nbytes = math.prod(max(extent, 1) for extent in key.shape) * np.dtype(key.dtype).itemsize
    if nbytes > MAX_BYTES:
        raise DescriptionError(f"key {key.key!r}: shape {key.shape} of {key.dtype}: more than 2^63 - 1 bytes")


def _check_first_value(key: KeyDescription) -> None:
    """What a file in the short form is told of at once: one that has the description whole says it here."""
    where, initializer = f"key {key.key!r}: initializer", key.initializer
    if key.update is Update.GRADIENT:  # It begins as zeros, whatever is said.
        return
    check_drawn(initializer, key.dtype, where)
    value = initializer.attributes.get("value")
    if initializer.op_type == "ConstantOfShape" and value is not None:
        check_first(value, key.dtype, where)
