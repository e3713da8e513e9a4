"""Compression: what each codec costs beside a copy of the same memory, and what it does to steps over the wire.

docs/benchmarks.md says how to run it, and what the figures mean. In the codecs' rows "weft" is the codec, the peer
NumPy's copy, and "wire" the encoded bytes of one iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console

from benchmark import run
from codec_rounds import TRANSPORT, codec_cases, measure_codec
from compression_wire import measure_wire, wire_cases
from figures import Row
from measuring import Plan
from store_cases import Case


class Speeds:
    """Measures, and keeps what each case moved, in a second or over the wire."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def measure(self, case: Case, plan: Plan, progress: Callable[[str], None]) -> tuple[list[Row], dict[str, str]]:
        if case.transport != TRANSPORT:
            rows, versions = measure_wire(case, plan, progress)
            whole = 2 * case.workers * case.payload_bytes
            self.lines.append(f"{case.name}: {rows[0].wire_bytes / 1e6:.1f} MB of {whole / 1e6:.1f} in an iteration")
            return rows, versions
        row, versions = measure_codec(case, plan, progress)
        nbytes = case.payload_bytes
        own, peer = (f"{nbytes / 1e6 / figures.median_ms:.2f}" for figures in (row.weft, row.peer) if figures)
        self.lines.append(f"{case.name}: {own} GB/s, a copy {peer}; 1 : {nbytes / row.wire_bytes:.1f}")
        return [row], versions


def main() -> int:
    speeds = Speeds()
    code = run("Compression", codec_cases() + wire_cases(), measuring=speeds.measure)
    Console(highlight=False).print("\n".join(speeds.lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
