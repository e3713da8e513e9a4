"""Which steps of a slice, a whole key or a table are in, merged and applied, whatever a gradient is there.

The two ways are `sync_steps` and `async_steps`; both are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A gradient: `size` elements."""

    @property
    def size(self) -> int: ...


G = TypeVar("G", bound=Sized)


class PushRefusedError(Exception):
    """A push, a declaration or a set that contradicts what is there; the text names slot, key, slice and step."""


@dataclass(frozen=True, slots=True)
class Complete(Generic[G]):
    """An update that is due: of job step `step`, the sum of `contributors` gradients; None where there was none. `slot`
    is whose gradient it is, where each is applied by itself."""

    step: int
    contributors: int
    total: G | None
    slot: int | None = None


class Steps(Protocol[G]):
    """The steps of all slots. `version` counts those that every slot is through with."""

    @property
    def version(self) -> int: ...

    @property
    def newest(self) -> int:
        """How many steps the slot is through with that is furthest ahead: no pull sees a later version."""

    @property
    def begun(self) -> int:
        """The first step of which nothing has come of any slot, nor of a later one."""

    def check(self, slot: int, step: int, where: str, *, pushes: bool) -> None:
        """Raises PushRefusedError where a slot's gradient, or its word that it has none, contradicts what is there."""

    def is_over(self, slot: int, step: int) -> bool:
        """Whether what the slot may still say of this step changes nothing."""

    def accept(self, slot: int, step: int, gradient: G | None) -> bool:
        """Takes in what `check` lets pass: a slot's gradient, or None for nothing. True if it may be due at once. What
        was in before changes nothing: exactly once holds."""

    def merge_next(self) -> int | None:
        """Adds the next gradient that has come and can be added: how many elements. None where there is none."""

    def due(self) -> Complete[G] | None:
        """The next update, once `merge_next` has completed it. It stays the next one until `advance`."""

    def advance(self) -> None:
        """The update that is due was applied."""

    def replace(self, slot: int, *, keep_due: bool = False) -> None:
        """A newer incarnation fills the slot: what the old one pushed and is not merged is forgotten. `keep_due`: the
        update that is due is being applied."""

    def seen(self, slot: int, *, settled: bool) -> int:
        """The version that a pull of this slot can have."""

    def is_at(self, version: int, slot: int, *, settled: bool) -> bool:
        """Whether a pull of `version` can be answered. A key to which nobody contributes is at every version."""

    def missing(self, version: int, slot: int, *, settled: bool) -> tuple[str, list[int]]:
        """What a pull of a version still waits for, in words, and the slots that have not pushed it."""


def contradiction(*, before: bool) -> str:
    """In words: a slot has pushed and declares nothing, or the other way round."""
    was, now = ("pushed", "declares nothing") if before else ("declared nothing", "pushes")
    return f"the slot {was} before and {now} now"


def check_contributes(slot: int, slots: Sequence[int], where: str) -> None:
    if slot not in slots:
        raise PushRefusedError(f"{where}: only slots {list(slots)} contribute to it")


def waits(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {numbers(missing) or 'none: it is being merged'}"


def numbers(slots: list[int]) -> str:
    return ", ".join(map(str, slots))
