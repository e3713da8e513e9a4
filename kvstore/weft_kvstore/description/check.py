"""What a description must fulfil, and its digest. Raises DescriptionError, which names the field."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_graph.rules.largest import largest
from weft_graph.rules.schedule import value_at
from weft_kernels.averaging import averaged
from weft_kernels.element_types import HALVES
from weft_kernels.gradient_bounds import BOUNDS, bounded
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule
from weft_kvstore.compression.description import CompressionError, StoreCompression, check_compression
from weft_kvstore.description.records import (
    LEAST_SCALE,
    MOST_SCALE,
    AverageDescription,
    CommitDescription,
    EvictionDescription,
    GrowthDescription,
    KeyDescription,
    Mode,
    Sparse,
    StoreDescription,
    descriptions,
    is_given,
)
from weft_kvstore.encryption.curve_keys import CurveKeyError, check_public
from weft_kvstore.settings import MAX_ROW_BYTES, MAX_SLICE_BYTES
from weft_kvstore.structs import Reader

# --- What a table's description must be, and how a growing one's rows come and go -------------------------------------


def wrong_table(key: KeyDescription) -> str | None:
    """The first thing that is wrong with a table, in words; None where nothing is."""
    if not key.shape:
        return "a scalar is no table"
    if key.whole:
        return "a table is cut by rows, so it cannot be whole"
    if key.update is not Update.RULE and key.slots:  # A frozen table is updated by nothing.
        return f"a table is updated by the rule, not by {key.update.value}"
    if key.row_bytes > MAX_ROW_BYTES:
        return f"a row has {key.row_bytes} bytes, more than {MAX_ROW_BYTES}"
    return None if key.growth is None else _wrong_growth(key, key.growth)


def _wrong_growth(key: KeyDescription, growth: GrowthDescription) -> str | None:
    if key.shape[0]:
        return f"a growing table has no row at first, not {key.shape[0]}"
    if not 1 <= growth.uses < 1 << 32:
        return f"growth.uses: 1 to 2^32 - 1, not {growth.uses}"
    if not 0 < growth.probability <= 1:
        return f"growth.probability: above 0 and at most 1, not {growth.probability}"
    if growth.uses > 1 and growth.probability < 1:
        return "growth: an id is admitted by uses or by probability, not by both"
    if is_given(key) and (growth.uses > 1 or growth.probability < 1):
        return "growth: rows that are set are admitted by that, not by uses"
    return None if growth.eviction is None else _wrong_eviction(growth.eviction)


def _wrong_eviction(eviction: EvictionDescription) -> str | None:
    if eviction.every < 1:
        return f"growth.eviction.every: at least 1, not {eviction.every}"
    if eviction.age is None and eviction.score is None:
        return "growth.eviction: neither age nor score"
    if eviction.age is not None and eviction.age < 0:
        return f"growth.eviction.age: at least 0, not {eviction.age}"
    if eviction.score is not None and not 0 < eviction.score < math.inf:
        return f"growth.eviction.score: a number above 0, not {eviction.score}"
    if not 0 < eviction.decay <= 1:
        return f"growth.eviction.decay: above 0 and at most 1, not {eviction.decay}"
    return None


# --- Which numbers the hyper-parameters of a key may be: such as are finite in its type, multiplied for it ------------


def most_of(key: KeyDescription, name: str) -> float:
    """The largest magnitude that a hyper-parameter may have; the rule computes in the key's own type."""
    stretch = abs(key.multipliers.get(name, 1.0))
    return float(np.finfo(key.dtype).max) / stretch if stretch else math.inf


def told_beyond(key: KeyDescription, name: str, value: float) -> str:
    """In words: the number is beyond what it may be."""
    stretched = f", multiplied by {key.multipliers[name]:g}" if name in key.multipliers else ""
    return f"{name!r}: {value:g}{stretched} is infinite in {key.dtype}, which key {key.key!r} is of"


# --- Whether a description can be a store, and the digest by which processes know that they agree on it ---------------


DTYPES: Final = frozenset({"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"})
"""What a value may be made of; the wire is little-endian."""

MOST_PRIORITY: Final = 1 << 31
"""Of a key: the priority of a call is worth more than any of them."""

RULES_KEPT: Final = 64
"""Of the process's stores: a store has one, and a few for tables."""

_documents: Final[Reader[Any]] = Reader(Any)


class DescriptionError(ValueError):
    """A description that cannot be a store; the text names the field."""


