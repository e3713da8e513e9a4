"""The description of a job's store, which is the same for every process; and the first values of its keys."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from weft_graph.ir import GIVEN, Initializer
from weft_graph.program import Update
from weft_kernels.id_draws import rows_of_ids
from weft_kernels.initializers import first_rows, first_values
from weft_kvstore.arrays import Array
from weft_kvstore.settings import MAX_SLICE_BYTES
from weft_kvstore.structs import Reader

# --- Types of fields, and their bounds --------------------------------------------------------------------------------


LEAST_SCALE: Final = 2.0**-24
MOST_SCALE: Final = 2.0**24
"""Of a loss. Powers of two, as is every scale: dividing by it changes no digit."""

MAX_SLOTS: Final = 1 << 16
"""Of a store: each shard counts the steps of each slot, of every slice."""

DType = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
"""What a value may be made of; the wire is little-endian."""

AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
Shape = Annotated[tuple[AtLeast0, ...], Meta(max_length=64)]
Priority = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""The priority of a call is worth more than that of any key."""
Slots = Annotated[int, Meta(ge=1, le=MAX_SLOTS)]
SliceBytes = Annotated[int, Meta(ge=1, le=MAX_SLICE_BYTES)]
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Numbers = Mapping[str, Number]
"""Finite ones."""


# --- How gradients and values are compressed on their way -------------------------------------------------------------


COMPRESSED_DTYPES: Final = frozenset({"float32", "float64"})
"""Integers have no residual, and two-byte floats would lose it in their own rounding."""

LEAST_BYTES: Final = 16 << 10
"""Of a key's value. Smaller keys are biases and the scales of normalizations: 0.2 % of the bytes of ResNet-50, and what
training bears worst to have rounded; and encoding one costs more time than its bytes take at 10 Gbit/s."""

_SINGLE: Final = np.finfo(np.float32)


class Kind(StrEnum):
    """What a slice becomes: 16-bit floats, one of {-threshold, 0, threshold} per element, or its largest elements."""

    BF16 = "bf16"
    FP16 = "fp16"
    TWO_BIT = "2bit"
    TOP_K = "topk"


class CompressionDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One codec. `threshold` is of 2-bit, in units of the gradient: a normal float32 number. Top-k keeps `count`
    elements of each slice, or `ratio` of them rounded up. `residual`: what a step leaves out is added to the next one;
    2-bit and top-k always do.
    """

    kind: Kind
    threshold: Annotated[float, Meta(ge=float(_SINGLE.tiny), le=float(_SINGLE.max))] | None = None
    ratio: Share | None = None
    count: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    residual: bool = True


class StoreCompression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What travels compressed, of a job or of one key: each direction on its own, None as it is.

    `gradients`: from workers to shards. `merged`: merged gradients to workers that update themselves. `weights`: values
    that shards update, to workers; rounded afresh each time, so they have no residual, and every worker reads the same.
    `least_bytes`: keys with a smaller value are left as they are.
    """

    gradients: CompressionDescription | None = None
    merged: CompressionDescription | None = None
    weights: CompressionDescription | None = None
    least_bytes: AtLeast0 = LEAST_BYTES


# --- Keys, slots, rule, shards ----------------------------------------------------------------------------------------


class Merge(StrEnum):
    SLOT = "slot"
    ARRIVAL = "arrival"


class Mode(StrEnum):
    """When a step of a key is applied: once every contributing slot has pushed it (SYNC), or each slot's part as it
    arrives (ASYNC); STALE is ASYNC in which no slot gets further ahead of the slowest than the bound."""

    SYNC = "sync"
    ASYNC = "async"
    STALE = "stale"


class InitializerDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An ONNX operator that makes first values, with its attributes: see `weft_graph.ir.Initializer`."""

    op_type: str
    attributes: Numbers


class Sparse(StrEnum):
    """What a rule does to the rows of a table that a step does not touch. LAZY: nothing. STANDARD: what it does to a
    dense key with a gradient of zero, done when the row is next pushed or read."""

    LAZY = "lazy"
    STANDARD = "standard"


class EvictionDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every `every` steps, between two steps, rows are evicted that were last pushed over `age` steps ago, or whose
    score is below `score`. A score is the sum over a row's pushes of decay^(steps since then)."""

    every: AtLeast1
    age: AtLeast0 | None = None
    score: Positive | None = None
    decay: Share = 0.999


class GrowthDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows are created for any 64-bit id. Each step that pushes an id is one use of it; the id is admitted at its use
    number `uses`, or at each use with a `probability`. Before that a pull returns its first value, and pushes to it are
    dropped."""

    uses: Annotated[int, Meta(ge=1, lt=1 << 32)] = 1
    probability: Share = 1.0
    eviction: EvictionDescription | None = None


class KeyDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key: dtype and shape of its value, first value, kind of update, urgency, contributing slots in order.

    `rows`: a table, pushed and pulled by rows. `whole`: never cut, for its rule is not pointwise. `multipliers` are
    factors of the job's hyper-parameters for this key. `staleness` replaces the job's, in mode `stale`. A table with
    `growth` has no row at first: the first extent of its shape is 0. `rule` and `hyper` replace the store's for this
    table, and `sparse` is for tables alone. `compression` replaces the store's for this key. `half`: users' arrays are
    of this 16-bit type; the key itself, its sums and the rule's state are float32.
    """

    key: str
    dtype: DType
    shape: Shape
    initializer: InitializerDescription
    update: Update
    priority: Priority
    slots: tuple[int, ...]
    rows: bool = False
    whole: bool = False
    multipliers: Numbers = {}
    staleness: AtLeast0 | None = None
    growth: GrowthDescription | None = None
    rule: str | Mapping[str, Any] | None = None
    hyper: Mapping[str, Number | Mapping[str, Any]] | None = None
    sparse: Sparse = Sparse.LAZY
    compression: StoreCompression | None = None
    half: Literal["float16", "bfloat16"] | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Of one row of a table."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class LossScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loss is multiplied by a power of two, `initial` at first, and merged gradients are divided by it. It doubles
    after `growth_interval` finite steps in a row and halves after one that is not, which is skipped."""

    initial: Annotated[float, Meta(ge=LEAST_SCALE, le=MOST_SCALE)]
    growth_interval: AtLeast1


class CommitDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shards apply a step once all slots have agreed on the norm of its merged gradient, which `clip_norm` bounds, and
    on whether it is finite. A step that is not finite is skipped if the loss is scaled, or with `skip`."""

    clip_norm: Positive | None = None
    loss_scaling: LossScaling | None = None
    skip: bool = False

    @property
    def skips(self) -> bool:
        """Whether a step whose gradient is not finite is skipped."""
        return self.skip or self.loss_scaling is not None


class AverageDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shards keep each weight's average over updates beside it: see `weft_kernels.averaging`."""

    decay: Annotated[float, Meta(gt=0, lt=1)] | None = None
    start: AtLeast0 = 0


class StoreDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that processes of one store must agree on. `shards` are ZeroMQ endpoints by shard number, and
    `curve_keys` the shards' public CURVE keys, where links are encrypted.

    `rule` names a built-in rule, or is a user's rule as a document (`weft_graph.rules.graph`). A hyper-parameter is a
    number or a schedule (`weft_graph.rules.schedule`). With `commit` a step of all keys applies as one.
    `staleness`, in mode `stale`: a pull of version v waits until every slot's first v - staleness steps are applied.
    `compression`: how gradients and values are compressed.
    """

    job: Annotated[str, Meta(min_length=1, max_length=256)]
    term: AtLeast0
    seed: int
    slots: Slots
    shards: tuple[str, ...]
    keys: tuple[KeyDescription, ...]
    rule: str | Mapping[str, Any]
    hyper: Mapping[str, Number | Mapping[str, Any]]
    slice_bytes: SliceBytes
    merge: Merge
    mode: Mode = Mode.SYNC
    commit: CommitDescription | None = None
    average: AverageDescription | None = None
    staleness: AtLeast0 = 0
    compression: StoreCompression | None = None
    curve_keys: tuple[str, ...] = ()


def codecs_of(
    key: KeyDescription, setting: StoreCompression | None
) -> tuple[CompressionDescription | None, CompressionDescription | None]:
    """How a key's gradients travel to shards, and its values to workers that train on it, beyond its first value, in a
    store with this setting. A table's rows have no residual to wait in; a key that nobody pushes is fetched once."""
    setting = setting if key.compression is None else key.compression
    if setting is None or key.rows or not key.slots or key.update is Update.MEAN:
        return None, None
    if key.dtype not in COMPRESSED_DTYPES or key.nbytes < setting.least_bytes:
        return None, None
    return setting.gradients, setting.merged if key.update is Update.GRADIENT else setting.weights


descriptions: Final[Reader[StoreDescription]] = Reader(StoreDescription)


# --- First values on a shard: of a range of elements, or of rows of a table -------------------------------------------


def is_given(key: KeyDescription) -> bool:
    """Whether the key has no value until one is set."""
    return key.initializer.op_type == GIVEN and key.update is not Update.GRADIENT


def first_elements(key: KeyDescription, seed: int, start: int, stop: int) -> Array:
    """Elements `start` to `stop` of the key's first value. Raises ValueError for an initializer that there is not."""
    dtype = np.dtype(key.dtype)
    if is_given(key) or key.update is Update.GRADIENT:
        return np.zeros(stop - start, dtype)
    return first_values(_initializer(key), seed=seed, key=key.key, start=start, stop=stop, dtype=dtype)


def first_table_rows(key: KeyDescription, seed: int, width: int, rows: Array) -> Array:
    """First values (n, width) of a table's rows (n) int64, or uint64 where it grows. Raises ValueError as above."""
    if key.growth is not None:
        return rows_of_ids(
            _initializer(key), seed=seed, key=key.key, ids=rows.view(np.uint64), width=width, dtype=key.dtype
        )
    return first_rows(_initializer(key), seed=seed, key=key.key, rows=rows, width=width, dtype=np.dtype(key.dtype))


def _initializer(key: KeyDescription) -> Initializer:
    return Initializer(key.initializer.op_type, dict(key.initializer.attributes))
