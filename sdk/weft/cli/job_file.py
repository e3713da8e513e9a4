"""Job files on the command line: a job as JSON, and the fields that options put into it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.api.base import RepeatedKeyError, check_keys
from weft.api.fields import Schema, alternatives, fields, fields_at, items
from weft.api.job import JobSpec
from weft.api.optimizer import SGD
from weft.api.words import nearest
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
        help="Start from the parameters of a job or a safetensors file.",
        show_default=False,
    ),
]


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Replace a field of the job: optimizer.lr=0.01, run.epochs=3, or epochs=3 for short; may be repeated.",
        show_default=False,
    ),
]

SHORT = ("run", "optimizer", "parallelism", "data")
"""Records of a job whose fields may be named alone, as `weft.submit` has them."""

EITHER: dict[tuple[str, ...], tuple[str, str]] = {
    ("run", "epochs"): ("run", "steps"),
    ("run", "steps"): ("run", "epochs"),
}
"""Fields of which a job has one: saying one takes the other away."""

ABSENT = {"optimizer": {"name": SGD().name}}
"""What a record is where the job does not say."""

TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "number": (int, float), "integer": int, "boolean": bool, "object": dict, "array": list,
    "null": type(None),
}  # fmt: skip


def job_file(argument: str) -> Path | None:
    """The file that an argument means which may also be an id: `-`, or what has a dot or a slash, which no id has."""
    path = Path(argument)
    named = argument == "-" or "." in argument or "/" in argument
    return path if named or path.is_file() else None


def read(path: Path) -> bytes:
    """The job in the file; `-` is standard input. Raises ArgumentError as `checked` does, OSError."""
    if path.suffix == ".py":
        raise ArgumentError(f"{path} is a program: run it with python; a job file is JSON, as weft.job_spec makes it")
    if path.suffix in {".csv", ".npy", ".npz"}:
        raise ArgumentError(f"{path} is neither a job file, which is JSON, nor an ONNX file; data is what a job names")
    if path == Path("-"):
        return checked(sys.stdin.buffer.read(), STANDARD_INPUT)
    try:
        return checked(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {path.absolute()}") from None


EXAMPLE = "`weft show JOB --spec` prints a job as a file has it"


def checked(spec: bytes, name: str) -> bytes:
    """The job's JSON as it is, if it is a JSON object. Raises ArgumentError, which says where in the file it is not."""
    try:
        document: Any = json.loads(spec)
        check_keys(spec)
    except RepeatedKeyError as error:
        raise ArgumentError(f"{name}: {error}") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"{name}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}; {EXAMPLE}"
        ) from None
    except (ValueError, RecursionError) as error:  # no UTF-8, or nested too deep
        raise ArgumentError(f"{name}: no JSON: {error}; {EXAMPLE}") from None
    if not isinstance(document, dict):
        raise ArgumentError(f"{name}: a job is a JSON object, not {json.dumps(document)[:SHOWN_CHARACTERS]}; {EXAMPLE}")
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
        document["init_from"] = {"job": client.job(init_from).id}
    return json.dumps(document)


def overridden(document: bytes | str, assignments: Sequence[str]) -> bytes | str:
    """The job's JSON, an object, with these fields set. Raises ArgumentError for a path that a job does not have, and a
    value of another type; all else is the server's to check."""
    if not assignments:
        return document
    job, schema, paths = json.loads(document), JobSpec.model_json_schema(), set[tuple[str, ...]]()
    for text in assignments:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ArgumentError(f"--set {text!r}: write it like optimizer.lr=0.01")
        _write_out(job)
        path = _whole(tuple(name.split(".")), job, schema)
        paths.add(path)
        _set(job, path, value, schema)
        _write_out(job)
    for path in paths:
        other = EITHER.get(path)
        if other is not None and other not in paths:
            job[other[0]].pop(other[1], None)
    return json.dumps(job)


def _write_out(job: dict[str, Any]) -> None:
    """An optimizer's name alone as the record that it stands for, whose fields may be set."""
    if isinstance(job.get("optimizer"), str):
        job["optimizer"] = {"name": job["optimizer"]}


