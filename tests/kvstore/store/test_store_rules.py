"""Rules in a store: bits that no number of shards changes, and descriptions that they are not for."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from rule_documents import normalized, rule_document
from store_cluster import (
    WAIT_S,
    Array,
    ByName,
    NamedStore,
    clients_of,
    gradients_of,
    key_of,
    served,
    store_of,
    table_of,
)
from weft_graph.rules.built_in import BUILT_IN
from weft_kernels.rules.lookup import rule_from
from weft_kvstore.description.check import DescriptionError, check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.settings import LinkSettings

SHAPES = {"a": (32, 32), "b": (1024,), "c": (825,), "d": (5,)}
STEPS, SLOTS = 3, 2
BENT = rule_document(
    [
        ("Tanh", "bent", ("gradient",)),
        ("Mul", "kept", ("momentum", "velocity")),
        ("Add", "v", ("kept", "bent")),
        ("Mul", "move", ("lr", "v")),
        ("Sub", "w", ("weight", "move")),
    ],
    {"weight": "w", "velocity": "v"},
    state={"velocity": 0.25},
    hyper={"lr": 0.1, "momentum": 0.9},
    dtype="float32",
)
"""A user's pointwise rule with a function whose vectorised bits may depend on where an element lies."""

RULES = {**{name: name for name in BUILT_IN}, "bent": BENT, "length": normalized("float32")}
FASTER = {"lars": {"lr": 1.0, "trust": 0.1}, "lamb": {"lr": 0.05}}


def described(rule: str, shards: int) -> StoreDescription:
    """Keys of up to four slices; one of them is not to be adapted."""
    whole = rule_from(RULES[rule]).whole
    keys = [msgspec.structs.replace(key_of(name, shape, SLOTS), whole=whole) for name, shape in SHAPES.items()]
    if rule in FASTER:
        keys[-1] = msgspec.structs.replace(keys[-1], multipliers={"trust": 0.0})
    return store_of(keys, slots=SLOTS, shards=shards, rule=RULES[rule], hyper=FASTER.get(rule, {}))


def trained(stores: list[ByName], description: StoreDescription) -> dict[str, Array]:
    """Weights and states after `STEPS` steps."""
    for step in range(STEPS):
        for slot, store in enumerate(stores):
            for key, gradient in gradients_of(description, slot, step).items():
                store.push(key, step, gradient)
    found: dict[str, Array] = {}
    for key in SHAPES:
        found[key] = stores[0].pull(key, STEPS).result(WAIT_S)
        state: Mapping[str, Array] = stores[0].pull(key, STEPS, state=True).result(WAIT_S)
        found |= {f"{key}/{name}": array for name, array in state.items()}
    return found


def plainly(description: StoreDescription, first: Mapping[str, Array]) -> dict[str, Array]:
    """The same by the rule alone, on whole keys."""
    rule, found = rule_from(description.rule), {}
    for key in description.keys:
        weight = first[key.key].copy()
        state = {name: np.full_like(weight, start) for name, start in rule.state.items()}
        hyper = {**rule.hyper, **description.hyper}
        hyper = {name: float(value) * key.multipliers.get(name, 1.0) for name, value in hyper.items()}  # type: ignore[arg-type]  # numbers alone here
        for step in range(STEPS):
            total = sum(gradients_of(description, slot, step)[key.key] for slot in range(SLOTS))
            rule.apply(weight, np.asarray(total), state, step + 1, hyper)
        found |= {key.key: weight, **{f"{key.key}/{name}": array for name, array in state.items()}}
    return found


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_has_the_same_bits_in_one_process_and_on_1_2_and_5_shards(rule: str) -> None:
    with NamedStore(described(rule, 1)) as store:
        first = {key: store.pull(key, 0).result(WAIT_S) for key in SHAPES}
        expected = plainly(described(rule, 1), first)
        alone = trained([store, store.at_slot(1)], described(rule, 1))
    assert [name for name in alone if alone[name].tobytes() != expected[name].tobytes()] == []
    for shards in (1, 2, 5):
        with (
            served(described(rule, shards)) as (description, _),
            clients_of(description, LinkSettings()) as clients,
        ):
            found = trained(list(clients), description)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name].tobytes() != expected[name].tobytes()] == []
    assert all((expected[key] != first[key]).any() for key in SHAPES)


@pytest.mark.parametrize("rule", ["lamb", "lars"])
def test_a_key_that_is_cut_and_a_table_are_refused_for_a_rule_with_norms(rule: str) -> None:
    for key, what in ((key_of("k", (40,), 1), "cut into slices"), (table_of("k", (40, 2), 1), "a table")):
        says = f"key 'k': it is {what}, and rule '{rule}' needs it whole"
        with pytest.raises(DescriptionError, match=re.escape(says)):
            check_description(store_of([key], slots=1, shards=1, rule=rule))


def test_a_multiplier_of_what_a_rule_has_not_is_refused() -> None:
    key = msgspec.structs.replace(key_of("k", (40,), 1), multipliers={"trust": 0.0})
    with pytest.raises(DescriptionError, match="rule 'adamw' has no 'trust'"):
        check_description(store_of([key], slots=1, shards=1, rule="adamw"))
