"""Files that PyTorch's exporter writes with its optimizer on: parameters are the module's own again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from torch_exports import exports_are_quick  # noqa: F401  # a fixture
from weft_graph.onnx_form.errors import Imported, OnnxError, ReadOptions
from weft_graph.onnx_form.reader import read_model

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own


class Of(nn.Module):  # type: ignore[misc, name-defined]
    """A module whose forward is a function of itself and of its input."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, given: Any) -> Any:
        return self.function(self, given)


def exported(module: Any, example: Any, **options: Any) -> onnx.ModelProto:
    proto: onnx.ModelProto = torch.onnx.export(module, (example,), dynamo=True, verbose=False, **options).model_proto
    return proto


def read(module: Any, example: Any, **options: Any) -> Imported:
    return read_model(exported(module, example), ReadOptions(**options))


def trained(found: Imported) -> dict[str, Any]:
    return {each.name: found.values[each.name] for each in found.graph.parameters if each.trainable}


def assert_same(found: dict[str, Any], module: Any) -> None:
    wanted = {name: value.detach().numpy() for name, value in module.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_equal_dropped_and_transposed_parameters_are_the_modules_own_again() -> None:
    """Norms of ones are one initializer in the file, zero biases are none, weights for inputs of rank 3 are turned."""
    module = nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8), nn.Linear(8, 4), nn.LayerNorm(4)
    )
    nn.init.zeros_(module[0].bias)
    nn.init.zeros_(module[4].bias)
    example = torch.randn(2, 3, 8)
    proto = exported(module, example)
    stored = {tensor.name for tensor in proto.graph.initializer}
    assert not {"1.bias", "2.weight", "3.weight"} & stored, "the exporter does not do it any more"
    assert_same(trained(read_model(proto)), module)
    flat = exported(module, torch.randn(2, 8))
    assert "0.bias" not in {tensor.name for tensor in flat.graph.initializer}
    assert_same(trained(read_model(flat)), module)


def test_a_norms_statistics_are_apart_from_its_parameters() -> None:
    module = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8)).eval()
    found = read(module, torch.randn(2, 8))
    assert_same(trained(found), module)
    kept = {each.name for each in found.graph.parameters if not each.trainable}
    assert kept == {f"{norm}.running_{what}" for norm in (0, 2) for what in ("mean", "var")}
    for norm in (node for node in found.graph.nodes if node.op_type == "BatchNormalization"):
        assert len(set(norm.inputs)) == 5


def test_what_modules_share_stays_one_parameter() -> None:
    module = Of(lambda m, ids: m.head(m.table(ids)), table=nn.Embedding(9, 8), head=nn.Linear(8, 9, bias=False))
    module.head.weight = module.table.weight
    found = read(module, torch.randint(0, 9, (2, 3)))
    assert list(trained(found)) == ["head.weight"]
    assert found.reasons["head.weight"] == "one with table.weight"
    turned = Of(lambda m, a: functional.linear(m.down(a).relu(), m.down.weight.t()), down=nn.Linear(8, 3))
    assert_same(trained(read(turned, torch.randn(2, 4, 8))), turned)


def test_what_the_exporter_computed_is_constant_and_told() -> None:
    """As rotary tables are, which look like weights."""

    def turned(module: Any, given: Any) -> Any:
        angles = torch.outer(torch.arange(3.0), module.rates)
        return module.layer(given * torch.cos(angles) + torch.sin(angles))

    module = Of(turned, layer=nn.Linear(8, 8))
    module.register_buffer("rates", torch.rand(8))
    found = read(module, torch.randn(2, 3, 8))
    assert_same(trained(found), module)
    (warning,) = found.warnings
    assert "the exporter has computed constants" in warning


def within_no_grad(module: Any, given: Any) -> Any:
    with torch.no_grad():
        wanted = module.layer(given * 2)
    return functional.mse_loss(module.layer(given), wanted)


def by_places(module: Any, given: Any) -> Any:
    return module.head(given + module.places(torch.arange(given.shape[1])))


REFUSED: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "detach": (
        lambda: (Of(lambda m, a: (m.layer(a).detach() * m.layer(a)).sum(), layer=nn.Linear(8, 8)), torch.randn(2, 8)),
        "it reads a value that was detached .* optimize=False",
    ),
    "no_grad": (
        lambda: (Of(within_no_grad, layer=nn.Linear(8, 8)), torch.randn(2, 8)),
        r"aten.linear.default of 'layer.weight', 'layer.bias' is computed within torch.no_grad\(\)",
    ),
    "a folded table": (
        lambda: (Of(by_places, places=nn.Embedding(9, 8), head=nn.Linear(8, 8)), torch.randn(2, 3, 8)),
        "parameter 'places.weight' is not in the file: .* optimize=False",
    ),
    "a folded number": (
        lambda: (
            Of(lambda m, a: m.layer(a) * m.scale.exp(), layer=nn.Linear(8, 8), scale=nn.Parameter(torch.ones(()))),
            torch.randn(2, 8),
        ),
        "parameter 'scale' is not in the file",
    ),
    "a folded norm": (
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.randn(2, 3, 4, 4)),
        "BatchNormalization of module '1' was folded into it",
    ),
    "a bag": (lambda: (nn.EmbeddingBag(9, 8), torch.randint(0, 9, (2, 3))), "EmbeddingBag as a loop"),
    "channels that are dropped": (
        lambda: (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout2d(0.5)), torch.randn(2, 3, 4, 4)),
        r"module '1': it draws random numbers .aten.bernoulli",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_file_has_lost_is_refused_with_a_remedy_unless_nobody_wants_to_know(name: str) -> None:
    make, message = REFUSED[name]
    proto = exported(*make())
    with pytest.raises(OnnxError, match=message):
        read_model(proto)
    if name != "a bag":
        assert read_model(proto, ReadOptions(verify=False)).graph.nodes


