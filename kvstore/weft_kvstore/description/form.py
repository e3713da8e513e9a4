"""A description as a user writes it, in Python or in a file, and the records that it becomes."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from weft_graph.ir import GIVEN
from weft_graph.program import Update
from weft_graph.rules.built_in import BUILT_IN
from weft_kvstore.compression.description import CompressionDescription, Kind, StoreCompression
from weft_kvstore.description.check import DescriptionError, check_description, check_port, compiled_once, field_first
from weft_kvstore.description.records import (
    AtLeast0,
    AverageDescription,
    CommitDescription,
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    Merge,
    Mode,
    Multipliers,
    Priority,
    Shape,
    SliceBytes,
    Slots,
    Sparse,
    StoreDescription,
    description_from_json,
)
from weft_kvstore.structs import Reader

# --- What a user calls a key, and what the store calls it: strings stay as they are, the number 5 is "#5" -------------


UserKey: TypeAlias = str | int
"""A string, or a number from 0 to 2**64 - 1, which is a key of its own: 5 and "5" are two keys."""

MARK: Final = "#"
"""What names that are no user's strings begin with: those of numbers, and those of the store itself."""

BARRIER_KEY: Final = "#barrier"
"""The key by which slots meet."""

LARGEST: Final = (1 << 64) - 1


def store_name(key: object) -> str:
    """The store's name of a user's key. Raises ValueError for what is no key."""
    if isinstance(key, str):
        if not key:
            raise ValueError("key '': a key has at least one character")
        if key.startswith(MARK):
            raise ValueError(f"key {key!r}: {MARK!r} begins the names of numbers; the key 5 is the number 5 itself")
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not 0 <= int(key) <= LARGEST:
            raise ValueError(f"key {key}: a number from 0 to 2**64 - 1")
        return f"{MARK}{int(key)}"
    raise ValueError(f"key {key!r}: a string or a number, not {type(key).__name__}")


def user_key(name: str) -> UserKey:
    """What the user calls the key of that name."""
    number = name.removeprefix(MARK)
    return int(number) if name != number and number.isdecimal() else name


# --- The short form of a store's description, as people write it ------------------------------------------------------


SLICE_BYTES: Final = 1 << 17
"""Of a slice, by default."""

Endpoint = Annotated[str, Meta(pattern=r"^(tcp://[^\s/]+:\d{1,5}|ipc://\S+)$")]


class _Shaped(msgspec.Struct, frozen=True):
    """What a key may say without a name, as NumPy's `zeros` takes it."""

    shape: Shape
    dtype: str = "float32"


