"""The store's face: what the networked client and the local store both offer, and what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class StoreError(Exception):
    """Something about the store failed; the message names slot, key and step where there are any.

    StoreError
    +-- StoreLostError     a shard, or a slot that a merge waits for, is silent or gone
    +-- StoreTimeoutError  a deadline passed; the message says who is missing
    +-- StoreRefusedError  the shard refused what this client sent: our fault
    """


class StoreLostError(StoreError):
    pass


class StoreTimeoutError(StoreError):
    pass


class StoreRefusedError(StoreError):
    pass


class Store(Protocol):
    """One slot's way to the parameters. Every method returns at once; futures end by a value or a StoreError.

    A callback added to a future runs on the store's IO thread: it must be short and must not wait.
    """

    def push(self, key: str, step: int, gradient: Array) -> Future[None]:
        """Add this slot's gradient of `step` (from 0). The array is kept, not copied, until the future ends, which is
        when every slice was acknowledged; it must not be written before. C-contiguous, of the key's dtype and shape."""

    def pull(self, key: str, version: int) -> Future[Array]:
        """The key's value once `version` updates have been applied (0: the first value). A new array, owned by the
        caller. It may be newer only where the store cannot hold it back: in sync never before this slot has pushed."""

    def pull_state(self, key: str, version: int) -> Future[Mapping[str, Array]]:
        """The rule's state of the key at that version, by the rule's names; each of the key's shape."""

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[None]:
        """Tell every shard that this slot has sent all of `step` and has nothing for the keys named."""

    def close(self) -> None:
        """Fail what is open and release sockets and threads. Idempotent."""
