"""Models from PyTorch modules: with PyTorch where it is installed, and with a stand-in for what is weft's own part."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import weft
from onnx_models import floats, model, weights
from weft_kernels.evaluate import evaluate


class Tensor:
    """A stand-in's tensor: a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)


class Module:
    """A stand-in's module, whose head stays in inference."""

    def __init__(self, *, is_head: bool = False) -> None:
        self.training = False
        self.head = None if is_head else Module(is_head=True)

    def modules(self) -> list[Module]:
        return [self] if self.head is None else [self, self.head]

    def train(self) -> None:
        for each in self.modules():
            each.training = True

    def eval(self) -> None:
        for each in self.modules():
            each.training = False

    def named_parameters(self, remove_duplicate: bool = True) -> list[tuple[str, Any]]:
        return [("w1", SimpleNamespace(requires_grad=False)), ("w2", SimpleNamespace(requires_grad=True))]


def exported() -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("MatMul", ["h", "w2"], ["y"])]
    return model(nodes, [floats("x", "batch", 3)], ("y",), [weights("w1", 3, 4), weights("w2", 4, 2)])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """PyTorch as far as weft knows it; what it was asked to export."""
    made: list[dict[str, Any]] = []

    def export(module: Module, args: tuple[Any, ...], **options: Any) -> Any:
        made.append({"args": args, "modes": [each.training for each in module.modules()], **options})
        if options.get("opset_version") == 1:
            raise RuntimeError("no")
        return SimpleNamespace(model_proto=exported())

    torch = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Module=Module),
        onnx=SimpleNamespace(export=export),
        export=SimpleNamespace(Dim=lambda name: f"Dim({name})"),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "onnxscript", SimpleNamespace())
    return made


def test_a_module_is_exported_in_training_whole_and_is_as_it_was_afterwards(calls: list[dict[str, Any]]) -> None:
    module = Module()
    module.training = True  # its head is not
    read = weft.from_torch(module, Tensor(4, 3))
    assert [each.training for each in module.modules()] == [True, False]
    (call,) = calls
    assert call["modes"] == [True, False]
    assert (call["dynamo"], call["optimize"], call["kwargs"]) == (True, False, None)
    assert call["dynamic_shapes"] == ({0: "Dim(batch)"},)
    assert {name: each.trainable for name, each in read.parameters.items()} == {"w1": False, "w2": True}
    in_inference = Module()
    with pytest.raises(RuntimeError):
        weft.from_torch(in_inference, Tensor(4, 3), opset=1)
    assert calls[-1]["modes"] == [True, True]
    assert [each.training for each in in_inference.modules()] == [False, False]
    weft.from_torch(module, Tensor(4, 3), training=False)
    assert calls[-1]["modes"] == [False, False]
    assert [each.training for each in module.modules()] == [True, False]


def test_inputs_are_named_and_their_shapes_may_be_said(calls: list[dict[str, Any]]) -> None:
    mask = Tensor()
    weft.from_torch(Module(), {"x": Tensor(4, 3), "scale": mask, "flag": 3}, parameters="w1", input_names=["x"])
    assert calls[-1]["args"] == ()
    assert calls[-1]["dynamic_shapes"] == {"x": {0: "Dim(batch)"}, "scale": None, "flag": None}
    assert calls[-1]["input_names"] == ["x"]
    read = weft.from_torch(Module(), (Tensor(1, 3),), dynamic=False, parameters="w1")
    assert calls[-1]["dynamic_shapes"] is None
    assert read.parameters["w1"].trainable
    own = {"x": {1: "tokens"}}
    weft.from_torch(Module(), (Tensor(1, 3),), dynamic=own)
    assert calls[-1]["dynamic_shapes"] is own


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (print, Tensor(4, 3), r"module is a torch\.nn\.Module, not builtin_function_or_method"),
        (Module(), 3, "example is a tensor, a tuple of tensors, or a mapping from argument to tensor, not int"),
        (Module(), Tensor(1, 3), r"example\[0\] has 1 samples; an example has two or more"),
        (Module(), {"x": Tensor(0, 3)}, "x has 0 samples"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_what_cannot_be_exported_is_said_before(module: Any, example: Any, message: str) -> None:
    with pytest.raises(weft.ArgumentError, match=message):
        weft.from_torch(module, example)


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
@pytest.mark.usefixtures("calls")
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(weft.MissingPackageError, match=f"needs the package {missing}: pip install torch"):
        weft.from_torch(Module(), Tensor(4, 3))


def small(torch: Any) -> Any:
    """Convolution, BatchNorm, Dropout, a frozen and a trained layer."""
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
    )
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.filterwarnings("default")
def test_a_real_module_is_read_as_it_trains_and_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    module = small(torch).eval()
    x = torch.randn(3, 2, 4, 4)
    read = weft.from_torch(module, x, input_names=["images"], output_names=["logits"])
    assert not module.training
    assert not any(each.training for each in module.modules())
    assert read.inputs["images"].type.shape == ("batch", 2, 4, 4)
    trains = {name: each.trainable for name, each in read.parameters.items()}
    assert trains == {
        **dict.fromkeys(["0.bias", "1.weight", "1.bias", "5.weight", "5.bias"], True),
        **dict.fromkeys(["0.weight", "1.running_mean", "1.running_var"], False),
    }
    with torch.no_grad():
        wanted = module(x).numpy()
    from weft_graph.passes.inference_mode import to_inference

    graph = to_inference(read.graph)
    graph = weft.cut(graph, "logits")
    names = {parameter.name for parameter in graph.parameters}
    kept = {name: value for name, value in read.values.items() if name in names}
    got = evaluate(graph, {"images": x.numpy()}, parameters=kept)["logits"]
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    made = read.with_loss("cross_entropy", metrics=("accuracy",))
    assert made.graph.inputs[1].type.shape == ("batch",)


@pytest.mark.filterwarnings("default")
def test_a_real_module_of_several_named_inputs() -> None:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, left: Any, right: Any) -> Any:
            return ((left - right) * self.weight).pow(2).mean()

    read = weft.from_torch(Sum(), {"left": torch.ones(4, 3), "right": torch.zeros(4, 3)})
    assert {name: each.type.shape for name, each in read.inputs.items()} == dict.fromkeys(
        ("left", "right"), ("batch", 3)
    )
    (loss,) = read.graph.outputs
    assert read.with_loss(loss).loss == loss
    assert list(read.parameters) == ["weight"]
