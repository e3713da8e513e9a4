"""What users write, in Python or in a file, and how it becomes a `StoreDescription`."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import msgspec
import numpy as np

from weft_graph.ir import GIVEN
from weft_graph.program import Update
from weft_graph.rules.built_in import BUILT_IN
from weft_graph.spelling import did_you_mean
from weft_kvstore.description.check import NO_SHARDS, DescriptionError, check_description, compiled_once, field_first
from weft_kvstore.description.records import (
    MAX_SLOTS,
    AverageDescription,
    CommitDescription,
    CompressionDescription,
    DType,
    EvictionDescription,
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    Kind,
    LossScaling,
    Merge,
    Mode,
    Sparse,
    StoreCompression,
    StoreDescription,
    descriptions,
)
from weft_kvstore.settings import check_endpoint
from weft_kvstore.structs import documents

# --- Names of keys: a string is its own name in the store, the number 5 is "#5" there ---------------------------------


UserKey: TypeAlias = str | int
"""A string, or a number from 0 to 2**64 - 1, which is a key of its own: 5 and "5" are two keys."""

NUMBER_MARK: Final = "#"
"""Begins the names that are no user's strings: of numbers, and of the store's own key."""

BARRIER_KEY: Final = "#barrier"
"""The key of the barrier."""

LARGEST: Final = (1 << 64) - 1


def store_name(key: object) -> str:
    """The store's name of a user's key. Raises ValueError for what is no key."""
    if isinstance(key, str):
        if not key:
            raise ValueError("key '': a key has at least one character")
        if key.startswith(NUMBER_MARK):
            raise ValueError(
                f"key {key!r}: a string must not begin with {NUMBER_MARK!r}; a number is given as such, without quotes"
            )
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not 0 <= int(key) <= LARGEST:
            raise ValueError(f"key {key}: a number from 0 to 2**64 - 1")
        return f"{NUMBER_MARK}{int(key)}"
    raise ValueError(f"key {key!r}: a string or a number, not {type(key).__name__}")


def user_key(name: str) -> UserKey:
    """What the user calls the key of that name."""
    number = name.removeprefix(NUMBER_MARK)
    return int(number) if name != number and number.isdecimal() else name


# --- What users write: keys, and a document of them -------------------------------------------------------------------


SLICE_BYTES: Final = 1 << 17
"""Of a slice, by default."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of `describe`. Only the shape is required: `Key((784, 10))`; all but shape and dtype are given by name.

    `initializer`: "given" (the default), if a worker sets the first value with `KVStore.init`; or what shards make: a
    number for all elements, `{"uniform": [low, high]}`, `{"normal": [mean, standard deviation]}`, or an ONNX
    initializer as `{"op_type", "attributes"}`. `update`: "rule" (the default); "mean" over the slots that pushed; or
    "gradient": the value is the merged gradient of the last step, and workers update. `priority`: 0 is the most urgent;
    by default the key's position in the list. `slots`: those that push the key; by default all. `rows`: a table, pushed
    and pulled by rows. `whole`: never divided over shards; by default as the rule needs it. `multipliers` of
    hyper-parameters for this key. `compression` and `staleness` replace the store's. `multi_precision` of float16:
    shards keep the key in float32, while users' arrays and messages are float16; of bfloat16 it is always so.

    Only of tables: with `growth`, and a shape that begins with 0, rows are created for any 64-bit id; `rule` and
    `hyper` replace the store's; `sparse`: whether the rule skips rows that a step does not touch ("lazy"), or treats
    their gradient as zeros ("standard")."""

    shape: Sequence[int]
    dtype: str = "float32"
    _: KW_ONLY
    initializer: float | str | Mapping[str, Any] = "given"
    update: Update | str | None = None
    priority: int | None = None
    slots: Sequence[int] | None = None
    rows: bool = False
    whole: bool | None = None
    multipliers: Mapping[str, float] | None = None
    growth: GrowthDescription | Mapping[str, Any] | None = None
    rule: str | Mapping[str, Any] | None = None
    hyper: Mapping[str, float | Mapping[str, Any]] | None = None
    sparse: Sparse | str = Sparse.LAZY
    compression: StoreCompression | Mapping[str, Any] | None = None
    staleness: int | None = None
    multi_precision: bool | None = None


SHOWN_CHARACTERS: Final = 40
"""Of a wrong value."""

_ZERO: Final = {"op_type": "ConstantOfShape", "attributes": {"value": 0.0}}

_DRAWS: Final = {"uniform": ("RandomUniform", ("low", "high")), "normal": ("RandomNormal", ("mean", "scale"))}
"""Short names of initializers, and the attributes that their two numbers are."""

_HALF_KINDS: Final = {"float16": "fp16", "bfloat16": "bf16"}

_WORDS: Final = {
    **{"kind": Kind, "mode": Mode, "merge": Merge, "update": Update, "sparse": Sparse},
    "dtype": ("bfloat16", *get_args(DType)),
}
"""Fields that are one of some words."""

_PARTS: Final = {
    "initializer": InitializerDescription,
    "growth": GrowthDescription,
    "eviction": EvictionDescription,
    "commit": CommitDescription,
    "loss_scaling": LossScaling,
    "average": AverageDescription,
    "compression": StoreCompression,
    "gradients": CompressionDescription,
    "merged": CompressionDescription,
    "weights": CompressionDescription,
}
"""Fields that are mappings, and what their fields are of."""


def description_of(document: Mapping[str, Any]) -> StoreDescription:
    """The description of a document: the arguments of `describe`, with `hyper` and a list of keys, each with its name
    as `key`. Raises DescriptionError, which names the field."""
    filled = {**_DEFAULTS, **document, "term": 1}
    barrier, rule, slots, keys = filled.pop("barrier"), filled["rule"], filled["slots"], filled.get("keys")
    if not isinstance(barrier, bool):
        raise DescriptionError(f"barrier: expected true or false, got {barrier!r}")
    filled["rule"] = "sgd" if rule is None else rule
    every = tuple(range(slots)) if isinstance(slots, int) and slots <= MAX_SLOTS else ()
    try:
        whole = isinstance(rule, str | Mapping) and compiled_once(rule).whole
    except ValueError as error:
        raise DescriptionError(str(error)) from None
    if keys == []:
        raise DescriptionError("keys: none; a store has at least one")
    if isinstance(keys, list):
        filled["keys"] = [
            _key_document(key, number, every, whole=whole) if isinstance(key, Mapping) else key
            for number, key in enumerate(keys)
        ]
        if barrier and filled["commit"] is None:
            of_barrier = {"key": BARRIER_KEY, "dtype": "float32", "shape": (), "initializer": _ZERO, "update": "mean"}
            filled["keys"].append({**of_barrier, "priority": 0, "slots": every})
    description = _record(filled)
    for problem in _problems(description, needs_rule=rule is None):
        raise DescriptionError(problem)
    check_description(description)
    return description


def _record(document: Mapping[str, Any]) -> StoreDescription:
    """The record of a whole description. Raises DescriptionError, which names the field and the words and fields that
    may have been meant."""
    try:
        return descriptions.from_builtins(document)
    except msgspec.ValidationError as invalid:
        error = field_first(str(invalid))
    field, _, what = error.partition(": ")
    last = field.rpartition(".")[2]
    if what.startswith("invalid enum value") and last in _WORDS:
        error = f"{field}: {what.removeprefix('invalid enum value ')} is none of {', '.join(_WORDS[last])}"
    elif what.startswith("object contains unknown field"):
        if last == "description":
            known = [*_DEFAULTS, "keys"]
        elif last in _PARTS:
            known = list(_PARTS[last].__struct_fields__)
        else:
            known = ["key", *(of_key.name for of_key in dataclasses.fields(Key))]
        name = what.split("`")[1]
        if name == "lr":
            error += "; it is said as hyper = { lr = ... }"
        else:
            error += did_you_mean(name, known) or f"; known are {', '.join(known)}"
    elif field == "keys" and what.endswith("got `mapping`"):
        error = 'keys: a list is expected: in TOML [[keys]] and below it key = "...", for each'
    elif last == "compression" and what.startswith("expected"):
        error += ': as in { gradients = { kind = "2bit", threshold = 0.5 } }'
    elif what.startswith("expected") and "got" not in what:
        error += _not_given(document, field)
    raise DescriptionError(error)


def _not_given(document: Any, field: str) -> str:
    """What a document has instead, where it is short."""
    for name in re.findall(r"\w+", field):
        document = document[int(name)] if name.isdecimal() else document.get(name)
    return f", not {document!r}" if len(repr(document)) <= SHOWN_CHARACTERS else ""


def _problems(description: StoreDescription, *, needs_rule: bool) -> Iterator[str]:
    """What is wrong with it, beyond `check_description`: settings without effect, or without a rule."""
    shards = description.shards
    for number, endpoint in enumerate(shards):
        try:
            check_endpoint(endpoint, least_port=0)
        except ValueError as error:
            yield f"shards[{number}]: {error}"
        if endpoint in shards[:number] and not endpoint.endswith(":0"):
            yield f"shards[{number}]: {endpoint} is shard {shards.index(endpoint)} already"
    keys = user_keys(description)
    checked: list[tuple[str, StoreDescription | KeyDescription, list[KeyDescription]]] = [("", description, keys)]
    checked += [(f"key {user_key(key.key)!r}: ", key, [key]) for key in keys]
    for where, one, some in checked:
        if one.staleness and description.mode is not Mode.STALE:
            yield f"{where}staleness: it bounds mode 'stale' alone, not {description.mode.value!r}"
        for name, update in {"merged": Update.GRADIENT, "weights": Update.RULE}.items():
            travels = any(key.update is update for key in some)
            if some and not travels and getattr(one.compression, name, None) is not None:
                yield f"{where}compression.{name}: it is for keys with update {update.value!r}, and there is none"
    for key in keys:
        if key.rows and key.growth is None and key.shape[:1] == (0,):
            none = "shape: a table without rows, and none can come: with growth = {} they do"
            yield f"key {user_key(key.key)!r}: {none}"
        if needs_rule and key.update is Update.RULE and key.rule is None:
            yield (
                f"rule: missing, and key {user_key(key.key)!r} needs one. Name a rule ({', '.join(sorted(BUILT_IN))}), "
                'or give keys the update "gradient" (the sum of what was pushed, for workers that update) or "mean"'
            )


def _key_document(key: Mapping[str, Any], number: int, slots: Sequence[int], *, whole: bool) -> dict[str, Any]:
    """The key with its defaults, as a document of `KeyDescription`. `whole`: whether the store's rule needs keys
    whole."""
    where = f"keys[{number}]"
    given = {name: value for name, value in key.items() if value is not None}
    multi_precision, dtype = given.pop("multi_precision", None), given.get("dtype", "float32")
    update = given.get("update", "rule")
    is_asked = multi_precision is not None and multi_precision is not False
    if is_asked and (multi_precision is not True or str(dtype) not in _HALF_KINDS):
        raise DescriptionError(f"{where}.multi_precision: it is for float16 and bfloat16, not {dtype}")
    if multi_precision is False and dtype == "bfloat16":
        raise DescriptionError(f"{where}.multi_precision: shards always keep a bfloat16 key in float32; leave it out")
    filled = {
        "dtype": dtype,
        "update": update,
        "priority": number,
        "slots": slots,
        "whole": whole and update == "rule" and not given.get("rows"),
        **given,
        "initializer": _initializer(given.get("initializer", "given"), update, f"{where}.initializer"),
    }
    if "key" in given:
        try:
            filled["key"] = store_name(given["key"])
        except ValueError as error:
            raise DescriptionError(f"{where}.key: {error}") from None
    if multi_precision or dtype == "bfloat16":
        # Rounding leaves nothing out that a user with 16 bits had.
        codec = {"kind": _HALF_KINDS[dtype], "residual": False}
        pulled = {"rule": {"weights": codec}, "gradient": {"merged": codec}}.get(str(update), {})
        halves = {"gradients": codec, **pulled, "least_bytes": 0}
        filled |= {"dtype": "float32", "half": dtype, "compression": given.get("compression", halves)}
    return filled


def _initializer(value: object, update: object, where: str) -> Mapping[str, Any]:
    """The initializer of a key with that update. Raises DescriptionError, which begins with `where`."""
    if update == "gradient":
        return _ZERO
    if value == "given":
        return {"op_type": GIVEN, "attributes": {}}
    if isinstance(value, Mapping) and "op_type" in value:
        return value
    if isinstance(value, Mapping):
        kind, numbers = next(iter(value.items()), ("nothing", None))
        if len(value) != 1 or kind not in _DRAWS or not isinstance(numbers, list | tuple) or len(numbers) != 2:
            raise DescriptionError(f"{where}: {{uniform = [low, high]}} or {{normal = [mean, deviation]}}, not {value}")
        op_type, names = _DRAWS[kind]
        return {"op_type": op_type, "attributes": dict(zip(names, numbers, strict=True))}
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DescriptionError(f'{where}: expected "given", a number, or {{ normal = [0.0, 0.05] }}, got {value!r}')
    return {"op_type": "ConstantOfShape", "attributes": {"value": value}}


def user_keys(description: StoreDescription) -> list[KeyDescription]:
    """The user's keys, without the store's own."""
    return [key for key in description.keys if key.key != BARRIER_KEY]


# --- `describe`: a store's description in one Python call -------------------------------------------------------------


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

    `rule` may be left out only where no key is updated by one. `mode`: "sync", "async" or "stale"; then `staleness` is
    how many steps a slot may be ahead of the slowest. `curve_keys`: the shards' public CURVE keys by number, as
    `python -m weft_kvstore --new-curve-keys` says them; links are encrypted then. `barrier`: whether slots can meet, by
    a key of the store's own; not needed where steps are committed. The rest: see `StoreDescription`.

        describe({"weight": Key(shape=(784, 10), initializer={"normal": [0, 0.05]}), "bias": (10,)},
                 shards=["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"], slots=2, rule="adam", lr=0.001)

    Raises DescriptionError, which names the field.
    """
    settings = {name: value for name, value in locals().items() if name not in {"keys", "hyper"}}
    if not isinstance(keys, Mapping):
        detail = f'{{"w": Key(shape=(3,))}}, not {type(keys).__name__}'
        raise DescriptionError(f"keys: a mapping from each key's name to what it is, as {detail}")
    numbers = {name: _plain_data(value, f"hyper.{name}", _HYPER) for name, value in hyper.items()}
    for name, number in numbers.items():
        if not isinstance(number, int | float | dict):
            raise DescriptionError(f"hyper.{name}: {_HYPER}, not {number!r}")
    document = {name: _plain_data(value, name) for name, value in settings.items()}
    named = [
        {"key": _plain_data(name, "keys", "a string or a number"), **_key_fields(name, key)}
        for name, key in keys.items()
    ]
    return description_of({**document, "hyper": numbers, "keys": named})


