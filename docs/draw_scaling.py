"""Writes docs/scaling.md and its plots from docs/scaling.json, which `benchmarks/kvstore/scaling.py --json` writes.

Run it with `python docs/draw_scaling.py`; a test compares the pages with what the model says now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_model import Cell, Constants, Frames

DOCS = Path(__file__).parent
PAGE = DOCS / "scaling.md"
DATA = DOCS / "scaling.json"
BENCHMARKS = DOCS.parent / "benchmarks" / "kvstore"
WORTH_A_WORD = 1.05
"""How much slower the most shards have to be than the best before the page says why."""

TITLE = "# How far the store scales\n"

MODEL = """## The model

Every process has an interpreter, which runs one of its Python threads at a time, and a thread of ZeroMQ. A worker's
caller does the IO thread's work while it waits, so the two together are its interpreter. A step is work for these:
calls, frames (messages with a payload, their acknowledgements counted in), slices, bytes. The cost of one of each, for
each thread, is what explains best the processor time of that thread over all round trips of one key, none below 0. A
shard's work for the second and further workers is its work for the first, less the update, which a step has once, plus
an addition; both at the measured speed of memory. So is the copy that joins a frame's bytes where they lie in several
arrays of the worker, which those of one key never do. On one host all threads share its cores, and busy cores slow each
other down: by how much is measured by copying memory on one of them and on all at once, and costs are those of a thread
that runs alone.

A step takes as long as its busiest resource, plus one frame's way there and back (`cost_model.py`).
With W workers, S shards, M bytes and F frames between a worker and a shard:

| Resource | Time |
|---|---|
| network card of a worker | M / rate |
| network card of a shard | W M / (S rate) |
| interpreter of a worker | 2 calls, S F frames out and S F in, 2 M bytes |
| ZeroMQ of a worker | S F frames out and S F in, 2 M bytes |
| interpreter of a shard | W F frames in and W F out, 2 W M / S bytes, (W - 1) M / S added, M / S updated |
| ZeroMQ of a shard | W F frames in and W F out, 2 W M / S bytes |
| cores, where all are on one host | the sum over all threads, over the cores |
"""


def documents() -> dict[Path, str]:
    """The page and its plots."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from cost_model import Constants, Frames

        document = json.loads(DATA.read_text(encoding="utf-8"))
        model = document["conditions"]["model"]
        return _documents(document, Constants.from_json(model["constants"]), Frames(**model["frames"]))
    finally:
        sys.path.remove(str(BENCHMARKS))


def _documents(document: Mapping[str, Any], constants: Constants, frames: Frames) -> dict[Path, str]:
    from cost_model import GIGABITS, cells, models

    plots: dict[Path, str] = {}
    every = {
        (model, gigabits): cells(model, gigabits, constants, frames) for model in models() for gigabits in GIGABITS
    }
    parts = [TITLE, _short({gigabits: every[models()[0], gigabits] for gigabits in GIGABITS}), _origin(document)]
    parts += [MODEL, _measured(document), _constants(constants), _assumed(frames)]
    for (model, gigabits), found in every.items():
        name = f"scaling-{model.name.lower().replace(' ', '-')}-{gigabits}.svg"
        title = f"{model.name} at {gigabits} Gbit/s"
        plots[DOCS / name] = _plot(f"{title}: a step's exchange", found)
        parts.append(f"### {title}\n\n![Milliseconds a step, by workers and shards]({name})\n\n{_table(found)}")
    return {PAGE: "\n".join(parts), **plots}


def _short(by_gigabits: Mapping[int, Sequence[Cell]]) -> str:
    """The conclusion, as the tables of ResNet-50 have it."""
    from cost_model import CORES, PLOTTED_SHARDS, WORKERS, knee

    parts = []
    for gigabits, found in by_gigabits.items():
        rows = {shards: [cell for cell in found if cell.shards == shards] for shards in PLOTTED_SHARDS}
        flat = [
            f"{shards} shards up to {last.workers} workers ({1e3 * last.paper.time_s:.0f} ms)"
            for shards, row in rows.items()
            if (last := knee(row)) is not None
        ]
        parts.append(f"at {gigabits} Gbit/s with {', with '.join(flat)}")
    return (
        "**In short**, by the model: if every process has a machine of its own, the exchange of a step of ResNet-50 "
        f"stays about as long with more workers {'; '.join(parts)}. Beyond that, and with fewer shards from "
        f"{WORKERS[0]} workers on, it grows with the workers. All of it is computed from what one worker and one shard "
        f"cost, for machines of {CORES} cores; what was measured against it is the table below, on one machine.\n"
    )


