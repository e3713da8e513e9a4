"""docs/compression.md says what the code does: fields, defaults, the example of a setting, the bytes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft_kvstore.compression.description import (
    LEAST_BYTES,
    CompressionDescription,
    Kind,
    StoreCompression,
    check_compression,
    codec_of,
)

PAGE = (Path(__file__).parents[3] / "docs" / "compression.md").read_text(encoding="utf-8")
EXAMPLES = {
    "bf16": CompressionDescription(Kind.BF16),
    "fp16": CompressionDescription(Kind.FP16),
    "2bit, 0.5": CompressionDescription(Kind.TWO_BIT, threshold=0.5),
    "topk, 3 elements": CompressionDescription(Kind.TOP_K, count=3),
}


def test_the_example_of_a_setting_is_one() -> None:
    (document,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    setting = msgspec.json.decode(document, type=StoreCompression)
    check_compression(setting, "compression")
    assert setting.least_bytes == LEAST_BYTES
    assert f"{LEAST_BYTES:,} unless set" in PAGE


@pytest.mark.parametrize("record", [StoreCompression, CompressionDescription])
def test_every_field_and_kind_is_on_the_page(record: type[msgspec.Struct]) -> None:
    assert all(f"\n| `{field}` |" in PAGE for field in record.__struct_fields__)
    assert all(f"\n| `{kind.value}` |" in PAGE for kind in Kind)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_on_the_page_are_those_of_the_codec(name: str) -> None:
    (shown,) = re.findall(rf"^    {re.escape(name)}  +((?:[0-9a-f]{{2}} ?)+)$", PAGE, re.MULTILINE)
    codec = codec_of(EXAMPLES[name], np.dtype(np.float32))
    payload = codec.encode(np.array([1, -10, 1 / 3, 0, 0.625], np.float32), np.array([0, 5]))
    assert payload.tobytes().hex(" ") == shown
