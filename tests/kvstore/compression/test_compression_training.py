"""Training by compressed gradients arrives where training by whole ones does, because nothing is lost on the way."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kvstore.arrays import Array
from weft_kvstore.compression.codecs import Codec
from weft_kvstore.compression.description import CompressionDescription, Kind, codec_of

SIZE, WORKERS, STEPS = 320, 3, 400
BOUNDS = np.array([0, 128, 256, SIZE])
CODECS = {
    "bf16": CompressionDescription(Kind.BF16),
    "fp16": CompressionDescription(Kind.FP16),
    "2bit": CompressionDescription(Kind.TWO_BIT, threshold=0.4),
    "topk": CompressionDescription(Kind.TOP_K, ratio=0.05),
}
BF16 = CompressionDescription(Kind.BF16, residual=False)


class Sender:
    """What travels one way; with `forgets` the residual is dropped at each step, as a control."""

    def __init__(self, codec: Codec, *, forgets: bool) -> None:
        self._codec, self._forgets = codec, forgets
        self._residual = np.zeros(SIZE, np.float32)

    def arrives(self, gradient: Array) -> Array:
        if self._forgets:
            self._residual[:] = 0
        return self._codec.decode(self._codec.encode(gradient, BOUNDS, self._residual), BOUNDS)


def distance(name: str, *, forgets: bool = False) -> float:
    """From the least squares' solution, after training in which each worker has a part of the equations: gradients are
    compressed both ways, and weights are read as bf16."""
    rng = np.random.default_rng(31)
    rows = rng.standard_normal((WORKERS, 400, SIZE)).astype(np.float32)
    goal = rng.standard_normal(SIZE).astype(np.float32)
    codec, halves = codec_of(CODECS[name], np.dtype(np.float32)), codec_of(BF16, np.dtype(np.float32))
    ways = [Sender(codec, forgets=forgets) for _ in range(WORKERS + 1)]
    weight = np.zeros(SIZE, np.float32)
    for _ in range(STEPS):
        read = halves.decode(halves.encode(weight, BOUNDS), BOUNDS)
        parts = [part.T @ (part @ (read - goal)) / np.float32(400 * WORKERS) for part in rows]
        merged = sum(way.arrives(part) for way, part in zip(ways, parts, strict=False))
        assert isinstance(merged, np.ndarray)
        weight -= np.float32(0.1) * ways[-1].arrives(merged)
    return float(np.linalg.norm(weight - goal) / np.linalg.norm(goal))


@pytest.mark.parametrize("name", CODECS)
def test_training_arrives(name: str) -> None:
    assert distance(name) < 0.05


@pytest.mark.parametrize("name", ["2bit", "topk"])
def test_training_without_the_residual_does_not(name: str) -> None:
    assert distance(name, forgets=True) > 0.2
