"""The executor's benchmark: the kernels that it takes off a step are all of the step's. Nothing here is timed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from weft_graph.convert import convert
from weft_graph.types import BATCH
from weft_worker.bind import bind


def test_every_kernel_of_a_step_is_called_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    benchmark = importlib.import_module("executor")
    monkeypatch.delitem(sys.modules, "executor")
    plan = bind(convert(benchmark._chain(3), loss="loss", metrics={}).train, {BATCH: 2}, travels=False)
    called: list[str] = []
    measured = benchmark._calls_of

    def counted(*given: object) -> list[tuple[object, ...]]:
        calls: list[tuple[object, ...]] = measured(*given)
        called.extend(context.node for _, context, *_ in calls)  # type: ignore[attr-defined]
        return calls

    monkeypatch.setattr(benchmark, "_calls_of", counted)
    benchmark._measured(plan, 2)
    assert called == [bound.node.name for bound in plan.nodes if bound.kernel is not None]
