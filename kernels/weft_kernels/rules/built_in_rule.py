"""A built-in rule's record: its state and numbers are those of `weft_graph.rules.built_in`, its body is made here.

Each is a rule that a user could write as a graph, with a body by hand because what an update costs is its passes over
memory: a body runs on blocks that stay in the cache, so weight, gradient and state are read once and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft_graph.rules.built_in import BETAS, BUILT_IN
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.kernel import Array
from weft_kernels.rules.cache_blocks import cache_blocks
from weft_kernels.rules.half import with_half
from weft_kernels.rules.record import Apply, Hyper, Rule, State, Still
from weft_kernels.rules.scratch import scratch


class Block(NamedTuple):
    """Some elements of an update's arrays, and two arrays as large that a rule may write."""

    weight: Array
    gradient: Array
    state: State
    scratch: tuple[Array, Array]


Body: TypeAlias = Callable[[Block, int, Hyper], None]
"""body(block, step, hyper): as `Apply`, on a block."""


def built_in(
    name: str, body: Body, still: Still | None = None, *, counts: bool = False, reads_once: bool = False
) -> Rule:
    """The pointwise rule of that name. `body` is written for float32 and float64, of correctly rounded operations
    alone; `counts`: it reads the step; `reads_once`: it reads no gradient after it has written to the scratch."""
    apply = with_half(_in_blocks(body))
    over = with_half(_over_gradient(body)) if reads_once else None
    return _rule(name, apply, anywhere=True, counts=counts, still=still, apply_over=over)


def built_in_whole(name: str, apply: Apply) -> Rule:
    """The rule of that name, which needs its keys whole and cuts them itself."""
    return _rule(name, with_half(apply, whole=True), whole=True)


def _rule(name: str, apply: Apply, **how: Any) -> Rule:
    state, hyper = BUILT_IN[name].state, BUILT_IN[name].hyper
    return Rule(name, state, hyper, apply, fractions=frozenset(BETAS.keys() & hyper.keys()), **how)


def _in_blocks(body: Body) -> Apply:
    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        if 0 < weight.size <= CACHE_ELEMENTS:  # One block, as rows of a table come.
            small = weight.size <= CACHE_ELEMENTS >> 4
            two = (np.empty_like(weight), np.empty_like(weight)) if small else _spare(weight)
            body(Block(weight, gradient, state, two), step, hyper)
            return
        spare: tuple[Array, Array] | None = None
        for part, given, *rest in cache_blocks((weight, gradient, *state.values())):
            if spare is None or part.shape != spare[0].shape:
                spare = _spare(part)
            body(Block(part, given, dict(zip(state, rest, strict=True)), spare), step, hyper)

    return apply


def _spare(array: Array) -> tuple[Array, Array]:
    """Two of the thread's arrays, as large as this one."""
    one, other = scratch((array.dtype, array.dtype), array.size)
    return one[: array.size].reshape(array.shape), other[: array.size].reshape(array.shape)


def _over_gradient(body: Body) -> Apply:
    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        if 0 < weight.size <= CACHE_ELEMENTS:
            body(Block(weight, gradient, state, (gradient, gradient)), step, hyper)
            return
        for part, given, *rest in cache_blocks((weight, gradient, *state.values())):
            body(Block(part, given, dict(zip(state, rest, strict=True)), (given, given)), step, hyper)

    return apply
