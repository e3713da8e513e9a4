"""Bodies of requests that are files: written to the disk as they come, within a limit."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

from fastapi import Request

from weft_server.gate import too_large
from weft_server.problems import ProblemError
from weft_server.storage.job_files import Upload
from weft_server.storage.parameter_file import PIECE_BYTES, ParameterFileError
from weft_server.threads import Threads

KEPT_FREE_BYTES = 64 << 20
"""Of the disk, which documents leave free: the records of jobs go on where no document is taken."""
REMEDY = "make room on it (`DELETE /v1/uploads/ID` frees what was brought for jobs to begin with), then send it again"


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
        await threads.on_files(check_room, upload.path.parent, int(told) if told.isdigit() else 0)
        await _write(threads, upload, request.stream(), limit)
        yield upload
    except ParameterFileError as error:
        code = HTTPStatus.UNPROCESSABLE_ENTITY
        raise ProblemError(code, "wrong-values", f"the document is not taken: {error}", errors=error.errors) from error
    except OSError as error:
        detail = f"the document cannot be kept: {error.strerror or error}"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            detail += f"; {REMEDY}"
        raise ProblemError(HTTPStatus.INSUFFICIENT_STORAGE, "not-stored", detail) from error
    finally:
        if upload is not None:
            await threads.on_files(discard, upload)


def check_room(folder: Path, nbytes: int) -> None:
    """Raises ProblemError where so many bytes more would leave the folder's disk too little."""
    free = shutil.disk_usage(folder).free
    if nbytes + KEPT_FREE_BYTES > free:
        detail = (
            f"the document's {nbytes} bytes do not fit: the server's disk has {free} bytes free, of which it keeps "
            f"{KEPT_FREE_BYTES} for its records; {REMEDY}"
        )
        raise ProblemError(HTTPStatus.INSUFFICIENT_STORAGE, "not-stored", detail)


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
            await threads.on_files(_put, upload, waiting)
            waiting, held = [], 0
    await threads.on_files(_put, upload, waiting)


def _put(upload: Upload, pieces: Sequence[bytes]) -> None:
    check_room(upload.path.parent, sum(map(len, pieces)))  # others may have filled the disk meanwhile
    upload.file.writelines(pieces)
