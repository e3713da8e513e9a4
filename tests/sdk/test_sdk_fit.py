"""`weft.fit`: what it finds out about a model and its data, and what it says where it cannot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

import weft
from sdk_fakes import DRY, Script, answers, job, problem, unavailable
from torch_exports import exports_are_quick  # noqa: F401  # a fixture
from weft.api.lifecycle import JobState
from weft.api.values import Uploaded
from weft_graph.json_form import graph_from_json
from weft_kernels.evaluate import gradients

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own


class Scores(nn.Module):  # type: ignore[misc, name-defined]
    """Three scores of points, which an optional second input shifts."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)
        for name, part in more.items():
            setattr(self, name, part)

    def forward(self, x: Any, shift: Any = None) -> Any:
        return self.out(x if shift is None else x + shift)


class Shifted(Scores):
    """The shift is needed."""

    def forward(self, x: Any, shift: Any) -> Any:
        return super().forward(x, shift)


def write(path: Path, **columns: Any) -> str:
    rows = {"x": np.ones((20, 4), np.float32), "y": np.arange(20) % 3, "shift": np.ones((20, 4), np.float32)}
    np.savez(path, **{name: rows[kind] if isinstance(kind, str) else kind for name, kind in columns.items()})
    return str(path)


def server() -> Script:
    uploaded = Uploaded(id="values", names=[], size_bytes=1, expires_at=job().created_at)
    return answers(DRY, uploaded, job(), job(state=JobState.SUCCEEDED))


def submitted(model: Any, data: Any, **arguments: Any) -> dict[str, Any]:
    """The job that the server gets."""
    script = server()
    script.handlers = script.handlers[-2:] if isinstance(model, weft.Expression) else script.handlers
    done = weft.fit(model, data, client=script.client(), progress=False, **{"epochs": 1, **arguments})
    assert done.state is JobState.SUCCEEDED
    sent: dict[str, Any] = script.body(-2)
    return sent


@pytest.mark.parametrize(
    ("columns", "arguments", "expected"),
    [
        ({"x": "x", "y": "y"}, {}, {"x": "x", "labels": "y"}),  # by name, and what is left
        ({"points": "x", "kinds": "y"}, {}, {"x": "points", "labels": "kinds"}),  # by the file's order
        ({"kinds": "y", "points": "x"}, {"target": "kinds"}, {"x": "points", "labels": "kinds"}),
        ({"labels": "y", "other": "x", "x": "x"}, {}, {"x": "x", "labels": "labels"}),  # the input's own name
        ({"a": "x", "b": "y", "c": "y"}, {"inputs": "a", "target": "c"}, {"x": "a", "labels": "c"}),
        ({"x": "x", "shift": "shift", "y": "y"}, {}, {"x": "x", "shift": "shift", "labels": "y"}),
        (
            {"a": "x", "b": "shift", "y": "y"},
            {"inputs": ("b", "a")},
            {"x": "b", "shift": "a", "labels": "y"},
        ),
    ],
)
def test_columns_feed_a_module_by_name_by_order_or_as_they_are_said(
    tmp_path: Path, columns: dict[str, str], arguments: dict[str, Any], expected: dict[str, str]
) -> None:
    path = write(tmp_path / "points.npz", **columns)
    sent = submitted(Scores(), path, loss=nn.CrossEntropyLoss(), metrics="accuracy", **arguments)
    assert sent["data"]["columns"] == expected
    assert sent["name"] == "Scores"
    assert list(sent["metrics"]) == ["accuracy"]


