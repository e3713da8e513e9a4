"""This project's CUDA kernels, run on the CPU thread by thread, against NumPy's bodies over odd sizes.

Convolution, pooling and cross-entropy are run by `test_operators_on_strict_arrays`, over JAX's and ONNX's cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cuda_on_host
import strict_arrays
from strict_arrays import StrictArray, own_kernels, to_device, to_host
from weft_graph.ir import Node, Subgraph
from weft_graph.schema import MemoryOrder, schema_of
from weft_graph.shapes.windows import Windows
from weft_kernels import windows as portable
from weft_kernels.cuda import kernels, module, rules
from weft_kernels.cuda.fused import run_generated
from weft_kernels.cuda.module import read_source, sources
from weft_kernels.kernel import KernelContext, kernel_of
from weft_kernels.random import draws as host_draws
from weft_kernels.rules.lookup import rules as built_in

pytest.importorskip("cupy", reason="the stand-in has CuPy's names; weft[cuda-compile] installs it")
pytestmark = pytest.mark.skipif(
    cuda_on_host.why_not() is not None, reason=f"kernels cannot be run on this CPU: {cuda_on_host.why_not()}"
)
FLOATS = ("float16", "float32", "float64")
TOLERANCE = {"float16": (4e-3, 4e-3), "float32": (2e-6, 2e-6), "float64": (1e-13, 1e-14)}


@pytest.fixture(params=[32, 64])
def xp(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with kernels that count elements in 32 bits, and with those that do in 64."""
    if request.param == 64:
        monkeypatch.setattr(module, "INDEX_32_ELEMENTS", 0)
    with own_kernels() as arrays:
        yield arrays


@pytest.mark.parametrize("most", [module.INDEX_32_ELEMENTS - 1, module.INDEX_32_ELEMENTS])
def test_a_launch_counts_in_32_bits_where_all_of_it_is_small_enough(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array, a number, how far a stride reaches: the largest decides. Nothing of that size is made."""
    started: list[tuple[Any, ...]] = []
    monkeypatch.setitem(
        module.LAUNCHERS, "numpy", lambda source, *_, **__: started.append((source.index, _[-1][-1].nbytes))
    )
    large, small = np.broadcast_to(np.float16(0), (most,)), np.zeros(4, np.float16)
    text = "__global__ void f(const __half* x, index_t n) { GRID_LOOP(e, n) {} }"
    module.launch(np, "rows.cu", "gather_rows", 4, large, 4, types=("float16",))
    module.launch(np, "rows.cu", "gather_rows", 4, small, most, types=("float16",))
    module.launch(np, "windows.cu", "im2col", 4, small, 4, types=("float16",), reach=most)
    module.launch_generated(np, text, 4, (large, 4))
    module.launch_generated(np, text, 4, (small, 4, -most))
    module.launch_generated(np, text, 4, (small, 4), strided=True, reach=most)
    assert started == [(32, 4) if most < module.INDEX_32_ELEMENTS else (64, 8)] * 6
    # A thread's last step goes beyond the last element by the whole grid: that number too fits.
    assert module.INDEX_32_ELEMENTS - 1 + module.THREADS * module.MOST_BLOCKS < 2**31


def test_a_fused_kernel_whose_input_reaches_far_counts_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few elements, which lie far from each other."""
    far = np.lib.stride_tricks.as_strided(np.zeros(1, np.float16), (3,), (module.INDEX_32_ELEMENTS,))
    found = []
    monkeypatch.setitem(module.LAUNCHERS, "numpy", lambda source, *_, **__: found.append(source.index))
    body = Subgraph(("x",), (), (Node("Neg", "n", ("x",), ("y",)),), ("y",))
    run_generated(KernelContext(""), body, [far])
    run_generated(KernelContext(""), body, [far[:2]])
    assert found == [64, 32]


@pytest.mark.parametrize("start", [0, 1, 5, 2**40 + 3])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 1021])
def test_masks_are_the_hosts_bits(xp: Any, start: int, count: int) -> None:
    key, threshold = (0x0123456789ABCDEF, 0xFEDCBA9876543210), 2**63 + 12345
    mask = to_host(kernels.kept(xp, key, start, (count,), threshold))
    np.testing.assert_array_equal(mask, host_draws(key, start, count) >= np.uint64(threshold))
    assert count < 100 or 0 < mask.mean() < 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [name for name, rule in built_in().items() if not rule.whole])
