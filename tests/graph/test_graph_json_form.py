"""A graph and its JSON form."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from document_mutation import places, refusal, with_value, without
from graph_strategies import anything, examples, graphs
from sample_graphs import lenet, line, mlp, node, normalized_mlp
from weft_graph.errors import GraphFormatError
from weft_graph.ir import Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.json_form import graph_from_json, graph_schema, graph_to_json
from weft_graph.limits import GRAPH_LIMITS
from weft_graph.types import DType, TensorType

GOLDEN = Path(__file__).parent / "golden" / "graph-1.json"
"""Written by hand from the format's description; the constant's bytes come from `struct`, see below."""

VALIDATOR = jsonschema.Draft202012Validator(graph_schema())


def golden_graph() -> Graph:
    """What the golden document says."""
    return Graph(
        name="golden",
        inputs=(Input("x", TensorType(DType.FLOAT32, ("batch", 2))),),
        parameters=(
            Parameter("w", TensorType(DType.FLOAT32, (2, 1)), Initializer("RandomUniform", {"low": -0.5, "high": 0.5})),
            Parameter("m", TensorType(DType.FLOAT64, ()), Initializer("ConstantOfShape", {"value": 1.0}), False, False),
        ),
        nodes=(
            Node("MatMul", "product", ("x", "w"), ("y",)),
            Node("Clip", "clip", ("y", "", "top"), ("z",), {}),
            Node("Odd", "odd", ("z",), ("loss", ""), {"i": 3, "f": 2.0, "s": "é", "b": True, "l": (1, -2)}, "custom"),
        ),
        outputs=("loss",),
        constants=(Constant("top", np.array([1.5, -2.0], dtype=np.float32)),),
    )


def same(left: Graph, right: Graph) -> bool:
    """Equality to the bit; constants have none of their own."""
    return graph_to_json(left) == graph_to_json(right) and all(
        (a.name, a.array.dtype, a.array.shape, a.array.tobytes())
        == (b.name, b.array.dtype, b.array.shape, b.array.tobytes())
        for a, b in zip(left.constants, right.constants, strict=True)
    )


def test_the_writer_gives_the_golden_document() -> None:
    assert graph_to_json(golden_graph()) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_reader_takes_the_golden_document() -> None:
    read = graph_from_json(json.loads(GOLDEN.read_text(encoding="utf-8")))
    assert same(read, golden_graph())
    assert read.constants[0].array.tobytes() == struct.pack("<2f", 1.5, -2.0)
    assert not read.constants[0].array.flags.writeable


@examples()
@given(graphs())
def test_a_graph_survives_its_json_text(graph: Graph) -> None:
    assert same(graph_from_json(json.loads(json.dumps(graph_to_json(graph), allow_nan=False))), graph)


@examples()
@given(graphs())
def test_attributes_keep_their_kind(graph: Graph) -> None:
    read = graph_from_json(json.loads(json.dumps(graph_to_json(graph))))
    for ours, theirs in zip(graph.nodes, read.nodes, strict=True):
        assert [(name, repr(value)) for name, value in ours.attributes.items()] == [
            (name, repr(value)) for name, value in theirs.attributes.items()
        ]


@examples()
@given(graphs())
def test_the_schema_accepts_what_the_writer_makes(graph: Graph) -> None:
    VALIDATOR.validate(graph_to_json(graph))


def test_the_schema_is_a_schema_and_has_the_readers_limits() -> None:
    schema = graph_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    defs = schema["$defs"]
    assert defs["name"]["maxLength"] == GRAPH_LIMITS.name
    assert defs["text"]["maxLength"] == GRAPH_LIMITS.text
    assert defs["shape"]["maxItems"] == GRAPH_LIMITS.rank
    assert defs["dim"]["anyOf"][0]["maximum"] == GRAPH_LIMITS.dim
    assert {schema["properties"][name]["maxItems"] for name in ("inputs", "parameters", "constants", "outputs")} == {
        GRAPH_LIMITS.records
    }
    assert schema["properties"]["nodes"]["maxItems"] == GRAPH_LIMITS.nodes
    assert defs["node"]["properties"]["inputs"]["maxItems"] == GRAPH_LIMITS.node_values
    assert defs["node"]["properties"]["attributes"]["maxProperties"] == GRAPH_LIMITS.attributes
    assert defs["attribute"]["anyOf"][3]["maxItems"] == GRAPH_LIMITS.attribute_items
    assert defs["dtype"]["enum"] == list(DType)


@examples()
@given(anything)
@example({"format_version": 1})
def test_the_reader_raises_nothing_but_format_errors_on_anything(document: Any) -> None:
    with pytest.raises(GraphFormatError):
        graph_from_json(document)


DOCUMENTS = [graph_to_json(graph) for graph in (golden_graph(), mlp(), normalized_mlp())]
JSON = [None, True, 0, -1, 1, 1 << 70, 1 << 1000, 1.5, 1e300, float("inf"), "", "x", "n" * 300, "A==="]
JSON += ["\ud800", "a\nb", [], [[]], {}, {"": 0}, {"name": "x"}, ["x", 1], [None]]
NOT_JSON = [float("nan"), {1: 2}, object(), b"", {"x"}, np.int64(1)]


@examples(200)
@given(st.data())
def test_one_wrong_place_is_refused_with_its_pointer_or_read_as_the_schema_says(data: st.DataObject) -> None:
    document = data.draw(st.sampled_from(DOCUMENTS))
    path = data.draw(st.sampled_from(list(places(document))))
    is_removed = path != () and data.draw(st.booleans())
    changed = without(document, path) if is_removed else with_value(document, path, data.draw(st.sampled_from(JSON)))
    error = refusal(graph_from_json, changed)
    if error is None:
        VALIDATOR.validate(changed)
    else:
        assert error.pointer == "" or error.pointer.startswith("/")
        assert len(error.message) < 1000


def test_what_the_schema_refuses_the_reader_refuses() -> None:
    """Every place of a document in turn, with every wrong value; the schema is the judge."""
    document = graph_to_json(golden_graph())
    judged = 0
    for path in places(document):
        for wrong in JSON:
            changed = with_value(document, path, wrong)
            if not VALIDATOR.is_valid(changed):
                judged += 1
                with pytest.raises(GraphFormatError):
                    graph_from_json(changed)
    assert judged > 1000


def test_what_is_no_json_is_refused_everywhere() -> None:
    """An integer of more digits than Python prints is among them: the message must not try to."""
    document = graph_to_json(golden_graph())
    for path in places(document):
        for wrong in (*NOT_JSON, 1 << 20000):
            with pytest.raises(GraphFormatError):
                graph_from_json(with_value(document, path, wrong))


def test_deep_nesting_is_refused_and_not_followed() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for path in (("inputs",), ("nodes", 0, "attributes", "i"), ("name",)):
        with pytest.raises(GraphFormatError):
            graph_from_json(with_value(graph_to_json(golden_graph()), path, deep))
    while deep:  # unwound by hand: the interpreter frees nested lists recursively
        deep = deep[0]


@pytest.mark.parametrize(
    ("path", "value", "pointer", "message"),
    [
        (("format_version",), 2, "/format_version", "format version 2 is unknown; this reader knows 1"),
        (("format_version",), True, "/format_version", "format version true"),
        (("opset",), 99, "/opset", "opset 99 is unknown; this reader knows 15 and 28"),
        (("inputs", 0, "dtype"), "complex64", "/inputs/0/dtype", "expected one of bool, uint8"),
        (("inputs", 0, "shape"), [-1], "/inputs/0/shape/0", "from 0 to"),
        (("inputs", 0, "shape"), [1 << 41], "/inputs/0/shape/0", "from 0 to"),
        (("parameters", 0, "shape"), [1 << 20, 1 << 21], "/parameters/0/shape", "elements, and at most"),
        (("inputs", 0, "shape"), [1] * 17, "/inputs/0/shape", "17 items, and at most 16"),
        (("inputs", 0, "extra"), 1, "/inputs/0", "unknown field 'extra'; known are name, dtype, shape"),
        (("parameters", 0, "row_sparse"), 0, "/parameters/0/row_sparse", "expected true or false, got 0"),
        (("parameters", 0, "lazy_update"), 0, "/parameters/0/lazy_update", "expected true or false, got 0"),
        (("nodes", 2, "attributes", "a/b~"), None, "/nodes/2/attributes/a~1b~0", "got null"),
        (("nodes", 2, "attributes", "i"), [1, "x"], "/nodes/2/attributes/i/1", "expected an integer, got 'x'"),
        (("nodes", 2, "attributes", "i"), 1 << 63, "/nodes/2/attributes/i", "from -9223372036854775808 to"),
        (("nodes", 2, "attributes", "f"), float("nan"), "/nodes/2/attributes/f", "expected a finite number, got nan"),
        (("nodes", 1, "name"), "product", "/nodes/1/name", "'product' is defined already at /nodes/0/name"),
        (("nodes", 1, "outputs"), ["w"], "/nodes/1/outputs/0", "'w' is defined already at /parameters/0/name"),
        (("constants", 0, "shape"), ["batch"], "/constants/0/shape", "a constant's dimensions are numbers"),
        (("constants", 0, "shape"), [3], "/constants/0/data", "float32[3] takes 16 characters of base64, these are 12"),
        (("constants", 0, "data"), "AAAA!AAAAAA=", "/constants/0/data", "not base64"),
        (("constants", 0, "data"), "AAAAAAAAAAAA", "/constants/0/data", "takes 8 bytes, these are 9"),
        (("constants", 0, "shape"), [1 << 30], "/constants/0/data", "characters of base64, these are 12"),
        (("name",), "a\u0000b", "/name", "no control characters"),
        (("name",), "\ud800", "/name", "lone surrogates"),
    ],
)
def test_a_refusal_says_where_and_shows_both_sides(
    path: tuple[str | int, ...], value: Any, pointer: str, message: str
) -> None:
    with pytest.raises(GraphFormatError) as caught:
        graph_from_json(with_value(graph_to_json(golden_graph()), path, value))
    assert caught.value.pointer == pointer
    assert message in caught.value.message


def test_bytes_of_a_bool_constant_are_0_or_1() -> None:
    document = graph_to_json(golden_graph())
    document["constants"] = [{"name": "c", "dtype": "bool", "shape": [1], "data": base64.b64encode(b"\x02").decode()}]
    with pytest.raises(GraphFormatError, match="a byte 0 or 1"):
        graph_from_json(document)


def test_constants_together_are_bounded() -> None:
    half = {"dtype": "uint8", "shape": [GRAPH_LIMITS.constant_bytes // 2 + 1]}
    data = base64.b64encode(bytes(GRAPH_LIMITS.constant_bytes // 2 + 1)).decode()
    document = graph_to_json(golden_graph()) | {"constants": [{"name": n, **half, "data": data} for n in ("a", "b")]}
    with pytest.raises(GraphFormatError, match="more than 67108864 bytes") as caught:
        graph_from_json(document)
    assert caught.value.pointer == "/constants/1"


def test_left_out_fields_have_defaults() -> None:
    document = graph_to_json(mlp())
    del document["constants"]
    for record in document["nodes"]:
        if not record["attributes"]:
            del record["attributes"]
    for record in document["parameters"]:
        del record["trainable"]
    VALIDATOR.validate(document)
    assert graph_from_json(document) == mlp()


def test_what_is_row_sparse_is_written_like_a_graph_of_before_there_were_tables() -> None:
    document = graph_to_json(mlp())
    for name in ("row_sparse", "lazy_update"):
        assert all(name not in record for record in document["parameters"])
        said = with_value(document, ("parameters", 0, name), True)
        VALIDATOR.validate(said)
        assert graph_to_json(graph_from_json(said)) == document


def test_what_is_not_lazy_is_written_and_read_again() -> None:
    parameters = (replace(mlp().parameters[0], lazy_update=False), *mlp().parameters[1:])
    document = graph_to_json(replace(mlp(), parameters=parameters))
    assert [record.get("lazy_update") for record in document["parameters"]] == [False, *[None] * (len(parameters) - 1)]
    VALIDATOR.validate(document)
    assert graph_from_json(document).parameters == parameters


def test_a_whole_number_where_the_schema_has_a_float_is_that_float() -> None:
    """JavaScript writes 1.0 as 1."""
    document = graph_to_json(line([node("Gemm", ["x", "x"], ["loss"], alpha=1.0, transB=1)]))
    document["nodes"][0]["attributes"]["alpha"] = 1
    attributes = graph_from_json(document).nodes[0].attributes
    assert isinstance(attributes["alpha"], float)
    assert isinstance(attributes["transB"], int)


def test_an_attribute_that_json_has_no_number_for_is_not_written() -> None:
    with pytest.raises(GraphFormatError) as caught:
        graph_to_json(line([node("Clip", ["x"], ["loss"], **{"a/b": float("inf")})]))
    assert caught.value.pointer == "/nodes/0/attributes/a~1b"


def test_a_big_endian_constant_is_written_little_endian() -> None:
    big = line([node("Identity", ["c"], ["loss"])], constants=[Constant("c", np.array([1, 256], dtype=">i4"))])
    assert base64.b64decode(graph_to_json(big)["constants"][0]["data"]) == struct.pack("<2i", 1, 256)


def test_the_order_of_an_objects_keys_means_nothing() -> None:
    """As for every JSON document; another order of nodes is another graph, whose gradients may be summed otherwise."""
    document = graph_to_json(lenet())
    assert graph_to_json(graph_from_json(reversed_keys(document))) == document
    turned = {**document, "nodes": document["nodes"][::-1]}
    assert graph_to_json(graph_from_json(turned)) == turned != document


def reversed_keys(document: Any) -> Any:
    """The same document with the keys of every object in the other order."""
    if isinstance(document, dict):
        return {key: reversed_keys(document[key]) for key in reversed(document)}
    return [reversed_keys(item) for item in document] if isinstance(document, list) else document


def test_nodes_have_so_many_inputs_and_outputs_together() -> None:
    """40 nodes of 4,096 inputs: each within its own bound, the graph not."""
    wide = [
        {"op_type": "Concat", "name": f"n{n}", "inputs": ["a"] * 4096, "outputs": [f"v{n}"], "attributes": {"axis": 0}}
        for n in range(40)
    ]
    document = {**graph_to_json(lenet()), "nodes": wide}
    with pytest.raises(GraphFormatError, match=r"/nodes/31.*131104 inputs and outputs; at most 131072") as refused:
        graph_from_json(document)
    assert refused.value.pointer == "/nodes/31"
