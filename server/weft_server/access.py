"""Who may call what: a rule for each route, users' tokens with a scope and a project, agents' credentials.

A call passes `TokenGate` before any of it is read: the gate knows from method and path which scope, token or credential
is needed. Which project a job is of is looked at behind it, by `weft_server.routes.context`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Call

from weft.api.token import ALL_PROJECTS, Scope
from weft_server.credentials import PREFIX, Credentials, Kind, is_credential
from weft_server.problems import problem, respond
from weft_server.users import USER, User

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may make a call: users whose token has this scope, or who else is named."""

    scope: Scope | None = None
    of_all_projects: bool = False
    """The user's token has to be."""
    holder: Kind | None = None
    """The agent or allocation that the path names may too."""
    joining: bool = False
    """Whoever has the token that agents register with may."""
    open: bool = False

    def told(self, identifier: str) -> str:
        ways = []
        if self.scope is not None:
            projects = " of all projects" if self.of_all_projects else ""
            ways.append(f"a user's token with scope {self.scope}{projects}")
        if self.holder == "agents":
            ways.append(f"the credential of agent {identifier}, which its registration was answered with")
        if self.holder == "allocations":
            ways.append(f"the credential of allocation {identifier}, which its agent's orders hold")
        if self.joining:
            ways.append("the agents' token")
        return " or ".join(ways)


OPEN = Rule(open=True)
VIEW, RUN, MANAGE = Rule(Scope.VIEWER), Rule(Scope.RUNNER), Rule(Scope.ADMIN)
HELD = Rule(holder="allocations")

RULES: Mapping[str, Rule] = {
    "GET /v1/jobs": VIEW,
    "POST /v1/jobs": RUN,
    "GET /v1/jobs/{job}": VIEW,
    "DELETE /v1/jobs/{job}": RUN,
    "GET /v1/jobs/{job}/spec": VIEW,
    "POST /v1/jobs/{job}/cancel": RUN,
    "POST /v1/jobs/{job}/stop": RUN,
    "POST /v1/jobs/{job}/scale": RUN,
    "GET /v1/jobs/{job}/parameters": VIEW,
    "GET /v1/jobs/{job}/programs": VIEW,
    "GET /v1/jobs/{job}/events": VIEW,
    "GET /v1/jobs/{job}/trace": VIEW,
    "GET /v1/jobs/{job}/values": VIEW,
    "PUT /v1/jobs/{job}/values": RUN,
    "GET /v1/uploads": VIEW,
    "POST /v1/uploads": RUN,
    "DELETE /v1/uploads/{upload}": RUN,
    "POST /v1/models": RUN,
    "GET /v1/schemas/graph": VIEW,
    "GET /v1/tokens": MANAGE,
    "POST /v1/tokens": MANAGE,
    "DELETE /v1/tokens/{name}": MANAGE,
    "GET /v1/agents": VIEW,
    "POST /v1/agents": Rule(joining=True),
    "POST /v1/agents/{agent}/heartbeat": Rule(holder="agents"),
    "DELETE /v1/agents/{agent}": Rule(Scope.ADMIN, of_all_projects=True, holder="agents"),
    "POST /v1/allocations/{allocation}/reports": HELD,
    "PUT /v1/allocations/{allocation}/parameters": HELD,
    "GET /v1/allocations/{allocation}/programs/{sha256}": HELD,
    "GET /v1/allocations/{allocation}/given": HELD,
    "GET /v1/allocations/{allocation}/sets/{number}": HELD,
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /docs": VIEW,
    "GET /openapi.json": VIEW,
    "GET /agents/docs": VIEW,
    "GET /agents/openapi.json": VIEW,
    "GET /problems": OPEN,
    "GET /problems/{code}": OPEN,
}
"""The rule of each route. One that is not here is not there for anybody; a test finds it."""


