"""The words of the release before, which are still read: in requests, and in what a server has stored.

A model lists them in `EARLIER`. Answers have the new words. Where the SDK of the release before cannot do without an
old one, a computed field of the answer's model repeats the value; a job's spec, which it reads and sends back, it gets
as `in_earlier_words` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from weft.api.base import Model


class Renamed(Model):
    """A record some of whose fields had other names in the release before."""

    EARLIER: ClassVar[Mapping[str, str | tuple[str, int]]] = {}
    """{earlier name: name}, or (name, place) where it was one of a pair."""

    @model_validator(mode="before")
    @classmethod
    def _with_new_words(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not (cls.EARLIER.keys() & given.keys()):
            return given
        fields = dict(given)
        for earlier, told in cls.EARLIER.items():
            if earlier not in fields:
                continue
            value = fields.pop(earlier)
            name = told if isinstance(told, str) else told[0]
            if not isinstance(told, str) and name not in given:
                pair = list(fields.get(name, cls.model_fields[name].default))
                pair[told[1]] = value
                fields[name] = tuple(pair)
            elif isinstance(told, tuple) or fields.setdefault(name, value) != value:
                raise ValueError(f"{earlier} is the earlier name of {name}: give {name} alone")
        return fields

    def earlier_words(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """These fields of the record under their earlier names."""
        document = dict(fields)
        for earlier, told in self.EARLIER.items():
            name, *place = (told,) if isinstance(told, str) else told
            if name in fields:
                document.pop(name, None)
                document[earlier] = fields[name][place[0]] if place else fields[name]
        return document


def is_earlier(user_agent: str) -> bool:
    """Whether a request comes from the SDK of the release before, which did not say its name."""
    return user_agent.startswith("python-httpx/")


def in_earlier_words(model: Model) -> dict[str, Any]:
    """A model's JSON form as the release before wrote it."""
    document: dict[str, Any] = model.model_dump(mode="json")
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, Model):
            document[name] = in_earlier_words(value)
    return model.earlier_words(document) if isinstance(model, Renamed) else document
