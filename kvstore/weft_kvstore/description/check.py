"""Checks of a description beyond the types of its fields, its rules, and its digest. Errors name the field."""

from __future__ import annotations

import base64
import hashlib
import math
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.largest import largest
from weft_graph.rules.schedule import value_at
from weft_graph.spelling import did_you_mean
from weft_kernels.averaging import averaged
from weft_kernels.gradient_bounds import BOUNDS, bounded
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule
from weft_kvstore.description.records import (
    CompressionDescription,
    KeyDescription,
    Kind,
    Mode,
    Sparse,
    StoreCompression,
    StoreDescription,
    descriptions,
    is_given,
)
from weft_kvstore.settings import MAX_ROW_BYTES
from weft_kvstore.structs import documents

RULES_KEPT: Final = 64
"""Compiled rules that the process keeps: a store has one, and a few more for tables."""

MAX_SLICES: Final = 1 << 24
"""Of all keys together, since every process assigns each slice to a shard: 2 TiB, with slices of the default size."""

MAX_BYTES: Final = (1 << 63) - 1
"""What an array of NumPy has at most."""

NO_SHARDS: Final = (
    'shards: none; a store of processes has an endpoint for each, as shards=["tcp://127.0.0.1:5555"]; '
    "a store within one process, KVStore.local, needs none"
)

_WORDS: Final = {
    **{"`array`": "`list`", "`object`": "`mapping`", f"`float` >= {-sys.float_info.max}": "a finite number"},
    f"`float` <= {sys.float_info.max}": "a finite number",
}
"""What msgspec says, in Python's words."""


class DescriptionError(ValueError):
    """A description that cannot be a store; the text names the field."""


