"""The store's description is one document, told by the API's models and read into the store's own records."""

from __future__ import annotations

import msgspec
import pytest
from pydantic import BaseModel

from weft.api.compression import CompressionSpec, StoreCompressionSpec
from weft.api.job import Merge as ApiMerge
from weft.api.store import (
    AverageSpec,
    CommitSpec,
    EvictionSpec,
    GrowthSpec,
    InitializerSpec,
    KeySpec,
    LossScalingSpec,
    StoreSpec,
)
from weft_kvstore.compression.description import CompressionDescription, StoreCompression
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import Key, describe
from weft_kvstore.description.records import (
    AverageDescription,
    CommitDescription,
    EvictionDescription,
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    LossScaling,
    Merge,
    Mode,
    StoreDescription,
)


@pytest.mark.parametrize(
    ("spec", "record"),
    [
        (InitializerSpec, InitializerDescription),
        (EvictionSpec, EvictionDescription),
        (GrowthSpec, GrowthDescription),
        (KeySpec, KeyDescription),
        (LossScalingSpec, LossScaling),
        (CommitSpec, CommitDescription),
        (AverageSpec, AverageDescription),
        (CompressionSpec, CompressionDescription),
        (StoreCompressionSpec, StoreCompression),
        (StoreSpec, StoreDescription),
    ],
)
def test_both_have_the_same_fields(spec: type[BaseModel], record: type[msgspec.Struct]) -> None:
    assert list(spec.model_fields) == list(record.__struct_fields__)


def test_both_have_the_same_orders_of_merging() -> None:
    assert [one.value for one in ApiMerge] == [one.value for one in Merge]


def test_staleness_is_described_and_belongs_to_its_mode() -> None:
    keys = {"a": Key(shape=(3,), initializer=0), "b": Key(shape=(3,), initializer=0, staleness=1)}
    description = describe(keys, mode="stale", staleness=2, slots=2, rule="sgd")
    assert (description.mode, description.staleness) == (Mode.STALE, 2)
    assert [key.staleness for key in description.keys[:2]] == [None, 1]
    with pytest.raises(DescriptionError, match="staleness: at least 0, not -1"):
        describe({"a": (3,)}, mode="stale", staleness=-1, rule="sgd")
    with pytest.raises(DescriptionError, match="staleness: it bounds mode 'stale' alone, not 'sync'"):
        describe({"a": (3,)}, staleness=1, rule="sgd")
    with pytest.raises(DescriptionError, match="key 'b': staleness: it bounds"):
        describe(keys, mode="async", rule="sgd")
