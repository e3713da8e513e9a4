"""How the samples of a batch are dealt to slots."""

from __future__ import annotations


def part(samples: int, slot: int, slots: int) -> tuple[int, int]:
    """(start, stop) of the samples that `slot` of `slots` takes: contiguous, sizes differ by at most one, longer first.

    A slot past the number of samples takes none: start equals stop.
    """
    if samples < 0:
        raise ValueError(f"{samples} samples cannot be cut")
    if not 0 <= slot < slots:
        raise ValueError(f"slot {slot} is none of {slots}")
    size, longer = divmod(samples, slots)
    start = slot * size + min(slot, longer)
    return start, start + size + (slot < longer)
