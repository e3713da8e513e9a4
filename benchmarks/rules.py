"""How fast each rule updates a key that is larger than the caches, against the machine's own memory copy.

A rule moves a known number of arrays through memory (`weft_graph.rules.built_in.BuiltIn.moves`); a copy of as many
bytes, timed in turns with it, is the limit. A ratio of 1 is a rule that memory alone bounds. Rules that are graphs, as
users write them, are those of PyTorch's options that no built-in rule has (`weft_graph.rules.torch_variants`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from weft_graph.rules.built_in import BUILT_IN
from weft_graph.rules.graph import rule_graph_to_json
from weft_graph.rules.torch_variants import VARIANTS, variant
from weft_kernels.kernel import Array
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule

ELEMENTS, QUICK_ELEMENTS = 1 << 24, 1 << 20
ROUNDS = 7
PEER = "memory copy"
NAMES = [*BUILT_IN, *sorted(VARIANTS)]


def main() -> int:
    """Measures, tells, and gives the exit code: 0, or 1 where the document cannot be written."""
    options = _options()
    console = Console(highlight=False)
    conditions = _conditions(options)
    names = options.rule or NAMES
    rows = [row for dtype in options.dtype or ["float32"] for row in _measured(names, dtype, options)]
    conditions["load_after"] = round(os.getloadavg()[0], 2)
    console.print(_table(rows))
    console.print(", ".join(f"{name} {conditions[name]}" for name in ("machine", "load_before", "load_after")))
    if options.json is not None:
        try:
            _write(options.json, {"conditions": conditions, "rows": rows})
        except OSError as error:
            console.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
            return 1
    return 0


def _measured(names: Sequence[str], dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each rule. Gradients are new in each round, and drawn before the clock."""
    draw = np.random.default_rng(0)
    source = draw.standard_normal(options.elements, np.float32).astype(dtype)
    gradient, target = source.copy(), np.empty_like(source)
    weights = {name: source.copy() for name in names}
    made = {name: rule_from(rule_graph_to_json(variant(name)) if name in VARIANTS else name) for name in names}
    states = {name: {each: np.zeros_like(source) for each in made[name].state} for name in names}
    times: dict[str, list[float]] = {name: [] for name in (*names, PEER)}
    for turn in range(options.rounds + 1):
        gradient[...] = draw.standard_normal(options.elements, np.float32)
        for name in (PEER, *names):
            if name == PEER:
                took = _timed(lambda: np.copyto(target, source))
            else:
                took = _timed(_update(made[name], weights[name], gradient, states[name], turn + 1))
            if turn:  # the first meets new pages
                times[name].append(took)
    copied = 2 * source.nbytes / statistics.median(times[PEER])
    moved = {name: BUILT_IN[name].moves if name in BUILT_IN else 3 + 2 * len(made[name].state) for name in names}
    return [_row(name, dtype, times[name], moved[name] * source.nbytes, copied) for name in names]


def _update(rule: Rule, weight: Array, gradient: Array, state: dict[str, Array], step: int) -> Callable[[], None]:
    return lambda: rule.apply(weight, gradient, state, step, rule.hyper)


def _timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _row(name: str, dtype: str, times_s: Sequence[float], moved: int, copied: float) -> dict[str, Any]:
    """`copied` bytes a second is the limit; nothing goes over a wire."""
    weft_s, peer_s = statistics.median(times_s), moved / copied
    return {
        "case": f"{name}-{dtype}",
        "transport": "memory",
        "weft_ms": weft_s * 1e3,
        "weft_spread_ms": [min(times_s) * 1e3, max(times_s) * 1e3],
        "peer_ms": peer_s * 1e3,
        "peer_name": PEER,
        "ratio": weft_s / peer_s,
        "wire_bytes": 0,
        "moved_bytes": moved,
        "gigabytes_per_s": moved / weft_s / 1e9,
        "copy_gigabytes_per_s": copied / 1e9,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(caption="medians; a ratio of 1: memory alone bounds the rule", box=box.SIMPLE_HEAD)
    table.add_column("rule", no_wrap=True)
    for name in ("weft ms", "GB/s", "copy GB/s", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = (row["weft_ms"], row["gigabytes_per_s"], row["copy_gigabytes_per_s"], row["ratio"])
        table.add_row(row["case"], *(f"{figure:.2f}" for figure in figures))
    return table


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "elements": options.elements,
        "rounds": options.rounds,
    }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    """The document, whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and the conditions there")
    parser.add_argument("--quick", action="store_true", help="a key that caches may hold: to see that all works")
    parser.add_argument("--rule", action="append", choices=NAMES, help="only this; repeatable")
    parser.add_argument("--dtype", action="append", choices=["float16", "float32", "float64"], help="[float32]")
    parser.add_argument("--elements", type=_count, help=f"of the key [{ELEMENTS}, quick {QUICK_ELEMENTS}]")
    parser.add_argument("--rounds", type=_count, default=ROUNDS, help=f"of every rule [{ROUNDS}]")
    options = parser.parse_args()
    options.elements = options.elements or (QUICK_ELEMENTS if options.quick else ELEMENTS)
    return options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