_DEFAULTS: Final = {
    name: argument.default
    for name, argument in signature(describe).parameters.items()
    if argument.default is not Parameter.empty
} | {"hyper": {}}
"""Fields of a description that may be left out."""


def _key_fields(name: UserKey, key: object) -> dict[str, Any]:
    """The key's fields, those that were not given left out."""
    if isinstance(key, tuple | list):
        key = Key(key)
    elif hasattr(key, "shape") and hasattr(key, "dtype") and not isinstance(key, Key):
        key = Key([int(extent) for extent in key.shape], str(key.dtype).removeprefix("torch."))
    if not isinstance(key, Key):
        raise DescriptionError(f"key {name!r}: a Key, a shape or an array, not {type(key).__name__}")
    names = [field.name for field in dataclasses.fields(key)]
    return {field: _plain_data(getattr(key, field), f"key {name!r}: {field}") for field in names}


def _plain_data(value: object, where: str, form: str = "numbers, strings, lists and mappings") -> Any:
    """The value as plain data; bytes stay bytes, which no field is. Raises DescriptionError, beginning with `where`."""
    try:
        return msgspec.to_builtins(value, enc_hook=_plain_value, builtin_types=(bytes, bytearray, memoryview))
    except (TypeError, ValueError, RecursionError) as error:
        raise DescriptionError(f"{where}: {form}, not {type(value).__name__} ({error})") from None