def check_description(description: StoreDescription) -> None:
    """Raises DescriptionError for the first thing that is wrong, naming the field. It may have no shards."""
    try:
        descriptions.from_builtins(msgspec.to_builtins(description))
        msgspec.json.encode(description)
    except UnicodeEncodeError as error:
        raise DescriptionError(f"description: {error.object!r} cannot be sent as UTF-8: {error.reason}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise DescriptionError(field_first(str(error))) from None
    with np.errstate(all="ignore"):  # A first value that overflows is a problem that is found.
        problem = next(_problems(description), None)
    if problem is not None:
        raise DescriptionError(problem)


def field_first(error: str) -> str:
    """An error of msgspec with the field before it, and in Python's words."""
    for name, other in _WORDS.items():
        error = error.replace(name, other)
    what, _, path = error.partition(" - at `")
    field = path.rstrip("`").rpartition("`")[2].removeprefix("$").removeprefix(".") or "description"
    return f"{field}: {what[:1].lower()}{what[1:]}"


def is_ruled(key: KeyDescription) -> bool:
    """Whether shards update the key by a rule."""
    return key.update is Update.RULE and bool(key.slots)


def rule_of(description: StoreDescription, key: KeyDescription | None = None) -> Rule:
    """The description's rule, or that of a key which has its own, which keeps averages and bounds gradients where that
    is wanted. Raises DescriptionError for an unknown rule, or a wrong hyper-parameter."""
    where = "" if key is None else f"key {key.key!r}: "
    try:
        rule = compiled_once(description.rule if key is None or key.rule is None else key.rule)
    except ValueError as error:
        raise DescriptionError(f"{where}{error}") from error
    hyper = hyper_of(description, key)
    if not BOUNDS.keys().isdisjoint(hyper):
        rule = bounded(rule)
    for name, value in hyper.items():
        if name not in rule.hyper:
            known = ", ".join([*sorted(rule.hyper.keys() - BOUNDS.keys()), *BOUNDS])
            others = [one for one in sorted(BUILT_IN) if name in compiled_once(one).hyper]
            meant = did_you_mean(name, [*rule.hyper, *BOUNDS, *description.__struct_fields__])
            meant = f"; {', '.join(others)} {'have' if others[1:] else 'has'} it" if others else meant
            raise DescriptionError(f"{where}hyper: rule {rule.name!r} has no {name!r}; it has {known}{meant}")
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
    return rule_from(documents.from_msgpack(document))


def hyper_of(
    description: StoreDescription, key: KeyDescription | None = None
) -> Mapping[str, float | Mapping[str, Any]]:
    """The hyper-parameters given for the store's rule, or for a key: its own override the store's, which are those
    of another rule where the key has its own."""
    if key is None or (key.rule is None and key.hyper is None):
        return description.hyper
    return {**({} if key.rule is not None else description.hyper), **(key.hyper or {})}


MOST_FRACTION: Final = 1 - 2.0**-50
"""Below 1, also once it was rounded after a multiplication."""


def largest_magnitude(key: KeyDescription, rule: Rule, name: str) -> float:
    """The largest that a hyper-parameter may have: the rule computes in the key's own type."""
    factor = abs(key.multipliers.get(name, 1.0))
    most = MOST_FRACTION if name in rule.fractions else float(np.finfo(key.dtype).max)
    return most / factor if factor else math.inf


def magnitude_text(key: KeyDescription, rule: Rule, name: str, value: float) -> str:
    """The text of an error: a hyper-parameter is larger than that."""
    multiplied = f", multiplied by {key.multipliers[name]:g}" if name in key.multipliers else ""
    if name in rule.fractions:
        return f"{name!r}: {value:g}{multiplied} is not between -1 and 1, as rule {rule.name!r} needs it of {key.key!r}"
    return f"{name!r}: {value:g}{multiplied} is infinite in {key.dtype}, which key {key.key!r} is of"


def digest(description: StoreDescription) -> bytes:
    """16 bytes that differ where descriptions differ; the shards' endpoints count only by their number, and their keys,
    which each link proves for itself, not at all."""
    neutral = msgspec.structs.replace(description, shards=("",) * len(description.shards), curve_keys=())
    encoded = msgspec.json.encode(neutral)
    # Read back once: a number given as 1 where the field is a float must not differ from 1.0.
    again = msgspec.json.encode(descriptions.from_json(encoded), order="deterministic")
    return hashlib.blake2b(again, digest_size=16).digest()


# --- Checks over several fields ---------------------------------------------------------------------------------------


def _problems(description: StoreDescription) -> Iterator[str]:
    keys, shards = description.curve_keys, description.shards
    if keys and len(keys) != len(shards):
        yield f"curve_keys: one for each shard, {len(shards)} of them, not {len(keys)}"
    for number, public in enumerate(keys):
        try:
            check_public(public)
        except CurveKeyError as error:
            yield f"curve_keys[{number}]: {error}"
    yield from _commit_problems(description)
    slices, names = 0, set()
    for key in description.keys:
        if key.key in names:
            yield f"keys: {key.key!r} is there twice"
        names.add(key.key)
        for problem in (*_key_problems(description, key), *_first_value_problems(key)):
            yield f"key {key.key!r}: {problem}"
        yield from (f"key {key.key!r}: compression.{problem}" for problem in compression_problems(key.compression))
        slices += 0 if key.rows else -(-key.nbytes // description.slice_bytes)
        if slices > MAX_SLICES:
            text = f"with it there are {slices} slices of {description.slice_bytes} bytes, {MAX_SLICES} may be"
            yield f"key {key.key!r}: {text}; a larger slice_bytes makes fewer"
    yield from _rule_problems(description)
    yield from (f"compression.{problem}" for problem in compression_problems(description.compression))


def _commit_problems(description: StoreDescription) -> Iterator[str]:
    commit = description.commit
    if commit is not None and description.mode is not Mode.SYNC:
        yield f"commit: it needs mode 'sync', not {description.mode.value!r}"
    if commit is not None and commit.loss_scaling is not None and math.frexp(commit.loss_scaling.initial)[0] != 0.5:
        yield f"commit.loss_scaling.initial: a power of two, not {commit.loss_scaling.initial}"


def _key_problems(description: StoreDescription, key: KeyDescription) -> Iterator[str]:
    if math.prod(max(extent, 1) for extent in key.shape) * np.dtype(key.dtype).itemsize > MAX_BYTES:
        yield f"shape {key.shape} of {key.dtype}: more than 2^63 - 1 bytes"
    if key.half is not None and key.dtype != "float32":
        yield f"half: over dtype float32, not {key.dtype}"
    if key.update is Update.RULE and np.dtype(key.dtype).kind != "f":
        yield f"a rule updates floating-point values, not {key.dtype}"
    if len(set(key.slots)) != len(key.slots):
        yield f"slots {key.slots} name one twice"
    if any(not 0 <= slot < description.slots for slot in key.slots):
        yield f"slots {key.slots} are not all within 0 to {description.slots - 1}"
    yield from _update_problems(description, key)
    if key.rows:
        yield from _table_problems(key)
        return
    of_tables = {"growth": key.growth, "rule": key.rule, "hyper": key.hyper, "sparse": key.sparse is Sparse.STANDARD}
    yield from (f"{name} is for tables alone" for name, value in of_tables.items() if value not in (None, False))


def _update_problems(description: StoreDescription, key: KeyDescription) -> Iterator[str]:
    commit, average = description.commit, description.average
    if key.update is Update.GRADIENT:
        if description.mode is not Mode.SYNC:
            yield f"there is no merged gradient of a step in mode {description.mode.value}"
        if average is not None:
            yield "averages are kept where the rule is run, and workers keep none"
        if commit is not None and commit.skips:
            yield "workers that update cannot skip a step whose gradient is not finite"
    if is_ruled(key) and key.dtype == "float16":
        if average is not None:
            yield "float16 has too few digits for an average of many steps"
        if commit is not None and commit.loss_scaling is not None:
            yield "a gradient in float16 cannot be divided by a loss scale"


def _table_problems(key: KeyDescription) -> Iterator[str]:
    if not key.shape:
        yield "a scalar is no table"
    if key.whole:
        yield "a table is cut by rows, so it cannot be whole"
    if key.update is not Update.RULE and key.slots:  # A frozen table is updated by nothing.
        yield f"a table is updated by the rule, not by {key.update.value}"
    if key.row_bytes > MAX_ROW_BYTES:
        yield f"a row has {key.row_bytes} bytes, more than {MAX_ROW_BYTES}"
    growth = key.growth
    if growth is None:
        return
    if key.shape[:1] not in {(), (0,)}:
        yield f"a growing table has no row at first, not {key.shape[0]}"
    if growth.uses > 1 and growth.probability < 1:
        yield "growth: an id is admitted by uses or by probability, not by both"
    if is_given(key) and (growth.uses > 1 or growth.probability < 1):
        yield "growth: rows that are set are admitted by that, not by uses"
    if growth.eviction is not None and growth.eviction.age is None and growth.eviction.score is None:
        yield "growth.eviction: neither age nor score"


def _first_value_problems(key: KeyDescription) -> Iterator[str]:
    """Of a floating type also the width of a range: first values would be infinite."""
    if key.update is Update.GRADIENT:  # It begins as zeros.
        return
    floating = np.dtype(key.dtype).kind == "f"
    numbers = {name: one for name, one in key.initializer.attributes.items() if isinstance(one, int | float)}
    if key.initializer.op_type == "ConstantOfShape":
        numbers = {name: one for name, one in numbers.items() if name == "value"}
    elif not floating:
        return
    elif {"low", "high"} <= numbers.keys():
        numbers["high - low"] = numbers["high"] - numbers["low"]
    elif numbers.get("scale", 0) < 0:
        yield f"initializer: the deviation of normal is at least 0, not {numbers['scale']:g}"
    for name, number in numbers.items():
        value = np.float64(number).astype(key.dtype)
        if not np.isfinite(value) if floating else value != number:
            yield f"initializer: {name}: {number!r} is no {key.dtype}"


def _rule_problems(description: StoreDescription) -> Iterator[str]:
    rule = rule_of(description)
    numbers = largest({**rule.hyper, **description.hyper})
    for key in description.keys:
        if key.rule is None and key.hyper is None:
            yield from _key_rule_problems(key, rule, numbers)
        else:
            own = rule_of(description, key)
            yield from _key_rule_problems(key, own, largest({**own.hyper, **hyper_of(description, key)}))


def _key_rule_problems(key: KeyDescription, rule: Rule, numbers: Mapping[str, float]) -> Iterator[str]:
    """`numbers` are the largest that its hyper-parameters get."""
    if not is_ruled(key):
        return
    if rule.whole and not key.whole:
        what = "a table" if key.rows else "cut into slices"
        yield f"key {key.key!r}: it is {what}, and rule {rule.name!r} needs it whole"
    for name in key.multipliers:
        if name not in rule.hyper:
            yield f"key {key.key!r}: multipliers: rule {rule.name!r} has no {name!r}"
    for name, number in numbers.items():
        if abs(number) > largest_magnitude(key, rule, name):
            yield f"hyper: {magnitude_text(key, rule, name, number)}"


def compression_problems(setting: StoreCompression | None) -> Iterator[str]:
    """What is wrong with it beyond its fields' own bounds; each text begins with the field."""
    for name in ("gradients", "merged", "weights"):
        one: CompressionDescription | None = getattr(setting, name, None)
        if one is None:
            continue
        kind = one.kind
        for field, owner in {"threshold": Kind.TWO_BIT, "ratio": Kind.TOP_K, "count": Kind.TOP_K}.items():
            if getattr(one, field) is not None and kind is not owner:
                yield f"{name}.{field}: {kind.value} has none"
        if kind is Kind.TWO_BIT and one.threshold is None:
            yield f"{name}.threshold: 2bit needs one"
        if kind is Kind.TOP_K and (one.ratio is None) == (one.count is None):
            yield f"{name}: topk needs either ratio or count"
        sparse = kind in {Kind.TWO_BIT, Kind.TOP_K}
        if sparse and not one.residual:
            yield f"{name}.residual: {kind.value} needs one, or most of a gradient is lost"
        if name == "weights" and (sparse or one.residual):
            yield (
                f"weights: bf16 or fp16 with residual false, not {kind.value} with residual "
                f"{str(one.residual).lower()}: a worker that reads a weight must read all of it"
            )


# --- CURVE keys -------------------------------------------------------------------------------------------------------


KEY_BYTES: Final = 32
KEY_CHARACTERS: Final = 40
"""In ZeroMQ's Z85: four bytes are five characters."""

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85: Final = str.maketrans(_Z85, _B85, "".join({*_B85} - {*_Z85}))
"""The digits of ZeroMQ's RFC 32 as Python's base85 has them."""


class CurveKeyError(ValueError):
    """A wrong key or pair. The text never has a secret key."""


def check_public(key: str) -> None:
    """Raises CurveKeyError for a wrong key, and for zeros. The key is not shown, since it may be a secret one given by
    mistake."""
    if not is_curve_key(key):
        raise CurveKeyError(f"not a CURVE key of {KEY_CHARACTERS} characters of Z85")
    if not key.strip("0"):
        raise CurveKeyError("zeros are not a CURVE key")


def is_curve_key(text: str) -> bool:
    """Whether it is 32 bytes in Z85."""
    try:
        return len(text) == KEY_CHARACTERS and len(base64.b85decode(text.translate(_AS_B85))) == KEY_BYTES
    except ValueError:
        return False
