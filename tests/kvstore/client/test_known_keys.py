"""Keys are found by name, refused by name, and what is worked out of them is worked out once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store_cluster import key_of, store_of, table_of
from weft_kvstore.client import plan
from weft_kvstore.client.plan import Keys
from weft_kvstore.errors import StoreRefusedError


@pytest.fixture
def keys() -> Keys:
    return Keys(
        store_of([key_of("a", (3,), 1), table_of("t", (8, 2), 1), key_of("b", (2, 2), 1)], slots=1, shards=2), 0
    )


def test_a_set_has_its_keys_in_the_order_of_the_call_and_is_made_once(keys: Keys) -> None:
    found = keys.key_list(["b", "a"], "push")
    assert (found.names, found.key_indices, found.shapes) == (("b", "a"), (2, 0), ((2, 2), (3,)))
    assert keys.key_list(("b", "a"), "pull") is found
    assert keys.key_list(["a", "b"], "pull") is not found


def test_a_key_is_not_a_list_of_one_though_they_are_pushed_alike(keys: Keys) -> None:
    alone, several = keys.key_list("a", "push"), keys.key_list(["a"], "push")
    assert (alone.single, several.single, alone.names, several.names) == (True, False, ("a",), ("a",))


def test_what_is_worked_out_of_a_table_is_worked_out_once(keys: Keys) -> None:
    table = keys.key_list("t", "pull", rows=True)
    assert keys.key_list("t", "push", rows=True) is table
    assert (table.names, table.key_indices, str(table)) == (("t",), (1,), "rows of key 't'")


def test_what_is_remembered_is_bounded_by_the_keys_of_all_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the keys of the description, and here no more."""
    monkeypatch.setattr(plan, "KEYS_KEPT", 0)
    names = [f"k{number}" for number in range(6)]
    keys = Keys(store_of([key_of(name, (1,), 1) for name in names], slots=1, shards=1), 0)
    lists = [names[number:] + names[:number] for number in range(5)]
    first, *_ = [keys.key_list(some, "push") for some in lists[:4]]
    assert keys.key_list(lists[0], "push") is first
    keys.key_list(lists[4], "push")
    again = keys.key_list(lists[0], "push")
    assert (again is first, again.names) == (False, first.names)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (
            lambda keys: keys.find("c", "barrier"),
            "slot 0: barrier of key 'c': the store has no such key; there are 'a', 't', 'b'",
        ),
        (
            lambda keys: keys.key_list("c", "push"),
            "slot 0: push of key 'c': the store has no such key; there are 'a', 't', 'b'",
        ),
        (
            lambda keys: keys.key_list("t", "push"),
            "slot 0: push of key 't': it is a table: say which rows, with push_rows",
        ),
        (
            lambda keys: keys.key_list("a", "pull_rows", rows=True),
            "slot 0: pull_rows of key 'a': it is no table: call pull",
        ),
        (
            lambda keys: keys.key_list(["a", "t"], "set"),
            "slot 0: set of key 't': it is a table: say which rows, with set_rows",
        ),
        (lambda keys: keys.key_list(["a", "b", "a"], "read"), "slot 0: read: key 'a' is named twice"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_by_slot_call_and_name(
    keys: Keys, ask: Callable[[Keys], object], told: str
) -> None:
    for _ in range(2):  # What was refused is not remembered as found.
        with pytest.raises(StoreRefusedError) as caught:
            ask(keys)
        assert str(caught.value) == told
