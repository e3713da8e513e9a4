"""Statistics of rounds, and the rows that a benchmark reports: pure, without a clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from groups import Round


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
    """The fastest of one peer's settings; where all are missing, the first."""
    present = [peer for peer in peers if peer.missing is None]
    return min(present, key=lambda peer: figures_of(peer.rounds).median_ms) if present else peers[0]
