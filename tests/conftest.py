"""What holds for every test: which of them share a process, and what no look for garbage passes through."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# On a busy machine an example may take long. A run has the examples of the run before: what fails, a change has broken.
settings.register_profile("steady", settings.default, deadline=None, derandomize=True)
settings.load_profile("steady")

TOGETHER = {
    "tests/acceptance/": "tests/acceptance/",  # they share a cluster, five more processes
    # These pay for PyTorch's exporter once: its modules and its registry of operators take as long as ten exports.
    **dict.fromkeys(
        (
            "tests/graph/onnx_form/test_torch_files.py",
            "tests/kernels/test_torch_zoo.py",
            "tests/sdk/test_sdk_fit.py",
            "tests/sdk/test_sdk_torch.py",
            "tests/worker/test_torch_models_train.py",
        ),
        "PyTorch's exporter",
    ),
}
"""How tests' ids begin that run one after the other in one process, and which of them those are. They begin first: they
take the longest."""


def together(nodeid: str) -> str | None:
    return next((name for beginning, name in TOGETHER.items() if nodeid.startswith(beginning)), None)


class Spreading(LoadFileScheduling):
    """A file stays in one process, so that what it makes once stays made once."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid) or super()._split_scope(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each process reads all tests, a sixth of which time looking for garbage would take. There is next to none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: together(item.nodeid) is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    return Spreading(config, log)


@pytest.fixture(scope="module", autouse=True)
def what_is_here_stays() -> None:
    """Passing through all tests that were read, and through all that earlier files have left in caches, at every
    `gc.collect` of a test or of what it tests, took more time than most tests. What a file makes is passed through."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever starts the tests in the background has SIGINT ignored, and what ignores it hands that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
