"""Real processes: one cluster for all tests that do not kill any of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

import weft
from acceptance_place import Place
from acceptance_processes import load_script


@pytest.fixture(scope="package")
def example() -> ModuleType:
    """The digits example, as a module."""
    return load_script("examples/digits.py")


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory, example: ModuleType) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("cluster")
    digits = folder / "handwritten.npz"
    rows = example.write_data(digits)
    with weft.Cluster(workers=2, shards=2, data_root=folder) as cluster:
        yield Place(cluster, folder, digits, rows)


@pytest.fixture
def client(place: Place) -> Iterator[weft.Client]:
    with place.cluster.client() as client:
        yield client
