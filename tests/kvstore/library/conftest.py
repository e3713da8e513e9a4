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
