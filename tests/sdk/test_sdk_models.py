"""Models that were read: what they tell, what can be built on them, what is sent of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load

import weft
from onnx_models import floats, initializer, model, weights
from sdk_fakes import answers, job
from weft.api.values import Uploaded
from weft_graph.check import check
from weft_graph.errors import ShapeError
from weft_graph.ir import GIVEN

HERE = Path(__file__).parents[1] / "torch_models"


def perceptron(*, batch: int | str = "N") -> onnx.ModelProto:
    """x -> hidden -> (logits, features)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["before"], "hidden"),
        helper.make_node("Relu", ["before"], ["features"], "act"),
        helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"], "head"),
    ]
    inputs = [floats("x", batch, 3)]
    return model(nodes, inputs, ("logits", "features"), [weights("w1", 3, 4), weights("w2", 4, 5), weights("b2", 5)])


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W1 = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W2 = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
B2 = np.linspace(-1, 1, 5, dtype=np.float32)
FEATURES = np.maximum(X @ W1, 0)
LOGITS = FEATURES @ W2 + B2


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Classes on the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-np.take_along_axis(logs, labels[..., None], -1).mean())


def test_a_model_is_read_from_bytes_a_path_and_a_proto_and_tells_what_it_has(tmp_path: Path) -> None:
    proto = perceptron()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        read = weft.from_onnx(source)
        assert list(read) == list(read.outputs) == ["logits", "features"]
        assert list(read.inputs) == ["x"]
        assert list(read.parameters) == ["w1", "w2", "b2"]
        got = read.evaluate({"x": X})
        np.testing.assert_allclose(got["logits"], LOGITS, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got["features"], FEATURES)
    text = str(read)
    assert "x  float32[batch, 3]" in text
    assert "parameters that train (3 of 3, 37 numbers in all)" in text
    assert "  Gemm  1" in text
    assert repr(read) == "<Model g: 3 nodes, 3 parameters, outputs logits, features>"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(weft.ArgumentError, match=r"a model is a path, bytes or an onnx\.ModelProto, not int"):
        weft.from_onnx(3)  # type: ignore[arg-type]
    with pytest.raises(weft.GraphRefusedError, match="the file is no ONNX model"):
        weft.from_onnx(b"\xff\xff")
    with pytest.raises(weft.GraphRefusedError, match=r"none\.onnx: the file cannot be read"):
        weft.from_onnx("none.onnx")
    with pytest.raises(weft.ArgumentError, match="frozen has 3"):
        weft.from_onnx(perceptron(), frozen=[3])  # type: ignore[list-item]


def test_frozen_parameters_do_not_train_and_a_pattern_of_nothing_is_told() -> None:
    read = weft.from_onnx(perceptron(), frozen=["w*", "encoder.*"])
    assert {name: each.trainable for name, each in read.parameters.items()} == {"w1": False, "w2": False, "b2": True}
    assert read.warnings == ("frozen 'encoder.*' is no parameter's name and no node's",)


def test_expressions_are_built_on_a_models_values_and_keep_its_names() -> None:
    read = weft.from_onnx(perceptron())
    labels = weft.input("labels", ("batch",), "int64")
    loss = weft.nn.cross_entropy(read["logits"] * 2.0, labels)
    graph = weft.graph(loss)
    check(graph)
    assert [node.name for node in graph.nodes[:3]] == ["hidden", "act", "head"]
    assert {parameter.name: parameter.initializer.op_type for parameter in graph.parameters} == dict.fromkeys(
        ("w1", "w2", "b2"), GIVEN
    )
    y = np.array([0, 1, 2, 4])
    assert loss.eval({"x": X, "labels": y}) == pytest.approx(cross_entropy(LOGITS * 2, y), rel=1e-5)
    zeros = {name: np.zeros_like(value) for name, value in read.values.items()}
    assert loss.eval({"x": X, "labels": y}, parameters=zeros) == pytest.approx(np.log(5), rel=1e-6)
    assert np.all(read.evaluate({"x": X}, parameters={"w1": np.zeros_like(W1)})["features"] == 0)
    with pytest.raises(KeyError, match="no value 'logitz'; its outputs are 'logits', 'features'"):
        read["logitz"]


