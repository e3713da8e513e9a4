"""What becomes of futures when memory is short."""

from __future__ import annotations

import numpy as np
import pytest

from store_cluster import WAIT_S, ByName, NamedClient, NamedStore, key_of, served, store_of, stores_of
from weft_kvstore.client.operation import KeyOperation
from weft_kvstore.errors import StoreError
from weft_kvstore.settings import LinkSettings


def refuse(*_: object) -> np.ndarray:
    raise MemoryError("none left")


def check_short_pull(store: ByName, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", refuse)
        future = store.pull("w", 0)
        with pytest.raises(StoreError, match="no memory"):
            future.result(WAIT_S)
    assert store.pull("w", 0).result(WAIT_S).shape == (8,)


def test_a_pull_without_memory_fails_and_the_client_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        served(store_of([key_of("w", [8], 1)], slots=1, shards=1)) as (description, _),
        NamedClient(description, 0) as client,
    ):
        check_short_pull(client, monkeypatch)


def test_a_pull_without_memory_fails_and_the_local_store_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with NamedStore(store_of([key_of("w", [8], 1)], slots=1, shards=1)) as store:
        check_short_pull(store, monkeypatch)


def test_a_thread_that_fails_ends_every_future_that_was_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's own error is raised in it, which Python reports; here only the futures matter."""
    description = store_of([key_of("w", [8], 1)], slots=1, shards=1)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with served(description) as (description, _), NamedClient(description, 0) as client:
        client.pull("w", 0).result(WAIT_S)
        monkeypatch.setattr(client._core, "tick", refuse)
        futures = [client.pull("w", 1) for _ in range(3)]
        for future in futures:
            with pytest.raises(StoreError, match=r"thread failed: MemoryError|was closed"):
                future.result(WAIT_S)


@pytest.mark.parametrize("kind", ["network", "local"])
@pytest.mark.parametrize("error", [MemoryError, IndexError])
def test_an_operation_that_cannot_be_begun_ends_and_the_store_goes_on(
    kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("at the beginning")

    with stores_of(kind, store_of([key_of("w", [8], 1)], slots=1, shards=1), LinkSettings()) as (store,):
        with monkeypatch.context() as patched:
            patched.setattr(KeyOperation, "prepare", fails)
            with pytest.raises(StoreError, match="at the beginning"):
                store.pull("w", 0).result(WAIT_S)
        assert store.pull("w", 0).result(WAIT_S).shape == (8,)