def test_rows_of_a_column_in_fortrans_order_are_the_example_too(tmp_path: Path) -> None:
    """Zeros would be refused before a normalization, and show nothing elsewhere."""
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((20, 4), dtype=np.float32))
    path = write(tmp_path / "points.npz", x=x, y="y")
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    submitted(net, path, loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("loss", "operator"),
    [
        (nn.CrossEntropyLoss(ignore_index=2), "SoftmaxCrossEntropyLoss"),
        (nn.functional.cross_entropy, "SoftmaxCrossEntropyLoss"),
        (weft.nn.cross_entropy, "SoftmaxCrossEntropyLoss"),
        ("cross_entropy", "SoftmaxCrossEntropyLoss"),
        (nn.MSELoss(), "ReduceMean"),
        (nn.functional.l1_loss, "Abs"),
        (nn.BCEWithLogitsLoss(), "Softplus"),
    ],
)
def test_losses_of_pytorch_are_wefts(tmp_path: Path, loss: Any, operator: str) -> None:
    path = write(tmp_path / "points.npz", x="x", y="y" if operator.startswith("Soft") and "Cross" in operator else "x")
    if operator != "SoftmaxCrossEntropyLoss":
        path = write(tmp_path / "points.npz", x="x", y=np.ones((20, 3), np.float32))
    sent = submitted(Scores(), path, loss=loss)
    assert operator in {node["op_type"] for node in sent["graph"]["nodes"]}


@pytest.mark.parametrize(
    ("module", "written", "mapped", "fed"),
    [
        (Shifted, "shift x1 y", {"x": "x1"}, {"x": "x1", "shift": "shift", "labels": "y"}),
        (Scores, "x second y", {"shift": "second"}, {"x": "x", "shift": "second", "labels": "y"}),
        (
            Scores,
            "x shift y",
            {"shift": "x", "x": "x", "labels": "y"},
            {"x": "x", "shift": "x", "labels": "y"},
        ),  # as asked
        (Scores, "y points", {"labels": "y"}, {"x": "points", "labels": "y"}),
        (
            Scores,
            "other x1 y",
            {"shift": "x1"},
            "none of the name of the input 'x'; an input that columns={...} does not map",
        ),
    ],
)
def test_an_input_that_columns_do_not_map_takes_the_column_of_its_name(
    tmp_path: Path, module: type[Scores], written: str, mapped: dict[str, str], fed: dict[str, str] | str
) -> None:
    path = write(tmp_path / "points.npz", **{name: "y" if name == "y" else "x" for name in written.split()})
    data = weft.numpy_data(path, columns=mapped)
    if isinstance(fed, str):
        with pytest.raises(weft.ArgumentError, match=re.escape(fed)):
            submitted(module(), data, loss=nn.CrossEntropyLoss())
    else:
        assert submitted(module(), data, loss=nn.CrossEntropyLoss())["data"]["columns"] == fed


@pytest.mark.parametrize(("argument", "value"), [("inputs", "shift"), ("target", "w")])
def test_a_column_that_two_arguments_say_differently_is_refused(tmp_path: Path, argument: str, value: str) -> None:
    path = write(tmp_path / "points.npz", x="x", shift="shift", y="y", w="y")
    data = weft.numpy_data(path, columns={"x": "x", "labels": "y"})
    with pytest.raises(weft.ArgumentError, match=f"{argument}: input .* takes column '{value}', and columns=.* maps"):
        submitted(Scores(), data, loss=nn.CrossEntropyLoss(), **{argument: value})


def test_an_onnx_file_and_an_expression_are_fitted_too(tmp_path: Path) -> None:
    path = write(tmp_path / "points.npz", points="x", kinds="y")
    model = weft.from_torch(Scores(), torch.ones(8, 4))
    model.export_onnx(tmp_path / "scores.onnx")
    sent = submitted(tmp_path / "scores.onnx", path, loss="cross_entropy")
    assert sent["data"]["columns"] == {"x": "points", "labels": "kinds"}
    x, kinds = weft.input("points", ("batch", 4)), weft.input("kinds", ("batch",), "int64")
    loss = weft.nn.cross_entropy(weft.nn.Linear(4, 3)(x), kinds)
    assert submitted(loss, path)["data"]["columns"] == {"points": "points", "kinds": "kinds"}
    with pytest.raises(weft.ArgumentError, match="loss and target: of a model without a loss"):
        weft.fit(loss, path, loss="mse", target="kinds", epochs=1)


def test_a_number_that_is_not_finite_is_the_datas_and_not_the_modules(tmp_path: Path) -> None:
    x = np.ones((20, 4), np.float32)
    x[2, 1] = np.nan
    path = write(tmp_path / "nan.npz", x=x, y="y")
    with pytest.raises(weft.ArgumentError, match=re.escape(f"row 2 of column 'x' of {path} is not finite: correct")):
        submitted(Scores(), path, loss=nn.CrossEntropyLoss())


