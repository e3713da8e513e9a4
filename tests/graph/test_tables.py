"""Parameters that are read by rows: which are tables, and what the programs make of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graph_tables import embedding, looked_up, table, two_bags
from sample_graphs import floats, ints, line, mlp, node, scalar, tensor, weight
from weft_graph.check import problems
from weft_graph.convert import convert
from weft_graph.errors import GraphRefusedError, NoGradientError, ShapeError
from weft_graph.infer import infer_program
from weft_graph.ir import Graph, Node
from weft_graph.limits import PROGRAM_LIMITS
from weft_graph.memory import parameter_bytes, program_memory
from weft_graph.passes.communication import find_tables
from weft_graph.passes.draft import Options
from weft_graph.program import Program, Programs, Update
from weft_graph.program_text.program import programs_text
from weft_graph.types import DType, TensorType

GATHERED = node("ReduceSum", ["ta"], ["y"], axes=(1,), keepdims=0)


def converted(graph: Graph) -> Programs:
    """Without fusion: the nodes are the user's."""
    return convert(graph, loss="loss", metrics={}, options=Options(fusion=False))


def one_table(*nodes: Node, **given: Any) -> Graph:
    return looked_up(
        *(nodes or (node("Gather", ["T", "a"], ["ta"]),)), GATHERED, parameters=[table("T", 11, 4, **given)]
    )


def operators(program: Program) -> list[str]:
    return [n.op_type for n in program.nodes]


def named(program: Program, name: str) -> Node:
    return next(n for n in program.nodes if n.name == name)


def test_a_table_never_exists_and_its_rows_are_fetched_and_pushed() -> None:
    programs = converted(two_bags())
    assert {key.key: key.rows for key in programs.keys} == {"w": False, "T": True, "U": True}
    for program in (programs.train, programs.evaluate):
        assert {n.attributes["key"] for n in program.nodes if n.op_type == "Fetch"} == {"w"}
        assert not {"T", "U"} & set(program.types)
        assert program.types["weft.rows/T"] == TensorType(DType.FLOAT32, ("8*batch", 4))
        assert program.types["weft.rows_ids/U"] == TensorType(DType.INT64, ("10*batch",))
        for key in ("T", "U"):
            fetch = named(program, f"weft.fetch_rows/{key}")
            assert (fetch.inputs, fetch.outputs) == ((f"weft.rows_ids/{key}",), (f"weft.rows/{key}",))
    sends = [n for n in programs.train.nodes if n.op_type in {"Send", "SendRows"}]
    assert {(n.op_type, n.attributes["key"]) for n in sends} == {("Send", "w"), ("SendRows", "T"), ("SendRows", "U")}
    for send in sends:
        if send.op_type == "SendRows":
            ids, gradient = send.inputs
            assert ids == f"weft.rows_ids/{send.attributes['key']}"
            assert programs.train.types[gradient] == programs.train.types[f"weft.rows/{send.attributes['key']}"]
    assert programs.train.nodes[-1].attributes == {"keys": ()}
    assert "SendRows" not in operators(programs.evaluate)


def test_unique_rows_says_how_each_reader_reads() -> None:
    program = converted(two_bags(padding_id=-7)).train
    unique = named(program, "weft.unique_rows/T")
    assert (unique.op_type, unique.domain, unique.inputs) == ("UniqueRows", "weft", ("a", "b"))
    assert unique.outputs == ("weft.rows_ids/T", "weft.row_index/T:0", "weft.row_index/T:1")
    assert dict(unique.attributes) == {
        "rows": 11,
        "readers": ("n_ta", "n_tb"),
        "wraps": (0, 1),
        "padded": (1, 0),
        "padding_ids": (-7, 0),
    }
    reader = named(program, "n_ta")
    assert reader.inputs == ("weft.rows/T", "weft.row_index/T:0")
    assert reader.attributes == {"padding_id": -1}


