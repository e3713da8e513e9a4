"""Priorities on a slow link: when the new value of the first and the last layer is back, beside MXNet and its P3.

docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from benchmark import FAILED, options_of, tell
from ending import end_on_sigterm, stopped
from figures import Row
from groups import SideError, default_slice_bytes
from link_measuring import SlowCase, measure_slow
from link_table import link_table
from measuring import Plan, peer_python
from progress_telling import progress_told
from reporting import conditions_of
from shaped_network import NetworkError
from slow_cases import quick, slow_cases

ROUNDS = (3, 1)
"""Of every side, and with `--quick`."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Measures the cases, tells of them and returns the exit code: 0, 1 for weft's failure, 2 for a missing peer."""
    options = options_of(
        "Priorities on a slow link", [row for slow in slow_cases() for row in slow.rows], arguments, rounds=ROUNDS
    )
    chosen = [slow for slow in slow_cases() if not options.case or set(slow.rows) & set(options.case)]
    chosen = [quick(slow) for slow in chosen] if options.quick else chosen
    plan = Plan(options.rounds or ROUNDS[options.quick], options.slice_bytes or default_slice_bytes(), peer_python())
    console = Console(highlight=False)
    conditions = conditions_of(plan, [slow.case for slow in chosen], quick=options.quick)
    try:
        rows, versions, left_out = _measured(chosen, plan)
    except SideError as error:
        console.print(f"[red]failed:[/red] {escape(str(error))}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        return stopped(console)
    conditions |= {"versions": versions, "left_out": left_out, "load_after": round(os.getloadavg()[0], 2)}
    wanted = [row for row in rows if not options.case or row.case.removesuffix("-rows") in options.case]
    code = tell(console, wanted, conditions, options.json, table=link_table(wanted))
    for name, reason in left_out.items():
        console.print(f"{name}: no network namespaces here: {reason}", markup=False, soft_wrap=True)
    return code


def _measured(chosen: Sequence[SlowCase], plan: Plan) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """The rows, the versions, and why cases are left out: without rights to shape a network, the proxy's are shown."""
    rows: list[Row] = []
    versions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    with progress_told() as progress:
        for slow in chosen:
            try:
                found, seen = measure_slow(slow, plan, progress)
            except NetworkError as error:
                left_out[slow.name] = str(error)
                continue
            rows += found
            versions |= seen
    return rows, versions, left_out


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(run())
