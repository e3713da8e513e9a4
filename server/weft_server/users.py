"""Who calls, as far as records and routes go by it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from weft.api.token import ALL_PROJECTS, DEFAULT_PROJECT, Scope


@dataclass(frozen=True, slots=True)
class User:
    """Who calls: the token's name, what it may do, and in which project."""

    name: str
    scope: Scope
    project: str

    @property
    def home(self) -> str:
        """The project of what this user brings."""
        return DEFAULT_PROJECT if self.project == ALL_PROJECTS else self.project

    @property
    def asking(self) -> str:
        """As the reason of what this user asked for."""
        return f"by {self.name}" if self.name else "on request"

    def sees(self, project: str) -> bool:
        return self.project in {ALL_PROJECTS, project}


@dataclass(frozen=True, slots=True)
class Party:
    """Who shares with others what there is: a user, and the users of a project together."""

    project: str
    user: str

    def is_with(self, other: Party | None) -> bool:
        """Whether both are of one project."""
        return other is not None and self.project == other.project


ANYONE = User("", Scope.ADMIN, ALL_PROJECTS)
"""Who calls a server that asks for no token."""


USER = "weft.user"
"""The user's place in the scope of a request that came with a token."""


def party_of(request: Request) -> Party:
    """Whose the call is: the token's, where there are tokens; else the address's, which is a project of its own."""
    user: User = request.scope.get(USER, ANYONE)
    if user is not ANYONE:
        return Party(user.project, user.name)
    address = request.client.host if request.client else ""
    return Party(address, address)
