"""How a store's gradients and values travel: what a description says of it, and which codec a key uses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

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


class Kind(StrEnum):
    """What a slice becomes: 16-bit floats, one of {-threshold, 0, threshold} per element, or its largest elements."""

    BF16 = "bf16"
    FP16 = "fp16"
    TWO_BIT = "2bit"
    TOP_K = "topk"


HALVES: Final = frozenset({Kind.BF16, Kind.FP16})

_SINGLE: Final = np.finfo(np.float32)

FIELDS: Final = {"threshold": Kind.TWO_BIT, "ratio": Kind.TOP_K, "count": Kind.TOP_K}
"""The one kind that has each of these."""


class CompressionDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One codec. `threshold` is of 2-bit, in units of the gradient: a normal float32 number. Top-k keeps `count`
    elements of each slice, or `ratio` of them rounded up. `residual`: what a step leaves out is added to the next one;
    2-bit and top-k always do.
    """

    kind: Kind
    threshold: Annotated[float, msgspec.Meta(ge=float(_SINGLE.tiny), le=float(_SINGLE.max))] | None = None
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    count: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
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
    least_bytes: Annotated[int, msgspec.Meta(ge=0)] = LEAST_BYTES

    def pushed(self, key: Any) -> CompressionDescription | None:
        """How gradients of a key, a KeyDescription, travel to its shards."""
        return self.gradients if self._fits(key) else None

    def pulled(self, key: Any) -> CompressionDescription | None:
        """How a key travels to workers that train on it, beyond its first value."""
        return (self.merged if key.update is Update.GRADIENT else self.weights) if self._fits(key) else None

    def _fits(self, key: Any) -> bool:
        """Tables travel by rows, each at steps of its own: their rows have no residual to wait in."""
        small = key.nbytes < self.least_bytes
        return not (key.rows or key.dtype not in DTYPES or small or key.update is Update.MEAN)


def compression_problems(setting: StoreCompression) -> Iterator[str]:
    """What is wrong with it beyond its fields' own bounds; each text begins with the field."""
    for name in ("gradients", "merged", "weights"):
        one: CompressionDescription | None = getattr(setting, name)
        if one is None:
            continue
        for field, kind in FIELDS.items():
            if getattr(one, field) is not None and one.kind is not kind:
                yield f"{name}.{field}: {one.kind.value} has none"
        if one.kind is Kind.TWO_BIT and one.threshold is None:
            yield f"{name}.threshold: 2bit needs one"
        if one.kind is Kind.TOP_K and (one.ratio is None) == (one.count is None):
            yield f"{name}: topk needs either ratio or count"
        if not one.residual and one.kind not in HALVES:
            yield f"{name}.residual: {one.kind.value} needs one, or most of a gradient is lost"
    weights = setting.weights
    if weights is not None and (weights.kind not in HALVES or weights.residual):
        yield (
            f"weights: bf16 or fp16 with residual false, not {weights.kind.value} with residual "
            f"{str(weights.residual).lower()}: a worker that reads a weight must read all of it"
        )


def codec_of(description: CompressionDescription, dtype: np.dtype[Any]) -> Codec:
    """The codec of a description without `compression_problems`, for a key that it compresses."""
    if description.kind is Kind.TWO_BIT:
        assert description.threshold is not None
        return TwoBit(dtype, description.threshold)
    if description.kind is Kind.TOP_K:
        return TopK(dtype, ratio=description.ratio, count=description.count)
    return Half(dtype, description.kind.value, residual=description.residual)
