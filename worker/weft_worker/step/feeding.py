"""Puts into a run's table what its program reads without computing it: inputs, and values that are there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft_kernels.kernel import Array
from weft_worker.plan import BoundNode
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.run import StepRun
from weft_worker.step.values import LateFeed


def feed(run: StepRun, feeds: Mapping[str, Array], late: LateFeed | None) -> None:
    """Puts the plan's inputs, each of which is of `feeds` or is `late`."""
    for name, place in run.plan.inputs.items():
        if late is not None and name == late.name:
            _feed_late(run, place, late)
        else:
            run.table.put(place, run.hands.device.to_device(feeds[name]))


def _feed_late(run: StepRun, place: int, late: LateFeed) -> None:
    """Puts an input that other work decides. What reads it waits, and nothing else."""

    def put() -> None:
        run.table.put(place, run.hands.device.to_device(late.read()))

    name = f"{late.name} of {run.context.label}"
    run.hands.engine.push(put, late.after, (run.define([place], late.name),), lane=COMPUTE, name=name)


def fill(run: StepRun, bounds: Sequence[BoundNode], fetched: Mapping[str, Array]) -> None:
    """Puts the values of Fetches, which have been fetched before."""
    for bound in bounds:
        (place,) = bound.outputs
        assert place is not None
        run.table.put(place, run.hands.device.to_device(fetched[bound.key]))
