"""Rules on some rows of a table: the same bits however the rows are divided, and nothing else is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rule_documents import normalized
from weft_kernels.rules import rows as rule_rows
from weft_kernels.rules.lookup import rule_from, rules
from weft_kernels.rules.record import Rule
from weft_kernels.rules.rows import apply_to_rows

Array = np.ndarray[Any, np.dtype[Any]]


def drawn(rule: Rule, dtype: str, width: int) -> tuple[Array, dict[str, Array], Array, Array]:
    """Weight and state of 50 rows, 23 of them in any order, and gradients of those."""
    draw = np.random.default_rng(width)
    arrays = {name: draw.uniform(0.1, 1, (50, width)).astype(dtype) for name in ("weight", *rule.state)}
    places = draw.permutation(50)[:23]
    return arrays.pop("weight"), arrays, places, draw.normal(size=(23, width)).astype(dtype)


@pytest.mark.parametrize("width", [1, 3, 64, 67])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [name for name, rule in rules().items() if not rule.whole])
def test_rows_are_updated_to_the_bits_of_the_elements(name: str, dtype: str, width: int) -> None:
    rule = rules()[name]
    weight, state, places, gradient = drawn(rule, dtype, width)
    expected, expected_state = weight.copy(), {each: array.copy() for each, array in state.items()}
    for row, place in enumerate(places):
        own = {each: array[place] for each, array in expected_state.items()}
        rule.apply(expected[place], gradient[row].copy(), own, 3, rule.hyper)
    out = np.empty_like(gradient)
    apply_to_rows(rule, weight, gradient, state, places, step=3, hyper=rule.hyper, out=out)
    assert np.array_equal(out, weight[places])
    assert weight.tobytes() == expected.tobytes()
    for each, array in state.items():
        assert array.tobytes() == expected_state[each].tobytes()


@pytest.mark.parametrize("pieces", [1, 5, 67 * 4, 1 << 18])
def test_rows_may_be_divided_over_calls_and_pieces(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = rules()["adam"]
    weight, state, places, gradient = drawn(rule, "float32", 67)
    divided, divided_state = weight.copy(), {each: array.copy() for each, array in state.items()}
    apply_to_rows(rule, weight, gradient.copy(), state, places, step=1, hyper=rule.hyper)
    monkeypatch.setattr(rule_rows, "PIECE_ELEMENTS", pieces)
    for part in np.array_split(np.arange(len(places)), 3):
        apply_to_rows(rule, divided, gradient[part], divided_state, places[part], step=1, hyper=rule.hyper)
    assert divided.tobytes() == weight.tobytes()
    assert divided_state["variance"].tobytes() == state["variance"].tobytes()


def test_a_rule_meets_whole_blocks_alone() -> None:
    """A vectorised function may be of other bits in an array's tail, and how many rows a shard has is no law."""
    met: list[int] = []
    rule = Rule("seen", {}, {}, lambda weight, *_: met.append(weight.size))
    for rows, width in ((1, 1), (3, 43), (64, 1), (50, 64)):
        apply_to_rows(rule, np.ones((50, width)) if rows < 60 else np.ones((64, 1)), np.ones((rows, width)), {},
                      np.arange(rows), step=1, hyper={})  # fmt: skip
    assert met == [64, 192, 64, 3200]


def test_no_rows_and_rows_of_nothing_are_updated() -> None:
    rule = rules()["sgd"]
    for rows, width in ((0, 3), (2, 0)):
        table = np.ones((4, width))
        apply_to_rows(rule, table, np.ones((rows, width)), {}, np.arange(rows), step=1, hyper=rule.hyper)
        assert table.tobytes() == np.ones((4, width)).tobytes()


@pytest.mark.parametrize("rule", [normalized(), "lamb", "lars"], ids=["written", "lamb", "lars"])
def test_a_rule_that_needs_keys_whole_is_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="needs a key whole, and is asked to update 2 rows"):
        apply_to_rows(rule_from(rule), np.ones((4, 2)), np.ones((2, 2)), {}, np.arange(2), step=1, hyper={})
