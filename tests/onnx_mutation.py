"""ONNX files that are wrong in every way that a file can be: mutated, cut, made up. The same ones each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_models import floats, initializer, model, weights

LARGEST_SEED = 24 << 10
NUMBERS = (0, 1, -1, 2, 7, 127, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63))
WORDS = ("", "x", "y", "weft.x", "a" * 5000, "\0", "../../etc/passwd", "If", "Loop", "Reshape", "ai.onnx.ml", "é∀")
FLOATS = (0.0, -1.0, 1e38, float("nan"), float("inf"))


def seeds() -> list[bytes]:
    """Models of the onnx package, and some with bodies, functions and sparse initializers."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    paths = sorted(path for path in folder.rglob("*.onnx") if path.stat().st_size <= LARGEST_SEED)
    made = [branches(2), looping(), calling("inner", "outer"), sparse(4), folding("Range")]
    return [path.read_bytes() for path in paths] + [each.SerializeToString() for each in made]


def mutants(count: int, seed: int) -> Iterator[bytes]:
    """So many files: a tenth random bytes, three tenths damaged ones, the rest with fields that say something else."""
    draws = random.Random(seed)
    whole = seeds()
    for number in range(count):
        kind, source = number % 10, draws.choice(whole)
        if kind == 0:
            yield draws.randbytes(draws.randrange(1, 2000))
        elif kind == 1:
            yield source[: draws.randrange(len(source))]
        elif kind in {2, 3}:
            yield flipped(source, draws)
        else:
            yield changed(source, draws)


def flipped(source: bytes, draws: random.Random) -> bytes:
    """A few bytes are others."""
    data = bytearray(source)
    for _ in range(draws.randrange(1, 5)):
        data[draws.randrange(len(data))] = draws.randrange(256)
    return bytes(data)


def changed(source: bytes, draws: random.Random) -> bytes:
    """A few fields of messages somewhere in the model have other values, are gone or are there twice."""
    proto = onnx.ModelProto()
    proto.ParseFromString(source)
    for _ in range(draws.randrange(1, 4)):
        places = list(fields(proto))
        _change(*draws.choice(places), draws)
    return proto.SerializeToString()


def fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """(message, field) of all that is set, at any depth."""
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                yield from fields(each)


def _change(message: Any, field: Any, draws: random.Random) -> None:
    if field.is_repeated:
        _change_list(getattr(message, field.name), field, draws)
    elif field.message_type is not None or draws.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _other(field, getattr(message, field.name), draws))


def _change_list(values: Any, field: Any, draws: random.Random) -> None:
    place, what = draws.randrange(len(values)), draws.randrange(4)
    if what == 0:
        del values[place]
    elif field.message_type is not None:
        other = values[draws.randrange(len(values))]
        copied = type(other)()
        copied.CopyFrom(other)
        values.append(copied) if what == 1 else values[place].CopyFrom(copied)
    elif what == 1:
        values.append(values[place])
    else:
        values[place] = _other(field, values[place], draws)


def _other(field: Any, value: Any, draws: random.Random) -> Any:
    """Another value that the field can hold."""
    if field.enum_type is not None:
        return draws.choice([each.number for each in field.enum_type.values])
    if isinstance(value, str):
        return draws.choice(WORDS)
    if isinstance(value, bytes):
        return draws.choice((b"", value[:-1], value * 2, b"\xff" * 9))
    if isinstance(value, float):
        return draws.choice(FLOATS)
    narrow = field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_UINT32}
    return draws.choice([number for number in NUMBERS if not narrow or abs(number) < 1 << 31])


def branches(depth: int) -> onnx.ModelProto:
    """If inside If, so many times."""
    yes = helper.make_tensor_value_info("yes", TensorProto.BOOL, [])

    def choice(level: int) -> onnx.NodeProto:
        inner = [helper.make_node("Neg", ["x"], [f"y{level}"], f"n{level}")] if level == depth else [choice(level + 1)]
        outer = [floats(f"y{level}" if level == depth else f"z{level + 1}")]
        body = helper.make_graph(inner, f"b{level}", [], outer)
        return helper.make_node("If", ["yes"], [f"z{level}"], f"if{level}", then_branch=body, else_branch=body)

    return model([choice(0)], [floats("x", "N", 3), yes], ("z0",))


def looping(trips: int = 3) -> onnx.ModelProto:
    """A loop that doubles what it carries."""
    scalar = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"], "twice"), helper.make_node("Identity", ["on"], ["go"], "go")],
        "body",
        [scalar("i", TensorProto.INT64, []), scalar("on", TensorProto.BOOL, []), floats("v", "N", 3)],
        [scalar("go", TensorProto.BOOL, []), floats("w", "N", 3)],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], "loop", body=body)]
    return model(nodes, [floats("x", "N", 3)], ("y",), [initializer("trips", np.array(trips, np.int64))])


