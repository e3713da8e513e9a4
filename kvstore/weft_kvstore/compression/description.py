"""How a store's gradients and values travel: what a description says of it, and which codec a key uses. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_kvstore.compression.codecs import Codec, Half, TopK, TwoBit

# --- How a job's gradients and values are compressed on their way, and how one of its keys is -------------------------


DTYPES: Final = frozenset({"float32", "float64"})
"""Keys of these are compressed. Integers have no residual, and two-byte floats would lose it in their own rounding."""

LEAST_BYTES: Final = 16 << 10
"""Of a key's value. Smaller keys are biases and the scales of normalizations: 0.2 % of the bytes of ResNet-50, and what
training bears worst to have rounded; and encoding one costs more time than its bytes take at 10 Gbit/s."""


class Key(Protocol):
    """What decides about a key, as its description has it; `nbytes` of its value."""

    @property
    def update(self) -> Update: ...

    @property
    def dtype(self) -> str: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def rows(self) -> bool: ...


class CompressionError(ValueError):
    """A setting that cannot be meant; the text names the field."""


class Kind(StrEnum):
    """What a slice becomes: 16-bit floats, one of {-threshold, 0, threshold} per element, or its largest elements."""

    BF16 = "bf16"
    FP16 = "fp16"
    TWO_BIT = "2bit"
    TOP_K = "topk"


HALVES: Final = frozenset({Kind.BF16, Kind.FP16})


class CompressionDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One codec. `threshold` is 2-bit's, in units of the gradient. Top-k keeps `count` elements of each slice, or
    `ratio` of them rounded up. `residual`: what a step leaves out is added to the next one; 2-bit and top-k always do.
    """

    kind: Kind
    threshold: float | None = None
    ratio: float | None = None
    count: int | None = None
    residual: bool = True


class StoreCompression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What travels compressed, of a job or of one key: each direction on its own, None as it is.

    `gradients`: from workers to shards. `merged`: merged gradients to workers that update themselves. `weights`: values
    that shards update, to workers; rounded afresh each time, so they have no residual, and every worker reads the same.
    `least_bytes`: keys with a smaller value are left as they are.
    """

    gradients: CompressionDescription | None = None
    merged: CompressionDescription | None = None
    weights: CompressionDescription | None = None
    least_bytes: int = LEAST_BYTES

    def pushed(self, key: Key) -> CompressionDescription | None:
        """How gradients of a key travel to its shards."""
        return self.gradients if self._fits(key) and key.update is not Update.MEAN else None

    def pulled(self, key: Key) -> CompressionDescription | None:
        """How a key travels to workers that train on it, beyond its first value."""
        if not self._fits(key) or key.update is Update.MEAN:
            return None
        return self.merged if key.update is Update.GRADIENT else self.weights

    def _fits(self, key: Key) -> bool:
        """Tables travel by rows, each at steps of its own: their rows have no residual to wait in."""
        return not key.rows and key.dtype in DTYPES and key.nbytes >= self.least_bytes


def check_compression(setting: StoreCompression, where: str) -> None:
    """Raises CompressionError for the first thing that is wrong; `where` is the field that has the setting."""
    if setting.least_bytes < 0:
        raise CompressionError(f"{where}.least_bytes: at least 0, not {setting.least_bytes}")
    for name in ("gradients", "merged", "weights"):
        one = getattr(setting, name)
        if one is not None:
            _check(one, f"{where}.{name}")
    weights = setting.weights
    if weights is not None and (weights.kind not in HALVES or weights.residual):
        raise CompressionError(
            f"{where}.weights: bf16 or fp16 with residual false, not {_named(weights)}: "
            "a worker that reads a weight must read all of it"
        )


def _check(one: CompressionDescription, where: str) -> None:
    for name, kinds in (("threshold", {Kind.TWO_BIT}), ("ratio", {Kind.TOP_K}), ("count", {Kind.TOP_K})):
        if getattr(one, name) is not None and one.kind not in kinds:
            raise CompressionError(f"{where}.{name}: {one.kind.value} has none")
    if one.kind is Kind.TWO_BIT:
        _check_threshold(one.threshold, f"{where}.threshold")
    if one.kind is Kind.TOP_K:
        _check_top(one, where)
    if not one.residual and one.kind not in HALVES:
        raise CompressionError(f"{where}.residual: {one.kind.value} needs one, or most of a gradient is lost")


def _check_threshold(threshold: float | None, where: str) -> None:
    if threshold is None:
        raise CompressionError(f"{where}: 2bit needs one")
    single = np.finfo(np.float32)
    if not float(single.tiny) <= threshold <= float(single.max):  # False for NaN
        raise CompressionError(f"{where}: a normal float32 number above 0, not {threshold}")


def _check_top(one: CompressionDescription, where: str) -> None:
    if (one.ratio is None) == (one.count is None):
        raise CompressionError(f"{where}: topk needs either ratio or count")
    if one.ratio is not None and not (math.isfinite(one.ratio) and 0 < one.ratio <= 1):
        raise CompressionError(f"{where}.ratio: above 0 and at most 1, not {one.ratio}")
    if one.count is not None and not 1 <= one.count < 2**31:
        raise CompressionError(f"{where}.count: at least 1 and below 2^31, not {one.count}")


def _named(one: CompressionDescription) -> str:
    return f"{one.kind.value} with residual {str(one.residual).lower()}"


# --- Which codec a key uses in a direction ----------------------------------------------------------------------------
# Pure functions of the description, so that both sides agree.


@dataclass(frozen=True, slots=True)
class Choice:
    """How some keys travel in one direction; `residual`: what is left out is kept and sent later."""

    codec: Codec
    residual: bool


def choice_of(description: CompressionDescription | None, dtype: str) -> Choice | None:
    """The choice for keys of a dtype that this describes."""
    if description is None:
        return None
    return Choice(codec_of(description, np.dtype(dtype)), description.residual)


def codec_of(description: CompressionDescription, dtype: np.dtype[Any]) -> Codec:
    """The codec of a description that `check_compression` lets pass, for a key that it compresses."""
    if description.kind is Kind.TWO_BIT:
        assert description.threshold is not None
        return TwoBit(dtype, description.threshold)
    if description.kind is Kind.TOP_K:
        return TopK(dtype, ratio=description.ratio, count=description.count)
    return Half(dtype, description.kind.value)
