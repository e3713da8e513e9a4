"""What holds for every test: which of them share a process, and what no look for garbage passes through."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

settings.register_profile("untimed", settings.default, deadline=None)  # On a busy machine an example may take long.
settings.load_profile("untimed")

TOGETHER = "tests/acceptance/"
"""A folder whose tests run one after the other in one process: they share a cluster, five more processes."""


class Spreading(LoadFileScheduling):
    """A file stays in one process, so that what it makes once stays made once."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)


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
