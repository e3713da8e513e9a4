"""Job files on the command line: a job as JSON, and another beginning that is put into it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.options import find_job
from weft.client import Client
from weft.errors import ArgumentError
from weft.first_values import file_of

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
    """The file that an argument means which may also be an id: `-`, what ends in .json, or what is a path."""
    return Path(argument) if argument == "-" or argument.endswith(".json") or "/" in argument else None


def read(path: Path) -> bytes:
    """What is in the file; `-` is standard input."""
    return sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()


def beginning_with(client: Client, spec: bytes, init_from: str | None) -> str | bytes:
    """The job's JSON, with the beginning that was asked for in place of its own. A file is uploaded.

    Raises ArgumentError where the spec is no JSON object.
    """
    if init_from is None:
        return spec
    try:
        document: Any = json.loads(spec)
    except ValueError as error:
        raise ArgumentError(f"the job is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ArgumentError("the job is no JSON object")
    file = file_of(init_from)
    if file is not None:
        document["init_from"] = client.upload(file).model_dump()
    else:
        document["init_from"] = {"job": find_job(client, init_from).id}
    return json.dumps(document)
