"""Whether a description can be a store, and the digest by which processes know that they agree on it."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_kernels.rule import Rule, rules
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.settings import MAX_SLICE_BYTES

DTYPES: Final = frozenset({"float16", "float32", "float64", "int8", "int16", "int32", "int64"})
"""What a value may be made of; the wire is little-endian."""


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
    if not 1 <= description.slice_bytes <= MAX_SLICE_BYTES:
        raise DescriptionError(f"slice_bytes: 1 to {MAX_SLICE_BYTES}, not {description.slice_bytes}")
    seen: set[str] = set()
    for key in description.keys:
        if key.key in seen:
            raise DescriptionError(f"keys: {key.key!r} is there twice")
        seen.add(key.key)
        _check_key(key, description.slots)
    rule_of(description)


def rule_of(description: StoreDescription) -> Rule:
    """The description's rule. Raises DescriptionError where there is none of that name or a number it lacks."""
    rule = rules().get(description.rule) if isinstance(description.rule, str) else None
    if rule is None:
        raise DescriptionError(f"rule: {description.rule!r} is none of {', '.join(sorted(rules()))}")
    unknown = sorted(set(description.hyper) - set(rule.hyper))
    if unknown:
        known = ", ".join(sorted(rule.hyper))
        raise DescriptionError(f"hyper: rule {rule.name!r} has no {unknown[0]!r}; it has {known}")
    return rule


def digest(description: StoreDescription) -> bytes:
    """16 bytes that differ where descriptions differ; the shards' endpoints count only by their number."""
    neutral = msgspec.structs.replace(description, shards=("",) * len(description.shards))
    encoded = msgspec.json.encode(neutral)
    # Read back once: a number given as 1 where the field is a float must not differ from 1.0.
    again = msgspec.json.encode(msgspec.json.decode(encoded, type=StoreDescription), order="deterministic")
    return hashlib.blake2b(again, digest_size=16).digest()


def _check_key(key: KeyDescription, slots: int) -> None:
    where = f"key {key.key!r}"
    if key.dtype not in DTYPES:
        raise DescriptionError(f"{where}: dtype {key.dtype!r} is none of {', '.join(sorted(DTYPES))}")
    if any(extent < 0 for extent in key.shape):
        raise DescriptionError(f"{where}: shape {key.shape} has a negative extent")
    if key.update is Update.RULE and np.dtype(key.dtype).kind != "f":
        raise DescriptionError(f"{where}: a rule updates floating-point values, not {key.dtype}")
    if len(set(key.slots)) != len(key.slots):
        raise DescriptionError(f"{where}: slots {key.slots} name one twice")
    if any(not 0 <= slot < slots for slot in key.slots):
        raise DescriptionError(f"{where}: slots {key.slots} are not all within 0 to {slots - 1}")
