"""What each codec of compression costs beside a copy of the same memory: one process, no wire.

docs/benchmarks.md says how to run it, and what the figures mean. In the rows "weft" is the codec, the peer NumPy's
copy, and "wire" the encoded bytes of one iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np

from benchmark import Plan, Progress, run
from reporting import PeerRounds, Round, Row, row_of
from store_cases import FLOAT_BYTES, MIB, Case
from weft_kvstore.arrays import Array
from weft_kvstore.compression import Codec
from weft_kvstore.description.records import CompressionDescription, Kind
from weft_kvstore.sharding import codec_of

PEER = "copy"
SIZES = (("1MiB", MIB, 200, 20), ("16MiB", 16 * MIB, 16, 3))
"""One fits into a core's caches, one does not."""

DESCRIPTIONS = {
    "bf16": CompressionDescription(Kind.BF16),
    "bf16-plain": CompressionDescription(Kind.BF16, residual=False),
    "fp16": CompressionDescription(Kind.FP16),
    "fp16-plain": CompressionDescription(Kind.FP16, residual=False),
    "2bit": CompressionDescription(Kind.TWO_BIT, threshold=0.5),
    "topk": CompressionDescription(Kind.TOP_K, ratio=0.01),
}
DIRECTIONS = ("encode", "decode")


def codec_cases() -> tuple[Case, ...]:
    """A case is named codec-direction-size."""
    return tuple(
        Case(f"{name}-{direction}-{size}", ((nbytes // FLOAT_BYTES,),), 1, 0, iterations, warm_up, transport="memory")
        for name in DESCRIPTIONS
        for direction in DIRECTIONS
        for size, nbytes, iterations, warm_up in SIZES
    )


@dataclass(slots=True)
class Coding:
    """What one case does again and again: a gradient in, bytes out, or back."""

    codec: Codec
    bounds: Array
    gradients: Sequence[Array]
    residual: Array | None
    payload: Array
    values: Array

    def encode(self, turn: int) -> None:
        self.codec.encode(self.gradients[turn % len(self.gradients)], self.bounds, self.residual, out=self.payload)

    def decode(self, _turn: int) -> None:
        self.values = self.codec.decode(self.payload, self.bounds)

    def copy(self, turn: int) -> None:
        np.copyto(self.values, self.gradients[turn % len(self.gradients)])


def coding_of(case: Case, slice_bytes: int) -> tuple[Coding, Callable[[int], None]]:
    """The case's arrays, and what it does. Two gradients in turn: half of what 2-bit has to say changes each time."""
    name, direction, _ = case.name.rsplit("-", 2)
    (size,) = case.shapes[0]
    description = DESCRIPTIONS[name]
    codec = codec_of(description, np.dtype(np.float32))
    bounds = np.append(np.arange(0, size, max(slice_bytes // FLOAT_BYTES, 1)), size)
    rng = np.random.default_rng(1)
    gradients = [rng.standard_normal(size, dtype=np.float32) * np.float32(0.3) for _ in range(2)]
    residual = np.zeros(size, np.float32) if description.residual else None
    payload = codec.encode(gradients[0], bounds, residual)
    coding = Coding(codec, bounds, gradients, residual, payload, np.empty(size, np.float32))
    return coding, coding.encode if direction == "encode" else coding.decode


def measure_codec(case: Case, plan: Plan, progress: Progress) -> tuple[list[Row], dict[str, str]]:
    """The case's row beside the copy, in turns of rounds, and the versions of what ran."""
    coding, work = coding_of(case, plan.slice_bytes)
    own: list[Round] = []
    theirs: list[Round] = []
    for turn in range(plan.rounds):
        progress(f"{case.name}: round {turn + 1}")
        sides = [(own, work), (theirs, coding.copy)]
        for rounds, action in sides if turn % 2 else reversed(sides):
            rounds.append(_round(case, action, coding.payload.size if rounds is own else None))
    versions = {f"weft.{name}": version(name) for name in ("numpy", "ml-dtypes")}
    return [row_of(case.name, case.transport, own, PeerRounds(PEER, theirs))], versions


def _round(case: Case, action: Callable[[int], None], wire_bytes: int | None) -> Round:
    times: list[float] = []
    for turn in range(case.warm_up + case.iterations):
        start = time.perf_counter()
        action(turn)
        times.append(time.perf_counter() - start)
    return Round(tuple(times[case.warm_up :]), wire_bytes)


if __name__ == "__main__":
    sys.exit(run("Codecs of compression", codec_cases(), measuring=measure_codec))
