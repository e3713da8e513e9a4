"""Calls of a `KVStore` that a signal's handler interrupts by an exception, at each of their lines in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import weft_kvstore
from face_stores import WAIT_S, ones, zero
from weft_kvstore import Key, KVStore, StoreRefusedError, describe

ROOM = str(Path(weft_kvstore.__file__).parent)


class Late(Exception):
    """Raised by the handler."""


def is_interrupted(line: int, call: Callable[[], object]) -> bool:
    """Makes the call, and raises Late before the line with that number of those that it runs, as a handler may that
    comes there. Whether the call was that long."""
    left = line

    def at_each_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            raise Late
        return at_each_line

    before = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        call()
    except Late:
        return True
    finally:
        sys.settrace(before)
    return False


def gradients(value: float) -> list[np.ndarray]:
    return [value * ones(2), value * ones(2)]


def rows(value: float) -> np.ndarray:
    return value * ones(3, 2)


IDS = [1, 3, 5]

CALLS: dict[str, Callable[..., Any]] = {
    "push": lambda store, value, **at: store.push(["w", "b"], gradients(value), **at),
    "push of a list": lambda store, value, **at: store.push(
        ["w", "b"], [one.tolist() for one in gradients(value)], **at
    ),
    "pushpull": lambda store, value, **at: store.pushpull(["w", "b"], gradients(value), **at),
    "push_rows": lambda store, value, **at: store.push_rows("t", IDS, rows(value), **at),
    "pushpull_rows": lambda store, value, **at: store.pushpull_rows("t", IDS, rows(value), **at),
}


@pytest.mark.parametrize("is_numbered", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_push_that_is_interrupted_at_any_line_has_begun_or_not_and_counts_once(name: str, is_numbered: bool) -> None:
    call = CALLS[name]
    table = Key(shape=(8, 2), rows=True, initializer=0.0)
    description = describe({"w": zero(2), "b": zero(2), "t": table}, rule="sgd", lr=1.0)
    with KVStore.local(description, timeout_s=WAIT_S) as store:
        keys = ["t"] if name.endswith("rows") else ["w", "b"]
        pull = (lambda: [store.pull_rows("t", IDS)]) if keys == ["t"] else (lambda: [store.pull(key) for key in keys])
        pushed, found = 0, set()
        for line in count(1):
            before = store.steps(keys[0])
            number = {"step": before} if is_numbered else {}
            is_over = not is_interrupted(line, partial(call, store, line, **number))
            (after,) = {store.steps(key) for key in keys}
            pushed += line if after > before else 0
            told = ""
            try:
                call(store, 0)
            except StoreRefusedError as error:
                told = str(error)
                call(store, line, step=before)
            assert (
                not told or f"step {before} has to be pushed again, with step={before}; its push failed: Late" in told
            )
            found.add(told[:6] or after - before)
            assert all((one.result(WAIT_S) == -pushed).all() for one in pull())
            if is_over:
                break
    assert found == {0, 1, "slot 0"}


def test_an_end_of_a_step_that_is_interrupted_at_any_line_is_made_again_and_loses_no_gradient() -> None:
    with KVStore.local(describe({"w": zero(2), "b": zero(2)}, rule="sgd", lr=1.0), timeout_s=WAIT_S) as store:
        for line in count(1):
            store.push("w", ones(2))
            is_over = not is_interrupted(line, store.end_step)
            for key in ("w", "b"):
                store.push(key, ones(2))
            store.end_step()
            pulled = [store.pull(key, version=store.steps("w")).result(WAIT_S).tolist() for key in ("w", "b")]
            assert pulled == [[-2.0 * line] * 2, [-line] * 2]
            if is_over:
                break
    assert line > 20


def test_after_a_barrier_that_is_interrupted_at_any_line_the_next_one_ends() -> None:
    with KVStore.local(describe({"w": zero(2)}, rule="sgd"), timeout_s=WAIT_S) as store:
        for line in count(1):
            is_over = not is_interrupted(line, store.barrier)
            store.barrier().result(WAIT_S)
            if is_over:
                break
    assert line > 20
