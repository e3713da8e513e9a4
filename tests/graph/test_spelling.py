"""A word that is not known answers with the known one that is nearest."""

from __future__ import annotations

import pytest

from weft_graph.spelling import MOST_COMPARED, did_you_mean

KNOWN = ("lr", "epochs", "batch_size", "accuracy", "Sigmoid")


@pytest.mark.parametrize(
    ("word", "meant"),
    [("epoch", "epochs"), ("BATCHSIZE", "batch_size"), ("acc", "accuracy"), ("sigmod", "Sigmoid")],
)
def test_a_known_name_that_is_spelt_almost_so_is_offered_as_it_is_written(word: str, meant: str) -> None:
    assert did_you_mean(word, KNOWN) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("word", ["", "a", "momentum"])
def test_a_word_that_is_like_none_gets_no_offer(word: str) -> None:
    assert not did_you_mean(word, KNOWN)


def test_no_more_than_a_bounded_number_of_names_is_compared() -> None:
    names = (f"layer_{number}" for number in range(MOST_COMPARED + 5))
    did_you_mean("x", names)
    assert next(names) == f"layer_{MOST_COMPARED + 1}"
