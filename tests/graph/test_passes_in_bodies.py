"""What the converter's passes do with nodes that are in bodies."""

from __future__ import annotations

import numpy as np
import pytest

from flow_graphs import body, graph, op
from weft_graph.convert import convert
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node, Subgraph
from weft_graph.memory import program_memory
from weft_graph.names import all_nodes, bodies_of
from weft_graph.program import Program
from weft_graph.program_json import programs_from_json, programs_to_json
from weft_graph.program_text.program import programs_text

W, X, TABLE = np.ones(3), np.ones((4, 3)), np.ones((6, 3))
FIXED = {"half": np.array(0.5), "yes": np.array(True)}
TOTAL = op("ReduceSum", "ys", "loss", keepdims=0)


def dropping() -> Graph:
    turned = body(
        "h x", "w half yes", "h2 h2", op("Mul", "h w", "hw"), op("Dropout", "hw half yes", "d"), op("Add", "d x", "h2")
    )
    return graph(
        [op("Scan", "h0 xs w half yes", "hT ys", body=turned, num_scan_inputs=1), TOTAL],
        {"w": W, "h0": W},
        {"xs": X},
        FIXED,
    )


def operators(program: Program, op_type: str) -> list[str]:
    """What the bodies of the program's nodes of that operator are made of."""
    found = [node for node in program.nodes if node.op_type == op_type]
    return [inner.op_type for node in found for body_ in bodies_of(node).values() for inner in body_.nodes]


def test_an_evaluation_drops_nothing_in_bodies_either() -> None:
    programs = convert(dropping(), loss="loss", metrics={})
    assert operators(programs.train, "Scan") == ["Mul", "Dropout", "Add"]
    assert operators(programs.evaluate, "Scan") == ["Mul", "Identity", "Add"]


def test_programs_with_bodies_are_the_same_after_json_and_are_printed_with_them() -> None:
    programs = convert(dropping(), loss="loss", metrics={})
    document = programs_to_json(programs)
    assert programs_to_json(programs_from_json(document)) == document
    text = programs_text(programs)
    assert "LoopGrad" in text
    assert text.count("Dropout(") == 2
    assert "DropoutGrad(" in text


def test_memory_of_programs_with_bodies_is_counted() -> None:
    programs = convert(dropping(), loss="loss", metrics={})
    assert program_memory(programs.train, {}).intermediates >= 2 * X.nbytes


def normalizing(training: int) -> Graph:
    then = body("", "x w v m s", "y", op("BatchNormalization", "x w v m s", "y", training_mode=training))
    other = body("", "x w v m s", "z", op("Add", "x w", "z"))
    nodes = [op("If", "c x w v m s", "ys", then_branch=then, else_branch=other), TOTAL]
    whole = graph(nodes, {"w": W, "v": W, "m": W, "s": W}, {"x": X, "c": np.array(True)})
    frozen = [
        p if p.name in {"w", "v"} else type(p)(p.name, p.type, p.initializer, trainable=False) for p in whole.parameters
    ]
    return type(whole)(whole.name, whole.inputs, tuple(frozen), whole.nodes, whole.outputs, whole.constants)


def test_running_statistics_in_a_body_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        GraphRefusedError, match="is in a body, where it cannot keep running statistics; set its"
    ) as caught:
        convert(normalizing(1), loss="loss", metrics={})
    assert caught.value.pointer == "/nodes/0/attributes/then_branch/nodes/0"
    assert convert(normalizing(0), loss="loss", metrics={}).train.nodes


def test_a_table_that_a_body_reads_by_rows_is_dense_and_says_why() -> None:
    inner = body("", "table ids", "g", op("Gather", "table ids", "g"))
    then = body(
        "",
        "table ids c",
        "y",
        op(
            "If",
            "c table ids",
            "y",
            then_branch=inner,
            else_branch=body("", "table ids", "e", op("Gather", "table ids", "e")),
        ),
    )
    other = body("", "table ids c", "z", op("Gather", "table ids", "z"))
    node = op("If", "c table ids c", "ys", then_branch=then, else_branch=other)
    whole = graph([node, TOTAL], {"table": TABLE}, {"ids": np.array([1, 2]), "c": np.array(True)})
    (key,) = convert(whole, loss="loss", metrics={}).keys
    assert (key.rows, key.dense_because) == (False, "node 'n_g' reads it in a body of node 'n_ys' (If)")


def test_names_of_all_nodes_of_a_program_are_their_own() -> None:
    for program in (
        convert(dropping(), loss="loss", metrics={}).train,
        convert(normalizing(0), loss="loss", metrics={}).train,
    ):
        names = [node.name for node, _ in all_nodes(program.nodes)]
        assert len(names) == len(set(names))


def test_bodies_that_would_take_looks_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loop around them may be looked at up to three times: eight of them, six thousand times."""
    monkeypatch.setattr("weft_graph.infer.MOST_LOOKS", 25)

    def nested(depth: int) -> Subgraph:
        grown: Node = op("Concat", f"v{depth} w", f"o{depth}", axis=0)
        if depth:
            grown = op("Loop", f"m - v{depth} w m", f"o{depth}", body=nested(depth - 1))
        twice = op("Concat", f"o{depth} w", f"r{depth}", axis=0)
        return body(f"i go v{depth}", "w m", f"go r{depth}", grown, twice)

    whole = graph([op("Loop", "m - w w m", "loss", body=nested(6))], {"w": W}, {"m": np.array(2)})
    with pytest.raises(ShapeError, match="bodies take more than 25 looks"):
        infer(whole)
