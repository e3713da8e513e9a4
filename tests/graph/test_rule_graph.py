"""Users' rules: what a document may say, where what it must not say is named, what needs a key whole."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from typing import Any

import numpy as np
import pytest

from counted_calls import counted_calls
from document_mutation import places, with_value, without
from rule_documents import Document, constant, momentum, normalized, outer, rule_document
from weft_graph.errors import GraphError
from weft_graph.infer import infer
from weft_graph.rules.binding import bound_rule
from weft_graph.rules.graph import RULE_LIMITS, rule_graph_from_json, rule_graph_to_json
from weft_graph.rules.parts import parts_of, why_whole
from weft_graph.types import DType


def test_a_rule_is_written_as_it_was_read() -> None:
    document = momentum()
    rule = rule_graph_from_json(document)
    assert rule_graph_to_json(rule) == document
    assert (rule.state, rule.hyper) == ({"velocity": 0.0}, {"lr": 0.1, "momentum": 0.9})
    assert json.loads(json.dumps(rule_graph_to_json(rule))) == document


def test_what_nobody_reads_is_left_out_and_the_rest_is_in_an_order_that_runs() -> None:
    document = momentum()
    unread = {**document["graph"]["nodes"][0], "name": "unread", "outputs": ["unread"]}
    document["graph"]["nodes"] = [unread, *reversed(document["graph"]["nodes"])]
    rule = rule_graph_from_json(document)
    assert [node.name for node in rule.graph.nodes] == ["kept", "v", "move", "w"]
    assert {input_.name for input_ in rule.graph.inputs} == {
        "weight", "gradient", "velocity", "step", "lr", "momentum",
    }  # fmt: skip


def changed(document: Document, pointer: str, value: Any) -> Document:
    document = copy.deepcopy(document)
    *path, last = pointer.strip("/").split("/")
    here: Any = document
    for token in path:
        here = here[int(token)] if isinstance(here, list) else here[token]
    if isinstance(here, list) and last == "-":
        here.append(value)
    else:
        here[int(last) if isinstance(here, list) else last] = value
    return document


NODE = {"op_type": "Mul", "name": "more", "inputs": ["w", "w"], "outputs": ["more"]}
PARAMETER = {
    "name": "p", "dtype": "float32", "shape": [1], "initializer": {"op_type": "RandomNormal", "attributes": {}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("at", "value", "where", "says"),
    [
        ("/graph/nodes/3/op_type", "Dropout", "/graph/nodes/3/op_type", "node 'w' (Dropout): a rule takes"),
        ("/graph/nodes/3/op_type", "Subb", "/graph/nodes/3/op_type", "no operator 'Subb'"),
        ("/graph/nodes/3/domain", "weft", "/graph/nodes/3/domain", "node 'w'"),
        ("/graph/nodes/3/inputs/0", "wait", "/graph/nodes/3/inputs/0", "nothing defines"),
        ("/graph/nodes/0/inputs/1", "w", "/graph/nodes", "cycle"),
        ("/graph/parameters/-", PARAMETER, "/graph/parameters", "parameter 'p'"),
        ("/graph/inputs/0/dtype", "int64", "/graph/inputs/0/dtype", "it is floats"),
        ("/graph/inputs/1/dtype", "float32", "/graph/inputs/1", "of one type"),
        ("/graph/inputs/0/shape", [7], "/graph/inputs/0/shape", "dimensions are names"),
        ("/graph/inputs/1/shape", [], "/graph/inputs/1/shape", "dimensions are names"),
        ("/graph/inputs/2/shape", ["m"], "/graph/inputs/2", "'velocity' is float64[m] and 'weight' is float64[n]"),
        ("/graph/inputs/3/shape", ["n"], "/graph/inputs/3", "input 'step' is float64[n]; it is one number"),
        ("/graph/inputs/4/dtype", "bool", "/graph/inputs/4", "it is one number"),
        ("/graph/inputs/1/name", "grad", "/graph/inputs", "no input 'gradient'"),
        ("/graph/inputs/4/name", "eta", "/hyper/lr", "no input 'lr'"),
        ("/hyper/extra", 1.0, "/hyper/extra", "the graph has no input 'extra'"),
        ("/state/extra", 1.0, "/state/extra", "the graph has no input 'extra'"),
        ("/hyper/lr", math.nan, "/hyper/lr", "a finite number"),
        ("/hyper/lr", "0.1", "/hyper/lr", "a number"),
        ("/state/velocity", math.inf, "/state/velocity", "a finite number"),
        ("/hyper/gradient", 1.0, "/hyper/gradient", "has a meaning already"),
        ("/hyper/velocity", 1.0, "/hyper/velocity", "has a meaning already"),
        ("/state/step", 1.0, "/state/step", "has a meaning already"),
        ("/next/velocity", "kept_", "/next/velocity", "no output of the graph"),
        ("/next/velocity", "kept", "/next/velocity", "no output of the graph"),
        ("/next/spin", "v", "/next/spin", "neither the weight nor a state"),
        ("/next", {"weight": "w"}, "/next", "nothing takes the place of 'velocity'"),
        ("/name", "", "/name", "1 to 256 characters"),
        ("/lr", 1.0, "", "unknown field 'lr'"),
        ("/state", {f"s{n}": 0.0 for n in range(9)}, "/state", "at most 8"),
        ("/graph/format_version", 2, "/graph/format_version", "this reader knows 1"),
        ("/graph/nodes/1/name", "w", "/graph/nodes/3/name", "defined already at /rule/document/graph/nodes/1/name"),
    ],
)
def test_what_is_wrong_is_named(at: str, value: Any, where: str, says: str) -> None:
    with pytest.raises(GraphError) as caught:
        rule_graph_from_json(changed(momentum(), at, value), "/rule/document")
    assert caught.value.pointer.startswith(f"/rule/document{where}")
    assert says in caught.value.message


def test_a_rule_has_to_read_the_gradient_and_keep_types() -> None:
    decays = rule_document([("Mul", "w", ("weight", "lr"))], {"weight": "w"}, hyper={"lr": 0.5})
    with pytest.raises(GraphError, match="never reads 'gradient'"):
        rule_graph_from_json(decays)
    sums = rule_document([("ReduceSum", "w", ("gradient",))], {"weight": "w"})
    with pytest.raises(GraphError, match=r"next: 'w' is float64\[1\], and 'weight' is float64\[n\]") as caught:
        rule_graph_from_json(sums)
    assert caught.value.pointer == "/next/weight"


def test_a_hostile_rule_is_refused_before_anything_is_made_of_it() -> None:
    many = changed(momentum(), "/graph/nodes", [NODE] * 300_000)
    huge = changed(momentum(), "/graph/constants/-", {**constant("c", 1.0, "float64"), "shape": [1 << 14, 1 << 13]})
    wide = changed(momentum(), "/graph/nodes/0/inputs", ["weight"] * 100_000)
    data = changed(momentum(), "/graph/constants", [constant(f"c{n}", np.zeros(1 << 12), "") for n in range(5)])
    for document, says in ((many, "at most 256"), (huge, "at most 16384"), (wide, "at most 64"), (data, "bytes")):
        with counted_calls() as calls, pytest.raises(GraphError, match=says):
            rule_graph_from_json(document)
        assert calls.count < 50_000, says
    assert RULE_LIMITS.nodes == 256


HOSTILE: list[Any] = [None, True, -1, 1 << 70, 0.5, math.nan, "", "weight", "x" * 300, [], [[]], {}, {"weight": 1}]


@pytest.mark.parametrize("document", [momentum(), normalized()], ids=["momentum", "normalized"])
def test_nothing_but_graph_errors_comes_of_a_broken_document(document: Document) -> None:
    for path in places(document):
        broken = [with_value(document, path, value) for value in HOSTILE] + ([without(document, path)] if path else [])
        for one in broken:
            with contextlib.suppress(GraphError):
                bound_rule(rule_graph_from_json(one), DType.FLOAT32, (3, 2))


def test_what_needs_a_key_whole_is_named() -> None:
    assert why_whole(rule_graph_from_json(momentum())) is None
    assert why_whole(rule_graph_from_json(normalized())) == "node 'total' (ReduceSum) does not go element by element"
    assert "node 'column' (Unsqueeze)" in str(why_whole(rule_graph_from_json(outer())))


def test_a_constant_with_a_shape_and_integers_need_a_key_whole() -> None:
    one = rule_document(
        [("Mul", "move", ("gradient", "c")), ("Sub", "w", ("weight", "move"))],
        {"weight": "w"},
        constants={"c": np.array([0.5])},
    )
    assert "reads the constant 'c' of shape [1]" in str(why_whole(rule_graph_from_json(one)))
    whole_numbers = rule_document(
        [("Cast", "i", ("gradient",)), ("Cast", "f", ("i",)), ("Sub", "w", ("weight", "f"))],
        {"weight": "w"},
        attributes={"i": {"to": 7}, "f": {"to": 11}},
    )
    assert why_whole(rule_graph_from_json(whole_numbers)) == "node 'i' (Cast) makes integers"


def test_numbers_are_float64_and_are_cast_once_where_they_meet_arrays() -> None:
    document = rule_document(
        [
            ("Pow", "p", ("beta", "step")),
            ("Sub", "c", ("one", "p")),
            ("Div", "g", ("gradient", "c")),
            ("Mul", "h", ("g", "c")),
            ("Mul", "m", ("h", "one")),
            ("Sub", "w", ("weight", "m")),
        ],
        {"weight": "w"},
        hyper={"beta": 0.9},
        constants={"one": 1.0},
        dtype="float32",
    )
    rule = rule_graph_from_json(document)
    assert parts_of(rule).numbers == {"step", "beta", "one", "p", "c"}
    bound = bound_rule(rule, DType.FLOAT16, None)
    types = {name: str(type_) for name, type_ in infer(bound.graph).items()}
    assert types["p"] == types["c"] == types["one"] == "float64[]"
    # Arrays of float16 keys are computed in float32.
    assert types["c.cast"] == types["one.cast"] == "float32[]"
    assert types["w"] == types["weight"] == "float32[n]"
    assert [node.name for node in bound.graph.nodes] == ["p", "c", "c.cast", "g", "h", "m", "w"]
    assert bound.numbers == 3


def test_a_cast_to_the_rules_element_type_is_one_to_the_keys() -> None:
    document = rule_document(
        [
            ("Cast", "wide", ("gradient",)),
            ("Mul", "square", ("wide", "wide")),
            ("Cast", "back", ("square",)),
            ("Sub", "w", ("weight", "back")),
        ],
        {"weight": "w"},
        attributes={"wide": {"to": 1}, "back": {"to": 11}},
    )
    for key, computed in ((DType.FLOAT16, DType.FLOAT32), (DType.FLOAT32,) * 2, (DType.FLOAT64,) * 2):
        types = bound_rule(rule_graph_from_json(document), key, None).types
        assert (types["square"].dtype, types["back"].dtype, types["w"].dtype) == (DType.FLOAT32, computed, computed)


def test_a_rule_for_matrices_is_not_for_vectors() -> None:
    document = rule_document(
        [("ReduceSum", "r", ("gradient",)), ("Sub", "w", ("weight", "r"))], {"weight": "w"}, shape=("m", "m")
    )
    rule = rule_graph_from_json(document)
    assert bound_rule(rule, DType.FLOAT32, (3, 3)).graph.inputs[0].type.shape == (3, 3)
    for shape in ((3,), (3, 4), (3, 3, 3)):
        with pytest.raises(GraphError, match=r"rule 'test' is for weights of shape \[m, m\], not float32"):
            bound_rule(rule, DType.FLOAT32, shape)
