"""Counter-based draws against a plain Philox4x64-10 and the known answers of its authors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_kernels.random import draws, first_value_key, step_key, stream_key, uniform

MASK = (1 << 64) - 1
KEY = (0x452821E638D01377, 0xBE5466CF34E90C6C)


def philox(counter: list[int], key: tuple[int, int]) -> list[int]:
    """One block, written from the paper: ten rounds of two 64 x 64 products, the key bumped between them."""
    for round_ in range(10):
        k0 = (key[0] + round_ * 0x9E3779B97F4A7C15) & MASK
        k1 = (key[1] + round_ * 0xBB67AE8584CAA73B) & MASK
        first, second = counter[0] * 0xD2E7470EE14C6C93, counter[2] * 0xCA5A826395121157
        counter = [second >> 64 ^ counter[1] ^ k0, second & MASK, first >> 64 ^ counter[3] ^ k1, first & MASK]
    return counter


def plain_draw(key: tuple[int, int], place: int) -> int:
    block = place // 4
    return philox([block >> 64 * word & MASK for word in range(4)], key)[place % 4]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # philox4x64 with 10 rounds in the file kat_vectors of Random123 1.14, the authors' own library.
        ([0, 0, 0, 0], (0, 0), [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
        (
            [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
            KEY,
            [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6],
        ),
    ],
)
def test_plain_philox_gives_the_known_answers(counter: list[int], key: tuple[int, int], expected: list[int]) -> None:
    assert philox(counter, key) == expected


def test_first_block_of_the_zero_key_is_the_known_answer() -> None:
    known = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert draws((0, 0), 0, 4).tolist() == known


@given(start=st.integers(0, 2**70), count=st.integers(0, 9))
def test_draws_are_those_of_the_plain_philox_at_any_place(start: int, count: int) -> None:
    assert draws(KEY, start, count).tolist() == [plain_draw(KEY, start + place) for place in range(count)]


@given(start=st.integers(0, 50), cut=st.integers(0, 30), count=st.integers(0, 30))
def test_a_run_of_draws_is_its_parts_joined(start: int, cut: int, count: int) -> None:
    parts = [draws(KEY, start, cut), draws(KEY, start + cut, count)]
    np.testing.assert_array_equal(draws(KEY, start, cut + count), np.concatenate(parts))


def test_uniform_is_the_upper_53_bits() -> None:
    expected = [(plain_draw(KEY, place) >> 11) / 2**53 for place in range(5)]
    assert uniform(KEY, 0, 5).tolist() == expected
    assert uniform(KEY, 0, 10_000).max() < 1


def test_a_key_is_the_hash_of_netstrings() -> None:
    """The golden words come from `printf '11:initializer,1:7,1:w,' | sha256sum`."""
    digest = hashlib.sha256(b"11:initializer,1:7,1:w,").digest()
    words = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    assert first_value_key(7, "w") == words == (0x9AD45965455DCF5C, 0x37D2D0307DBDA58B)


def test_keys_of_different_parts_differ() -> None:
    keys = {
        first_value_key(1, "w"),
        first_value_key(2, "w"),
        first_value_key(1, "v"),
        step_key(1, "w", 0),
        step_key(1, "w", 1),
        stream_key("a", "bc"),
        stream_key("ab", "c"),
        stream_key("a,1:b", "c"),
    }
    assert len(keys) == 8


def test_a_negative_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no draw -1"):
        draws(KEY, -1, 2)
