"""Rules as they are submitted: what the store is told of them, and where what is wrong with them is named."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from counted_calls import counted_calls
from rule_documents import momentum, normalized, outer, rule_document
from server_specs import FEATURES, linear, save_rows, spec_json
from weft.api.job import JobSpec
from weft.api.optimizer import OptimizerSpec
from weft_graph.ir import Graph, Initializer, Node, Parameter
from weft_graph.json_form import graph_to_json
from weft_graph.program import KeyPlan, Update
from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.graph import RuleGraph, checked, rule_graph_from_json
from weft_graph.types import DType, TensorType
from weft_kernels.rules.lookup import rule_from
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import descriptions
from weft_server.planning.check import read_and_check
from weft_server.planning.estimate import Bounds
from weft_server.planning.plan import JobPlan
from weft_server.planning.rule_check import read_rule, rule_errors
from weft_server.problems import field_error
from weft_server.refusals import JobRefusedError

LINEAR = {"schedule": "linear", "start": 0.1, "steps": 5}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return save_rows(tmp_path / "rows.npz")


def planned(rows: Path, rule: Any, **changes: Any) -> JobPlan:
    return read_and_check(JobSpec.model_validate(spec_json(rows, optimizer=rule, **changes)), None, Bounds())


def refused(rows: Path, rule: Any, **changes: Any) -> dict[str, str]:
    """Pointer -> detail of everything that is wrong with the job."""
    with pytest.raises(JobRefusedError) as caught:
        planned(rows, rule, **changes)
    assert all("\n" not in error.detail for error in caught.value.errors)
    return {error.pointer: error.detail for error in caught.value.errors}


def with_table(dtype: DType = DType.FLOAT32) -> Graph:
    """The classifier with a bias looked up in a table of five rows."""
    graph = linear()
    table = Parameter("rows", TensorType(dtype, (5, 3)), Initializer("RandomNormal", {"mean": 0.0, "scale": 1.0}))
    return Graph(
        name="embedded",
        inputs=graph.inputs,
        parameters=(*graph.parameters, table),
        nodes=(
            Node("Gather", "looked", ("rows", "y"), ("looked",)),
            Node("Gemm", "product", ("x", "w", "b"), ("product",)),
            Node("Add", "scores", ("product", "looked"), ("scores",)),
            graph.nodes[1],
        ),
        outputs=graph.outputs,
    )


def test_a_users_rule_goes_to_the_store_with_every_hyper_parameter(rows: Path) -> None:
    rule = {"name": "graph", "document": momentum(), "hyper": {"lr": LINEAR}}
    plan = planned(rows, rule)
    assert plan.hyper == {"lr": {**LINEAR, "end": 0.0, "begin": 0}, "momentum": 0.9}
    assert isinstance(plan.rule, dict)
    made = rule_from(plan.rule)
    assert (made.name, made.whole, made.state, made.hyper) == (
        "test", False, {"velocity": 0.0}, {"lr": 0.1, "momentum": 0.9},
    )  # fmt: skip
    assert JobPlan.model_validate_json(plan.model_dump_json()) == plan
    assert rule_graph_from_json(plan.store("job", 1, [""]).model_dump(mode="json")["rule"]).next == made_next()


def made_next() -> dict[str, str]:
    return {"weight": "w", "velocity": "v"}


@pytest.mark.parametrize(
    ("rule", "stored", "hyper"),
    [
        (
            {"name": "sgd", "lr": LINEAR, "momentum": {"schedule": "constant", "value": 0.0}},
            "momentum",
            {"lr": {**LINEAR, "end": 0.0, "begin": 0}, "momentum": {"schedule": "constant", "value": 0.0},
             "weight_decay": 0.0},
        ),
        ({"name": "adagrad"}, "adagrad", {"lr": 0.01, "epsilon": 1e-10, "weight_decay": 0.0}),
        (
            {"name": "adagrad", "initial_accumulator_value": 0.1, "weight_decay": 0.5},
            {"name": "adagrad", "state": {"sum": 0.1}},
            {"lr": 0.01, "epsilon": 1e-10, "weight_decay": 0.5},
        ),
        ({"name": "sgd", "momentum": 0.9, "nesterov": True}, "nesterov",
         {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0}),
        (
            {"name": "adamw", "lr": LINEAR},
            "adamw",
            {"lr": {**LINEAR, "end": 0.0, "begin": 0}, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8,
             "weight_decay": 0.01},
        ),
        ({"name": "rmsprop", "alpha": 0.5}, "rmsprop",
         {"lr": 0.01, "decay": 0.5, "epsilon": 1e-8, "weight_decay": 0.0}),
        ({"name": "ftrl", "l1": 2}, "ftrl", {"lr": 0.1, "beta": 1.0, "l1": 2.0, "l2": 0.0}),
        ({"name": "lamb"}, "lamb", {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6,
                                    "weight_decay": 0.01, "trust": 1.0}),
        ({"name": "lars"}, "lars", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "trust": 0.001}),
    ],
)  # fmt: skip
def test_built_in_rules_go_by_name_or_by_what_their_state_starts_at(
    rows: Path, rule: dict[str, Any], stored: Any, hyper: dict[str, Any]
) -> None:
    plan = planned(rows, rule)
    assert (plan.rule, plan.hyper) == (stored, hyper)
    assert set(rule_from(plan.rule).hyper) == set(hyper)


def test_the_first_multiplier_that_matches_a_key_is_the_keys(rows: Path) -> None:
    multipliers = [{"keys": "b*", "lr": 2.0, "weight_decay": 0.0}, {"keys": "*", "lr": 0.5}]
    plan = planned(rows, {"name": "sgd", "multipliers": multipliers})
    assert {key.key: key.multipliers for key in plan.keys} == {
        "w": {"lr": 0.5},
        "b": {"lr": 2.0, "weight_decay": 0.0},
    }
    own = {"name": "graph", "document": momentum(), "multipliers": [{"keys": "?", "momentum": -0.5}]}
    assert {key.key: key.multipliers for key in planned(rows, own).keys} == {
        "w": {"momentum": -0.5},
        "b": {"momentum": -0.5},
    }


def test_a_rule_with_a_norm_keeps_its_keys_whole(rows: Path) -> None:
    assert [key.whole for key in planned(rows, {"name": "graph", "document": normalized()}).keys] == [True, True]
    assert [key.whole for key in planned(rows, {"name": "graph", "document": momentum()}).keys] == [False, False]


@pytest.mark.parametrize("name", ["lamb", "lars"])
@pytest.mark.parametrize("update", ["shards", "workers"])
def test_lamb_and_lars_keep_their_keys_whole(rows: Path, name: str, update: str) -> None:
    """What workers update is sent as gradients, which are cut as others are."""
    multipliers = [{"keys": "b", "trust": 0.0, "weight_decay": 0.0}]
    parallelism = {"workers": 2, "shards": 2, "update": update}
    plan = planned(rows, {"name": name, "multipliers": multipliers}, parallelism=parallelism)
    assert {key.key: (key.whole, key.multipliers) for key in plan.keys if key.update == "rule"} == {
        "w": (True, {}),
        "b": (True, {"trust": 0.0, "weight_decay": 0.0}),
    }
    assert not any(key.whole for key in plan.keys if key.update != "rule")
    check_description(descriptions.from_builtins(plan.store("job", 1, ["", ""]).model_dump(mode="json")))


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_lamb_and_lars_are_refused_for_tables_by_their_names(rows: Path, name: str) -> None:
    found = refused(rows, {"name": name}, graph=graph_to_json(with_table()))
    assert found.keys() == {"/optimizer/name"}
    assert (
        f"key 'rows' is a table, of which a rule sees the touched rows alone, and {name} divides"
        in found["/optimizer/name"]
    )
    for pointwise in ("nesterov", "adamw", "rmsprop", "ftrl"):
        plan = planned(rows, {"name": pointwise}, graph=graph_to_json(with_table()))
        assert [(key.key, key.whole) for key in plan.keys if key.rows] == [("rows", False)]


def test_an_update_that_would_hold_up_its_shard_is_refused() -> None:
    """LAMB moves ten arrays of the key's size: 4 GiB of it are 107 million float32."""
    draw = Initializer("ConstantOfShape", {"value": 0.0})
    for rows, refused_ in ((104_857, False), (104_858, True)):
        key = KeyPlan("large", TensorType(DType.FLOAT32, (rows, 1024)), draw, Update.RULE, 0)
        found = list(rule_errors(read_rule(TypeAdapter(OptimizerSpec).validate_python({"name": "lamb"})), [key]))
        assert bool(found) == refused_, found
    assert found[0].pointer == "/optimizer/name"
    assert "key 'large' (float32[104858, 1024]): lamb divides by" in found[0].detail
    assert not list(rule_errors(read_rule(TypeAdapter(OptimizerSpec).validate_python({"name": "adam"})), [key]))