class Key(_Shaped, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key of the short form. Only the shape is needed: `Key((784, 10))`; shape and dtype need no name, all else does.

    `initializer`: a number for all elements, `{"uniform": [low, high]}` or `{"normal": [mean, standard deviation]}`,
    made by the shards; or "given", if left out: then a worker says it, by `KVStore.init`. ONNX's words do as well:
    `{"op_type", "attributes"}`. `update`: "rule"; "mean" over the slots that pushed; or "gradient", where the value is
    the merged gradient of the last step and workers do the rest. `priority`: 0 is the most urgent; the key's number
    in the list if left out. `slots`: those that push it; all if left out. `rows`: a table, pushed and pulled by
    rows. `whole`: never cut over shards; follows from the rule if left out. `multipliers` of hyper-parameters, for
    this key alone. `compression` and `staleness` stand before the store's. `multi_precision`, of float16: shards keep
    the key in float32, and gradients and values travel, and are the user's, in float16; of bfloat16 it is always so.

    Of tables alone: `growth`, with a shape that begins with 0, has rows come by any 64-bit id; `rule` and `hyper` stand
    before the store's; `sparse` says whether the rule passes by rows that a step does not touch ("lazy"), or does to
    them what a gradient of zeros would ("standard").
    """

    initializer: float | str | dict[str, Any] = "given"
    update: Update | None = None
    priority: Priority | None = None
    slots: tuple[int, ...] | None = None
    rows: bool = False
    whole: bool | None = None
    multipliers: Multipliers = {}
    growth: GrowthDescription | None = None
    rule: str | dict[str, Any] | None = None
    hyper: dict[str, float | dict[str, Any]] | None = None
    sparse: Sparse = Sparse.LAZY
    compression: StoreCompression | None = None
    staleness: AtLeast0 | None = None
    multi_precision: bool | None = None


class NamedKey(Key, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key in the list of a form: `key` is a string, or a number that is a key of its own."""

    key: UserKey


class DescriptionForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The short form of `StoreDescription`. `rule` may be left out only where no key is updated by one.

    `shards`: their endpoints by number; none is a store for one process. `curve_keys`: the shards' public CURVE keys by
    number, as `python -m weft_kvstore --new-curve-keys` says them; links are encrypted then. `barrier`: whether slots
    can meet, by a key of the store's own; not needed where steps are committed. `staleness`: in mode "stale", how many
    steps a slot may be ahead of the slowest.
    """

    keys: list[NamedKey]
    shards: tuple[Endpoint, ...] = ()
    slots: Slots = 1
    rule: str | dict[str, Any] | None = None
    hyper: dict[str, float | dict[str, Any]] = {}
    mode: Mode = Mode.SYNC
    staleness: AtLeast0 = 0
    merge: Merge = Merge.SLOT
    job: str = "store"
    seed: int = 0
    slice_bytes: SliceBytes = SLICE_BYTES
    commit: CommitDescription | None = None
    average: AverageDescription | None = None
    compression: StoreCompression | None = None
    curve_keys: tuple[str, ...] = ()
    barrier: bool = True


_forms: Final[Reader[DescriptionForm]] = Reader(DescriptionForm)
_initializers: Final[Reader[InitializerDescription]] = Reader(InitializerDescription)
_documents: Final[Reader[Any]] = Reader(Any)

_DRAWS: Final = {"uniform": ("RandomUniform", ("low", "high")), "normal": ("RandomNormal", ("mean", "scale"))}
"""Short names of initializers, and the attributes that their two numbers are."""

_AS_HALVES: Final = {
    half: StoreCompression(gradients=codec, merged=codec, weights=codec, least_bytes=0)
    for half, codec in (
        ("float16", CompressionDescription(Kind.FP16, residual=False)),
        ("bfloat16", CompressionDescription(Kind.BF16, residual=False)),
    )
}
"""How keys travel whose users have 16 bits: rounding leaves nothing out that anybody had."""

_WORDS: Final = {"kind": Kind, "mode": Mode, "merge": Merge, "update": Update, "sparse": Sparse}
"""Fields that are one of some words."""


def described(document: Mapping[str, Any]) -> StoreDescription:
    """The description that a document of the short form means. Raises DescriptionError, which names the field."""
    try:
        form = _forms.from_builtins(document)
    except msgspec.ValidationError as error:
        raise DescriptionError(_with_hint(field_first(str(error)))) from None
    for problem in _problems(form):
        raise DescriptionError(problem)
    try:
        whole = form.rule is not None and compiled_once(form.rule).whole
    except ValueError as error:
        raise DescriptionError(str(error)) from None
    keys = [_key(key, number, form.slots, whole=whole) for number, key in enumerate(form.keys)]
    if form.barrier and form.commit is None:
        zero = InitializerDescription("ConstantOfShape", {"value": 0.0})
        keys.append(KeyDescription(BARRIER_KEY, "float32", (), zero, Update.MEAN, 0, tuple(range(form.slots))))
    same = {name: getattr(form, name) for name in StoreDescription.__struct_fields__ if hasattr(form, name)}
    description = StoreDescription(**{**same, "term": 1, "keys": tuple(keys), "rule": form.rule or "sgd"})
    check_unplaced(description)
    return description


def check_unplaced(description: StoreDescription) -> None:
    """`check_description`, of a store whose shards may have no endpoints yet. Raises DescriptionError."""
    check_description(description if description.shards else msgspec.structs.replace(description, shards=("local",)))


def _with_hint(error: str) -> str:
    """An error with the words that may have been meant."""
    field, _, what = error.partition(": ")
    words = _WORDS.get(field.rpartition(".")[2])
    if what.startswith("invalid enum value") and words is not None:
        return f"{error}, which is none of {', '.join(words)}"
    if field == "keys" and what.endswith("got `object`"):
        return 'keys: a list is expected: in TOML [[keys]] and below it key = "...", for each'
    return error


def _problems(form: DescriptionForm) -> Iterator[str]:
    """What a user cannot have meant."""
    for number, endpoint in enumerate(form.shards):
        check_port(endpoint, f"shards[{number}]")
        if endpoint in form.shards[:number] and not endpoint.endswith(":0"):
            yield f"shards[{number}]: {endpoint} is shard {form.shards.index(endpoint)} already"
    if form.curve_keys and not form.shards:
        yield "curve_keys: there are no shards that would have them"
    parts: list[tuple[str, DescriptionForm | NamedKey, list[NamedKey]]] = [("", form, form.keys)]
    parts += [(f"key {key.key!r}: ", key, [key]) for key in form.keys]
    for where, one, keys in parts:
        if one.staleness and form.mode is not Mode.STALE:
            yield f"{where}staleness: it bounds mode 'stale' alone, not {form.mode.value!r}"
        for name, update in {"merged": Update.GRADIENT, "weights": Update.RULE}.items():
            travels = any((key.update or Update.RULE) is update for key in keys)
            if keys and not travels and getattr(one.compression, name, None) is not None:
                yield f"{where}compression.{name}: it is for keys with update {update.value!r}, and there is none"
    for key in form.keys:
        if key.rows and key.growth is None and key.shape[:1] == (0,):
            yield f"key {key.key!r}: shape: a table without rows, and none can come: with growth = {{}} they do"
        if form.rule is None and key.update in {None, Update.RULE} and key.rule is None:
            yield (
                f"rule: missing, and key {key.key!r} needs one. Name a rule ({', '.join(sorted(BUILT_IN))}), or give "
                'keys the update "gradient" (the sum of what was pushed, for workers that update) or "mean"'
            )


def _key(key: NamedKey, number: int, slots: int, *, whole: bool) -> KeyDescription:
    """`whole`: whether the store's rule needs its keys whole."""
    where, update = f"keys[{number}]", key.update or Update.RULE
    try:
        name = store_name(key.key)
    except ValueError as error:
        raise DescriptionError(f"{where}.key: {error}") from None
    if key.multi_precision and key.dtype not in _AS_HALVES:
        raise DescriptionError(f"{where}.multi_precision: it is for float16 and bfloat16, not {key.dtype}")
    if key.multi_precision is False and key.dtype == "bfloat16":
        raise DescriptionError(f"{where}.multi_precision: shards always keep a bfloat16 key in float32; leave it out")
    half = key.dtype if key.dtype == "bfloat16" or key.multi_precision else None
    of_key: dict[str, Any] = {
        "key": name,
        "initializer": _initializer(key.initializer, update, f"{where}.initializer"),
        "update": update,
        "priority": number if key.priority is None else key.priority,
        "slots": tuple(range(slots)) if key.slots is None else key.slots,
        "whole": (whole and update is Update.RULE and not key.rows) if key.whole is None else key.whole,
        "half": half,
    }
    if half is not None:
        of_key |= {"dtype": "float32", "compression": key.compression or _AS_HALVES[half]}
    same = {name: getattr(key, name) for name in KeyDescription.__struct_fields__ if hasattr(key, name)}
    return KeyDescription(**{**same, **of_key})


def _initializer(value: float | str | dict[str, Any], update: Update, where: str) -> InitializerDescription:
    """How first values are made, of a key with that update. Raises DescriptionError, which `where` begins."""
    if update is Update.GRADIENT:
        return InitializerDescription("ConstantOfShape", {"value": 0.0})
    if value == "given":
        return InitializerDescription(GIVEN, {})
    if isinstance(value, str):
        raise DescriptionError(f'{where}: {value!r} is neither "given" nor a number, nor a table of numbers')
    if not isinstance(value, dict):
        return InitializerDescription("ConstantOfShape", {"value": _finite(value, where)})
    if "op_type" in value:
        try:
            return _initializers.from_builtins(value)
        except msgspec.ValidationError as error:
            raise DescriptionError(f"{where}: {error}") from None
    kind, numbers = next(iter(value.items()), ("nothing", None))
    if len(value) != 1 or kind not in _DRAWS or not isinstance(numbers, list | tuple) or len(numbers) != 2:
        raise DescriptionError(f"{where}: {{uniform = [low, high]}} or {{normal = [mean, deviation]}}, not {value}")
    op_type, names = _DRAWS[kind]
    return InitializerDescription(
        op_type, {name: _finite(one, where) for name, one in zip(names, numbers, strict=True)}
    )


def _finite(number: object, where: str) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise DescriptionError(f"{where}: a finite number, not {number!r}")
    return float(number)


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
    The rest: see `DescriptionForm`.

        describe({"weight": Key(shape=(784, 10), initializer={"normal": [0, 0.05]}), "bias": (10,)},
                 shards=["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"], slots=2, rule="adam", lr=0.001)

    Raises DescriptionError, which names the field.
    """
    settings = {name: value for name, value in locals().items() if name not in {"keys", "hyper"}}
    if not isinstance(keys, Mapping):
        told = f'{{"w": Key(shape=(3,))}}, not {type(keys).__name__}'
        raise DescriptionError(f"keys: a mapping from each key's name to what it is, as {told}")
    numbers = {name: _encoded(value, f"hyper.{name}", _HYPER) for name, value in hyper.items()}
    for name, number in numbers.items():
        if not isinstance(number, int | float | dict):
            raise DescriptionError(f"hyper.{name}: {_HYPER}, not {number!r}")
    document = {name: _encoded(value, name) for name, value in settings.items()}
    named = []
    for number, (key, form) in enumerate(keys.items()):
        try:
            store_name(key)
        except ValueError as error:
            raise DescriptionError(f"keys[{number}].key: {error}") from None
        named.append({"key": _encoded(key, "keys"), **_fields(key, form)})
    return described({**document, "hyper": numbers, "keys": named})


def _fields(name: UserKey, key: object) -> dict[str, Any]:
    """The key's fields, those that were not given left out."""
    if isinstance(key, Key):
        fields = {field: getattr(key, field) for field in key.__struct_fields__}
    elif isinstance(key, tuple | list):
        fields = {"shape": key}
    elif hasattr(key, "shape") and hasattr(key, "dtype"):
        return {"shape": [int(extent) for extent in key.shape], "dtype": str(key.dtype).removeprefix("torch.")}
    else:
        raise DescriptionError(f"key {name!r}: a Key, a shape or an array, not {type(key).__name__}")
    return {field: _encoded(value, f"key {name!r}: {field}") for field, value in fields.items()}


def _encoded(value: object, where: str, form: str = "numbers, strings, lists and mappings") -> Any:
    """The value as plain data; bytes stay bytes, which no field is. Raises DescriptionError, which `where` begins."""
    try:
        return msgspec.to_builtins(value, enc_hook=_plain, builtin_types=(bytes, bytearray, memoryview))
    except (TypeError, ValueError, RecursionError) as error:
        raise DescriptionError(f"{where}: {form}, not {type(value).__name__} ({error})") from None


def _plain(value: object) -> object:
    """NumPy's number as Python's, and a schedule of `weft.linear` and the like as its document. Raises TypeError."""
    if isinstance(value, np.longdouble):
        return float(value)
    if isinstance(value, np.generic):
        return value.item()
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(exclude_none=True)
    raise TypeError(f"{type(value).__name__} is no plain data")


# --- Descriptions in files: TOML or JSON, in the short form or whole --------------------------------------------------


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
    except (msgspec.ValidationError, DescriptionError) as error:
        raise DescriptionError(f"{file}: {error}") from None
    return description


def placed_description(path: Path) -> StoreDescription:
    """The description in a file, as shards can serve it. Raises OSError, and DescriptionError, which says where."""
    description = read_description(path)
    if not description.shards:
        example = 'shards = ["tcp://127.0.0.1:5555"]'
        raise DescriptionError(f"{path}: shards: none; a store of processes has an endpoint for each, as in {example}")
    return description


def _document(file: Path) -> Mapping[str, Any]:
    if file.suffix not in {".toml", ".json"}:
        raise DescriptionError("a description is a .toml or a .json file")
    if file.exists() and not file.is_file():  # A pipe would have to be written first, by nobody.
        raise DescriptionError("it is no regular file")
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text) if file.suffix == ".toml" else _documents.from_json(text)
    except (ValueError, RecursionError) as error:  # Those of both readers, and of decoding, are ValueErrors.
        raise DescriptionError(f"no {file.suffix[1:].upper()}: {error or 'too deep'}") from None
    if not isinstance(document, dict):
        raise DescriptionError(f"an object with keys and a rule is expected, not {type(document).__name__}")
    return document
