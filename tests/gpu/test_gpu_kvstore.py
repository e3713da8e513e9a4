"""A GPU's arrays through the store: pushed as they are, pulled into place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from face_stores import WAIT_S, faces
from weft_kvstore import Key, describe


@pytest.mark.gpu
def test_arrays_of_a_gpu_are_pushed_and_pulled(xp: Any) -> None:
    description = describe({"w": Key(shape=(1 << 20,), initializer=0.0)}, rule="sgd", lr=1.0)
    with faces("network", description) as (store,), xp.cuda.Stream(non_blocking=True):
        gradient = xp.arange(1 << 20, dtype=np.float32)
        out = xp.zeros(1 << 20, np.float32)
        for step in range(3):
            gradient = gradient + 1  # a kernel that is under way when the push begins
            assert store.pushpull("w", gradient, out=out).result(WAIT_S) is out
            expected = -sum(np.arange(1 << 20, dtype=np.float32) + number + 1 for number in range(step + 1))
            np.testing.assert_array_equal(xp.asnumpy(out), expected)
