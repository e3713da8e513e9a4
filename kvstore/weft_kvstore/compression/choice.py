"""Which codec a key uses in a direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kvstore.compression.codec import Codec
from weft_kvstore.compression.description import CompressionDescription, Kind
from weft_kvstore.compression.half import Half
from weft_kvstore.compression.top_k import TopK
from weft_kvstore.compression.two_bit import TwoBit


def codec_of(description: CompressionDescription, dtype: np.dtype[Any]) -> Codec:
    """The codec of a description that `check_compression` lets pass, for a key that it compresses."""
    if description.kind is Kind.TWO_BIT:
        assert description.threshold is not None
        return TwoBit(dtype, description.threshold)
    if description.kind is Kind.TOP_K:
        return TopK(dtype, ratio=description.ratio, count=description.count)
    return Half(dtype, description.kind.value)
