"""What dimensions are computed from, against the same arithmetic on numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from weft_graph.dimensions import (
    Amount,
    as_dim,
    at_most,
    bound,
    is_natural,
    is_unknown,
    larger,
    minus,
    over,
    plus,
    quotient,
    remainder,
    sign,
    smaller,
    times,
    total,
)
from weft_graph.shapes.arranging import bounds_of, sliced, split_sizes

NAMES = ("batch", "tokens")
amounts = st.recursive(
    st.one_of(st.integers(-4, 7), st.sampled_from(NAMES)),
    lambda inner: st.builds(lambda make, a, b: make(a, b), st.sampled_from([plus, minus, times]), inner, inner),
    max_leaves=5,
)
sizes = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})


def number(amount: Amount, values: dict[str, int]) -> int:
    assert amount is not None
    value = eval(str(amount), {"__builtins__": {}}, values)
    assert isinstance(value, int)
    return value


@examples()
@given(amounts, amounts, sizes)
def test_what_is_said_is_what_numbers_give(a: Amount, b: Amount, values: dict[str, int]) -> None:
    x, y = number(a, values), number(b, values)
    exact: list[tuple[Callable[[Amount, Amount], Amount], int]] = [
        (plus, x + y),
        (minus, x - y),
        (times, x * y),
        (larger, max(x, y)),
        (smaller, min(x, y)),
    ]
    for operate, expected in exact:
        result = operate(a, b)
        if result is not None and not is_unknown(result):
            assert number(result, values) == expected, operate
    if y > 0 and x >= 0:
        for operate, expected in ((over, x // y), (remainder, x % y)):
            result = operate(a, b)
            if result is not None and not is_unknown(result):
                assert number(result, values) == expected, operate
    if is_natural(a):
        assert x >= 0
    if sign(a) is not None:
        assert (x > 0) - (x < 0) == sign(a)


@examples()
@given(amounts, amounts)
def test_what_is_taken_and_put_back_is_the_same(a: Amount, b: Amount) -> None:
    assert plus(minus(a, b), b) == a
    product = times(a, b)
    if product not in {None, 0} and b is not None:
        assert quotient((product,), (b,)) == a  # type: ignore[arg-type]  # it is not None


def test_what_no_polynomial_says_has_one_name_for_the_same_parts() -> None:
    assert over("batch", 2) == over("batch", 2) != over("tokens", 2)
    assert over("4*batch+tokens+5", 4) == total(("batch", 1, str(over("tokens+1", 4))))
    assert larger("batch", "tokens") == larger("tokens", "batch")
    assert remainder("4*batch+3", 4) == 3
    assert remainder(-1, "batch") == "batch-1"
    assert over("batch*tokens", "tokens") == "batch"
    assert (over("batch", 0), remainder("batch", 0), over(None, 2), times(None, 0)) == (None, None, None, 0)


def test_a_dimension_with_a_term_below_0_is_bound_and_written_in_one_form() -> None:
    assert minus("tokens", 1) == "tokens-1"
    assert bound("tokens-1", {"tokens": 5}) == 4
    assert minus(3, "tokens") == "-tokens+3"
    assert total(("tokens-1", 1)) == "tokens"
    assert as_dim("tokens-1") == "tokens-1"
    assert is_unknown(as_dim("-tokens-1"))


def test_the_largest_size_leaves_out_what_only_takes_away() -> None:
    assert at_most("2*?n+3", {"?n": 5}) == 13
    assert at_most("batch-?n", {"?n": 5}) == "batch"
    assert at_most("?n*?m", {"?n": 5}) == "5*?m"


@pytest.mark.parametrize(
    ("dim", "bounds", "expected"),
    [
        ("n", (0, "n", 1), "n"),
        ("n", (1, 1 << 62, 1), "n-1"),
        ("n", (0, -1, 1), "n-1"),
        ("n", (1, -1, 1), "n-2"),
        (1024, (0, "n", 1), "n"),
        ("n", ("k", "n", 1), "-k+n"),
        ("n", (0, 1 << 62, 2), over("n+1", 2)),
        ("2*n", (0, 1 << 62, 2), "n"),
        ("n", (-1, -(1 << 62), -1), "n"),
        (6, (1, 5, 2), 2),
    ],
)
def test_parts_of_a_named_dimension(dim: int | str, bounds: tuple[int | str, int | str, int], expected: object) -> None:
    start, end, step = bounds
    taken = bounds_of(1, [start], [end], [0], [step])
    assert sliced((dim,), taken, lambda: "?new") == (expected,)


def test_parts_whose_bounds_a_step_decides_are_of_unknown_length() -> None:
    assert sliced((4, 5), bounds_of(2, [None], [3], [1]), lambda: "?new") == (4, "?new")
    assert sliced((4, 5), bounds_of(2, [0], [3], [None]), lambda: "?new") == ("?new", "?new")
    with pytest.raises(ValueError, match="name dimension 1 twice"):
        bounds_of(2, [0, 0], [1, 1], [1, -1])


def test_pieces_of_a_named_dimension() -> None:
    assert split_sizes("2*n", 2, None) == ("n", "n")
    assert split_sizes("n", 2, [2, "n-2"]) == (2, "n-2")
    assert split_sizes("n", 2, [None, 3]) == (None, 3)
    with pytest.raises(ValueError, match="adds up to n, and the dimension is 7"):
        split_sizes(7, 2, [2, "n-2"])
