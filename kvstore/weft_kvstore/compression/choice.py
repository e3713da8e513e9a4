"""Which codec a key uses in a direction. Pure functions of the description, so that both sides agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_kvstore.compression.codec import Codec
from weft_kvstore.compression.description import CompressionDescription, Key, Kind, StoreCompression
from weft_kvstore.compression.half import Half
from weft_kvstore.compression.top_k import TopK
from weft_kvstore.compression.two_bit import TwoBit


@dataclass(frozen=True, slots=True)
class Choice:
    """How some keys travel in one direction; `residual`: what is left out is kept and sent later."""

    codec: Codec
    residual: bool


def pushed_of(setting: StoreCompression | None, key: Key) -> CompressionDescription | None:
    """How the gradients of a key travel, by its own setting or the store's; None: as they are."""
    return None if setting is None else setting.pushed(key)


def pulled_of(setting: StoreCompression | None, key: Key) -> CompressionDescription | None:
    """How a key travels to workers that train on it; None: as it is."""
    return None if setting is None else setting.pulled(key)


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
