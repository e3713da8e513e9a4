"""What a store may be: written in Python or in a file, read, and refused by field."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

import weft
from rule_documents import rule_document
from store_cluster import constant, key_of, store_of
from weft.api.compression import CompressionSpec, StoreCompressionSpec
from weft.api.job import Merge as ApiMerge
from weft.api.store import (
    AverageSpec,
    CommitSpec,
    EvictionSpec,
    GrowthSpec,
    InitializerSpec,
    KeySpec,
    LossScalingSpec,
    StoreSpec,
)
from weft_graph.program import Update
from weft_kernels.rules.compiled import compiled
from weft_kernels.rules.record import Rule
from weft_kvstore import DescriptionError, Key, KVStore, describe, read_description
from weft_kvstore.description.check import MAX_SLICES, check_description, digest
from weft_kvstore.description.records import (
    AverageDescription,
    CommitDescription,
    CompressionDescription,
    EvictionDescription,
    GrowthDescription,
    InitializerDescription,
    KeyDescription,
    LossScaling,
    Merge,
    Mode,
    StoreCompression,
    StoreDescription,
)
from weft_kvstore.serving.holdings import holdings

TOML = """
slots = 2
shards = ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"]
rule = "adam"
hyper = { lr = { schedule = "linear", start = 0.1, steps = 100 } }

[[keys]]
key = "weight"
shape = [784, 10]
initializer = { normal = [0.0, 0.05] }

[[keys]]
key = 5
shape = []
dtype = "float64"
initializer = 1

