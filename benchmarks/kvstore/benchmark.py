"""The round trip of one key, many keys in one step, and rows of a table, beside MXNet and a bare exchange.

docs/benchmarks.md says how to run it, and what the figures mean. The command line is that of the other benchmarks too.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from groups import BARE, Group, SideError, default_slice_bytes, has_bare, start_bare, start_mxnet, start_weft
from reporting import (
    PeerRounds,
    Round,
    Row,
    better,
    end_on_sigterm,
    machine_line,
    processor,
    progress_told,
    row_of,
    stopped,
    table_of,
    write_json,
)
from store_cases import RATE, Case, many_keys, one_key, sparse

PEER_THREADS = (1, 2)
"""OMP threads of each of the peer's processes. Which is faster differs from case to case."""

PYTHON_VARIABLE = "MXNET_PYTHON"
OWN, PEER = "weft", "MXNet"
NO_PEER = f"{PYTHON_VARIABLE} names no Python with {PEER}; docs/benchmarks.md says how to make one"

StartOwn = Callable[[Group, int], None]
"""Starts weft's processes, with slices of so many bytes."""
StartPeer = Callable[[Group, str, int], None]
"""Starts the peer's, with its Python and so many OMP threads."""

Progress = Callable[[str], None]
"""Called with what is done now, once for the start of a side and once for each of its rounds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How all cases are run. `peer_python` has MXNet; without one the rows say that the peer is missing. `bare`: the
    bare exchange runs beside both."""

    rounds: int
    slice_bytes: int
    peer_python: str | None
    bare: bool = False

    @property
    def turns(self) -> int:
        """Calls of the progress for one case, at most."""
        return (1 + self.rounds) * (1 + (len(PEER_THREADS) if self.peer_python else 0) + self.bare)


def measure(
    case: Case, plan: Plan, progress: Progress, *, own: StartOwn = start_weft, peer: StartPeer = start_mxnet
) -> tuple[list[Row], dict[str, str]]:
    """The case's rows, a row for each peer, MXNet's first, and the versions of what ran. Raises SideError where weft
    fails; a peer's failure is its row."""
    failed: dict[str, str] = {}
    rounds: dict[str, list[Round]] = {}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        sides: dict[str, Group] = {}

        def begin(name: str, start: Callable[[Group], None], label: str) -> None:
            group = stack.enter_context(Group(name, case, directory))
            progress(f"{case.name}: starts {name}")
            start(group)
            group.wait_until_ready()
            sides[name] = group
            found = {what: version for what, version in group.versions.items() if what != "omp_threads"}
            versions.update({f"{label}.{what}": version for what, version in found.items()})

        begin(OWN, lambda group: own(group, plan.slice_bytes), "weft")
        others: list[tuple[str, Callable[[Group], None], str]] = []
        if plan.peer_python is not None:
            python = plan.peer_python
            others += [(_peer_side(n), partial(_start_peer, peer, python, n), "peer") for n in PEER_THREADS]
        if plan.bare and has_bare(case):
            others.append((BARE, start_bare, "bare"))
        for name, start, label in others:
            try:
                begin(name, start, label)
            except SideError as error:
                failed[name] = str(error)
        for turn in range(plan.rounds):
            _take_turns(turn, sides, rounds, failed, lambda name: progress(f"{case.name}: {name}"))
    peers = [better([_peer(threads, rounds, failed, plan, versions) for threads in PEER_THREADS])]
    if plan.bare and has_bare(case):
        peers.append(PeerRounds(BARE, rounds.get(BARE, ()), failed.get(BARE)))
    return [row_of(case.name, case.transport, rounds[OWN], one) for one in peers], versions


def _start_peer(peer: StartPeer, python: str, threads: int, group: Group) -> None:
    peer(group, python, threads)


def _peer_side(threads: int) -> str:
    return f"{PEER} OMP {threads}"


def _take_turns(
    turn: int,
    sides: dict[str, Group],
    rounds: dict[str, list[Round]],
    failed: dict[str, str],
    progress: Progress,
) -> None:
    """One round of every side. Who begins changes, so that nobody always runs after the same one."""
    order = list(sides)
    for name in order[turn % len(order) :] + order[: turn % len(order)]:
        progress(f"{name}, round {turn + 1}")
        try:
            rounds.setdefault(name, []).append(sides[name].round())
        except SideError as error:
            if name == OWN:
                raise
            failed[name] = str(error)
            sides.pop(name).close()


def _peer(
    threads: int, rounds: dict[str, list[Round]], failed: dict[str, str], plan: Plan, versions: dict[str, str]
) -> PeerRounds:
    name = " ".join([PEER, *filter(None, [versions.get("peer.mxnet")])])
    if plan.peer_python is None:
        return PeerRounds(name, missing=NO_PEER)
    side = _peer_side(threads)
    return PeerRounds(f"{name}, OMP {threads}", rounds.get(side, ()), failed.get(side))


def peer_python() -> str | None:
    """The Python that the environment names, where it can be run."""
    path = os.environ.get(PYTHON_VARIABLE, "")
    return path if path and os.access(path, os.X_OK) and not os.path.isdir(path) else None


DONE, FAILED, PEER_MISSING = 0, 1, 2
ROUNDS, QUICK_ROUNDS = 5, 2

Measure = Callable[[Case, Plan, Callable[[str], None]], tuple[list[Row], dict[str, str]]]


def run(
    what: str,
    cases: Sequence[Case],
    arguments: Sequence[str] | None = None,
    *,
    measuring: Measure = measure,
    bare: bool = False,
) -> int:
    """Measures the cases, tells of them and returns the exit code: 0, 1 where weft failed, 2 where a peer is missing.

    `arguments` stand for the command line's, `measuring` for what runs one case; `bare`: the bare exchange runs too.
    """
    options = options_of(what, [case.name for case in cases], arguments)
    chosen = [case for case in cases if not options.case or case.name in options.case]
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


def conditions_of(plan: Plan, cases: Sequence[Case], *, quick: bool) -> dict[str, object]:
    """The machine before the run, and how it is run."""
    return {
        "machine": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "rule": f"sgd, lr {RATE}, on the shards",
        "mode": "sync",
        "slice_bytes": plan.slice_bytes,
        "rounds": plan.rounds,
        "iterations": {case.name: case.iterations for case in cases},
        "quick": quick,
    }


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
) -> argparse.Namespace:
    """The command line's; `names` are of cases, `rounds` how many there are, and with `--quick`."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and the conditions there")
    parser.add_argument("--quick", action="store_true", help="few iterations and rounds: a rough look")
    parser.add_argument("--case", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--rounds", type=_count, help="rounds of every side [{}, quick {}]".format(*rounds))
    parser.add_argument("--slice-bytes", type=_count, help="of weft's slices [what jobs have by default]")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(run("The key-value store beside MXNet", (*one_key(), *many_keys(), *sparse()), bare=True))
