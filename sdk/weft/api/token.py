"""Users' tokens: what each may do, and in which project; see `/v1/tokens`."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from weft.api.base import Model, Name

ALL_PROJECTS = "*"
DEFAULT_PROJECT = "default"
"""Of jobs that are submitted with a token of all projects, or with none."""

Project = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127})$")]
"""A project's name, or `*` for all of them."""


class Scope(StrEnum):
    """What a token is for. Each scope includes those before it."""

    VIEWER = "viewer"
    """Reads jobs, their values and logs."""
    RUNNER = "runner"
    """Submits jobs too, and controls them."""
    ADMIN = "admin"
    """Makes and removes tokens too; where it is of all projects, removes agents."""

    def covers(self, other: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class NewToken(Model):
    name: Name
    scope: Scope
    project: Project = DEFAULT_PROJECT
    """The token sees and changes only this project's jobs and uploads."""


class TokenInfo(NewToken):
    """A token, without its secret."""

    created_at: datetime


class TokenCreated(TokenInfo):
    token: str = Field(repr=False)
    """The secret, shown this once: the server keeps a hash of it."""


class TokenList(Model):
    tokens: list[TokenInfo]
