"""Random masks made on a GPU, the same bits as on the host: see `sources/draws.cu`."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft_kernels.cuda.module import launch
from weft_kernels.kernel import Array
from weft_kernels.random import Key

_FILE: Final = "draws.cu"


def kept(xp: Any, key: Key, start: int, shape: tuple[int, ...], threshold: int) -> Array:
    """Whether draw `start` + e of the stream is `threshold` or more, bool, of that shape."""
    result: Array = xp.empty(shape, dtype=bool)
    words = (np.uint64(key[0]), np.uint64(key[1]), start, result.size, np.uint64(threshold))
    launch(xp, _FILE, "kept", result.size, result, *words)
    return result