def test_data_that_is_no_archive_of_numbers_is_told_with_what_to_save(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("x,y\n1,0\n")
    ragged = np.empty(2, object)
    ragged[:] = [[1, 2], [3]]
    for data, said in (
        (tmp_path / "points.csv", f"{tmp_path}/points.csv is no .npz file: numpy.savez('data.npz', x=x, y=y) writes"),
        ({"x": 1}, "path of a .npz file, not dict: save its arrays with numpy.savez('data.npz', x=x, y=y)"),
        (write(tmp_path / "ragged.npz", x=ragged), f"{tmp_path}/ragged.npz: column 'x' holds Python objects"),
    ):
        with pytest.raises(weft.ArgumentError, match=re.escape(said)):
            submitted(Scores(), data, loss=nn.CrossEntropyLoss())


class Tagged(Scores):
    """Points and ids."""

    def __init__(self) -> None:
        super().__init__(table=nn.Embedding(9, 4))

    def forward(self, x: Any, ids: Any) -> Any:
        return super().forward(x, self.table(ids))


@pytest.mark.parametrize(
    ("module", "columns", "said"),
    [
        (
            nn.Sequential(nn.Embedding(9, 3)),
            {"input": np.ones(20, np.float32)},
            "column 'input' is float32, and the module takes ids: save the column with .astype('int64')",
        ),
        (
            nn.Sequential(nn.Linear(4, 3)),
            {"input": np.ones((20, 4), int)},
            "column 'input' is int64, and the module computes in float32: save the column with .astype('float32')",
        ),
        (
            Tagged(),
            {"x": "x", "ids": np.ones(20, np.float32)},
            "column 'x' is float32 and column 'ids' is float32, and the module takes ids: save the ids with",
        ),
        (
            nn.Sequential(nn.Linear(4, 3)),
            {"input": np.ones((20, 4))},
            "column 'input' is float64, and the module computes in float32: save the column with .astype('float32')",
        ),
    ],
)
def test_a_column_of_another_dtype_than_the_modules_is_named(
    tmp_path: Path, module: Any, columns: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "types.npz", **columns, y="y")
    with pytest.raises(weft.ModuleRefusedError, match=re.escape(f"{path}: {said}")):
        submitted(module, path, loss=nn.CrossEntropyLoss())


def test_arguments_are_checked_before_the_module_is_exported(tmp_path: Path) -> None:
    ran = []
    module = Scores()
    module.register_forward_pre_hook(lambda *_: ran.append(1))
    path = write(tmp_path / "points.npz", x="x", y="y")
    for wrong in ({"workers": 0}, {"epochs": None}, {"optimizer": torch.optim.SGD(module.parameters())}):
        with pytest.raises(weft.ArgumentError):
            submitted(module, path, loss=nn.CrossEntropyLoss(), **wrong)
    assert ran == []


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (np.ones(20, np.float32), "column 'y' of {path} is float32, and cross_entropy takes numbers of classes"),
        (np.ones((20, 3), np.float32), "column 'y' of {path} is float32[3], and cross_entropy takes numbers"),
        (
            np.repeat("a", 20),
            "such as int64: save numbers for it, such as numpy.unique(column, return_inverse=True)[1]",
        ),
    ],
)
def test_a_target_without_numbers_of_classes_is_told_before_the_module_is_exported(
    tmp_path: Path, kinds: np.ndarray, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "points.npz", x="x", y=kinds)
    monkeypatch.setattr("weft.torch_model.from_torch", lambda *_: pytest.fail("the module was exported"))
    with pytest.raises(weft.ArgumentError, match=re.escape(said.format(path=path))):
        submitted(Scores(), path, loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("x", "y", "loss", "said"),
    [
        (
            (12, 4), (np.int64, 12), nn.CrossEntropyLoss(ignore_index=-100),
            "is (batch, 12, 3) with its classes on axis 1, so cross_entropy takes a target of (batch, 3), and column "
            "'y' of {path} is (rows, 12): if axis 2 has the classes, say so: loss=weft.Loss('cross_entropy', "
            "classes_axis=2, ignore_index=-100)",
        ),
        (
            (4,), (np.float32, 1), nn.MSELoss(),
            "is (batch, 3), so mse takes a target of (batch, 3), and column 'y' of {path} is (rows, 1): save the "
            "column so, or change the module's output",
        ),
        ((4,), (np.int64, 2), "cross_entropy", "takes a target of (batch), and column 'y' of {path} is (rows, 2): s"),
    ],
)  # fmt: skip
def test_a_target_of_another_shape_than_the_output_asks_for_is_told_before_the_module_is_exported(
    tmp_path: Path, x: tuple[int, ...], y: tuple[Any, ...], loss: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, *shape = y
    path = write(tmp_path / "points.npz", x=np.ones((20, *x), np.float32), y=np.zeros((20, *shape), kind))
    monkeypatch.setattr("weft.torch_model.from_torch", lambda *_: pytest.fail("the module was exported"))
    with pytest.raises(weft.ArgumentError, match=re.escape(said.format(path=path))):
        submitted(Scores(), path, loss=loss)


def test_classes_on_the_last_axis_are_compared_as_the_refusal_says(tmp_path: Path) -> None:
    path = write(tmp_path / "tags.npz", x=np.ones((20, 12, 4), np.float32), y=np.zeros((20, 12), np.int64))
    sent = submitted(Scores(), path, loss=weft.Loss("cross_entropy", classes_axis=2, ignore_index=-100))
    assert sent["data"]["columns"] == {"x": "x", "labels": "y"}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"kind": "y", "series": "x"}, "inputs take the columns in the order of the file; say which is the target: t"),
        ({"series": "x"}, "as many as the model has inputs (input), and none that the loss compares with: save the t"),
        ({"input": "x"}, "; none is left for the target: save it in the file too, or say which of them the loss comp"),
        ({"input": np.ones((0, 4), np.float32), "y": np.ones(0, int)}, "column 'input' of {path} has no rows: a modu"),
        ({"input": np.ones((1, 4), np.float32), "y": np.ones(1, int)}, "column 'input' of {path} has one row: a modu"),
        ({"input": np.repeat("a", 20), "y": "y"}, "column 'input' of {path} is text: save numbers for it, such as nu"),
    ],
)
def test_columns_that_do_not_fit_are_told_with_their_cause(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "points.npz", **columns)
    with pytest.raises(weft.ArgumentError, match=re.escape(said.format(path=path))):
        submitted(nn.Sequential(nn.Linear(4, 3)), path, loss=nn.CrossEntropyLoss())