[[keys]]
key = "embedding"
shape = [1000, 16]
rows = true
initializer = { op_type = "RandomUniform", attributes = { low = -0.1, high = 0.1 } }
slots = [1]
"""


def written(tmp_path: Path, text: str, name: str = "store.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_and_a_call_describe_the_same(tmp_path: Path) -> None:
    draw = {"op_type": "RandomUniform", "attributes": {"low": -0.1, "high": 0.1}}
    built = describe(
        {
            "weight": Key(shape=(784, 10), initializer={"normal": [np.float64(0), np.float32(0.05).item()]}),
            5: Key(shape=(), dtype="float64", initializer=1),
            "embedding": Key(shape=(1000, 16), rows=True, initializer=draw, slots=(1,)),
        },
        shards=["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"],
        slots=2,
        rule="adam",
        lr={"schedule": "linear", "start": 0.1, "steps": 100},
    )
    text = TOML.replace("0.05", repr(np.float32(0.05).item()))
    assert read_description(written(tmp_path, text)) == built
    weight, five, embedding, barrier = built.keys
    assert weight.initializer.op_type == "RandomNormal"
    assert (weight.priority, five.key, five.shape, embedding.slots) == (0, "#5", (), (1,))
    assert (barrier.key, barrier.update) == ("#barrier", Update.MEAN)


def test_a_whole_description_is_read_as_it_is(tmp_path: Path) -> None:
    description = store_of([constant(key_of("w", (3,), 2), 1.0)], slots=2, shards=2)
    path = written(tmp_path, msgspec.json.encode(description).decode(), "store.json")
    assert read_description(path) == description
    again = describe({"w": (3,)}, rule="sgd")
    assert read_description(written(tmp_path, msgspec.json.encode(again).decode(), "again.json")) == again


def test_arrays_say_shape_and_type_and_their_values_are_given() -> None:
    keys = describe({"w": np.zeros((3, 2), np.float64), "b": [4], "s": np.float32(1)}, rule="sgd").keys
    given = InitializerDescription("Given", {})
    assert keys[0] == KeyDescription("w", "float64", (3, 2), given, Update.RULE, 0, (0,))
    assert [key.shape for key in keys[1:3]] == [(4,), ()]


def test_a_rule_that_needs_its_keys_whole_gets_them_whole() -> None:
    """Its weight is that less the largest of the gradient: all of the key is needed for each element."""
    nodes = [("ReduceMax", "largest", ("gradient",)), ("Sub", "moved", ("weight", "largest"))]
    rule = rule_document(nodes, {"weight": "moved"}, dtype="float32", attributes={"largest": {"keepdims": 0}})
    description = describe({"w": (3,), "n": Key(shape=(2,), update="mean")}, rule=rule)
    assert [key.whole for key in description.keys] == [True, False, False]


KEY = {"key": "w", "shape": [3]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rule": None}, r"^FILE: rule: missing, and key 'w' needs one. Name a rule \(ada.*sgd"),
        ({"rule": "p3"}, "^FILE: rule: 'p3' is none of ada"),
        ({"rule": "Adam"}, "^FILE: rule: 'Adam' is none of ada.*; did you mean 'adam'\\?"),
        ({"rule": 3}, "^FILE: rule: expected `str | object | null`, got `int`"),
        ({"mode": "dist_async"}, "^FILE: mode: 'dist_async' is none of sync, async, stale"),
        ({"commit": {"clip": 1.0}}, "^FILE: commit: .*unknown field `clip`; did you mean 'clip_norm'\\?"),
        (
            {"commit": {"loss_scaling": {"growth": 1}}},
            "commit.loss_scaling: .*unknown field `growth`; did you mean 'growth_interval'\\?",
        ),
        ({"average": {"dekay": 0.9}}, "^FILE: average: object contains unknown field `dekay`"),
        (
            {"compression": {"gradients": {"kind": "3bit"}}},
            "gradients.kind: '3bit' is none of bf16, fp16, 2bit, topk",
        ),
        ({"compression": {"merged": {"kind": "bf16"}}}, "compression.merged: it is for keys with update 'gradient'"),
        ({"keys": [{**KEY, "compression": {"merged": {"kind": "bf16"}}}]}, "key 'w': compression.merged: it is for"),
        ({"keys": [{**KEY, "rows": True, "shape": [0, 4]}]}, "key 'w': shape: a table without rows, and none can come"),
        ({"slotz": 2}, "^FILE: description: object contains unknown field `slotz`; did you mean 'slots'\\?"),
        ({"slots": "2"}, "^FILE: slots: expected `int`, got `str`"),
        ({"barrier": 1}, "^FILE: barrier: expected true or false, got 1"),
        (
            {"keys": [{**KEY, "multi_precision": True}]},
            r"keys\[0\].multi_precision: it is for float16 and bfloat16",
        ),
        ({"keys": [{**KEY, "multi_precision": {}}]}, r"keys\[0\].multi_precision: it is for float16 and bfloat16"),
        ({"keys": [{**KEY, "multi_precision": True, "dtype": []}]}, r"keys\[0\].multi_precision: it is for float16"),
        ({"keys": [{**KEY, "dtype": "bfloat16", "update": []}]}, r"keys\[0\].update: expected `str`"),
        ({"keys": [{**KEY, "rows": True, "shape": [], "growth": {}}]}, "key 'w': a scalar is no table"),
        ({"slots": 0}, "^FILE: slots: expected `int` >= 1, not 0$"),
        ({"shards": ["127.0.0.1:5555"]}, r"shards\[0\]: expected tcp://HOST:PORT, .* or ipc://PATH, got '127"),
        ({"shards": ["tcp://a:1", "tcp://a:1"]}, r"shards\[1\]: tcp://a:1 is shard 0 already"),
        ({"rule": "no"}, "rule: .*no.* is none of ada"),
        (
            {"hyper": {"eta": 0.1}},
            "hyper: rule 'sgd' has no 'eta'; it has lr, weight_decay, rescale_grad, clip_gradient",
        ),
        ({"hyper": {"momentum": 0.9}}, "rule 'sgd' has no 'momentum'; it has lr, .*; lars, .*momentum.* have it"),
        ({"hyper": {"lr": {"schedule": "sine"}}}, "hyper: 'lr': schedule: "),
        (
            {"hyper": {"lr": {"type": "linear"}}},
            "'lr': schedule: the document: field 'schedule' is missing: one of c",
        ),
        ({"keys": {"w": {"shape": [3]}}}, r"keys: a list is expected: in TOML \[\[keys\]\]"),
        ({"keys": None}, "keys: expected `list`, got `null`"),
        ({"keys": [{"key": "w"}]}, r"keys\[0\]: object missing required field `shape`"),
        ({"keys": [KEY, {**KEY, "shape": [1.5]}]}, r"keys\[1\].shape\[0\]: expected `int`, got `float`"),
        ({"keys": [{**KEY, "shap": 1}]}, r"keys\[0\]: object contains unknown field `shap`; did you mean 'shape'\?"),
        ({"keys": [{**KEY, "row": True}]}, r"keys\[0\]: object contains unknown field `row`; did you mean 'rows'\?"),
        ({"keys": [{**KEY, "zzz": 1}]}, r"keys\[0\]: .*`zzz`; known are key, shape, dtype, .*multi_precision$"),
        (
            {"keys": [{**KEY, "compression": {"gradients": {"kind": "topk", "rate": 0.1}}}]},
            r"keys\[0\].compression.gradients: .*unknown field `rate`; did you mean 'ratio'\?",
        ),
        ({"lr": 0.1}, "unknown field `lr`; it is said as hyper = { lr = ... }"),
        (
            {"keys": [{**KEY, "compression": "2bit"}]},
            r"keys\[0\].compression: .*: as in { gradients = { kind = \"2bit\"",
        ),
        ({"keys": [KEY, KEY]}, "keys: 'w' is there twice"),
        ({"keys": [{**KEY, "key": -1}]}, r"keys\[0\].key: key -1: a number from 0 to 2\*\*64 - 1"),
        ({"keys": [{**KEY, "key": "#1"}]}, r"keys\[0\].key: key '#1': a string must not begin with '#'"),
        ({"keys": [{**KEY, "key": "#barrier"}]}, r"keys\[0\].key: key '#barrier'"),
        ({"keys": [{**KEY, "key": ""}]}, r"keys\[0\].key: key '': a key has at least one character"),
        ({"keys": [{**KEY, "dtype": "bfloat8"}]}, r"keys\[0\].dtype: 'bfloat8' is none of bfloat16, float16, float32"),
        ({"keys": [KEY, {**KEY, "key": "v", "dtype": "complex64"}]}, r"keys\[1\].dtype: 'complex64' is none of bf"),
        ({"keys": [{**KEY, "shape": [-3]}]}, r"keys\[0\].shape\[0\]: expected `int` >= 0"),
        (
            {"keys": [{**KEY, "update": "sum"}]},
            r"keys\[0\].update: .*'sum' is none of rule, mean, gradient",
        ),
        (
            {"keys": [{**KEY, "initializer": "zeros"}]},
            r"keys\[0\].initializer: expected \"given\", a number, .*got 'zeros'",
        ),
        (
            {"keys": [{**KEY, "initializer": {"normal": [0, -1]}}]},
            "key 'w': initializer: the deviation of normal is at",
        ),
        ({"keys": []}, "keys: none; a store has at least one"),
        ({"slots": 2, "hyper": {"slot": 2}}, "hyper: rule 'sgd' has no 'slot'; .*; did you mean 'slots'"),
        ({"keys": [{**KEY, "initializer": {"normal": [1]}}]}, r"keys\[0\].initializer: \{uniform = \[low, high\]\}"),
        (
            {"keys": [{**KEY, "initializer": {"normal": [0, "x"]}}]},
            r"keys\[0\].initializer.attributes\[...\]: expected `float`, got `str`",
        ),
        ({"keys": [{**KEY, "initializer": {"op_type": 3}}]}, r"keys\[0\].initializer.op_type: expected `str`"),
        ({"keys": [{**KEY, "slots": [4]}]}, r"key 'w': slots \(4,\) are not all within 0 to 0"),
    ],
)
def test_a_wrong_file_names_the_field(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    document = {"rule": "sgd", "keys": [KEY], **changes}
    path = written(tmp_path, json.dumps(document), "store.json")
    with pytest.raises(DescriptionError, match=told.replace("FILE", str(path))):
        read_description(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("store.toml", b"slots = ]", r"no TOML: Invalid value \(at line 1, column 9\)"),
        ("store.json", b'{"slots": 1,}', "no JSON: JSON is malformed: .*byte"),
        ("store.json", b"[]", "an object with keys and a rule is expected, not list"),
        ("store.json", b'{"hyper": {"lr": NaN}}', "no JSON: JSON is malformed"),
        ("store.json", b"\xff\xfe", "no JSON: 'utf-8' codec can't decode"),
        ("store.json", b"[" * 100_000, "no JSON: "),
        ("store.yaml", b"slots: 1", "a description is a .toml or a .json file"),
        ("store.json", b'{"term": 1}', "store.json: .*missing required field `job`"),
    ],
)
def test_what_is_no_description_says_so(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DescriptionError, match=told):
        read_description(path)


def test_an_optimizer_in_place_of_its_document_says_what_to_give() -> None:
    class Optimizer:
        document = "sgd"

    with pytest.raises(DescriptionError, match=r"^rule: .*Optimizer is not plain data; its \.document is"):
        describe({"w": (3,)}, rule=Optimizer())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"w": 3}, "key 'w': a Key, a shape or an array, not int"),
        ({"w": (3, "x")}, r"keys\[0\].shape\[1\]: expected `int`, got `str`"),
        ({1.5: (3,)}, r"keys\[0\].key: key 1.5: a string or a number, not float"),
        ({"v": (3,), b"x": (3,)}, r"keys\[1\].key: key b'x': a string or a number, not bytes"),
        (
            {"w": Key((3,), initializer=b"given")},
            r"keys\[0\].initializer: expected .*, got b'given'",
        ),  # type: ignore[arg-type]
        ({"w": Key((3,), initializer=np.inf)}, r"keys\[0\].initializer.attributes\[...\]: expected a finite number"),
        ({"w": Key((3,), initializer=10**400)}, r"keys\[0\].initializer.attributes\[...\]: number out of range"),
        ({"w": np.zeros(3, complex)}, r"keys\[0\].dtype: 'complex128' is none of bfloat16, float16"),
        ({"w": np.zeros(3, np.int32)}, "key 'w': a rule updates floating-point values, not int32"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[Any, Any], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        describe(keys, rule="sgd")


def test_holdings_add_up_to_what_there_is() -> None:
    description = describe(
        {"w": (784, 10), "b": (10,), "t": Key(shape=(7, 3), rows=True), "n": Key(shape=(5,), update="mean")},
        shards=[f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)],
        rule="adam",
        slice_bytes=1024,
    )
    held = [one for shard in holdings(description) for one in shard]
    for key in description.keys[:-1]:
        parts = [one for one in held if one.key == key]
        assert sum(one.nbytes for one in parts) == key.nbytes
        assert sum(one.state_bytes for one in parts) == (0 if key.key == "n" else 2 * key.nbytes)
    assert [one.shown for one in held if one.key.key == "t"] == ["3 rows", "2 rows", "2 rows"]
    assert [one.shown for one in held if one.key.key == "b"] == ["1 of 1 slices"]


@pytest.mark.parametrize(
    ("key", "hyper", "told"),
    [
        (Key(shape=(3,)), {"lr": math.nan}, r"^hyper\[\.\.\.\]: expected a finite number, not {'lr': nan}$"),
        (Key(shape=(3, 2), rows=True, hyper={"lr": math.nan}), {}, r"^keys\[0\].hyper\[\.\.\.\]: expected a finite"),
        (Key(shape=(3,)), {"lr": 1e300}, r"hyper: 'lr': 1e\+300 is infinite in float32, which key 'w' is of"),
        (Key(shape=(3,), dtype="float16"), {"lr": -7e4}, "hyper: 'lr': -70000 is infinite in float16"),
        (Key(shape=(3,), multipliers={"lr": 1e30}), {"lr": 1e10}, r"1e\+10, multiplied by 1e\+30 is infinite in"),
        (
            Key(shape=(3,)),
            {"lr": {"schedule": "linear", "start": 0.1, "end": 1e39, "steps": 10}},
            r"hyper: 'lr': 1e\+39 is infinite in float32",
        ),
        (
            Key(shape=(3,)),
            {"lr": {"schedule": "exponential", "start": 1e39, "factor": 2.0, "steps": 10}},
            r"hyper: 'lr': 1e\+39 is infinite in float32",
        ),
        (
            Key(shape=(3, 2), rows=True, hyper={"weight_decay": 1e300}),
            {"lr": 0.1},
            r"hyper: 'weight_decay': 1e\+300 is infinite in float32, which key 'w' is of",
        ),
    ],
)
def test_a_hyper_parameter_that_a_key_cannot_hold_is_refused(key: Key, hyper: dict[str, Any], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        describe({"w": key}, rule="sgd", **hyper)


def test_a_hyper_parameter_has_to_fit_only_where_a_rule_has_it() -> None:
    many = Key(shape=(3,), dtype="float64")
    assert describe({"w": many, "n": Key(shape=(3,), update="mean")}, rule="sgd", lr=1e300).hyper["lr"] == 1e300
    own = Key(shape=(3, 2), rows=True, hyper={"lr": 0.5})
    assert describe({"w": many, "t": own}, rule="sgd", lr=1e300)
    growing = {"schedule": "exponential", "start": 0.1, "factor": 2.0, "steps": 10}
    assert describe({"w": Key(shape=(3,))}, rule="sgd", lr=growing)
    assert describe({"w": Key(shape=(3,), multipliers={"lr": 0.0})}, rule="sgd", lr=1e300)


def test_a_rule_is_compiled_once_however_many_keys_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def counted(document: dict[str, Any]) -> Rule:
        seen.append(document["name"])
        return compiled(document)

    monkeypatch.setattr("weft_kernels.rules.lookup.compiled", counted)
    moved = [("Mul", "move", ("speed", "gradient")), ("Sub", "w", ("weight", "move"))]
    rule = {**rule_document(moved, {"weight": "w"}, hyper={"speed": 0.5}), "name": "counted"}
    other = {**rule, "hyper": {"speed": 0.25}}
    dense = [{"key": f"w{one}", "shape": [2], "initializer": 0} for one in range(5)]
    tables = [{**key, "key": f"t{one}", "shape": [2, 2], "rows": True} for one, key in enumerate(dense)]
    keys = [*dense, *({**key, "rule": rule} for key in tables[:3]), *({**key, "rule": other} for key in tables[3:])]
    path = written(tmp_path, json.dumps({"keys": keys, "rule": rule, "shards": ["tcp://127.0.0.1:5555"]}), "one.json")
    description = read_description(path)
    assert [one.key.key for one in holdings(description)[0]] == [key["key"] for key in keys]
    with KVStore.local(description) as store:
        assert [store.hyper(key)["speed"] for key in ("w0", "t0", "t4")] == [0.5, 0.5, 0.25]
    assert seen == ["counted"] * 2


@pytest.mark.parametrize(
    ("spec", "record"),
    [
        (InitializerSpec, InitializerDescription),
        (EvictionSpec, EvictionDescription),
        (GrowthSpec, GrowthDescription),
        (KeySpec, KeyDescription),
        (LossScalingSpec, LossScaling),
        (CommitSpec, CommitDescription),
        (AverageSpec, AverageDescription),
        (CompressionSpec, CompressionDescription),
        (StoreCompressionSpec, StoreCompression),
        (StoreSpec, StoreDescription),
    ],
)
def test_both_have_the_same_fields(spec: type[BaseModel], record: type[msgspec.Struct]) -> None:
    assert list(spec.model_fields) == list(record.__struct_fields__)


def test_both_have_the_same_orders_of_merging() -> None:
    assert [one.value for one in ApiMerge] == [one.value for one in Merge]


def test_staleness_is_described_and_belongs_to_its_mode() -> None:
    keys = {"a": Key(shape=(3,), initializer=0), "b": Key(shape=(3,), initializer=0, staleness=1)}
    description = describe(keys, mode="stale", staleness=2, slots=2, rule="sgd")
    assert (description.mode, description.staleness) == (Mode.STALE, 2)
    assert [key.staleness for key in description.keys[:2]] == [None, 1]
    with pytest.raises(DescriptionError, match="staleness: expected `int` >= 0"):
        describe({"a": (3,)}, mode="stale", staleness=-1, rule="sgd")
    with pytest.raises(DescriptionError, match="staleness: it bounds mode 'stale' alone, not 'sync'"):
        describe({"a": (3,)}, staleness=1, rule="sgd")
    with pytest.raises(DescriptionError, match="key 'b': staleness: it bounds"):
        describe(keys, mode="async", rule="sgd")


class Odd:
    """Nothing that a document can have."""


def store(**arguments: Any) -> Any:
    return describe({"w": (3,)}, **{"rule": "sgd", **arguments})


ROUND: list[Any] = []
ROUND.append(ROUND)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: store(lr=Odd()), r"^hyper.lr: a number, or a schedule as {\"schedule\": .*, not Odd"),
        (lambda: store(lr=1j), "^hyper.lr: .*, not complex"),
        (lambda: store(lr="0.1"), "^hyper.lr: .*, not '0.1'"),
        (lambda: store(lr=ROUND), "^hyper.lr: .*, not list"),
        (lambda: store(lr=np.ones(3)), "^hyper.lr: .*, not ndarray"),
        (lambda: store(job=Odd()), "^job: .*, not Odd"),
        (lambda: describe({Odd(): (3,)}, rule="sgd"), r"^keys: a string or a number, not Odd"),  # type: ignore[dict-item]
        (lambda: describe({"w": (Odd(),)}, rule="sgd"), "^key 'w': shape: "),
        (lambda: describe({"w": Key((3,), initializer=Odd())}, rule="sgd"), "^key 'w': initializer: .*, not Odd"),  # type: ignore[arg-type]
        (
            lambda: describe([Key((3,))], rule="sgd"),
            r"^keys: a mapping from .*, as {\"w\": Key\(shape=\(3,\)\)}, not list",
        ),  # type: ignore[arg-type]
        (lambda: store(job="a\ud800"), r"^description: 'a\\ud800' cannot be sent as UTF-8: surrogates not allowed"),
        (lambda: store(commit={"clip": 1.0}), "^commit: object contains unknown field `clip`"),
        (lambda: store(average={"dekay": 0.9}), "^average: object contains unknown field `dekay`"),
        (lambda: store(compression={"weights": {}}), "^compression.weights: object missing required field `kind`"),
    ],
)
def test_what_is_no_plain_data_is_told_by_field(call: Callable[[], object], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        call()


def test_weights_are_not_compressed_where_no_rule_updates() -> None:
    halves = {"weights": {"kind": "bf16", "residual": False}}
    with pytest.raises(
        DescriptionError, match=r"^compression.weights: it is for keys with update 'rule', and there is"
    ):
        describe({"w": Key((3,), update="gradient")}, compression=halves)  # type: ignore[arg-type]
    both = {"w": Key((3,), update="gradient"), "v": (3,)}  # type: ignore[arg-type]
    assert describe(both, rule="sgd", compression=halves).compression is not None


def test_a_schedule_of_the_sdk_is_the_document_that_it_stands_for(tmp_path: Path) -> None:
    schedule = {"schedule": "cosine", "start": 0.1, "end": 0.0, "steps": 250, "begin": 0}
    warm = {**schedule, "warmup": {"steps": 10, "start": 0.0}}
    assert store(lr=weft.cosine(0.1, steps=250)).hyper == {"lr": schedule}
    assert store(lr=weft.cosine(0.1, steps=250, warmup=10)).hyper == {"lr": warm}
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"keys": [{"key": "w", "shape": [3]}], "rule": "sgd", "hyper": {"lr": schedule}}))
    assert read_description(path) == store(lr=weft.cosine(0.1, steps=250))


def test_a_key_takes_shape_and_dtype_without_their_names() -> None:
    assert Key((4, 2), "float64") == Key(shape=(4, 2), dtype="float64")
    assert describe({"w": Key((4,))}, rule="sgd") == describe({"w": (4,)}, rule="sgd")


@pytest.mark.parametrize("number", [np.float16(0.5), np.float32(0.5), np.float64(0.5), np.longdouble(0.5)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert store(lr=number, slots=np.int64(2), barrier=np.bool_(False)) == store(lr=0.5, slots=2, barrier=False)


LARGEST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slots": 10**9}, "slots: expected `int` <= 65536"),
        ({"slots": LARGEST}, "slots: expected `int` <= 65536"),
        ({"keys": [{**KEY, "shape": [LARGEST, LARGEST]}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [0, LARGEST]}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [1 << 62, 4], "rows": True}]}, r"key 'w': shape .* more than 2\^63 - 1 bytes"),
        ({"keys": [{**KEY, "shape": [1] * 65}]}, r"keys\[0\].shape: expected `list` of length <= 64"),
        ({"keys": [{**KEY, "shape": [MAX_SLICES]}], "slice_bytes": 1}, "key 'w': with it there are 67108864 slices"),
        ({"shards": ["tcp://127.0.0.1:65536"]}, r"shards\[0\]: expected .* a port from 0 to 65535 .* got 'tcp"),
        ({"keys": [{**KEY, "key": "\ud800"}]}, "store.json: no JSON: "),
        ({"job": "\ud800"}, "store.json: no JSON: "),
        ({"keys": [{**KEY, "initializer": 1e39}]}, r"key 'w': initializer: value: 1e\+39 is no float32"),
        (
            {"keys": [{**KEY, "initializer": {"uniform": [-1e39, 0]}}]},
            r"key 'w': initializer: low: -1e\+39 is no float32",
        ),
        (
            {"keys": [{**KEY, "initializer": {"uniform": [-3e38, 3e38]}}]},
            r"initializer: high - low: 6e\+38 is no float32",
        ),
        (
            {"keys": [{**KEY, "initializer": {"op_type": "RandomNormal", "attributes": {"mean": 0.0, "scale": 1e39}}}]},
            r"key 'w': initializer: scale: 1e\+39 is no float32",
        ),
        (
            {"keys": [{**KEY, "initializer": 300, "dtype": "int8", "update": "mean"}]},
            "initializer: value: 300.* is no int8",
        ),
        (
            {"keys": [{**KEY, "initializer": 1.5, "dtype": "int8", "update": "mean"}]},
            "initializer: value: 1.5 is no int8",
        ),
    ],
)
def test_what_is_too_large_names_the_field(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"rule": "sgd", "keys": [KEY], **changes}))
    with pytest.raises(DescriptionError, match=told):
        read_description(path)


@pytest.mark.parametrize(
    ("initializer", "dtype", "told"),
    [
        ({"op_type": "ConstantOfShape", "attributes": {"value": 1e39}}, "float32", r"value: 1e\+39 is no float32"),
        ({"op_type": "ConstantOfShape", "attributes": {"value": 300.0}}, "int8", "value: 300.0 is no int8"),
        (
            {"op_type": "RandomUniform", "attributes": {"low": -6e4, "high": 6e4}},
            "float16",
            r"high - low: 120000\.0 is no float16",
        ),
    ],
)
def test_a_description_that_is_written_whole_is_held_to_the_same(
    tmp_path: Path, initializer: dict[str, Any], dtype: str, told: str
) -> None:
    whole = json.loads(msgspec.json.encode(describe({"w": Key(shape=(3,), dtype=dtype, update="mean")})))
    path = tmp_path / "store.json"
    path.write_text(json.dumps(whole))
    assert read_description(path).keys[0].dtype == dtype
    whole["keys"][0]["initializer"] = initializer
    path.write_text(json.dumps(whole))
    with pytest.raises(DescriptionError, match=f"store.json: key 'w': initializer: {told}"):
        read_description(path)


GOOD = store_of([key_of("w", (3,), 2)], slots=2, shards=2, hyper={"lr": 1.0})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"job": ""}, "job: expected `str` of length >= 1"),
        ({"term": -1}, "term: expected `int` >= 0"),
        ({"slice_bytes": 0}, "slice_bytes: expected `int` >= 1"),
        (
            {"keys": (msgspec.structs.replace(GOOD.keys[0], slots=(0, 0)),)},
            r"key 'w': slots \(0, 0\) name one twice",
        ),
    ],
)
def test_a_record_that_cannot_be_a_store_is_refused_by_field(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        check_description(msgspec.structs.replace(GOOD, **changed))


def test_the_digest_tells_descriptions_apart_but_not_endpoints_or_forms_of_a_number() -> None:
    assert digest(GOOD) == digest(msgspec.structs.replace(GOOD, shards=("tcp://a:1", "tcp://b:2")))
    assert digest(GOOD) == digest(msgspec.structs.replace(GOOD, hyper={"lr": 1}))
    changes: list[dict[str, Any]] = [{"seed": 8}, {"shards": ("",)}, {"hyper": {"lr": 2.0}}, {"merge": Merge.ARRIVAL}]
    assert len({digest(msgspec.structs.replace(GOOD, **changed)) for changed in [{}, *changes]}) == 5


def test_a_pipe_is_no_description_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    os.mkfifo(path)
    with pytest.raises(DescriptionError, match="not a regular file"):
        read_description(path)


def test_what_just_fits_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    keys = [{**KEY, "initializer": -128, "dtype": "int8", "update": "mean"}]
    path.write_text(json.dumps({"rule": "sgd", "keys": keys, "slots": 1 << 16, "shards": ["tcp://a:65535"]}))
    assert read_description(path).slots == 1 << 16
