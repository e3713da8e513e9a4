"""Bodies of requests: JSON that is read strictly, and files that are written to the disk as they come.

Strict is: RFC 8259 to the letter for what users send, each key once, bounded nesting, the types of the schema without
conversions (no `"3"` where a number is wanted), no field or query parameter that is unknown.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from email.message import Message
from functools import cache
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from weft.api.base import RepeatedKeyError, check_keys
from weft.api.fields import allowed_at, fields_at, kinds_at
from weft.api.job import JobSpec
from weft.api.words import nearest, said_here
from weft_graph.spelling import did_you_mean
from weft_server.gate import too_large
from weft_server.problems import MOST_ERRORS, ProblemError, invalid_request
from weft_server.refusals import listed
from weft_server.storage.job_files import Reservation, Reservations, Upload
from weft_server.storage.parameter_file import PIECE_BYTES, ParameterFileError
from weft_server.threads import Threads
from weft_server.users import Party

_T = TypeVar("_T")

KEPT_FREE_BYTES = 64 << 20
"""Of the disk, which documents leave free: the records of jobs go on where no document is taken."""
LEFT_TO_OTHERS = 4
"""One in so many of the free bytes is left to other projects, where one brings several documents at once."""
SHOWN = 100
"""Characters of a value that is refused."""
REMEDY = "make room on it (`DELETE /v1/uploads/ID` frees what was brought for jobs to begin with), then send it again"


class StrictRoute(APIRoute):
    """A route whose query and JSON body are read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        body: Any = None if self.body_field is None else self.body_field.field_info.annotation
        model: TypeAdapter[Any] | None = None if body is None else TypeAdapter(body)
        known = _names(self)

        async def strict(request: Request) -> Response:
            _check_query(request, known)
            if model is None:
                return await handler(request)
            _check_media_type(request)
            return await handler(_JsonRequest(request, model, is_read_later=body is JobSpec))

        return strict


class _JsonRequest(Request):
    """A request whose JSON is read as the model of its route."""

    def __init__(self, request: Request, model: TypeAdapter[Any], *, is_read_later: bool) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model
        self._is_read_later = is_read_later

    async def json(self) -> Any:
        """Raises ProblemError. A submitted job, which may be large, is empty here: its check reads the body."""
        body = await self.body()
        return JobSpec.model_construct() if self._is_read_later else read_json(body, self._model)


def read_json(body: bytes, model: TypeAdapter[_T]) -> _T:
    """The model that the body is of. Raises ProblemError."""
    try:
        document = from_json(body, allow_inf_nan=False, cache_strings="keys")  # 200 levels at most
        check_keys(body)
    except RepeatedKeyError as error:
        raise ProblemError("repeated-key", str(error)) from error
    except ValueError as error:
        raise ProblemError("malformed-json", f"the body is not JSON: {error}") from error
    try:
        return _validated(body, document, model)
    except ValidationError as error:
        # What is left out follows from what is given: where that is wrong, it cannot be told, and need not be.
        found = [one for one in error.errors(include_url=False) if one["type"] != "default_factory_not_called"]
        said = [
            {"loc": ("body", *each["loc"]), "msg": _said(model, document, each), "type": each["type"]}
            for each in found[:MOST_ERRORS]
        ]
        raise invalid_request(said, document, more=len(found) - len(said)) from error


def _validated(body: bytes, document: Any, model: TypeAdapter[_T]) -> _T:
    """Raises ValidationError."""
    try:
        return model.validate_json(body, strict=True)
    except ValidationError as error:
        if not _make_whole(document, error):
            raise
    return model.validate_json(to_json(document), strict=True)


