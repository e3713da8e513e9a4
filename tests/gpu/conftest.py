"""Tests that need a CUDA device. Without one each is skipped, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from weft_worker.cuda_device import CudaDevice, why_not


@pytest.fixture(scope="session")
def gpu() -> Iterator[CudaDevice]:
    """The first GPU, made the one that CuPy works on while a test has it."""
    reason = why_not(0)
    if reason:
        pytest.skip(f"no CUDA device: {reason}")
    device = CudaDevice(0)
    with device.use():
        yield device
    device.synchronize()


@pytest.fixture
def xp(gpu: CudaDevice) -> Any:
    return gpu.xp
