"""`/v1/tokens`: users' tokens are made, listed and removed; see `weft.api.token`."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy.exc import IntegrityError

from weft.api.token import NewToken, TokenCreated, TokenInfo, TokenList
from weft_server.access import Tokens, digest, new_secret, told
from weft_server.bodies import StrictRoute
from weft_server.credentials import Credentials
from weft_server.problems import ProblemError, sends
from weft_server.refusals import WrongStateError
from weft_server.routes.context import Caller, Context, IdempotencyKey, OfProject, Use, the_project
from weft_server.storage.records import TokenRemovedError
from weft_server.users import User

router = APIRouter(prefix="/v1/tokens", tags=["tokens"], route_class=StrictRoute)

_log = logging.getLogger("weft.server")


@router.get("", openapi_extra=sends("records-unavailable"))
async def list_tokens(use: Use, caller: Caller) -> TokenList:
    """The tokens of the caller's project, or of all, without their secrets."""
    return TokenList(tokens=await _seen(use, caller))


@router.post("", status_code=HTTPStatus.CREATED, openapi_extra=sends("wrong-state", "records-unavailable"))
async def create_token(new: NewToken, use: Use, caller: Caller, idempotency_key: IdempotencyKey = None) -> TokenCreated:
    """Makes a token. The server keeps a hash of its secret, which is in this answer alone, and in that to the same call
    with the same `Idempotency-Key`."""
    tokens, credentials = _asked_for(use)
    if not caller.sees(new.project):
        detail = f"a token of project {new.project} is made with one of it, or of all projects; {told(caller)}"
        raise ProblemError("scope-needed", detail)
    secret = new_secret() if idempotency_key is None else credentials.secret(new.model_dump_json(), idempotency_key)
    created = TokenCreated(**new.model_dump(), created_at=use.service.clock().at, token=secret)
    info = TokenInfo(**created.model_dump(exclude={"token"}))
    records, threads = use.service.records, use.service.threads
    try:
        users = await threads.write(records.add_token, info, digest(secret))
    except TokenRemovedError as error:
        detail = f"this call made a token that was removed; make another {new.name!r} with a new Idempotency-Key"
        raise WrongStateError(detail) from error
    except IntegrityError as error:
        users = await threads.write(records.users)  # in order with those that add and remove
        if digest(secret) in dict(users):
            tokens.load(users)  # the first call may have failed after it was kept
            for known in await threads.read(records.tokens):
                if (known.name, known.project) == (new.name, new.project):
                    return TokenCreated(**known.model_dump(), token=secret)
        taken = f"project {new.project} has a token {new.name!r} already; remove it, or take another name"
        raise WrongStateError(taken) from error
    tokens.load(users)
    _log.info("token %s of scope %s in project %s was made by %s", new.name, new.scope, new.project, caller.name)
    return created


@router.delete(
    "/{name}",
    status_code=HTTPStatus.NO_CONTENT,
    openapi_extra=sends("unknown-token", "wrong-state", "records-unavailable"),
)
async def remove_token(
    name: Annotated[str, Path(max_length=128)], use: Use, caller: Caller, project: OfProject = None
) -> None:
    """The token opens nothing from now on. A stream of events that it has opened ends with the next event, or soon."""
    tokens, _ = _asked_for(use)
    found = [each.project for each in await _seen(use, caller) if each.name == name]
    of = the_project("token", name, found, project)
    tokens.load(await use.service.threads.write(use.service.records.remove_token, of, name))
    _log.info("token %s was removed by %s", name, caller.name)


async def _seen(use: Context, caller: User) -> list[TokenInfo]:
    found = await use.service.threads.read(use.service.records.tokens)
    return [each for each in found if caller.sees(each.project)]


def _asked_for(use: Context) -> tuple[Tokens, Credentials]:
    if use.tokens is None or use.credentials is None:
        detail = "this server asks for no token; start it with WEFT_SERVER_TOKEN, which is the first admin's"
        raise WrongStateError(detail)
    return use.tokens, use.credentials
