"""The converter's passes, each before and after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sample_graphs import floats, ints, lenet, line, mlp, node, normalized_mlp, weight
from weft_graph.errors import GraphRefusedError
from weft_graph.infer import infer
from weft_graph.ir import Node
from weft_graph.passes.communication import insert_fetches, insert_sends, keep_statistics, priorities
from weft_graph.passes.inference_mode import to_inference
from weft_graph.passes.simplify import without_dead_code


def shown(nodes: tuple[Node, ...]) -> list[str]:
    return [n.name for n in nodes]


class TestDeadCode:
    def test_what_leads_to_no_root_is_left_out(self) -> None:
        nodes = [node("Relu", ["x"], ["a"]), node("Add", ["y", "c"], ["b"]), node("Relu", ["a"], ["loss"])]
        graph = line(nodes, [weight("w", 2)], inputs={"x": floats(2), "y": floats(2)}, constants=[ints("c", 1)])
        after = without_dead_code(graph, ["loss"])
        assert shown(after.nodes) == ["n_a", "n_loss"]
        assert [i.name for i in after.inputs] == ["x"]
        assert after.constants == ()
        assert after.outputs == ("loss",)
        assert after.parameters == graph.parameters

    def test_a_node_stays_for_any_of_its_outputs(self) -> None:
        graph = line([node("Dropout", ["x"], ["y", "mask"]), node("Relu", ["y"], ["z"])], outputs=["z"])
        assert shown(without_dead_code(graph, ["mask"]).nodes) == ["n_y"]

    def test_a_live_graph_stays_as_it_is(self) -> None:
        assert without_dead_code(lenet(), lenet().outputs) == lenet()

    def test_a_root_that_is_an_input_keeps_it(self) -> None:
        after = without_dead_code(line([node("Relu", ["x"], ["y"])]), ["x"])
        assert (after.nodes, [i.name for i in after.inputs]) == ((), ["x"])


class TestInferenceMode:
    def test_batch_normalization_reads_running_statistics_and_dropout_is_the_identity(self) -> None:
        before, after = normalized_mlp(), to_inference(normalized_mlp())
        assert after.nodes[1] == replace(before.nodes[1], attributes={"training_mode": 0})
        assert after.nodes[3] == Node("Identity", "n_kept", ("a",), ("kept",))
        assert [a for a, b in zip(after.nodes, before.nodes, strict=True) if a == b] == [
            n for i, n in enumerate(before.nodes) if i not in {1, 3}
        ]

    def test_every_value_keeps_its_type(self) -> None:
        before = normalized_mlp()
        named = replace(before.nodes[1], outputs=("normal", "new_mean", "new_var"))
        masked = replace(before.nodes[3], outputs=("kept", "mask"))
        graph = replace(before, nodes=(before.nodes[0], named, before.nodes[2], masked, *before.nodes[4:]))
        assert infer(to_inference(graph)) == infer(graph)

    def test_a_statistic_that_is_asked_for_is_the_one_that_was_read(self) -> None:
        inputs = ["x", "s", "b", "mean", "var"]
        graph = line([node("BatchNormalization", inputs, ["loss", "", "new"], training_mode=1)])
        evaluated, statistic = to_inference(graph).nodes
        assert evaluated.outputs == ("loss",)
        assert (statistic.op_type, statistic.inputs, statistic.outputs) == ("Identity", ("var",), ("new",))

    def test_a_mask_that_is_asked_for_keeps_a_dropout_that_drops_nothing(self) -> None:
        graph = line([node("Dropout", ["x", "ratio", "training"], ["loss", "mask"])])
        assert to_inference(graph).nodes == (Node("Dropout", "n_loss", ("x",), ("loss", "mask")),)

    def test_a_graph_without_either_stays_as_it_is(self) -> None:
        assert to_inference(lenet()) == lenet()
        frozen = line([node("BatchNormalization", ["x", "s", "b", "m", "v"], ["loss"])])
        assert to_inference(frozen) == frozen


class TestStatistics:
    def test_the_new_values_are_named_and_found(self) -> None:
        kept = keep_statistics(normalized_mlp())
        assert kept.graph.nodes[1].outputs == ("normal", *kept.updates.values())
        assert list(kept.updates) == ["mean", "var"]
        assert all(kept.updates.values())

    def test_names_that_are_there_are_used(self) -> None:
        before = normalized_mlp()
        named = replace(before.nodes[1], outputs=("normal", "", "new_var"))
        kept = keep_statistics(replace(before, nodes=(before.nodes[0], named, *before.nodes[2:])))
        assert kept.updates["var"] == "new_var"
        assert kept.graph.nodes[1].outputs == ("normal", kept.updates["mean"], "new_var")

    @pytest.mark.parametrize(
        ("inputs", "pointer", "message"),
        [
            (("h", "gamma", "beta", "h", "var"), "/nodes/1/inputs/3", "'h', which is no parameter"),
            (("h", "gamma", "beta", "mean", "beta"), "/nodes/1/inputs/4", "'beta', which is a trainable parameter"),
            (("h", "gamma", "beta", "mean", "mean"), "/nodes/1/inputs/4", "'mean', which gets its new value"),
        ],
    )
    def test_a_statistic_that_cannot_be_kept_is_refused(
        self, inputs: tuple[str, ...], pointer: str, message: str
    ) -> None:
        before = normalized_mlp()
        changed = replace(before.nodes[1], inputs=inputs)
        with pytest.raises(GraphRefusedError, match=message) as caught:
            keep_statistics(replace(before, nodes=(before.nodes[0], changed, *before.nodes[2:])))
        assert caught.value.pointer == pointer
        assert caught.value.node == "n_normal"

    def test_a_module_that_runs_twice_updates_its_statistics_one_after_the_other(self) -> None:
        before = normalized_mlp()
        twice = (before.nodes[0], before.nodes[1], replace(before.nodes[1], name="second", outputs=("again",)))
        kept = keep_statistics(replace(before, nodes=twice))
        _, first, second = kept.graph.nodes
        assert second.inputs == (*first.inputs[:3], *first.outputs[1:])
        assert dict(kept.updates) == {"mean": second.outputs[1], "var": second.outputs[2]}

    def test_frozen_statistics_are_not_kept(self) -> None:
        frozen = [node("BatchNormalization", ["x", "s", "b", "x", "x"], ["loss"])]
        assert keep_statistics(line(frozen)).updates == {}


class TestPriorities:
    def test_the_order_of_first_use_counts(self) -> None:
        nodes = [node("Add", ["b", "a"], ["y"]), node("Add", ["a", "c"], ["z"])]
        assert priorities(nodes, ["a", "b", "c"]) == {"b": 0, "a": 1, "c": 2}

    def test_parameters_that_no_node_reads_come_last(self) -> None:
        assert priorities([node("Relu", ["b"], ["y"])], ["z", "b", "a"]) == {"b": 0, "z": 1, "a": 2}


class TestCommunication:
    NODES = (node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["c"]), node("Add", ["c", "w"], ["d"]))

    def test_a_fetch_stands_directly_before_the_first_reader(self) -> None:
        placed = insert_fetches(self.NODES, {"w": 0, "b": 1, "idle": 2})
        assert shown(placed) == ["weft.fetch/w", "n_a", "weft.fetch/b", "n_c", "n_d"]
        assert placed[0] == Node("Fetch", "weft.fetch/w", (), ("w",), {"key": "w", "priority": 0}, "weft")

    def test_a_parameter_that_is_an_output_is_fetched(self) -> None:
        placed = insert_fetches(self.NODES, {"w": 0, "b": 1, "idle": 2}, ["idle", "w"])
        assert shown(placed)[-1] == "weft.fetch/idle"
        assert len(placed) == 6

    def test_a_send_stands_directly_after_what_it_sends_and_the_barrier_last(self) -> None:
        placed = insert_sends(self.NODES, {"w": "a", "b": "d"}, {"w": 0, "b": 1, "idle": 2})
        assert shown(placed) == ["n_a", "weft.send/w", "n_c", "n_d", "weft.send/b", "weft.send_barrier"]
        assert placed[1] == Node("Send", "weft.send/w", ("a",), (), {"key": "w", "priority": 0}, "weft")
        assert placed[-1].attributes == {"keys": ("idle",)}

    def test_two_keys_may_have_one_gradient(self) -> None:
        placed = insert_sends(self.NODES, {"w": "a", "b": "a"}, {"w": 0, "b": 1})
        assert shown(placed)[:3] == ["n_a", "weft.send/w", "weft.send/b"]

    def test_what_no_node_makes_is_sent_at_the_start(self) -> None:
        assert shown(insert_sends(self.NODES, {"w": "weft.loss_scale"}, {"w": 0}))[0] == "weft.send/w"


def test_passes_leave_their_argument_alone() -> None:
    for graph in (mlp, normalized_mlp):
        given, written = graph(), graph()
        given = replace(given, constants=written.constants)
        without_dead_code(given, ["loss"])
        to_inference(given)
        keep_statistics(given)
        assert given == written
