"""What crosses the wire is JSON that every reader takes."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import TypeAdapter

import weft
from weft.api.event import MetricTaken
from weft.api.optimizer import OptimizerSpec


def refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_still_json_and_comes_back(value: float) -> None:
    taken = MetricTaken(split="train", step=1, values={"loss": value}, samples=2)
    text = taken.model_dump_json()
    json.loads(text, parse_constant=refuse)
    back = MetricTaken.model_validate_json(text).values["loss"]
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    "make", [weft.SGD, weft.Adam, weft.AdamW, weft.Adagrad, weft.RMSprop, weft.Ftrl, weft.LAMB, weft.LARS]
)
def test_an_optimizer_as_json_is_read_as_strictly_as_a_body(make) -> None:  # type: ignore[no-untyped-def]  # any class
    optimizer = make(lr=0.5)
    text = optimizer.model_dump_json()
    assert TypeAdapter(OptimizerSpec).validate_json(text, strict=True) == optimizer
