"""How a job says what travels compressed, which of its keys do, and that the page says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from weft_graph.program import Update
from weft_kvstore.compression import Half, TopK, TwoBit
from weft_kvstore.description.check import compression_problems
from weft_kvstore.description.records import (
    LEAST_BYTES,
    CompressionDescription,
    InitializerDescription,
    KeyDescription,
    Kind,
    StoreCompression,
    codecs_of,
)
from weft_kvstore.sharding import codec_of

TWO_BIT = CompressionDescription(Kind.TWO_BIT, threshold=0.5)
TOP_K = CompressionDescription(Kind.TOP_K, ratio=0.01)
BF16 = CompressionDescription(Kind.BF16, residual=False)
ALL = StoreCompression(gradients=TOP_K, merged=TWO_BIT, weights=BF16)


def key(update: Update = Update.RULE, dtype: str = "float32", elements: int = 4096, **more: Any) -> KeyDescription:
    return KeyDescription("w", dtype, (elements,), InitializerDescription("Zeros", {}), update, 0, (0, 1), **more)


def read(document: dict[str, Any]) -> StoreCompression:
    return msgspec.convert(document, StoreCompression)


def test_a_setting_is_read_from_its_json() -> None:
    document = {
        "gradients": {"kind": "topk", "ratio": 0.01},
        "merged": {"kind": "2bit", "threshold": 0.5},
        "weights": {"kind": "bf16", "residual": False},
        "least_bytes": 16384,
    }
    assert read(document) == ALL
    assert list(compression_problems(ALL)) == []
    assert msgspec.json.decode(msgspec.json.encode(ALL), type=StoreCompression) == ALL


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"gradient": {}}, "unknown field `gradient`"),
        ({"gradients": {"kind": "1bit"}}, r"Invalid enum value '1bit' - at `\$.gradients.kind`"),
        ({"gradients": {}}, r"missing required field `kind` - at `\$.gradients`"),
        ({"gradients": {"kind": "2bit", "treshold": 1}}, r"unknown field `treshold` - at `\$.gradients`"),
        ({"weights": {"kind": "bf16", "residual": 1}}, r"Expected `bool`, got `int` - at `\$.weights.residual`"),
    ],
)
def test_json_that_does_not_fit_is_refused_by_path(document: dict[str, Any], told: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=told):
        read(document)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"gradients": {"kind": "2bit"}}, "gradients.threshold: 2bit needs one"),
        ({"merged": {"kind": "bf16", "threshold": 1.0}}, "merged.threshold: bf16 has none"),
        ({"merged": {"kind": "2bit", "threshold": 1.0, "ratio": 0.5}}, "merged.ratio: 2bit has none"),
        ({"merged": {"kind": "fp16", "count": 5}}, "merged.count: fp16 has none"),
        ({"gradients": {"kind": "topk"}}, "gradients: topk needs either ratio or count"),
        ({"gradients": {"kind": "topk", "ratio": 0.1, "count": 1}}, "gradients: topk needs either ratio or count"),
        (
            {"gradients": {"kind": "topk", "ratio": 0.1, "residual": False}},
            "gradients.residual: topk needs one, or most of a gradient is lost",
        ),
        (
            {"weights": {"kind": "bf16"}},
            "weights: bf16 or fp16 with residual false, not bf16 with residual true: "
            "a worker that reads a weight must read all of it",
        ),
        (
            {"weights": {"kind": "2bit", "threshold": 1.0}},
            "weights: bf16 or fp16 with residual false, not 2bit with residual true: "
            "a worker that reads a weight must read all of it",
        ),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_field(document: dict[str, Any], told: str) -> None:
    assert told in list(compression_problems(read(document)))


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"least_bytes": -1}, r"`int` >= 0 - at `\$\.least_bytes"),
        *(
            ({"gradients": {"kind": "2bit", "threshold": bad}}, r"at `\$\.gradients\.threshold")
            for bad in (0.0, -1.0, 1e-46, 1e-39, 1e39, float("inf"), float("nan"))
        ),
        *(
            ({"gradients": {"kind": "topk", "ratio": bad}}, r"at `\$\.gradients\.ratio")
            for bad in (0.0, 1.5, float("nan"))
        ),
        *(({"gradients": {"kind": "topk", "count": bad}}, r"at `\$\.gradients\.count") for bad in (0, 2**31)),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_path(document: dict[str, Any], told: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=told):
        read(document)


def test_each_direction_of_each_kind_of_key_has_its_own_setting() -> None:
    assert codecs_of(key(), ALL) == (TOP_K, BF16)
    merged = key(Update.GRADIENT)
    assert codecs_of(merged, ALL) == (TOP_K, TWO_BIT)
    none = StoreCompression()
    assert codecs_of(key(), none) == codecs_of(merged, none) == codecs_of(key(), None) == (None, None)
    assert codecs_of(key(compression=none), ALL) == (None, None)


@pytest.mark.parametrize(
    "left",
    [
        key(Update.MEAN),
        key(dtype="int32"),
        key(dtype="float16", elements=1 << 20),
        key(rows=True),
        key(elements=LEAST_BYTES // 4 - 1),
    ],
    ids=["running statistics", "integers", "two-byte floats", "a table", "a small key"],
)
def test_what_is_left_as_it_is(left: KeyDescription) -> None:
    assert codecs_of(left, ALL) == (None, None)


def test_the_least_size_is_a_setting() -> None:
    every = msgspec.structs.replace(ALL, least_bytes=0)
    assert codecs_of(key(elements=1), every)[0] == TOP_K
    assert codecs_of(key(elements=LEAST_BYTES // 4), ALL)[0] == TOP_K


@pytest.mark.parametrize(
    ("description", "kind", "nbytes"),
    [
        (TWO_BIT, TwoBit, 28),
        (TOP_K, TopK, 6),
        (CompressionDescription(Kind.TOP_K, count=7), TopK, 42),
        (BF16, Half, 200),
        (CompressionDescription(Kind.FP16), Half, 200),
    ],
)
def test_a_description_has_its_codec(description: CompressionDescription, kind: type, nbytes: int) -> None:
    codec = codec_of(description, np.dtype(np.float32))
    assert isinstance(codec, kind)
    assert codec.nbytes(np.array([100])).tolist() == [nbytes]


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
    assert list(compression_problems(setting)) == []
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
