"""The bytes of gradients that travel encoded, against each slice encoded by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compressed_store import KINDS, compressed_store
from weft_kvstore.client.encoders import EncodedSegment, GradientEncoders
from weft_kvstore.client.plan import ByteRange, KeyList, PlanSegment, key_plan
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.sharding import codec_of, routing_of

Array = np.ndarray[Any, np.dtype[Any]]

SLOT = 0
STORES = {name: compressed_store(gradients=one) for name, one in KINDS.items()}
SCALE = 4.0


class Sender:
    """A slot that pushes some keys, and each slice's bytes and what it owes by themselves."""

    def __init__(self, kind: str, places: list[int]) -> None:
        self.description: StoreDescription = STORES[kind]
        self.routing = routing_of(self.description)
        self.keys = KeyList([self.description.keys[place] for place in places], places, SLOT)
        self.encoders = GradientEncoders(self.description, self.routing, SLOT)
        self.setting = KINDS[kind]
        self.owed: dict[tuple[int, int], Array | None] = {}

    @property
    def segments(self) -> list[PlanSegment]:
        plan = key_plan(self.routing, self.keys.key_indices)
        return [segment for segments in plan.segments.values() for segment in segments if segment.pushed is not None]

    def gradients(self, step: int) -> list[Array]:
        generator = np.random.default_rng(step)
        pairs = zip(self.keys.shapes, self.keys.dtypes, strict=True)
        return [generator.standard_normal(shape).astype(dtype) for shape, dtype in pairs]

    def encoded(self, step: int, gradients: list[Array]) -> list[EncodedSegment]:
        encoders = self.begun = [*self.encoders.begin(self.keys, step).values()]
        found = []
        plan = key_plan(self.routing, self.keys.key_indices)
        for segment in self.segments:
            found.append(EncodedSegment(plan, segment, gradients, encoders, step=step, scale=SCALE))
        return found

    def parts(self, segment: PlanSegment) -> list[tuple[ByteRange, int]]:
        """The parts of keys in a segment, each with its bytes."""
        plan = key_plan(self.routing, self.keys.key_indices)
        parts = zip(plan.byte_ranges, plan.starts, plan.starts[1:], strict=False)
        return [(part, stop - start) for part, start, stop in parts if segment.bounds[0] <= start < segment.bounds[-1]]

    def plain(self, segment: PlanSegment, gradients: list[Array]) -> list[bytes]:
        """Each slice's bytes."""
        found = []
        for part, nbytes in self.parts(segment):
            cut = self.routing.slices[self.keys.key_indices[part.position]]
            flat = gradients[part.position].reshape(-1)
            codec = codec_of(self.setting, flat.dtype)
            index = part.start // cut.step_bytes
            while cut.start(index) < part.start + nbytes:
                some = flat[cut.start(index) // flat.itemsize : cut.start(index + 1) // flat.itemsize].copy()
                owed = self.owed.setdefault(
                    (part.position, index), np.zeros_like(some) if self.setting.residual else None
                )
                scale = SCALE if self.setting.residual else 1.0
                found.append(codec.encode(some, np.array([0, len(some)]), owed, scale=scale).tobytes())
                index += 1
        return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data(), places=st.lists(st.integers(0, 5), min_size=1, unique=True))
def test_the_bytes_are_those_of_each_slice_in_whatever_parts_they_leave(
    kind: str, data: st.DataObject, places: list[int]
) -> None:
    """Over some steps; segments take turns, as priorities have them, and what was lost leaves once more."""
    sender = Sender(kind, places)
    for step in range(2):
        gradients = sender.gradients(step)
        sources = sender.encoded(step, gradients)
        wanted = [sender.plain(segment, gradients) for segment in sender.segments]
        ends = [np.cumsum([0, *map(len, parts)]).tolist() for parts in wanted]
        reached = [0] * len(sources)
        while any(at < len(parts) for at, parts in zip(reached, wanted, strict=True)):
            number = data.draw(st.sampled_from([n for n, at in enumerate(reached) if at < len(wanted[n])]))
            again, at = data.draw(st.integers(0, reached[number])), reached[number]
            stop = data.draw(st.integers(at + 1, len(wanted[number])))
            for first, last in [(at, stop), (again, stop)]:
                found = sources[number](ends[number][first], ends[number][last])
                assert b"".join(map(bytes, found)) == b"".join(wanted[number][first:last])
            reached[number] = stop
        sender.encoders.end_push(sender.begun, step, failed=False)
    owed = sender.encoders.residuals
    for position, name in enumerate(sender.keys.names):
        mine = [sender.owed[one] for one in sorted(sender.owed) if one[0] == position]
        if mine and mine[0] is not None:
            assert owed[name].tobytes() == np.concatenate(mine).tobytes()  # type: ignore[arg-type]


