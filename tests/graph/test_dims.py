"""Dimensions with names in them, against the same arithmetic on numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from weft_graph.dimensions import MAX_TERMS, Dim, DimensionError, bound, product, quotient, total

NAMES = ("batch", "high", "tokens")
plain = st.one_of(st.integers(0, 7), st.sampled_from(NAMES))
dims = st.recursive(
    plain,
    lambda inner: st.builds(lambda make, parts: make(parts), st.sampled_from([product, total]), st.lists(inner)),
    max_leaves=5,
)
sizes = st.fixed_dictionaries({name: st.integers(0, 9) for name in NAMES})


def number(dim: Dim, values: dict[str, int]) -> int:
    """Python's own arithmetic on the text."""
    value = eval(str(dim), {"__builtins__": {}}, values)
    assert isinstance(value, int)
    return value


@examples()
@given(st.lists(dims, max_size=3), sizes)
def test_sums_and_products_are_those_of_the_numbers(parts: list[Dim], values: dict[str, int]) -> None:
    numbers = [number(part, values) for part in parts]
    assert number(total(parts), values) == sum(numbers)
    assert number(product(parts), values) == math.prod(numbers)


@examples()
@given(dims, dims, dims)
def test_equal_dimensions_are_equal_texts(a: Dim, b: Dim, c: Dim) -> None:
    assert total([a, b, c]) == total([c, total([a, b])])
    assert product([a, total([b, c])]) == total([product([b, a]), product([c, a])])


@examples()
@given(dims, sizes)
def test_a_bound_dimension_is_its_number_and_a_half_bound_one_goes_on(dim: Dim, values: dict[str, int]) -> None:
    assert bound(dim, values) == number(dim, values)
    half = bound(dim, {"batch": values["batch"]})
    assert "batch" not in str(half)
    assert bound(half, values) == bound(dim, values)


@examples()
@given(dims, dims)
def test_a_product_divided_by_a_factor_is_the_other(a: Dim, b: Dim) -> None:
    assert quotient([product([a, b])], [b]) == (None if b == 0 else a)


@pytest.mark.parametrize(
    ("whole", "part"),
    [(["3*batch"], [2]), (["batch"], ["tokens"]), (["batch+1"], ["batch"]), (["3*batch+2"], [3]), ([1], ["batch"])],
)
def test_what_divides_for_some_sizes_alone_does_not_divide(whole: list[Dim], part: list[Dim]) -> None:
    assert quotient(whole, part) is None


def test_texts_are_canonical() -> None:
    assert total(["3*batch", "5*batch"]) == "8*batch"
    assert total([10, "batch"]) == "batch+10"
    assert total(["batch", "tokens*batch", 0, "batch*batch"]) == "batch*batch+batch*tokens+batch"
    assert product(["batch+10", 2, "batch"]) == "2*batch*batch+20*batch"
    assert (total([]), product([]), product([0, "batch"]), total([2, 3])) == (0, 1, 0, 5)


def test_a_sum_without_end_is_refused() -> None:
    many = total(f"d{index}" for index in range(MAX_TERMS))
    assert bound(many, {}) == many
    for make in (lambda: total([many, "more"]), lambda: product([many, many]), lambda: bound(f"{many}+more", {})):
        with pytest.raises(DimensionError, match=f"more than {MAX_TERMS} terms"):
            make()
