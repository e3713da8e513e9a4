"""PyTorch and its exporter, made quick for tests that call them often."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

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
        patch.setattr(torch._ops.OperatorBase, "py_impl", _registering(torch))
        yield
    torch.set_num_threads(threads)


def _registering(torch: Any) -> Callable[..., Any]:
    """`OperatorBase.py_impl`, which the exporter calls ten thousand times at each export: a fifth of its time went into
    the annotations of the function that it makes each time."""
    whole, dispatch_key = torch._ops.OperatorBase.py_impl, torch._C.DispatchKey

    def py_impl(operator: Any, key: Any) -> Any:
        if not isinstance(key, dispatch_key) or key == dispatch_key.Python or key in operator.py_kernels:
            return whole(operator, key)

        def register(kernel):  # type: ignore[no-untyped-def]
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()
            return kernel

        return register

    return py_impl
