"""Descriptions in files: TOML or JSON, in the short form or whole."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import check_unplaced, described
from weft_kvstore.description.records import StoreDescription, description_from_json

MOST_BYTES: Final = 64 << 20
"""Of a file: far more than a description of a hundred thousand keys."""


def read_description(path: str | os.PathLike[str]) -> StoreDescription:
    """The store's description in a file, .toml or .json: in the short form (`DescriptionForm`), or whole, as msgspec
    writes a `StoreDescription`, which is told by its field `term`.

    Raises OSError, and DescriptionError, which names the file and the field, for what is no description.
    """
    file = Path(path)
    try:
        document = _document(file)
        if "term" not in document:
            return described(document)
        description = description_from_json(document)
        check_unplaced(description)
    except msgspec.ValidationError as error:
        raise DescriptionError(f"{file}: {error}") from None
    except DescriptionError as error:
        raise DescriptionError(f"{file}: {error}") from None
    return description


def _document(file: Path) -> Mapping[str, Any]:
    if file.suffix not in {".toml", ".json"}:
        raise DescriptionError("a description is a .toml or a .json file")
    if file.exists() and not file.is_file():  # A pipe would have to be written first, by nobody.
        raise DescriptionError("it is no regular file")
    with file.open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DescriptionError(f"more than {MOST_BYTES >> 20} MiB")
    try:
        text = content.decode()
        document = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # those of both readers, and of decoding, are ValueErrors
        raise DescriptionError(f"no {file.suffix[1:].upper()}: {error or 'too deep'}") from None
    if not isinstance(document, dict):
        raise DescriptionError(f"an object with keys and a rule is expected, not {type(document).__name__}")
    return document


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
