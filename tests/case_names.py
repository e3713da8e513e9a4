"""Thousands of cases of operators, of which one test takes all of an operator: a test costs more than most cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def by_operator(cases: Mapping[str, Any]) -> dict[str, list[str]]:
    """The cases' names by their `op_type`, both in order."""
    found: dict[str, list[str]] = {}
    for name in sorted(cases):
        found.setdefault(cases[name].op_type, []).append(name)
    return dict(sorted(found.items()))


@contextmanager
def named(name: str) -> Iterator[None]:
    """What is raised within says which case it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name}")
        raise
