"""What a slot owes of each key, and which steps of it may still be pushed."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressed_store import HALF_WEIGHTS, TWO_BIT, compressed_store
from weft_kvstore.client.encoders import GradientEncoders, KeyEncoder
from weft_kvstore.client.plan import KeyList
from weft_kvstore.description.records import (
    CommitDescription,
    CompressionDescription,
    Kind,
    LossScaling,
    StoreDescription,
)
from weft_kvstore.errors import PushedTwiceError, StoreRefusedError
from weft_kvstore.sharding import routing_of
from weft_kvstore.store import StepOutcome

Array = np.ndarray[Any, np.dtype[Any]]

SLOT = 1


def encoders_of(description: StoreDescription, slot: int = SLOT) -> GradientEncoders:
    return GradientEncoders(description, routing_of(description), slot)


def keys_of(description: StoreDescription, *names: str) -> KeyList:
    places = {key.key: place for place, key in enumerate(description.keys)}
    return KeyList([description.keys[places[name]] for name in names], [places[name] for name in names], SLOT)


STORE = compressed_store(gradients=TWO_BIT)


def ended(
    encoders: GradientEncoders,
    begun: dict[int, KeyEncoder | None],
    step: int,
    *,
    encoded: bool = True,
    failed: bool = False,
) -> None:
    """A push ends of which some was `encoded`."""
    for one in begun.values() if encoded else ():
        if one is not None:
            one.furthest = max(one.furthest, step + 1)
    encoders.end_push(begun.values(), step, failed=failed)


def encode(encoders: GradientEncoders, keys: KeyList, step: int) -> None:
    """Pushes ones of each key, which is acknowledged."""
    begun = encoders.begin(keys, step)
    for encoder, dtype, shape in zip(begun.values(), keys.dtypes, keys.shapes, strict=True):
        if encoder is not None:
            size = int(np.prod(shape))
            encoder.encode_step(step, 0, len(encoder), np.full(size, 0.25, dtype))
    ended(encoders, begun, step)


def is_known(encoders: GradientEncoders, keys: KeyList, step: int) -> bool:
    """Whether nothing of it is encoded, as it has arrived before."""
    return set(encoders.begin(keys, step).values()) <= {None}


def test_keys_that_travel_as_they_are_or_keep_nothing_have_no_encoder() -> None:
    found = encoders_of(STORE).begin(keys_of(STORE, "w", "small", "double", "whole", "merged"), 0)
    assert [isinstance(one, KeyEncoder) for one in found.values()] == [True, False, True, True, True]
    for setting in (CompressionDescription(Kind.BF16, residual=False), None):
        store = compressed_store(gradients=setting, weights=HALF_WEIGHTS)
        assert set(encoders_of(store).begin(keys_of(store, "w", "v"), 0).values()) == {None}
        assert encoders_of(store).residuals == {}


def test_a_slot_owes_of_the_keys_to_which_it_contributes() -> None:
    keys = [msgspec.structs.replace(key, slots=(0, 2)) if key.key == "v" else key for key in STORE.keys]
    encoders = encoders_of(msgspec.structs.replace(STORE, keys=tuple(keys)))
    names = ["w", "whole", "double", "merged"]
    owed = encoders.residuals
    assert sorted(owed) == sorted(names)
    sizes = {key.key: (key.size, key.dtype) for key in STORE.keys}
    assert all((array.size, str(array.dtype)) == sizes[name] for name, array in owed.items())
    assert not any(array.any() for array in owed.values())


def test_an_encoder_has_the_keys_own_slices_whichever_shard_has_them() -> None:
    encoders, routing = encoders_of(STORE), routing_of(STORE)
    keys = keys_of(STORE, "w", "double")
    for place, encoder, dtype in zip(keys.key_indices, encoders.begin(keys, 0).values(), keys.dtypes, strict=True):
        cut = routing.slices[place]
        assert encoder is not None
        for index in range(cut.count):
            count = (cut.start(index + 1) - cut.start(index)) // dtype.itemsize
            encoder.encode_step(0, index, index + 1, np.full(count, index + 1, dtype))
        owed = encoders.residuals[STORE.keys[place].key]
        starts = np.arange(owed.size) * dtype.itemsize // cut.step_bytes
        assert owed.tolist() == (starts + 1 - 0.5).tolist(), "all but the threshold, in the slice's own place"


class Steps:
    """Which steps of one key are under way, and which have arrived, in plain words."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.arrived: set[int] = set()

    def has(self, step: int) -> bool:
        """Whether it has arrived, as far as is known: none is missing that lies far behind another."""
        return step in self.arrived or step < max(self.arrived, default=0) - 2

    def ended(self, step: int, *, failed: bool) -> None:
        self.under_way.remove(step)
        self.arrived |= set() if failed else {step}


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "ab"]), st.booleans()), max_size=25), st.data())
def test_a_step_of_a_key_is_begun_once_unless_it_fails(
    events: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    """Calls of one or both of two keys begin, and end in any order with or without having been encoded."""
    encoders = encoders_of(STORE)
    sets = {"a": keys_of(STORE, "w"), "b": keys_of(STORE, "v"), "ab": keys_of(STORE, "w", "small", "v")}
    plain = {"a": Steps(), "b": Steps()}
    calls: list[tuple[list[str], int, dict[int, KeyEncoder | None]]] = []
    for step, names, ends in events:
        if ends and calls:
            of, begun, used = calls.pop(data.draw(st.integers(0, len(calls) - 1)))
            encoded, failed = data.draw(st.booleans()), data.draw(st.booleans())
            ended(encoders, used, begun, encoded=encoded, failed=failed)
            for name in of:
                plain[name].ended(begun, failed=failed)
        elif not any(step in plain[name].under_way for name in names):
            new = [name for name in names if not plain[name].has(step)]
            calls.append((new, step, encoders.begin(sets[names], step)))
            assert [one is not None for one in calls[-1][2].values()].count(True) == len(new)
            for name in new:
                plain[name].under_way.append(step)
        else:
            with pytest.raises(StoreRefusedError, match=f"slot 1: push of key '[wv]', step {step}: it is being pushed"):
                encoders.begin(sets[names], step)
        if any(new for new, *_ in calls):
            steps = re.escape(str(sorted({begun for new, begun, _ in calls if new})))
            with pytest.raises(StoreRefusedError, match=f"restore of residuals: pushes of steps {steps} are under way"):
                encoders.restore(encoders.residuals)
        else:
            encoders.restore(encoders.residuals)


def test_steps_of_which_nothing_was_encoded_may_all_be_begun_again() -> None:
    """Two were under way when the shard was gone; the caller tries both again, the earlier one first."""
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    begun = [encoders.begin(keys, step) for step in (0, 1)]
    for step in (0, 1):
        ended(encoders, begun[step], step, encoded=False, failed=True)
    for step in (0, 1):
        ended(encoders, encoders.begin(keys, step), step)
    assert is_known(encoders, keys, 1)


def test_a_step_that_ends_after_a_later_one_does_not_let_that_begin_again() -> None:
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    begun = [encoders.begin(keys, step) for step in (0, 1)]
    for step in (1, 0):
        ended(encoders, begun[step], step)
    assert all(is_known(encoders, keys, step) for step in (0, 1))
    encoders.begin(keys, 2)


def test_steps_that_end_in_any_order_are_known() -> None:
    """A push of several keys ends once all of them have arrived."""
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    begun = [encoders.begin(keys, step) for step in range(6)]
    for step in (3, 4, 1, 0, 2, 5):
        ended(encoders, begun[step], step)
    assert all(is_known(encoders, keys, step) for step in range(6))


def test_a_push_of_several_keys_that_failed_is_begun_again_by_key() -> None:
    encoders, keys, both = encoders_of(STORE), keys_of(STORE, "w"), keys_of(STORE, "small", "v", "w")
    begun = [encoders.begin(both, step) for step in (0, 1)]
    ended(encoders, begun[0], 0, failed=True)
    again = encoders.begin(keys, 0)
    with pytest.raises(StoreRefusedError, match="key 'w', step 0: it is being pushed already"):
        encoders.begin(keys, 0)
    ended(encoders, again, 0, failed=True)
    ended(encoders, begun[1], 1)
    ended(encoders, encoders.begin(both, 0), 0)
    assert is_known(encoders, keys, 0)


@pytest.mark.parametrize(("later", "is_kept"), [(3, True), (4, False)])
def test_what_failed_has_arrived_if_shards_have_taken_a_step_that_is_too_far_ahead_of_it(
    later: int, is_kept: bool
) -> None:
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    begun = encoders.begin(keys, 1)
    ended(encoders, begun, 1, failed=True)
    encode(encoders, keys, later)
    (one,) = begun.values()
    assert one is not None
    assert (1 in one.failed) is is_kept


def test_only_a_step_that_has_arrived_is_not_encoded_again() -> None:
    """Not one that was skipped; of several keys those alone. One that is under way is refused."""
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    for step in (0, 1, 2, 3, 5):
        encode(encoders, keys, step)
    encoders.begin(keys, 6)
    for step in (0, 1, 2, 3, 5):
        assert is_known(encoders, keys, step)
        assert is_known(encoders, keys_of(STORE, "w", "small"), step)
    with pytest.raises(PushedTwiceError, match="key 'w', step 6"):
        encoders.begin(keys, 6)
    assert [*encoders.begin(keys_of(STORE, "w", "v", "small"), 5)] == [1, 2]
    with pytest.raises(StoreRefusedError, match="key 'w', step 6") as refused:
        encoders.begin(keys_of(STORE, "w", "v"), 6)
    assert not isinstance(refused.value, PushedTwiceError)
    assert not is_known(encoders, keys, 4)


def test_residuals_of_another_are_taken_over_and_others_begin_at_zero() -> None:
    encoders, other = encoders_of(STORE), encoders_of(STORE)
    encode(encoders, keys_of(STORE, "w", "double"), 0)
    encode(other, keys_of(STORE, "double", "v"), 0)
    other.restore({"w": encoders.residuals["w"]})
    encode(encoders, keys_of(STORE, "w"), 1)
    assert (encoders.residuals["w"] == 0).all()
    assert (other.residuals["w"] == 0.25).all()
    assert not any(array.any() for name, array in other.residuals.items() if name != "w")


def test_nothing_is_brought_back_under_a_push() -> None:
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    begun = encoders.begin(keys, 0)
    with pytest.raises(StoreRefusedError, match=r"slot 1: restore of residuals: pushes of steps \[0\] are under way"):
        encoders.restore({})
    ended(encoders, begun, 0, encoded=False)
    encoders.restore({})


def test_a_push_that_is_refused_is_not_under_way() -> None:
    encoders = encoders_of(STORE)
    begun = encoders.begin(keys_of(STORE, "w"), 3)
    with pytest.raises(StoreRefusedError, match="key 'w', step 3"):
        encoders.begin(keys_of(STORE, "v", "w"), 3)
    ended(encoders, begun, 3)
    encoders.restore({})
    encoders.begin(keys_of(STORE, "v"), 0)


def test_the_scale_follows_what_the_slots_agreed_on() -> None:
    commit = CommitDescription(loss_scaling=LossScaling(initial=8.0, growth_interval=2))
    encoders = encoders_of(msgspec.structs.replace(STORE, commit=commit))
    assert encoders.scale == 8
    scales, good = [], [0, 1, 0, 0, 1]
    for step, finite in enumerate([True, True, False, True, True]):
        encoders.follow(StepOutcome(step, 1.0, finite, encoders.scale, good[step]))
        scales.append(encoders.scale)
    assert scales == [8, 16, 8, 8, 16]
    encoders.follow(StepOutcome(9, 1.0, finite=True, loss_scale=64.0, good=1))
    assert encoders.scale == 128, "a slot that is taken over begins where the others are"
    encoders.step_ended(9)
    encoders.follow(StepOutcome(8, 1.0, finite=True, loss_scale=64.0))
    assert encoders.scale == 128, "a step that is ended once more"


def test_without_loss_scaling_nothing_is_divided() -> None:
    encoders = encoders_of(STORE)
    encoders.follow(StepOutcome(0, 1.0, finite=False, loss_scale=4.0))
    assert encoders.scale == 1


def test_a_capture_that_finds_no_memory_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    encoders, keys = encoders_of(STORE), keys_of(STORE, "w")
    copies = iter([np.zeros(0)])

    def no_memory(*_: Any, **__: Any) -> Array:
        try:
            return next(copies)
        except StopIteration:
            raise MemoryError from None

    captured: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty_like", no_memory)
        with pytest.raises(MemoryError):
            encoders.capture(1, captured.append)
    encode(encoders, keys, 0)
    encoders.step_ended(0)
    assert not captured
    encoders.capture(1, captured.append)
    assert {name: one.size for name, one in captured[0].items()} == {
        name: one.size for name, one in encoders.residuals.items()
    }
