"""Counter-based random numbers: the draw at any place of a stream without those before it.

A stream is Philox4x64 with ten rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC11) under a 128-bit key. Draw d is word d mod 4 of the block whose counter is d div 4. Only the raw 64-bit words of
NumPy's bit generator are used: those are fixed by the algorithm, while the methods of `Generator` may change.

The key is the first 16 bytes of SHA-256 over the stream's parts, as two little-endian words. Each part is written as a
netstring (`<bytes>:<text>,`) so that no two lists of parts give the same bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from weft_graph.names import drawn_as
from weft_kernels.kernel import Array

WORDS_PER_BLOCK: Final = 4
_COUNTER_MODULUS: Final = 1 << 256
_UNIFORM_BITS: Final = 53
_UNIT: Final = 2.0**-_UNIFORM_BITS

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_BUMPS: Final = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
"""Philox4x64's constants: what counters are multiplied by, and what is added to the key from round to round."""
_WORD: Final = (1 << 64) - 1
_HALF: Final = (1 << 32) - 1
_HALF_BITS: Final = np.uint64(32)

Key = tuple[int, int]
"""A stream's key: two 64-bit words."""


def stream_key(*parts: str | int) -> Key:
    """The key of the stream that the parts name: a word for what it is for, a seed, and what else tells it apart."""
    texts = [str(part).encode() for part in parts]
    digest = hashlib.sha256(b"".join(b"%d:%s," % (len(text), text) for text in texts)).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def first_value_key(seed: int, key: str) -> Key:
    """The stream of a parameter's first value: parts `initializer`, seed, key."""
    return stream_key("initializer", seed, key)


def step_key(seed: int, node: str, step: int) -> Key:
    """The stream of one node's randomness in one step: parts `step`, seed, node, step."""
    return stream_key("step", seed, drawn_as(node), step)


def draws(key: Key, start: int, count: int) -> Array:
    """Draws `start` to `start + count` of the stream (count,), uint64. Raises ValueError where one is negative."""
    if start < 0 or count < 0:
        raise ValueError(f"a stream has no draw {start}, and {count} of them cannot be drawn")
    block, skipped = divmod(start, WORDS_PER_BLOCK)
    # NumPy adds one to the counter before it makes a block.
    counter = (block - 1) % _COUNTER_MODULUS
    generator = np.random.Philox(counter=_words(counter, 4), key=_words(key[0] | key[1] << 64, 2))
    raw: Array = generator.random_raw(skipped + count)
    return raw[skipped:]


def block_draws(key: Key, blocks: Array) -> Array:
    """The four draws of each of these blocks (n) uint64, wherever they lie: (n, 4) uint64, as `draws` gives them."""
    words = [blocks, np.zeros_like(blocks), np.zeros_like(blocks), np.zeros_like(blocks)]
    for number in range(_ROUNDS):
        keys = [np.uint64((word + number * bump) & _WORD) for word, bump in zip(key, _BUMPS, strict=True)]
        high0, low0 = _product(words[0], _MULTIPLIERS[0])
        high1, low1 = _product(words[2], _MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
    return np.stack(words, axis=-1)


def uniform(key: Key, start: int, count: int) -> Array:
    """Those draws as float64 in [0, 1): the upper 53 bits over 2^53."""
    return as_uniform(draws(key, start, count))


def as_uniform(raw: Array) -> Array:
    """64-bit words as float64 in [0, 1): the upper 53 bits over 2^53."""
    return (raw >> np.uint64(64 - _UNIFORM_BITS)) * _UNIT


def _product(factor: Array, constant: int) -> tuple[Array, Array]:
    """Upper and lower 64 bits of the product of 64-bit words and a constant."""
    high, low = np.uint64(constant >> 32), np.uint64(constant & _HALF)
    of_high, of_low = factor >> _HALF_BITS, factor & np.uint64(_HALF)
    middle = of_low * high
    carried = of_high * low
    carried += (of_low * low) >> _HALF_BITS
    carried += middle & np.uint64(_HALF)
    upper = of_high * high
    upper += middle >> _HALF_BITS
    upper += carried >> _HALF_BITS
    return upper, factor * np.uint64(constant)


def _words(value: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([value >> 64 * place & (1 << 64) - 1 for place in range(count)], dtype=np.uint64)
