"""`weft.from_torch` with PyTorch itself: what it takes over from a module, what it refuses, what it says."""

from __future__ import annotations

import functools
import logging
import logging.handlers
import random
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread
from typing import Any

import numpy as np
import pytest

import weft
from torch_exports import exports_are_quick  # noqa: F401  # a fixture
from weft.torch_run import refusing
from weft_kernels.evaluate import gradients

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Of(nn.Module):  # type: ignore[misc, name-defined]
    """A module whose forward is a function of itself and of its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def x(*shape: int) -> Any:
    return torch.randn(shape or (4, 8))


def ids(*shape: int) -> Any:
    return torch.randint(0, 10, shape or (4, 5))


def small() -> Any:
    """Convolution, BatchNorm, Dropout, a frozen and a trained layer."""
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
    )
    module[0].weight.requires_grad_(False)
    return module


def test_a_module_is_read_as_it_trains_computes_the_same_and_is_as_it_was_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = small().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    images = x(3, 2, 4, 4)
    read = weft.from_torch(module, images, input_names=["images"], output_names=["logits"])
    assert not any(each.training for each in module.modules())
    assert "forward" not in vars(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(each.grad is None for each in module.parameters())
    assert read.inputs["images"].type.shape == ("batch", 2, 4, 4)
    assert {name: each.trainable for name, each in read.parameters.items()} == {
        **dict.fromkeys(["0.bias", "1.weight", "1.bias", "5.weight", "5.bias"], True),
        **dict.fromkeys(["0.weight", "1.running_mean", "1.running_var"], False),
    }
    with torch.no_grad():
        wanted = module(images).numpy()
    np.testing.assert_allclose(read.evaluate({"images": images.numpy()})["logits"], wanted, atol=1e-5)
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"weft: tried on the example: outputs and gradients of 5 parameters agree with PyTorch's \(.*\), .*\n", said
    )
    assert read.proof in said
    assert read.with_loss("cross_entropy").targets == ("labels",)


def test_the_list_says_what_trains_and_why_the_rest_does_not() -> None:
    tied = Of(
        lambda self, rows: self.head(self.body(self.table(rows))),
        table=nn.Embedding(10, 8),
        body=small_body(),
        head=nn.Linear(8, 10, bias=False),
    )
    tied.head.weight = tied.table.weight
    shown = str(weft.from_torch(tied, ids(), frozen="body.0.bias"))
    assert re.search(
        r"parameters that train .*\n(  .*\n)*  head.weight  float32\[10, 8\]  \(one with table.weight\)", shown
    )
    assert "body.0.bias  float32[8]  (frozen)" in shown
    assert "body.1.weight  float32[8]  (requires_grad is off)" in shown
    assert "body.1.running_mean  float32[8]  (running statistics)" in shown
    assert "body.2.scale  float32[8]  (a buffer of the module)" in shown
    assert "BatchNormalization (1 nodes): each worker takes mean and variance of its own part" in shown


def small_body() -> Any:
    """Over the last axis, with a norm over channels, of which the weight is kept as it is, and a buffer."""

    class Scale(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.rand(8))

        def forward(self, inputs: Any) -> Any:
            return inputs.mean(-1) * self.scale

    class Turned(nn.BatchNorm1d):  # type: ignore[misc, name-defined]
        def forward(self, inputs: Any) -> Any:
            return super().forward(inputs.transpose(1, 2))

    body = nn.Sequential(nn.Linear(8, 8), Turned(8), Scale())
    body[1].weight.requires_grad_(False)
    return body


def test_inputs_are_named_several_and_of_shapes_that_may_be_said() -> None:
    class Sum(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, left: Any, right: Any, *, factor: Any = None) -> Any:
            return ((left - right) * self.weight * (1 if factor is None else factor)).pow(2).mean()

    read = weft.from_torch(Sum(), {"right": torch.zeros(4, 3), "left": torch.ones(4, 3), "factor": torch.tensor(2.0)})
    assert {name: each.type.shape for name, each in read.inputs.items()} == {
        "left": ("batch", 3),
        "right": ("batch", 3),
        "factor": (),
    }
    (loss,) = read.graph.outputs
    assert read.with_loss(loss).loss == loss
    fixed = weft.from_torch(Sum(), (torch.ones(1, 3), torch.zeros(1, 3)), dynamic=False)
    assert fixed.inputs["left"].type.shape == (1, 3)


@pytest.mark.parametrize(
    ("module", "example", "message"),
    [
        (print, x(), r"module is a torch\.nn\.Module, not builtin_function_or_method"),
        (nn.Linear(8, 3), 3, "example is a tensor, a tuple of tensors, or a mapping from argument to tensor, not int"),
        (nn.Linear(8, 3), x(1, 8), r"example\[0\] has 1 samples; an example has two or more"),
        (nn.Linear(8, 3), {"input": x(0, 8)}, "input has 0 samples"),
        (nn.Bilinear(8, 8, 3), (x(4, 8), x(3, 8)), r"example\[0\] has 4 samples and example\[1\] has 3;"),
    ],
)
def test_what_cannot_be_exported_is_said_before(module: Any, example: Any, message: str) -> None:
    with pytest.raises(weft.ArgumentError, match=message):
        weft.from_torch(module, example)


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_a_missing_package_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(weft.MissingPackageError, match=f"needs the package {missing}: pip install torch"):
        weft.from_torch(nn.Linear(8, 3), x())


# --- What the exporter has no word for, taken over -----------------------------------------------------------------


def within_no_grad(self: Any, inputs: Any) -> Any:
    with torch.no_grad():
        target = self.layer(inputs * 2)
    return functional.mse_loss(self.layer(inputs), target)


def smoothed(self: Any, inputs: Any, labels: Any) -> Any:
    return functional.cross_entropy(self.layer(inputs), labels, self.weight, ignore_index=2, label_smoothing=0.1)


def mean_of_neighbours(self: Any, inputs: Any, places: Any) -> Any:
    index = (places % 3)[:, :1].expand(-1, 8)
    return inputs.new_zeros(4, 8).scatter_reduce(0, index, self.layer(inputs), "mean", include_self=False)


def padded() -> Any:
    table = nn.Embedding(10, 8, padding_idx=3)
    nn.init.normal_(table.weight)  # the padding's row too
    return table


def held() -> Any:
    module = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    module[2].eval()
    return module


class DropPath(nn.Module):  # type: ignore[misc, name-defined]
    """Drops whole samples, as residual networks do."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_prob = rate

    def forward(self, inputs: Any) -> Any:
        if not self.training:
            return inputs
        kept = inputs.new_empty((inputs.shape[0], 1)).bernoulli_(1 - self.drop_prob)
        return inputs * kept / (1 - self.drop_prob)