def _plain_value(value: object) -> object:
    """NumPy's number as Python's, and a schedule of `weft.linear` and the like as its document. Raises TypeError."""
    if isinstance(value, np.longdouble):
        return float(value)
    if isinstance(value, np.generic):
        return value.item()
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(exclude_none=True)
    remedy = "; its .document is" if hasattr(value, "document") else ""
    raise TypeError(f"{type(value).__name__} is not plain data{remedy}")


# --- Descriptions in files: TOML or JSON, as a user writes it or whole ------------------------------------------------


def read_description(path: str | os.PathLike[str]) -> StoreDescription:
    """The store's description in a file, .toml or .json: the arguments of `describe`, with `hyper` and a list of keys;
    or whole, as msgspec writes a `StoreDescription`, which has a field `term`.

    Raises OSError, and DescriptionError, which names the file and the field, for what is no description.
    """
    file = Path(path)
    try:
        document = _document(file)
        if "term" not in document:
            return description_of(document)
        description = _record(document)
        check_description(description)
    except DescriptionError as error:
        raise DescriptionError(f"{file}: {error}") from None
    return description


def placed_description(path: Path) -> StoreDescription:
    """The description in a file, as shards can serve it. Raises OSError, and DescriptionError, which says where."""
    description = read_description(path)
    if not description.shards:
        raise DescriptionError(f"{path}: {NO_SHARDS}")
    return description


def _document(file: Path) -> Mapping[str, Any]:
    if file.suffix not in {".toml", ".json"}:
        raise DescriptionError("a description is a .toml or a .json file")
    if file.exists() and not file.is_file():  # A pipe would have to be written first, by nobody.
        raise DescriptionError("not a regular file")
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text) if file.suffix == ".toml" else documents.from_json(text)
    except (ValueError, RecursionError) as error:  # Those of both readers, and of decoding, are ValueErrors.
        raise DescriptionError(f"no {file.suffix[1:].upper()}: {error or 'too deep'}") from None
    if not isinstance(document, dict):
        raise DescriptionError(f"an object with keys and a rule is expected, not {type(document).__name__}")
    return document
