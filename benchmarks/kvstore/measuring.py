"""Runs a case: every side's processes stand side by side, and take turns round by round."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bare_group import BARE, has_bare, start_bare
from figures import PeerRounds, Round, Row, better, row_of
from groups import Group, SideError, start_mxnet, start_weft
from store_cases import Case

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