def _origin(document: Mapping[str, Any]) -> str:
    probed = [one["probe"] for one in document["conditions"]["model"]["probes"]]
    sizes = [one["nbytes"] for one in probed]
    pulls, slices, frames = (
        sorted({one[name] for one in probed if one[name] and one[name] != 1})
        for name in ("pulls", "slice_bytes", "frame_bytes")
    )
    return (
        "Written by `python docs/draw_scaling.py` from `docs/scaling.json`, a run of "
        "`benchmarks/kvstore/scaling.py --json`; a test compares. Run both again after a change of the store: the "
        "constants are its own.\n\n"
        "A model of what a step of training costs in the key-value store. Its constants "
        "come from the speed of memory and from round trips of one key between one worker and one shard, both measured "
        f"by the script: {min(sizes) >> 10} KiB to {max(sizes) >> 20} MiB, some of them with "
        f"{' or '.join(map(str, pulls))} pulls at once, with slices of {_kib(slices)}, or with frames of "
        f"{_kib(frames)}, which tells apart what a call, a slice, a frame and a byte cost. It then says how long the "
        "161 arrays of ResNet-50 take with more workers and shards, before that is run.\n"
    )


def _kib(sizes: Sequence[int]) -> str:
    return " or ".join(f"{size >> 10} KiB" for size in sizes)


def _measured(document: Mapping[str, Any]) -> str:
    conditions = document["conditions"]
    model = conditions["model"]
    rows = {row["case"]: row for row in document["rows"]}
    lines = [
        "## What it predicts, and what was measured\n",
        f"{conditions['machine']}, {conditions['cores']} cores, load {conditions['load_before']} before and "
        f"{conditions.get('load_after', '?')} after; all processes on one host, TCP over loopback. The prediction was "
        "written before these were run.\n",
        "| Case | Predicted, ms | Waits for | Measured, ms | Off by |",
        "|---|---|---|---|---|",
    ]
    for one in model["predictions"]:
        row = rows.get(one["case"])
        measured = f"{row['weft_ms']:.0f} | {1e3 * one['time_s'] / row['weft_ms'] - 1:+.0%}" if row else "- | -"
        lines.append(f"| {one['case']} | {1e3 * one['time_s']:.0f} | {one['bound']} | {measured} |")
    return "\n".join([*lines, ""])


