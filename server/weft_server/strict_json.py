"""Reads JSON bodies: RFC 8259 to the letter for what users send, each key once, bounded nesting, errors as problems."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from weft.api.base import RepeatedKeyError, check_keys
from weft_server.problems import ProblemError


class StrictRequest(Request):
    """A request whose JSON may hold no NaN or infinity, and is nested no deeper than the parser goes (200)."""

    allows_nan = False

    async def json(self) -> Any:
        body = await self.body()
        try:
            document = from_json(body, allow_inf_nan=self.allows_nan, cache_strings="keys")
            check_keys(body)
        except RepeatedKeyError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "repeated-key", str(error)) from error
        except ValueError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "malformed-json", f"the body is not JSON: {error}") from error
        return document


class ReportRequest(StrictRequest):
    """An agent's: a diverging run reports a loss that is NaN."""

    allows_nan = True


class StrictRoute(APIRoute):
    request_class: type[StrictRequest] = StrictRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(self.request_class(request.scope, request.receive))

        return strict


class ReportRoute(StrictRoute):
    request_class = ReportRequest