def test_names_made_here_avoid_those_of_a_model() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["softmax"], "y"), helper.make_node("Neg", ["softmax"], ["z"], "softmax")]
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3)], ("z",)))
    graph = weft.graph(weft.ops.softmax(read["z"]), read["z"])
    check(graph)
    assert [node.name for node in graph.nodes] == ["y", "softmax", "softmax_2"]
    assert [node.outputs for node in graph.nodes] == [("softmax",), ("z",), ("softmax_2",)]


@pytest.mark.parametrize(
    ("loss", "reference"),
    [
        ("mse", lambda y, t: np.mean((y - t) ** 2)),
        ("l1", lambda y, t: np.mean(np.abs(y - t))),
        ("bce_with_logits", lambda y, t: np.mean(np.log1p(np.exp(y)) - y * t)),
    ],
)
def test_losses_of_numbers(loss: str, reference: object) -> None:
    made = weft.from_onnx(perceptron()).with_loss(loss, output="features", metrics=("mse",))
    assert made.targets == ("target",)
    assert made.graph.inputs[1].type == made.graph.inputs[0].type.__class__(
        made.graph.inputs[0].type.dtype, ("batch", 4)
    )
    t = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    got = made.evaluate({"x": X, "target": t})
    assert got["loss"] == pytest.approx(reference(FEATURES, t), rel=1e-5)  # type: ignore[operator]
    if loss != "mse":
        assert got["mse"] == pytest.approx(np.mean((FEATURES - t) ** 2), rel=1e-5)


def test_cross_entropy_and_accuracy_of_classes() -> None:
    made = weft.from_onnx(perceptron()).with_loss(
        "cross_entropy", output="logits", metrics=("accuracy",), ignore_index=-1
    )
    y = np.array([0, 4, 2, -1])
    got = made.evaluate({"x": X, "labels": y})
    assert got["loss"] == pytest.approx(cross_entropy(LOGITS[:3], y[:3]), rel=1e-5)
    assert got["accuracy"] == pytest.approx((LOGITS.argmax(1) == y)[:3].mean())
    assert made.graph.outputs == ("loss", "accuracy", "logits", "features")


def pass_through(*shape: int | str) -> onnx.ModelProto:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "times")]
    return model(nodes, [floats("x", *shape)], ("y",), [initializer("w", np.ones((1,), np.float32))])


@pytest.mark.parametrize(
    ("shape", "axis", "option"),
    [
        ((2, 5, 7), 2, None),
        ((2, 5, 7), 1, 1),
        ((2, 5, 3, 4), 1, None),
        ((2, 5, 3, 4), 3, -1),
        ((2, 3, 2, 2, 3), 1, None),
    ],
)
def test_where_classes_are(shape: tuple[int, ...], axis: int, option: int | None) -> None:
    read = weft.from_onnx(pass_through("N", *shape[1:]))
    made = read.with_loss("cross_entropy", metrics=("accuracy",), classes_axis=option)
    scores = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, shape[axis], [s for a, s in enumerate(shape) if a != axis])
    got = made.evaluate({"x": scores, "labels": labels})
    assert got["loss"] == pytest.approx(cross_entropy(np.moveaxis(scores, axis, -1), labels), rel=1e-5)
    assert got["accuracy"] == pytest.approx((scores.argmax(axis) == labels).mean())
    given = weft.input("labels", (weft.BATCH, *labels.shape[1:]), "int64")
    for ignored in (None, 1):
        made = read.with_loss("cross_entropy", metrics=("accuracy",), classes_axis=option, ignore_index=ignored)
        got = made.evaluate({"x": scores, "labels": labels})
        for function, name in ((weft.nn.cross_entropy, "loss"), (weft.nn.accuracy, "accuracy")):
            built = function(read["y"], given, classes_axis=option, ignore_index=ignored)
            assert built.eval({"x": scores, "labels": labels}) == pytest.approx(got[name], rel=1e-6)


def test_labels_that_do_not_fit_are_told_where_classes_are_looked_for() -> None:
    scores, labels = weft.input("s", ("batch", 5, 7)), weft.input("y", ("batch", 7), "int64")
    single = weft.input("z", ("batch",))
    for function in (weft.nn.cross_entropy, weft.nn.accuracy):
        with pytest.raises(ShapeError, match=r"with classes on axis 2 \(classes_axis says another\)"):
            function(scores, labels)
        assert function(scores, labels, classes_axis=1).shape == ()
        with pytest.raises(ShapeError, match="classes_axis 3: logits is"):
            function(scores, labels, classes_axis=3)
        with pytest.raises(ShapeError, match=r"scores of classes are \(batch, classes"):
            function(single, labels)