TAKEN_OVER: dict[str, Callable[[], tuple[Any, Any]]] = {
    "detach": lambda: (Of(lambda m, a: (m.layer(a).detach() * m.layer(a)).sum(), layer=nn.Linear(8, 8)), x()),
    "no_grad": lambda: (Of(within_no_grad, layer=nn.Linear(8, 8)), x()),
    "padding_idx": lambda: (padded(), torch.tensor([[3, 1, 3], [2, 3, 0]])),
    "a BatchNorm in eval": lambda: (held(), x()),
    "label smoothing": lambda: (
        Of(smoothed, layer=nn.Linear(8, 8), weight=nn.Parameter(torch.rand(8), requires_grad=False)),
        (x(), torch.tensor([1, 2, 3, 7])),
    ),
    "scatter mean": lambda: (Of(mean_of_neighbours, layer=nn.Linear(8, 8)), (x(), ids())),
    "bag sum": lambda: (nn.EmbeddingBag(10, 8, mode="sum", padding_idx=2), ids()),
    "bag mean": lambda: (nn.EmbeddingBag(10, 8, mode="mean", padding_idx=2), ids()),
    "bag max": lambda: (nn.EmbeddingBag(10, 8, mode="max", padding_idx=2), ids()),
    "bag weights": lambda: (
        Of(lambda m, a, w: m.table(a, per_sample_weights=w), table=nn.EmbeddingBag(10, 8, mode="sum")),
        (ids(), torch.rand(4, 5)),
    ),
    "old weight_norm": lambda: (nn.utils.weight_norm(nn.Linear(8, 8)), x()),
    "spectral norm in eval": lambda: (
        nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).eval()),
        x(),
    ),
}


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_gradients_of_what_the_exporter_leaves_out_are_autograds(name: str) -> None:
    """In float64, but for scalars, which the exporter writes in float32. Autograd is the oracle, not
    the comparison of from_torch, which is off."""
    made, example = TAKEN_OVER[name]()
    module = made.double()
    inputs = example if isinstance(example, tuple) else (example,)
    inputs = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    read = weft.from_torch(module, inputs, verify=False)
    output = module(*inputs)
    output.sum().backward()
    wanted = {name: each.grad.numpy() for name, each in module.named_parameters() if each.requires_grad}
    graph = summed(read)
    feeds = {input_.name: each.numpy() for input_, each in zip(graph.inputs, inputs, strict=True)}
    _, found = gradients(graph, graph.outputs[0], feeds, parameters=read.values)
    assert found.keys() == wanted.keys()
    for key, gradient in wanted.items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-6, atol=1e-9, err_msg=key)


