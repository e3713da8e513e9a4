"""What `describe` takes as plain data, and what it says of what is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft_kvstore import DescriptionError, Key, describe, read_description


class Odd:
    """Nothing that a document can have."""


def store(**arguments: Any) -> Any:
    return describe({"w": (3,)}, **{"rule": "sgd", **arguments})


ROUND: list[Any] = []
ROUND.append(ROUND)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: store(lr=Odd()), r"^hyper.lr: a number, or a schedule as {\"schedule\": .*, not Odd"),
        (lambda: store(lr=1j), "^hyper.lr: .*, not complex"),
        (lambda: store(lr="0.1"), "^hyper.lr: .*, not '0.1'"),
        (lambda: store(lr=ROUND), "^hyper.lr: .*, not list"),
        (lambda: store(lr=np.ones(3)), "^hyper.lr: .*, not ndarray"),
        (lambda: store(job=Odd()), "^job: .*, not Odd"),
        (lambda: describe({Odd(): (3,)}, rule="sgd"), "^keys: a key is a string or a number, not Odd"),  # type: ignore[dict-item]
        (lambda: describe({"w": (Odd(),)}, rule="sgd"), "^key 'w': shape: "),
        (lambda: describe({"w": Key((3,), initializer=Odd())}, rule="sgd"), "^key 'w': initializer: .*, not Odd"),  # type: ignore[arg-type]
        (
            lambda: describe([Key((3,))], rule="sgd"),
            r"^keys: a mapping from .*, as {\"w\": Key\(shape=\(3,\)\)}, not list",
        ),  # type: ignore[arg-type]
        (lambda: store(commit={"clip": 1.0}), r"^commit: there is no field 'clip'; did you mean 'clip_norm'\?"),
        (lambda: store(average={"dekay": 0.9}), r"^average: there is no field 'dekay'; did you mean 'decay'\?"),
        (lambda: store(compression={"weights": {}}), "^compression.weights: object missing required field `kind`"),
    ],
)
def test_what_is_no_plain_data_is_told_by_field(call: Callable[[], object], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        call()


def test_weights_are_not_compressed_where_no_rule_updates() -> None:
    halves = {"weights": {"kind": "bf16", "residual": False}}
    with pytest.raises(
        DescriptionError, match=r"^compression.weights: it is for keys with update 'rule', and there is"
    ):
        describe({"w": Key((3,), update="gradient")}, compression=halves)  # type: ignore[arg-type]
    both = {"w": Key((3,), update="gradient"), "v": (3,)}  # type: ignore[arg-type]
    assert describe(both, rule="sgd", compression=halves).compression is not None


def test_a_schedule_of_the_sdk_is_the_document_that_it_stands_for(tmp_path: Path) -> None:
    schedule = {"schedule": "cosine", "start": 0.1, "end": 0.0, "steps": 250, "begin": 0}
    warm = {**schedule, "warmup": {"steps": 10, "start": 0.0}}
    assert store(lr=weft.cosine(0.1, steps=250)).hyper == {"lr": schedule}
    assert store(lr=weft.cosine(0.1, steps=250, warmup=10)).hyper == {"lr": warm}
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"keys": [{"key": "w", "shape": [3]}], "rule": "sgd", "hyper": {"lr": schedule}}))
    assert read_description(path) == store(lr=weft.cosine(0.1, steps=250))


def test_a_key_takes_shape_and_dtype_without_their_names() -> None:
    assert Key((4, 2), "float64") == Key(shape=(4, 2), dtype="float64")
    assert describe({"w": Key((4,))}, rule="sgd") == describe({"w": (4,)}, rule="sgd")


@pytest.mark.parametrize("number", [np.float16(0.5), np.float32(0.5), np.float64(0.5), np.longdouble(0.5)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert store(lr=number, slots=np.int64(2), barrier=np.bool_(False)) == store(lr=0.5, slots=2, barrier=False)
