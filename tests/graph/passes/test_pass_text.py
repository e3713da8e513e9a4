"""What each pass did, as people read it."""

from __future__ import annotations

from itertools import pairwise

from sample_graphs import lenet, line, node, normalized_mlp, scalar, weight
from weft_graph.convert import convert
from weft_graph.ir import Graph
from weft_graph.passes.draft import Options
from weft_graph.passes.pipeline import ROLES, SHARED
from weft_graph.program import Role
from weft_graph.program_text.listing import WIDTH
from weft_graph.program_text.passes import Recorder, passes_text


def recorded(graph: Graph, options: Options | None = None) -> Recorder:
    recorder = Recorder()
    metrics = {name: name for name in graph.outputs}
    convert(graph, loss="loss", metrics=metrics, options=options, watch=recorder)
    return recorder


def text_of(graph: Graph, *, full: bool = False) -> str:
    return passes_text(recorded(graph).runs, full=full, dims={"batch": 4})


GRAPH = line(
    [
        node("Sqrt", ["four"], ["two"]),
        node("Mul", ["x", "two"], ["a"]),
        node("Mul", ["two", "x"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Mul", ["c", "w"], ["d"]),
        node("Relu", ["x"], ["unused"]),
        node("ReduceMean", ["d"], ["loss"], keepdims=0),
    ],
    [weight("w", 4)],
    constants=[scalar("four", 4.0, "float32")],
)

EXPECTED = """\
both programs
  nothing to do: running statistics, inline
  constant folding        7 → 6 nodes       - Sqrt; +1 constant
  common subexpressions   6 → 5 nodes       - Mul; 1 node rewritten; 64 B not made: b f32[batch,4]
  dead code               5 → 4 nodes       - Relu; -1 constant; 64 B not made: unused f32[batch,4]
  priorities              4 nodes           the most urgent is w, the least w
  nothing to do: tables, pools before Relu
"""


def test_each_pass_has_a_line_and_those_that_do_nothing_share_one() -> None:
    text = text_of(GRAPH)
    assert text.startswith(EXPECTED)
    assert "\ntraining\n  nothing to do: row reads, precision\n  differentiation         4 → 7 nodes " in text
    assert "\nevaluation\n  nothing to do: " in text


def test_the_watch_sees_every_pass_in_order_with_drafts_that_follow_each_other() -> None:
    runs = recorded(GRAPH).runs
    names = [each.name for passes in (SHARED, ROLES[Role.TRAIN], ROLES[Role.EVALUATE]) for each in passes]
    assert [run.name for run in runs] == names
    for before, after in pairwise(runs):
        if before.after.role == after.before.role:
            assert before.after is after.before


def test_fusion_says_what_is_written_no_more() -> None:
    text = " ".join(text_of(GRAPH).split())
    assert "+ Fused; 128 B not written to memory, the largest a f32[batch,4]" in text


def test_full_has_every_node_that_came_and_went() -> None:
    rows = text_of(GRAPH, full=True).splitlines()
    assert "      - two = Sqrt(four)  f32[]" in rows
    place = rows.index("      - c = Add(a, b)  f32[batch,4]")
    assert rows[place + 1] == "      + c = Add(a, a)  f32[batch,4]"
    assert any(row.startswith("      + d = Fused(x, two, w) of Mul, Add, Mul") for row in rows)
    assert any("barrier" in row.lower() for row in rows)


def test_lines_are_no_longer_than_a_page_is_wide() -> None:
    for graph in (lenet(), normalized_mlp()):
        for full in (False, True):
            assert max(map(len, text_of(graph, full=full).splitlines())) <= WIDTH


def test_statistics_and_tables_are_told() -> None:
    assert "running statistics      10 nodes          1 node rewritten; 2 running statistics to send" in text_of(
        normalized_mlp()
    )