def test_padding_and_sparseness_of_embeddings_are_read() -> None:
    module = Of(
        lambda m, ids: m.padded(ids) + m.sparse(ids),
        padded=nn.Embedding(9, 8, padding_idx=2),
        sparse=nn.Embedding(9, 8, sparse=True),
    )
    found = read(module, torch.randint(0, 9, (2, 3)))
    assert {each.name: each.lazy_update for each in found.graph.parameters} == {
        "padded.weight": False,
        "sparse.weight": True,
    }
    assert any(node.op_type == "StopGradient" for node in found.graph.nodes)
    assert [node.op_type for node in found.graph.nodes if node.inputs[0].endswith(".weight")] == ["Embedding"] * 2
    asked = read(module, torch.randint(0, 9, (2, 3)), lazy=("padded.*",))
    assert all(each.lazy_update for each in asked.graph.parameters)


def test_an_id_below_0_counts_from_the_end_where_pytorch_has_it_so() -> None:
    """By Python's indices, and not in an embedding, which refuses it."""
    module = Of(lambda m, ids: m.layer(m.layer.weight[ids]), layer=nn.Linear(8, 8, bias=False))
    found = read(module, torch.randint(-8, 8, (2, 3)))
    assert not any(node.op_type == "Embedding" for node in found.graph.nodes)
    whole = Of(lambda m, ids: m.layer(functional.embedding(ids, m.codes).float()), layer=nn.Linear(3, 8))
    whole.codes = torch.arange(12).reshape(4, 3)
    assert any(node.op_type == "Gather" for node in read(whole, torch.randint(0, 4, (2, 3))).graph.nodes)


HOSTILE = [
    "%e : = call_function[target=torch.ops.aten.embedding.default](args = (%p_w, %i, 1e400), kwargs = {})",
    "%e : = call_function[target=torch.ops.aten.embedding.default](args = (%p_w, %i, 99999999999999999999",
    "%e : = call_function[target=torch.ops.aten.embedding.default](args = (), kwargs = {padding_idx: 7})",
    "%e : [num_users=1] = call_function[target=torch.ops.aten.addmm.default](args = (%p_b, %i, %p_w), kwargs = {})",
    "%e : = call_function[target=torch.ops.aten.linear.default](args = (%i, %p_b, (((((), kwargs = {{{{})",
    "call_function[target=torch.ops.](args = (), kwargs = {})",
    "%p_w" * 1000,
]


@pytest.mark.parametrize("said", HOSTILE)
@pytest.mark.parametrize("op_type", ["Gather", "Gemm", "MatMul", "Identity"])
def test_notes_that_nobody_vouches_for_are_read_or_refused(op_type: str, said: str) -> None:
    inputs = {"Identity": ["w"], "Gather": ["w", "i"]}.get(op_type, ["x", "w"])
    node = onnx.helper.make_node(op_type, inputs, ["y"], name="n")
    node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=said)
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'e'")
    values = [onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w")]
    given = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3)),
        onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, (2,)),
    ]
    out = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph([node], "g", given, out, values)
    signature = "p_w: PARAMETER target='w'\np_b: PARAMETER target='b'\np_y: PARAMETER target='y'\n"
    graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    for verify in (True, False):
        with contextlib.suppress(OnnxError):
            assert read_model(model, ReadOptions(verify=verify)).graph.outputs == ("y",)


def test_a_parameter_that_the_exporter_has_computed_away_is_told_and_one_that_it_has_merged_is_refused() -> None:
    def scaled(function: Callable[..., Any], value: float) -> Any:
        return Of(function, layer=nn.Linear(8, 8), scale=nn.Parameter(torch.tensor(value)))

    gain = read(scaled(lambda m, a: m.layer(a) * m.scale, 1.0), torch.randn(2, 8))
    assert "scale" not in trained(gain), "the exporter does not do it any more"
    assert any("parameters are not in the file: 'scale'" in warning for warning in gain.warnings)
    with pytest.raises(OnnxError, match="reads parameter 'scale', which is no part of its call"):
        read(scaled(lambda m, a: torch.tanh(m.layer(a) * m.scale) * 2.0, 2.0), torch.randn(2, 8))
    eyes = Of(lambda m, a: torch.tanh(a @ m.left.t()) @ m.right, left=eye(), right=eye())
    with pytest.raises(OnnxError, match="parameter 'left' is not in the file"):
        read(eyes, torch.randn(2, 8))


def eye() -> Any:
    return nn.Parameter(torch.eye(8))
