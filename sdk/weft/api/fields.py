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
    return fields(*allowed_at(schema, document, place))


def kinds_at(schema: Schema, document: Any, place: Sequence[int | str], field: str) -> list[str]:
    """Of the records that may be at a place, the values of the field by which they are told apart."""
    return [kinds[field] for one in allowed_at(schema, document, place)[0] if field in (kinds := _kinds(one))]


def allowed_at(schema: Schema, document: Any, place: Sequence[int | str]) -> tuple[list[Schema], Any]:
    """(what may be at a place, what is there); None is there where nothing is."""
    allowed, here = list(alternatives(schema, schema)), document
    for step in place:
        known = fields(allowed, here)
        if isinstance(step, str) and step in known:
            allowed = [each for one in known[step] for each in alternatives(one, schema)]
            here = here.get(step) if isinstance(here, dict) else None
        elif isinstance(step, int):
            allowed = items(allowed, schema)
            here = here[step] if isinstance(here, list) and step < len(here) else None
        elif isinstance(here, dict) and step in here:  # of a dictionary with the user's own names
            free = [one["additionalProperties"] for one in allowed if isinstance(one.get("additionalProperties"), dict)]
            allowed, here = [each for one in free for each in alternatives(one, schema)], here[step]
        else:
            allowed = [one for one in allowed if step in _kinds(one).values()] or allowed
    return allowed, here


def items(allowed: Sequence[Schema], schema: Schema) -> list[Schema]:
    """What an item of a list may be."""
    told = [
        each for one in allowed for each in (*one.get("prefixItems", ()), *([one["items"]] if "items" in one else ()))
    ]
    return [each for one in told for each in alternatives(one, schema)]


def _kinds(one: Schema) -> dict[str, Any]:
    """{field: its only value}, by which records of a union are told apart."""
    return {name: each["const"] for name, each in one.get("properties", {}).items() if "const" in each}