def check_description(description: StoreDescription) -> None:
    """Raises DescriptionError for the first thing that is wrong, naming the field and what was found."""
    if not description.job or len(description.job) > 256:
        raise DescriptionError(f"job: a name of 1 to 256 characters, not {description.job!r}")
    if description.term < 0:
        raise DescriptionError(f"term: at least 0, not {description.term}")
    if description.slots < 1:
        raise DescriptionError(f"slots: at least 1, not {description.slots}")
    if not description.shards:
        raise DescriptionError("shards: none")
    _check_curve_keys(description)
    if not 1 <= description.slice_bytes <= MAX_SLICE_BYTES:
        raise DescriptionError(f"slice_bytes: 1 to {MAX_SLICE_BYTES}, not {description.slice_bytes}")
    seen: set[str] = set()
    for key in description.keys:
        if key.key in seen:
            raise DescriptionError(f"keys: {key.key!r} is there twice")
        seen.add(key.key)
        _check_key(key, description.slots)
        _check_mode(key, description.mode)
        _check_staleness(key.staleness or 0, f"key {key.key!r}: ")
    _check_staleness(description.staleness, "")
    _check_rules(description)
    if description.average is not None:
        _check_average(description, description.average)
    if description.commit is not None:
        _check_commit(description, description.commit)
    _check_compression(description.compression, "compression")
    for key in description.keys:
        _check_compression(key.compression, f"key {key.key!r}: compression")
    _check_size(description)


def is_ruled(key: KeyDescription) -> bool:
    """Whether shards update the key by a rule."""
    return key.update is Update.RULE and bool(key.slots)


def rule_of(description: StoreDescription, key: KeyDescription | None = None) -> Rule:
    """The description's rule, or that of a key which has its own, which keeps averages and bounds gradients where that
    is wanted. Raises DescriptionError where there is no such rule, or a number that it lacks or that is none."""
    where = "" if key is None else f"key {key.key!r}: "
    try:
        rule = compiled_once(description.rule if key is None or key.rule is None else key.rule)
    except ValueError as error:
        raise DescriptionError(f"{where}{error}") from error
    hyper = hyper_of(description, key)
    if not BOUNDS.keys().isdisjoint(hyper):
        rule = bounded(rule)
    unknown = sorted(set(hyper) - set(rule.hyper))
    if unknown:
        known = ", ".join(sorted(rule.hyper))
        raise DescriptionError(f"{where}hyper: rule {rule.name!r} has no {unknown[0]!r}; it has {known}")
    for name, value in hyper.items():
        try:
            value_at(value, 0)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise DescriptionError(f"{where}hyper: {name!r}: {error}") from error
    average = description.average
    return rule if average is None else averaged(rule, average.decay, average.start)


def compiled_once(document: str | Mapping[str, Any]) -> Rule:
    """`rule_from`, which compiles a user's rule once however many keys have it. Raises ValueError."""
    try:
        encoded = msgspec.msgpack.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError):  # The rule itself says what is wrong in its words.
        return rule_from(document)
    return _rule_of_bytes(encoded)


@lru_cache(RULES_KEPT)
def _rule_of_bytes(document: bytes) -> Rule:
    return rule_from(_documents.from_msgpack(document))


def hyper_of(
    description: StoreDescription, key: KeyDescription | None = None
) -> Mapping[str, float | Mapping[str, Any]]:
    """The hyper-parameters given for the store's rule, or for a key: its own stand before the store's, which are those
    of another rule where the key has its own."""
    if key is None or (key.rule is None and key.hyper is None):
        return description.hyper
    return {**({} if key.rule is not None else description.hyper), **(key.hyper or {})}


def digest(description: StoreDescription) -> bytes:
    """16 bytes that differ where descriptions differ; the shards' endpoints count only by their number, and their keys,
    which each link proves for itself, not at all."""
    neutral = msgspec.structs.replace(description, shards=("",) * len(description.shards), curve_keys=())
    encoded = msgspec.json.encode(neutral)
    # Read back once: a number given as 1 where the field is a float must not differ from 1.0.
    again = msgspec.json.encode(descriptions.from_json(encoded), order="deterministic")
    return hashlib.blake2b(again, digest_size=16).digest()


def _check_curve_keys(description: StoreDescription) -> None:
    keys, shards = description.curve_keys, description.shards
    if keys and len(keys) != len(shards):
        raise DescriptionError(f"curve_keys: one for each shard, {len(shards)} of them, not {len(keys)}")
    for number, key in enumerate(keys):
        try:
            check_public(key)
        except CurveKeyError as error:
            raise DescriptionError(f"curve_keys[{number}]: {error}") from None


