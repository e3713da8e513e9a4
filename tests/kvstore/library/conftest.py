"""`KVStore`s over shards and locally."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from face_stores import Make, faces


@pytest.fixture(params=["network", "local"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """make(description, **named): a `KVStore` for each slot, until the test ends."""
    with ExitStack() as stack:
        yield lambda description, **named: stack.enter_context(faces(request.param, description, **named))


@pytest.fixture
def make_alone() -> Iterator[Make]:
    """The same in one process, where what a call waits for is known before a short deadline on a busy machine too."""
    with ExitStack() as stack:
        yield lambda description, **named: stack.enter_context(faces("local", description, **named))
