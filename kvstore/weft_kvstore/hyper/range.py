"""Which numbers a hyper-parameter may be given: such as are finite in the type of every key that they are for. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from weft_kvstore.description.check import is_ruled, rule_of
from weft_kvstore.description.hyper_range import most_of, told_beyond
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.wire.messages import MAX_NUMBERS


def checked_numbers(
    description: StoreDescription, key: KeyDescription | None, numbers: Mapping[str, object]
) -> dict[str, float]:
    """The numbers that a caller gives to one key, or with None to all. Raises ValueError, which says why they cannot be
    given."""
    if not any(is_ruled(one) for one in ([key] if key is not None else description.keys)):
        raise ValueError("the shards update it by no rule")
    rule = rule_of(description, key)
    if not 1 <= len(numbers) <= MAX_NUMBERS:
        raise ValueError(f"{len(numbers)} numbers; a call changes 1 to {MAX_NUMBERS}")
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if name not in rule.hyper:
            raise ValueError(f"rule {rule.name!r} has no {name!r}; it has {', '.join(sorted(rule.hyper)) or 'none'}")
        found[name] = _finite(name, value)
        check_range(name, found[name], range_of(description, key, name))
    return found


class Least(NamedTuple):
    """The largest magnitude that a number may have, and the key by which it has none larger."""

    most: float
    key: KeyDescription | None


def range_of(description: StoreDescription, key: KeyDescription | None, name: str) -> Least:
    """Of a number that is given to one key, or with None to all that have it from the job; multiplied, it has to be
    finite in each key's own type, which the rule computes in."""
    if key is not None:
        return _range_of_one(key, name)
    found = [
        _range_of_one(one, name)
        for one in description.keys
        if is_ruled(one) and one.rule is None and name not in (one.hyper or ())
    ]
    return min(found, default=Least(math.inf, None), key=lambda one: one.most)


def check_range(name: str, value: float, range_: Least) -> None:
    """Raises ValueError, which names the key, for a number beyond it."""
    if abs(value) > range_.most:
        assert range_.key is not None
        raise ValueError(told_beyond(range_.key, name, value))


def _finite(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # what is no number is the caller's to hear of
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"{name!r}: a finite number, not {value!r}")
    return number


def _range_of_one(key: KeyDescription, name: str) -> Least:
    return Least(most_of(key, name), key)
