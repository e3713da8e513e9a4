"""2-bit against a plain simulation in NumPy, written from MXNet's documentation: bit for bit, residuals included."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kvstore.arrays import Array
from weft_kvstore.compression.codecs import PayloadError, TwoBit
from weft_kvstore.compression.slices import SliceEncoder

F32 = np.dtype(np.float32)


def simulated(gradient: Array, residual: Array, threshold: float) -> Array:
    """What one worker sends of a step; the residual moves on."""
    bound = gradient.dtype.type(threshold)
    residual += gradient
    sent = np.where(residual >= bound, bound, np.where(residual <= -bound, -bound, gradient.dtype.type(0)))
    residual -= sent
    return sent


@pytest.mark.parametrize("threshold", [0.5, 0.1, 3e-5])
@pytest.mark.parametrize("slice_elements", [1000, 1024, 8192])
def test_workers_over_many_rounds_equal_the_simulation(threshold: float, slice_elements: int) -> None:
    workers, rounds, size = 3, 40, 20_011
    rng = np.random.default_rng(11)
    bounds = np.append(np.arange(0, size, slice_elements), size)
    codec = TwoBit(F32, threshold)
    kept = [np.zeros(size, F32) for _ in range(workers)]
    encoders = [SliceEncoder(codec, bounds, residual) for residual in kept]
    expected_kept = [np.zeros(size, F32) for _ in range(workers)]
    fired = 0
    for step in range(rounds):
        total, expected_total = np.zeros(size, F32), np.zeros(size, F32)
        for worker in range(workers):
            gradient = (rng.standard_normal(size) * threshold).astype(F32)
            gradient[:2] = threshold, -threshold  # What is sent is exact at the threshold itself.
            total += codec.decode(encoders[worker].encode_step(step, 0, len(bounds) - 1, gradient), bounds)
            sent = simulated(gradient, expected_kept[worker], threshold)
            fired += np.count_nonzero(sent)
            expected_total += sent
        assert total.tobytes() == expected_total.tobytes()
    assert [one.tobytes() for one in kept] == [one.tobytes() for one in expected_kept]
    assert fired > rounds * workers * size / 4


def test_codes_lie_from_the_lowest_bits_up() -> None:
    """Element by element, in plain Python integers."""
    values = np.random.default_rng(12).choice(np.array([-1, 0, 1, np.nan], F32), 77)
    words = [0] * 5
    for place, value in enumerate(values.tolist()):
        code = {0.0: 0, 1.0: 1, -1.0: 2}.get(value, 3)
        words[place // 16] |= code << 2 * (place % 16)
    expected = b"".join(word.to_bytes(4, "little") for word in words)
    codec, bounds = TwoBit(F32, 1.0), np.array([0, 77])
    assert codec.encode(values, bounds).tobytes() == expected
    np.testing.assert_array_equal(codec.decode(expected, bounds), values)


def test_a_threshold_is_compared_in_the_keys_dtype() -> None:
    """0.1 in float32 is above 0.1: the number just below it is not sent."""
    codec = TwoBit(F32, 0.1)
    values = np.array([0.1, np.nextafter(np.float32(0.1), np.float32(0))], F32)
    assert codec.decode(codec.encode(values, np.array([0, 2])), np.array([0, 2])).tolist() == [values[0], 0]


@pytest.mark.parametrize("code", [1, 2, 3])
@pytest.mark.parametrize("place", [5, 15])
def test_codes_behind_the_last_element_are_refused(code: int, place: int) -> None:
    payload = (0).to_bytes(4, "little") * 2 + (code << 2 * place).to_bytes(4, "little")
    with pytest.raises(PayloadError, match=r"^2bit: slice 1 of 5 elements has codes behind its last one$"):
        TwoBit(F32, 1.0).decode(payload, np.array([0, 32, 37]))
