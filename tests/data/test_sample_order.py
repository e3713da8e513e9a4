from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft_data.order import sample_order

MASK = (1 << 64) - 1
seeds = st.integers(0, (1 << 63) - 1)
passes = st.integers(0, 1 << 40)


def philox4x64(counter: int, key: tuple[int, int]) -> list[int]:
    """Philox4x64-10 in plain integers, after Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011)."""
    x = [(counter >> (64 * word)) & MASK for word in range(4)]
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [(p1 >> 64) ^ x[1] ^ k0, p1 & MASK, (p0 >> 64) ^ x[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return x


@given(st.integers(1, 3000), seeds, passes)
def test_a_pass_has_every_row_once(rows: int, seed: int, pass_number: int) -> None:
    order = sample_order(rows, seed=seed, pass_number=pass_number, shuffle=True)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(rows))


def test_the_order_is_that_of_philox_draws_written_from_the_paper() -> None:
    digest = hashlib.sha256(b"weft-order/7/2").digest()
    key = (int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little"))
    draws = [word for block in range(1, 6) for word in philox4x64(block, key)][:18]
    expected = sorted(range(18), key=lambda row: draws[row])
    assert sample_order(18, seed=7, pass_number=2, shuffle=True).tolist() == expected


def test_the_order_never_changes() -> None:
    """Golden values, taken from this function when the test above had shown it to be right."""
    assert sample_order(10, seed=0, pass_number=0, shuffle=True).tolist() == [7, 9, 4, 2, 0, 5, 3, 1, 6, 8]
    assert sample_order(10, seed=0, pass_number=1, shuffle=True).tolist() == [8, 4, 5, 7, 9, 1, 2, 6, 3, 0]
    assert sample_order(10, seed=1, pass_number=0, shuffle=True).tolist() == [4, 1, 9, 2, 6, 5, 0, 7, 3, 8]


@given(seeds, passes)
def test_another_seed_or_pass_is_another_order(seed: int, pass_number: int) -> None:
    order = sample_order(500, seed=seed, pass_number=pass_number, shuffle=True)
    assert not np.array_equal(order, sample_order(500, seed=seed + 1, pass_number=pass_number, shuffle=True))
    assert not np.array_equal(order, sample_order(500, seed=seed, pass_number=pass_number + 1, shuffle=True))


def test_every_row_is_as_likely_at_every_place() -> None:
    """A chi-squared test of 4,000 passes over 8 rows: 49 degrees of freedom, above 90 with probability below 0.0004."""
    places = np.zeros((8, 8))
    for pass_number in range(4000):
        places[np.arange(8), sample_order(8, seed=11, pass_number=pass_number, shuffle=True)] += 1
    assert ((places - 500) ** 2 / 500).sum() < 90


def test_without_shuffle_the_rows_keep_their_order() -> None:
    assert np.array_equal(sample_order(5, seed=3, pass_number=9, shuffle=False), np.arange(5))