def summed(read: weft.Model) -> Any:
    """The graph of the sum of a model's only output."""
    from dataclasses import replace

    from weft_graph.ir import Node

    (name,) = read.graph.outputs
    total = Node("ReduceSum", "total", (name,), ("total",), {"keepdims": 0})
    return replace(read.graph, nodes=(*read.graph.nodes, total), outputs=("total",))


@pytest.mark.parametrize(
    "layer", [nn.Dropout1d(0.4), nn.Dropout2d(0.4), nn.AlphaDropout(0.4), nn.FeatureAlphaDropout(0.4), DropPath(0.4)]
)
def test_dropout_of_every_kind_draws_in_training_as_often_as_pytorch_and_not_in_evaluation(layer: Any) -> None:
    inputs = x(4096, 2) if isinstance(layer, nn.AlphaDropout | DropPath) else x(4096, 2, 3)
    module = nn.Sequential(layer, nn.PReLU(init=1.0))  # passes all on
    read = weft.from_torch(module, inputs[:4], output_names=["y"])
    feeds = {read.graph.inputs[0].name: inputs.numpy()}
    np.testing.assert_allclose(read.evaluate(feeds)["y"], inputs.numpy(), rtol=1e-6)
    mine, theirs = read.evaluate(feeds, training=True)["y"], module(inputs).detach().numpy()
    assert (mine != inputs.numpy()).any()
    for power in (1, 2):  # of 8,192 draws or more
        np.testing.assert_allclose((mine**power).mean(), (theirs**power).mean(), atol=0.25)
    dropped = [np.isclose(each, inputs.numpy() * 0, atol=2.1).all(axis=-1).mean() for each in (mine, theirs)]
    assert dropped[0] == pytest.approx(dropped[1], abs=0.05)


def test_tables_are_lazy_where_the_embedding_is_sparse_or_somebody_says_so() -> None:
    module = Of(
        lambda m, a: m.dense(a) + m.sparse(a) + m.said(a),
        dense=nn.Embedding(10, 8),
        sparse=nn.Embedding(10, 8, sparse=True),
        said=nn.Embedding(10, 8),
    )
    read = weft.from_torch(module, ids(), lazy="said.*")
    assert {name: each.lazy_update for name, each in read.parameters.items()} == {
        "dense.weight": False,
        "sparse.weight": True,
        "said.weight": True,
    }


AT_EDGES: dict[str, Callable[[Any], Any]] = {
    "relu and its root": lambda a: torch.relu(a).sqrt()[:, 1:],
    "clamp": lambda a: a.clamp(0, 2),
    "clamp from below": lambda a: a.clamp(min=0),
    "clamp by a tensor": lambda a: a.clamp(max=torch.full((4,), 2.0)),
    "hardtanh": lambda a: functional.hardtanh(a, 0, 2),
    "relu6": lambda a: functional.relu6(2 * a),
    "hardswish": functional.hardswish,
    "leaky_relu": functional.leaky_relu,
    "prelu": lambda a: functional.prelu(a, torch.tensor([0.25])),
    "elu": lambda a: functional.elu(a, 2.0),
    "max over a dimension": lambda a: a.max(-1)[0],
    "min over a dimension": lambda a: a.min(0, keepdim=True).values,
    "maximum": lambda a: torch.maximum(a, torch.zeros_like(a)),
    "std": lambda a: a.std(-1),
    "vector_norm": lambda a: a.norm(3, dim=-1),
    "sinc": torch.sinc,
    "atan2": lambda a: torch.atan2(a, a.flip(1) - 1),
    "logsigmoid": lambda a: functional.logsigmoid(a * 100),
    "a loss of logits": lambda a: functional.binary_cross_entropy_with_logits(a * 100, torch.zeros(5, 4)),
    "logaddexp": lambda a: torch.logaddexp(a * 100, a.flip(0) * 100),
    "logaddexp2": lambda a: torch.logaddexp2(a * 1e4, -a * 1e4),
    "a loss of probabilities": lambda a: functional.binary_cross_entropy(torch.sigmoid(a * 100), torch.ones(5, 4)),
    "gaussian_nll_loss": lambda a: functional.gaussian_nll_loss(a, torch.ones(5, 4), a.abs()),
    "no float that is finite": lambda a: a.masked_fill(torch.ones(4, dtype=torch.bool), -torch.inf) + 0 * a,
    "normal": lambda a: a + torch.normal(torch.zeros_like(a), 1.0),
    "a value without dimensions of 1": lambda a: a[:, :1].squeeze(),
    "log1p": lambda a: torch.log1p(a * 1e-9),
    "expm1": lambda a: torch.expm1(a * 1e-9),
}
"""Where the operators that the exporter writes have other gradients, or values, than PyTorch's calls."""


