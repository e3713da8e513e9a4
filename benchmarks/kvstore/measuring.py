"""Runs a case: every side's processes stand side by side, and take turns round by round."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import PeerRounds, Round, Row, better, row_of
from groups import Group, SideError, start_mxnet, start_weft
from store_cases import Case

PEER_THREADS = (1, 2)
"""OMP threads of each of the peer's processes. Which is faster differs from case to case."""

PYTHON_VARIABLE = "MXNET_PYTHON"
PEER = "MXNet"
NO_PEER = f"{PYTHON_VARIABLE} names no Python with {PEER}; docs/benchmarks.md says how to make one"

StartOwn = Callable[[Group, int], None]
"""Starts weft's processes, with slices of so many bytes."""
StartPeer = Callable[[Group, str, int], None]
"""Starts the peer's, with its Python and so many OMP threads."""

Progress = Callable[[str], None]
"""Called with what is done now, once for the start of a side and once for each of its rounds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How all cases are run. `peer_python` has MXNet; without one the rows say that the peer is missing."""

    rounds: int
    slice_bytes: int
    peer_python: str | None

    @property
    def turns(self) -> int:
        """Calls of the progress for one case."""
        return (1 + self.rounds) * (1 + (len(PEER_THREADS) if self.peer_python else 0))


def measure(
    case: Case, plan: Plan, progress: Progress, *, own: StartOwn = start_weft, peer: StartPeer = start_mxnet
) -> tuple[Row, dict[str, str]]:
    """The case's row and the versions of what ran. Raises SideError where weft fails; the peer's failure is its row."""
    failed: dict[int, str] = {}
    rounds: dict[int | None, list[Round]] = {}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        progress(f"{case.name}: starts weft")
        weft = stack.enter_context(Group("weft", case, directory))
        own(weft, plan.slice_bytes)
        weft.wait_until_ready()
        sides: dict[int | None, Group] = {None: weft}
        versions |= {f"weft.{name}": version for name, version in weft.versions.items()}
        for threads in PEER_THREADS if plan.peer_python else ():
            group = stack.enter_context(Group(f"{PEER} OMP {threads}", case, directory))
            progress(f"{case.name}: starts {group.name}")
            try:
                peer(group, plan.peer_python or "", threads)
                group.wait_until_ready()
            except SideError as error:
                failed[threads] = str(error)
                continue
            sides[threads] = group
            versions |= {f"peer.{name}": version for name, version in group.versions.items() if name != "omp_threads"}
        for turn in range(plan.rounds):
            _take_turns(turn, sides, rounds, failed, lambda name: progress(f"{case.name}: {name}"))
    peers = [_peer(threads, rounds.get(threads, ()), failed, plan, versions) for threads in PEER_THREADS]
    return row_of(case.name, case.transport, rounds[None], better(peers)), versions


def _take_turns(
    turn: int,
    sides: dict[int | None, Group],
    rounds: dict[int | None, list[Round]],
    failed: dict[int, str],
    progress: Progress,
) -> None:
    """One round of every side. Who begins changes, so that nobody always runs after the same one."""
    order = list(sides)
    for threads in order[turn % len(order) :] + order[: turn % len(order)]:
        progress(f"{sides[threads].name}, round {turn + 1}")
        try:
            rounds.setdefault(threads, []).append(sides[threads].round())
        except SideError as error:
            if threads is None:
                raise
            failed[threads] = str(error)
            sides.pop(threads).close()


def _peer(
    threads: int, rounds: Sequence[Round], failed: dict[int, str], plan: Plan, versions: dict[str, str]
) -> PeerRounds:
    name = " ".join([PEER, *filter(None, [versions.get("peer.mxnet")])])
    if plan.peer_python is None:
        return PeerRounds(name, missing=NO_PEER)
    return PeerRounds(f"{name}, OMP {threads}", rounds, failed.get(threads))


def peer_python() -> str | None:
    """The Python that the environment names, where it can be run."""
    path = os.environ.get(PYTHON_VARIABLE, "")
    return path if path and os.access(path, os.X_OK) and not os.path.isdir(path) else None