def _check_key(key: KeyDescription, slots: int) -> None:
    where = f"key {key.key!r}"
    if key.dtype not in DTYPES:
        raise DescriptionError(f"{where}: dtype {key.dtype!r} is none of {', '.join(sorted(DTYPES))}")
    if key.half is not None and (key.dtype != "float32" or key.half not in HALVES):
        told = f"half: {' or '.join(sorted(HALVES))} over dtype float32, not {key.half!r} over {key.dtype!r}"
        raise DescriptionError(f"{where}: {told}")
    if any(extent < 0 for extent in key.shape):
        raise DescriptionError(f"{where}: shape {key.shape} has a negative extent")
    if not -MOST_PRIORITY <= key.priority < MOST_PRIORITY:
        raise DescriptionError(f"{where}: priority: -2^31 to 2^31 - 1, not {key.priority}")
    if key.update is Update.RULE and np.dtype(key.dtype).kind != "f":
        raise DescriptionError(f"{where}: a rule updates floating-point values, not {key.dtype}")
    if len(set(key.slots)) != len(key.slots):
        raise DescriptionError(f"{where}: slots {key.slots} name one twice")
    if any(not 0 <= slot < slots for slot in key.slots):
        raise DescriptionError(f"{where}: slots {key.slots} are not all within 0 to {slots - 1}")
    if key.rows:
        _check_table(key, where)
    elif misplaced := _of_tables(key):
        raise DescriptionError(f"{where}: {misplaced} is for tables alone")


def _of_tables(key: KeyDescription) -> str | None:
    """What a key says that only a table may."""
    said = {"growth": key.growth, "rule": key.rule, "hyper": key.hyper, "sparse": key.sparse is not Sparse.LAZY or None}
    return next((name for name, value in said.items() if value is not None), None)


def _check_table(key: KeyDescription, where: str) -> None:
    wrong = wrong_table(key)
    if wrong is not None:
        raise DescriptionError(f"{where}: {wrong}")


def _check_mode(key: KeyDescription, mode: Mode) -> None:
    if key.update is Update.GRADIENT and mode is not Mode.SYNC:
        raise DescriptionError(f"key {key.key!r}: there is no merged gradient of a step in mode {mode.value}")


def _check_staleness(staleness: int, where: str) -> None:
    if staleness < 0:
        raise DescriptionError(f"{where}staleness: at least 0, not {staleness}")


def _check_average(description: StoreDescription, average: AverageDescription) -> None:
    if average.decay is not None and not 0 < average.decay < 1:
        raise DescriptionError(f"average.decay: a number within 0 and 1, not {average.decay}")
    if average.start < 0:
        raise DescriptionError(f"average.start: at least 0, not {average.start}")
    for key in description.keys:
        if key.update is Update.GRADIENT:
            raise DescriptionError(f"key {key.key!r}: averages are kept where the rule is run, and workers keep none")
        if key.update is Update.RULE and key.slots and key.dtype == "float16":
            raise DescriptionError(f"key {key.key!r}: float16 has too few digits for an average of many steps")


def _check_commit(description: StoreDescription, commit: CommitDescription) -> None:
    if description.mode is not Mode.SYNC:
        raise DescriptionError(f"commit: in mode {description.mode.value} no step is one of all slots")
    clip, scaling = commit.clip_norm, commit.loss_scaling
    updated = next((key.key for key in description.keys if key.update is Update.GRADIENT), None)
    if commit.skips and updated is not None:
        raise DescriptionError(f"key {updated!r}: workers that update cannot skip a step whose gradient is not finite")
    if clip is not None and not 0 < clip < math.inf:
        raise DescriptionError(f"commit.clip_norm: a number above 0, not {clip}")
    if scaling is None:
        return
    if not (LEAST_SCALE <= scaling.initial <= MOST_SCALE and math.frexp(scaling.initial)[0] == 0.5):
        told = f"a power of two within {LEAST_SCALE} to {MOST_SCALE:g}"
        raise DescriptionError(f"commit.loss_scaling.initial: {told}, not {scaling.initial}")
    if scaling.growth_interval < 1:
        raise DescriptionError(f"commit.loss_scaling.growth_interval: at least 1, not {scaling.growth_interval}")
    for key in description.keys:
        if key.update is Update.RULE and key.slots and key.dtype == "float16":
            raise DescriptionError(f"key {key.key!r}: a gradient in float16 cannot be divided by a loss scale")


def _check_compression(setting: StoreCompression | None, where: str) -> None:
    try:
        if setting is not None:
            check_compression(setting, where)
    except CompressionError as error:
        raise DescriptionError(str(error)) from error


def _check_rules(description: StoreDescription) -> None:
    rule = rule_of(description)
    numbers = largest({**rule.hyper, **description.hyper})
    for key in description.keys:
        if key.rule is None and key.hyper is None:
            _check_rule(key, rule, numbers)
        else:
            own = rule_of(description, key)
            _check_rule(key, own, largest({**own.hyper, **hyper_of(description, key)}))


