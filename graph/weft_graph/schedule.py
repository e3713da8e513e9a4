"""Hyper-parameters that change with the step: closed forms, as documents that every process evaluates alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

HyperValue: TypeAlias = float | Mapping[str, Any]
"""A number, or a schedule's document."""


def value_at(hyper: HyperValue, step: int) -> float:
    """The number that holds for the update of step `step`, counted from 0."""
    if isinstance(hyper, Mapping):
        raise ValueError(f"schedule {hyper.get('schedule')!r} is none that there is")
    return float(hyper)