def _said(model: TypeAdapter[Any], document: Any, error: ErrorDetails) -> str:
    """What pydantic says of an error, and what was given; of a record of no kind and a field that there is not, those
    that there are."""
    kind, schema, given = error["type"], _schema_of(model), _given(error["input"])
    if kind in {"union_tag_not_found", "union_tag_invalid"}:
        tag = error["ctx"]["discriminator"].strip("'")
        allowed, here = allowed_at(schema, document, error["loc"])
        wrong = here.get(tag) if isinstance(here, dict) else None
        kinds = list(dict.fromkeys(kinds_at(schema, document, error["loc"], tag)))
        near = did_you_mean(wrong, kinds) if isinstance(wrong, str) else ""
        number = ", or a number alone" if any(one.get("type") == "number" for one in allowed) else ""
        lacks = f"{given} has no {tag!r}" if kind == "union_tag_not_found" else f"{tag} is {_given(wrong)}"
        return f"{lacks}{near or ': give one of ' + ', '.join(kinds) + number}"
    if kind == "missing" and isinstance(error["loc"][-1], int):
        return f"{given} lacks item {error['loc'][-1]}"
    if error["msg"].startswith("Input should"):
        also = list(dict.fromkeys(kinds_at(schema, document, error["loc"], "schedule"))) if kind == "float_type" else []
        return f"{error['msg']}, not {given}" + (f"; or a schedule: {', '.join(also)}" if also else "")
    if kind != "extra_forbidden":
        return error["msg"]
    *place, word = error["loc"]
    said = said_here(str(word))
    known = fields_at(schema, document, place)
    below = [f"{name}.{said}" for name in known if said in fields_at(schema, document, [*place, name])]
    if said in known or below:
        near = f"; did you mean {(said if said in known else below[0])!r}?"
    else:
        near = nearest(str(word), known) or f"; there are {', '.join(known)}"
    return f"there is no field {str(word)[:200]!r}{near}"


def _given(value: Any) -> str:
    """A value for people, however large it is."""
    if isinstance(value, dict | list) and value:
        what = "an object with" if isinstance(value, dict) else "a list of"
        return f"{what} {listed(value)[:SHOWN] if isinstance(value, dict) else len(value)}"
    return repr(value[:SHOWN]) if isinstance(value, str) else to_json(value).decode()


@cache
def _schema_of(model: TypeAdapter[Any]) -> dict[str, Any]:
    return model.json_schema()


def _make_whole(document: Any, error: ValidationError) -> bool:
    """Writes `3.0` as `3` where an integer is wanted: JSON Schema takes both for one. Whether there was any."""
    is_changed = False
    for each in error.errors(include_url=False, include_context=False):
        value = each["input"]
        if each["type"] != "int_type" or not isinstance(value, float) or not value.is_integer():
            continue
        place: tuple[Any, Any] | None = None
        here: Any = document
        step: Any
        for step in each["loc"]:  # which names the tags of unions too
            if (isinstance(here, dict) and step in here) or (isinstance(here, list) and isinstance(step, int)):
                place, here = (here, step), here[step]
        if place is not None and here == value:
            place[0][place[1]] = int(value)
            is_changed = True
    return is_changed


def _names(route: APIRoute) -> frozenset[str]:
    """The query parameters that a route knows."""
    names: set[str] = set()
    for field in route.dependant.query_params:
        kind: Any = field.field_info.annotation
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        names.update(kind.model_fields if is_model else [field.alias])
    return frozenset(names)


def _check_query(request: Request, known: Collection[str]) -> None:
    """Raises ProblemError: `?dryrun=true` must not submit a job."""
    unknown = [each for each in request.query_params if each not in known]
    if not unknown:
        return
    near = did_you_mean(unknown[0], known) or f"; it takes {', '.join(sorted(known)) or 'none'}"
    message = f"the call has no such parameter{near}"
    raise invalid_request([{"loc": ("query", unknown[0][:200]), "msg": message, "type": "extra_forbidden"}], None)


def _check_media_type(request: Request) -> None:
    """Raises ProblemError for a body that is not declared as JSON."""
    told = request.headers.get("content-type", "")
    message = Message()
    message["content-type"] = told
    kind, subtype = message.get_content_maintype(), message.get_content_subtype()
    is_json = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    if has_body and not is_json:
        what = f"Content-Type {told[:100]!r}" if told else "no Content-Type"
        detail = f"{what}: send JSON, with the header 'Content-Type: application/json'"
        raise ProblemError("unknown-media-type", detail)