@pytest.mark.parametrize("name", AT_EDGES)
def test_where_an_operator_has_a_bound_a_pole_or_equals_the_gradient_is_pytorchs(name: str) -> None:
    function = AT_EDGES[name]
    edges = torch.tensor(
        [[-1.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 3.0, 3.0, 3.0], [-3.0, -3.0, -2.0, 0.5], [1.0, 5, -9, 2.0]]
    )
    module = Of(lambda m, a: function(a + m.shift), shift=nn.Parameter(torch.zeros(5, 4)))
    weft.from_torch(module, edges, dynamic=False)  # compares them


def test_rows_of_attention_that_are_wholly_masked_are_zero() -> None:
    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.many = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, inputs: Any, padding: Any) -> Any:
            made = self.layer(inputs).unsqueeze(1)
            mask = ~padding[:, None, None, :].expand(-1, 1, inputs.shape[1], -1)
            own = functional.scaled_dot_product_attention(made, made, made, attn_mask=mask).squeeze(1)
            return own + self.many(inputs, inputs, inputs, key_padding_mask=padding, need_weights=False)[0]

    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0], padding[1, 3:] = True, True
    assert weft.from_torch(Attention(), (x(3, 5, 8), padding)).proof


@functools.lru_cache
def triangle(size: int) -> Any:
    return torch.triu(torch.ones(size, size))


def test_what_forward_keeps_in_caches_is_made_of_numbers_afterwards() -> None:
    def cached(self: Any, inputs: Any) -> Any:
        if 8 not in self.cache:
            self.cache[8] = torch.arange(8).float()
        return self.layer(inputs) @ triangle(8) + self.cache[8]

    triangle.cache_clear()
    module, inputs = Of(cached, layer=nn.Linear(8, 8), cache={}), x()
    weft.from_torch(module, inputs)
    assert module.cache == {}
    assert type(triangle(8)) is torch.Tensor
    module(inputs).sum().backward()
    assert type(module.layer.weight.grad) is torch.Tensor


def test_what_forward_keeps_for_its_next_call_is_said() -> None:
    def carries(self: Any, inputs: Any) -> Any:
        outputs, self.last = self.layer(inputs, self.last)
        return outputs

    module = Of(carries, layer=nn.GRU(8, 4, batch_first=True), last=None)
    (warning,) = weft.from_torch(module, x(3, 5, 8)).warnings
    assert warning.startswith("forward changes 'last', which the module keeps for its next call")


def test_recurrent_layers_are_exported_whole_each_time() -> None:
    for _ in range(2):
        read = weft.from_torch(nn.GRU(8, 4, batch_first=True), x(3, 5, 8), dynamic={"input": {0: "batch", 1: "time"}})
        assert "GRU" in {node.op_type for node in read.graph.nodes}


def test_outputs_have_the_names_of_a_mapping_and_inputs_are_left_alone() -> None:
    def forward(self: Any, inputs: Any) -> Any:
        inputs.mul_(2)
        made = self.layer(inputs).squeeze()
        return {"score": made, "loss": (made**2).mean()}

    inputs = x()
    before = inputs.clone()
    read = weft.from_torch(Of(forward, layer=nn.Linear(8, 1)), inputs)
    assert read.graph.outputs == ("score", "loss")
    assert torch.equal(inputs, before)
    assert "score  float32[batch]" in str(read)


def test_what_was_not_compared_is_not_counted_and_what_was_chosen_is_compared() -> None:
    module = Of(lambda m, a: Hidden.apply(m.layer(a)), layer=nn.Linear(8, 8))
    with pytest.raises(weft.ArgumentError, match=r"differs from PyTorch's by 0\.6"):
        weft.from_torch(module, x(), parameters="*")
    assert "gradients of 1 parameters" in weft.from_torch(nn.Linear(8, 8), x(), frozen="bias").proof


def test_outputs_of_zeros_are_compared() -> None:
    from weft.torch_proof import _distance

    zeros = np.zeros(3, np.float32)
    for other in (np.ones(3, np.float32), np.full(3, np.nan, np.float32), np.arange(3)):
        assert _distance(other, zeros)[0] > 1
    assert _distance(zeros, zeros) == (0, 0)


