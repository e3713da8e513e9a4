"""Programs as people read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from graph_tables import two_bags
from sample_graphs import floats, lenet, line, node, normalized_mlp, scalar, weight
from weft_graph.convert import convert
from weft_graph.ir import Constant, Graph, Node, Subgraph
from weft_graph.passes.draft import Options
from weft_graph.program import Programs
from weft_graph.program_text.listing import WIDTH, Setting, counted, listed, size_text
from weft_graph.program_text.program import programs_text

EXPECTED = """\
1 parameter of 4 B in all, the most urgent first:

  priority  key  type   size  lies in  updated by  before  after
  0         w    f32[]  4 B   whole    optimizer   1       2

A parameter is fetched right before its first reader, the node of the training step whose number is
under before, and its gradient is sent as soon as the node under after has made it.

A training step runs 2 nodes, 1 forward and 1 backward. w is sent last, with nothing to hide behind.

training step: 2 nodes, 1 forward and 1 backward
  given     loss_scale f32[]
  asked     loss

      → fetch w
  forward
   1  loss = Tanh(w)                                            f32[]  n_loss
  backward
   2  %2 = TanhGrad(loss_scale, loss)                           f32[]
      ← send w = %2
      ← barrier: all of this step is sent

evaluation step: 1 node
  asked     loss

      → fetch w
   1  loss = Tanh(w)                                            f32[]  n_loss"""


def converted(graph: Graph, options: Options | None = None) -> Programs:
    return convert(graph, loss="loss", metrics={name: name for name in graph.outputs}, options=options)


def said(programs: Programs, setting: Setting | None = None) -> str:
    """Without line breaks."""
    return " ".join(programs_text(programs, setting).split())


def listing_of(programs: Programs) -> list[str]:
    """The lines of the training step's nodes, their blanks made one."""
    text = programs_text(programs).split("training step:")[1].split("evaluation step:")[0]
    return [" ".join(row.split()) for row in text.splitlines()]


def test_a_program_is_told_and_listed() -> None:
    programs = converted(line([node("Tanh", ["w"], ["loss"])], [weight("w")], inputs={}))
    assert programs_text(programs) == EXPECTED


@pytest.mark.parametrize("graph", [lenet(), normalized_mlp()], ids=lambda graph: graph.name)
@pytest.mark.parametrize("fusion", [True, False])
def test_no_line_is_longer_than_a_page_is_wide_and_every_node_has_one(graph: Graph, fusion: bool) -> None:
    programs = converted(graph, Options(fusion=fusion))
    text = programs_text(programs, setting(programs))
    assert max(map(len, text.splitlines())) <= WIDTH
    for program in (programs.train, programs.evaluate):
        computing = [each for each in program.nodes if each.op_type not in {"Fetch", "Send", "SendBarrier"}]
        part = text.split(f"{'training' if program.role.value == 'train' else 'evaluation'} step:")[1]
        for number, each in enumerate(computing, 1):
            (row,) = (row for row in part.split("evaluation step:")[0].splitlines() if row.startswith(f"{number:>4}  "))
            assert f"= {each.op_type}(" in row
    assert text.count("→ fetch") + text.count("← send") >= 4


