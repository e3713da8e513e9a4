"""Runs one case on a slow link: every store's processes stand at its ends, and take turns round by round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from figures import PeerRounds, Round, Row, better, row_of
from groups import Group, SideError
from layer_marks import MARKS
from measuring import NO_PEER, Plan
from slow_link import Ends, Shaping, slow_link, start_mxnet_over, start_weft_over
from store_cases import TABLE_ROWS, Case
from training_pace import STEP

FIFO, BESIDE = "weft-fifo", "weft-rows-beside"
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
    def marks(self) -> tuple[str, ...]:
        return (STEP,) if self.case.compute_s else MARKS

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.row(mark) for mark in self.marks)

    def row(self, mark: str) -> str:
        name = self.name if self.case.compute_s else f"{self.name}-{mark}"
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
                # What a store learns of its link it learns once; a training step begins with values on their way.
                warm_up = slow.case.warm_up if slow.case.compute_s or not turn else 0
                _carry_out(side, lambda one, warm_up=warm_up: _round(one, warm_up=warm_up))
    return _rows(slow, plan, sides), versions


def _sides(slow: SlowCase, plan: Plan, ends: Ends, settings: Mapping[str, object]) -> list[Side]:
    case, size = slow.case, plan.slice_bytes
    fifo = {**settings, "priorities": False}
    sides = [
        Side("weft", case, lambda group: start_weft_over(ends, group, size, settings), own=True),
        Side(FIFO, case, lambda group: start_weft_over(ends, group, size, fifo), own=True),
    ]
    if case.compute_s:
        return sides
    sides.append(
        Side(
            BESIDE,
            replace(case, beside_rows=TABLE_ROWS),
            lambda group: start_weft_over(ends, group, size, settings),
            own=True,
        )
    )
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
    for mark in slow.marks:
        own = named["weft"][0].marks[mark]
        for name in () if slow.case.compute_s else PEER_ENVIRONMENTS:
            rows.append(row_of(slow.row(mark), slow.shaping.value, own, _peer(name, named, plan, mark)))
        rows.append(row_of(slow.row(mark), slow.shaping.value, own, named[FIFO][0].peer(mark)))
        if BESIDE in named:
            beside = named[BESIDE][0].marks[mark]
            rows.append(row_of(f"{slow.row(mark)}-rows", slow.shaping.value, beside, named["weft"][0].peer(mark)))
    return rows


def _peer(name: str, named: Mapping[str, Sequence[Side]], plan: Plan, mark: str) -> PeerRounds:
    if plan.peer_python is None:
        return PeerRounds(name, missing=NO_PEER)
    return better([side.peer(mark) for side in named[name]])
