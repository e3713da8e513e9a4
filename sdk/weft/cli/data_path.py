"""Data that a job names by a relative path: the server's, or where it has none there, that of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import InvalidRequestError
from weft.terminal import Console

T = TypeVar("T")

POINTER = "/data/source/path"


def with_data_found(document: bytes | str, send: Callable[[bytes | str], T]) -> T:
    """Sends a job. Where the server cannot read its data, and a file of that relative path is in this folder, sends it
    once more with the path made absolute. Raises what `send` does, and says then who reads data, and from where.
    """
    try:
        return send(document)
    except InvalidRequestError as error:
        job = json.loads(document)
        here = _file_here(job) if _is_about_data(error) else None
        if here is None:
            _explain(error)
            raise
    try:
        return send(json.dumps(_with_path(job, here)))
    except InvalidRequestError as error:
        _explain(error)
        raise


def _is_about_data(error: InvalidRequestError) -> bool:
    return any(each.pointer == POINTER for each in error.problem.errors)


def _file_here(job: dict[str, Any]) -> Path | None:
    path = Path(job["data"]["source"]["path"])
    return path.absolute() if not path.is_absolute() and path.is_file() else None


def _with_path(job: dict[str, Any], path: Path) -> dict[str, Any]:
    data = job["data"]
    return {**job, "data": {**data, "source": {**data["source"], "path": str(path)}}}


def _explain(error: InvalidRequestError) -> None:
    if _is_about_data(error):
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
            "data is read by the server and the workers, on their machines: a relative path from where they were "
            "started, below the directories that their --data-root names (weft up --data-root DIR; else where weft up "
            "was started)",
            style="yellow",
        )