def setting(programs: Programs, **changed: int) -> Setting:
    slices = {key.key: -(-key.type.nbytes // 1024) for key in programs.keys if not key.rows}
    return Setting(changed.get("workers", 3), changed.get("shards", 2), 1024, {"batch": 8}, slices)


def test_a_step_fetches_no_more_rows_than_there_are() -> None:
    programs = converted(two_bags())
    for batch, told in ((1, "8 of its 11 rows, "), (4, "11 of its 11 rows, before anything else runs")):
        text = said(programs, dataclasses.replace(setting(programs), dims={"batch": batch}))
        assert f"T is a table: it is read by rows alone, at n_ta and n_tb. A step fetches at most {told}" in text


def test_a_setting_says_where_values_lie_and_what_a_step_holds() -> None:
    programs = converted(lenet())
    text = said(programs, setting(programs))
    assert "8 parameters of 202.7 KiB in all, on 2 shards and 3 workers, the most urgent first:" in text
    assert "4 dense1.weight f32[120,400] 187.5 KiB 188 slices optimizer 8 21" in text
    assert (
        "Slices of at most 1 KiB lie on the 2 shards, evenly by bytes; a slice is updated once the gradients of all 3 "
        in text
    )
    assert "With batch 8 a worker's training step holds at most " in text
    alone = said(programs, setting(programs, workers=1, shards=1))
    assert "lie on the shard; a slice is updated as it comes." in alone
    assert "With batch" not in said(programs)


def test_running_statistics_are_a_mean_and_what_nobody_sends_is_updated_by_nobody() -> None:
    rows = said(converted(normalized_mlp()))
    assert "3 mean f32[6] 24 B whole mean 2 2" in rows
    frozen = line(
        [node("Mul", ["w", "k"], ["m"]), node("ReduceMean", ["m"], ["loss"], keepdims=0)],
        [weight("w", 3), weight("k", 3, trainable=False)],
        inputs={},
    )
    assert "1 k f32[3] 12 B whole nobody 1 " in said(converted(frozen))


def test_small_constants_stand_where_they_are_read_and_large_ones_by_name() -> None:
    nodes = [
        node("Mul", ["x", "half"], ["h"]),
        node("Add", ["h", "table"], ["i"]),
        node("Mul", ["i", "w"], ["j"]),
        node("ReduceMean", ["j", "axes"], ["loss"], keepdims=0),
    ]
    constants = [
        scalar("half", 0.5, "float32"),
        Constant("table", np.zeros((5, 4), np.float32)),
        Constant("axes", np.array([0, 1])),
    ]
    graph = line(nodes, [weight("w", 4)], inputs={"x": floats(5, 4)}, constants=constants)
    rows = listing_of(converted(graph, Options(fusion=False)))
    assert "constants table f32[5,4]" in rows
    assert "1 h = Mul(x, 0.5) f32[5,4] n_h" in rows
    assert "2 i = Add(h, table) f32[5,4] n_i" in rows
    assert "4 loss = ReduceMean(j, [0, 1]) keepdims=0 f32[] n_loss" in rows


def test_fused_nodes_and_branches_show_what_is_inside() -> None:
    then = Subgraph((), ("v",), (node("Neg", ["v"], ["o"], "neg"),), ("o",))
    other = Subgraph((), ("u",), (node("Abs", ["u"], ["p"], "abs"),), ("p",))
    branches = {"then_branch": then, "else_branch": Subgraph((), ("v",), (node("Abs", ["v"], ["p"], "abs"),), ("p",))}
    assert other.captured != then.captured
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["is_positive"]),
        Node("If", "choice", ("is_positive", "b"), ("c",), branches),
        node("ReduceMean", ["c"], ["loss"], keepdims=0),
    ]
    graph = line(nodes, [weight("w", 4)], constants=[scalar("zero", 0.0, "float32")])
    rows = listing_of(converted(graph))
    assert "a = Mul(x, w); b = Exp(a)" in rows
    assert "then_branch: o = Neg(v)" in rows
    assert "else_branch: p = Abs(v)" in rows


def test_places_are_headings_and_copies_are_counted() -> None:
    nodes = [
        Node("MatMul", "m", ("x", "w"), ("a",), group="one"),
        Node("Tanh", "t", ("a",), ("b",), group="two"),
        node("ReduceMean", ["b"], ["loss"], keepdims=0),
    ]
    options = Options(placement={"one": "cuda:0", "two": "cuda:1"})
    programs = converted(line(nodes, [weight("w", 4, 2)]), options)
    rows = listing_of(programs)
    assert [row for row in rows if row.startswith("on ")] == ["on cuda:0", "on cuda:1", "on cuda:0"]
    assert "2 values cross between places: cuda:0 to cuda:1 and cuda:1 to cuda:0." in said(programs)


def test_hostile_names_make_no_lines_of_their_own() -> None:
    """Names are a user's: none of them breaks a line or a table."""
    name = "x\n  0  y = Fetch(\x1b[2J" + "z" * 300
    programs = converted(line([node("Tanh", [name], ["loss"])], [weight(name)], inputs={}))
    text = programs_text(programs, setting(programs))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text
    assert not any(row.startswith("  0  y = Fetch(") for row in text.splitlines())


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 << 40, "3 TiB")]
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert size_text(count) == text


def test_words_are_counted_and_listed() -> None:
    assert (counted(1, "node"), counted(12345, "node")) == ("1 node", "12,345 nodes")

    def of(words: Iterable[str]) -> str:
        return listed(words, 3)

    assert (of([]), of("a"), of("ab"), of("abc"), of("abcde")) == ("", "a", "a and b", "a, b and c", "a, b and 3 more")