def test_only_what_the_rule_updates_is_whole_and_multiplied(rows: Path) -> None:
    document = graph_to_json(linear())
    document["parameters"][1]["trainable"] = False
    rule = {"name": "graph", "document": normalized(), "multipliers": [{"keys": "*", "lr": 2.0}]}
    plan = planned(rows, rule, graph=document)
    of = {key.key: (key.slots, key.whole, key.multipliers) for key in plan.keys}
    assert of == {"w": ([0, 1], True, {"lr": 2.0}), "b": ([], False, {})}
    found = refused(rows, {"name": "sgd", "multipliers": [{"keys": "b"}]}, graph=document)
    assert found == {"/optimizer/multipliers/0/keys": "'b' matches no parameter that is trained; there are 'w'"}


def test_a_table_takes_a_rule_that_goes_element_by_element_alone(rows: Path) -> None:
    graph = graph_to_json(with_table())
    plan = planned(rows, {"name": "graph", "document": momentum()}, graph=graph)
    assert [(key.key, key.rows, key.whole) for key in plan.keys if key.rows] == [("rows", True, False)]
    found = refused(rows, {"name": "graph", "document": normalized()}, graph=graph)
    assert found.keys() == {"/optimizer/document/graph"}
    assert "key 'rows' is a table" in found["/optimizer/document/graph"]
    assert "node 'total' (ReduceSum)" in found["/optimizer/document/graph"]


