"""Who hands over what a merger has merged: the connections of a shard, or the callers of a local store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol, TypeVar

from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.units.unit_state import AnyUnit

J_contra = TypeVar("J_contra", bound=Hashable, contravariant=True)


class Answering(Protocol[J_contra]):
    """What becomes of pulls, and of a job that fails."""

    def answer(self, wait: PullWait, unit: AnyUnit) -> Iterator[None]:
        """A unit's answer to a pull; stops after each piece of it."""

    def answer_range(self, wait: PullWait, lot: PlainLot, first: int, stop: int) -> None:
        """What slices of a lot, which are ready, answer to a pull."""

    def refuse(self, wait: PullWait, reason: str) -> None:
        """A pull that can never be answered."""

    def fail(self, job: J_contra, reason: str) -> None:
        """A job that cannot go on: its rule has failed, or there is no memory."""
