"""Bodies of requests that are files: written to the disk as they come, within a limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import Request

from weft_server.gate import too_large
from weft_server.job_files import Upload
from weft_server.parameter_file import PIECE_BYTES, ParameterFileError
from weft_server.problems import ProblemError
from weft_server.threads import Threads


@asynccontextmanager
async def received(
    request: Request, threads: Threads, start: Callable[[], Upload], discard: Callable[[Upload], None], limit: int
) -> AsyncIterator[Upload]:
    """The body in a file that `start` makes and `discard` takes back. Raises ProblemError: too large, no room.

    Files' errors and those of documents within the block become problems too.
    """
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise too_large(limit, f"{told} bytes")
    upload: Upload | None = None
    try:
        upload = await threads.on_files(start)
        await _write(threads, upload, request.stream(), limit)
        yield upload
    except ParameterFileError as error:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        raise ProblemError(code, "wrong-values", f"the document is not taken: {error}", errors=error.errors) from error
    except OSError as error:
        detail = f"the document cannot be kept: {error.strerror or error}"
        raise ProblemError(HTTPStatus.INSUFFICIENT_STORAGE, "not-stored", detail) from error
    finally:
        if upload is not None:
            await threads.on_files(discard, upload)


async def _write(threads: Threads, upload: Upload, stream: AsyncIterator[bytes], limit: int) -> None:
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
            await threads.on_files(upload.file.writelines, waiting)
            waiting, held = [], 0
    await threads.on_files(upload.file.writelines, waiting)
