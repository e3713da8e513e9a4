"""The fields of records, as a JSON Schema has them: for messages about fields that there are not, and to set one by its
path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]


def alternatives(one: Schema, schema: Schema) -> Iterator[Schema]:
    """The schemas without references and alternatives that this one of `schema` stands for."""
    if "$ref" in one:
        yield from alternatives(schema["$defs"][one["$ref"].rpartition("/")[2]], schema)
    elif "properties" not in one and ("anyOf" in one or "oneOf" in one):
        for each in (*one.get("anyOf", ()), *one.get("oneOf", ())):
            yield from alternatives(each, schema)
    else:
        yield one


def fields(allowed: Sequence[Schema], here: Any) -> dict[str, list[Schema]]:
    """{field: what it may be} of the records that `here`, the value so far, may be one of: of all, if it is none."""
    given = here if isinstance(here, dict) else {}
    fitting = [one for one in allowed if all(given.get(name, kind) == kind for name, kind in _kinds(one).items())]
    found: dict[str, list[Schema]] = {}
    for one in fitting or allowed:
        for name, each in one.get("properties", {}).items():
            found.setdefault(name, []).append(each)
    return found


def fields_at(schema: Schema, document: Any, place: Sequence[int | str]) -> dict[str, list[Schema]]:
    """The same of the value at a place in the document, which pydantic tells with the tags of unions in between."""
    allowed, here = list(alternatives(schema, schema)), document
    for step in place:
        known = fields(allowed, here)
        if isinstance(step, str) and step in known:
            allowed = [each for one in known[step] for each in alternatives(one, schema)]
            here = here.get(step) if isinstance(here, dict) else None
        elif isinstance(step, int):
            allowed = items(allowed, schema)
            here = here[step] if isinstance(here, list) and step < len(here) else None
        else:
            allowed = [one for one in allowed if step in _kinds(one).values()] or allowed
    return fields(allowed, here)


def items(allowed: Sequence[Schema], schema: Schema) -> list[Schema]:
    """What an item of a list may be."""
    return [each for one in allowed if "items" in one for each in alternatives(one["items"], schema)]


def _kinds(one: Schema) -> dict[str, Any]:
    """{field: its only value}, by which records of a union are told apart."""
    return {name: each["const"] for name, each in one.get("properties", {}).items() if "const" in each}