def test_rows_are_asked_for_before_anything_else_runs() -> None:
    """T's ids are inputs; U's are computed, from inputs alone, at the end of the user's list. w is needed first."""
    programs = converted(two_bags())
    assert {key.key: key.priority for key in programs.keys} == {"w": 0, "T": 1, "U": 2}
    for program in (programs.train, programs.evaluate):
        assert [n.name for n in program.nodes[:9]] == [
            "weft.unique_rows/T",
            "weft.fetch_rows/T",
            "n_large",
            "n_small",
            "n_twice",
            "n_u_ids",
            "weft.unique_rows/U",
            "weft.fetch_rows/U",
            "weft.fetch/w",
        ]
        assert [n.attributes["priority"] for n in program.nodes if n.op_type == "FetchRows"] == [1, 2]


def test_gradients_of_rows_leave_as_soon_as_they_exist() -> None:
    nodes = converted(two_bags()).train.nodes
    for index, n in enumerate(nodes):
        if n.op_type == "SendRows":
            assert n.inputs[1] in nodes[index - 1].outputs
    assert operators(converted(two_bags()).train)[-2:] == ["Send", "SendBarrier"]


def test_ids_that_a_network_computes_are_asked_for_where_they_are_made() -> None:
    """U is read by the place of the largest of T's numbers: its rows wait for T's, and not for what comes after."""
    graph = looked_up(
        node("Gather", ["T", "a"], ["ta"]),
        GATHERED,
        node("MatMul", ["y", "w"], ["yw"]),
        node("ArgMax", ["ta"], ["best"], axis=2, keepdims=0),
        node("Gather", ["U", "best"], ["u"]),
        node("ReduceMean", ["u"], ["us"], axes=(1,), keepdims=0),
        node("Mul", ["yw", "us"], ["z"]),
        node("ReduceSum", ["z"], ["metric"], keepdims=0),
        parameters=[table("T", 11, 4), weight("w", 4, 4, trainable=False), table("U", 7, 4, trainable=False)],
        asked=["metric"],
    )
    program = convert(graph, loss="loss", metrics={"metric": "metric"}).evaluate
    names = [n.name for n in program.nodes]
    assert names[:2] == ["weft.unique_rows/T", "weft.fetch_rows/T"]
    place = names.index("n_best")
    assert names[place + 1 : place + 3] == ["weft.unique_rows/U", "weft.fetch_rows/U"]


@pytest.mark.parametrize(
    ("readers", "inputs"),
    [
        ([node("Gather", ["T", "a"], ["t1"]), node("Gather", ["T", "a"], ["t2"], axis=-2)], ("a",)),
        ([embedding(["T", "a"], "t1", padding_id=2), embedding(["T", "a"], "t2", padding_id=2)], ("a",)),
        ([embedding(["T", "a"], "t1"), node("Gather", ["T", "a"], ["t2"])], ("a", "a")),
        ([embedding(["T", "a"], "t1", padding_id=0), embedding(["T", "a"], "t2", padding_id=1)], ("a", "a")),
        ([embedding(["T", "a"], "t1"), embedding(["T", "a"], "t2", padding_id=0)], ("a", "a")),
    ],
)
def test_ids_that_are_read_alike_are_looked_up_once(readers: list[Node], inputs: tuple[str, ...]) -> None:
    programs = converted(one_table(*readers, node("Add", ["t1", "t2"], ["ta"])))
    assert named(programs.train, "weft.unique_rows/T").inputs == inputs
    assert programs.train.types["weft.rows/T"].shape == (f"{3 * len(inputs)}*batch", 4)
    assert operators(programs.train).count("FetchRows") == operators(programs.train).count("SendRows") == 1


def test_a_frozen_table_is_fetched_by_rows_and_never_sent() -> None:
    graph = looked_up(
        node("Gather", ["T", "a"], ["ta"]),
        node("ReduceSum", ["ta"], ["s"], axes=(1,), keepdims=0),
        node("Mul", ["s", "w"], ["y"]),
        parameters=[table("T", 11, 4, trainable=False), weight("w", 4)],
    )
    programs = converted(graph)
    assert [(key.rows, key.update) for key in programs.keys] == [(True, Update.MEAN), (False, Update.RULE)]
    found = operators(programs.train)
    assert (found.count("FetchRows"), found.count("SendRows"), found.count("GatherGrad")) == (1, 0, 0)
    assert programs.train.nodes[-1].attributes == {"keys": ("T",)}
    assert "and sends nothing: it is not trained." in said(programs)


