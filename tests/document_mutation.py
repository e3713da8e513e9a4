"""Changes one place of a JSON document, wherever it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from weft_graph.errors import GraphFormatError

Path = tuple[str | int, ...]


def places(document: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value in the document, the whole first."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, (*path, index))


def with_value(document: Any, path: Path, value: Any) -> Any:
    """A copy with `value` at the path."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    target = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return changed


def without(document: Any, path: Path) -> Any:
    """A copy without what is at the path, which is not empty."""
    changed = copy.deepcopy(document)
    target = changed
    for step in path[:-1]:
        target = target[step]
    del target[path[-1]]
    return changed


def refusal(read: Callable[[Any], object], document: Any) -> GraphFormatError | None:
    """Why `read` does not take the document, or None where it does. Another error is let through."""
    try:
        read(document)
    except GraphFormatError as error:
        return error
    return None
