"""What ONNX's cases and the gradients' do not show of spatial operators: shapes of a step, bounds, blocks, refusals."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from weft_graph.errors import DTypeError, ShapeError
from weft_graph.infer import infer
from weft_graph.ir import AttributeValue, Constant, Graph, Input, Node
from weft_graph.types import DType, Shape, TensorType, array_type
from weft_kernels import sampling as interpolation
from weft_kernels import windows as convolving
from weft_kernels.kernel import KernelContext
from weft_kernels.run import KernelError, run_node

RNG = np.random.default_rng(11)
F32, I64 = DType.FLOAT32, DType.INT64
Array = np.ndarray[Any, np.dtype[Any]]


def run(op_type: str, *inputs: Array | None, outputs: int = 1, **attributes: AttributeValue) -> Any:
    names = tuple("" if array is None else f"in{place}" for place, array in enumerate(inputs))
    node = Node(op_type, "node", names, tuple(f"out{place}" for place in range(outputs)), attributes)
    made = run_node(KernelContext(""), node, list(inputs))
    return made if outputs > 1 else made[0]


def inferred(op_type: str, *inputs: TensorType | Array | None, **attributes: AttributeValue) -> TensorType:
    """Output 0 where arrays are constants of the graph."""
    named = {f"in{place}": value for place, value in enumerate(inputs) if value is not None}
    names = tuple("" if value is None else f"in{place}" for place, value in enumerate(inputs))
    graph = Graph(
        name="case",
        inputs=tuple(Input(name, value) for name, value in named.items() if isinstance(value, TensorType)),
        parameters=(),
        nodes=(Node(op_type, "node", names, ("out",), attributes),),
        outputs=("out",),
        constants=tuple(Constant(name, value) for name, value in named.items() if isinstance(value, np.ndarray)),
    )
    return infer(graph)["out"]


def f32(*shape: int | str) -> TensorType:
    return TensorType(F32, shape)


def numbers(*values: float, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype=dtype)


# Resize


def test_a_resize_keeps_the_batch_symbolic() -> None:
    scales = numbers(1, 1, 2, 0.5, dtype=np.float32)
    assert inferred("Resize", f32("batch", 3, 5, 6), None, scales).shape == ("batch", 3, 10, 3)
    sizes = numbers(7, 8)
    assert inferred("Resize", f32("batch", 3, 5, 6), None, None, sizes, axes=(2, 3)).shape == ("batch", 3, 7, 8)
    doubled = inferred("Resize", f32("batch", 3, 5, 6), None, numbers(2, 1, 1, 1, dtype=np.float32))
    assert doubled.shape == ("2*batch", 3, 5, 6)


def test_what_only_a_step_decides_is_unknown_before_it() -> None:
    type_ = inferred("Resize", f32("batch", 3, 5, 6), None, f32(4))
    assert type_.rank == 4
    assert not type_.is_known
    data = RNG.standard_normal((1, 1, 2, 2)).astype(np.float32)
    assert type_.agrees_with(array_type(run("Resize", data, None, numbers(1, 1, 2, 3, dtype=np.float32))))
    boxes = inferred("NonMaxSuppression", f32(1, 9, 4), f32(1, 2, 9))
    assert boxes.shape[1] == 3
    assert not boxes.is_known


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ((None, numbers(1, 0, dtype=np.float32)), {}, "must be a number above 0"),
        ((None, numbers(1, np.nan, dtype=np.float32)), {}, "must be a number above 0"),
        ((None, numbers(1, 3e38, dtype=np.float32)), {}, "far too many"),
        ((None, numbers(1, 1, 1, dtype=np.float32)), {}, "2 numbers"),
        ((None, None, numbers(2, -1)), {}, "above 0"),
        ((None, None, numbers(2, 0)), {}, "above 0"),
        ((None, None, None), {}, "one of scales and sizes"),
        ((None, numbers(1, 1, dtype=np.float32), numbers(2, 3)), {}, "not both"),
        ((None, None, numbers(2, 3)), {"mode": "area"}, "'area' is none of"),
        ((None, None, numbers(2, 3)), {"axes": (0, -2)}, "twice"),
        ((None, None, numbers(2, 3)), {"axes": (0, 2)}, "axis 2 is outside"),
        ((None, None, numbers(2, 3)), {"coordinate_transformation_mode": "tf_crop_and_resize"}, "needs roi"),
    ],
)
def test_a_resize_that_cannot_be_is_refused(
    inputs: tuple[Any, ...], attributes: Mapping[str, AttributeValue], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        inferred("Resize", f32(2, 3), *inputs, **attributes)


def test_truth_values_have_nearest_ones_alone() -> None:
    mask = np.array([[True, False]])
    np.testing.assert_array_equal(run("Resize", mask, None, None, numbers(1, 4)), [[True, True, False, False]])
    with pytest.raises(DTypeError, match="takes numbers"):
        inferred("Resize", TensorType(DType.BOOL, (1, 2)), None, None, numbers(1, 4), mode="linear")


@pytest.mark.parametrize(("size", "expected"), [(6, [0, 1, 3, 4]), (7, [0, 1, 3, 4])])
def test_a_scale_of_float32_stands_for_the_ratio_that_was_meant(size: int, expected: list[int]) -> None:
    """2 / float32(2 / 3) is below 3, and its floor would be another element than PyTorch's."""
    lists = (None, numbers(2 / 3, dtype=np.float32))
    shrunk = run(
        "Resize", np.arange(float(size)), *lists, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    np.testing.assert_array_equal(shrunk, expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_many_elements_a_result_are_one_product(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking 400 to 5 reads hundreds of elements a result; the way of few gives the same."""
    data = RNG.standard_normal((3, 400))
    lists = (None, None, numbers(3, 5))
    by_product = run("Resize", data, *lists, mode=mode, antialias=1)
    monkeypatch.setattr(interpolation, "MATRIX_ELEMENTS", 800)
    np.testing.assert_allclose(run("Resize", data, *lists, mode=mode, antialias=1), by_product, rtol=1e-12)
    monkeypatch.setattr(interpolation, "MOST_TAPS", 10**6)
    np.testing.assert_allclose(run("Resize", data, *lists, mode=mode, antialias=1), by_product, rtol=1e-10)


def test_a_region_that_is_no_number_reads_the_extrapolated_value() -> None:
    region = numbers(np.nan, np.inf, dtype=np.float32)
    crop: dict[str, AttributeValue] = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
        "mode": "linear",
    }
    np.testing.assert_array_equal(run("Resize", np.arange(4.0), region, None, numbers(3), **crop), [7, 7, 7])


# Grids


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_places_that_are_no_numbers_or_far_away_read_no_foreign_memory(mode: str, padding: str) -> None:
    grid = np.array([[[[np.nan, 0], [np.inf, 0], [-np.inf, 0], [1e30, -1e30], [0, 0]]]])
    result = run("GridSample", np.ones((1, 1, 3, 3)), grid, mode=mode, padding_mode=padding)
    assert result.shape == (1, 1, 1, 5)
    assert result[..., -1] == pytest.approx(1)


def test_a_grid_of_another_batch_or_rank_is_refused() -> None:
    with pytest.raises(ShapeError, match="different batches"):
        inferred("GridSample", f32(2, 1, 3, 3), f32(3, 2, 2, 2))
    with pytest.raises(ShapeError, match="places"):
        inferred("GridSample", f32(2, 1, 3, 3), f32(2, 2, 2, 3))


# Boxes


def _plain_pool(data: Array, rois: Array, bins: tuple[int, int], scale: float) -> Array:
    """Bin by bin, as the operator's first code did it."""
    result = np.zeros((len(rois), data.shape[1], *bins))
    for place, (image, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (int(np.floor(corner * scale + 0.5)) for corner in corners)
        high, wide = max(y2 - y1 + 1, 1) / bins[0], max(x2 - x1 + 1, 1) / bins[1]
        for i, j in np.ndindex(bins):
            rows = slice(max(int(np.floor(i * high)) + y1, 0), max(int(np.ceil((i + 1) * high)) + y1, 0))
            columns = slice(max(int(np.floor(j * wide)) + x1, 0), max(int(np.ceil((j + 1) * wide)) + x1, 0))
            part = data[int(image), :, rows, columns]
            result[place, :, i, j] = part.max(axis=(1, 2)) if part.size else 0
    return result


def test_boxes_of_whole_elements_are_pooled_bin_by_bin() -> None:
    data = RNG.standard_normal((2, 3, 9, 8))
    corners = np.sort(RNG.uniform(-4, 20, (12, 2, 2)), axis=1).reshape(12, 4)
    rois = np.column_stack([RNG.integers(0, 2, 12), corners])
    made = run("MaxRoiPool", data, rois, pooled_shape=(3, 2), spatial_scale=0.6)
    np.testing.assert_array_equal(made, _plain_pool(data, rois, (3, 2), 0.6))


def test_boxes_that_ask_for_anything_are_refused() -> None:
    data, one = np.ones((1, 1, 4, 4)), numbers(0)
    with pytest.raises(KernelError, match="points to sample"):
        run("RoiAlign", data, np.array([[0.0, 0, 1e9, 1e9]]), one)
    with pytest.raises(KernelError, match="not finite"):
        run("RoiAlign", data, np.array([[0.0, 0, np.nan, 1]]), one)
    with pytest.raises(KernelError, match=r"outside \[0, 1\)"):
        run("RoiAlign", data, np.array([[0.0, 0, 1, 1]]), numbers(1))
    with pytest.raises(KernelError, match="none of the 1"):
        run("MaxRoiPool", data, np.array([[0.5, 0, 0, 1, 1]]), pooled_shape=(1, 1))
    assert run("RoiAlign", data, np.zeros((0, 4)), numbers(), output_height=2).shape == (0, 1, 2, 1)


def test_suppression_is_that_of_pairs_of_boxes() -> None:
    low, size = RNG.uniform(0, 10, (2, 40, 2)), RNG.uniform(0.5, 6, (2, 40, 2))
    boxes = np.concatenate([low, low + size], axis=2).astype(np.float32)
    scores = RNG.permutation(2 * 3 * 40).reshape(2, 3, 40).astype(np.float32)
    found = run(
        "NonMaxSuppression",
        boxes,
        scores,
        numbers(10),
        numbers(0.3, dtype=np.float32),
        numbers(20, dtype=np.float32),
    )
    expected = []
    for image, class_ in np.ndindex(2, 3):
        chosen: list[int] = []
        for box in np.argsort(-scores[image, class_]):
            if scores[image, class_, box] < 20 or len(chosen) == 10:
                break
            if all(_overlap(boxes[image, box], boxes[image, other]) <= 0.3 for other in chosen):
                chosen.append(int(box))
        expected += [(image, class_, box) for box in chosen]
    np.testing.assert_array_equal(found, expected)


def _overlap(a: Array, b: Array) -> float:
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


# Pools and blocks


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_over_all_places_are_numpys(p: int) -> None:
    data = RNG.standard_normal((2, 3, 4, 5))
    expected = np.linalg.norm(data.reshape(2, 3, 20), ord=p, axis=2).reshape(2, 3, 1, 1)
    np.testing.assert_allclose(run("GlobalLpPool", data, p=p), expected, rtol=1e-12)


def test_unpooling_refuses_places_outside() -> None:
    data = np.ones((1, 1, 2, 2))
    with pytest.raises(KernelError, match=r"index 16 is outside \[0, 16\)"):
        run("MaxUnpool", data, np.full((1, 1, 2, 2), 16), kernel_shape=(2, 2), strides=(2, 2))
    asked = (f32(1, 1, 2, 2), TensorType(I64, (1, 1, 2, 2)), numbers(1, 1, 3, 4))
    with pytest.raises(ShapeError, match="smaller than the windows'"):
        inferred("MaxUnpool", *asked, kernel_shape=(2, 2), strides=(2, 2))


def test_blocks_that_do_not_fit_an_image_are_refused() -> None:
    for image, block, pads, message in (
        (numbers(3, 3), numbers(2, 2), (0, 0, 0, 0), "has 4"),
        (numbers(3, 0), numbers(2, 2), (0, 0, 0, 0), "above 0"),
        (numbers(3, 3), numbers(2, 2), (9999, 9999, 9999, 9999), "elements a channel"),
    ):
        with pytest.raises(ShapeError, match=message):
            inferred("Col2Im", f32(1, 4, 5), image, block, pads=pads)


@pytest.mark.parametrize(("shape", "axis"), [((2, 8, 3, 3), "8 x 8"), ((2, 3, 4, 4), "3 channels")])
def test_blocks_that_do_not_come_out_even_are_refused(shape: Shape, axis: str) -> None:
    side = 8 if axis == "8 x 8" else 2
    op_type = "SpaceToDepth" if axis == "8 x 8" else "DepthToSpace"
    with pytest.raises(ShapeError, match="blocks of"):
        inferred(op_type, f32(*shape), blocksize=side)
    assert inferred("SpaceToDepth", f32("batch", 2, "4*h", 6), blocksize=2).shape == ("batch", 8, "2*h", 3)


# Signals


def test_transforms_that_cannot_be_are_refused() -> None:
    for inputs, attributes, message in (
        ((f32(2, 5, 3),), {}, "last dimension must be 1"),
        ((f32(2, 5, 2),), {"onesided": 1}, "takes real input"),
        ((f32(2, 5, 1),), {"onesided": 1, "inverse": 1}, "takes complex input"),
        ((f32(2, 5, 1), numbers(0).reshape(())), {}, "transform of 0 samples"),
        ((f32(2, 5, 1), None, numbers(2).reshape(())), {}, "real and imaginary part"),
        ((f32(2, 5, 1), None, numbers(7).reshape(())), {}, "axis 7 is outside"),
    ):
        with pytest.raises(ShapeError, match=message):
            inferred("DFT", *inputs, **attributes)
    with pytest.raises(ShapeError, match="do not fit a signal of 5"):
        inferred("STFT", f32(2, 5, 1), numbers(1).reshape(()), f32(6))
    with pytest.raises(ShapeError, match="do not fit a signal of 5"):
        inferred("STFT", f32(2, 5, 1), numbers(0).reshape(()), f32(3))


# Convolutions


@pytest.mark.parametrize("group", [1, 2])
def test_convolutions_in_blocks_of_images_are_those_of_all_images(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, weights = RNG.standard_normal((5, 4, 7, 6)), RNG.standard_normal((6, 4 // group, 3, 3))
    attributes: dict[str, AttributeValue] = {"pads": (1, 1, 0, 1), "strides": (2, 1), "group": group}
    whole = run("Conv", data, weights, **attributes)
    gradient = RNG.standard_normal(whole.shape)

    def gradients() -> list[Array]:
        nodes = [
            Node(op, "n", ("g", "x", "w"), ("y",), attributes, "weft") for op in ("ConvInputGrad", "ConvWeightGrad")
        ]
        return [run_node(KernelContext(""), node, [gradient, data, weights])[0] for node in nodes]

    expected = gradients()
    monkeypatch.setattr(convolving, "HOST_ELEMENTS", 1)
    np.testing.assert_allclose(run("Conv", data, weights, **attributes), whole, rtol=1e-12)
    for made, wanted in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-10, atol=1e-12)


def test_a_convolutions_memory_does_not_grow_with_the_kernel_times_the_batch() -> None:
    data, weights = np.ones((64, 16, 32, 32), np.float32), np.ones((16, 16, 3, 3), np.float32)
    tracemalloc.start()
    try:
        result = run("Conv", data, weights, pads=(1, 1, 1, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All columns at once would take nine times the input beside the result.
    assert peak < result.nbytes + 5 * data.nbytes