def tied() -> Graph:
    return looked_up(
        node("Gather", ["T", "a"], ["ta"]),
        node("ReduceSum", ["ta"], ["s"], axes=(1,), keepdims=0),
        node("Gemm", ["s", "T"], ["scores"], transB=1),
        node("ReduceMean", ["scores"], ["y"], axes=(1,)),
        parameters=[table("T", 11, 4)],
    )


def read_by_columns_too() -> Graph:
    graph = one_table(
        node("Gather", ["T", "a"], ["t"]),
        node("Gather", ["T", "first"], ["column"], axis=1),
        node("ReduceMean", ["column"], ["mean"]),
        node("Add", ["t", "mean"], ["ta"]),
    )
    return replace(graph, constants=(ints("first", 0),))


@pytest.mark.parametrize(
    ("graph", "because"),
    [
        (tied(), "node 'n_scores' (Gemm) reads it otherwise than by rows"),
        (read_by_columns_too(), "node 'n_column' (Gather) reads it otherwise than by rows"),
        (one_table(row_sparse=False), "row_sparse is false"),
    ],
)
def test_what_is_dense_although_read_by_rows_says_why(graph: Graph, because: str) -> None:
    programs = converted(graph)
    (key,) = programs.keys
    assert (key.rows, key.dense_because) == (False, because)
    assert {"Fetch", "Send", "GatherGrad"} <= set(operators(programs.train))
    assert not {"FetchRows", "SendRows", "UniqueRows"} & set(operators(programs.train))
    assert f"T is read by rows, and is dense all the same: {because}." in said(programs)


def test_a_trained_table_that_is_not_lazy_is_dense_where_the_rule_needs_keys_whole() -> None:
    options = Options(fusion=False, whole_rule="it divides by norms")

    def dense_because(**given: bool) -> str:
        (key,) = convert(one_table(**given), loss="loss", metrics={}, options=options).keys
        assert key.rows is not bool(key.dense_because)
        return key.dense_because

    assert dense_because(lazy_update=False) == "lazy_update is false, and it divides by norms"
    assert not dense_because(lazy_update=True)
    (key,) = converted(one_table(lazy_update=False)).keys
    assert (key.rows, key.lazy_update) == (True, False)
    frozen = looked_up(
        node("Gather", ["T", "a"], ["t"]),
        node("Mul", ["t", "w"], ["ta"]),
        GATHERED,
        parameters=[table("T", 11, 4, trainable=False, lazy_update=False), weight("w", 4)],
    )
    assert convert(frozen, loss="loss", metrics={}, options=options).keys[0].rows


def test_the_text_says_that_a_rule_runs_on_the_rows_that_a_step_does_not_touch() -> None:
    sentence = "The rule runs on its other rows too, with gradients of zeros."
    assert sentence in said(converted(one_table(lazy_update=False)))
    assert sentence not in said(converted(one_table()))


def test_rows_of_a_copy_say_why_the_parameter_is_dense() -> None:
    """Nobody would find out otherwise that a Cast has made a table travel whole."""
    once = (
        node("Cast", ["T"], ["wide"], to=1),
        node("Identity", ["wide"], ["same"]),
        node("Transpose", ["same"], ["turned"]),
        node("Transpose", ["turned"], ["back"]),
        node("Gather", ["back", "a"], ["ta"]),
    )
    (key,) = converted(looked_up(*once, GATHERED, parameters=[table("T", 11, 4)])).keys
    assert (key.rows, key.dense_because) == (False, "node 'n_wide' (Cast) reads it otherwise than by rows")


def test_a_value_that_the_job_asks_for_is_needed_whole() -> None:
    graph = one_table()
    found = find_tables(graph.parameters, graph.nodes, ["loss", "T"])
    assert (found.keys, dict(found.dense)) == ((), {"T": "the job asks for its value"})
    assert find_tables(graph.parameters, graph.nodes, ["loss"]).keys == ("T",)


def test_what_will_not_run_makes_no_table_dense() -> None:
    """The norm of the table is an output of the graph that the job does not ask for."""
    graph = looked_up(
        node("Gather", ["T", "a"], ["ta"]),
        GATHERED,
        node("ReduceSum", ["T"], ["norm"], keepdims=0),
        parameters=[table("T", 11, 4)],
        asked=["norm", "T"],
    )
    assert converted(graph).keys[0].rows
    (key,) = convert(graph, loss="loss", metrics={"norm": "norm"}).keys
    assert (key.rows, key.dense_because) == (False, "node 'n_norm' (ReduceSum) reads it otherwise than by rows")


