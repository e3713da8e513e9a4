"""The cost model of a step: constants from one key and the memory, a prediction, and then the measurement.

Prints and writes what it predicts for the list of ResNet-50 before that is run. docs/scaling.md says what comes out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rich import box
from rich.console import Console
from rich.table import Table

from benchmark import DONE, FAILED, Plan, conditions_of, measure
from constants import FAR_ARRAY_BYTES, NEAR_ARRAY_BYTES, fit, loopback, memory_speed, run_probes, work_of
from cost_model import GIGABITS, SHARDS, WORKERS, Constants, Frames, Processes, cells, estimate, memory_of, models
from groups import SideError, default_slice_bytes
from probe_side import Measured, probes
from reporting import (
    Round,
    Row,
    Telling,
    end_on_sigterm,
    figures_of,
    machine_line,
    progress_told,
    stopped,
    table_of,
    write_json,
)
from store_cases import FLOAT_BYTES, Case, resnet50_shapes

PREDICTED = ((2, 1), (1, 2), (2, 2))
"""Workers and shards of what is predicted: 1s2w, 2s1w and 2s2w."""
ROUNDS, QUICK_ROUNDS = 5, 2
ALLOWED = 0.2
"""Of the measured time: how far a prediction may be off."""
PEER = "prediction"
ONE_KEY = "round trips of one key"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one case: seconds, and the busiest resource."""

    case: Case
    time_s: float
    bound: str


def predict(constants: Constants, frames: Frames, cores: int) -> list[Prediction]:
    """The list of ResNet-50 on one host."""
    shapes = resnet50_shapes()
    key_bytes = [FLOAT_BYTES * math.prod(shape) for shape in shapes]
    machines = loopback(cores, memory_of(constants, sum(key_bytes)))
    found = []
    for workers, shards in PREDICTED:
        case = Case(f"resnet50-{shards}s{workers}w-tcp", shapes, workers, shards, iterations=8, warm_up=2)
        paper = estimate(key_bytes, Processes(workers, shards), constants, machines, frames)
        found.append(Prediction(case, paper.time_s, paper.bound))
    return found


def run(arguments: Sequence[str] | None = None) -> int:
    """Measures, tells, and returns the exit code: 0, or 1 where weft failed or a prediction is too far off."""
    options = _options(arguments)
    console = Console(highlight=False)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    plan = Plan(rounds, options.slice_bytes or default_slice_bytes(), None)
    conditions = conditions_of(plan, [], quick=options.quick)
    try:
        with progress_told() as progress:
            rows = _work(console, plan, conditions, options, progress)
    except (SideError, OSError) as error:
        console.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        return stopped(console)
    off = [row.case for row in rows if row.ratio is None or abs(1 / row.ratio - 1) > ALLOWED]
    if rows:
        console.print(f"predictions off by more than {ALLOWED:.0%}: {', '.join(off) or 'none'}")
    return FAILED if off else DONE


def _work(
    console: Console,
    plan: Plan,
    conditions: dict[str, object],
    options: argparse.Namespace,
    progress: Telling,
) -> list[Row]:
    cores = len(os.sched_getaffinity(0))
    progress("speed of memory")
    near, far = (memory_speed(nbytes, cores, quick=options.quick) for nbytes in (NEAR_ARRAY_BYTES, FAR_ARRAY_BYTES))
    measured = run_probes(probes(), plan.rounds, plan.slice_bytes, lambda text: progress(f"{ONE_KEY}: {text}"))
    frames = Frames(slice_bytes=plan.slice_bytes)
    constants = fit(measured, near, far, cores)
    frames = replace(frames, frame_bytes=constants.frame_bytes)
    console.print(_probe_table(measured, constants))
    predictions = predict(constants, frames, cores)
    console.print(_prediction_table(predictions))
    model: dict[str, Any] = {
        "constants": constants.as_json(),
        "frames": asdict(frames),
        "cores": cores,
        "probes": [one.as_json() for one in measured],
        "predictions": [_prediction_json(one) for one in predictions],
    }
    _write(options.json, conditions | {"model": model}, [])  # before anything of it is measured
    rows = []
    for one in () if options.predict else predictions:
        case = one.case.quick() if options.quick else one.case
        (row,), _ = measure(case, plan, progress)
        rows.append(row_beside(one, row))
    conditions["load_after"] = round(os.getloadavg()[0], 2)
    if rows:
        console.print(table_of(rows))
    _write(options.json, conditions | {"model": model}, rows)
    for table in scale_tables(constants, frames):
        console.print(table)
    console.print(machine_line(conditions))
    return rows