def test_memory_counts_the_rules_own_state(rows: Path) -> None:
    adagrad = {"name": "adagrad", "initial_accumulator_value": 1.0}
    for rule, arrays in (({"name": "sgd"}, 0), ({"name": "adam"}, 2), (adagrad, 1),
                         ({"name": "graph", "document": momentum()}, 1)):  # fmt: skip
        kept = (12 + 3) * 4 * (1 + arrays)
        spec = JobSpec.model_validate(spec_json(rows, optimizer=rule))
        read_and_check(spec, None, Bounds(parameter_bytes=kept))
        with pytest.raises(JobRefusedError, match=f"take {kept} bytes"):
            read_and_check(spec, None, Bounds(parameter_bytes=kept - 1))


def changed(document: dict[str, Any], pointer: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(document)
    here: Any = document
    *path, last = pointer.strip("/").split("/")
    for token in path:
        here = here[int(token)] if isinstance(here, list) else here[token]
    here[int(last) if isinstance(here, list) else last] = value
    return document


OWN: dict[str, Any] = {
    "name": "graph",
    "document": momentum(),
    "hyper": {},
    "multipliers": [{"keys": "w", "lr": 2.0}],
}


@pytest.mark.parametrize(
    ("at", "value", "where", "says"),
    [
        ("/document/graph/nodes/3/op_type", "Dropout", "/document/graph/nodes/3/op_type", "node 'w' (Dropout)"),
        ("/document/graph/nodes/3/op_type", "Gremm", "/document/graph/nodes/3/op_type", "'Gremm'"),
        ("/document/next/weight", "kept", "/document/next/weight", "no output of the graph"),
        ("/document/hyper/more", 1.0, "/document/hyper/more", "the graph has no input 'more'"),
        ("/document/hyper", {"lr": 0.1}, "/document/graph/inputs/5/name", "'momentum' is neither"),
        ("/document/graph", None, "/document/graph", "expected an object, got null"),
        ("/document", {}, "/document", "field 'name' is missing"),
        ("/hyper/eta", 0.1, "/hyper/eta", "optimizer 'test' has no hyper-parameter 'eta'; it has 'lr', 'momentum'"),
        ("/multipliers/0/keys", "*.bias", "/multipliers/0/keys", "'*.bias' matches no parameter that is trained"),
        ("/multipliers/0/eta", 2.0, "/multipliers/0/eta", "no hyper-parameter 'eta'; it has 'lr', 'momentum'"),
        ("/document", outer(), "/document/graph", "node 'square' (Mul)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(rows: Path, at: str, value: Any, where: str, says: str) -> None:
    changes: dict[str, Any] = {}
    if says == "node 'square' (Mul)":
        wide = linear()
        big = Parameter("w", TensorType(DType.FLOAT32, (FEATURES, 4096)), wide.parameters[0].initializer)
        bias = Parameter("b", TensorType(DType.FLOAT32, (4096,)), wide.parameters[1].initializer)
        changes["graph"] = graph_to_json(Graph("wide", wide.inputs, (big, bias), wide.nodes, wide.outputs))
    found = refused(rows, changed(OWN, at, value), **changes)
    assert f"/optimizer{where}" in found, found
    assert says in found[f"/optimizer{where}"]


def test_a_multiplier_of_what_a_built_in_rule_has_not_is_refused(rows: Path) -> None:
    found = refused(rows, {"name": "adam", "multipliers": [{"keys": "w", "weight_decay": 0.0}]})
    assert found == {
        "/optimizer/multipliers/0/weight_decay": "the optimizer has no hyper-parameter 'weight_decay'; "
        "it has 'lr', 'beta1', 'beta2', 'epsilon'"
    }


def test_a_key_of_another_rank_than_the_rules_is_named(rows: Path) -> None:
    document = normalized()
    for place in (0, 1):
        document["graph"]["inputs"][place]["shape"] = ["rows", "columns"]
    document["graph"]["nodes"][1]["attributes"] = {"keepdims": 1}
    found = refused(rows, {"name": "graph", "document": document})
    assert found == {
        "/optimizer/document/graph": "key 'b': rule 'test' is for weights of shape [rows, columns], not float32[3]"
    }


def test_a_hostile_rule_is_refused_quickly(rows: Path) -> None:
    node = {"op_type": "Mul", "name": "more", "inputs": ["w", "w"], "outputs": ["more"]}
    constant = {"name": "c", "dtype": "float64", "shape": [1 << 14, 1 << 13], "data": ""}
    nodes = changed(OWN, "/document/graph/nodes", [node] * 300_000)
    constants = changed(OWN, "/document/graph/constants", [constant])
    with counted_calls() as calls:
        many, large = refused(rows, nodes), refused(rows, constants)
    assert "at most 256" in many["/optimizer/document/graph/nodes"]
    assert "elements, and at most" in large["/optimizer/document/graph/constants/0/shape"]
    assert calls.count < 100_000


def many(count: int) -> list[KeyPlan]:
    draw = Initializer("ConstantOfShape", {"value": 0.0})
    shapes = [TensorType(DType.FLOAT32, (n + 1,)) for n in range(count)]
    return [KeyPlan(f"k{n}", type_, draw, Update.RULE, n) for n, type_ in enumerate(shapes)]


def test_a_large_graph_costs_no_more_than_its_shapes_allow() -> None:
    """Many parameters, every one of another shape, and patterns that are slow to match."""
    slow = [{"keys": "*k" * 120, "lr": 1.0}] * 31 + [{"keys": "k*", "lr": 1.0}]
    chain = [("Transpose", f"t{n}", (f"t{n - 1}" if n else "gradient",)) for n in range(60)]
    document = rule_document([*chain, ("Mul", "m", ("lr", "t59")), ("Sub", "w", ("weight", "m"))],
                             {"weight": "w"}, hyper={"lr": 0.1})  # fmt: skip
    whole = TypeAdapter(OptimizerSpec).validate_python({"name": "graph", "document": document, "multipliers": slow})
    keys, more = many(1000), many(20_000)
    with counted_calls() as calls:
        found = list(rule_errors(read_rule(whole), keys))
    assert "'k128': an optimizer that needs keys whole is for parameters of at most 128 shapes" in found[0].detail
    assert len(found) == 1 + 31
    own = TypeAdapter(OptimizerSpec).validate_python({"name": "graph", "document": momentum()})
    with counted_calls() as others:
        assert not list(rule_errors(read_rule(own), more))
    assert calls.count + others.count < 5_000_000


@pytest.mark.parametrize(
    ("rule", "pointer", "says"),
    [
        ({"name": "sgd", "lr": -1}, "/optimizer/lr", "above 0"),
        ({"name": "sgd", "lr": {**LINEAR, "end": -0.1}}, "/optimizer/lr", "its values go from -0.1 to 0.1"),
        ({"name": "sgd", "lr": {**LINEAR, "steps": 0}}, "/optimizer/lr/steps", "greater than or equal to 1"),
        ({"name": "sgd", "lr": {"schedule": "linear", "start": 1}}, "/optimizer/lr/steps", "Field required"),
        ({"name": "sgd", "lr": {"schedule": "linaer"}}, "/optimizer/lr", "'linaer'"),
        ({"name": "sgd", "momentum": {"schedule": "constant", "value": 1}}, "/optimizer/momentum", "and below 1"),
        ({"name": "adam", "lr": {"schedule": "exponential", "start": 1, "factor": 2, "steps": 1}}, "/optimizer/lr",
         "grows without end"),
        ({"name": "sgd", "lr": {"schedule": "piecewise", "start": 1, "boundaries": [{"step": 1, "factor": 1}] * 2}},
         "/optimizer/lr", "/boundaries/1/step: step 1 does not come after step 1"),
        ({"name": "adagrad", "initial_accumulator_value": -1}, "/optimizer/initial_accumulator_value",
         "greater than or equal to 0"),
        ({"name": "sgd", "multipliers": [{"keys": "w", "eta": 1}]}, "/optimizer/multipliers/0/eta", "Extra inputs"),
        ({"name": "sgd", "multipliers": [{"lr": 1}]}, "/optimizer/multipliers/0/keys", "Field required"),
        ({"name": "sgd", "multipliers": [{"keys": "w"}] * 33}, "/optimizer/multipliers", "at most 32"),
        ({"name": "graph", "document": {}, "hyper": {"a": float("nan")}}, "/optimizer/hyper/a", "a finite number"),
        ({"name": "graph", "document": {}, "multipliers": [{"keys": "w", "lr": "x"}]}, "/optimizer/multipliers/0/lr",
         "a valid number"),
        ({"name": "graph"}, "/optimizer/document", "Field required"),
        ({"name": "lion"}, "/optimizer", "'lion'"),
        ({"name": "adam", "betas": [0.9, 1]}, "/optimizer/betas/1", "below 1"),
        ({"name": "ftrl", "beta": 0}, "/optimizer/beta", "greater than 0"),
        ({"name": "ftrl", "l1": -1}, "/optimizer/l1", "from 0 to 1000"),
        ({"name": "rmsprop", "alpha": 1}, "/optimizer/alpha", "below 1"),
        ({"name": "lamb", "trust": float("inf")}, "/optimizer/trust", "a finite number"),
    ],
)  # fmt: skip
def test_the_models_refuse_numbers_with_their_place(rule: dict[str, Any], pointer: str, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, OptimizerSpec]).validate_python({"optimizer": rule})
    body = {"optimizer": rule}
    errors = [field_error({**error, "loc": ("body", *error["loc"])}, body) for error in caught.value.errors()]
    assert [error.pointer for error in errors] == [pointer]
    assert says in errors[0].detail


def test_the_api_describes_every_rule_and_schedule() -> None:
    described = TypeAdapter(OptimizerSpec).json_schema()
    mapping = described["anyOf"][1]["discriminator"]["mapping"]
    assert mapping.keys() == {*BUILT_IN.keys() - {"momentum", "nesterov"}, "graph"}
    assert set(described["anyOf"][0]["enum"]) == mapping.keys() - {"graph"}
    assert {"Linear", "Cosine", "Exponential", "Piecewise", "Polynomial", "Constant"} <= described["$defs"].keys()
    assert all("description" in model for model in described["$defs"].values())


def test_a_rule_is_read_once_at_submit(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(rule: RuleGraph, pointer: str = "") -> RuleGraph:
        read.append(rule.name)
        return checked(rule, pointer)

    monkeypatch.setattr("weft_graph.rules.graph.checked", counted)
    planned(rows, {"name": "graph", "document": momentum()})
    assert read == ["test"]