def _constants(constants: Constants) -> str:
    lines = [
        "## The constants\n",
        "Microseconds of a thread's processor time for one of each, and nanoseconds for a byte far from a cache. A "
        "*round* is an exchange that begins on an idle link: what waking up costs. A *call* is a push or a pull of the "
        "worker's program. *Caller* is that program's thread, while it calls and waits; *client* is the thread of the "
        "store that serves it (the IO thread); each process has ZeroMQ's thread besides.\n",
        "| Thread | round | call | frame pushed | frame pulled | slice pushed | slice pulled | byte pushed, ns | "
        "byte pulled, ns |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for role, cost in constants.costs.items():
        units = (cost.rounds, cost.calls, cost.push_frames, cost.pull_frames, cost.push_slices, cost.pull_slices)
        cells = [f"{1e6 * unit:.1f}" for unit in units] + [f"{1e9 * b:.3f}" for b in (cost.push_far, cost.pull_far)]
        lines.append(f"| {role} | {' | '.join(cells)} |")
    far = constants.far
    lines.append(
        f"\nMemory, one thread, GB of one array in a second: copy {far.copy / 1e9:.1f}, addition {far.add / 1e9:.1f}, "
        f"descent {far.descent / 1e9:.1f}; all cores together copy {far.together:.2f} times as much as one. "
        f"A frame that leaves a busy client has {constants.frame_bytes / 1024:,.0f} KiB.\n"
    )
    lines.append(
        "A 0.0 does not say that something is free. Some counts nearly always grow together, such as frames pushed and "
        "pulled; the fit (non-negative least squares) then gives what both cost to one of them and nothing to the "
        "other. The sum of a row over a whole round trip is what it knows.\n\n"
        "The constants are of one hour. The memory of this machine, which others use too, copied between 6.5 and "
        "10 GB in a second within hours, and what a byte costs moves with it. So the script measures the constants "
        "directly before what it predicts, and figures of two runs are not to be set against each other.\n"
    )
    return "\n".join(lines)


def _assumed(frames: Frames) -> str:
    from cost_model import CALLS, COMPUTE_S, CORES, LARGE_KEYS, LATENCY_S, WORKERS

    return (
        "## On many machines\n\n"
        f"Assumed, not measured: every process has a host of its own with {CORES} cores as these, a full-duplex "
        f"network card and {1e6 * LATENCY_S:.0f} us to each other host; the network loses nothing, and a switch is no "
        "bottleneck. The cost of a byte in ZeroMQ's thread is that of loopback, where both ends of TCP are paid. A "
        f"worker makes {CALLS} calls; frames have {frames.frame_bytes >> 10:,} KiB at most, slices "
        f"{frames.slice_bytes >> 10:,} KiB. "
        f"'1 GB' is {LARGE_KEYS} keys of 5 MB.\n\n"
        "The tables have milliseconds of a step's exchange, with nothing hidden behind computing. "
        "*Flat to*: up to so many workers the workers themselves are what a step waits for, "
        "and more of them cost nothing; beyond, a shard is, and the time grows with the workers; with a '-' it is from "
        f"{WORKERS[0]} workers on. *Then waits for*: what of a shard that is with {WORKERS[-1]} workers. *Hidden to*: "
        f"up to so many, the exchange fits behind {1e3 * COMPUTE_S:.0f} ms of computing; with a '-' not even with "
        f"{WORKERS[0]}.\n"
    )


def _plot(title: str, found: Sequence[Cell]) -> str:
    from cost_model import PLOTTED_SHARDS, WORKERS
    from svg_plot import Axis, Line, plot

    lines = []
    for shards in PLOTTED_SHARDS:
        points = [(float(cell.workers), 1e3 * cell.paper.time_s) for cell in found if cell.shards == shards]
        lines.append(Line(f"{shards} shard{'s' * (shards > 1)}", points))
    up = Axis("milliseconds", [10.0**n for n in range(1, 7)])
    return plot(title, Axis("workers", [float(n) for n in WORKERS]), up, lines)


def _table(found: Sequence[Cell]) -> str:
    from cost_model import SHARDS, WORKERS, hidden, knee

    heads = " | ".join(str(workers) for workers in WORKERS)
    lines = [
        f"| Shards \\ workers | {heads} | Flat to | Then waits for | Hidden to |",
        "|---|" + "---|" * (len(WORKERS) + 3),
    ]
    for shards in SHARDS:
        row = [cell for cell in found if cell.shards == shards]
        flat, behind = knee(row), hidden(row)
        beyond = row[-1].paper.bound if row[-1].paper.bound.startswith("shard") else "-"
        times = " | ".join(f"{1e3 * cell.paper.time_s:,.0f}" for cell in row)
        ends = f"{flat.workers if flat else '-'} | {beyond} | {behind.workers if behind else '-'}"
        lines.append(f"| {shards} | {times} | {ends} |")
    return "\n".join([*lines, *_too_many(found), ""])


def _too_many(found: Sequence[Cell]) -> list[str]:
    """Why the most shards are not the best with the fewest workers, where that is so."""
    fewest = [cell for cell in found if cell.workers == found[0].workers]
    best, most = min(fewest, key=lambda cell: cell.paper.time_s), fewest[-1]
    if most.paper.time_s < WORTH_A_WORD * best.paper.time_s:
        return []
    return [
        f"\nWith few workers {most.shards} shards are slower than {best.shards}: a worker has at least one frame each "
        f"way for each shard, {most.paper.frames} of them instead of {best.paper.frames}, and each frame costs its "
        "interpreter time."
    ]


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