def test_a_slice_is_encoded_when_it_first_leaves_and_no_sooner() -> None:
    sender = Sender("2bit", [0])
    gradients = [np.full((90, 17), 4.0, np.float32)]
    source, *_ = sender.encoded(0, gradients)
    segment, *_ = sender.segments
    codec = segment.pushed
    assert codec is not None
    assert segment.count >= 3
    (encoder,) = sender.begun
    assert encoder is not None
    assert [bytes(part) for part in source(0, 0)] in ([], [b""])
    assert encoder.furthest == 0, "nothing has left"
    first = b"".join(map(bytes, source(0, int(codec.begins[1]))))
    assert encoder.furthest == 1
    gradients[0][:] = -4.0
    assert b"".join(map(bytes, source(0, int(codec.begins[1])))) == first, "its bytes are kept"
    everything = b"".join(map(bytes, source(0, int(codec.begins[-1]))))
    decoded = codec.decode(0, segment.count, everything)
    assert (decoded[: codec.bounds[1]] == 0.5).all()
    assert (decoded[codec.bounds[1] :] == -0.5).all()


def test_what_was_encoded_in_a_push_that_failed_is_sent_as_it_was() -> None:
    """And the rest is encoded with the residual that this left."""
    sender = Sender("2bit", [0])
    gradients = sender.gradients(0)
    first = sender.encoded(0, gradients)
    made = [b"".join(map(bytes, one(0, int(one._codec.begins[1])))) for one in first]
    sender.encoders.end_push(sender.begun, 0, failed=True)
    for one in first:
        one.keep()
    owed = {name: residual.copy() for name, residual in sender.encoders.residuals.items()}
    again = sender.encoded(0, [np.full_like(gradients[0], 9.0)])
    assert [b"".join(map(bytes, one(0, int(one._codec.begins[1])))) for one in again] == made
    assert all(np.array_equal(owed[name], residual) for name, residual in sender.encoders.residuals.items())
    assert again[0](0, int(again[0]._codec.begins[2]))
    assert not all(np.array_equal(owed[name], residual) for name, residual in sender.encoders.residuals.items())


def test_a_gradient_that_keeps_nothing_is_not_divided_by_the_scale() -> None:
    """Its shard divides it."""
    for kind, wanted in [("bf16", 1.0), ("bf16, none kept", 4.0)]:
        sender = Sender(kind, [1])
        for source, segment in zip(sender.encoded(0, [np.full(700, 4.0, np.float32)]), sender.segments, strict=True):
            codec = segment.pushed
            assert codec is not None
            payload = b"".join(map(bytes, source(0, int(codec.begins[-1]))))
            assert (codec.decode(0, segment.count, payload) == wanted).all()


def test_a_gradient_of_any_rank_is_encoded_in_its_order_and_is_not_written() -> None:
    sender = Sender("bf16", [0])
    gradient = np.arange(90 * 17, dtype=np.float32).reshape(90, 17)
    gradient.flags.writeable = False
    decoded = []
    for source, segment in zip(sender.encoded(0, [gradient]), sender.segments, strict=True):
        ((part, _),) = sender.parts(segment)
        codec = segment.pushed
        assert codec is not None
        payload = b"".join(map(bytes, source(0, int(codec.begins[-1]))))
        decoded.append((part.start, codec.decode(0, segment.count, payload)))
    found = np.concatenate([some for _, some in sorted(decoded, key=lambda one: one[0])])
    assert np.allclose(found * SCALE, gradient.reshape(-1), rtol=2**-8)