def test_a_parameter_that_nothing_reads_by_rows_is_dense_without_a_word() -> None:
    programs = convert(mlp(), loss="loss", metrics={})
    assert {(key.rows, key.dense_because) for key in programs.keys} == {(False, "")}
    assert "table" not in said(programs)


def said(programs: Programs) -> str:
    """The programs' text without its line breaks."""
    return " ".join(programs_text(programs).split())


def test_the_text_says_what_travels() -> None:
    text = said(converted(two_bags()))
    for name, readers, count, rows in (("T", "n_ta and n_tb", "8*batch", 11), ("U", "n_u", "10*batch", 7)):
        assert (
            f"{name} is a table: it is read by rows alone, at {readers}. A step fetches at most {count} of its {rows} "
            "rows, before anything else runs, and sends gradients of these alone."
        ) in text


def test_sizes_of_ids_add_up_whatever_their_ranks() -> None:
    graph = line(
        [
            node("Gather", ["T", "one"], ["t0"]),
            node("Gather", ["T", "c"], ["t1"]),
            node("Gather", ["T", "x"], ["t2"]),
            *(node("ReduceMean", [f"t{place}"], [f"m{place}"], keepdims=0) for place in range(3)),
            node("Sum", ["m0", "m1", "m2"], ["loss"]),
        ],
        [table("T", 9, 2)],
        inputs={"x": tensor(DType.INT32, "batch", "tokens", 2), "c": tensor(DType.INT64, 10)},
        constants=[scalar("one", 1, "int64")],
    )
    programs = converted(graph)
    assert programs.train.types["weft.rows/T"].shape == ("2*batch*tokens+11", 2)
    bound = infer_program(programs.train, {"batch": 3, "tokens": 4})
    assert bound["weft.rows/T"] == TensorType(DType.FLOAT32, (35, 2))
    assert all(type_.is_static for type_ in bound.values())


def test_a_table_costs_a_worker_its_rows_alone() -> None:
    """2^34 rows of 4 floats: 256 GiB in the store, and on a worker what 3 ids of 5 samples name."""
    programs = converted(looked_up(node("Gather", ["T", "a"], ["ta"]), GATHERED, parameters=[table("T", 1 << 34, 4)]))
    assert parameter_bytes(programs.keys) == 1 << 38
    small = converted(looked_up(node("Gather", ["T", "a"], ["ta"]), GATHERED, parameters=[table("T", 11, 4)]))
    for role in ("train", "evaluate"):
        memory = program_memory(getattr(programs, role), {"batch": 5})
        assert memory == program_memory(getattr(small, role), {"batch": 5})
        assert memory.total < 4096


def test_a_table_that_the_loss_does_not_reach_is_named_as_the_user_named_it() -> None:
    graph = looked_up(
        node("Gather", ["U", "a"], ["u"]),
        node("ArgMax", ["u"], ["best"], axis=2, keepdims=0),
        node("Gather", ["T", "best"], ["ta"]),
        GATHERED,
        parameters=[table("T", 11, 4), table("U", 11, 4)],
    )
    with pytest.raises(GraphRefusedError, match="no path with a gradient to parameter 'U'") as caught:
        converted(graph)
    assert (caught.value.pointer, caught.value.node) == ("/parameters/1", "U")


def test_a_table_whose_gradient_is_blocked_is_named_as_the_user_named_it() -> None:
    graph = line(
        [
            node("Relu", ["x"], ["dead"]),
            node("Gather", ["T", "label"], ["t"]),
            node("ReduceMean", ["t"], ["class_weight"], axes=(0,), keepdims=0),
            node("SoftmaxCrossEntropyLoss", ["x", "label", "class_weight"], ["loss"]),
        ],
        [table("T", 11, 4)],
        inputs={"x": floats("batch", 4), "label": tensor(DType.INT64, "batch")},
    )
    with pytest.raises(NoGradientError, match=r"parameter 'T' cannot be trained.* node 'n_loss'") as caught:
        converted(graph)
    assert caught.value.pointer == "/nodes/3"


