"""PyTorch and its exporter, made quick for tests that call them often."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(scope="module", autouse=True)
def exports_are_quick() -> Iterator[None]:
    """What the exporter finds out about all of its operators at each export, it finds out once: most of its time.

    PyTorch has one thread: several would wait for each other for longer than sums as small as these take.
    """
    torch = importlib.import_module("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    operators = importlib.import_module("torch._export.utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "from_torchlib", staticmethod(cache(registry.from_torchlib)))
        name = "_collect_all_valid_cia_ops_for_namespace"
        patch.setattr(operators, name, cache(getattr(operators, name)))
        yield
    torch.set_num_threads(threads)
