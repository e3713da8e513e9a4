"""What a caller hands to a store, checked against the description before anything is begun."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_graph.program import Update
from weft_kvstore.check import check_description, rule_of
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.operation import BarrierOperation, PullOperation, PushOperation
from weft_kvstore.routing import slices_of
from weft_kvstore.store import Array, StoreRefusedError


class Arguments:
    """Makes operations of one slot. Raises DescriptionError, ValueError for a slot that there is not."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        check_description(description)
        if not 0 <= slot < description.slots:
            raise ValueError(f"slot {slot} is not within 0 to {description.slots - 1}")
        self._description = description
        self._slot = slot
        self._places = {key.key: place for place, key in enumerate(description.keys)}
        self._state = tuple(rule_of(description).state)

    def push(self, future: Future[Any], name: str, step: int, gradient: Array) -> PushOperation:
        """Raises StoreRefusedError for a key, step or array that does not fit."""
        key = self._key(name, "push")
        where = f"slot {self._slot}: push of key {name!r}, step {step}"
        self._check_step(step, where)
        if self._slot not in key.slots:
            raise StoreRefusedError(f"{where}: only slots {list(key.slots)} contribute to it")
        if gradient.dtype != np.dtype(key.dtype) or gradient.shape != tuple(key.shape):
            raise StoreRefusedError(
                f"{where}: the gradient is {gradient.dtype}{list(gradient.shape)}, the key {key.dtype}{list(key.shape)}"
            )
        if not gradient.flags.c_contiguous:
            raise StoreRefusedError(f"{where}: the gradient is not C-contiguous")
        return PushOperation(future, name, self._places[name], step, gradient)

    def pull(self, future: Future[Any], name: str, version: int, *, state: bool) -> PullOperation:
        """Raises StoreRefusedError for a key or version that there is not, MemoryError."""
        key = self._key(name, "pull")
        self._check_step(version, f"slot {self._slot}: pull of key {name!r}")
        names = (self._state if key.update is Update.RULE else ()) if state else None
        cut = slices_of(key, self._description.slice_bytes)
        dtype, shape = np.dtype(key.dtype), tuple(key.shape)
        return PullOperation(future, name, self._places[name], version, cut=cut, names=names, dtype=dtype, shape=shape)

    def barrier(self, future: Future[Any], step: int, nothing: Sequence[str]) -> BarrierOperation:
        """Raises StoreRefusedError for a key that there is not or to which the slot does not contribute."""
        where = f"slot {self._slot}: barrier of step {step}"
        self._check_step(step, where)
        for name in nothing:
            key = self._key(name, "barrier")
            if self._slot not in key.slots:
                raise StoreRefusedError(f"{where}: key {name!r}: only slots {list(key.slots)} contribute to it")
        return BarrierOperation(future, step, [self._places[name] for name in nothing])

    def _key(self, name: str, what: str) -> KeyDescription:
        place = self._places.get(name)
        if place is None:
            raise StoreRefusedError(f"slot {self._slot}: {what} of key {name!r}: the store has no such key")
        return self._description.keys[place]

    @staticmethod
    def _check_step(step: int, where: str) -> None:
        if not 0 <= step < 2**62:
            raise StoreRefusedError(f"{where}: step or version {step} is not within 0 to 2**62")