def test_a_module_and_generators_are_as_they_were_also_after_a_refusal() -> None:
    class Counting(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)
            self.calls = 0
            self.last = None

        def forward(self, inputs: Any) -> Any:
            self.calls += 1
            self.last = self.layer(functional.dropout(inputs, 0.5, self.training))
            return torch.linalg.eigh(self.last.T @ self.last)[0] if self.calls > 1000 else self.last * self.gain

    module, example = Counting(), x()
    state, drawn = torch.get_rng_state(), random.getstate()
    with pytest.raises(weft.ArgumentError, match="gain"):
        weft.from_torch(module, example)
    module.gain = 2.0
    weft.from_torch(module, example)
    assert (module.calls, module.last) == (0, None)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == drawn


@pytest.mark.parametrize("name", ["dropout1d", "dropout2d", "alpha_dropout", "feature_alpha_dropout"])
def test_dropout_in_place_and_by_atens_name_is_kept(name: str) -> None:
    def in_place(self: Any, inputs: Any) -> Any:
        made = self.layer(inputs)
        getattr(functional, name)(made, 0.5, True and self.training, inplace=True)
        return made

    read = weft.from_torch(Of(in_place, layer=nn.Linear(8, 8)), x(4, 3, 8), verify=True)
    assert "Dropout" in {node.op_type for node in read.graph.nodes}
    if hasattr(torch, name):
        named = Of(lambda m, a: getattr(torch, name)(m.layer(a), p=0.5, train=m.training), layer=nn.Linear(8, 8))
        assert "Dropout" in {node.op_type for node in weft.from_torch(named, x(4, 3, 8)).graph.nodes}


