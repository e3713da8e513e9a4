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
from weft_kvstore.description import (
    AverageDescription,
    CommitDescription,
    EvictionDescription,
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    LossScaling,
    Merge,
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
