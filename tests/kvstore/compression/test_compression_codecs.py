"""Every codec: what is sent and what is kept add up, no cut changes a byte, and foreign bytes are refused."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weft_kvstore.arrays import Array
from weft_kvstore.compression import Codec, PayloadError
from weft_kvstore.description.records import CompressionDescription, Kind
from weft_kvstore.sharding import codec_of

DESCRIPTIONS = {
    "bf16": CompressionDescription(Kind.BF16),
    "fp16": CompressionDescription(Kind.FP16),
    "2bit": CompressionDescription(Kind.TWO_BIT, threshold=0.5),
    "topk-ratio": CompressionDescription(Kind.TOP_K, ratio=0.1),
    "topk-count": CompressionDescription(Kind.TOP_K, count=3),
}
DTYPES = ("float32", "float64")
CODECS = [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in DESCRIPTIONS for dtype in DTYPES]


def codec(name: str, dtype: str = "float32") -> Codec:
    return codec_of(DESCRIPTIONS[name], np.dtype(dtype))


def bounds_of(counts: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def dyadic(seed: int, size: int, dtype: str = "float32") -> Array:
    """Multiples of 2^-10 below 4 in magnitude: sums of a few of them, and differences to 0.5, are exact."""
    return np.random.default_rng(seed).integers(-4096, 4096, size).astype(dtype) / 1024


COUNTS = st.lists(st.integers(0, 70), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("name", "dtype"), CODECS)
@settings(max_examples=40)
@given(counts=COUNTS, seed=SEEDS)
def test_what_is_sent_and_what_is_kept_add_up(name: str, dtype: str, counts: list[int], seed: int) -> None:
    bounds = bounds_of(counts)
    gradient, before = dyadic(seed, bounds[-1], dtype), dyadic(seed + 1, bounds[-1], dtype)
    residual = before.copy()
    payload = codec(name, dtype).encode(gradient, bounds, residual)
    sent = codec(name, dtype).decode(payload, bounds)
    np.testing.assert_array_equal(sent + residual, gradient + before)


FLOATS = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32, min_value=-60000, max_value=60000))


@pytest.mark.parametrize("name", ["bf16", "fp16", "topk-ratio", "topk-count"])
@settings(max_examples=60)
@given(gradient=FLOATS)
def test_rounding_and_choosing_lose_nothing_of_any_number(name: str, gradient: Array) -> None:
    """What 16 bits leave out of a float32 number is a float32 number; 2-bit alone may round, far from the threshold."""
    residual = np.zeros_like(gradient)
    bounds = bounds_of([gradient.size])
    sent = codec(name).decode(codec(name).encode(gradient, bounds, residual), bounds)
    np.testing.assert_array_equal(sent + residual, gradient)


@pytest.mark.parametrize(("name", "dtype"), CODECS)
@settings(max_examples=30)
@given(counts=COUNTS, seed=SEEDS, data=st.data())
def test_no_cut_into_runs_changes_a_byte(
    name: str, dtype: str, counts: list[int], seed: int, data: st.DataObject
) -> None:
    one, bounds = codec(name, dtype), bounds_of(counts)
    gradient, residual = dyadic(seed, bounds[-1], dtype), dyadic(seed + 1, bounds[-1], dtype)
    in_parts = residual.copy()
    whole = one.encode(gradient, bounds, residual)
    cuts = sorted({0, len(counts), *data.draw(st.lists(st.integers(0, len(counts))))})
    payloads, decoded = [], []
    for first, last in pairwise(cuts):
        some = slice(bounds[first], bounds[last])
        run = bounds[first : last + 1] - bounds[first]
        payloads.append(one.encode(gradient[some], run, in_parts[some]))
        assert payloads[-1].size == one.nbytes(np.diff(run)).sum()
        decoded.append(one.decode(payloads[-1], run))
    assert b"".join(payload.tobytes() for payload in payloads) == whole.tobytes()
    assert same_bits(in_parts, residual)
    assert same_bits(np.concatenate(decoded), one.decode(whole, bounds))


@pytest.mark.parametrize(("name", "dtype"), CODECS)
def test_slices_over_many_blocks_are_what_their_parts_are(name: str, dtype: str) -> None:
    """Slices that do not end where blocks do: nothing is lost or shifted at the seams."""
    counts = [70_000, 33_000, 16, 40_001, 5, 65_536]
    bounds, one = bounds_of(counts), codec(name, dtype)
    gradient, residual = dyadic(1, bounds[-1], dtype), dyadic(2, bounds[-1], dtype)
    before = residual.copy()
    payload = one.encode(gradient, bounds, residual)
    np.testing.assert_array_equal(one.decode(payload, bounds) + residual, gradient + before)
    for index, count in enumerate(counts):
        some = slice(bounds[index], bounds[index + 1])
        kept = before[some].copy()
        alone = one.encode(gradient[some], bounds_of([count]), kept)
        begin = int(one.nbytes(np.array(counts[:index], np.int64)).sum())
        assert alone.tobytes() == payload[begin : begin + alone.size].tobytes()
        assert same_bits(kept, residual[some])


@pytest.mark.parametrize("name", DESCRIPTIONS)
@settings(max_examples=60)
@given(counts=COUNTS, data=st.data())
def test_any_bytes_are_read_or_refused(name: str, counts: list[int], data: st.DataObject) -> None:
    one, bounds = codec(name), bounds_of(counts)
    length = int(one.nbytes(np.array(counts)).sum())
    payload = data.draw(st.one_of(st.binary(max_size=64), st.binary(min_size=length, max_size=length)))
    try:
        one.check(payload, bounds)
    except PayloadError as error:
        assert str(error).startswith(one.name)  # noqa: PT017  # which of both outcomes it is, is open
    else:
        assert len(payload) == length
        assert one.decode(payload, bounds).shape == (bounds[-1],)


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("change", [-1, 1, 4])
def test_another_length_is_refused(name: str, change: int) -> None:
    one, bounds = codec(name), bounds_of([40, 40])
    length = int(one.nbytes(np.array([40, 40])).sum())
    with pytest.raises(PayloadError, match=rf"^{one.name}: {length + change} bytes for 2 slices, not {length}$"):
        one.check(bytes(length + change), bounds)


@pytest.mark.parametrize("name", ["bf16", "fp16", "2bit"])
def test_bytes_of_zero_are_zeros(name: str) -> None:
    one = codec(name)
    assert not one.decode(bytes(int(one.nbytes(np.array([40]))[0])), bounds_of([40])).any()


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_and_never_kept(name: str, value: float) -> None:
    gradient = dyadic(3, 40_000)
    gradient[[7, 35_000]] = value
    residual = np.full(40_000, 0.25, np.float32)
    expected = gradient + residual
    one, bounds = codec(name), bounds_of([20_000, 20_000])
    sent = one.decode(one.encode(gradient, bounds, residual), bounds)
    assert not np.isfinite(sent[:20_000]).all()
    assert not np.isfinite(sent[20_000:]).all()
    assert (residual[[7, 35_000]] == 0.25).all()
    finite = np.isfinite(expected)
    assert np.isfinite(sent[finite]).all()
    np.testing.assert_array_equal((sent + residual)[finite], expected[finite])


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_sum_that_overflows_is_not_finite(name: str) -> None:
    most = np.finfo(np.float32).max
    gradient, residual = np.full(4, most, np.float32), np.full(4, most, np.float32)
    one, bounds = codec(name), bounds_of([4])
    assert not np.isfinite(one.decode(one.encode(gradient, bounds, residual), bounds)).all()
    assert (residual == most).all()


@pytest.mark.parametrize(("name", "most"), [("bf16", float.fromhex("0x1.fep127")), ("fp16", 65504.0)])
def test_what_16_bits_cannot_hold_waits_or_becomes_infinite(name: str, most: float) -> None:
    gradient = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, 1], np.float32)
    residual, bounds = np.zeros(3, np.float32), bounds_of([3])
    one = codec(name)
    assert one.decode(one.encode(gradient, bounds, residual), bounds).tolist() == [most, -most, 1]
    assert residual.tolist() == [gradient[0] - np.float32(most), gradient[1] + np.float32(most), 0]
    assert one.decode(one.encode(gradient, bounds), bounds).tolist() == [np.inf, -np.inf, 1]


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_scaled_gradient_travels_unscaled(name: str) -> None:
    gradient, residual, bounds = dyadic(4, 100), dyadic(5, 100), bounds_of([60, 40])
    scaled = residual.copy()
    one = codec(name)
    payload = one.encode(gradient, bounds, residual)
    assert one.encode(gradient * 1024, bounds, scaled, scale=1024.0).tobytes() == payload.tobytes()
    assert same_bits(scaled, residual)


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_bytes_may_lie_anywhere_in_a_frame(name: str) -> None:
    one, bounds, gradient = codec(name), bounds_of([33, 20]), dyadic(9, 53)
    payload = one.encode(gradient, bounds)
    frame = np.zeros(payload.size + 1, np.uint8)
    assert one.encode(gradient, bounds, out=frame[1:]).tobytes() == payload.tobytes()
    assert same_bits(one.decode(memoryview(frame)[1:], bounds), one.decode(payload, bounds))


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_given_memory_is_filled_whatever_was_there(name: str) -> None:
    one, bounds, gradient = codec(name), bounds_of([33, 20]), dyadic(6, 53)
    payload = one.encode(gradient, bounds)
    dirty = np.full(payload.size, 0xFF, np.uint8)
    assert one.encode(gradient, bounds, out=dirty) is dirty
    assert dirty.tobytes() == payload.tobytes()
    assert same_bits(one.decode(memoryview(payload), bounds), one.decode(payload.tobytes(), bounds))


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=100)
@given(st.lists(st.floats(-70000, 70000), min_size=1, max_size=20))
def test_fp16_is_rounded_as_python_rounds_it(dtype: str, numbers: list[float]) -> None:
    values = np.array(numbers, dtype)
    payload = codec("fp16", dtype).encode(values, bounds_of([len(numbers)]))
    for index, number in enumerate(values.tolist()):
        try:
            expected = struct.pack("<e", number)
        except OverflowError:
            expected = struct.pack("<e", np.copysign(np.inf, number))
        assert payload[2 * index : 2 * index + 2].tobytes() == expected


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=100)
@given(data=st.data())
def test_bf16_is_the_nearest_and_even_among_two(dtype: str, data: st.DataObject) -> None:
    """By exact fractions: of float64 too, where rounding to float32 on the way would go wrong."""
    middle = data.draw(st.integers(0, 0x7F7E)) * 2 + 1  # halfway between two bf16 numbers
    tie = Fraction(float(np.array(middle << 15, np.uint32).view(np.float32)))
    low, high = (Fraction(_of_bf16(bits)) for bits in (middle // 2, middle // 2 + 1))
    beside = data.draw(st.sampled_from([0, 1, -1]))
    number = float(np.nextafter(np.dtype(dtype).type(float(tie)), beside * np.inf)) if beside else float(tie)
    expected = low if abs(number - low) < abs(number - high) else high
    if not beside:
        expected = low if (middle // 2) % 2 == 0 else high
    one = codec("bf16", dtype)
    values = np.array([number, -number], dtype)
    assert one.decode(one.encode(values, bounds_of([2])), bounds_of([2])).tolist() == [expected, -expected]


def _of_bf16(bits: int) -> float:
    return float(np.array(bits << 16, np.uint32).view(np.float32))


@settings(max_examples=60)
@given(values=st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=40))
def test_topk_takes_the_largest_and_of_equals_the_first(values: list[float]) -> None:
    gradient = np.array(values, np.float32)
    one, bounds = codec("topk-count"), bounds_of([len(values)])
    payload = one.encode(gradient, bounds)
    order = sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:3]
    places = sorted(order)
    expected = struct.pack(f"<{len(places)}H{len(places)}f", *places, *(values[place] for place in places))
    assert payload.tobytes() == expected


@pytest.mark.parametrize("kind", ["normal", "zeros", "few", "stripes", "ties"])
@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 1.0])
def test_topk_of_a_large_slice_is_that_of_a_stable_sort(kind: str, ratio: float) -> None:
    """The sample that saves time decides nothing, even where it says something wrong."""
    size, rng = 40_000, np.random.default_rng(7)
    gradient = {
        "normal": rng.standard_normal(size),
        "zeros": np.zeros(size),
        "few": np.where(rng.random(size) < 0.002, 1.5, 0.0),
        "stripes": np.where(np.arange(size) % 16 == 0, 9.0, rng.standard_normal(size)),
        "ties": rng.integers(-3, 4, size),
    }[kind].astype(np.float32)
    one = codec_of(CompressionDescription(Kind.TOP_K, ratio=ratio), gradient.dtype)
    many = int(np.ceil(ratio * size))
    expected = np.zeros_like(gradient)
    places = np.argsort(-np.abs(gradient), kind="stable")[:many]
    expected[places] = gradient[places]
    payload = one.encode(gradient, bounds_of([size]))
    assert payload.size == 6 * many
    assert same_bits(payload[: 2 * many].view(np.uint16), np.sort(places).astype(np.uint16))
    assert same_bits(one.decode(payload, bounds_of([size])), expected)


@pytest.mark.parametrize("places", [[5, 5, 6], [6, 5, 7], [0, 1, 40], [0, 1, 65535]])
def test_topk_places_that_are_not_ascending_within_the_slice_are_refused(places: list[int]) -> None:
    payload = codec("topk-count").encode(dyadic(8, 40), bounds_of([40])).tobytes()
    payload += struct.pack("<3H3f", *places, 1, 2, 3)
    with pytest.raises(PayloadError, match=r"^topk: slice 1 of 40 elements has indices that do not ascend within it$"):
        codec("topk-count").check(payload, bounds_of([40, 40]))


def test_topk_of_slices_above_65536_elements_has_longer_places() -> None:
    gradient = np.zeros(65_537, np.float32)
    gradient[[3, 65_535, 65_536]] = 1, -2, 3
    one, bounds = codec("topk-count"), bounds_of([65_537])
    payload = one.encode(gradient, bounds)
    assert payload.tobytes() == struct.pack("<3I3f", 3, 65_535, 65_536, 1, -2, 3)
    assert same_bits(one.decode(payload, bounds), gradient)


GOLDEN = {
    ("bf16", "float32"): "80 3f 20 c1 ab 3e 00 00 20 3f",
    ("fp16", "float32"): "00 3c 00 c9 55 35 00 00 00 39",
    ("2bit", "float32"): "09 01 00 00",
    ("topk-count", "float32"): "00 00 01 00 04 00 00 00 80 3f 00 00 20 c1 00 00 20 3f",
    ("bf16", "float64"): "80 3f 20 c1 ab 3e 00 00 20 3f",
    ("fp16", "float64"): "00 3c 00 c9 55 35 00 00 00 39",
    ("2bit", "float64"): "09 01 00 00",
    (
        "topk-count",
        "float64",
    ): "00 00 01 00 04 00 00 00 00 00 00 00 f0 3f 00 00 00 00 00 00 24 c0 00 00 00 00 00 00 e4 3f",
}


@pytest.mark.parametrize(("name", "dtype"), GOLDEN)
def test_the_bytes_of_each_layout(name: str, dtype: str) -> None:
    values = np.array([1, -10, 1 / 3, 0, 0.625], dtype)
    payload = codec(name, dtype).encode(values, bounds_of([5]))
    assert payload.tobytes().hex(" ") == GOLDEN[name, dtype]
