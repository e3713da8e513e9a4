"""Resizing, grids, pixel shuffles and unpooling, written with the builder, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import nn, ops
from weft_graph.errors import ShapeError

RNG = np.random.default_rng(3)
IMAGES = RNG.standard_normal((2, 4, 3, 5)).astype(np.float32)


def image(channels: int = 4, high: int = 3, wide: int = 5) -> weft.Expression:
    return weft.input("x", ("batch", channels, high, wide))


def test_nearest_upsampling_repeats_elements() -> None:
    y = nn.Upsample(scale_factor=2)(image())
    assert y.shape == ("batch", 4, 6, 10)
    np.testing.assert_array_equal(y.eval({"x": IMAGES}), IMAGES.repeat(2, axis=2).repeat(2, axis=3))
    assert nn.Upsample(size=(6, 7))(image()).shape == ("batch", 4, 6, 7)


def test_linear_upsampling_with_aligned_corners_is_interpolation() -> None:
    y = nn.Upsample(size=(5, 5), mode="bilinear", align_corners=True)(image()).eval({"x": IMAGES})
    along = np.linspace(0, 2, 5)
    expected = np.apply_along_axis(lambda column: np.interp(along, [0, 1, 2], column), 2, IMAGES)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_an_upsampling_has_one_measure_and_a_known_mode() -> None:
    with pytest.raises(ValueError, match="a size or a scale_factor"):
        nn.Upsample()
    with pytest.raises(ValueError, match="a size or a scale_factor"):
        nn.Upsample(scale_factor=2, size=4)
    with pytest.raises(ValueError, match="'area'"):
        nn.Upsample(scale_factor=2, mode="area")
    with pytest.raises(ValueError, match="align_corners"):
        nn.Upsample(scale_factor=2, align_corners=True)
    with pytest.raises(ShapeError, match="scales and sizes"):
        ops.resize(image())


def test_pixel_shuffles_are_each_others_reverse() -> None:
    shuffled = nn.PixelShuffle(2)(image())
    assert shuffled.shape == ("batch", 1, 6, 10)
    value = shuffled.eval({"x": IMAGES})
    for row, column in np.ndindex(2, 2):
        np.testing.assert_array_equal(value[:, 0, row::2, column::2], IMAGES[:, 2 * row + column])
    np.testing.assert_array_equal(nn.PixelUnshuffle(2)(shuffled).eval({"x": IMAGES}), IMAGES)
    with pytest.raises(ValueError, match="factor"):
        nn.PixelShuffle(0)
    with pytest.raises(ShapeError, match="blocks of 3 x 3"):
        nn.PixelShuffle(3)(image())


def test_a_grid_of_the_identity_gives_the_image_back() -> None:
    theta = weft.constant(np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1)))
    grid = ops.affine_grid(theta, IMAGES.shape)
    x = weft.input("x", IMAGES.shape)
    np.testing.assert_allclose(ops.grid_sample(x, grid).eval({"x": IMAGES}), IMAGES, rtol=1e-4, atol=1e-5)


def test_unpooling_puts_largest_elements_back() -> None:
    data = RNG.permutation(2 * 4 * 4).reshape(2, 1, 4, 4).astype(np.float32)
    pooled, indices = ops.max_pool_with_indices(image(1, 4, 4), 2)
    value = ops.max_unpool(pooled, indices, 2).eval({"x": data})
    windows = data.reshape(2, 1, 2, 2, 2, 2)
    largest = windows == windows.max(axis=(3, 5), keepdims=True)
    np.testing.assert_array_equal(value, np.where(largest, windows, 0).reshape(data.shape))