def test_nll_takes_log_probabilities() -> None:
    made = weft.from_onnx(pass_through("N", 3)).with_loss("nll", target="y_true")
    logs = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], np.float32))
    assert made.evaluate({"x": logs, "y_true": np.array([0, 2])})["loss"] == pytest.approx(
        -(logs[0, 0] + logs[1, 2]) / 2
    )


def test_a_models_own_loss_trains_as_it_is() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["mean"], keepdims=0),
    ]
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3)], ("mean", "y"), [weights("w", 3)]))
    made = read.with_loss("mean")
    assert (made.loss, made.targets, made.graph.outputs) == ("mean", (), ("mean", "y"))
    with pytest.raises(weft.ShapeError, match=r"output 'y' is float32\[batch, 3\]; a loss or metric is a single float"):
        read.with_loss("y")
    near = "'loss'; did you mean 'log_loss'? Or write one of the model's outputs that are single floats: 'mean'"
    with pytest.raises(weft.GraphRefusedError, match=re.escape(near)):
        read.with_loss("loss")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"loss": "crossentropy"},
            r"no loss or metric 'crossentropy'; did you mean 'cross_entropy'\?",
        ),
        (
            {"loss": "mse"},
            "say which `output` the loss is of: there are 'logits', 'features'; weft.fit takes it as "
            r"loss=weft.Loss\('mse', 'logits'\)",
        ),
        ({"loss": "mse", "output": "scores"}, "there is no output 'scores'; there are 'logits', 'features', and the v"),
        ({"loss": "mse", "output": "befor"}, r"no output 'befor'; did you mean 'before'\?"),
        ({"loss": "mse", "output": "logits", "target": "before"}, "target 'before' is the name of another value"),
        (
            {"loss": "cross_entropy", "output": "logits", "target": "x"},
            r"target 'x' is the model's input of type float32",
        ),
        (
            {"loss": "cross_entropy", "output": "logits", "classes_axis": 2},
            "classes_axis 2: output 'logits' is float32",
        ),
        ({"loss": "mse", "output": "logits", "metrics": ("accuracy",)}, "accuracy is of classes"),
        ({"loss": "mse", "output": "logits", "metrics": ("nll",)}, "'nll' compares with numbers of classes"),
        ({"loss": "cross_entropy", "output": "logits", "metrics": ("l1",)}, "'l1' compares numbers"),
    ],
)
def test_a_loss_that_cannot_be_says_what_there_is(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(weft.GraphRefusedError, match=message):
        weft.from_onnx(perceptron()).with_loss(**arguments)  # type: ignore[arg-type]


def keras_like() -> onnx.ModelProto:
    """A classifier of images as tf2onnx writes one of Keras: its output is the Softmax of its last layer."""
    nodes = [
        helper.make_node("MatMul", ["x", "dense/kernel"], ["dense/MatMul"], "dense/MatMul"),
        helper.make_node("Add", ["dense/MatMul", "dense/bias"], ["dense/BiasAdd"], "dense/BiasAdd"),
        helper.make_node("Softmax", ["dense/BiasAdd"], ["dense"], "dense/Softmax", axis=-1),
    ]
    held = [weights("dense/kernel", 3, 5), weights("dense/bias", 5)]
    return model(nodes, [floats("x", "N", 3)], ("dense",), held, opset=15)


def zoo_like() -> onnx.ModelProto:
    """The same as an old file has it: a Softmax of images of one pixel, over all but the first axis."""
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["pool"], "conv"),
        helper.make_node("Softmax", ["pool"], ["prob"], "softmax"),
    ]
    return model(nodes, [floats("x", "N", 3, 1, 1)], ("prob",), [weights("k", 5, 3, 1, 1), weights("b", 5)], opset=9)


def test_a_model_that_ends_in_a_softmax_trains_its_logits() -> None:
    read = weft.from_onnx(keras_like())
    made = read.with_loss("cross_entropy", metrics="accuracy")
    told = (
        "output 'dense' is made by node 'dense/Softmax', a Softmax: cross_entropy takes logits, so it is computed from "
        "that node's input 'dense/BiasAdd'"
    )
    assert made.warnings == (told,)
    assert str(made).endswith(f"warnings\n  {told}")
    y = np.array([0, 4, 2, 1])
    big = X * 1000  # probabilities of 0, whose logarithm there is not
    logits = big @ read.values["dense/kernel"] + read.values["dense/bias"]
    got = made.evaluate({"x": big, "labels": y})
    assert got["loss"] == pytest.approx(cross_entropy(logits, y), rel=1e-5)
    assert got["accuracy"] == (logits.argmax(1) == y).mean()
    np.testing.assert_array_equal(got["dense"], read.evaluate({"x": big})["dense"])
    by_logits = read.with_loss("cross_entropy", output="dense/BiasAdd")
    assert by_logits.warnings == ()
    assert by_logits.evaluate({"x": big, "labels": y})["loss"] == got["loss"]
    assert read.with_loss("log_loss").evaluate({"x": big, "labels": y})["loss"] == got["loss"]


