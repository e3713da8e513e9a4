"""Where a worker keeps the keys that it updates itself, and the rule as it runs there.

On a GPU their values and the optimizer's state stay in its memory, and one kernel updates a key. A rule that has no
kernel (one that is not pointwise) runs on the host, and so does every rule where this project's kernels do not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.rules.graph import rule_graph_from_json
from weft_kernels.cuda.module import has_kernels
from weft_kernels.cuda.pointwise import NotTraceableError
from weft_kernels.cuda.rules import FusedRule, apply_built_in, has_rule
from weft_kernels.kernel import Array
from weft_kernels.rules.record import Apply, Hyper, Rule, State
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_worker.device import CpuDevice, Device


@dataclass(frozen=True, slots=True)
class Updating:
    """`apply` is `rule`'s, on arrays of the `device`; started within the device's `use`."""

    rule: Rule
    device: Device
    apply: Apply


def on_host(rule: Rule) -> Updating:
    """The rule as it is."""
    return Updating(rule, CpuDevice(), rule.apply)


def updating_on(device: Device, description: StoreDescription, rule: Rule, keys: Iterable[KeyDescription]) -> Updating:
    """`rule`, the description's, on the device where it can update `keys` there, else on the host."""
    if rule.whole or not has_kernels(device.xp):
        return on_host(rule)
    document = description.rule
    if isinstance(document, Mapping) and "graph" in document:
        fused = FusedRule(rule_graph_from_json(document))
        try:
            for dtype in {key.dtype for key in keys}:
                fused.fused(np.dtype(dtype))
        except NotTraceableError:
            return on_host(rule)
        return Updating(rule, device, _fused_apply(device.xp, fused))
    return Updating(rule, device, _built_in_apply(device.xp, rule.name)) if has_rule(rule.name) else on_host(rule)


def _fused_apply(xp: Any, fused: FusedRule) -> Apply:
    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        fused.apply(xp, weight, gradient, state, step=step, hyper=hyper)

    return apply


def _built_in_apply(xp: Any, name: str) -> Apply:
    def apply(weight: Array, gradient: Array, state: State, step: int, hyper: Hyper) -> None:
        apply_built_in(xp, name, weight, gradient, state, step=step, hyper=hyper)

    return apply
