"""Job files on the command line: a job as JSON, and another beginning that is put into it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.api.base import RepeatedKeyError, check_keys
from weft.cli.options import find_job
from weft.client import Client
from weft.errors import ArgumentError
from weft.submission import file_of

STANDARD_INPUT = "standard input"
SHOWN_CHARACTERS = 40

InitFrom = Annotated[
    str | None,
    typer.Option(
        "--init-from",
        metavar="ID|FILE",
        help="Begin with the parameters of that job, or of that safetensors file.",
        show_default=False,
    ),
]


def job_file(argument: str) -> Path | None:
    """The file that an argument means which may also be an id: `-`, what ends in .json or .onnx, or what is a path."""
    path = Path(argument)
    named = argument == "-" or argument.endswith((".json", ".onnx")) or "/" in argument
    return path if named or path.is_file() else None


def read(path: Path) -> bytes:
    """The job in the file; `-` is standard input. Raises ArgumentError as `checked` does, OSError."""
    if path == Path("-"):
        return checked(sys.stdin.buffer.read(), STANDARD_INPUT)
    try:
        return checked(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {path.absolute()}") from None


def checked(spec: bytes, name: str) -> bytes:
    """The job's JSON as it is, if it is a JSON object. Raises ArgumentError, which says where in the file it is not."""
    try:
        document: Any = json.loads(spec)
        check_keys(spec)
    except RepeatedKeyError as error:
        raise ArgumentError(f"{name}: {error}") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{name}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, or nested too deep
        raise ArgumentError(f"{name}: no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ArgumentError(f"{name}: a job is a JSON object, not {json.dumps(document)[:SHOWN_CHARACTERS]}")
    return spec


def beginning_with(client: Client, spec: bytes | str, init_from: str | None) -> str | bytes:
    """The checked job's JSON, with the beginning that was asked for in place of its own. A file is uploaded."""
    if init_from is None:
        return spec
    document: dict[str, Any] = json.loads(spec)
    file = file_of(init_from)
    if file is not None:
        document["init_from"] = client.upload(file).model_dump()
    else:
        document["init_from"] = {"job": find_job(client, init_from).id}
    return json.dumps(document)