def test_a_built_in_rule_is_numpys_to_the_bit(xp: Any, name: str, dtype: str) -> None:
    """Three updates of all elements, and of some rows of a table, from the state that the rule starts at; the other
    rows keep their bits. Gradients are 0 and have squares that float16 has no number for, among others."""
    rule = built_in()[name]
    assert rules.has_rule(name), f"{name} has no kernel"
    hyper = {**rule.hyper, **({"weight_decay": 0.01} if "weight_decay" in rule.hyper else {})}
    draw = np.random.default_rng(5)
    first = {each: np.full((9, 7), start, dtype) for each, start in rule.state.items()}
    first["weight"] = draw.normal(size=(9, 7)).astype(dtype)
    for ids in (None, np.array([8, 2, -1, 0, 5])):
        host = {each: array.copy() for each, array in first.items()}
        device = {each: to_device(array) for each, array in first.items()}
        for step in (1, 2, 3):
            gradient = draw.normal(size=(9, 7) if ids is None else (5, 7)).astype(dtype)
            gradient[:, :4] = [0, 1e-4 if step == 1 else 0, 2e-6, 3e4]
            state = {each: device[each] for each in rule.state}
            given = None if ids is None else to_device(ids)
            rules.apply_built_in(
                xp, name, device["weight"], to_device(gradient), state, step=step, hyper=hyper, ids=given
            )
            for row, part in enumerate(range(9) if ids is None else ids):
                if part >= 0:
                    own = {each: host[each][part] for each in rule.state}
                    rule.apply(host["weight"][part], gradient[row].copy(), own, step, hyper)
        for each, array in device.items():
            np.testing.assert_array_equal(to_host(array), host[each], err_msg=each)
            assert np.isfinite(to_host(array)).all()
            if ids is not None:
                np.testing.assert_array_equal(to_host(array)[[1, 3, 4, 6, 7]], first[each][[1, 3, 4, 6, 7]])
        assert not np.array_equal(to_host(device["weight"]), first["weight"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [(), (1,), (5,), (2, 3)])
def test_rows_are_gathered(xp: Any, dtype: str, width: tuple[int, ...]) -> None:
    table = np.random.default_rng(1).normal(size=(11, *width)).astype(dtype)
    ids = np.array([10, -1, 0, 3, 3])
    taken = to_host(kernels.gather_rows(xp, to_device(table), to_device(ids)))
    expected = table[ids]
    expected[1] = 0
    np.testing.assert_array_equal(taken, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("first", "second"), [([1, 4, 9], [0, 4, 8, 9]), ([], [2]), ([3], []), ([], []), ([5], [5])])
def test_two_slots_rows_are_merged_in_order(xp: Any, dtype: str, first: list[int], second: list[int]) -> None:
    draw = np.random.default_rng(2)
    left, right = (draw.normal(size=(len(ids), 3)).astype(dtype) for ids in (first, second))
    both = np.zeros((10, 3), dtype)
    both[first] += left
    both[second] += right
    given = [to_device(np.array(ids, np.int64)) for ids in (first, second)]
    ids, merged = kernels.merge_rows(xp, given[0], to_device(left), given[1], to_device(right))
    assert to_host(ids).tolist() == sorted({*first, *second})
    np.testing.assert_array_equal(to_host(merged), both[to_host(ids)])


def test_rows_of_one_id_are_summed_in_order(xp: Any) -> None:
    """Numbers whose sum depends on its order: it is that of the gradient, however often it is run."""
    given = np.array([[1e8], [1.0], [-1e8], [3.0]], np.float32)
    index = np.array([1, 1, 1, -1])
    expected = np.float32(np.float32(np.float32(1e8) + np.float32(1)) + np.float32(-1e8))
    for _ in range(3):
        summed = to_host(kernels.sum_rows(xp, to_device(given), to_device(index), 3))
        assert summed[:, 0].tolist() == [0, expected, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_windows_are_numpys_to_the_bit(xp: Any, dtype: str) -> None:
    """One, two and three dimensions with strides, dilation and unequal pads; groups; more dimensions are not taken."""
    draw = np.random.default_rng(3)
    for given in (
        Windows((7,), (3,), (2,), (2,), (1,), (2,), (3,)),
        Windows((5, 6), (2, 3), (1, 2), (2, 1), (1, 0), (0, 2), (4, 3)),
        Windows((3, 4, 5), (2, 2, 3), (1, 2, 1), (1, 1, 2), (0, 1, 2), (1, 0, 0), (3, 2, 3)),
    ):
        data = draw.normal(size=(2, 4, *given.size)).astype(dtype)
        made = kernels.columns(xp, to_device(data), given, 2)
        np.testing.assert_array_equal(to_host(made), portable.columns(np, data, given, 2))
        lowered = draw.normal(size=(4, *given.kernel, 2, *given.count)).astype(dtype)
        spread = to_host(kernels.scattered(xp, to_device(lowered), given))
        wide = portable.scattered(np, lowered.astype(np.float64), given)
        np.testing.assert_allclose(spread, wide, *TOLERANCE[dtype])
    four = Windows((2,) * 4, (1,) * 4, (1,) * 4, (1,) * 4, (0,) * 4, (0,) * 4, (2,) * 4)
    assert not kernels.windows_fit(xp, to_device(np.zeros((1, 1, 2, 2, 2, 2))), four)


KERNEL = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
LAYERS = {
    "conv": (Node("Conv", "n", ("x", "w"), ("y",), KERNEL), ["x", "w"]),
    "groups": (Node("Conv", "n", ("x", "w2"), ("y",), {**KERNEL, "group": 2}), ["x", "w2"]),
    "input": (Node("ConvInputGrad", "n", ("g", "x", "w"), ("y",), KERNEL, "weft"), ["g", "x", "w"]),
    "weights": (Node("ConvWeightGrad", "n", ("g", "x", "w"), ("y",), KERNEL, "weft"), ["g", "x", "w"]),
    "groups' weights": (
        Node("ConvWeightGrad", "n", ("g", "x", "w2"), ("y",), {**KERNEL, "group": 2}, "weft"),
        ["g", "x", "w2"],
    ),
    "points": (Node("Conv", "n", ("x", "w1"), ("y",)), ["x", "w1"]),
    "points' weights": (Node("ConvWeightGrad", "n", ("g", "x", "w1"), ("y",), {}, "weft"), ["g", "x", "w1"]),
    "pool": (Node("MaxPool", "n", ("x",), ("y",), {"kernel_shape": (2, 2), "strides": (2, 2)}), ["x"]),
    "pool's": (
        Node("MaxPoolGrad", "n", ("half", "x", "pooled"), ("y",), {"kernel_shape": (2, 2), "strides": (2, 2)}, "weft"),
        ["half", "x", "pooled"],
    ),
}
"""Layers over images of 4 channels, 6 x 6, with 4 features; what they read, by name."""
COLUMNS = 4 * (4 * 9) * (3 * 36)
SCRATCH = {"points": [], "points' weights": [], "pool": [], "pool's": [4 * 3 * 4 * 9]}
"""Bytes that they need beside their inputs and outputs: columns, or which place of each window was the largest."""


def _layer_inputs() -> dict[str, Any]:
    draw = np.random.default_rng(7)
    shapes = {"x": (3, 4, 6, 6), "g": (3, 4, 6, 6), "w": (4, 4, 3, 3), "w2": (4, 2, 3, 3), "w1": (4, 4, 1, 1)}
    arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["pooled"] = arrays["x"].reshape(3, 4, 3, 2, 3, 2).max(axis=(3, 5))
    return {**arrays, "half": draw.normal(size=(3, 4, 3, 3)).astype(np.float32)}


def _lying(array: Any, *, channels_lead: bool) -> Any:
    return array.swapaxes(0, 1).copy().swapaxes(0, 1) if channels_lead else np.ascontiguousarray(array)


@pytest.mark.parametrize("leads", [False, True], ids=["rows", "channels lead"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_reads_and_writes_images_where_they_lie(name: str, leads: bool, xp: Any) -> None:
    """No activation is copied for its order, and what is made lies where the plan has it; the bits are the same."""
    node, reads = LAYERS[name]
    arrays, attributes = _layer_inputs(), schema_of(node).attributes_of(node)
    host = [arrays[each] for each in reads]
    (expected,) = kernel_of(node)(KernelContext("n", asked=node.outputs), host, attributes)
    # Gradients come as convolutions make them; what a layer reads may come in rows, from a pooling.
    turned = [leads or (each == "g" and "pool" not in name) for each in reads]
    lie = zip(host, turned, reads, strict=True)
    inputs = [StrictArray(_lying(array, channels_lead=turn and each[0] != "w")) for array, turn, each in lie]
    if name.startswith("points") and not leads:
        inputs[reads.index("x")] = StrictArray(_lying(arrays["x"], channels_lead=True))
    channels_lead = schema_of(node).order is MemoryOrder.CHANNELS or (leads and name == "pool's")
    place = StrictArray(_lying(np.zeros_like(expected), channels_lead=channels_lead))
    strict_arrays.allocated.clear()
    context = KernelContext("n", xp=xp, asked=node.outputs, placed=(place,))
    (made,) = kernel_of(node)(context, inputs, attributes)
    assert strict_arrays.allocated == SCRATCH.get(name, [COLUMNS])
    assert np.shares_memory(to_host(made), to_host(place))
    assert made.strides == place.strides
    np.testing.assert_allclose(to_host(made), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("leads", [False, True], ids=["rows", "channels lead"])
def test_a_batch_is_normalized_in_two_passes_where_it_lies(leads: bool, xp: Any) -> None:
    """One for its statistics, of more elements than a block has threads, and one that writes; no copy is made."""
    draw = np.random.default_rng(4)
    x, g = (draw.normal(2, 3, size=(7, 3, 10, 9)).astype(np.float32) for _ in range(2))
    scale, bias, mean, variance = (draw.uniform(0.5, 2, size=3).astype(np.float32) for _ in range(4))
    forward = Node("BatchNormalization", "n", ("x", "s", "b", "m", "v"), ("y", "m2", "v2"), {"training_mode": 1})
    names = ("g", "x", "s", "m", "v")
    backward = Node("BatchNormalizationGrad", "n", names, ("dx", "ds", "db"), {"training_mode": 1}, "weft")
    for node, images, rest, kernel in (
        (forward, [x], [scale, bias, mean, variance], "row_statistics"),
        (backward, [g, x], [scale, mean, variance], "row_shares"),
    ):
        attributes = schema_of(node).attributes_of(node)
        expected = kernel_of(node)(KernelContext("n", asked=node.outputs), [*images, *rest], attributes)
        place = StrictArray(_lying(np.zeros_like(x), channels_lead=leads))
        inputs = [StrictArray(_lying(each, channels_lead=leads)) for each in images] + list(map(to_device, rest))
        strict_arrays.allocated.clear()
        strict_arrays.launched.clear()
        context = KernelContext("n", xp=xp, asked=node.outputs, placed=(place, None, None))
        made = kernel_of(node)(context, inputs, attributes)
        assert made[0] is place
        assert [entry.split("<")[0] for entry in strict_arrays.launched][:3] in (
            [kernel, "pointwise", "pointwise"],
            ["row_statistics", kernel, "pointwise"],
        )
        assert max(strict_arrays.allocated) == scale.nbytes
        for one, wanted in zip(made, expected, strict=True):
            np.testing.assert_allclose(to_host(one), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("rows", "elements"), [(150, 3), (3, 300)])
def test_a_layers_gradients_are_summed_over_many_rows(xp: Any, rows: int, elements: int) -> None:
    """More rows than the parts that a column is cut into; more elements than a block has threads."""
    draw = np.random.default_rng(6)
    x, g = (draw.normal(1, 2, size=(rows, elements)).astype(np.float32) for _ in range(2))
    scale, bias = (draw.uniform(0.5, 2, size=elements).astype(np.float32) for _ in range(2))
    forward = Node("LayerNormalization", "n", ("x", "s", "b"), ("y", "mean", "inverse"))
    backward = Node("LayerNormalizationGrad", "n", ("g", "x", "s", "mean", "inverse"), ("dx", "ds"), {}, "weft")
    host: list[Any] = [x, scale, bias]
    for node in (forward, backward):
        attributes = schema_of(node).attributes_of(node)
        expected = kernel_of(node)(KernelContext("n", asked=node.outputs), host, attributes)
        context = KernelContext("n", xp=xp, asked=node.outputs)
        made = kernel_of(node)(context, list(map(to_device, host)), attributes)
        for one, wanted in zip(made, expected, strict=True):
            np.testing.assert_allclose(to_host(one), wanted, rtol=1e-4, atol=1e-4)
        host = [g, x, scale, *expected[1:]]


def test_every_kernel_is_launched_by_these_tests(xp: Any) -> None:
    """Which kernels are proven on the CPU is known by name; a new one is added here with its test."""
    proven = {
        *("im2col", "col2im", "max_pool", "max_pool_choice", "max_pool_spread"),
        *("row_statistics", "row_shares", "column_shares"),
        *("label_weights", "cross_entropy", "cross_entropy_grad"),
        *("gather_rows", "sum_rows", "merge_rows", "kept"),
        *(name for name, rule in built_in().items() if not rule.whole),
    }
    assert {entry.split("<")[0] for source in sources().values() for entry in source.entries} == proven


def test_the_launcher_holds_arguments_against_parameters() -> None:
    """What a GPU would take for a pointer without a word: each of these is caught here."""
    source = read_source(
        "probe.cu",
        "__global__ void probe(const float* x, int* y, index_t n, double d) { GRID_LOOP(e, n) y[e] = int(x[e] + d); }",
    )
    module = cuda_on_host.host_module(source)
    x, y, n, d = np.arange(5, dtype=np.float32), np.zeros(5, np.int32), np.int64(5), np.float64(2)
    module.launch("probe", (1,), (2,), [x, y, n, d])
    assert y.tolist() == [2, 3, 4, 5, 6]
    read_only = y.copy()
    read_only.flags.writeable = False
    for args in (
        [x, y, n],
        [x.astype(np.float64), y, n, d],
        [x, y.astype(np.int64), n, d],
        [x, y, np.int32(5), d],
        [x, y, d, n],
        [x[::2], y, n, d],
        [x, read_only, n, d],
        [x, n, y, d],
    ):
        with pytest.raises(AssertionError):
            module.launch("probe", (1,), (2,), args)


def test_a_missing_barrier_shows() -> None:
    """Threads in both orders: a kernel that reads what another thread has not written yet gives two results."""
    body = """__global__ void turn(int* x) {{
        SHARED_MEMORY(int, kept);
        kept[threadIdx.x] = x[threadIdx.x];
        {barrier}
        x[threadIdx.x] = kept[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
    }}"""
    results = {}
    for barrier in ("__syncthreads();", ""):
        module = cuda_on_host.host_module(read_source("turn.cu", body.format(barrier=barrier)))
        for descending in (False, True):
            x = np.arange(4, dtype=np.int32)
            module.launch("turn", (1,), (4,), [x], shared_bytes=16, descending=descending)
            results[barrier, descending] = x.tolist()
    assert results["__syncthreads();", False] == results["__syncthreads();", True] == [1, 2, 3, 0]
    assert results["", False] != results["", True]
    halted = "__global__ void halt(int* x) { if (threadIdx.x) __syncthreads(); x[0] = 1; }"
    with pytest.raises(AssertionError, match="ended while others waited"):
        cuda_on_host.host_module(read_source("halt.cu", halted)).launch("halt", (1,), (2,), [np.zeros(1, np.int32)])
