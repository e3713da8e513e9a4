"""Averages of parameters as users get them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.api import values
from weft.errors import ArgumentError
from weft.parameter_file import averages_of
from weft_kernels import averaging


def test_averages_stand_in_the_place_of_what_has_one() -> None:
    found = averages_of({"w": np.ones(2), "mean": np.zeros(2), "weft.state/weft.average/w": np.full(2, 0.5)})
    assert {name: array.tolist() for name, array in found.items()} == {"w": [1.5, 1.5], "mean": [0.0, 0.0]}


def test_state_stays_where_it_is_asked_for() -> None:
    document = {"a/b": np.ones(1), "weft.state/weft.average/a/b": np.ones(1), "weft.state/momentum/a/b": np.ones(1)}
    assert set(averages_of(document, state=True)) == set(document)
    assert averages_of(document)["a/b"].tolist() == [2.0]


def test_a_job_without_averages_says_how_to_get_them() -> None:
    with pytest.raises(ArgumentError, match=r"submit it with ema=0\.999"):
        averages_of({"w": np.ones(2)})


def test_both_sides_call_the_state_alike() -> None:
    assert values.AVERAGE == averaging.AVERAGE
