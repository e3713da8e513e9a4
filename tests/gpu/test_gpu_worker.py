"""A GPU as a worker's device: what goes there and back, and both demo jobs on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft_worker.cuda_device import CudaDevice

pytestmark = pytest.mark.gpu
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_gpu_brings_what_was_computed_and_keeps_it_whole(gpu: CudaDevice) -> None:
    """Memory that is freed while its copy is under way is not given to the next kernel."""
    xp: Any = gpu.xp
    futures = []
    for number in range(50):
        made = xp.full((1 << 18,), number, dtype=xp.float32)
        futures.append(gpu.bring([made, made[:10].reshape(5, 2).T]))
        del made
        xp.full((1 << 18,), -1.0, dtype=xp.float32)
    for number, future in enumerate(futures):
        whole, part = future.result(60)
        assert part.flags.c_contiguous
        assert part.shape == (2, 5)
        assert np.all(whole == number)
        assert np.all(part == number)
    assert gpu.memory() >= 0
    gpu.synchronize()


def test_gpu_takes_and_gives_every_type(gpu: CudaDevice) -> None:
    for dtype in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
        for shape in ((), (0, 3), (2, 3)):
            array = np.ones(shape, dtype)
            back = gpu.to_host(gpu.to_device(array))
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(back, array)


def test_gpu_kernels_read_what_was_uploaded_and_memory_is_not_given_away(gpu: CudaDevice) -> None:
    """Also while the stream of kernels is far behind."""
    xp: Any = gpu.xp
    slow = xp.ones((1 << 12, 1 << 12), dtype=xp.float32)
    for number in range(50):
        xp.matmul(slow, slow)
        upload = gpu.upload(np.full(1 << 18, number, np.float32))
        (found,) = gpu.bring([upload.land() + 1]).result(60)
        assert np.all(found == number + 1)


def test_gpu_launches_what_was_captured_on_the_same_arrays(gpu: CudaDevice) -> None:
    """With a product, whose library has memory of its own, and an array that is made on the way."""
    xp: Any = gpu.xp
    x, weight, out = (xp.ones((64, 64), dtype=xp.float32) for _ in range(3))

    def work() -> None:
        xp.multiply(xp.matmul(x, weight), 2, out=out)

    work()
    out.fill(0)
    launch = gpu.capture(work)
    assert launch is not None
    assert float(gpu.to_host(out.sum())) == 0, "nothing has run yet"
    for number in range(3):
        x.fill(number)
        launch()
        xp.full((64, 64), -1.0, dtype=xp.float32)
        assert np.all(gpu.to_host(out) == 128 * number)


def test_gpu_computes_products_in_tf32_where_that_is_allowed(gpu: CudaDevice) -> None:
    """With 11 bits of precision; what is summed has none to spare."""
    if int(gpu.xp.cuda.Device().compute_capability) < 80:
        pytest.skip("this GPU has no TF32")
    x = gpu.xp.full((512, 512), 1 + 2.0**-12, dtype=np.float32)
    try:
        gpu.allow_tf32(True)
        assert np.all(gpu.to_host(x @ gpu.xp.eye(512, dtype=np.float32)) == 1)
    finally:
        gpu.allow_tf32(False)
    assert np.all(gpu.to_host(x @ gpu.xp.eye(512, dtype=np.float32)) == np.float32(1 + 2.0**-12))


def test_gpu_says_what_cannot_be_captured_and_goes_on(gpu: CudaDevice) -> None:
    xp: Any = gpu.xp
    x = xp.ones(8, dtype=xp.float32)
    with pytest.raises(xp.cuda.runtime.CUDARuntimeError):
        gpu.capture(lambda: gpu.xp.asnumpy(x + 1))
    assert np.all(gpu.to_host(x + 1) == 2)


@pytest.mark.parametrize("example", ["digits.py", "source_lines.py"])
@pytest.mark.timeout(300)
def test_gpu_trains_a_demo(gpu: CudaDevice, example: str) -> None:
    environment = {**os.environ, "WEFT_WORKER_DEVICE": gpu.name}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / example], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