def test_the_server_is_asked_before_the_module_is_exported(tmp_path: Path) -> None:
    ran = []
    module = Scores()
    module.register_forward_pre_hook(lambda *_: ran.append(1))
    path = write(tmp_path / "points.npz", x="x", y="y")
    rows = {"pointer": "/data/batch_size", "detail": "a batch of 64 samples is more than the 20 rows to train on"}
    graph = {"pointer": "/data/columns/x", "detail": "a row has shape [4] and a sample has []"}
    wrong = problem(422, "invalid-job", "two things", [rows, graph])
    for answer, kind, said in (
        (unavailable, weft.ConnectError, "no server at http://127.0.0.1:8470 .*; start one with: .*weft up"),
        (problem(401, "unauthenticated", "no token"), weft.UnauthenticatedError, "no token"),
        (wrong, weft.InvalidRequestError, f"^ */data/batch_size: {rows['detail']}$"),
    ):
        with pytest.raises(kind, match=said):
            weft.fit(module, path, loss=nn.CrossEntropyLoss(), epochs=1, client=answers(answer).client())
    assert ran == []


def test_what_the_server_says_of_a_graph_that_stands_in_for_the_modules_is_not_told(tmp_path: Path) -> None:
    script = server()
    graph = {"pointer": "/data/columns/x", "detail": "a row has shape [4] and a sample has []"}
    script.handlers[0] = lambda _: problem(422, "invalid-job", "shapes", [graph])
    path = write(tmp_path / "points.npz", x="x", y="y")
    weft.fit(Scores(), path, loss=nn.CrossEntropyLoss(), epochs=1, client=script.client(), progress=False)
    asked = script.body(0)
    assert script.requests[0].url.query == b"dry_run=true"
    assert (asked["data"]["columns"], asked["data"]["source"]["path"]) == ({"x": "x"}, path)