def _whole(path: tuple[str, ...], job: dict[str, Any], schema: Schema) -> tuple[str, ...]:
    """The path, with the record in front that a short one leaves out."""
    top = schema["properties"]
    if path[0] in top:
        return path
    below = {name: fields_at(schema, {**ABSENT, **job}, [name]) for name in SHORT}
    for name, within in below.items():
        if path[0] in within:
            return (name, *path)
    known = dict.fromkeys((*top, *(field for within in below.values() for field in within)))
    hint = nearest(path[0], known) or f"; it has {', '.join(known)}"
    raise ArgumentError(f"--set {'.'.join(path)}: a job has no such field{hint}")


def _set(job: dict[str, Any], path: tuple[str, ...], text: str, schema: Schema) -> None:
    """Writes the value into the job; records on the way to it are made."""
    here: Any = job
    allowed = [schema]
    for depth, name in enumerate(path):
        allowed = _below(allowed, here, path, depth, schema)
        key: Any = int(name) if isinstance(here, list) else name
        if depth == len(path) - 1:
            here[key] = _value(text, ".".join(path), allowed, schema)
            return
        below = here.get(key) if isinstance(here, dict) else here[key]
        if not isinstance(below, dict | list):
            below = here[key] = dict(ABSENT.get(name, {})) if here is job else {}
        here = below


def _below(allowed: list[Schema], here: Any, path: tuple[str, ...], depth: int, schema: Schema) -> list[Schema]:
    """What the field `path[depth]` of the value `here` may be. Raises ArgumentError where there is none."""
    name, where = path[depth], ".".join(path[:depth]) or "a job"
    if isinstance(here, list):
        if not name.isdecimal() or int(name) >= len(here):
            raise ArgumentError(
                f"--set {'.'.join(path)}: {where} is a list of {len(here)}, and {name!r} is none of them"
            )
        return items(allowed, schema) or [{}]  # of a list that the schema does not describe, such as a graph's nodes
    known = fields(allowed, here)
    if name in known:
        return [each for one in known[name] for each in alternatives(one, schema)]
    free = [one for one in allowed if one.get("type", "object") == "object" and "properties" not in one]
    if free:
        return [{}]  # a dictionary of the user's own names
    hint = nearest(name, known) or (f"; it has {', '.join(known)}" if known else "")
    raise ArgumentError(f"--set {'.'.join(path)}: {where} has no field {name!r}{hint}")


def _value(text: str, path: str, allowed: list[Schema], schema: Schema) -> Any:
    """The text as JSON if that has a type that the field may have, else as it is."""
    value = _parsed(text, path)
    types = [str(one["type"]) for one in allowed if "type" in one]
    if len(types) < len(allowed) or any(_is_a(value, each) for each in types):
        return value
    if "string" in types:
        return text
    if types[0] == "object" and any("properties" in one for one in allowed):
        field = _field_of(path, allowed, schema)
        raise ArgumentError(f"--set {path}={text}: {path} is a record; set its fields, like --set {field}=...")
    raise ArgumentError(f"--set {path}={text}: this is no {' or '.join(dict.fromkeys(types))}")


def _parsed(text: str, path: str) -> Any:
    """The text as JSON, or as it is where it is none. Raises ArgumentError for what no job file can have."""
    try:
        check_keys(text)
        value = json.loads(text, parse_constant=_no_constant)
    except RepeatedKeyError as error:
        raise ArgumentError(f"--set {path}: {error}") from None
    except RecursionError:
        raise ArgumentError(f"--set {path}: the value is nested too deeply") from None
    except ValueError:
        value = text
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"--set {path}: the value has a character that is no Unicode: give it in UTF-8") from None
    except ValueError:
        raise ArgumentError(f"--set {path}={text}: the number is too large; JSON has numbers up to 1.7e308") from None
    return value


def _no_constant(name: str) -> Any:
    """Python reads NaN and Infinity as JSON, which has neither."""
    raise ValueError(name)


def _field_of(path: str, allowed: list[Schema], schema: Schema) -> str:
    """The path of a field of the record, or of a record within it, that is a value."""
    below = {name: each for name, each in fields(allowed, None).items() if "const" not in each[0]}
    if not below:
        return path
    name, kinds = next(iter(below.items()))
    return _field_of(f"{path}.{name}", [each for one in kinds for each in alternatives(one, schema)], schema)


def _is_a(value: Any, type_: str) -> bool:
    return isinstance(value, TYPES[type_]) and (type_ == "boolean" or not isinstance(value, bool))
