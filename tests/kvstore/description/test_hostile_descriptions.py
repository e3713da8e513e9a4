"""Descriptions that nobody could serve are refused at once, by the field, and before anything is laid out for them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weft_kvstore import Key, describe
from weft_kvstore.description.check import MAX_SLICES, DescriptionError
from weft_kvstore.description.form import read_description

KEY = {"key": "w", "shape": [3]}
LARGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slots": 10**9}, "slots: at most 65536, not 1000000000"),
        ({"slots": LARGEST}, "slots: at most 65536"),
        ({"keys": [{**KEY, "shape": [LARGEST, LARGEST]}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [0, LARGEST]}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [1 << 62, 4], "rows": True}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [1] * 65}]}, "key 'w': shape: 65 dimensions, 64 may be"),
        ({"keys": [{**KEY, "shape": [MAX_SLICES]}], "slice_bytes": 1}, "key 'w': with it there are 67108864 slices"),
        ({"shards": ["tcp://127.0.0.1:65536"]}, r"shards\[0\]: a port from 0 to 65535, not 65536"),
        ({"keys": [{**KEY, "key": "\ud800"}]}, r"keys\[0\].key: '\\ud800' is no text"),
        ({"job": "\ud800"}, r"job: '\\ud800' is no text"),
        ({"keys": [{**KEY, "initializer": 1e39}]}, r"key 'w': initializer: 1e\+39 is no float32"),
        (
            {"keys": [{**KEY, "initializer": {"uniform": [-1e39, 0]}}]},
            r"key 'w': initializer: low: -1e\+39 is no float32",
        ),
        (
            {"keys": [{**KEY, "initializer": {"uniform": [-3e38, 3e38]}}]},
            r"initializer: high - low: 6e\+38 is no float32",
        ),
        (
            {"keys": [{**KEY, "initializer": {"op_type": "RandomNormal", "attributes": {"mean": 0.0, "scale": 1e39}}}]},
            r"key 'w': initializer: scale: 1e\+39 is no float32",
        ),
        ({"keys": [{**KEY, "initializer": 300, "dtype": "int8", "update": "mean"}]}, "initializer: 300.* is no int8"),
        ({"keys": [{**KEY, "initializer": 1.5, "dtype": "int8", "update": "mean"}]}, "initializer: 1.5 is no int8"),
    ],
)
def test_what_is_too_large_names_the_field(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"rule": "sgd", "keys": [KEY], **changes}))
    with pytest.raises(DescriptionError, match=told):
        read_description(path)


@pytest.mark.parametrize(
    ("initializer", "dtype", "told"),
    [
        ({"op_type": "ConstantOfShape", "attributes": {"value": 1e39}}, "float32", r"1e\+39 is no float32"),
        ({"op_type": "ConstantOfShape", "attributes": {"value": 300.0}}, "int8", "300.0 is no int8"),
        (
            {"op_type": "RandomUniform", "attributes": {"low": -6e4, "high": 6e4}},
            "float16",
            r"high - low: 120000\.0 is no float16",
        ),
    ],
)
def test_a_description_that_is_written_whole_is_held_to_the_same(
    tmp_path: Path, initializer: dict[str, Any], dtype: str, told: str
) -> None:
    whole = json.loads(msgspec.json.encode(describe({"w": Key(shape=(3,), dtype=dtype, update="mean")})))
    path = tmp_path / "store.json"
    path.write_text(json.dumps(whole))
    assert read_description(path).keys[0].dtype == dtype
    whole["keys"][0]["initializer"] = initializer
    path.write_text(json.dumps(whole))
    with pytest.raises(DescriptionError, match=f"store.json: key 'w': initializer: {told}"):
        read_description(path)


def test_a_pipe_is_no_description_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    os.mkfifo(path)
    with pytest.raises(DescriptionError, match="no regular file"):
        read_description(path)


def test_what_just_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    keys = [{**KEY, "initializer": -128, "dtype": "int8", "update": "mean"}]
    path.write_text(json.dumps({"rule": "sgd", "keys": keys, "slots": 1 << 16, "shards": ["tcp://a:65535"]}))
    assert read_description(path).slots == 1 << 16
