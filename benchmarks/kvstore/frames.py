"""How many Python frames of the store one call of 4 KiB runs, at the client and at the shard, in steady state.

    python benchmarks/kvstore/frames.py [--same-host]

A frame costs some 0.1 us by itself and about 1 us with what it does: their number is the latency of a small message.
Both ends run in one process, so that both can be counted; they speak over TCP as two processes would.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import numpy as np

import weft_kvstore
from weft_kvstore import Key, KVStore, LinkSettings, ShardServer, describe

PACKAGE = str(Path(weft_kvstore.__file__).parent)
ELEMENTS = 1024
ROWS = ELEMENTS // 64
"""Of a table, all of which a call names."""
WARM_UP, CALLS = 200, 50


class Trace:
    """Counts calls of the store's functions by side while `on`: the shard has one thread, the client the others."""

    def __init__(self) -> None:
        self.on = False
        self.shard = 0
        self.calls: dict[str, Counter[CodeType]] = {"client": Counter(), "shard": Counter()}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            side = "shard" if threading.get_ident() == self.shard else "client"
            self.calls[side][frame.f_code] += 1


def measured(trace: Trace, call: Callable[[], object]) -> dict[str, tuple[float, int, int]]:
    """Frames of a call, different functions and files, by side and of both; without what only time brings about."""
    for _ in range(WARM_UP):
        call()
    trace.calls = {side: Counter() for side in trace.calls}
    trace.on = True
    for _ in range(CALLS):
        call()
    trace.on = False
    found = {
        side: Counter({code: n for code, n in codes.items() if 2 * n > CALLS}) for side, codes in trace.calls.items()
    }
    found["both"] = found["client"] + found["shard"]
    return {
        side: (sum(codes.values()) / CALLS, len(codes), len({code.co_filename for code in codes}))
        for side, codes in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--same-host", action="store_true", help="let payloads pass through shared memory")
    given = parser.parse_args()
    trace = Trace()
    threading.setprofile(trace)
    # A call that is traced takes longer; what counts is what follows it at once.
    at_once = patch("weft_kvstore.client.poller.BATCH_S", 1.0)
    with at_once, ShardServer("tcp://127.0.0.1:0") as server:
        keys = {"w": Key((ELEMENTS,), initializer=0.0), "t": Key((ROWS, 64), rows=True, initializer=0.0)}
        description = describe(keys, shards=[server.endpoint], rule="sgd", lr=0.01)
        server.open(description, 0)
        settings = LinkSettings(same_host=given.same_host)
        with KVStore.connect(description, 0, settings=settings) as store:
            trace.shard = next(one.ident or 0 for one in threading.enumerate() if one.name == "weft-shard")
            sys.setprofile(trace)
            gradient, value = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
            ids, rows = np.arange(ROWS), gradient.reshape(ROWS, -1)

            def push_and_pull() -> None:
                store.push("w", gradient)
                store.pull("w", out=value).result()

            calls = {
                "pushpull": lambda: store.pushpull("w", gradient, out=value).result(),
                "push, then pull": push_and_pull,
                "pushpull_rows": lambda: store.pushpull_rows("t", ids, rows).result(),
            }
            print(f"{'call':<16}{'side':<8}{'frames':>8}{'functions':>11}{'files':>7}")
            for name, call in calls.items():
                found = measured(trace, call)
                for side, (frames, functions, files) in found.items():
                    print(f"{name:<16}{side:<8}{frames:>8.0f}{functions:>11}{files:>7}")
            sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]  # None ends it


if __name__ == "__main__":
    main()
