"""Where a body looks at numbers that a device has made: the only way, and the device is waited for.

A body needs this to refuse what it must not compute with (a label that is no class, an index outside) and where the
amount of work follows from numbers. Everything else stays on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kernels.kernel import Array


def number(xp: Any, array: Array | np.generic) -> Any:
    """The one element of `array`, as Python's number."""
    return (array if isinstance(array, np.ndarray | np.generic) else xp.asnumpy(array)).item()


def any_of(xp: Any, mask: Array) -> bool:
    """Whether an element of `mask` is true."""
    return bool(number(xp, mask.any()))
