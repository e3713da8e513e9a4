"""Priorities on a slow link: when the new value of the first and the last layer is back, beside MXNet and its P3.

docs/benchmarks.md says how to run it, and what the figures mean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.markup import escape

from benchmark import FAILED, NO_PEER, Plan, conditions_of, options_of, peer_python, tell
from exchange import MARKS
from groups import Group, SideError, default_slice_bytes
from reporting import (
    PeerRounds,
    Round,
    Row,
    better,
    end_on_sigterm,
    link_table,
    progress_told,
    row_of,
    stopped,
)
from slow_link import Ends, NetworkError, Shaping, slow_link, start_mxnet_over, start_weft_over
from store_cases import Case, resnet50_shapes

RATES = {"1gbit": (1e9, 0.3, 3), "100mbit": (1e8, 0.9, 1)}
"""Bits a second, the seconds over which a backward pass hands its gradients over, and iterations of a round."""


def slow_cases() -> tuple[SlowCase, ...]:
    found = []
    for shaping in Shaping:
        for rate, (bits_per_s, stagger_s, iterations) in RATES.items():
            for manner, seconds in (("burst", 0.0), ("stagger", stagger_s)):
                name = f"{rate}-{manner}"
                case = Case(name, resnet50_shapes(), 1, 1, iterations, warm_up=1, stagger_s=seconds)
                found.append(SlowCase(name, case, bits_per_s, shaping))
    return tuple(found)


def quick(slow: SlowCase) -> SlowCase:
    """The same with one iteration a round."""
    return replace(slow, case=replace(slow.case, iterations=1))


FIFO = "weft-fifo"
DIST_SYNC, P3 = "mxnet-dist_sync", "mxnet-p3"
PEER_ENVIRONMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    DIST_SYNC: {},
    P3: {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"},
}

SLOW_BITS_PER_S = 500e6
"""Below it an iteration takes up to 20 s, of which a second OMP thread could take off some hundredths."""

Start = Callable[[Group], None]


@dataclass(frozen=True, slots=True)
class SlowCase:
    """What passes the link, and the link. `name` is that of the rows, without the layer."""

    name: str
    case: Case
    bits_per_s: float
    shaping: Shaping

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.row(mark) for mark in MARKS)

    def row(self, mark: str) -> str:
        name = f"{self.name}-{mark}"
        return f"{name}-proxy" if self.shaping is Shaping.PROXY else name


@dataclass(slots=True)
class Side:
    """A store's processes, and what they have shown."""

    name: str
    case: Case
    start: Start
    own: bool
    setting: str = ""
    group: Group | None = None
    failed: str | None = None
    marks: dict[str, list[Round]] = field(default_factory=dict)

    def peer(self, mark: str) -> PeerRounds:
        return PeerRounds(self.name, self.marks.get(mark, ()), self.failed)


def measure_slow(
    slow: SlowCase, plan: Plan, progress: Callable[[str], None], settings: Mapping[str, object] | None = None
) -> tuple[list[Row], dict[str, str]]:
    """The rows of a case, and the versions of what ran. `settings` are weft's for both ends; none are its own.

    Raises SideError where weft fails and NetworkError where the link cannot be made; a peer's failure is its rows'.
    """
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        ends = stack.enter_context(slow_link(slow.bits_per_s, slow.shaping))
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        sides = _sides(slow, plan, ends, settings or {})
        for place, side in enumerate(sides):
            progress(f"{slow.name}: starts {side.name}")
            below = directory / str(place)
            below.mkdir()
            side.group = stack.enter_context(Group(side.name, side.case, below))
            _carry_out(side, _start)
            versions |= {f"{side.name}.{name}": version for name, version in side.group.versions.items()}
        for turn in range(plan.rounds):
            begin = turn % len(sides)
            for side in sides[begin:] + sides[:begin]:
                progress(f"{slow.name}: {side.name}, round {turn + 1}")
                warm_up = 0 if turn else slow.case.warm_up  # What a store learns of its link it learns once.
                _carry_out(side, lambda one, warm_up=warm_up: _round(one, warm_up=warm_up))
    return _rows(slow, plan, sides), versions


def _sides(slow: SlowCase, plan: Plan, ends: Ends, settings: Mapping[str, object]) -> list[Side]:
    case, size = slow.case, plan.slice_bytes
    fifo = {**settings, "priorities": False}
    sides = [
        Side("weft", case, lambda group: start_weft_over(ends, group, size, settings), own=True),
        Side(FIFO, case, lambda group: start_weft_over(ends, group, size, fifo), own=True),
    ]
    if plan.peer_python is None:
        return sides
    for name, environment in PEER_ENVIRONMENTS.items():
        for threads in ("1",) if slow.bits_per_s < SLOW_BITS_PER_S else ("1", "2"):
            told = {**environment, "OMP_NUM_THREADS": threads}
            sides.append(
                Side(
                    name,
                    case,
                    lambda group, told=told: start_mxnet_over(ends, group, plan.peer_python or "", told),
                    own=False,
                    setting=threads,
                )
            )
    return sides


def _start(side: Side) -> None:
    assert side.group is not None
    side.start(side.group)
    side.group.wait_until_ready()


def _round(side: Side, *, warm_up: int) -> None:
    assert side.group is not None
    (word,) = side.group.words(warm_up)
    for mark in word["marks"][0]:
        times = tuple(each[mark] for each in word["marks"])
        side.marks.setdefault(mark, []).append(Round(times, word["wire"]))


def _carry_out(side: Side, work: Callable[[Side], None]) -> None:
    """Does the work of a side that has not failed. Raises SideError for weft's own."""
    if side.failed is not None:
        return
    try:
        work(side)
    except SideError as error:
        if side.own:
            raise
        side.failed = str(error)
        if side.group is not None:
            side.group.close()


def _rows(slow: SlowCase, plan: Plan, sides: Sequence[Side]) -> list[Row]:
    named: dict[str, list[Side]] = {}
    for side in sides:
        named.setdefault(side.name, []).append(side)
    rows = []
    for mark in MARKS:
        own = named["weft"][0].marks[mark]
        for name in PEER_ENVIRONMENTS:
            rows.append(row_of(slow.row(mark), slow.shaping.value, own, _peer(name, named, plan, mark)))
        rows.append(row_of(slow.row(mark), slow.shaping.value, own, named[FIFO][0].peer(mark)))
    return rows


def _peer(name: str, named: Mapping[str, Sequence[Side]], plan: Plan, mark: str) -> PeerRounds:
    if plan.peer_python is None:
        return PeerRounds(name, missing=NO_PEER)
    return better([side.peer(mark) for side in named[name]])


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
    wanted = [row for row in rows if not options.case or row.case in options.case]
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
