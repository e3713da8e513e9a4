"""Statistics of rounds, and the rows that a benchmark reports: pure, without a clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Round:
    """One side's round: `times_s` of its iterations, and the bytes of an iteration where the side counts them."""

    times_s: tuple[float, ...]
    wire_bytes: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds: the median of all iterations, and the lowest and highest median of a round."""

    median_ms: float
    lowest_ms: float
    highest_ms: float

    @property
    def spread_ms(self) -> tuple[float, float]:
        return self.lowest_ms, self.highest_ms


@dataclass(frozen=True, slots=True)
class PeerRounds:
    """A peer's rounds under its name, or why there are none."""

    name: str
    rounds: Sequence[Round] = ()
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A case beside one peer. `ratio` is weft's time over the peer's; None where the peer is missing.

    `wire_bytes`: of one iteration, sent and received by all of weft's workers.
    """

    case: str
    transport: str
    weft: Figures
    peer: Figures | None
    peer_name: str
    ratio: float | None
    wire_bytes: int
    missing: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "case": self.case,
            "transport": self.transport,
            "weft_ms": self.weft.median_ms,
            "weft_spread_ms": self.weft.spread_ms,
            "peer_ms": self.peer and self.peer.median_ms,
            "peer_spread_ms": self.peer and self.peer.spread_ms,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "wire_bytes": self.wire_bytes,
            "missing": self.missing,
        }


def joined(words: Sequence[Mapping[str, Any]]) -> Round:
    """The round of all workers: their clocks are the machine's one monotonic clock."""
    spans = zip(*(word["spans"] for word in words), strict=True)
    times = tuple(max(end for _, end in each) - min(start for start, _ in each) for each in spans)
    wires = [word["wire"] for word in words]
    return Round(times, None if None in wires else sum(wires))


def figures_of(rounds: Sequence[Round]) -> Figures:
    """Of at least one round with at least one iteration."""
    medians = [1e3 * statistics.median(each.times_s) for each in rounds]
    pooled = 1e3 * statistics.median([time_s for each in rounds for time_s in each.times_s])
    return Figures(pooled, min(medians), max(medians))


def row_of(case: str, transport: str, weft: Sequence[Round], peer: PeerRounds) -> Row:
    own = figures_of(weft)
    theirs = figures_of(peer.rounds) if peer.missing is None else None
    ratio = None if theirs is None else own.median_ms / theirs.median_ms
    wire = round(statistics.median([each.wire_bytes for each in weft if each.wire_bytes is not None]))
    return Row(case, transport, own, theirs, peer.name, ratio, wire, peer.missing)


def better(peers: Sequence[PeerRounds]) -> PeerRounds:
    """The fastest of one peer's settings. Where one is missing nobody knows which that is, so the peer is missing."""
    for peer in peers:
        if peer.missing is not None:
            return peer
    return min(peers, key=lambda peer: figures_of(peer.rounds).median_ms)
