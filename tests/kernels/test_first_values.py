"""First values of parameters: their distribution, and that no cut changes them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_graph.check import INITIALIZERS
from weft_graph.ir import GIVEN, Initializer
from weft_kernels.initializers import first_rows, first_values
from weft_kernels.random import draws, first_value_key

ALL = {
    "ConstantOfShape": Initializer("ConstantOfShape", {"value": 0.25}),
    "RandomUniform": Initializer("RandomUniform", {"low": -0.5, "high": 1.5}),
    "RandomNormal": Initializer("RandomNormal", {"mean": 1.0, "scale": 2.0}),
}


def test_every_initializer_that_a_graph_may_hold_is_here() -> None:
    assert {*ALL, GIVEN} == set(INITIALIZERS)


@settings(max_examples=40)
@given(
    cuts=st.lists(st.integers(0, 40_000), max_size=6),
    op_type=st.sampled_from(sorted(ALL)),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)
def test_values_do_not_depend_on_how_the_key_is_cut(cuts: list[int], op_type: str, dtype: str) -> None:
    bounds = [0, *sorted(cuts), 40_000]
    whole = first_values(ALL[op_type], seed=3, key="w", start=0, stop=40_000, dtype=dtype)
    parts = [
        first_values(ALL[op_type], seed=3, key="w", start=start, stop=stop, dtype=dtype)
        for start, stop in pairwise(bounds)
    ]
    joined = np.concatenate(parts)
    assert joined.dtype == whole.dtype == np.dtype(dtype)
    assert joined.tobytes() == whole.tobytes()


@pytest.mark.parametrize("element", [0, 1, 63, 64, 16_383, 16_384, 2**40])
def test_an_element_is_the_formula_of_its_two_draws(element: int) -> None:
    """Written again with the math module, one element at a time."""
    raw = draws(first_value_key(3, "w"), 2 * element, 2)
    first, second = ((int(word) >> 11) / 2**53 for word in raw)
    uniform, normal = (
        first_values(ALL[name], seed=3, key="w", start=element, stop=element + 1, dtype="float64")[0]
        for name in ("RandomUniform", "RandomNormal")
    )
    assert uniform == pytest.approx(-0.5 + 2.0 * first, rel=1e-14)
    radius = math.sqrt(-2 * math.log(1 - first))
    assert normal == pytest.approx(1.0 + 2.0 * radius * math.cos(2 * math.pi * second), rel=1e-12, abs=1e-14)


def test_normal_values_are_normal() -> None:
    """Moments of 200,000 values, each within five standard errors of the normal distribution's."""
    count = 200_000
    values = (first_values(ALL["RandomNormal"], seed=0, key="w", start=0, stop=count, dtype="float64") - 1) / 2
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((values**power).mean() - moment) < 5 * math.sqrt(variance / count)


def test_uniform_values_fill_their_interval() -> None:
    values = first_values(ALL["RandomUniform"], seed=0, key="w", start=0, stop=100_000, dtype="float64")
    assert values.min() >= -0.5
    assert values.max() < 1.5
    counts, _ = np.histogram(values, bins=20, range=(-0.5, 1.5))
    assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-square with 19 degrees of freedom at 0.999


def test_seed_and_key_change_the_values() -> None:
    made = {
        first_values(ALL["RandomNormal"], seed=seed, key=key, start=0, stop=4, dtype="float32").tobytes()
        for seed in (0, 1)
        for key in ("w", "v")
    }
    assert len(made) == 4


def test_no_elements_are_an_empty_array() -> None:
    for initializer in ALL.values():
        assert first_values(initializer, seed=0, key="w", start=5, stop=5, dtype="float32").shape == (0,)


def test_errors_name_the_key_and_the_initializer() -> None:
    with pytest.raises(ValueError, match=r"key 'w': initializer 'Orthogonal'.*not one of ConstantOfShape"):
        first_values(Initializer("Orthogonal"), seed=0, key="w", start=0, stop=1, dtype="float32")
    with pytest.raises(ValueError, match=r"key 'w': initializer 'RandomNormal'.*lacks 'mean'"):
        first_values(Initializer("RandomNormal"), seed=0, key="w", start=0, stop=1, dtype="float32")
    with pytest.raises(ValueError, match="no elements 3 to 2"):
        first_values(ALL["RandomUniform"], seed=0, key="w", start=3, stop=2, dtype="float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 65])
@pytest.mark.parametrize(
    "initializer",
    [
        Initializer("RandomNormal", {"mean": 1.0, "scale": 2.0}),
        Initializer("RandomUniform", {"low": -1.0, "high": 1.0}),
        Initializer("ConstantOfShape", {"value": 3.0}),
    ],
    ids=lambda initializer: initializer.op_type,
)
def test_rows_that_lie_anywhere_have_the_bits_of_the_whole(initializer: Initializer, width: int, dtype: str) -> None:
    """More rows than are made in one go, near the beginning and far beyond what could be made at all."""
    whole = first_values(initializer, seed=5, key="t", start=0, stop=3000 * width, dtype=dtype).reshape(3000, width)
    rows = np.random.Generator(np.random.Philox(1)).permutation(3000)[:1000]
    found = first_rows(initializer, seed=5, key="t", rows=rows, width=width, dtype=dtype)
    assert found.dtype == np.dtype(dtype)
    assert found.tobytes() == whole[rows].tobytes()
    far = np.array([2**52, 2**55 + 1], np.int64)
    for row, values in zip(
        far, first_rows(initializer, seed=5, key="t", rows=far, width=width, dtype=dtype), strict=True
    ):
        start = int(row) * width
        alone = first_values(initializer, seed=5, key="t", start=start, stop=start + width, dtype=dtype)
        assert values.tobytes() == alone.tobytes()
    none = np.zeros(0, np.int64)
    assert first_rows(initializer, seed=5, key="t", rows=none, width=width, dtype=dtype).shape == (0, width)
