"""Compressed steps over the wire: ResNet-50's arrays over loopback, and over a link of 100 Mbit/s."""

from __future__ import annotations

from functools import partial
from typing import Final

from figures import Row
from groups import Group
from measuring import Plan, Progress, measure
from slow_link import Ends, Shaping, slow_link, start_mxnet_over, start_weft_over
from store_cases import COMPRESSIONS, Case, resnet50_shapes

SLOW_BITS_PER_S: Final = 1e8
LOOPBACK, SLOW = "tcp", "proxy"


def wire_cases() -> tuple[Case, ...]:
    """What travels compressed is the end of a case's name."""
    shapes = resnet50_shapes()
    loopback = [
        Case(f"resnet50-2s2w-{name}", shapes, 2, 2, iterations=6, warm_up=2, transport=LOOPBACK, compression=name)
        for name in COMPRESSIONS
    ]
    slow = [
        Case(f"resnet50-100mbit-{name}", shapes, 1, 1, iterations=2, warm_up=1, transport=SLOW, compression=name)
        for name in COMPRESSIONS
    ]
    return (*loopback, *slow)


def measure_wire(case: Case, plan: Plan, progress: Progress) -> tuple[list[Row], dict[str, str]]:
    """As `measure`. MXNet compresses gradients too where the case has 2-bit, and nothing elsewhere."""
    if case.transport == LOOPBACK:
        return measure(case, plan, progress)
    with slow_link(SLOW_BITS_PER_S, Shaping.PROXY) as ends:
        return measure(case, plan, progress, own=partial(_own, ends), peer=partial(_peer, ends))


def _own(ends: Ends, group: Group, slice_bytes: int) -> None:
    start_weft_over(ends, group, slice_bytes, {}, whole=True)


def _peer(ends: Ends, group: Group, python: str, threads: int) -> None:
    start_mxnet_over(ends, group, python, {"OMP_NUM_THREADS": str(threads)}, worker="mxnet_side.py")
