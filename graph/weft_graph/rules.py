"""How the rules that a user names are stored: the shard's rule and its numbers.

A rule's state is fixed by its name, so plain and momentum descent are two rules to a shard. The names and numbers are
those of `weft_kernels.rules`; they are written here too because the server does not import kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

STORED_HYPER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sgd": ("rate", "weight_decay"),
        "momentum": ("rate", "momentum", "weight_decay"),
        "adam": ("rate", "beta1", "beta2", "epsilon"),
    }
)
"""The numbers of each stored rule."""


def stored_rule(name: str, hyper: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """The stored rule's name and all of its numbers. `sgd` with a momentum above 0 is stored as `momentum`.

    Raises KeyError for a rule that there is not and for a number that is missing.
    """
    stored = "momentum" if name == "sgd" and hyper.get("momentum", 0.0) > 0 else name
    return stored, {number: float(hyper[number]) for number in STORED_HYPER[stored]}