def row_beside(prediction: Prediction, row: Row) -> Row:
    """What was measured beside what was predicted: the ratio is measured over predicted."""
    predicted = figures_of([Round((prediction.time_s,), None)])
    return replace(row, peer=predicted, peer_name=PEER, ratio=row.weft.median_ms / predicted.median_ms, missing=None)


def _prediction_json(one: Prediction) -> dict[str, Any]:
    return {"case": one.case.name, "time_s": one.time_s, "bound": one.bound}


def _write(path: Path | None, conditions: dict[str, object], rows: Sequence[Row]) -> None:
    if path is not None:
        write_json(path, conditions, rows)


def _probe_table(measured: Sequence[Measured], constants: Constants) -> Table:
    """How well the constants tell what they were made from."""
    caption = (
        "a push, then one pull, or several at once\n"
        "processor ms: of all threads; by model: by the constants fitted to these"
    )
    table = Table(title=f"{ONE_KEY.capitalize()}, 1s1w", box=box.SIMPLE_HEAD, caption=caption)
    for name in ("round trip of", "ms", "processor ms", "by model"):
        table.add_column(name, justify="left" if name == "round trip of" else "right")
    for one in measured:
        processor, modelled = processor_times(one, constants)
        table.add_row(one.probe.name, f"{1e3 * one.time_s:.3f}", f"{1e3 * processor:.3f}", f"{1e3 * modelled:.3f}")
    return table


def processor_times(one: Measured, constants: Constants) -> tuple[float, float]:
    """Seconds of all threads for an iteration: measured, and by the constants."""
    work = work_of(one)
    return sum(one.processor_s.values()), sum(cost.of(work) for cost in constants.costs.values())


def _prediction_table(predictions: Sequence[Prediction]) -> Table:
    table = Table(title="Predicted, not yet run", box=box.SIMPLE_HEAD)
    for name in ("case", "ms", "waits for"):
        table.add_column(name)
    for one in predictions:
        table.add_row(one.case.name, f"{1e3 * one.time_s:.1f}", one.bound)
    return table


def scale_tables(constants: Constants, frames: Frames) -> list[Table]:
    """On paper, in milliseconds: a row for each number of shards. 80 columns hold them."""
    tables = []
    for model in models():
        for gigabits in GIGABITS:
            title = f"{model.name}, {gigabits} Gbit/s: a step's exchange on paper, ms"
            table = Table(title=title, box=box.SIMPLE_HEAD, caption="shards down, workers across")
            for name in ("shards", *map(str, WORKERS)):
                table.add_column(name, justify="right")
            found = iter(cells(model, gigabits, constants, frames))
            for shards in SHARDS:
                table.add_row(str(shards), *(f"{1e3 * next(found).paper.time_s:.0f}" for _ in WORKERS))
            tables.append(table)
    return tables


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The cost model of a step of the store, and how well it predicts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write constants, predictions and rows there")
    parser.add_argument("--predict", action="store_true", help="stop before the predicted is measured")
    parser.add_argument("--quick", action="store_true", help="few rounds: a rough look")
    parser.add_argument("--rounds", type=int, help=f"rounds of all that is measured [{ROUNDS}, quick {QUICK_ROUNDS}]")
    parser.add_argument("--slice-bytes", type=int, help="of weft's slices [what jobs have by default]")
    return parser.parse_args(arguments)


def main() -> NoReturn:
    """The script's whole work."""
    end_on_sigterm()
    sys.exit(run())


if __name__ == "__main__":
    main()
