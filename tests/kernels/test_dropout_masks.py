"""Dropout's mask: keyed by seed, node, step and the sample's place, and the same however a batch is cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from weft_graph.ir import Node
from weft_kernels.kernel import KernelContext
from weft_kernels.random import step_key, uniform
from weft_kernels.run import KernelError, run_node

Array = np.ndarray[Any, np.dtype[Any]]


def drop(context: KernelContext, data: Array, ratio: float = 0.3, **attributes: Any) -> tuple[Array, Array]:
    node = Node("Dropout", "drop", ("x", "ratio", "train"), ("y", "mask"), attributes)
    output, mask = run_node(context, node, [data, np.array(ratio, dtype=data.dtype), np.array(True)])
    return output, mask


def test_an_element_is_dropped_where_its_draw_is_below_the_ratio() -> None:
    data = np.ones((6, 5), dtype=np.float32)
    output, mask = drop(KernelContext("", seed=4, step=9), data)
    expected = uniform(step_key(4, "drop", 9), 0, 30).reshape(6, 5) >= np.float32(0.3)
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_allclose(output, expected / 0.7, rtol=1e-6)
    assert output.dtype == np.float32


@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 6), (0, 1, 1, 5, 6)])
@pytest.mark.parametrize("rows_of_a_sample", [1, 3])
def test_the_mask_does_not_depend_on_how_the_batch_is_cut(cuts: tuple[int, ...], rows_of_a_sample: int) -> None:
    """Also where samples are folded into rows, (batch * tokens, features)."""
    data = np.ones((6 * rows_of_a_sample, 5))
    whole = drop(KernelContext("", samples=6), data)[1]
    parts = []
    for start, stop in pairwise(cuts):
        context = KernelContext("", first_sample=start, samples=stop - start)
        parts.append(drop(context, data[start * rows_of_a_sample : stop * rows_of_a_sample])[1])
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_seed_step_and_node_change_the_mask() -> None:
    data = np.ones(64)
    masks = [
        drop(KernelContext(""), data)[1],
        drop(KernelContext("", seed=1), data)[1],
        drop(KernelContext("", step=1), data)[1],
        drop(KernelContext("", seed=1), data, seed=5)[1],
    ]
    assert len({mask.tobytes() for mask in masks}) == 4
    np.testing.assert_array_equal(drop(KernelContext("", seed=2), data, seed=5)[1], masks[3])


def test_the_mean_is_kept() -> None:
    """100,000 elements: the mean of what is left and scaled is within five standard errors of 1."""
    output, mask = drop(KernelContext(""), np.ones(100_000), ratio=0.3)
    assert abs(output.mean() - 1) < 5 * np.sqrt(0.3 / 0.7 / 100_000)
    assert abs(mask.mean() - 0.7) < 5 * np.sqrt(0.21 / 100_000)


def test_the_gradient_passes_where_the_mask_is_set() -> None:
    data = np.ones((4, 5))
    _, mask = drop(KernelContext(""), data)
    gradient = np.random.default_rng(0).standard_normal((4, 5))
    node = Node("DropoutGrad", "grad", ("g", "mask", "ratio", "train"), ("dx",), domain="weft")
    (result,) = run_node(KernelContext(""), node, [gradient, mask, np.array(0.3), np.array(True)])
    np.testing.assert_allclose(result, np.where(mask, gradient / 0.7, 0), rtol=1e-14)


def test_scalars_and_empty_batches_have_masks_too() -> None:
    assert drop(KernelContext(""), np.ones(()))[1].shape == ()
    assert drop(KernelContext("", samples=0), np.ones((0, 3)))[1].shape == (0, 3)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, float("nan")])
def test_a_ratio_outside_its_interval_is_refused_with_the_node(ratio: float) -> None:
    with pytest.raises(KernelError, match=r"node 'drop' \(Dropout\): ratio .* is outside \[0, 1\)"):
        drop(KernelContext(""), np.ones(3), ratio=ratio)