def _patterns() -> dict[re.Pattern[str], dict[str, Rule]]:
    found: dict[str, dict[str, Rule]] = {}
    for route, rule in RULES.items():
        method, _, path = route.partition(" ")
        found.setdefault(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path), {})[method] = rule
    return {re.compile(path): methods for path, methods in found.items()}


_PATTERNS = _patterns()


def rule_of(method: str, path: str) -> tuple[Rule, str] | None:
    """(the rule, the id of the agent or allocation that the path names); None where there is no such path.

    A method that the path has not is for the application to refuse: any user may be told.
    """
    for pattern, methods in _PATTERNS.items():
        found = pattern.fullmatch(path)
        if found is not None:
            names = found.groupdict()
            return methods.get(method, VIEW), names.get("agent") or names.get("allocation") or ""
    return None


class Tokens:
    """Users' tokens by their hashes, as the records have them. Belongs to the event loop."""

    def __init__(self, bootstrap: str) -> None:
        """`bootstrap` is the token of the server's settings, an admin's of all projects."""
        self._fixed = {digest(bootstrap): User("the token of the server's settings", Scope.ADMIN, ALL_PROJECTS)}
        self._users = dict(self._fixed)

    def load(self, users: Iterable[tuple[str, User]]) -> None:
        """These, as (hash, user), and no others but that of the settings."""
        self._users = {**dict(users), **self._fixed}

    def find(self, token: str) -> User | None:
        return self._users.get(digest(token))

    def knows(self, user: User) -> bool:
        """Whether there still is a token of that user."""
        return user in self._users.values()


class TokenGate:
    """Wants `Authorization: Bearer` with what the call's rule asks for; of tokens only the hashes are kept."""

    def __init__(self, app: ASGIApp, tokens: Tokens, agent_token: str, credentials: Credentials) -> None:
        self._app = app
        self._tokens = tokens
        self._joining = digest(agent_token)
        self._credentials = credentials

    async def __call__(self, scope: Call, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Call) -> Response | None:
        """Why the call is refused; None where it passes, and its scope has the user."""
        method, path = scope["method"], scope["path"]
        found = rule_of(method, path)
        rule, identifier = found or (VIEW, "")
        if rule.open:
            return None
        kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else ""
        holder, user, joins = self._credentials.holder(token), self._tokens.find(token), digest(token) == self._joining
        if (holder is not None and holder == (rule.holder, identifier)) or (joins and rule.joining):
            return None
        if user is not None and rule.scope is not None:
            if not user.scope.covers(rule.scope) or (rule.of_all_projects and user.project != ALL_PROJECTS):
                detail = f"the call needs {rule.told(identifier)}; {told(user)}"
                return respond(problem("scope-needed", detail))
            if found is None:
                detail = f"{method} {path}: not found"
                return respond(problem("not-found", detail))
            scope[USER] = user
            return None
        if holder is not None or user is not None or joins:
            whose = f"the credential of {holder[0]} {holder[1]}" if holder is not None else "another token"
            detail = f"the call came with {whose}, and wants {rule.told(identifier)}"
            return respond(problem("wrong-credential", detail))
        if is_credential(token):
            detail = "the server does not know this credential: it has another key now; register again"
            return respond(problem("unknown-credential", detail))
        detail = "the server does not know the call's token; weft sends that of WEFT_TOKEN"
        if not token:
            detail = (
                "the call has no token: it needs the header 'Authorization: Bearer TOKEN'; for weft, set WEFT_TOKEN"
            )
        return respond(problem("unauthorized", detail))


def told(user: User) -> str:
    """What a user has, for whoever asked for more."""
    projects = "all projects" if user.project == ALL_PROJECTS else f"project {user.project}"
    return f"{user.name!r} has scope {user.scope} in {projects}"


def new_secret() -> str:
    return f"{PREFIX}{secrets.token_urlsafe(SECRET_BYTES)}"


def digest(token: str) -> str:
    """SHA-256, hexadecimal: no secret can be guessed, so nothing slower is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