def test_what_only_has_the_name_of_a_drop_path_is_left_as_it_is() -> None:
    class StochasticDepth(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.p = nn.Linear(8, 8), 0.5

        def forward(self, inputs: Any) -> Any:
            return inputs + self.inner(inputs) * self.p

    assert weft.from_torch(StochasticDepth(), x()).proof


def test_an_example_may_be_nested_and_an_output_may_come_twice() -> None:
    class Nested(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, given: Any) -> Any:
            made = self.layer(given["left"]) + self.layer(given["right"])
            return made, made

    read = weft.from_torch(Nested(), ({"left": x(), "right": x()},))
    assert [each.type.shape for each in read.graph.inputs] == [("batch", 8), ("batch", 8)]
    assert len(read.graph.outputs) == 1


# --- What is refused -----------------------------------------------------------------------------------------------


class Codes(nn.Module):  # type: ignore[misc, name-defined]
    """A code book that forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("codes", torch.randn(6, 4))

    def forward(self, inputs: Any) -> Any:
        made = self.layer(inputs)
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * made.mean(0))
        return made - self.codes[0]


class Hidden(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """Twice its input, with a gradient that says otherwise: the exporter sees the forward alone."""

    @staticmethod
    def forward(_: Any, inputs: Any) -> Any:
        return inputs * 2

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient * 5


class Clipped(torch.autograd.Function):  # type: ignore[misc, name-defined]
    @staticmethod
    def forward(_: Any, inputs: Any) -> Any:
        return inputs.clone()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient.clamp(-1, 1)


class Straight(torch.autograd.Function):  # type: ignore[misc, name-defined]
    @staticmethod
    def forward(_: Any, inputs: Any) -> Any:
        return inputs.round()

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient


class Unnamed(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, left: Any, **others: Any) -> Any:
        return self.layer(left) + self.layer(others["right"])


def hooked(self: Any, inputs: Any) -> Any:
    made = self.layer(inputs)
    made.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return made


def clipped_weights(self: Any, inputs: Any) -> Any:
    self.layer.weight.data.clamp_(-1, 1)
    return self.layer(inputs)


def assigned(self: Any, inputs: Any) -> Any:
    self.layer.weight.data = self.layer.weight.data.clamp(-1, 1)
    return self.layer(inputs)


def shared(share: Callable[[Any], object]) -> Any:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    share(module)
    return module


def jittered(self: Any, inputs: Any) -> Any:
    return self.layer(inputs + 0.1 * (2 * torch.rand_like(inputs) - 1) if self.training else inputs)


def seeded(self: Any, inputs: Any) -> Any:
    torch.manual_seed(0)
    return self.layer(inputs) + torch.randn_like(inputs)


def falling(self: Any, inputs: Any) -> Any:
    made = self.layer(inputs) * self.factor
    self.factor *= 0.9
    return made


def packed(self: Any, inputs: Any, lengths: Any) -> Any:
    return self.layer(nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False))[1]


def with_hook(register: Callable[[Any], object]) -> Any:
    module = nn.Sequential(nn.Linear(8, 8))
    register(module)
    return module


def noisy(self: Any, inputs: Any) -> Any:
    made = self.layer(inputs)
    return made + torch.randn_like(made) if self.training else made


REFUSED: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "max_norm": (
        lambda: (nn.Sequential(nn.Embedding(10, 8, max_norm=1.0)), ids()),
        r"module '0' .Embedding. has max_norm",
    ),
    "scale_grad_by_freq": (
        lambda: (nn.EmbeddingBag(10, 8, scale_grad_by_freq=True), ids()),
        r"the module .EmbeddingBag. has scale_grad_by_freq",
    ),
    "max_norm of a call": (
        lambda: (Of(lambda m, a: functional.embedding(a, m.w, max_norm=1.0), w=nn.Parameter(x(10, 8))), ids()),
        "an embedding has max_norm",
    ),
    "a buffer that forward changes": (lambda: (Codes(), x()), r"buffer 'codes' is changed by each forward"),
    "spectral norm": (
        lambda: (nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), x()),
        r"buffer '0.parametrizations.weight.0._[uv]' is changed .* hold its module in eval",
    ),
    "a gradient of one's own": (
        lambda: (Of(lambda m, a: Hidden.apply(m.layer(a)), layer=nn.Linear(8, 8)), x()),
        r"the gradient of parameter 'layer.(weight|bias)' of module 'layer' .Linear. differs from PyTorch's by 0.6 ",
    ),
    "a gradient that its own backward clips": (
        lambda: (Of(lambda m, a: Clipped.apply(m.layer(a)), layer=nn.Linear(8, 8)), x()),
        "the backward of Clipped, .* changes gradients by their size",
    ),
    "no gradient but one's own": (
        lambda: (Of(lambda m, a: Straight.apply(m.layer(a)), layer=nn.Linear(8, 8)), x()),
        r"no parameter of the graph has a gradient.* The backward of Straight.* x \+ \(f\(x\) - x\).detach\(\)",
    ),
    "a hook on a value": (lambda: (Of(hooked, layer=nn.Linear(8, 8)), x()), "on gradients is registered on a tensor"),
    "a hook on a parameter": (
        lambda: (with_hook(lambda m: m[0].weight.register_hook(abs)), x()),
        "on gradients is registered on parameter '0.weight'",
    ),
    "a hook after a parameter": (
        lambda: (with_hook(lambda m: m[0].weight.register_post_accumulate_grad_hook(abs)), x()),
        "on gradients is registered on parameter '0.weight'",
    ),
    "a hook on a module": (
        lambda: (with_hook(lambda m: m[0].register_full_backward_hook(print)), x()),
        "on gradients is registered on module '0'",
    ),
    "dropout in evaluation": (
        lambda: (Of(lambda m, a: functional.dropout(m.layer(a)), layer=nn.Linear(8, 8)), x()),
        r"dropout\(\) drops also in eval",
    ),
    "Python's random numbers": (
        lambda: (Of(lambda m, a: m.layer(a) * random.random(), layer=nn.Linear(8, 8)), x()),
        "draws from Python's random",
    ),
    "NumPy's random numbers": (
        lambda: (Of(lambda m, a: m.layer(a) * float(np.random.rand()), layer=nn.Linear(8, 8)), x()),
        "draws from Python's random or from numpy.random",
    ),
    "the batch's size in a branch": (
        lambda: (Of(lambda m, a: m.layer(a) * (2 if a.shape[0] > 4 else 1), layer=nn.Linear(8, 8)), x(8, 8)),
        "outputs differ for 3 samples: forward asks for the size of the batch",
    ),
    "an odd batch": (
        lambda: (Of(lambda m, a: m.layer(a) * (1 if a.shape[0] % 2 else 2), layer=nn.Linear(8, 8)), x(4, 8)),
        "outputs differ for 3 samples",
    ),
    "the batch's size as a number": (
        lambda: (Of(lambda m, a: m.layer(a) / float(len(a)), layer=nn.Linear(8, 8)), x()),
        "the batch of input '.*' is fixed at 4 samples",
    ),
    "parts of four samples": (
        lambda: (Of(lambda m, a: sum(each.sum(0) for each in m.layer(a).split(4)), layer=nn.Linear(8, 8)), x(8, 8)),
        "the batch of input '.*' is fixed at 8 samples",
    ),
    "data that is written": (
        lambda: (Of(clipped_weights, layer=nn.Linear(8, 8)), x()),
        "parameter 'layer.weight' is changed by the module's own forward",
    ),
    "data that is assigned": (lambda: (Of(assigned, layer=nn.Linear(8, 8)), x()), "forward assigns .data of a tensor"),
    "memory that two parameters share": (
        lambda: (shared(lambda m: setattr(m[1].weight, "data", m[0].weight.data)), x()),
        "'0.weight' and '1.weight' share memory",
    ),
    "a parameter that is another's transpose": (
        lambda: (shared(lambda m: setattr(m[1], "weight", nn.Parameter(m[0].weight.t()))), x()),
        "'0.weight' and '1.weight' share memory",
    ),
    "a parameter without a shape": (lambda: (nn.Sequential(nn.LazyLinear(4)), x()), "'0.weight' has no shape yet"),
    "noise that is 0 in the middle": (
        lambda: (Of(jittered, layer=nn.Linear(8, 8)), x()),
        r"draws random numbers \(rand_like\) otherwise in eval",
    ),
    "a scripted module": (lambda: (torch.jit.script(nn.Linear(8, 8)), x()), "is scripted, .* give the module"),
    "an average of all steps": (
        lambda: (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None)), x()),
        "module '1' .BatchNorm1d. has momentum=None",
    ),
    "dropout of all": (lambda: (nn.Sequential(nn.Linear(8, 8), nn.Dropout(1.0)), x()), "'1' .Dropout. has p=1"),
    "a seed": (lambda: (Of(seeded, layer=nn.Linear(8, 8)), x()), "forward sets a seed"),
    "a factor that falls": (
        lambda: (Of(falling, layer=nn.Linear(8, 8), factor=1.0), x()),
        "forward changes 'factor', which the module keeps",
    ),
    "packed sequences": (
        lambda: (Of(packed, layer=nn.GRU(8, 4, batch_first=True)), (x(3, 5, 8), torch.tensor([5, 2, 3]))),
        "packed sequences have no form in ONNX",
    ),
    "sums that overflow": (
        lambda: (Of(lambda m, a: torch.logcumsumexp(m.layer(a), 1), layer=nn.Linear(8, 8)), x()),
        "logcumsumexp has no form in ONNX that bears large numbers",
    ),
    "an infinite gradient": (
        lambda: (Of(lambda m, a: torch.sqrt(m.layer(a) * 0), layer=nn.Linear(8, 8)), x()),
        "PyTorch's own gradient of parameter 'layer.(weight|bias)' .* is not finite on the example",
    ),
    "arguments without names": (
        lambda: (Unnamed(), {"left": x(), "right": x()}),
        "forward does not name 'right', .* forward.self, left, right.",
    ),
    "noise in training": (
        lambda: (Of(noisy, layer=nn.Linear(8, 8)), x()),
        r"forward draws random numbers \(randn_like\) otherwise in eval\(\) than in training",
    ),
    "sizes by values": (
        lambda: (Of(lambda m, a: m.layer(a) if a.sum() > 0 else a, layer=nn.Linear(8, 8)), x()),
        r"PyTorch cannot export the module: .* \(test_sdk_torch.py:\d+, in Of\.forward\)\. .* depends on values",
    ),
    "shapes that do not fit": (
        lambda: (Of(lambda m, a: m.layer(a), layer=nn.Linear(7, 8)), x()),
        r"shapes cannot be multiplied .* \(test_sdk_torch.py:\d+, in Of\.forward\); shapes do not fit",
    ),
    "an operator without a form": (
        lambda: (Of(lambda m, a: torch.linalg.eigh(m.layer(a) @ m.layer(a).T)[0], layer=nn.Linear(8, 8)), x()),
        "PyTorch cannot export the module: no ONNX form of aten",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_train_otherwise_is_refused_by_name_with_a_remedy(name: str) -> None:
    make, message = REFUSED[name]
    module, example = make()
    with pytest.raises((weft.ArgumentError, weft.GraphError), match=message) as refused:
        weft.from_torch(module, example)
    assert "create an issue" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert all(each.training for each in module.modules())


def test_without_verification_a_module_is_taken_as_it_was_exported(capsys: pytest.CaptureFixture[str]) -> None:
    make, _ = REFUSED["a gradient of one's own"]
    module, example = make()
    read = weft.from_torch(module, example, verify=False)
    assert list(read.parameters) == ["layer.weight", "layer.bias"]
    assert not read.proof
    assert not capsys.readouterr().err


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """Its first state is for 8 samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x, torch.zeros(1, 8, 4))[0]


