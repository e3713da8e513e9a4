"""Who waits for whom on a shard, in words: what a pull lacks, and a step that is not measured. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias

from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.shard.parts import ShardParts
from weft_kvstore.units.table_state import TableState
from weft_kvstore.units.unit_state import AnyUnit

Reason: TypeAlias = tuple[str, list[int]]
"""What is waited for, in words, and the slots that are missing."""


def pull_waits_for(parts: ShardParts, wait: PullWait) -> Reason:
    """What an open pull waits for; no slot is missing where all was answered."""
    for number in wait.open:
        text, missing = parts.lots[number].pulls.waits_for(wait)
        if missing:
            return text, missing
    for number in sorted(wait.open_units):
        unit = parts.units[number]
        if _lacks_ids(unit, wait):
            return f"the ids of key {unit.spec.key!r} have not all come", []
        if not unit.can_answer(wait):
            return unit.waits_for(wait)
    for number in wait.open:
        return parts.lots[number].pulls.waits_for(wait)
    return "every slice was answered", []


def pull_lacks(parts: ShardParts, gate: StepGate | None, wait: PullWait, absent: Collection[int]) -> Reason | None:
    """What an open pull waits for of slots that are `absent`, and which; None where nothing. There may be many pulls:
    of parts only those are looked at to which such a slot contributes, and all where a gate lets any slot hold them."""
    for number in wait.open:
        lot = parts.lots[number]
        if gate is not None or _both(lot.state.spec.slots, absent):
            text, missing = lot.pulls.waits_for(wait)
            if lost := _both(missing, absent):
                return text, lost
    for number in wait.open_units:
        unit = parts.units[number]
        if (gate is not None or _both(unit.spec.slots, absent)) and not _lacks_ids(unit, wait):
            text, missing = unit.waits_for(wait)
            if lost := _both(missing, absent):
                return text, lost
    return None


def step_waits_for(parts: ShardParts, gate: StepGate, step: int) -> Reason:
    """What a step that is not measured waits for."""
    text, missing = gate.missing(step)
    if missing:
        return text, missing
    for unit in parts.units.values():
        if unit.spec.slots and unit.version <= step:
            behind = unit.steps.missing(step + 1, 0, settled=True)
            if behind[1]:
                return f"key {unit.spec.key!r} {behind[0]}", behind[1]
    for lot in parts.lots.values():
        found = _lot_waits_for(lot, step)
        if found is not None:
            return found
    return text, missing


def _lot_waits_for(lot: PlainLot, step: int) -> Reason | None:
    """What a step waits for at the first slice of a lot that has not merged it."""
    if not lot.state.spec.slots:
        return None
    behind = lot.state.steps.came.min(axis=0) <= step
    if not behind.any():
        return None
    at = int(behind.argmax())
    text, missing = lot.state.steps.missing(at, step + 1, None)
    return f"{lot.state.spec.key_named(at)} {text}", missing


def _lacks_ids(unit: AnyUnit, wait: PullWait) -> bool:
    return wait.ids is None and isinstance(unit, TableState)


def _both(some: Iterable[int], others: Collection[int]) -> list[int]:
    return [one for one in some if one in others]
