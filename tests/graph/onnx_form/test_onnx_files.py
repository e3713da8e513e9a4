"""Models as files and bytes: elements beside the model, and files that nobody vouches for."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import floats, initializer, model, weights
from weft_graph.errors import GraphError
from weft_graph.onnx_form import files
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.files import check_fields, read_bytes, read_file

ELEMENTS = np.arange(6, dtype=np.float32)


def outside(location: str, **entries: str) -> onnx.ModelProto:
    """y = x + w, whose w (6) lies in a file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[6], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [floats("x", 6)], initializers=[tensor])


def save(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_elements_beside_the_model_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\1" * 8 + ELEMENTS.tobytes() + b"\1")
    imported = read_file(save(tmp_path, outside("data/w.bin", offset="8", length="24")))
    value = imported.values["w"]
    assert value.tolist() == ELEMENTS.tolist()
    assert not value.flags.writeable
    assert not value.flags.owndata
    assert isinstance(_root(value), np.memmap)


def _root(array: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]  # of any elements
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def test_elements_that_are_not_aligned_are_copied(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\1" + ELEMENTS.tobytes())
    assert read_file(save(tmp_path, outside("w.bin", offset="1"))).values["w"].tolist() == ELEMENTS.tolist()


PATHS = [
    "/etc/passwd",
    "../w.bin",
    "a/../../w.bin",
    "",
    ".",
    "..",
    "C:\\w.bin",
    "a\\..\\..\\w.bin",
    "\\\\host\\w",
    "w\0.bin",
]


@pytest.mark.parametrize("location", PATHS)
def test_no_path_leads_out_of_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(ELEMENTS.tobytes())
    (tmp_path / "inside").mkdir()
    with pytest.raises(OnnxError, match="'w'"):
        read_file(save(tmp_path / "inside", outside(location)))


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(ELEMENTS.tobytes())
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file").symlink_to(tmp_path / "w.bin")
    (inside / "up").symlink_to(tmp_path)
    (inside / "own").symlink_to(inside / "real.bin")
    (inside / "real.bin").write_bytes(ELEMENTS.tobytes())
    (inside / "round").symlink_to(inside / "round")
    for location, message in (("file", "leads out"), ("up/w.bin", "leads out"), ("round", "cannot be read")):
        with pytest.raises(OnnxError, match=message):
            read_file(save(inside, outside(location)))
    assert read_file(save(inside, outside("own"))).values["w"].tolist() == ELEMENTS.tolist()


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for location in ("pipe", "folder"):
        with pytest.raises(OnnxError, match="is no file"):
            read_file(save(tmp_path, outside(location)))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "4"}, "bytes 4 to 28 .* which has 24"),
        ({"length": "20"}, "takes 24 bytes, and its place says 20"),
        ({"offset": "-1"}, "no count of bytes"),
        ({"offset": "1e3"}, "no count of bytes"),
        ({"offset": "9" * 30}, "no count of bytes"),
        ({"offset": "9" * 18}, "are asked for"),
    ],
)
def test_no_more_is_read_than_is_there(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    (tmp_path / "w.bin").write_bytes(ELEMENTS.tobytes())
    with pytest.raises(OnnxError, match=message):
        read_file(save(tmp_path, outside("w.bin", **entries)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=r"'w'.*'gone\.bin' cannot be read: No such file"):
        read_file(save(tmp_path, outside("gone.bin")))
    with pytest.raises(OnnxError, match=r"gone\.onnx: the file cannot be read"):
        read_file(tmp_path / "gone.onnx")


def test_what_is_sent_has_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=r"'w'.*not given with its folder"):
        read_bytes(outside("w.bin").SerializeToString())


def small() -> onnx.ModelProto:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return model(nodes, [floats("x", "n", 3)], initializers=[weights("w", 3, 4)])


def test_bytes_are_bounded() -> None:
    data = small().SerializeToString()
    assert read_bytes(data).graph.outputs == ("y",)
    with pytest.raises(OnnxError, match=rf"has {len(data)} bytes, and at most 10"):
        read_bytes(data, most_bytes=10)


@pytest.mark.parametrize("data", [b"", b"\0", b"garbage", b"\xff" * 40, b"PK\3\4", small().SerializeToString()[:-3]])
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(OnnxError, match=r"no ONNX model|no graph"):
        read_bytes(data)


def test_many_small_messages_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes in a file are a hundred in memory."""
    monkeypatch.setattr(files, "MOST_FIELDS", 1000)
    nodes = b"\x0a\x00" * 1000
    with pytest.raises(OnnxError, match="more than 1000 fields"):
        read_bytes(b"\x3a" + _length(nodes) + nodes)


@pytest.mark.parametrize(
    ("data", "byte"),
    [(bytes(1000), 0), (b"\x08\x01" + bytes(1000), 2), (b"\x3a\x02\x00\x00", 2), (b"\x80\x80\x80\x80\x10\x00", 0)],
)
def test_a_field_that_has_no_number_is_damage_at_its_first_byte(data: bytes, byte: int) -> None:
    with pytest.raises(OnnxError, match=rf"damaged at byte {byte}$"):
        check_fields(data, onnx.ModelProto.DESCRIPTOR, 10_000)


def test_deep_messages_are_refused() -> None:
    graph = b""
    for _ in range(120):
        attribute = b"\x32" + _length(graph) + graph
        node = b"\x2a" + _length(attribute) + attribute
        graph = b"\x0a" + _length(node) + node
    with pytest.raises(OnnxError, match=r"nested more than 100 deep"):
        check_fields(b"\x3a" + _length(graph) + graph, onnx.ModelProto.DESCRIPTOR, 10_000)


def _length(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size])


def test_text_that_is_no_utf8_is_refused() -> None:
    data = small().SerializeToString()
    for word in (b"Relu", b"h"):
        broken = data.replace(word, b"\xff" * len(word))
        with pytest.raises(GraphError, match=r"UTF-8|defines"):
            read_bytes(broken)


def seeds() -> list[onnx.ModelProto]:
    """Models with most of what a file may hold: bodies, functions, sequences, sparse and typed tensors."""
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "t", [], [floats("t", 2)])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "e", [], [floats("e", 2)])
    is_on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    branching = model(
        [helper.make_node("If", ["on"], ["y"], then_branch=then, else_branch=other)], [is_on, floats("x", 2)]
    )
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [helper.make_node("Clip", ["a", "", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    calling = model([helper.make_node("F", ["x"], ["y"], domain="own")], functions=[function], domains=["own"])
    sequence = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=1),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    older = model(
        [
            helper.make_node("Softmax", ["x"], ["p"]),
            helper.make_node("Pad", ["p"], ["q"], pads=[0, 1, 0, 1], value=1.0),
            helper.make_node("Dropout", ["q"], ["d"], ratio=0.5),
            helper.make_node("Resize", ["d", "scales"], ["y"]),
        ],
        initializers=[initializer("scales", np.array([1, 2], np.float32))],
        opset=10,
    )
    return [small(), branching, calling, model(sequence), older]


_SEEDS = [proto.SerializeToString() for proto in seeds()]


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_read_or_refused(seed: int) -> None:
    """Whatever is done to a file, the reader answers with a graph or with a GraphError."""
    chance = random.Random(seed)
    for _ in range(500):
        data = bytearray(chance.choice(_SEEDS))
        for _ in range(chance.choice((1, 1, 2, 6))):
            _damage(data, chance)
        with suppress(GraphError):
            read_bytes(bytes(data))


@pytest.mark.parametrize("seed", range(3))
def test_models_that_lie_are_read_or_refused(seed: int) -> None:
    """All of these parse: fields have other values, are missing, or are there again."""
    chance = random.Random(seed)
    for _ in range(400):
        proto = onnx.ModelProto.FromString(chance.choice(_SEEDS))
        for _ in range(chance.choice((1, 1, 2, 4))):
            _lie(proto, chance)
        with suppress(GraphError):
            read_bytes(proto.SerializeToString())


def _damage(data: bytearray, chance: random.Random) -> None:
    place = chance.randrange(len(data))
    match chance.randrange(5):
        case 0:
            data[place] ^= 1 << chance.randrange(8)
        case 1:
            data[place] = chance.randrange(256)
        case 2:
            del data[place : place + chance.randrange(1, 4)]
        case 3:
            data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 4)))
        case 4:
            other = chance.choice(_SEEDS)
            start = chance.randrange(len(other))
            data[place : place + 8] = other[start : start + 8]


_WORDS = [
    "",
    "x",
    "y",
    "h",
    "w",
    "axis",
    "value",
    "to",
    "k",
    "Constant",
    "Cast",
    "If",
    "Loop",
    "Scan",
    "Identity",
    "\x00",
]
_NUMBERS = [-(2**63), -1, 0, 1, 2, 7, 8, 16, 23, 29, 1000, 2**31, 2**62]


def _lie(proto: Any, chance: random.Random) -> None:
    """Changes one field of a message that is somewhere inside."""
    while True:
        fields = [field for field, _ in proto.ListFields()]
        if not fields:
            return
        field = chance.choice(fields)
        value = getattr(proto, field.name)
        items = list(value) if field.is_repeated else [value]
        if field.message_type is not None and chance.random() < 0.85:
            proto = chance.choice(items)
            continue
        if chance.random() < 0.2:
            proto.ClearField(field.name)
        elif field.is_repeated:
            _shuffle(value, items, field, chance)
        elif field.message_type is None:
            setattr(proto, field.name, _other(items[0], field, chance))
        return


def _shuffle(value: Any, items: list[Any], field: Any, chance: random.Random) -> None:
    if field.message_type is None and chance.random() < 0.7:
        value[chance.randrange(len(items))] = _other(items[0], field, chance)
    elif chance.random() < 0.5:
        del value[chance.randrange(len(items))]
    else:
        value.append(chance.choice(items))


def _other(value: Any, field: Any, chance: random.Random) -> Any:
    if field.enum_type is not None:
        return chance.choice(list(field.enum_type.values_by_number))
    if isinstance(value, str):
        return chance.choice(_WORDS)
    if isinstance(value, bytes):
        return value[: chance.randrange(len(value) + 1)] + bytes(chance.randrange(3))
    if isinstance(value, float):
        return chance.choice([0.0, -1.0, 1e30, float("inf"), float("nan")])
    return chance.choice(
        [number for number in _NUMBERS if -(2**31) <= number < 2**31 or field.cpp_type == field.CPPTYPE_INT64]
    )
