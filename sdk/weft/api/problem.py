"""Errors of the HTTP API: RFC 9457 problem documents, media type application/problem+json."""

from __future__ import annotations

from pydantic import Field, ValidationError

from weft.api.base import Model


class FieldError(Model):
    """One thing that is wrong with a request. `pointer` is a JSON pointer into its body; `node` a graph node's name."""

    pointer: str
    detail: str
    node: str | None = None


class Problem(Model):
    """What went wrong. `type` is a path that ends in the problem's code, the same as `code`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = Field(default_factory=list)


def problem_code(document: bytes) -> str | None:
    """The code of a problem document; None where the bytes are not one (a proxy's page, say)."""
    try:
        return Problem.from_answer(document).code
    except ValidationError:
        return None