@pytest.mark.parametrize(
    ("named", "words", "said"),
    [
        (False, {"metrics": "acuracy"}, "metrics has no 'acuracy'; did you mean 'accuracy'?"),
        (True, {"metrics": "spraed"}, "metrics has no 'spraed'; did you mean 'spread'?"),
        (True, {"metrics": "scores"}, "metrics has no 'scores'; it has cross_entropy"),
        (False, {"loss": "sparse_categorical_crossentropy"}, "loss has no 'sparse_categorical_crossentropy'; did you"),
        (False, {"loss": weft.Loss("mae")}, "loss has no 'mae'; did you mean 'l1'?"),
    ],
)
def test_a_loss_or_metric_that_there_is_not_is_told_before_the_module_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool, words: dict[str, Any], said: str
) -> None:
    class Named(Scores):
        def forward(self, x: Any) -> Any:
            scores = super().forward(x)
            return {"scores": scores, "spread": scores.square().mean()} if named else scores

    monkeypatch.setattr(torch.onnx, "export", None)
    path = write(tmp_path / "points.npz", x="x", y="y")
    with pytest.raises(weft.ArgumentError, match=re.escape(said)):
        submitted(Named(), path, **{"loss": nn.CrossEntropyLoss(), **words})


def test_a_metric_may_be_an_output_of_the_module(tmp_path: Path) -> None:
    class Named(Scores):
        def forward(self, x: Any) -> Any:
            scores = super().forward(x)
            return {"scores": scores, "spread": scores.square().mean()}

    path = write(tmp_path / "points.npz", x="x", y="y")
    sent = submitted(Named(), path, loss=weft.Loss("cross_entropy", "scores"), metrics="spread")
    assert list(sent["metrics"]) == ["spread"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Scores, "the class Scores: make one of it, Scores(...); a PyTorch model is a torch.nn.Module, which weft.fit"),
        (Scores().state_dict(), "OrderedDict: values alone are no model, give the module that they are of; a PyTorch"),
        (lambda x: x, "function; a PyTorch model is a torch.nn.Module"),
    ],
)
def test_what_is_no_model_is_told_what_to_give(tmp_path: Path, model: Any, said: str) -> None:
    path = write(tmp_path / "points.npz", x="x", y="y")
    with pytest.raises(weft.ArgumentError, match=re.escape(said)):
        weft.fit(model, path, loss="cross_entropy", epochs=1)  # no server is asked


def test_arrays_in_the_place_of_a_file_are_told_what_to_do() -> None:
    with pytest.raises(weft.ArgumentError, match=r"fit takes the model and its data, and all else by name.*savez"):
        weft.fit(Scores(), np.ones((20, 4)), np.ones(20), epochs=1)  # type: ignore[arg-type]  # the mistake is the point
    with pytest.raises(AttributeError, match=re.escape("weft has no 'compile'; write weft.fit(model, data, loss=...,")):
        _ = weft.compile  # type: ignore[attr-defined]  # likewise


def test_an_id_of_the_first_rows_that_an_embedding_does_not_have_is_told_as_that(tmp_path: Path) -> None:
    path = write(tmp_path / "ids.npz", input=np.full((20, 4), 9), y="y")
    bags = nn.Sequential(nn.EmbeddingBag(9, 3), nn.Linear(3, 3))
    with pytest.raises(weft.ModuleRefusedError, match="an id is not one of an embedding's rows: correct the data"):
        submitted(bags, path, loss=nn.CrossEntropyLoss())