def calling(first: str, second: str) -> onnx.ModelProto:
    """Two functions: the second calls the first, which calls the second where both have one name."""
    opsets = [helper.make_opsetid("", 28), helper.make_opsetid("own", 1)]
    inner = helper.make_node("Neg", ["a"], ["b"], "neg")
    if first == second:
        inner = helper.make_node(second, ["a"], ["b"], "again", domain="own")
    functions = [
        helper.make_function("own", first, ["a"], ["b"], [inner], opsets),
        helper.make_function(
            "own", second, ["a"], ["b"], [helper.make_node(first, ["a"], ["b"], "call", domain="own")], opsets
        ),
    ]
    nodes = [helper.make_node(second, ["x"], ["y"], "outer", domain="own")]
    return model(nodes, functions=functions[:1] if first == second else functions, domains=["own"])


def doubling(levels: int) -> onnx.ModelProto:
    """Functions that each call the one before twice: 2^levels nodes in a few hundred bytes."""
    opsets = [helper.make_opsetid("", 28), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(levels):
        op, domain = ("Neg", "") if level == 0 else (f"f{level - 1}", "own")
        calls = [helper.make_node(op, [a], [b], f"c{a}", domain=domain) for a, b in (("a", "m"), ("m", "b"))]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], calls, opsets))
    nodes = [helper.make_node(f"f{levels - 1}", ["x"], ["y"], "top", domain="own")]
    return model(nodes, functions=functions, domains=["own"])


def sparse(rows: int) -> onnx.ModelProto:
    """One element given, of so many rows."""
    proto = model([helper.make_node("Mul", ["x", "w"], ["y"], "times")], [floats("x", "N", rows, 4)])
    held = proto.graph.sparse_initializer.add(dims=[rows, 4])
    held.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]))
    held.indices.CopyFrom(helper.make_tensor("places", TensorProto.INT64, [1], [0]))
    return proto


def folding(op_type: str, size: int = 4) -> onnx.ModelProto:
    """A value that could be computed before any step, of so many elements."""
    number = initializer("n", np.array([size], np.int64))
    scalars = [initializer(name, np.array(value, np.int64)) for name, value in (("a", 0), ("b", size), ("d", 1))]
    inputs = {"Range": ["a", "b", "d"], "ConstantOfShape": ["n"], "Expand": ["d", "n"], "Tile": ["n", "n"]}[op_type]
    nodes = [
        helper.make_node(op_type, inputs, ["big"], "big"),
        helper.make_node("Cast", ["big"], ["floats"], "cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats"], ["sum"], "sum", keepdims=0),
        helper.make_node("Mul", ["x", "sum"], ["y"], "times"),
    ]
    return model(nodes, initializers=[number, *scalars])


def claims(dims: list[int], kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """An initializer that says it has more elements than it brings."""
    proto = model([helper.make_node("Add", ["x", "w"], ["y"], "add")], initializers=[weights("w", 3)])
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(dims)
    proto.graph.initializer[0].data_type = kind
    return proto


def outside(location: str, **more: str) -> onnx.ModelProto:
    """An initializer whose elements are said to be in another file."""
    proto = model([helper.make_node("Add", ["x", "w"], ["y"], "add")], initializers=[weights("w", 3)])
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def cycle() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["x", "b"], ["y"], "one"), helper.make_node("Neg", ["y"], ["b"], "two")]
    return model(nodes)


def crowd(count: int) -> bytes:
    """So many empty nodes, of two bytes each."""
    graph = b"\x0a\x00" * count
    size, length = len(graph), b""
    while size >= 0x80:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return b"\x08\x0a\x3a" + length + bytes([size]) + graph


HOSTILE: dict[str, Callable[[], bytes]] = {
    "branches 10 deep": lambda: branches(10).SerializeToString(),
    "a function that calls itself": lambda: calling("f", "f").SerializeToString(),
    "functions of 2^40 nodes": lambda: doubling(40).SerializeToString(),
    "a sparse initializer of 2^40 elements": lambda: sparse(1 << 38).SerializeToString(),
    "a sparse initializer of a gigabyte": lambda: sparse(1 << 26).SerializeToString(),
    "a range of 2^40": lambda: folding("Range", 1 << 40).SerializeToString(),
    "a fill of 2^40": lambda: folding("ConstantOfShape", 1 << 40).SerializeToString(),
    "an expansion of 2^40": lambda: folding("Expand", 1 << 40).SerializeToString(),
    "a tile of 2^40": lambda: folding("Tile", 1 << 40).SerializeToString(),
    "dimensions below zero": lambda: claims([-1, -3]).SerializeToString(),
    "dimensions of 2^62": lambda: claims([1 << 62, 4]).SerializeToString(),
    "4-bit dimensions of 2^40": lambda: claims([1 << 40], TensorProto.INT4).SerializeToString(),
    "an element type that is none": lambda: claims([3], 99).SerializeToString(),
    "elements in /dev/zero": lambda: outside("/dev/zero").SerializeToString(),
    "elements above the folder": lambda: outside("../weft.db").SerializeToString(),
    "elements at a place below zero": lambda: outside("w", offset="-1", length=str(1 << 62)).SerializeToString(),
    "a cycle": lambda: cycle().SerializeToString(),
    "a loop of 2^62 turns": lambda: looping(1 << 62).SerializeToString(),
    "300,000 nodes": lambda: crowd(300_000),
}
"""Files that ask for more than they bring, by what they ask."""
