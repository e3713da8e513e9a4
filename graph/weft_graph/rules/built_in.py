"""The rules that shards have built in: their state, and their hyper-parameters with the defaults.

A rule's state is fixed by its name, so plain and momentum descent are two rules to a shard. What is said here is said
here alone: the bodies in `weft_kernels`, the CUDA kernels' arguments and the API's defaults are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

StoredRule: TypeAlias = str | Mapping[str, Any]
"""What a store's description says: a built-in rule's name, or a document: `{"name", "state": {name: start}}` for a
built-in rule whose state starts at other numbers, or a user's rule (`weft_graph.rules.graph`)."""

Number = TypeVar("Number")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in rule: each hyper-parameter's default, and what each of its state arrays starts at."""

    hyper: Mapping[str, float]
    state: Mapping[str, float]
    whole: str = ""
    """What about the rule needs a key in one piece; empty for a rule that goes element by element."""
    again: int = 0
    """How many of the key's arrays a rule that needs it whole reads a second time."""

    @property
    def moves(self) -> int:
        """Arrays of the key's size that an update reads or writes: the gradient once, weight and state both ways."""
        return 1 + 2 * (1 + len(self.state)) + self.again


_MOMENTS: Final = MappingProxyType({"mean": 0.0, "variance": 0.0})
BETAS: Final = MappingProxyType({"beta1": 0.9, "beta2": 0.999})
"""Numbers n of Adam's kind: an update divides by 1 - n^t, so their magnitude is below 1."""

BUILT_IN: Final[Mapping[str, BuiltIn]] = MappingProxyType(
    {
        "sgd": BuiltIn({"lr": 0.001, "weight_decay": 0.0}, {}),
        "momentum": BuiltIn({"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0}, {"momentum": 0.0}),
        "nesterov": BuiltIn({"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0}, {"momentum": 0.0}),
        "adam": BuiltIn({"lr": 0.001, **BETAS, "epsilon": 1e-8}, _MOMENTS),
        "adamw": BuiltIn({"lr": 0.001, **BETAS, "epsilon": 1e-8, "weight_decay": 0.01}, _MOMENTS),
        "adagrad": BuiltIn({"lr": 0.01, "epsilon": 1e-10, "weight_decay": 0.0}, {"sum": 0.0}),
        "rmsprop": BuiltIn({"lr": 0.01, "decay": 0.99, "epsilon": 1e-8, "weight_decay": 0.0}, {"square": 0.0}),
        "ftrl": BuiltIn({"lr": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0}, {"total": 0.0, "squares": 0.0}),
        "lamb": BuiltIn(
            {"lr": 0.001, **BETAS, "epsilon": 1e-6, "weight_decay": 0.01, "trust": 1.0},
            _MOMENTS,
            whole="lamb divides by the norm of a key's whole update",
            again=3,
        ),
        "lars": BuiltIn(
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "trust": 0.001},
            {"momentum": 0.0},
            whole="lars divides by the norm of a key's whole gradient",
            again=2,
        ),
    }
)
"""By name; state and hyper-parameters are in the order of the CUDA kernels' arguments."""


def stored_rule(
    name: str, hyper: Mapping[str, Number], state: Mapping[str, float] | None = None
) -> tuple[StoredRule, dict[str, Number]]:
    """The stored rule and all of its numbers, each a float or a schedule. `state` has other starts, by name.

    `sgd` with a momentum is stored as `momentum`; a momentum of 0 is none. Raises KeyError for a rule that there is not
    and for a number that is missing.
    """
    stored = "momentum" if name == "sgd" and hyper.get("momentum", 0.0) != 0.0 else name
    built_in = BUILT_IN[stored]
    moved = {key: start for key, start in (state or {}).items() if start != built_in.state[key]}
    rule: StoredRule = {"name": stored, "state": moved} if moved else stored
    return rule, {number: hyper[number] for number in built_in.hyper}


def states_of(rule: StoredRule) -> Mapping[str, float]:
    """What the rule keeps beside each key, in arrays of the key's shape: {name: start}. The rule is a legal one."""
    if isinstance(rule, str):
        return BUILT_IN[rule].state
    state: Mapping[str, float] = rule.get("state", {})
    return state if "graph" in rule else {**BUILT_IN[rule["name"]].state, **state}


def rule_name(rule: StoredRule) -> str:
    """What the rule is called."""
    return rule if isinstance(rule, str) else str(rule["name"])
