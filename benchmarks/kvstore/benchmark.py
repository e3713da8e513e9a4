"""The command line that the benchmarks of the key-value store share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ending import end_on_sigterm, stopped
from figures import Row
from groups import SideError, default_slice_bytes
from measuring import Plan, measure, peer_python
from progress_telling import progress_told
from reporting import conditions_of, machine_line, table_of, write_json
from store_cases import Case

DONE, FAILED, PEER_MISSING = 0, 1, 2
ROUNDS, QUICK_ROUNDS = 5, 2

Measure = Callable[[Case, Plan, Callable[[str], None]], tuple[list[Row], dict[str, str]]]


def main(what: str, cases: Sequence[Case], further: Sequence[Case] = ()) -> NoReturn:
    """A script's whole work, the bare exchange beside it. The `further` cases run where they are asked for."""
    end_on_sigterm()
    sys.exit(run(what, cases, further=further, bare=True))


def run(
    what: str,
    cases: Sequence[Case],
    arguments: Sequence[str] | None = None,
    *,
    further: Sequence[Case] = (),
    measuring: Measure = measure,
    bare: bool = False,
) -> int:
    """Measures the cases, tells of them and returns the exit code: 0, 1 where weft failed, 2 where a peer is missing.

    `arguments` stand for the command line's, `measuring` for what runs one case; `bare`: the bare exchange runs too.
    """
    options = options_of(what, [case.name for case in (*cases, *further)], arguments, further=bool(further))
    chosen = chosen_of(options, cases, further)
    chosen = [case.quick() for case in chosen] if options.quick else chosen
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    plan = Plan(rounds, options.slice_bytes or default_slice_bytes(), peer_python(), bare)
    console = Console(highlight=False)
    conditions = conditions_of(plan, chosen, quick=options.quick)
    rows: list[Row] = []
    versions: dict[str, str] = {}
    try:
        with progress_told(len(chosen) * plan.turns) as progress:
            for case in chosen:
                some, found = measuring(case, plan, progress)
                rows += some
                versions |= found
    except SideError as error:
        console.print(f"[red]failed:[/red] {escape(str(error))}", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        return stopped(console)
    conditions |= {"versions": versions, "load_after": round(os.getloadavg()[0], 2)}
    return tell(console, rows, conditions, options.json)


def chosen_of(options: argparse.Namespace, cases: Sequence[Case], further: Sequence[Case]) -> list[Case]:
    """Those that are named; else all, the further ones where they are wanted."""
    if options.case:
        return [case for case in (*cases, *further) if case.name in options.case]
    return [*cases, *further] if further and options.further else list(cases)


def tell(
    console: Console,
    rows: Sequence[Row],
    conditions: dict[str, object],
    path: Path | None,
    *,
    table: Table | None = None,
) -> int:
    """Shows the rows, or `table` for them, writes them where a path is given, and returns the exit code."""
    console.print(table or table_of(rows))
    console.print(machine_line(conditions))
    missing = missing_lines(rows)
    for line in missing:
        console.print(line, markup=False, soft_wrap=True)
    if path is not None:
        try:
            write_json(path, conditions, rows)
        except OSError as error:
            console.print(f"failed: {error}", style="red", markup=False, soft_wrap=True)
            return FAILED
    return PEER_MISSING if missing else DONE


def missing_lines(rows: Sequence[Row]) -> list[str]:
    """Why peers are missing: a line for each reason, however many cases it meets."""
    cases: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.missing is not None:
            cases.setdefault((row.peer_name, row.missing), []).append(row.case)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {peer} is missing: {reason}"
        for (peer, reason), names in cases.items()
    ]


def options_of(
    what: str,
    names: Sequence[str],
    arguments: Sequence[str] | None,
    *,
    rounds: tuple[int, int] = (ROUNDS, QUICK_ROUNDS),
    further: bool = False,
) -> argparse.Namespace:
    """The command line's; `names` are of cases, `rounds` how many there are, and with `--quick`; `further`: whether
    some of the cases run only where they are asked for."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and the conditions there")
    parser.add_argument("--quick", action="store_true", help="few iterations and rounds: a rough look")
    parser.add_argument("--case", action="append", choices=names, help="only this; repeatable")
    if further:
        parser.add_argument("--further", action="store_true", help="also other sizes, a late worker, ids by Zipf's law")
    parser.add_argument("--rounds", type=_count, help="rounds of every side [{}, quick {}]".format(*rounds))
    parser.add_argument("--slice-bytes", type=_count, help="of weft's slices [what jobs have by default]")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number
