"""Seeded faults at chosen messages and steps: every kind of job comes to the bits of an undisturbed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from acceptance_processes import load_script

STEPS = 40
NOISE = {"lost": 0.1, "twice": 0.1, "swapped": 0.1}
"""Less than the script has, which takes seconds a step; the store's own tests have as much."""
RUNS = [
    ("cut", "dense", 1),
    ("kill", "dense", 2),
    ("kill two", "dense", 5),
    ("cut", "adam", 3),
    ("stop", "adam", 4),
    ("cut", "table", 5),
    ("kill", "table", 6),
    ("cut", "2bit", 7),
    ("kill", "2bit", 8),
    ("cut", "float16", 9),
    ("cut", "clipped", 10),
    ("noise", "clipped", 11),
]


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    return load_script("benchmarks/chaos.py")


@pytest.fixture(scope="module")
def disturbed(chaos: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("faults")
    with chaos.disturbed_cluster(folder, workers=2, shards=2) as disturbed:
        yield disturbed


@pytest.mark.parametrize(("fault", "case", "seed"), RUNS)
def test_a_disturbed_job_has_the_bits_of_an_undisturbed_one(
    chaos: ModuleType, disturbed: Any, fault: str, case: str, seed: int
) -> None:
    """Daemons are left alone: what a new one costs is its imports."""
    outcome = chaos.run(disturbed, seed, fault, case, STEPS, daemons=False, noise=NOISE)
    assert not outcome.wrong, outcome
    assert fault == "noise" or any("not reached" not in done for done in outcome.done), outcome