def test_a_softmax_of_an_old_file_is_found_too() -> None:
    read = weft.from_onnx(zoo_like())
    y = np.array([[[0]], [[4]], [[2]], [[1]]])
    logits = X @ read.values["k"].reshape(5, 3).T + read.values["b"]
    made = read.with_loss("cross_entropy")
    got = made.evaluate({"x": X.reshape(4, 3, 1, 1), "labels": y})["loss"]
    assert got == pytest.approx(cross_entropy(logits, y.ravel()), rel=1e-5)
    assert "made by node 'softmax', a Softmax" in made.warnings[0]


def test_several_losses_and_values_inside() -> None:
    read = weft.from_onnx(perceptron())
    losses = [weft.Loss("cross_entropy", "logits"), weft.Loss("mse", "before", "t", weight=0.5)]
    made = read.with_loss(losses, metrics="accuracy")
    assert made.targets == ("labels", "t")
    y, t = np.array([0, 4, 2, 1]), np.ones((4, 4), np.float32)
    got = made.evaluate({"x": X, "labels": y, "t": t})
    assert got["logits_cross_entropy"] == pytest.approx(cross_entropy(LOGITS, y), rel=1e-5)
    assert got["before_mse"] == pytest.approx(np.mean((X @ W1 - 1) ** 2), rel=1e-5)
    assert got["loss"] == pytest.approx(got["logits_cross_entropy"] + got["before_mse"] / 2, rel=1e-6)
    job = weft.job_spec(made, data="d.npz", steps=1)
    assert list(job.metrics) == ["logits_cross_entropy", "before_mse", "accuracy"]
    cut = read.with_loss(weft.Loss("mse", "features"))
    assert cut.warnings == ("parameters that lead to no loss do not train: 'w2', 'b2'",)
    with pytest.raises(weft.ArgumentError, match=r"said in each weft\.Loss"):
        read.with_loss([weft.Loss("mse")], output="features")


def uploaded() -> Uploaded:
    return Uploaded.model_validate(
        {"id": "up-1", "names": ["w"], "size_bytes": 8, "expires_at": "2024-05-06T07:08:09Z"}
    )


@pytest.mark.parametrize("by_expression", [True, False])
def test_submit_brings_the_values_first(by_expression: bool) -> None:
    read = weft.from_onnx(perceptron())
    made = read.with_loss("cross_entropy", output="logits", metrics=("accuracy",))
    loss = weft.nn.cross_entropy(read["logits"], weft.input("labels", ("batch",), "int64"))
    script = answers(uploaded(), job())
    script.client().submit(loss if by_expression else made, data="d.npz", steps=3)
    upload, submit = script.requests
    assert upload.url.path == "/v1/uploads"
    values = load(upload.content)
    np.testing.assert_array_equal(values["w1"], W1)
    assert sorted(values) == ["b2", "w1", "w2"]
    document = json.loads(submit.content)
    assert document["init_from"] == {"upload": "up-1"}
    assert document["data"]["columns"] == {"x": "x", "labels": "labels"}
    if not by_expression:
        assert (document["loss"], document["metrics"]) == ("loss", {"accuracy": "accuracy"})
        assert document["graph"]["outputs"] == ["loss", "accuracy", "logits", "features"]


def test_init_from_replaces_the_models_values_and_metrics_are_said_once() -> None:
    made = weft.from_onnx(perceptron()).with_loss("cross_entropy", output="logits")
    script = answers(job("job-7"), job())
    script.client().submit(made, data="d.npz", steps=3, init_from="job-7")
    assert [each.url.path for each in script.requests] == ["/v1/jobs/job-7", "/v1/jobs"]  # and no upload
    assert json.loads(script.requests[1].content)["init_from"] == {"job": "job-7"}
    with pytest.raises(weft.ArgumentError, match="where its loss is"):
        weft.job_spec(made, data="d.npz", steps=3, metrics={"a": weft.input("x")})


