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
from weft_kvstore.client.plan import SMALL_BYTES, KeyPlan, key_plan
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
    return key_plan(routing, order)


def values_of(shapes: list[tuple[int, ...]], order: list[int], dtype: str) -> list[Array]:
    generator = np.random.default_rng(5)
    return [np.asarray(generator.standard_normal(shapes[place])).astype(dtype) for place in order]


def land(plan: KeyPlan, arrays: list[Array], values: list[Array], choose: random.Random) -> None:
    """All bytes of a call, in pieces of any length, in any order, some of them twice."""
    raw = b"".join(
        values[part.position].tobytes()[part.start : part.start + stop - start]
        for part, (start, stop) in zip(plan.byte_ranges, pairwise(plan.starts), strict=True)
    )
    cuts = sorted({0, len(raw), *(choose.randrange(len(raw) + 1) for _ in range(9)), *plan.starts})
    pieces = [*pairwise(cuts), *([(0, len(raw))] if choose.random() < 0.3 else [])]
    choose.shuffle(pieces)
    for low, high in pieces:
        plan.write(arrays, low, high, memoryview(raw[low:high]))


layouts = st.fixed_dictionaries(
    {
        "shapes": st.lists(st.sampled_from(SHAPES), min_size=1, max_size=7),
        "shards": st.integers(1, 3),
        "slice_bytes": st.sampled_from([64, 5000, 1 << 20]),
        "dtype": st.sampled_from(["float32", "float64", "float16"]),
        "choose": st.randoms(use_true_random=False),
    }
)


@settings(max_examples=60)
@given(layouts)
def test_every_byte_lands_in_its_keys_array_however_it_comes(case: dict[str, Any]) -> None:
    shapes, choose, dtype = case["shapes"], case["choose"], case["dtype"]
    order = choose.sample(range(len(shapes)), choose.randint(1, len(shapes)))
    plan = plan_of(shapes, order=order, shards=case["shards"], slice_bytes=case["slice_bytes"], dtype=dtype)
    values = values_of(shapes, order, dtype)
    arrays = [np.full_like(value, 9) for value in values]
    land(plan, arrays, values, choose)
    for array, value in zip(arrays, values, strict=True):
        assert array.tobytes() == value.tobytes()


def test_bytes_beyond_2_gib_land_where_they_belong() -> None:
    """What nobody writes of the array takes no memory."""
    wide = 2**31 + 5 * 2**20 + 3
    plan = plan_of([(wide,)], order=[0], slice_bytes=1 << 24, dtype="int8")
    array = np.zeros(wide, np.int8)
    for at in (0, 2**31 - 2, wide - 4):
        plan.write([array], at, at + 4, memoryview(b"\1\2\3\4"))
        assert array[at : at + 4].tolist() == [1, 2, 3, 4]
