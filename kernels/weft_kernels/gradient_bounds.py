"""Scales a gradient, and bounds each of its elements, before a rule has it: whatever rule that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from weft_kernels.element_types import computed_in
from weft_kernels.kernel import Array
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.record import Hyper, Rule, State

RESCALE: Final = "rescale_grad"
CLIP: Final = "clip_gradient"

BOUNDS: Final[Mapping[str, float]] = {RESCALE: 1.0, CLIP: 0.0}
"""Hyper-parameters beside a rule's own. A bound of 0 or less is none."""


def bounded(rule: Rule) -> Rule:
    """The rule with `BOUNDS` among its hyper-parameters: it gets clip(gradient * rescale_grad, -c, c), c being
    `clip_gradient`, as MXNet's optimizers do. What is a rule's own of these names stays so."""

    added = BOUNDS.keys() - rule.hyper.keys()

    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        own = {name: hyper[name] for name in rule.hyper}
        factor, most = (hyper[name] if name in added else default for name, default in BOUNDS.items())
        if factor == 1.0 and most <= 0:
            rule.apply(weight, gradient, state, step, own)
            return
        for part, given, *rest in _blocks(rule, (weight, gradient, *state.values())):
            rule.apply(part, _bounded(given, factor, most), dict(zip(state, rest, strict=True)), step, own)

    return replace(rule, hyper={**BOUNDS, **rule.hyper}, apply=apply, apply_over=None)


def _blocks(rule: Rule, arrays: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Where the rule may be cut anywhere, blocks that stay in the cache."""
    return cache_blocks(arrays) if rule.anywhere else iter((arrays,))


def _bounded(gradient: Array, factor: float, most: float) -> Array:
    """A new array, rounded once: 16-bit floats are computed in float32."""
    wide = computed_in(gradient.dtype)
    with np.errstate(over="ignore"):
        found = np.asarray(np.multiply(gradient, wide.type(factor), dtype=wide))  # Of a key that is one number, too.
        if most > 0:
            np.clip(found, -most, most, out=found)
        return found.astype(gradient.dtype, copy=False)