def test_data_of_another_machine_needs_an_example(tmp_path: Path) -> None:
    with pytest.raises(weft.ArgumentError, match=re.escape(f"{tmp_path}/far.npz cannot be read on this machine")):
        submitted(Scores(), tmp_path / "far.npz", loss=nn.CrossEntropyLoss())
    sent = submitted(Scores(), "far.npz", loss=nn.CrossEntropyLoss(), example=torch.ones(8, 4), target="kinds")
    assert sent["data"]["columns"] == {"x": "x", "labels": "kinds"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"inputs": "z"}, "inputs: {path} has no column 'z'; it has x (float32[4]), y (int64), w (int64)"),
        ({"target": "z"}, "target: {path} has no column 'z'; it has x"),
        ({"inputs": ("x", "y", "w")}, "inputs is ['x', 'y', 'w'], and the model has 2 inputs: x, shift"),
        ({}, "w (int64); say which of them the loss compares with: target=..."),
        ({"loss": None}, "loss is missing"),
        ({"workers": 0, "epochs": None}, "give either epochs or steps"),
        ({"workers": 0}, "workers is 0; it should be greater than or equal to 1"),
        ({"optimizer": weft.Adam(), "lr_scheduler": 1}, "fit has no 'lr_scheduler'; write optimizer=weft.Adam(lr="),
        ({"loss": nn.MSELoss(reduction="sum")}, "MSELoss has reduction='sum'; a job's loss is a 'mean'"),
        ({"loss": 3}, "loss is 3; it should be torch.nn.CrossEntropyLoss()"),
        ({"loss": {3: 4}}, "loss is {{3: 4}}; it should be torch.nn.CrossEntropyLoss()"),
        ({"loss": nn.HuberLoss(), "example": torch.ones(8, 4)}, "example: a loss that weft has no word for"),
    ],
)
def test_what_cannot_be_found_out_is_asked_for(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "points.npz", x="x", y="y", w="y")
    with pytest.raises(weft.ArgumentError, match=re.escape(said.format(path=path))):
        submitted(Scores(), path, **{"loss": nn.CrossEntropyLoss(), **wrong})


def test_a_loss_of_pytorchs_may_be_a_class_where_weft_has_a_word_for_it(tmp_path: Path) -> None:
    path = write(tmp_path / "points.npz", x="x", y="y")
    assert submitted(Scores(), path, loss=nn.CrossEntropyLoss)["data"]["columns"] == {"x": "x", "labels": "y"}
    with pytest.raises(weft.ArgumentError, match=r"loss is the class HuberLoss: .* such as HuberLoss\(\)"):
        submitted(Scores(), path, loss=nn.HuberLoss)


# --- The way back -----------------------------------------------------------------------------------------------------


def trained(module: Any, **changed: Any) -> weft.JobHandle:
    """A job that has trained all of the module's parameters and running statistics to sevens."""
    values = {
        name: np.full(value.shape, 7, np.float32)
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    }
    values = {name: value for name, value in {**values, **changed}.items() if value is not None}
    answer = httpx.Response(200, content=save(values), headers={"Weft-Step": "12"})
    return weft.JobHandle(answers(answer).client().http, job())


def test_trained_values_come_back_into_the_module() -> None:
    module = Scores(norm=nn.BatchNorm1d(3), half=nn.Linear(2, 2, dtype=torch.bfloat16))
    module.tied = nn.Linear(4, 3)
    module.tied.weight = module.out.weight
    weight = module.out.weight
    assert trained(module, **{"out.weight": None}).load_into(module) == 12
    assert module.out.weight is weight
    assert all(bool((value == 7).all()) for value in module.state_dict().values() if value.is_floating_point())
    assert int(module.norm.num_batches_tracked) == 0


def test_a_module_that_differs_is_left_as_it_was() -> None:
    module = Scores()
    before = module.out.weight.detach().clone()
    for changed, said in (
        ({"out.bias": None}, "the job has no values of the module's parameters 'out.bias'"),
        ({"head.bias": np.ones(2)}, "the module has no parameters 'head.bias', which the job has"),
        ({"out.bias": np.ones(2)}, "'out.bias' is [3] in the module and [2] in the job"),
    ):
        with pytest.raises(weft.ArgumentError, match=re.escape(said)):
            trained(module, **changed).load_into(module)
        assert torch.equal(module.out.weight, before)
    trained(module, **{"head.bias": np.ones(2), "out.bias": None}).load_into(module, strict=False)
    assert bool((module.out.weight == 7).all())
    with pytest.raises(weft.ArgumentError, match=r"module is a torch\.nn\.Module, not str"):
        trained(module).load_into("net")