class Incoming:
    """Bodies that are written to one directory as they come, and the disk's bytes that are promised to them.

    A body's bytes are promised before the first is read, by its Content-Length, or else piece by piece. So those that
    come slowly fill no disk together.
    """

    def __init__(self, threads: Threads, reservations: Reservations) -> None:
        self._threads = threads
        self._reservations = reservations

    @asynccontextmanager
    async def received(
        self,
        request: Request,
        start: Callable[[], Upload],
        limit: int,
        *,
        party: Party | None,
    ) -> AsyncIterator[Upload]:
        """The body in a file that `start` makes, deleted after the block where it has its name still. `party`: None
        where an agent brings it.

        Raises ProblemError: too large, no room. Files' errors and those of documents within the block become problems
        too.
        """
        length = request.headers.get("content-length", "")
        told = int(length) if length.isdigit() and "transfer-encoding" not in request.headers else None
        if told is not None and told > limit:
            raise too_large(limit, f"{told} bytes")
        on_files = self._threads.on_files
        upload: Upload | None = None
        try:
            upload = await on_files(start)
            with self._reservations.lock:
                self._reservations.setdefault(upload.path, Reservation(party))
            await on_files(self._promise, upload, told or 0)
            await self._write(upload, request.stream(), limit, told)
            yield upload
        except ParameterFileError as error:
            raise ProblemError("wrong-values", f"the document is not taken: {error}", errors=error.errors) from error
        except OSError as error:
            detail = f"the document cannot be kept: {error.strerror or error}"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                detail += f"; {REMEDY}"
            raise ProblemError("not-stored", detail) from error
        finally:
            if upload is not None:
                with self._reservations.lock:
                    self._reservations.pop(upload.path, None)
                await on_files(upload.discard)

    async def _write(self, upload: Upload, stream: AsyncIterator[bytes], limit: int, told: int | None) -> None:
        """Writes what comes in pieces of about a megabyte, each on a thread."""
        waiting: list[bytes] = []
        held = total = 0
        async for piece in stream:
            waiting.append(piece)
            held += len(piece)
            total += len(piece)
            if total > limit:
                raise too_large(limit, f"more than {limit} bytes")
            if held >= PIECE_BYTES:
                await self._threads.on_files(self._put, upload, waiting, held, total if told is None else told)
                waiting, held = [], 0
        await self._threads.on_files(self._put, upload, waiting, held, total if told is None else told)

    def _put(self, upload: Upload, pieces: Sequence[bytes], held: int, nbytes: int) -> None:
        self._promise(upload, nbytes, held)
        upload.file.writelines(pieces)
        with self._reservations.lock:
            self._reservations[upload.path].written += held

    def _promise(self, upload: Upload, nbytes: int, at_once: int = 0) -> None:
        """The body is to have so many bytes, of which some are written at once. Raises ProblemError where they do not
        fit on the disk, FullError where they are too many for where the body is to be kept.

        What is promised to users holds up no agent: the parameters of a job that ends come before uploads.
        """
        free = shutil.disk_usage(upload.path.parent).free
        with self._reservations.lock:
            mine = self._reservations[upload.path]
            if nbytes > mine.nbytes:
                upload.check_room(nbytes)
            others = [each for each in self._reservations.values() if each is not mine]
            promised = sum(
                each.nbytes - each.written for each in others if mine.party is not None or each.party is None
            )
            own = sum(each.nbytes - each.written for each in others if each.party and each.party.is_with(mine.party))
            wanted, room = nbytes - mine.written, free - KEPT_FREE_BYTES
            if nbytes <= mine.nbytes:  # it was promised them, but others may have filled the disk
                wanted, promised, own = at_once, 0, 0
            if wanted + promised > room or (own and wanted + own > room - room // LEFT_TO_OTHERS):
                detail = (
                    f"the document's {nbytes} bytes do not fit: the server's disk has {free} bytes free, of which it "
                    f"keeps {KEPT_FREE_BYTES} for its records{_told(promised, own)}; {REMEDY}"
                )
                raise ProblemError("not-stored", detail)
            mine.nbytes = max(nbytes, mine.nbytes)


def _told(promised: int, own: int) -> str:
    """What a document that does not fit is told of those that are on their way."""
    told = f", and {promised} are promised to documents that are being brought" if promised else ""
    return f"{told}, {own} of them to your project's" if own else told
