"""What compression leaves out is owed and sent later: over snapshots, other slots, and in a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kvstore.arrays import Array
from weft_kvstore.compression import PayloadError, SliceCodec, TwoBit, reassigned, residual_array, slot_of
from weft_kvstore.description.records import CompressionDescription, Kind
from weft_kvstore.sharding import codec_of

F32 = np.dtype(np.float32)
BOUNDS = np.array([0, 40, 80, 100])
KINDS = {
    "2bit": CompressionDescription(Kind.TWO_BIT, threshold=0.25),
    "topk": CompressionDescription(Kind.TOP_K, ratio=0.1),
    "bf16": CompressionDescription(Kind.BF16),
    "fp16": CompressionDescription(Kind.FP16),
}


def gradient(step: int) -> Array:
    """Multiples of 2^-12: their sums here are exact."""
    return np.random.default_rng([21, step]).integers(-4096, 4096, 100).astype(F32) / 4096


def encoder(name: str, residual: Array) -> SliceCodec:
    return SliceCodec(codec_of(KINDS[name], F32), BOUNDS, residual)


def residuals() -> Array:
    return np.zeros(100, F32)


@pytest.mark.parametrize("name", KINDS)
def test_all_that_was_sent_and_what_is_owed_is_the_sum_of_all_gradients(name: str) -> None:
    owed = residuals()
    one = encoder(name, owed)
    sent = sum(one.codec.decode(one.encode(0, 3, gradient(step)), BOUNDS) for step in range(50))
    np.testing.assert_array_equal(sent + owed, sum(gradient(step) for step in range(50)))
    assert owed.any()


@pytest.mark.parametrize("name", KINDS)
def test_slices_in_any_order_and_grouping_are_the_same_bytes(name: str) -> None:
    """As frames ask for them, the most urgent first, while a later step has begun for some."""
    together, apart = encoder(name, residuals()), encoder(name, residuals())
    wholes = [together.encode(0, 3, gradient(step)).tobytes() for step in range(2)]
    g0, g1 = gradient(0), gradient(1)
    third, first = apart.encode(2, 3, g0[80:]), apart.encode(0, 1, g0[:40])
    first_later = apart.encode(0, 1, g1[:40])
    second = apart.encode(1, 2, g0[40:80])
    later = apart.encode(1, 3, g1[40:])
    assert b"".join(part.tobytes() for part in (first, second, third)) == wholes[0]
    assert first_later.tobytes() + later.tobytes() == wholes[1]
    assert [apart.nbytes(0, 1), apart.nbytes(1, 3)] == [first.size, later.size]


@pytest.mark.parametrize("name", KINDS)
def test_a_slice_may_be_encoded_late_and_nothing_is_lost(name: str) -> None:
    """Step 0 failed before its second slice left, and is pushed again after step 1."""
    owed = residuals()
    one = encoder(name, owed)
    g0, g1 = gradient(0), gradient(1)
    first = one.encode(0, 1, g0[:40])
    second = one.encode(0, 3, g1)
    late = one.encode(1, 3, g0[40:])
    sent = one.codec.decode(np.concatenate([first, late]), BOUNDS) + one.codec.decode(second, BOUNDS)
    np.testing.assert_array_equal(sent + owed, g0 + g1)


@pytest.mark.parametrize("name", KINDS)
def test_a_step_without_a_gradient_sends_zeros_and_leaves_what_is_owed(name: str) -> None:
    owed = residuals()
    one = encoder(name, owed)
    one.encode(0, 3, 100 * gradient(0))
    before = owed.copy()
    payload = one.encode(0, 3, None)
    assert payload.size == one.nbytes(0, 3)
    assert not one.codec.decode(payload, BOUNDS).any()
    assert owed.tobytes() == before.tobytes()


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_sender_sends_what_the_undisturbed_one_does(name: str) -> None:
    owed = residuals()
    one = encoder(name, owed)
    for step in range(5):
        one.encode(0, 3, gradient(step))
    resumed = owed.copy()
    expected = [one.encode(0, 3, gradient(step)).tobytes() for step in range(5, 10)]
    other = encoder(name, resumed)
    assert [other.encode(0, 3, gradient(step)).tobytes() for step in range(5, 10)] == expected
    fresh = encoder(name, residuals())
    assert [fresh.encode(0, 3, gradient(step)).tobytes() for step in range(5, 10)] != expected


def test_other_slots_take_over_what_former_ones_owe() -> None:
    assert reassigned((10, 2, 0, 3), (4, 7, 9)) == [(0, 4), (2, 7), (3, 9), (10, 4)]
    assert reassigned((4, 7, 9), (4, 7, 9)) == [(4, 4), (7, 7), (9, 9)]


def test_a_slots_residual_is_known_by_its_name() -> None:
    assert slot_of(residual_array(12)) == 12
    for name in (residual_array(None), "residual", "w", "residual/-1", "residual/²"):
        assert slot_of(name) is None


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
    encoders = [SliceCodec(codec, bounds, residual) for residual in kept]
    expected_kept = [np.zeros(size, F32) for _ in range(workers)]
    fired = 0
    for _ in range(rounds):
        total, expected_total = np.zeros(size, F32), np.zeros(size, F32)
        for worker in range(workers):
            gradient = (rng.standard_normal(size) * threshold).astype(F32)
            gradient[:2] = threshold, -threshold  # What is sent is exact at the threshold itself.
            total += codec.decode(encoders[worker].encode(0, len(bounds) - 1, gradient), bounds)
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
        TwoBit(F32, 1.0).check(payload, np.array([0, 32, 37]))
