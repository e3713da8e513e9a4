"""The cases of the key-value store's benchmarks: which arrays, how many processes, how often.

Imported by both sides' workers, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

KIB = 1024
MIB = 1024 * KIB
FLOAT_BYTES = 4
"""All values are float32."""

RATE = 0.01
"""Of stochastic gradient descent on the shards, without momentum or decay."""

TABLE_SHAPE = (1_000_000, 64)
TABLE_ROWS = 4096
"""Distinct rows that a worker pushes, and then pulls, in an iteration."""

START_S = 60.0
"""What a shard may take to start, on a machine with other work: no worker gives it up before."""

TOLERANCE = 1e-5
"""Of values about 1: float32 rounds each update by about 1e-7."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What one iteration exchanges, and how it is repeated.

    `transport`: what large payloads of the store go through: "tcp", shared memory ("samehost"), or that with gradients
    and values in arrays that the store has given ("inplace"). The peer has one way alone.
    `shapes`: of the keys, in the order in which they are pushed and then pulled. `rows`: of the one table that is the
    only key then, or 0. `iterations` are timed in a round, after `warm_up` that are not.
    On a slow link, `stagger_s` is the time over which the keys are handed over. `call`: how keys are pushed and pulled:
    "lists", all by one push and one pull; "pushpull", by one call; "each", by calls of their own. `curve`: whether
    weft's links are encrypted; the peer's never are.
    """

    name: str
    shapes: tuple[Shape, ...]
    workers: int
    servers: int
    iterations: int
    warm_up: int
    rows: int = 0
    transport: str = "tcp"
    stagger_s: float = 0.0
    call: str = "lists"
    curve: bool = False

    @property
    def payload_bytes(self) -> int:
        """Of the values that one worker pushes in an iteration; it pulls as much."""
        if self.rows:
            return FLOAT_BYTES * self.rows * math.prod(self.shapes[0][1:])
        return FLOAT_BYTES * sum(math.prod(shape) for shape in self.shapes)

    def quick(self) -> Case:
        """The same with a few iterations: it shows that everything works, and roughly how long it takes."""
        return replace(self, iterations=max(2, self.iterations // 6), warm_up=max(1, self.warm_up // 6))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def case_from_json(text: str) -> Case:
    fields = json.loads(text)
    shapes = tuple(tuple(shape) for shape in fields["shapes"])
    return Case(**{**fields, "shapes": shapes})


def many_keys() -> tuple[Case, ...]:
    resnet, small = resnet50_shapes(), ((KIB,),) * 256
    return (
        Case("resnet50-1s1w-tcp", resnet, workers=1, servers=1, iterations=8, warm_up=2),
        Case("resnet50-2s2w-tcp", resnet, workers=2, servers=2, iterations=8, warm_up=2),
        Case("resnet50-2s2w-samehost", resnet, workers=2, servers=2, iterations=8, warm_up=2, transport="samehost"),
        Case("resnet50-2s2w-inplace", resnet, workers=2, servers=2, iterations=8, warm_up=2, transport="inplace"),
        Case("resnet50-2s2w-curve", resnet, workers=2, servers=2, iterations=4, warm_up=1, curve=True),
        Case("flight-4KiB-1s1w", small, workers=1, servers=1, iterations=30, warm_up=5),
        Case("flight-4KiB-2s2w", small, workers=2, servers=2, iterations=30, warm_up=5),
        Case("calls-4KiB-1s1w", small, workers=1, servers=1, iterations=30, warm_up=5, call="each"),
    )


def one_key() -> tuple[Case, ...]:
    sizes = (
        ("4KiB", 4 * KIB, 300, 30),
        ("64KiB", 64 * KIB, 200, 20),
        ("1MiB", MIB, 80, 8),
        ("16MiB", 16 * MIB, 16, 3),
        ("64MiB", 64 * MIB, 6, 2),
    )
    alone = tuple(
        Case(f"key-{name}", ((size // FLOAT_BYTES,),), workers=1, servers=1, iterations=iterations, warm_up=warm_up)
        for name, size, iterations, warm_up in sizes
    )
    return (alone[0], replace(alone[0], name="key-4KiB-pushpull", call="pushpull"), *alone[1:])


def sparse() -> tuple[Case, ...]:
    return tuple(
        Case(
            f"rows-{count}s{count}w-{transport}",
            (TABLE_SHAPE,),
            workers=count,
            servers=count,
            iterations=30,
            warm_up=5,
            rows=TABLE_ROWS,
            transport=transport,
        )
        for count, transport in ((1, "tcp"), (1, "samehost"), (2, "tcp"))
    )


def resnet50_shapes() -> tuple[Shape, ...]:
    """The 161 arrays that ResNet-50 for 1000 classes trains, in the order of the forward pass; 25,557,032 elements.

    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", 2015, table 1: every convolution has no bias
    and is followed by a normalization with scale and shift.
    """
    shapes: list[Shape] = _convolution(3, 64, 7)
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += _convolution(channels, width, 1) + _convolution(width, width, 3)
            shapes += _convolution(width, 4 * width, 1)
            if block == 0:  # The short cut changes the number of channels.
                shapes += _convolution(channels, 4 * width, 1)
            channels = 4 * width
    return (*shapes, (1000, channels), (1000,))


def _convolution(channels: int, filters: int, extent: int) -> list[Shape]:
    return [(filters, channels, extent, extent), (filters,), (filters,)]
