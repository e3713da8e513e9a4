"""PyTorch modules of many families become on two workers and two shards what PyTorch's own loop makes of them, with
`torch.optim` and on whole batches. Most of the modules are those of `tests/torch_zoo`.
"""

from __future__ import annotations

import gc
import inspect
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import weft  # noqa: E402
from store_cluster import served  # noqa: E402
from torch_exports import exports_are_quick  # noqa: E402, F401  # a fixture
from torch_zoo.oracle import own_names  # noqa: E402
from torch_zoo.zoo import CASES  # noqa: E402
from weft.api.lifecycle import AllocationEvent  # noqa: E402
from weft.api.optimizer import OptimizerSpec  # noqa: E402
from weft.trainable import Trainable  # noqa: E402
from weft_data.schedule import BatchPlan  # noqa: E402
from weft_graph.convert import convert  # noqa: E402
from weft_graph.rules.built_in import stored_rule  # noqa: E402
from weft_kernels.kernel import Array  # noqa: E402
from weft_kvstore.description.records import descriptions  # noqa: E402
from weft_kvstore.settings import LinkSettings  # noqa: E402
from worker_jobs import Job, run_all  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

PATIENT = LinkSettings(silence_s=60.0)
"""Workers and shards share this process with PyTorch, which may keep a poller waiting on a busy machine."""
STEPS, BATCH, SEED = 12, 8, 11
SAMPLES = STEPS * BATCH
EQUAL = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Of a parameter's norm. The exporter writes numbers such as 0.3 in float32 whatever the module computes in. In float32
the sums of both sides round differently, and Adam divides a gradient by its own size, so what rounding leaves of a
small one counts as much as a large one does."""
MOVED = 100
"""Each parameter that trains moves by more than this many times the tolerance."""
WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class Rule:
    """A rule of weft's, and PyTorch's class of the same."""

    ours: OptimizerSpec
    theirs: Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(lr: float, momentum: float = 0.0) -> Rule:
    return Rule(weft.SGD(lr=lr, momentum=momentum), partial(torch.optim.SGD, lr=lr, momentum=momentum))


def adam(lr: float) -> Rule:
    return Rule(weft.Adam(lr=lr), partial(torch.optim.Adam, lr=lr))


def adamw(lr: float) -> Rule:
    ours = weft.AdamW(lr=lr, weight_decay=WEIGHT_DECAY)
    return Rule(ours, partial(torch.optim.AdamW, lr=lr, weight_decay=WEIGHT_DECAY))


class LastPlace(nn.Module):
    """A sequence is classified by what a recurrent network says at its last place."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)[0][:, -1]


def second_norm_trains(module: nn.Module) -> nn.Module:
    """Both BatchNorms are held in `eval()`; scale and shift of the second one train."""
    module[4].requires_grad_(True)
    return module


def dense_tables(module: nn.Module) -> nn.Module:
    for each in module.modules():
        if isinstance(each, nn.EmbeddingBag):
            each.sparse = False
    return module