def test_an_upload_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    script = answers(uploaded())
    values = {"w": np.zeros((3, 1 << 18), np.float32)}
    first = script.client().upload_values(values, progress=lambda done, total: told.append((done, total)))
    assert first.upload == "up-1"
    total = len(script.requests[0].content)
    assert [done for done, _ in told] == [*range(1 << 20, total, 1 << 20), total]
    assert {each for _, each in told} == {total}


def test_other_values_take_the_place_of_a_models(tmp_path: Path) -> None:
    read = weft.from_onnx(perceptron())
    other = read.with_values({"b2": np.zeros(5, np.float32)})
    np.testing.assert_allclose(other.evaluate({"x": X})["logits"], FEATURES @ W2, rtol=1e-5, atol=1e-6)
    with pytest.raises(weft.GraphRefusedError, match=r"parameter 'b2' is float32\[5\], given float32 \(4,\)"):
        read.with_values({"b2": np.zeros(4, np.float32)})
    other.export_onnx(tmp_path / "out.onnx")
    back = weft.from_onnx(tmp_path / "out.onnx")
    assert list(back.outputs) == ["logits", "features"]
    np.testing.assert_array_equal(back.values["b2"], np.zeros(5))


def test_an_output_that_is_left_out_stays_out() -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "scale"], ["y", "", "inverse"], "norm", epsilon=0.0)]
    ones = initializer("scale", np.ones(3, np.float32))
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3)], ("inverse",), [ones]))
    assert read["inverse"].eval({"x": X}) == pytest.approx(1 / X.std(axis=1, keepdims=True), rel=1e-5)


def test_a_model_with_bodies_is_expressions_too() -> None:
    branch = [
        helper.make_graph([helper.make_node(op, ["x"], [out], name)], op, [], [floats(out)])
        for op, out, name in (("Neg", "a", "neg"), ("Abs", "b", "abs"))
    ]
    yes = helper.make_tensor_value_info("yes", TensorProto.BOOL, [])
    nodes = [helper.make_node("If", ["yes"], ["y"], "choice", then_branch=branch[0], else_branch=branch[1])]
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3), yes], ("y",)))
    twice = weft.ops.neg(read["y"]) + weft.ops.abs(read["y"])
    check(weft.graph(twice))
    assert twice.eval({"x": X, "yes": np.array(True)}).tolist() == (np.abs(X) + X).tolist()


def test_a_decoder_of_pytorchs_has_its_loss() -> None:
    with np.load(HERE / "trained_decoder.npz") as held:
        data = {name: held[name] for name in held.files}
    made = weft.from_onnx(HERE / "trained_decoder.onnx").with_loss("cross_entropy")
    got = made.evaluate({"tokens": data["tokens"][:16], "labels": data["labels"][:16]}, training=True)
    assert got["loss"] == pytest.approx(data["losses"][0], abs=1e-5)


def test_what_is_missing_or_short_is_understood_or_told() -> None:
    read = weft.from_onnx(perceptron())
    with pytest.raises(weft.ArgumentError, match=r"this model has no loss yet: .* model\.with_loss"):
        weft.job_spec(read, data="d.npz", steps=1)  # type: ignore[arg-type]  # the mistake is the point
    assert dict(read.with_loss("cross_entropy", output="logits", metrics="accuracy").metrics) == {
        "accuracy": "accuracy"
    }
    trainable = read.with_loss("cross_entropy", output="logits")
    made = weft.job_spec(trainable, data="d.npz", steps=1, ema=0.5)
    assert made.ema is not None
    assert made.ema.decay == 0.5


def test_a_file_to_be_trained_further_keeps_its_dropout(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Dropout", ["h"], ["y"], "drop")]
    read = weft.from_onnx(model(nodes, [floats("x", "N", 3)], ("y",), [weights("w", 3, 4)]))
    read.export_onnx(tmp_path / "served.onnx")
    read.export_onnx(tmp_path / "training.onnx", training=True)
    with pytest.raises(weft.ArgumentError, match=r"would be an ONNX file: end its name in \.onnx, or write the param"):
        read.export_onnx(tmp_path / "served.safetensors")
    kinds = [
        {node.op_type for node in weft.from_onnx(tmp_path / name).graph.nodes}
        for name in ("served.onnx", "training.onnx")
    ]
    assert ["Dropout" in kind for kind in kinds] == [False, True]
