"""What holds for every test: which of them share a process, and what no look for garbage passes through."""

from __future__ import annotations

import gc

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

TOGETHER = "tests/acceptance/"
"""A folder whose tests run one after the other in one process: they share a cluster, five more processes."""


class Spreading(LoadFileScheduling):
    """A file stays in one process, so that what it makes once stays made once."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Spreading:
    return Spreading(config, log)


def pytest_collection_finish() -> None:
    """Tests by the thousand have been read, and stay. Passing through them at every `gc.collect` of a test, or of what
    it tests, took more time than many tests."""
    gc.collect()
    gc.freeze()