@dataclass(frozen=True)
class Training:
    """A module of the zoo, perhaps changed. Its first output is its loss, or is compared with `target`."""

    case: str
    rule: Rule
    loss: str = ""
    """Of `with_loss`, where the module has none of its own."""
    target: tuple[int, ...] = ()
    """How many classes there are, and the shape of a sample's labels."""
    change: Callable[[nn.Module], nn.Module] = lambda module: module

    @property
    def dtype(self) -> torch.dtype:
        return CASES[self.case].dtype

    def module(self) -> nn.Module:
        """Without dropout, whose draws are not PyTorch's; no parameter is all zeros or all ones."""
        module = self.change(CASES[self.case].module())
        for each in module.modules():
            if isinstance(each, nn.Dropout):
                each.p = 0.0
        with torch.no_grad():
            for value in module.parameters():
                if value.numel() > 1 and value.min() == value.max():
                    value.add_(0.1 * torch.randn(value.shape, dtype=value.dtype))
        return module

    def inputs(self, module: nn.Module) -> dict[str, Tensor]:
        """All samples' inputs by the module's arguments: examples of the zoo, one after another."""
        torch.manual_seed(zlib.crc32(self.case.encode()))
        drawn: dict[str, list[Tensor]] = {}
        for _ in range(SAMPLES // 3):  # an example has three samples or more
            example = CASES[self.case].example()
            if not isinstance(example, dict):
                example = inspect.signature(module.forward).bind(*example).arguments
            for name, value in example.items():
                drawn.setdefault(name, []).append(value.to(self.dtype) if value.is_floating_point() else value)
        return {name: torch.cat(values)[:SAMPLES] for name, values in drawn.items()}

    def targets(self) -> Tensor:
        """All samples' labels."""
        torch.manual_seed(zlib.crc32(f"{self.case}/targets".encode()))
        classes, *shape = self.target
        labels = torch.randint(0, classes, (SAMPLES, *shape))
        return labels.to(self.dtype) if self.loss == "bce_with_logits" else labels


TRAININGS = {
    "GPT-2": Training("GPT-2", adamw(0.01), "cross_entropy", (20, 6)),
    "padded tokens": Training("padding row that is not zero", adam(0.01), "cross_entropy", (4, 5)),
    "ConvNeXt": Training("ConvNeXt", sgd(0.05, 0.9), "cross_entropy", (5,)),
    "BatchNorm held": Training("all BatchNorm frozen", sgd(0.05, 0.9), "cross_entropy", (5,), second_norm_trains),
    "LSTM": Training("LSTM", adam(0.01), "cross_entropy", (11,), LastPlace),
    "dense experts": Training("dense experts", adamw(0.01), "cross_entropy", (6,)),
    "DLRM, dense tables": Training("DLRM", adam(0.01), "bce_with_logits", (2,), dense_tables),
    "sparse bag": Training("bag mean", sgd(0.1), "cross_entropy", (4,)),
    "BYOL": Training("BYOL", sgd(0.05, 0.9)),
    "VQ-VAE": Training("VQ-VAE", adam(0.01)),
    "multi-task": Training("multi-task", adamw(0.01)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_module_trains_on_two_workers_as_in_pytorch(name: str, tmp_path: Path) -> None:
    training = TRAININGS[name]
    module = training.module()
    inputs, targets = training.inputs(module), training.targets() if training.loss else None
    first = _arrays(module)
    model = weft.from_torch(module, {key: value[:4] for key, value in inputs.items()})
    output = next(iter(model))
    made = model.with_loss(training.loss, output=output) if training.loss else model.with_loss(output)
    found = _trained_by_weft(training, made, inputs, targets, tmp_path / "samples.npz")
    trained = _trained_by_torch(training, module, inputs, targets)
    expected = _arrays(module)

    names = own_names(module)
    kept = {each.name: each.array for each in made.graph.constants} | found
    ours = {names.get(key, key): value for key, value in kept.items()}
    assert expected.keys() <= ours.keys()
    wrong = []
    for key, value in expected.items():
        if key not in trained:
            assert ours[key].tobytes() == first[key].tobytes(), f"{key} does not train, but has changed"
            continue
        moved, error = _difference(value, first[key]), _difference(ours[key], value)
        if error > EQUAL[training.dtype] or moved < MOVED * EQUAL[training.dtype]:
            wrong.append(f"{key}: moved by {moved:.1e}, the difference is {error:.1e}")
    assert not wrong, "; ".join(wrong)


def _arrays(module: nn.Module) -> dict[str, Array]:
    """Copies of parameters and running statistics, each by its first name."""
    statistics = {name: value for name, value in module.named_buffers() if ".running_" in name}
    named = dict(module.named_parameters()) | statistics
    return {name: value.detach().numpy().copy() for name, value in named.items()}


def _difference(value: Array, other: Array) -> float:
    """Norm-wise, relative to the second."""
    return float(np.linalg.norm(np.subtract(value, other, dtype=np.float64)) / np.linalg.norm(other))


def _trained_by_weft(
    training: Training, made: Trainable, inputs: dict[str, Tensor], targets: Tensor | None, data: Path
) -> dict[str, Array]:
    """The final document of a job whose first values are the module's own."""
    columns = {key: value.numpy() for key, value in inputs.items()}
    if targets is not None:
        columns[made.targets[0]] = targets.numpy()
    np.savez(data, **columns)
    rule, hyper = stored_rule(training.rule.ours.rule, training.rule.ours.hyper())  # type: ignore[union-attr]
    job = Job(
        convert(made.graph, loss=made.loss, metrics=made.metrics), data, STEPS, (0, SAMPLES), slots=2, batch=BATCH,
        seed=SEED, rule=rule, hyper=hyper, shards=("", ""), columns={key: key for key in columns},
        given=tuple(each.name for each in made.graph.parameters), slice_bytes=1024,
    )  # fmt: skip
    gc.freeze()  # each worker collects garbage when it ends, and would pass through all that the exporter has left
    with ExitStack() as stack:
        at, _ = stack.enter_context(
            served(descriptions.from_builtins(job.store_spec().model_dump(mode="json")), PATIENT)
        )
        records = run_all(replace(job, shards=at.shards), documents={"given": save(dict(made.values))})
    assert [each.last for each in records] == [(AllocationEvent.DONE, None)] * job.slots
    return load(records[job.keeper].uploads[-1][0])


def _trained_by_torch(
    training: Training, module: nn.Module, inputs: dict[str, Tensor], targets: Tensor | None
) -> set[str]:
    """Trains the module; returns the names of the parameters that have had a gradient."""
    optimizer = training.rule.theirs(list(module.parameters()))
    for step in range(STEPS):
        _, samples = BatchPlan(0, SAMPLES, BATCH, SEED, True).at(step)
        optimizer.zero_grad()
        output = tree_leaves(module(**{key: value[samples] for key, value in inputs.items()}))[0]
        if targets is None:
            loss = output
        elif training.loss == "cross_entropy":
            loss = F.cross_entropy(output.flatten(0, -2), targets[samples].flatten())
        else:
            loss = F.binary_cross_entropy_with_logits(output, targets[samples])
        loss.backward()
        optimizer.step()
    return {name for name, value in module.named_parameters() if value.grad is not None}
