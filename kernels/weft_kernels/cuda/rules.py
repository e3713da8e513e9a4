"""Update rules on a GPU: the built-in ones by `sources/rules.cu`, a user's by a kernel generated from its graph.

Both update all elements of a key, or the rows of a table that a gradient is of, in one pass over memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft_graph.rules.binding import bound_rule, computed_in
from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.graph import GRADIENT, STEP, WEIGHT, RuleGraph
from weft_graph.types import DType
from weft_kernels.cuda.module import launch, launch_generated, sources
from weft_kernels.cuda.pointwise import Fused, fuse
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.rules.record import Hyper, State
from weft_kernels.run import run_nodes

_FILE: Final = "rules.cu"


def has_rule(name: str) -> bool:
    """Whether a built-in rule of that name has a kernel."""
    return any(entry.startswith(f"{name}<") for entry in sources()[_FILE].entries)


def _numbers_of(name: str, hyper: Hyper, step: int) -> tuple[float, ...]:
    """A built-in rule's numbers in the order of its kernel's arguments."""
    numbers = tuple(float(hyper[each]) for each in BUILT_IN[name].hyper)
    # A power for each element would cost more than the rest of the update.
    corrected = "beta1" in BUILT_IN[name].hyper
    return (*numbers, 1.0 - hyper["beta1"] ** step, 1.0 - hyper["beta2"] ** step) if corrected else numbers


def apply_built_in(
    xp: Any,
    name: str,
    weight: Array,
    gradient: Array,
    state: State,
    *,
    step: int,
    hyper: Hyper,
    ids: Array | None = None,
) -> None:
    """Updates `weight` and `state` in place, all C-contiguous, as the rule of that name does.

    With `ids` (n,) int64, distinct, `gradient` (n, ...) is of those rows of them alone; a negative id is left.
    """
    arrays = (weight, gradient, *(state[each] for each in BUILT_IN[name].state))
    given = (*arrays, *_rows(xp, gradient, ids), *_numbers_of(name, hyper, step))
    launch(xp, _FILE, name, gradient.size, *given, types=(weight.dtype,))


class FusedRule:
    """A user's rule whose nodes go element by element, as one kernel for each element type."""

    def __init__(self, rule: RuleGraph) -> None:
        self._rule = rule
        self._fused: dict[str, Fused] = {}

    def fused(self, dtype: np.dtype[Any]) -> Fused:
        """The kernel for keys of that type. Raises NotTraceableError where an operator is not one of elements."""
        if dtype.name not in self._fused:
            self._fused[dtype.name] = self._generate(dtype)
        return self._fused[dtype.name]

    def apply(
        self,
        xp: Any,
        weight: Array,
        gradient: Array,
        state: State,
        *,
        step: int,
        hyper: Hyper,
        ids: Array | None = None,
    ) -> None:
        """As `apply_built_in`."""
        fused = self.fused(weight.dtype)
        arrays = {WEIGHT: weight, GRADIENT: gradient, **state}
        numbers = self._numbers(weight.dtype, step, hyper)
        given = [*(arrays[name] for name in fused.arrays), *_rows(xp, gradient, ids)]
        launch_generated(xp, fused.text, gradient.size, [*given, *(float(numbers[name]) for name in fused.numbers)])

    def _numbers(self, dtype: np.dtype[Any], step: int, hyper: Hyper) -> dict[str, Array]:
        """What is worked out of the step and the hyper-parameters alone: on the host, once for an update."""
        bound = bound_rule(self._rule, DType(dtype.name), None)
        values = {constant.name: constant.array for constant in bound.graph.constants}
        for input_ in bound.graph.inputs:
            if not input_.type.rank:
                number = step if input_.name == STEP else hyper[input_.name]
                values[input_.name] = np.asarray(number, input_.type.dtype.numpy)
        run_nodes(KernelContext(""), bound.graph.nodes[: bound.numbers], values, keep=self._wanted(bound.graph.nodes))
        return values

    @staticmethod
    def _wanted(nodes: Any) -> list[str]:
        return [name for node in nodes for name in (*node.inputs, *node.outputs) if name]

    def _generate(self, dtype: np.dtype[Any]) -> Fused:
        rule = self._rule
        bound = bound_rule(rule, DType(dtype.name), None)
        worked_out = self._numbers(dtype, 1, rule.hyper)
        nodes = bound.graph.nodes[bound.numbers :]
        read = {name for node in nodes for name in node.inputs} | set(rule.next.values())
        constants = {constant.name: constant.array for constant in bound.graph.constants if constant.name in read}
        numbers = {
            name: array.dtype
            for name, array in worked_out.items()
            if name in read and name not in constants and array.ndim == 0
        }
        arrays = dict.fromkeys((WEIGHT, GRADIENT, *rule.state), dtype)
        return fuse(
            f"rule {rule.name} over {dtype.name}",
            nodes,
            arrays=arrays,
            numbers=numbers,
            constants=constants,
            results=rule.next,
            by_place=(WEIGHT, *rule.state),
            states=tuple(rule.state),
            computed=computed_in(DType(dtype.name)).numpy,
        )


def _rows(xp: Any, gradient: Array, ids: Array | None) -> tuple[int | Array, ...]:
    if ids is None:
        return gradient.size, 1, xp.empty(1, dtype=xp.int64), 0
    return ids.size, gradient.size // max(ids.size, 1), xp.ascontiguousarray(ids), 1
