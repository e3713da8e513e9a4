"""Pushes of rows that come in very many runs: what each one costs does not grow with those that came before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft_kvstore.rows.rows import Rows
from weft_kvstore.tables.steps import ChunkRun, RowPushes

RUNS = 1024


class Counted(ChunkRun):
    """A run that counts how often anybody looks at one."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        Counted.looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("order", [np.arange(RUNS), np.arange(RUNS)[::-1], np.random.default_rng(3).permutation(RUNS)])
def test_a_run_is_put_in_its_place_without_a_look_at_all_others(order: np.ndarray) -> None:
    pushes = RowPushes(1)
    Counted.looks = 0
    whole = None
    for number in order.tolist():
        run = Counted(number, number + 1, Rows(np.array([3 * number]), np.full((1, 2), number, np.float32)))
        new = pushes.fitting(0, 0, run, RUNS, "slot 0")
        assert new == [run]
        assert whole is None
        whole = pushes.add(0, 0, new, RUNS)
    assert whole is not None
    assert np.array_equal(whole.ids, 3 * np.arange(RUNS))
    assert np.array_equal(whole.values[:, 0], np.arange(RUNS))
    assert Counted.looks < 20 * RUNS * np.log2(RUNS)
