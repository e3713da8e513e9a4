"""Programs as people read them."""

from __future__ import annotations

from sample_graphs import line, node, normalized_mlp, weight
from weft_graph.convert import convert
from weft_graph.program_text import program_text, programs_text

# Without the blanks that align the columns.
EXPECTED = """\
keys
priority key type first value update
0 w float32[] RandomUniform(low=-0.5, high=0.5) rule

program train: 5 nodes
inputs weft.loss_scale float32[]
constants -
outputs loss = loss
# node operator reads writes
0 weft.fetch/w Fetch(key=w, priority=0) w float32[]
1 n_loss Tanh w loss float32[]
2 weft.grad/n_loss/TanhGrad TanhGrad weft.loss_scale, loss weft.grad/n_loss/TanhGrad:0 float32[]
3 weft.send/w Send(key=w, priority=0) weft.grad/n_loss/TanhGrad:0
4 weft.send_barrier SendBarrier(keys=[])

program evaluate: 2 nodes
inputs -
constants -
outputs loss = loss
# node operator reads writes
0 weft.fetch/w Fetch(key=w, priority=0) w float32[]
1 n_loss Tanh w loss float32[]
"""


def test_a_program_is_a_table_of_its_nodes() -> None:
    graph = line([node("Tanh", ["w"], ["loss"])], [weight("w")])
    text = programs_text(convert(graph, loss="loss", metrics={}))
    squeezed = [" ".join(row.split()) for row in text.splitlines()]
    assert squeezed == EXPECTED.splitlines()


def test_columns_are_aligned_and_every_node_has_a_row() -> None:
    program = convert(normalized_mlp(), loss="loss", metrics={}).train
    rows = program_text(program).splitlines()[4:]
    assert len(rows) == len(program.nodes) + 1
    column = rows[0].index("operator")
    for row, n in zip(rows[1:], program.nodes, strict=True):
        assert row[column:].startswith(n.op_type)
        assert row[column - 2 : column] == "  "


def test_a_cell_too_wide_to_read_is_cut() -> None:
    names = [f"x{index}" for index in range(100)]
    nodes = [node("Concat", ["w"] * 100, names[:1], axis=0), node("ReduceMean", names[:1], ["loss"], keepdims=0)]
    text = program_text(convert(line(nodes, [weight("w", 3)]), loss="loss", metrics={}).evaluate)
    assert max(map(len, text.splitlines())) < 240
    assert "w, w, w, ..." in text