def test_a_loss_that_forward_computes_is_named(tmp_path: Path) -> None:
    class Own(Scores):
        def forward(self, x: Any, y: Any) -> Any:
            scores = super().forward(x)
            return {"loss": nn.functional.huber_loss(scores[:, 0], y), "scores": scores}

    path = write(tmp_path / "points.npz", x="x", y=np.ones(20, np.float32))
    sent = submitted(Own(), path, loss="loss")
    assert sent["loss"] == "loss"
    assert sent["data"]["columns"] == {"x": "x", "y": "y"}


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.05)])
def test_the_labels_of_a_loss_of_classes_have_one_name_and_any_integers_whatever_its_options(
    tmp_path: Path, loss: Any
) -> None:
    path = write(tmp_path / "points.npz", x="x", y=(np.arange(20) % 3).astype(np.int32))
    data = weft.numpy_data(path, columns={"labels": "y"})
    sent = submitted(Scores(), data, loss=loss)
    assert sent["data"]["columns"] == {"x": "x", "labels": "y"}


def test_a_column_that_is_mapped_to_the_target_of_a_loss_with_options_is_taken(tmp_path: Path) -> None:
    data = weft.numpy_data(write(tmp_path / "points.npz", x="x", y="y"), columns={"target": "y"})
    sent = submitted(Scores(), data, loss=nn.CrossEntropyLoss(label_smoothing=0.05))
    assert sent["data"]["columns"] == {"x": "x", "target": "y"}


def test_a_label_that_is_no_class_is_told_as_that(tmp_path: Path) -> None:
    path = write(tmp_path / "points.npz", x="x", y=np.full(20, 7))
    with pytest.raises(weft.ModuleRefusedError, match="a label is not one of the classes: correct the data, or give"):
        submitted(Scores(), path, loss=nn.CrossEntropyLoss(label_smoothing=0.05))


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1), "labels"),
        (nn.MultiMarginLoss(), "target"),
        (lambda scores, kinds: nn.functional.cross_entropy(scores * 2, kinds), "target"),
    ],
)
def test_any_other_loss_is_computed_in_the_graph_as_pytorch_does(tmp_path: Path, loss: Any, name: str) -> None:
    path = write(tmp_path / "points.npz", x="x", kinds="y")
    module = Scores()
    sent = submitted(module, path, loss=loss, metrics="accuracy")
    assert sent["data"]["columns"] == {"x": "x", name: "kinds"}
    assert (sent["loss"], list(sent["metrics"])) == ("loss", ["accuracy"])
    x, kinds = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32), np.arange(20) % 3
    names = set(dict(module.named_parameters()))
    graph = graph_from_json(sent["graph"])
    assert {each.name for each in graph.parameters} == names
    values = {each: value.detach().numpy() for each, value in module.named_parameters()}
    found, _ = gradients(graph, "loss", {"x": x, name: kinds}, parameters=values)
    wanted = loss(module(torch.from_numpy(x)), torch.from_numpy(kinds)).detach()
    assert float(found["loss"]) == pytest.approx(float(wanted), rel=1e-5)
    assert type(module) is Scores
    assert "weft_loss" not in dict(module.named_modules())


@pytest.mark.parametrize("loss", [nn.HuberLoss(), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))])
def test_a_loss_in_the_graph_of_a_module_that_calls_all_its_parts_is_none_of_them(tmp_path: Path, loss: Any) -> None:
    is_huber = isinstance(loss, nn.HuberLoss)
    wanted = np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32) if is_huber else np.arange(20) % 3
    module, name = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), "target" if is_huber else "labels"
    sent = submitted(module, write(tmp_path / "points.npz", x="x", y=wanted), loss=loss)
    assert sent["data"]["columns"] == {"input": "x", name: "y"}
    x = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    values = {each: value.detach().numpy() for each, value in module.named_parameters()}
    found, _ = gradients(graph_from_json(sent["graph"]), "loss", {"input": x, name: wanted}, parameters=values)
    theirs = loss(module(torch.from_numpy(x)), torch.from_numpy(wanted)).detach()
    assert float(found["loss"]) == pytest.approx(float(theirs), rel=1e-5)
    assert len(module) == 3
