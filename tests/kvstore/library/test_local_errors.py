"""What fails in a store of one process says whose call it was."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kvstore import Key, KVStore, StoreLostError, StoreRefusedError, StoreTimeoutError, describe

WAIT_S = 20.0


def zero() -> Key:
    return Key((2,), initializer=0.0)


def test_a_step_that_is_not_committed_names_the_slot_that_waits() -> None:
    description = describe({"w": zero()}, slots=2, rule="sgd", commit={"clip_norm": 1.0})
    with KVStore.local(description, timeout_s=0.2) as store:
        other = store.at_slot(1)
        other.push("w", np.ones(2, np.float32)).result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=r"^slot 1: barrier and commit of step 0 took over 0.2 s: "):
            other.end_step().result(WAIT_S)


def test_what_is_refused_names_the_slot() -> None:
    with KVStore.local(describe({"w": zero()}, slots=2, rule="sgd")) as store:
        refused = store.at_slot(1).set("w", np.ones(2, np.float32), version=0)
        with pytest.raises(StoreRefusedError, match=r"^slot 1: set of key 'w', version 0: "):
            refused.result(WAIT_S)


def test_what_is_open_when_the_store_is_closed_names_its_slot() -> None:
    with KVStore.local(describe({"w": zero()}, slots=2, rule="sgd")) as store:
        other = store.at_slot(1)
        other.push("w", np.ones(2, np.float32)).result(WAIT_S)
        pulled = other.pull("w")
        met = store.barrier()
    with pytest.raises(StoreLostError, match=r"^slot 1: pull of key 'w', version 1: the store was closed"):
        pulled.result(WAIT_S)
    with pytest.raises(StoreLostError, match=r"^slot 0: barrier: the store was closed$"):
        met.result(WAIT_S)
