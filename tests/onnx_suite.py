"""ONNX's own backend suite, run with `onnx.reference` and `onnxruntime` out of reach, and what of it fails.

`python tests/onnx_suite.py` writes `tests/kernels/onnx_left_out.json` anew.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from onnx_node_cases import node_tests

LEFT_OUT = Path(__file__).parent / "kernels" / "onnx_left_out.json"
_BLOCKED = ("onnx.reference", "onnxruntime")
_REASON_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why tests fail whose error does not say it: their names, and how the error begins that this explains."""

    text: str
    error: str
    tests: frozenset[str]


_REASONS = (
    _Reason(
        "expects the draws of one generator, which ONNX leaves open",
        "AssertionError",
        frozenset(
            f"test_{name}_cpu"
            for name in (
                *("bernoulli", "bernoulli_expanded", "bernoulli_double", "bernoulli_double_expanded"),
                *("bernoulli_seed", "bernoulli_seed_expanded"),
                *("training_dropout", "training_dropout_default"),
                *("training_dropout_mask", "training_dropout_default_mask"),
            )
        ),
    ),
    _Reason(
        "2 of 192 elements of float16 are one unit of their last place off, which is more than the suite allows",
        "AssertionError",
        frozenset({"test_attention_4d_causal_fp16_expanded_cpu"}),
    ),
    _Reason(
        "the suite asks for the length of a zero-dim item, which has none",
        "TypeError",
        frozenset({"test_loop16_seq_none_cpu"}),
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A test of the suite on the CPU: its category, what runs it, its model's opset and the operators in it."""

    name: str
    category: str
    run: Any
    opset: int
    operators: tuple[str, ...]


def left_out() -> dict[str, str]:
    """The tests that fail, and why."""
    found: dict[str, str] = json.loads(LEFT_OUT.read_text())
    return found


@cache
def cases(backend: Any) -> dict[str, Case]:
    """Every test of the suite on the CPU; the runner's own assertions decide."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests
        from onnx.backend.test.runner import Runner

        tests = [*node_tests(), *(case for kind in _KINDS for case in load_model_tests(kind=kind))]
        models = {case.name: _model(case) for case in tests}
        items = Runner(backend)._test_items
    found: dict[str, Case] = {}
    for category, tests in items.items():
        for name, item in tests.items():
            if name.endswith("_cpu"):
                model = models[name.removesuffix("_cpu")]
                found[name] = Case(name, category, item.func, _opset(model), _operators(model))
    return found


_KINDS = ("real", "simple", "pytorch-converted", "pytorch-operator")


def failures(chosen: Sequence[Case]) -> dict[str, str]:
    """The tests that fail, with their errors' first lines."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, _only_weft(folder):
        for case in chosen:
            try:
                case.run(None)
            except Exception as error:  # noqa: BLE001  # whatever a test raises is a failure, and its text the reason
                lines = str(error).strip().splitlines() or [""]
                found[case.name] = f"{type(error).__name__}: {lines[0]}"[:_REASON_CHARACTERS]
    return found


@contextmanager
def _only_weft(folder: str) -> Iterator[None]:
    """While it lasts nothing can import, or has imported, another implementation of ONNX's operators."""
    taken: dict[str, ModuleType] = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_blocked(name)}
    reference = onnx.__dict__.pop("reference", None)
    models = os.environ.get("ONNX_MODELS")
    os.environ["ONNX_MODELS"] = folder
    blocker = _Blocker()
    sys.meta_path.insert(0, blocker)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.meta_path.remove(blocker)
        sys.modules.update(taken)
        if reference is not None:
            onnx.reference = reference
        os.environ.pop("ONNX_MODELS")
        if models is not None:
            os.environ["ONNX_MODELS"] = models


class _Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if _is_blocked(fullname):
            raise ImportError(f"{fullname} is out of reach: weft's own kernels are what is tested")


def _is_blocked(name: str) -> bool:
    return any(name == blocked or name.startswith(f"{blocked}.") for blocked in _BLOCKED)


def _model(case: Any) -> onnx.ModelProto:
    if case.model is not None:
        return case.model
    if case.url and case.url.startswith("onnx/backend/test/data/light/"):
        path = Path(onnx.__file__).parents[1] / case.url
    else:
        path = Path(case.model_dir) / "model.onnx"
    return onnx.load(path, load_external_data=False)


def _opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own domain; a model of other domains alone counts as of the oldest."""
    return max((opset.version for opset in model.opset_import if opset.domain in {"", "ai.onnx"}), default=1)


def _operators(model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node))


def reason(name: str, error: str) -> str:
    """Why the test fails: what its error says, unless that does not say it."""
    known = (each.text for each in _REASONS if name in each.tests and error.startswith(each.error))
    return next(known, error)


if __name__ == "__main__":
    from weft_kernels.onnx_backend import Backend

    every = cases(Backend)
    failed = failures(list(every.values()))
    reasons = {name: reason(name, error) for name, error in sorted(failed.items())}
    LEFT_OUT.write_text(json.dumps(reasons, indent=1) + "\n")
    sys.stdout.write(f"{len(every) - len(failed)} of {len(every)} pass\n")
