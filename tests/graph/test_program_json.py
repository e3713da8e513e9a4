"""Programs and their JSON form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from document_mutation import places, refusal, with_value, without
from graph_strategies import anything, examples
from graph_tables import two_bags
from sample_graphs import lenet, mlp, normalized_mlp
from weft_graph.convert import convert
from weft_graph.errors import GraphFormatError
from weft_graph.ir import Graph
from weft_graph.program import Program, Programs
from weft_graph.program_json import programs_from_json, programs_to_json

GRAPHS = [mlp(), normalized_mlp(), lenet(), two_bags()]


def converted(graph: Graph) -> Programs:
    return convert(graph, loss="loss", metrics={name: name for name in graph.outputs})


def plain(program: Program) -> tuple[Any, ...]:
    """All of a program in values that compare; constants have no equality of their own."""
    constants = [(c.name, c.array.dtype, c.array.shape, c.array.tobytes()) for c in program.constants]
    nodes = [(n, [(name, type(value)) for name, value in n.attributes.items()]) for n in program.nodes]
    return program.role, program.inputs, constants, nodes, dict(program.outputs), list(program.types.items())


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_programs_survive_their_json_text(graph: Graph) -> None:
    programs = converted(graph)
    read = programs_from_json(json.loads(json.dumps(programs_to_json(programs), allow_nan=False)))
    assert plain(read.train) == plain(programs.train)
    assert plain(read.evaluate) == plain(programs.evaluate)
    assert read.keys == programs.keys


def test_a_table_that_is_not_lazy_says_so_and_no_other_key_does() -> None:
    graph = two_bags()
    graph = replace(graph, parameters=tuple(replace(p, lazy_update=p.name != "T") for p in graph.parameters))
    programs = converted(graph)
    document = programs_to_json(programs)
    assert [key["key"] for key in document["keys"] if "lazy_update" in key] == ["T"]
    assert programs_from_json(document).keys == programs.keys


def test_a_document_of_before_tables_is_read() -> None:
    programs = converted(mlp())
    document = programs_to_json(programs)
    keys = [{name: value for name, value in key.items() if name not in NEW_IN_2} for key in document["keys"]]
    old = {**document, "format_version": 1, "keys": keys}
    assert programs_from_json(old).keys == programs.keys
    for version, of_keys in ((1, document["keys"]), (2, keys)):
        with pytest.raises(GraphFormatError, match=r"/keys/0: (unknown field|field) 'rows'"):
            programs_from_json({**document, "format_version": version, "keys": of_keys})


NEW_IN_2 = ("rows", "dense_because")
DOCUMENT = programs_to_json(converted(two_bags()))
PLACES = list(places(DOCUMENT))
TOO_LONG = "+".join(f"d{number}" for number in range(65))
WRONG = [None, True, -1, 1, 1 << 70, 1.5, float("inf"), "", "x", "n" * 3000, "\ud800", [], [[]], {}, {"x": 1}, object()]


@examples()
@given(anything)
def test_the_reader_raises_nothing_but_format_errors_on_anything(document: Any) -> None:
    with pytest.raises(GraphFormatError):
        programs_from_json(document)


@examples(150)
@given(st.data())
def test_one_wrong_place_raises_nothing_but_a_format_error(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PLACES))
    is_removed = path != () and data.draw(st.booleans())
    changed = without(DOCUMENT, path) if is_removed else with_value(DOCUMENT, path, data.draw(st.sampled_from(WRONG)))
    error = refusal(programs_from_json, changed)
    assert error is None or error.pointer == "" or error.pointer.startswith("/")


@pytest.mark.parametrize(
    ("path", "value", "pointer", "message"),
    [
        (("format_version",), 7, "/format_version", "format version 7 is unknown"),
        (("format_version",), True, "/format_version", "format version true is unknown"),
        (("keys", 1, "rows"), 1, "/keys/1/rows", "expected true or false, got 1"),
        (("keys", 1, "dense_because"), None, "/keys/1/dense_because", "expected text, got null"),
        (("train", "types", "x", "shape", 0), TOO_LONG, "/train/types/x/shape/0", "a sum of more than 64 terms"),
        (("train", "role"), "serve", "/train/role", "expected one of train, evaluate, got 'serve'"),
        (("keys", 0, "update"), "max", "/keys/0/update", "expected one of rule, mean, gradient, got 'max'"),
        (("keys", 0, "priority"), -1, "/keys/0/priority", "expected an integer from 0"),
        (("evaluate", "types", "x", "dtype"), "float8", "/evaluate/types/x/dtype", "got 'float8'"),
    ],
)
def test_a_refusal_says_where(path: tuple[str | int, ...], value: Any, pointer: str, message: str) -> None:
    with pytest.raises(GraphFormatError) as caught:
        programs_from_json(with_value(DOCUMENT, path, value))
    assert caught.value.pointer == pointer
    assert message in caught.value.message