def _check_rule(key: KeyDescription, rule: Rule, numbers: Mapping[str, float]) -> None:
    """`numbers` are the largest that its hyper-parameters get."""
    if not is_ruled(key):
        return
    if rule.whole and not key.whole:
        what = "a table" if key.rows else "cut into slices"
        raise DescriptionError(f"key {key.key!r}: it is {what}, and rule {rule.name!r} needs it whole")
    unknown = sorted(set(key.multipliers) - set(rule.hyper))
    if unknown:
        raise DescriptionError(f"key {key.key!r}: multipliers: rule {rule.name!r} has no {unknown[0]!r}")
    wrong = [name for name, factor in key.multipliers.items() if not math.isfinite(factor)]
    if wrong:
        raise DescriptionError(f"key {key.key!r}: multipliers: {wrong[0]!r} is no finite number")
    for name, number in numbers.items():
        if abs(number) > most_of(key, name):
            raise DescriptionError(f"hyper: {told_beyond(key, name, number)}")


# --- How large a store may be, and its first numbers: what nobody could lay out is told before anybody tries ----------


MAX_SLOTS: Final = 1 << 16
"""Of a store: each shard counts the steps of each slot, of every slice."""

MAX_SLICES: Final = 1 << 24
"""Of all keys: every process deals each of them to a shard. 2 TiB, of the slices that are cut unless told."""

MAX_DIMENSIONS: Final = 64
MAX_BYTES: Final = (1 << 63) - 1
"""What an array of NumPy has at most."""

MAX_PORT: Final = (1 << 16) - 1


def check_slots(slots: int) -> None:
    """Raises DescriptionError for more slots than there may be; to be called before anything has one entry for each."""
    if slots > MAX_SLOTS:
        raise DescriptionError(f"slots: at most {MAX_SLOTS}, not {slots}")


def _check_size(description: StoreDescription) -> None:
    """The first key that is too large, or whose first value would be infinite; the description is a legal one else."""
    check_slots(description.slots)
    slices = 0
    for key in description.keys:
        _check_shape(key)
        _check_first_value(key)
        if not key.rows:
            slices += -(-key.nbytes // description.slice_bytes)
        if slices > MAX_SLICES:
            told = f"with it there are {slices} slices of {description.slice_bytes} bytes, {MAX_SLICES} may be"
            raise DescriptionError(f"key {key.key!r}: {told}; a larger slice_bytes makes fewer")


def _check_first(number: float, dtype: str, where: str) -> None:
    """Whether a key can have this as the first value of each element."""
    if np.dtype(dtype).kind == "f":
        with np.errstate(over="ignore"):
            fits = bool(np.isfinite(np.dtype(dtype).type(number)))
    else:
        limits = np.iinfo(dtype)
        fits = float(number).is_integer() and limits.min <= number <= limits.max
    if not fits:
        raise DescriptionError(f"{where}: {number!r} is no {dtype}")


def check_port(endpoint: str, where: str) -> None:
    """Raises DescriptionError for a port that there is not: a socket would take another one instead."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > MAX_PORT:
        raise DescriptionError(f"{where}: a port from 0 to {MAX_PORT}, not {port}")


def check_text(text: str, where: str) -> None:
    """Raises DescriptionError for what cannot be sent: half of a pair of surrogates, which JSON can say."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DescriptionError(f"{where}: {text!r} is no text: {error.reason}") from None


def _check_shape(key: KeyDescription) -> None:
    if len(key.shape) > MAX_DIMENSIONS:
        raise DescriptionError(f"key {key.key!r}: shape: {len(key.shape)} dimensions, {MAX_DIMENSIONS} may be")
    nbytes = math.prod(max(extent, 1) for extent in key.shape) * np.dtype(key.dtype).itemsize
    if nbytes > MAX_BYTES:
        raise DescriptionError(f"key {key.key!r}: shape {key.shape} of {key.dtype}: more than 2^63 - 1 bytes")


def _check_first_value(key: KeyDescription) -> None:
    """Of a floating type also the width of a range: first values would be infinite."""
    where, initializer = f"key {key.key!r}: initializer", key.initializer
    if key.update is Update.GRADIENT:  # It begins as zeros, whatever is said.
        return
    numbers = {name: one for name, one in initializer.attributes.items() if isinstance(one, int | float)}
    if initializer.op_type == "ConstantOfShape" and "value" in numbers:
        _check_first(numbers["value"], key.dtype, where)
    elif np.dtype(key.dtype).kind == "f":
        if {"low", "high"} <= numbers.keys():
            numbers["high - low"] = numbers["high"] - numbers["low"]
        for name, number in numbers.items():
            _check_first(number, key.dtype, f"{where}: {name}")
