"""What every model of the API has in common: unknown fields of a request are refused, values are frozen."""

from __future__ import annotations

import ast
import inspect
import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from weft_graph.literals import parsed

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class Model(BaseModel):
    """A record that crosses a wire. Numbers that JSON has no word for are the strings `NaN` and `Infinity`."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Fields' docstrings are their descriptions. Only who draws a schema reads sources for them; pydantic's own
        `use_attribute_docstrings` reads them whenever a process starts."""
        drawn = handler(schema)
        properties = handler.resolve_ref_schema(drawn).get("properties", {})
        for base in cls.__mro__:
            if issubclass(base, Model):
                for name, text in _docstrings(base).items():
                    if name in properties:
                        properties[name].setdefault("description", text)
        return drawn

    @classmethod
    def from_answer(cls, document: str | bytes) -> Self:
        """What the server answered. Fields that this release does not know are left out, at any depth, so a client or
        an agent understands a newer server. Raises pydantic.ValidationError."""
        return cls.model_validate_json(document, extra="ignore")


@cache
def _docstrings(model: type) -> Mapping[str, str]:
    """Of the fields that the class itself declares."""
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in pairwise(_classes(model.__module__)[model.__name__].body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Of its source, which is parsed once for all of them."""
    source = inspect.getsource(sys.modules[module])
    return {each.name: each for each in ast.walk(parsed(lambda: ast.parse(source))) if isinstance(each, ast.ClassDef)}


def one_of(**types: str) -> dict[str, Any]:
    """What the JSON Schema of a model says where exactly one of these fields is to be given; of which JSON type."""
    return {
        "oneOf": [
            {"required": [name], "properties": {**{each: {"type": "null"} for each in types}, name: {"type": kind}}}
            for name, kind in types.items()
        ]
    }


def some_of(**types: str) -> dict[str, Any]:
    """The same where at least one of them is to be given."""
    return {"anyOf": [{"required": [name], "properties": {name: {"type": kind}}} for name, kind in types.items()]}


def not_both(*names: str) -> dict[str, Any]:
    """The same where at most one of two is to be given."""
    return {"anyOf": [{"properties": {name: {"type": "null"}}} for name in names]}


def _share(number: float) -> float:
    if number and number < 2.0**-126:
        raise ValueError(f"{number:g} is too small for float32: give at least 1.17549e-38")
    if 1 - 2.0**-25 <= number < 1:
        raise ValueError(f"{number!r} is 1 in float32: give at most 0.99999994")
    return number


Below1 = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), AfterValidator(_share)]
"""A number from 0 below 1 in float32, in which optimizers compute."""

_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

Measured = Annotated[
    float,
    BeforeValidator(lambda value: _NO_NUMBERS.get(value, value) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": list(_NO_NUMBERS)}]}),
]
"""A number that a run has come to: it may have diverged. A strict reader takes the words of JSON for it too."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}$")]
"""What people call things: letters, digits, `_`, `.` and `-`, at most 128."""

Count = Annotated[int, Field(ge=0, le=1 << 53)]
"""A whole number that every reader of JSON keeps exactly."""

Positive = Annotated[int, Field(ge=1, le=1 << 53)]
"""A count that is not 0."""

ID_PATTERN: Final = r"^[A-Za-z0-9\-]{1,64}$"
"""Of the ids that the server makes."""

Identifier = Annotated[str, Field(pattern=ID_PATTERN)]
"""What the server calls things."""


class RepeatedKeyError(ValueError):
    """An object of a JSON document has a key twice: readers differ in which value counts."""


def check_keys(document: bytes | str) -> None:
    """Raises RepeatedKeyError, with the key, where an object in the JSON has one twice; ValueError for no JSON."""

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise RepeatedKeyError(f"an object has the key {key[:200]!r} twice: keep one of them")

    json.loads(document, object_pairs_hook=look)
