"""The cases of the benchmark of priorities: ResNet-50's arrays over slow links."""

from __future__ import annotations

from dataclasses import replace

from link_measuring import SlowCase
from slow_link import Shaping
from store_cases import Case, resnet50_shapes

RATES = {"1gbit": (1e9, 0.3, 3), "100mbit": (1e8, 0.9, 1)}
"""Bits a second, the seconds over which a backward pass hands its gradients over, and iterations of a round."""


def slow_cases() -> tuple[SlowCase, ...]:
    found = []
    for shaping in Shaping:
        for rate, (bits_per_s, stagger_s, iterations) in RATES.items():
            for manner, seconds in (("burst", 0.0), ("stagger", stagger_s)):
                name = f"{rate}-{manner}"
                case = Case(name, resnet50_shapes(), 1, 1, iterations, warm_up=1, stagger_s=seconds)
                found.append(SlowCase(name, case, bits_per_s, shaping))
    return tuple(found)


def quick(slow: SlowCase) -> SlowCase:
    """The same with one iteration a round."""
    return replace(slow, case=replace(slow.case, iterations=1))
