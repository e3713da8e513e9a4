"""What the settings of compressed cases are, by their names."""

from __future__ import annotations

from typing import Final

from store_cases import THRESHOLD
from weft_kvstore.compression.description import CompressionDescription, Kind, StoreCompression

_TWO_BIT: Final = CompressionDescription(Kind.TWO_BIT, threshold=THRESHOLD)
_BF16: Final = CompressionDescription(Kind.BF16, residual=False)

SETTINGS: Final = {
    "bf16": StoreCompression(gradients=CompressionDescription(Kind.BF16), weights=_BF16),
    "fp16": StoreCompression(
        gradients=CompressionDescription(Kind.FP16), weights=CompressionDescription(Kind.FP16, residual=False)
    ),
    "2bit": StoreCompression(gradients=_TWO_BIT),
    "2bit-bf16": StoreCompression(gradients=_TWO_BIT, weights=_BF16),
    "topk": StoreCompression(gradients=CompressionDescription(Kind.TOP_K, ratio=0.01)),
}
