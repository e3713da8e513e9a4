"""What a key's rules say of it: when a value that is set holds, what its state is, and what its rule's failure is."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_graph.program import Update
from weft_kvstore.bucket.update import RuleFailedError
from weft_kvstore.description.records import Mode
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables.values import KeyRules


def rules_of(slots: int = 1, mode: Mode = Mode.SYNC, update: Update = Update.RULE) -> KeyRules:
    key = msgspec.structs.replace(key_of("w", (3, 1), slots), rows=True, update=update)
    (unit,) = JobShard(store_of([key], slots=1, shards=1, mode=mode, rule="adagrad"), 0).units
    return unit.spec


@pytest.mark.parametrize(
    ("slots", "mode", "at_once"), [(1, Mode.SYNC, False), (0, Mode.SYNC, True), (1, Mode.ASYNC, True)]
)
def test_a_value_waits_for_steps_that_slots_go_through_together(slots: int, mode: Mode, at_once: bool) -> None:
    assert rules_of(slots, mode).holds_at_once is at_once


def test_only_what_the_rule_updates_has_a_state() -> None:
    assert len(rules_of().state) == 1
    assert rules_of(update=Update.MEAN).state == ()


@pytest.mark.parametrize("error", [ValueError("told"), ZeroDivisionError("told"), MemoryError("told")])
def test_what_a_rule_raises_on_its_numbers_is_told_with_its_key_and_step(error: Exception) -> None:
    told = "^rule 'adagrad' failed on key 'w', slice 0, step 4: told$"
    with pytest.raises(RuleFailedError, match=told), rules_of().rule_runs(4):
        raise error


def test_any_other_error_is_a_fault_of_the_store_and_stays_as_it_is() -> None:
    with pytest.raises(KeyError), rules_of().rule_runs(4):
        raise KeyError("w")


def test_words_name_the_slot_the_key_and_the_step() -> None:
    rules = rules_of()
    assert (rules.named(3), rules.where(3, 5)) == ("slot 3, key 'w'", "slot 3, key 'w', step 5")
    assert rules.dtype == np.float32
