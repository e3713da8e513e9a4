"""A zoo of small PyTorch models, read from the module and from the exporter's file: gradients are autograd's, or it is
refused with the reason. See `tests/torch_zoo`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("transformers")

import weft  # noqa: E402
from torch_exports import exports_are_quick  # noqa: E402, F401  # a fixture
from torch_zoo.case import TRAPS, Case, Example  # noqa: E402
from torch_zoo.oracle import Found, by_autograd, by_kernels, grown, own_names  # noqa: E402
from torch_zoo.zoo import CASES, DAILY  # noqa: E402
from weft.errors import WeftError  # noqa: E402
from weft_graph.errors import GraphError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

EQUAL = {torch.float64: 1e-5, torch.float32: 2e-4}
"""Of a gradient's norm. The exporter writes numbers such as 0.3 in float32 whatever the module computes in."""
NOTHING = {torch.float64: 1e-7, torch.float32: 1e-6}
"""Of the largest gradient's norm: a bias before a normalization has a gradient of rounding alone."""
UNHELPFUL = re.compile(r"create an issue|Traceback|torch\.onnx")
UNHELPFUL_OF_A_MODULE = re.compile(r"optimize=False|(use|with) weft\.from_torch")
"""What a message may not advise whoever has called `weft.from_torch` already."""
OUTCOMES: dict[str, str] = json.loads((Path(__file__).parents[1] / "torch_zoo" / "file_outcomes.json").read_text())
NAMES = list(CASES) if os.environ.get("WEFT_TORCH_ZOO") == "all" else DAILY
SELDOM = {name for name, outcome in OUTCOMES.items() if outcome not in {"equal", "refused"}}
FILES = NAMES if len(NAMES) > len(DAILY) else [name for at, name in enumerate(NAMES) if at % 12 == 0 or name in SELDOM]
"""Of which the exporter's own file is read, too: daily, few of the outcomes that are many."""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_trains_as_autograd_does_or_is_refused(name: str) -> None:
    case = CASES[name]
    module = case.module()
    before = _state(module)
    with _refused(case.refused, UNHELPFUL_OF_A_MODULE):
        model = weft.from_torch(module, case.inputs(), **case.options)
        _check_equal(case, model, batch_is_larger="dynamic" not in case.options)
    assert _state(module) == before, "from_torch has changed the module"


@pytest.mark.parametrize("name", FILES)
def test_a_file_by_the_exporters_defaults_trains_so_is_refused_or_warned_of(name: str) -> None:
    """What becomes of each is written down; nothing differs without a word but what leaves no trace in a file."""
    assert _outcome_of_file(CASES[name]) == OUTCOMES[name]


def _outcome_of_file(case: Case) -> str:
    module, example = case.module(), case.inputs()
    args, kwargs = ((), example) if isinstance(example, dict) else (example, None)
    try:
        proto = torch.onnx.export(module, args, kwargs=kwargs, dynamo=True, verbose=False).model_proto
    except torch.onnx.errors.OnnxExporterError:
        return "not exported"
    try:
        model = weft.from_onnx(proto)
        differs = _differences(case, model)
    except (WeftError, GraphError) as refused:
        return "refused" if not UNHELPFUL.search(str(refused)) else f"refused without help: {refused}"
    if not differs:
        return "equal"
    return "differs, and a warning says so" if model.warnings else "differs: no trace in the file"


def _differences(case: Case, model: weft.Model) -> str:
    try:
        _check_equal(case, model, batch_is_larger=False)
    except AssertionError as error:
        return str(error)
    return ""


def test_the_zoo_is_large_and_has_every_trap() -> None:
    silent = {name for name, outcome in OUTCOMES.items() if outcome.startswith("differs: no trace")}
    assert silent <= {"frozen tied table", "frozen encoder", "frozen backbone"}, "requires_grad is in no file"
    daily = [CASES[name] for name in DAILY]
    assert len(daily) >= 64
    assert len({case.family for case in daily}) >= 25
    traps = {trap for case in daily for trap in case.traps}
    assert traps == set(TRAPS)


@contextmanager
def _refused(pattern: str, unhelpful: re.Pattern[str] = UNHELPFUL) -> Iterator[None]:
    """Where there is a pattern: the refusal is weft's own, and says it."""
    if not pattern:
        yield
        return
    with pytest.raises((WeftError, GraphError), match=pattern) as caught:
        yield
    message = str(caught.value)
    assert not UNHELPFUL.search(message)
    assert not unhelpful.search(message)


def _check_equal(case: Case, model: weft.Model, *, batch_is_larger: bool) -> None:
    """Outputs and gradients are autograd's, each parameter with a gradient trains, and nothing else does."""
    example, expected = _expected(case.name, batch_is_larger)
    module = case.module()
    names = own_names(module)
    trained = {each.name for each in model.graph.parameters if each.trainable}
    assert trained <= names.keys(), f"trained, but no parameter: {sorted(trained - names.keys())}"
    lacking = set(expected.gradients) - {names[name] for name in trained}
    assert not lacking, f"not trained: {sorted(lacking)}"
    extra = {names[name] for name in trained} - set(expected.gradients)
    assert not extra, f"trained, but autograd has no gradient: {sorted(extra)}"
    found = by_kernels(model.graph, model.values, module, example)
    assert len(found.outputs) == len(expected.outputs)
    largest = max(map(np.linalg.norm, expected.gradients.values()))
    wrong: list[str] = []
    for index, (ours, theirs) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        wrong += _differs(case, f"output {index}", ours, theirs, 0.0)
    for name, ours in found.gradients.items():
        wrong += _differs(case, name, ours, expected.gradients[names[name]], largest)
    assert not wrong, "; ".join(wrong)


@cache
def _expected(name: str, batch_is_larger: bool) -> tuple[Example, Found]:
    """Inputs and what autograd makes of them; with `batch_is_larger` there is a sample more than in the example."""
    case = CASES[name]
    example = grown(case.inputs()) if batch_is_larger else case.inputs()
    return example, by_autograd(case, example)


def _differs(case: Case, what: str, ours: Any, theirs: Any, largest: float) -> list[str]:
    if ours.shape != theirs.shape:
        return [f"{what} is {ours.shape}, PyTorch's {theirs.shape}"]
    difference = np.linalg.norm(np.subtract(ours, theirs, dtype=np.float64))
    norm = np.linalg.norm(theirs)
    if difference <= EQUAL[case.dtype] * norm + NOTHING[case.dtype] * largest:
        return []
    return [f"{what}: difference {difference:.1e} of {norm:.1e}"]


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """All that a user could see changed."""
    arrays = {name: value.numpy().tobytes() for name, value in module.state_dict().items()}
    flags = {name: (value.requires_grad, value.grad is None) for name, value in module.named_parameters()}
    return {**arrays, "flags": flags, "training": [each.training for each in module.modules()]}