def test_a_state_of_a_fixed_batch_is_refused_with_a_remedy_and_also_without_verification() -> None:
    with pytest.raises(weft.ModuleRefusedError, match=r"such as x\.new_zeros\(layers, x\.shape\[0\], hidden_size\)"):
        weft.from_torch(Recurrent(), x(4, 5, 8))
    with pytest.raises(weft.ModuleRefusedError, match=r"is fixed at 8 samples, .* of a job are of several sizes"):
        weft.from_torch(Recurrent(), x(8, 5, 8), verify=False)


def test_parameters_that_no_gradient_reaches_are_named_once_there_is_a_loss() -> None:
    class Behind(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 4), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).detach())

    made = weft.from_torch(Behind(), x()).with_loss("cross_entropy")
    told = "no gradient reaches parameters, as behind a detach(): 'first.weight', 'first.bias'"
    assert made.warnings == (told,)
    frozen = Behind()
    frozen.first.requires_grad_(False)
    assert weft.from_torch(frozen, x()).with_loss("cross_entropy").warnings == ()


def test_the_exporters_warnings_are_one_sentence() -> None:
    with pytest.MonkeyPatch.context() as patch:
        original = torch.onnx.export

        def export(*args: Any, **kwargs: Any) -> Any:
            import warnings

            for text in ("first\nwith a second line", "second", "first\nwith a second line"):
                warnings.warn(text, stacklevel=2)
            return original(*args, **kwargs)

        patch.setattr(torch.onnx, "export", export)
        read = weft.from_torch(nn.Linear(8, 3), x())
    assert read.warnings == ("PyTorch's exporter warned: first, and 1 others",)


