"""The busy interpreter's benchmark and the cost model's probes run real processes, and compare what they get."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acceptance_processes import descendants
from busy_interpreter import CASE, DEFAULT, IDLE, SETTINGS, TUNED, Trips, computing, measure, rows_of
from constants import costs_of, run_probes
from cost_model import Role
from groups import SideError
from probe_side import Probe, summed, thread_times_s
from reporting import Round
from same_host_children import wait_until
from store_cases import KIB


def test_every_setting_has_its_rounds_and_leaves_the_interval_as_it_was() -> None:
    before, interval_s = descendants(os.getpid()), sys.getswitchinterval()
    rounds = measure(replace(CASE, iterations=3, warm_up=1), 2)
    assert set(rounds) == set(SETTINGS) == {IDLE, TUNED, DEFAULT}
    assert all(len(each.times_s) == 3 for own in rounds.values() for each in own)
    assert all(8 * KIB < (each.wire_bytes or 0) < 12 * KIB for own in rounds.values() for each in own)
    assert sys.getswitchinterval() == interval_s
    assert descendants(os.getpid()) <= before


class StuckStore:
    """Takes pushes and never changes its value."""

    def push(self, _key: str, _gradient: np.ndarray) -> Future[None]:
        return ended(None)

    def pull(self, _key: str) -> Future[np.ndarray]:
        return ended(np.ones(4, np.float32))


def ended(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_a_value_that_is_not_numpys_is_a_failure() -> None:
    with pytest.raises(SideError, match="step 1: the value is"):
        Trips(StuckStore(), "key0", 4).trip()  # type: ignore[arg-type]  # it stands for a store


def test_the_tuned_setting_is_set_beside_each_other_one() -> None:
    rounds = {TUNED: [Round((0.002,), 8e3)], DEFAULT: [Round((0.02,), 8e3)], IDLE: [Round((0.001,), 8e3)]}
    assert [row.ratio for row in rows_of(rounds)] == pytest.approx([0.1, 2.0])


def test_the_computing_thread_computes_and_ends() -> None:
    with computing():
        number = next(each.native_id for each in threading.enumerate() if each.name == "compute")
        assert number is not None
        before = thread_times_s(os.getpid())
        wait_until(lambda: summed(before, thread_times_s(os.getpid()), {number}) > 0)
    assert all(each.name != "compute" for each in threading.enumerate())


def test_times_of_threads_that_came_or_went_meanwhile_are_counted_once() -> None:
    assert summed({1: 2.0, 2: 5.0}, {1: 3.0, 3: 0.5}, {1, 2, 3}) == pytest.approx(1.5)


def test_a_probe_counts_slices_frames_and_the_processors_time_of_each_role() -> None:
    before = descendants(os.getpid())
    chosen = [Probe(4 * KIB), Probe(256 * KIB, pulls=2)]
    small, large = run_probes(chosen, 1, 16 * KIB, lambda _: None)
    assert (small.slices, large.slices) == (1, 16)
    assert small.push_frames == small.pull_frames == 1
    assert large.pull_frames > 1
    assert set(small.processor_s) == set(Role)
    assert sum(small.processor_s.values()) > 0
    assert small.time_s > 0
    assert all(cost.rounds >= 0 for cost in costs_of([small, large]).values())
    assert descendants(os.getpid()) <= before
