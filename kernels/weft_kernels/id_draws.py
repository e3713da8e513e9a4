"""Random numbers that belong to ids: of one row of a table whose rows are named by any 64-bit number, at any place.

Each id has a stream of its own: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) from a start that is a hash of the stream's key and the id. Word w is the finalizer over the start plus
(w + 1) times the golden gamma, so that any word is made without those before it. Against Philox, which makes streams
independent for sure: it costs ten times as many passes over memory, and rows come into being at millions a second. Only
operations on 64-bit words are used: the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from weft_graph.ir import Initializer
from weft_kernels.blocks import CACHE_ELEMENTS, whole_blocks
from weft_kernels.initializers import first_values
from weft_kernels.kernel import Array
from weft_kernels.random import Key, as_uniform, first_value_key, stream_key

_GAMMA: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""SplitMix64's constants: what is added from word to word, and the finalizer's."""
_HALF_BITS: Final = np.uint64(32)
_HALF: Final = np.uint64((1 << 32) - 1)
_HALF_UNIT: Final = 2.0**-32
_SINGLE_UNIT: Final = np.float32(2.0**-24)


def mixed(words: Array) -> Array:
    """SplitMix64's finalizer of words (...) uint64, a bijection, written over them; returns them."""
    shifted = words >> _SHIFTS[0]
    words ^= shifted
    words *= _FACTORS[0]
    np.right_shift(words, _SHIFTS[1], out=shifted)
    words ^= shifted
    words *= _FACTORS[1]
    np.right_shift(words, _SHIFTS[2], out=shifted)
    words ^= shifted
    return words


def words_of_ids(key: Key, ids: Array, first: int, count: int) -> Array:
    """Words `first` to `first + count` of the streams of ids (n) uint64: (n, count) uint64."""
    starts = mixed(mixed(ids ^ np.uint64(key[0])) ^ np.uint64(key[1]))
    steps = [(place + 1) * _GAMMA & _WORD for place in range(first, first + count)]
    return mixed(starts[:, None] + np.array(steps, np.uint64))


def uniform_of_ids(seed: int, purpose: str, table: str, ids: Array, place: int) -> Array:
    """One number of each id (n) uint64 in [0, 1), float64 (n): of a purpose, a table and a place, such as a step."""
    return as_uniform(words_of_ids(stream_key(purpose, seed, table), ids, place, 1)[:, 0])


def rows_of_ids(initializer: Initializer, *, seed: int, key: str, ids: Array, width: int, dtype: str) -> Array:
    """First values of rows (n, width), `dtype`, of the ids (n) uint64: a function of seed, key, id and column alone.

    `RandomUniform` takes 24 bits an element, 53 for float64; `RandomNormal` is Box and Muller's, from 32 bits each, in
    float64. Raises ValueError as `weft_kernels.initializers.first_values` does.
    """
    values = np.empty((len(ids), width), dtype)
    numbers = initializer.attributes
    fills: dict[str, Callable[[Array], Array]] = {
        "RandomUniform": lambda words: _uniform(words, width, values.dtype, numbers["low"], numbers["high"]),
        "RandomNormal": lambda words: _normal(words, width, numbers["mean"], numbers["scale"]),
    }
    # Also finds out what there is no such initializer for, and what it lacks.
    one = first_values(initializer, seed=seed, key=key, start=0, stop=1, dtype=dtype)
    if initializer.op_type not in fills:
        values.fill(one[0])
        return values
    halves = initializer.op_type == "RandomUniform" and values.dtype != np.float64
    words = -(-width // 2) if halves else width
    stream = first_value_key(seed, key)
    piece = max(CACHE_ELEMENTS // max(width, 1), 1)
    for low in range(0, len(ids) if width else 0, piece):
        drawn = words_of_ids(stream, ids[low : low + piece], 0, words)
        values[low : low + piece] = fills[initializer.op_type](drawn)
    return values


def _uniform(words: Array, width: int, dtype: np.dtype[np.generic], low: float, high: float) -> Array:
    """Of float32 and less each half of a word is a number, the lower one first."""
    if dtype == np.float64:
        made: Array = low + (high - low) * as_uniform(words)
        return made
    halves = words.astype("<u8", copy=False).view("<u4")[:, :width] >> np.uint32(8)
    single = halves.astype(np.float32)
    single *= _SINGLE_UNIT * np.float32(high - low)
    single += np.float32(low)
    return single


def _normal(words: Array, width: int, mean: float, scale: float) -> Array:
    size = words.size
    flat = np.zeros(whole_blocks(size), np.uint64)  # Whole blocks: vectorised functions may differ at a tail.
    flat[:size] = words.reshape(-1)
    first, second = (flat >> _HALF_BITS) * _HALF_UNIT, (flat & _HALF) * _HALF_UNIT
    radius = np.sqrt(-2.0 * np.log1p(-first))
    made: Array = mean + scale * (radius * np.cos(2.0 * np.pi * second))
    return made[:size].reshape(-1, width)
