"""`describe`, and descriptions in files."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from weft_kvstore.compression.description import StoreCompression
from weft_kvstore.description.check import DescriptionError
from weft_kvstore.description.form import SLICE_BYTES, Key, UserKey, check_unplaced, described
from weft_kvstore.description.records import (
    AverageDescription,
    CommitDescription,
    StoreDescription,
    description_from_json,
)

# --- `describe`: a store's description in one Python call -------------------------------------------------------------


_DATA: Final = "numbers, strings, lists and mappings are expected"
_HYPER: Final = 'a number, or a schedule as {"schedule": "cosine", "start": 0.1, "steps": 1000}'


def describe(
    keys: Mapping[UserKey, Any],
    *,
    shards: Sequence[str] = (),
    slots: int = 1,
    rule: str | Mapping[str, Any] | None = None,
    mode: str = "sync",
    staleness: int = 0,
    merge: str = "slot",
    job: str = "store",
    seed: int = 0,
    slice_bytes: int = SLICE_BYTES,
    commit: CommitDescription | Mapping[str, Any] | None = None,
    average: AverageDescription | Mapping[str, Any] | None = None,
    compression: StoreCompression | Mapping[str, Any] | None = None,
    curve_keys: Sequence[str] = (),
    barrier: bool = True,
    **hyper: float | Mapping[str, Any],
) -> StoreDescription:
    """A store's description; every process of the store has to be given the same one.

    `keys`: by name or number, the most urgent first; each a `Key`, a shape, or an array, whose shape and dtype the key
    then has (its value is set by `KVStore.init`). `hyper` are the rule's hyper-parameters: numbers, or schedules, as
    documents or as `weft.linear` and the like give them. `shards` are endpoints; a store for one process needs none.
    The rest: see `DescriptionForm`.

        describe({"weight": Key(shape=(784, 10), initializer={"normal": [0, 0.05]}), "bias": (10,)},
                 shards=["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"], slots=2, rule="adam", lr=0.001)

    Raises DescriptionError, which names the field.
    """
    if not isinstance(keys, Mapping):
        told = f'{{"w": Key(shape=(3,))}}, not {type(keys).__name__}'
        raise DescriptionError(f"keys: a mapping from each key's name to what it is, as {told}")
    document = {
        "keys": [
            {"key": _encoded(name, "keys", "a key is a string or a number"), **_key(name, key)}
            for name, key in keys.items()
        ],
        "shards": [shards] if isinstance(shards, str) else list(shards),
        "curve_keys": [curve_keys] if isinstance(curve_keys, str) else list(curve_keys),
        "slots": slots,
        "rule": dict(rule) if isinstance(rule, Mapping) else rule,
        "hyper": {name: _hyper(name, value) for name, value in hyper.items()},
        "mode": mode,
        "staleness": staleness,
        "merge": merge,
        "job": job,
        "seed": seed,
        "slice_bytes": slice_bytes,
        "commit": commit,
        "average": average,
        "compression": compression,
        "barrier": barrier,
    }
    return described({name: _encoded(value, name) for name, value in document.items()})


def _key(name: UserKey, key: object) -> dict[str, Any]:
    """The key's fields, those that were not given left out."""
    if isinstance(key, Key):
        said = ((field, getattr(key, field)) for field in key.__struct_fields__)
        return {field: _encoded(value, f"key {name!r}: {field}") for field, value in said}
    if isinstance(key, tuple | list):
        return {"shape": _encoded(key, f"key {name!r}: shape")}
    shape, dtype = getattr(key, "shape", None), getattr(key, "dtype", None)
    if shape is None or dtype is None:
        raise DescriptionError(f"key {name!r}: a Key, a shape or an array, not {type(key).__name__}")
    return {"shape": [int(extent) for extent in shape], "dtype": str(dtype).removeprefix("torch.")}


def _hyper(name: str, value: object) -> float | dict[str, Any]:
    """A hyper-parameter as plain data. Raises DescriptionError."""
    found = _encoded(value, f"hyper.{name}", _HYPER)
    if isinstance(found, int | float | dict):
        return found
    raise DescriptionError(f"hyper.{name}: {_HYPER}, not {value!r}")


def _encoded(value: object, where: str, form: str = _DATA) -> Any:
    """The value as plain data. Raises DescriptionError, which `where` begins, for what is none."""
    try:
        return msgspec.to_builtins(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise DescriptionError(f"{where}: {form}, not {type(value).__name__} ({error})") from None


def _plain(value: object) -> object:
    """NumPy's number as Python's, and a schedule of `weft.linear` and the like as its document. Raises TypeError."""
    if isinstance(value, np.bool_):
        return bool(value)
    for scalar, plain in ((np.integer, int), (np.floating, float), (str, str)):
        if isinstance(value, scalar):
            return plain(value)
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(exclude_none=True)
    raise TypeError(f"{type(value).__name__} is no plain data")


# --- Descriptions in files: TOML or JSON, in the short form or whole --------------------------------------------------


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