def test_what_cannot_be_compared_is_told_how_the_comparison_is_skipped() -> None:
    told = re.escape("weft.from_torch(module, example, verify=False) skips that, and weft.fit takes the model")
    with pytest.raises(weft.ModuleRefusedError, match=f"nothing known; {told}"), refusing():
        raise ValueError("nothing known")


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(7, 3),
        nn.Sequential(nn.Linear(8, 16), nn.Linear(12, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Conv1d(3, 4, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(3)),
        nn.LayerNorm(7),
        nn.LSTM(7, 3),
    ],
)
def test_of_a_module_whose_shapes_do_not_fit_it_is_said_that_they_do_not(module: Any) -> None:
    with pytest.raises(weft.ModuleRefusedError, match=r"Error: .*; shapes do not fit: correct the module's layers, or"):
        weft.from_torch(module, x())


@pytest.mark.parametrize("pixel", [0.0, 1.0])
def test_an_example_on_which_rounding_decides_the_gradients_is_refused_and_the_exporter_is_not_blamed(
    pixel: float,
) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)
    )  # fmt: skip
    with pytest.raises(weft.ModuleRefusedError, match=r"rounding alone moves .* Give an example whose numbers vary"):
        weft.from_torch(module, torch.full((8, 1, 8, 8), pixel))


def test_a_thread_beside_an_export_draws_logs_and_prints_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    over, logged, said = Event(), logging.getLogger("beside"), 0
    kept = logging.handlers.BufferingHandler(1 << 20)
    logged.addHandler(kept)

    def beside() -> None:
        nonlocal said
        while not over.wait(0.001):
            random.random()
            logged.warning("beside")
            print("beside")
            said += 1

    thread = Thread(target=beside)
    thread.start()
    try:
        weft.from_torch(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2)), torch.randn(4, 3))
    finally:
        over.set()
        thread.join()
        logged.removeHandler(kept)
    assert (len(kept.buffer), capsys.readouterr().out.count("beside")) == (said, said)


@pytest.mark.parametrize("draw", [random.random, lambda: random.gauss(0.0, 1.0), np.random.rand, np.random.normal])
def test_who_draws_is_seen_whatever_other_threads_draw(draw: Callable[[], float]) -> None:
    """Also where the draw changes nothing that is computed this time."""
    over = Event()

    def beside() -> None:
        while not over.wait(0.0001):
            random.random()
            np.random.rand()

    thread = Thread(target=beside)
    thread.start()
    try:
        weft.torch_model.try_out(nn.Linear(3, 2), torch.zeros(4, 3))
        module = Of(lambda one, inputs: one.layer(inputs) * (draw() < 1e9), layer=nn.Linear(3, 2))
        with pytest.raises(weft.ModuleRefusedError, match=r"draws from Python's random or from numpy.random"):
            weft.torch_model.try_out(module, torch.zeros(4, 3))
    finally:
        over.set()
        thread.join()


def test_modules_may_be_exported_by_several_threads_at_once() -> None:
    """Each in its turn: PyTorch's exporter and the comparison change what is all threads' meanwhile."""
    start = Barrier(3)

    def exported(_: int) -> list[str]:
        module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))
        start.wait()
        return [node.op_type for node in weft.from_torch(module, x()).graph.nodes]

    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(exported, range(3))
    assert others == [first] * 2