def test_ids_of_too_many_kinds_are_refused_by_the_tables_name() -> None:
    count = 70
    nodes = [node("Gather", ["T", f"i{n}"], [f"t{n}"]) for n in range(count)]
    means = [node("ReduceMean", [f"t{n}"], [f"m{n}"], keepdims=0) for n in range(count)]
    inputs = {f"i{n}": tensor(DType.INT64, f"d{n}") for n in range(count)}
    graph = line(
        [*nodes, *means, node("Sum", [f"m{n}" for n in range(count)], ["loss"])], [table("T", 9, 2)], inputs=inputs
    )
    with pytest.raises(ShapeError, match=r"'T' is read by too many different ids: .* more than 64 terms"):
        converted(graph)


def test_ids_of_too_many_values_are_refused_by_the_readers_name() -> None:
    count = PROGRAM_LIMITS.node_values
    nodes = [node("Gather", ["T", f"i{n}"], [f"t{n}"]) for n in range(count)]
    halves = [
        node("Sum", [f"t{n}" for n in part], [name])
        for name, part in (("s0", range(count // 2)), ("s1", range(count // 2, count)))
    ]
    graph = line(
        [*nodes, *halves, node("Add", ["s0", "s1"], ["all"]), node("ReduceMean", ["all"], ["loss"], keepdims=0)],
        [table("T", 9, 2)],
        inputs={f"i{n}": tensor(DType.INT64, 3) for n in range(count)},
    )
    with pytest.raises(GraphRefusedError, match=r"'n_t4095' .* 'T' is read by more than 4095 different ids; join them"):
        converted(graph)


@pytest.mark.parametrize(
    ("wrong", "pointer", "message"),
    [
        (embedding(["T", "x"], "ta"), "/nodes/0/inputs/1", "input 'ids' is float32, and takes int32, int64"),
        (embedding(["a", "a"], "ta"), "/nodes/0/inputs/0", "input 'table' is int64, and takes bfloat16, float16"),
        (embedding(["T"], "ta"), "/nodes/0/inputs", "input 'ids' is missing"),
        (embedding(["T", ""], "ta"), "/nodes/0/inputs/1", "input 'ids' is left out"),
        (embedding(["T", "a", "a"], "ta"), "/nodes/0/inputs/2", "it has 2 inputs at most"),
        (embedding(["T", "a"], "ta", padding_id=1.0), "/nodes/0/attributes/padding_id", "is of kind int"),
        (embedding(["T", "a"], "ta", padding_id=True), "/nodes/0/attributes/padding_id", "is of kind int, given bool"),
        (embedding(["T", "a"], "ta", axis=1), "/nodes/0/attributes/axis", "there is no attribute 'axis'"),
        (embedding(["k", "a"], "ta"), "/nodes/0", "a zero-dim tensor has none"),
        (embedding(["T", "eleven"], "ta"), "/nodes/0", "index 11 is outside [0, 11)"),
        (embedding(["T", "below"], "ta", padding_id=-2), "/nodes/0", "index -1 is outside [0, 11)"),
        (node("Gather", ["T", "below"], ["ta"], axis=2), "/nodes/0", "axis 2 is outside [-2, 2)"),
        (replace(node("GatherGrad", ["T", "T", "a"], ["ta"]), domain="weft"), "/nodes/0/domain", "but for Embedding"),
        (replace(node("UniqueRows", ["a"], ["ta"]), domain="weft"), "/nodes/0/domain", "but for Embedding"),
        (node("Embedding", ["T", "a"], ["ta"]), "/nodes/0/op_type", "there is no operator 'Embedding'"),
    ],
)
def test_a_hostile_reader_of_rows_is_refused(wrong: Node, pointer: str, message: str) -> None:
    graph = replace(
        looked_up(wrong, GATHERED, parameters=[table("T", 11, 4), table("k")]),
        constants=(ints("eleven", 0, 11), ints("below", 3, -1)),
    )
    found = next(problems(graph), None)
    if found is None:
        with pytest.raises(GraphRefusedError) as caught:
            converted(graph)
        found = caught.value
    assert found.pointer == pointer
    assert message in found.message
