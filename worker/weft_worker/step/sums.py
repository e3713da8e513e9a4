"""Pushes the work that adds up what the parts of a step would send, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from weft_kernels.kernel import Array
from weft_worker.device import after
from weft_worker.engine.work import OnComplete
from weft_worker.plan import BoundNode
from weft_worker.step.accumulation import StepPart
from weft_worker.step.completing import completing
from weft_worker.step.lanes import COMPUTE
from weft_worker.step.run import StepRun

Start = Callable[[OnComplete], None]
"""Work of the IO lane, which begins something and calls back at its end."""


def push_sum(run: StepRun, bound: BoundNode, place: int, part: StepPart) -> Start:
    """Adds the gradient to those of the parts before. Returns the work that sends the sum, for the last part."""
    shared, key, hands = part.accumulation, bound.key, run.hands

    def add() -> None:
        with hands.device.use():
            shared.add(key, run.table.get(place), hands.device.xp)
        run.table.release([place])

    def send(on_complete: OnComplete) -> None:
        brought = hands.device.bring([shared.take(key)])
        pushed = after(brought, lambda host: hands.store.push(key, run.context.step, host[0]))
        pushed.add_done_callback(completing(on_complete))

    _push(run, key, add, (place,), part)
    return send


def push_row_sum(run: StepRun, bound: BoundNode, ids: int, rows: int, part: StepPart) -> Start:
    """Keeps the rows with those of the parts before. Returns the work that sends them all, for the last part; the store
    sums those of one id."""
    shared, key, hands = part.accumulation, bound.key, run.hands

    def add() -> None:
        with hands.device.use():
            shared.add_rows(key, run.table.get(ids), run.table.get(rows))
        run.table.release([ids, rows])

    def push(host: list[Array]) -> Future[None]:
        half = len(host) // 2
        return hands.store.push_rows(key, run.context.step, np.concatenate(host[:half]), np.concatenate(host[half:]))

    def send(on_complete: OnComplete) -> None:
        all_ids, all_rows = shared.take_rows(key)
        after(hands.device.bring([*all_ids, *all_rows]), push).add_done_callback(completing(on_complete))

    _push(run, key, add, (ids, rows), part)
    return send


def _push(run: StepRun, key: str, add: Callable[[], None], places: tuple[int, ...], part: StepPart) -> None:
    summed, engine = part.accumulation.summed, run.hands.engine
    if key not in summed:
        summed[key] = engine.variable(f"sum of {key}")
    name = f"sum of {key!r} of {run.context.label}"
    engine.push(add, run.variables_of(places), (summed[key],), lane=COMPUTE, name=name)
