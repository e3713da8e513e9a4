"""Where pulled values land, against the bytes of each value by itself."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from store_cluster import key_of, store_of
from weft_kvstore.client.plan import MAX_PACK_BYTES, SMALL_BYTES, KeyPlan, PullLayout, key_plan
from weft_kvstore.sharding import routing_of

Array = np.ndarray[Any, np.dtype[Any]]

SHAPES = [(), (0, 4), (1,), (3, 5), (SMALL_BYTES // 4,), (SMALL_BYTES // 4 + 1,), (7, 11)]


def plan_of(
    shapes: list[tuple[int, ...]],
    *,
    order: list[int],
    shards: int = 1,
    slice_bytes: int = 1 << 20,
    dtype: str = "float32",
) -> KeyPlan:
    """A plan of keys of these shapes, named by a call in this order."""
    keys = [msgspec.structs.replace(key_of(f"k{n}", shape, 1), dtype=dtype) for n, shape in enumerate(shapes)]
    routing = routing_of(store_of(keys, slots=1, shards=shards, slice_bytes=slice_bytes))
    return key_plan(routing, order, [np.dtype(dtype)] * len(order), [shapes[place] for place in order])


def values_of(shapes: list[tuple[int, ...]], order: list[int], dtype: str) -> list[Array]:
    generator = np.random.default_rng(5)
    return [np.asarray(generator.standard_normal(shapes[place])).astype(dtype) for place in order]


class Landing:
    """The values of one pull, in new memory."""

    def __init__(self, layout: PullLayout) -> None:
        self.segments = layout.segments
        self.arrays, self.buffers = layout.make()


def land(plan: KeyPlan, landing: Landing, values: list[Array], choose: random.Random) -> None:
    """All bytes of all runs, in pieces of any length, in any order, some of them twice."""
    pieces = []
    for run in (run for some in plan.runs.values() for run in some):
        raw = b"".join(values[part.position].tobytes()[part.start : part.stop] for part in run.parts)
        cuts = sorted({0, len(raw), *(choose.randrange(len(raw)) for _ in range(4)), *run.starts})
        pieces += [(run.number, low, high, raw[low:high]) for low, high in pairwise(cuts)]
        pieces.append((run.number, 0, len(raw), raw))
        if choose.random() < 0.7:
            pieces.pop()
    choose.shuffle(pieces)
    for number, low, high, some in pieces:
        landing.segments[number].copy(low, high, memoryview(some), landing.buffers)


layouts = st.fixed_dictionaries(
    {
        "shapes": st.lists(st.sampled_from(SHAPES), min_size=1, max_size=7),
        "shards": st.integers(1, 3),
        "slice_bytes": st.sampled_from([64, 5000, 1 << 20]),
        "dtype": st.sampled_from(["float32", "float64", "float16"]),
        "choose": st.randoms(use_true_random=False),
        "into": st.sampled_from(["packed", "single", "out"]),
    }
)


@settings(max_examples=60)
@given(layouts)
def test_every_byte_lands_in_its_keys_array_however_it_comes(case: dict[str, Any]) -> None:
    shapes, choose, dtype = case["shapes"], case["choose"], case["dtype"]
    order = choose.sample(range(len(shapes)), choose.randint(1, len(shapes)))
    plan = plan_of(shapes, order=order, shards=case["shards"], slice_bytes=case["slice_bytes"], dtype=dtype)
    values = values_of(shapes, order, dtype)
    if case["into"] == "out":
        outs = [np.full_like(value, 9) for value in values]
        landing = Landing(plan.single)
        landing.arrays = landing.buffers = outs
    else:
        landing = Landing(plan.packed if case["into"] == "packed" else plan.single)
    for array in landing.arrays:
        array[...] = 9
    land(plan, landing, values, choose)
    for array, value in zip(landing.arrays, values, strict=True):
        assert (array.dtype, array.shape) == (value.dtype, value.shape)
        assert array.tobytes() == value.tobytes()
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.flags.writeable
    for number, one in enumerate(landing.arrays):
        assert not any(np.shares_memory(one, other) for other in landing.arrays[number + 1 :])


def test_only_small_values_that_are_neighbours_share_memory() -> None:
    shapes = [(4,), (4,), (SMALL_BYTES // 4,), (SMALL_BYTES // 4 + 1,), (4,), (0,), (4,)]
    order = [6, 0, 1, 2, 3, 4, 5]
    landing = Landing(plan_of(shapes, order=order).packed)
    owners = {place: id(array.base) for place, array in zip(order, landing.arrays, strict=True)}
    assert owners[0] == owners[1] == owners[2]
    assert owners[4] == owners[6]
    assert len({owners[0], owners[4]}) == 2
    large = landing.arrays[order.index(3)]
    assert large.base is None, "a large value has memory of its own"
    alone = Landing(plan_of(shapes, order=order).single)
    assert all(array.base is None for array in alone.arrays)


def test_a_value_that_is_cut_over_shards_has_memory_of_its_own() -> None:
    landing = Landing(plan_of([(100,), (100,)], order=[0, 1], shards=2, slice_bytes=40).packed)
    assert [array.base for array in landing.arrays] == [None, None]


def test_what_shares_memory_is_no_more_than_a_frame() -> None:
    """Who keeps one small array keeps that much."""
    count = 3 * MAX_PACK_BYTES // SMALL_BYTES + 1
    order = list(range(count))
    landing = Landing(plan_of([(SMALL_BYTES // 4,)] * count, order=order).packed)
    sizes = [buffer.nbytes for buffer in landing.buffers]
    assert max(sizes) == MAX_PACK_BYTES
    assert sum(sizes) == count * SMALL_BYTES
    assert len(sizes) == 4
    values = values_of([(SMALL_BYTES // 4,)] * count, order, "float32")
    plan = plan_of([(SMALL_BYTES // 4,)] * count, order=order)
    land(plan, landing, values, random.Random(1))
    assert all(np.array_equal(one, other) for one, other in zip(landing.arrays, values, strict=True))


def test_each_pull_has_memory_of_its_own() -> None:
    layout = plan_of([(4,), (4,)], order=[1, 0]).packed
    one, other = Landing(layout), Landing(layout)
    assert not any(np.shares_memory(a, b) for a in one.arrays for b in other.arrays)
