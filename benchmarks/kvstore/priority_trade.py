"""What slice size and credit cost and bring on a slow link: `python priority_trade.py --json FILE`.

`docs/draw_priority.py` draws it. docs/benchmarks.md says what it shows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ending import end_on_sigterm
from groups import Group
from shaped_network import NetworkError
from slow_cases import RATES
from slow_link import Ends, Shaping, slow_link, start_weft_over
from store_cases import KIB, Case, resnet50_shapes

SLICES = tuple(size * KIB for size in (32, 64, 128, 256, 512))
CREDITS = (*(size * KIB for size in (64, 128, 256, 512, 1024, 2048, 4096)), None)
"""None: what weft finds by itself."""
RATE = "1gbit"


def cells(ends: Ends, case: Case, directory: Path) -> list[dict[str, object]]:
    """A round of every slice size and credit: medians in milliseconds from the last hand-over."""
    found: list[dict[str, object]] = []
    for slice_bytes in SLICES:
        for credit in CREDITS:
            settings = {} if credit is None else {"credit_bytes": credit}
            with Group("weft", case, directory) as group:
                start_weft_over(ends, group, slice_bytes, settings)
                group.wait_until_ready()
                marks = group.words(case.warm_up)[0]["marks"]
            times = {mark: 1e3 * statistics.median(each[mark] for each in marks) for mark in ("first", "last")}
            found.append({"slice_bytes": slice_bytes, "credit_bytes": credit, **times})
            print(
                f"slices of {slice_bytes // KIB:4} KiB, credit {credit and credit // KIB} KiB: {times}", file=sys.stderr
            )
    return found


def run(arguments: Sequence[str] | None = None) -> int:
    """Writes the cells; through the proxy where no network can be made."""
    parser = argparse.ArgumentParser(description="The trade between slice size and credit")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True)
    parser.add_argument("--iterations", type=int, default=3, help="of each cell [3]")
    options = parser.parse_args(arguments)
    bits_per_s, stagger_s, _ = RATES[RATE]
    case = Case("trade", resnet50_shapes(), 1, 1, options.iterations, warm_up=1, stagger_s=stagger_s)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        shaping = Shaping.TC
        try:
            ends = stack.enter_context(slow_link(bits_per_s, shaping))
        except NetworkError as error:
            print(f"no network namespaces here: {error}", file=sys.stderr)
            shaping = Shaping.PROXY
            ends = stack.enter_context(slow_link(bits_per_s, shaping))
        found = cells(ends, case, directory)
    conditions = {"rate": RATE, "shaping": shaping.value, "cores": os.cpu_count(), "iterations": options.iterations}
    options.json.write_text(json.dumps({"conditions": conditions, "cells": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(run())
