"""Values that travel encoded, against each slice encoded by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft_kvstore.bucket import values as bucket_values
from weft_kvstore.bucket.values import BucketValues, EncodedValues, Pin
from weft_kvstore.compression import Codec
from weft_kvstore.description.records import CompressionDescription, Kind
from weft_kvstore.sharding import codec_of

Array = np.ndarray[Any, np.dtype[Any]]

BOUNDS = np.array([0, 3, 8, 9, 17, 21, 22])
SLICES = len(BOUNDS) - 1
CODECS = {
    "bf16": CompressionDescription(Kind.BF16),
    "bf16, none kept": CompressionDescription(Kind.BF16, residual=False),
    "fp16": CompressionDescription(Kind.FP16),
    "2bit": CompressionDescription(Kind.TWO_BIT, threshold=0.5),
    "topk": CompressionDescription(Kind.TOP_K, ratio=0.4),
}

ranges = st.tuples(st.integers(0, SLICES - 1), st.integers(1, SLICES)).map(
    lambda one: (one[0], min(one[0] + one[1], SLICES))
)


def codec_named(name: str) -> Codec:
    return codec_of(CODECS[name], np.dtype("float32"))


def numbers(first: int, stop: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(int(BOUNDS[stop] - BOUNDS[first])).astype(np.float32)


def held_in(values: BucketValues) -> bytes:
    return b"".join(some.tobytes() for _, _, some in values.elements(0, SLICES))


class Plain:
    """Each slice by itself: its bytes, and what it owes."""

    def __init__(self, codec: Codec, *, keeps: bool) -> None:
        self.codec = codec
        self.parts: list[bytes | None] = [None] * SLICES
        self.owed = [np.zeros(int(size), np.float32) if keeps else None for size in np.diff(BOUNDS)]

    def encode(self, first: int, stop: int, elements: Array, *, keep: bool) -> None:
        for one in range(first, stop):
            part = elements[BOUNDS[one] - BOUNDS[first] : BOUNDS[one + 1] - BOUNDS[first]].copy()
            owed = self.owed[one] if keep else None
            self.parts[one] = self.codec.encode(part, np.array([0, len(part)]), owed).tobytes()


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.tuples(ranges, st.booleans()), max_size=12), block=st.sampled_from([4, 12, 1 << 23]))
def test_merged_gradients_are_encoded_as_each_slice_would_be_by_itself(
    name: str, events: list[tuple[tuple[int, int], bool]], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was merged together; where nobody had anything, what is owed stays owed."""
    monkeypatch.setattr(bucket_values, "BLOCK_BYTES", block)
    codec = codec_named(name)
    encoded = EncodedValues(codec, BOUNDS, merged=True)
    plain = Plain(codec, keeps=codec.residual)
    assert encoded.changed.all(), "what was never merged has no bytes"
    changed = np.ones(SLICES, np.bool_)
    for step, ((first, stop), nothing) in enumerate(events):
        total = numbers(first, stop, step)
        encoded.encode(first, stop, None if nothing else total)
        plain.encode(first, stop, np.zeros_like(total) if nothing else total, keep=not nothing)
        changed[first:stop] = False
        assert encoded.changed.tolist() == changed.tolist()
        assert encoded.missing(0, SLICES) == [], "they are made when a step applies, and at no other time"
    for one in range(SLICES):
        ((_, _, some),) = encoded.values.elements(one, one + 1)
        if (there := plain.parts[one]) is not None:
            assert some.tobytes() == there
    if codec.residual:
        assert encoded.residual is not None
        assert encoded.residual.tobytes() == b"".join(owed.tobytes() for owed in plain.owed if owed is not None)
    else:
        assert encoded.residual is None


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.tuples(ranges, st.booleans()), max_size=12), block=st.sampled_from([4, 12, 1 << 23]))
def test_weights_are_encoded_once_after_they_have_changed(
    name: str, events: list[tuple[tuple[int, int], bool]], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes some, or asks for some."""
    monkeypatch.setattr(bucket_values, "BLOCK_BYTES", block)
    codec = codec_named(name)
    weights = BucketValues(numbers(0, SLICES, 99), BOUNDS)
    encoded = EncodedValues(codec, BOUNDS, merged=False)
    weights.changed = encoded.changed
    assert encoded.residual is None, "weights have none whatever is said of gradients"
    changed = set(range(SLICES))
    for number, ((first, stop), writes) in enumerate(events):
        if writes:
            for low, high, some in weights.written(first, stop):
                some[:] = numbers(low, high, number)
            changed |= set(range(first, stop))
            continue
        missing = encoded.missing(first, stop)
        assert [one for low, high in missing for one in range(low, high)] == sorted(changed & set(range(first, stop)))
        for low, high in missing:
            for part in weights.elements(low, high):
                encoded.encode(*part)
        changed -= set(range(first, stop))
        assert encoded.missing(first, stop) == []
        plain = Plain(codec, keeps=False)
        for low, high, some in weights.elements(first, stop):
            plain.encode(low, high, some, keep=False)
        found = [some.tobytes() for _, _, some in encoded.values.elements(first, stop)]
        assert b"".join(found) == b"".join(part for part in plain.parts[first:stop] if part is not None)


@pytest.mark.parametrize("merged", [False, True])
def test_bytes_that_are_on_their_way_are_not_written(*, merged: bool) -> None:
    encoded = EncodedValues(codec_named("bf16"), BOUNDS, merged=merged)

    def make(seed: int) -> None:
        encoded.encode(0, SLICES, numbers(0, SLICES, seed))

    make(0)
    ((first, stop, block, *_),) = encoded.values.sections(0, SLICES)
    pin = Pin(block, first, stop)
    before = bytes(block.source.base)
    make(1)
    assert bytes(block.source.base) == before != held_in(encoded.values)
    pin.release(0, stop)


def test_a_slice_that_is_not_finite_arrives_so_and_leaves_what_others_owe() -> None:
    codec = codec_named("2bit")
    encoded = EncodedValues(codec, BOUNDS, merged=True)
    total = np.full(int(BOUNDS[-1]), 0.25, np.float32)
    total[BOUNDS[2]] = np.nan
    encoded.encode(0, SLICES, total)
    arrived = codec.decode(held_in(encoded.values), BOUNDS)
    finite = [bool(np.isfinite(arrived[BOUNDS[one] : BOUNDS[one + 1]]).all()) for one in range(SLICES)]
    assert finite == [True, True, False, True, True, True]
    assert encoded.residual is not None
    assert np.isfinite(encoded.residual).all()
    assert encoded.residual[: BOUNDS[2]].tolist() == [0.25] * 8
