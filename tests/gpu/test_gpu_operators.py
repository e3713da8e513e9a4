"""Every operator on a GPU, forward and backward, against NumPy's bodies; and this project's kernels with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_operator_kernels import every_operator, generated_cases
from cuda_rules import user_rules
from onnx_node_cases import node_cases
from operator_cases import BACKWARD_CASES, NODE_NAMES, differentiated_nodes
from weft_graph.ir import Node
from weft_graph.rules.graph import rule_graph_from_json
from weft_graph.schema import schema_of
from weft_kernels.cuda import kernels, module, rules
from weft_kernels.cuda.module import launch_generated
from weft_kernels.kernel import KernelContext, host_inputs, kernel_of, waits
from weft_kernels.random import draws as host_draws
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.lookup import rules as built_in
from weft_kernels.run import run_node

pytestmark = pytest.mark.gpu
TOLERANCE = {"bfloat16": (3e-2, 3e-2), "float16": (2e-2, 2e-2), "float32": (2e-4, 2e-5), "float64": (1e-9, 1e-11)}


def _same(xp: Any, given: Any, expected: Any, what: str) -> None:
    assert isinstance(given, xp.ndarray), what
    host = xp.asnumpy(given)
    assert (host.dtype, host.shape) == (expected.dtype, expected.shape), what
    rtol, atol = TOLERANCE.get(expected.dtype.name, (0, 0))
    scale = float(np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=1.0))
    np.testing.assert_allclose(host, expected, rtol=rtol, atol=atol * scale, err_msg=what)


def _by_operator(names: dict[str, str]) -> dict[str, list[str]]:
    """Cases by operator: one test for each, of which most are skipped on most machines."""
    found: dict[str, list[str]] = {}
    for name, op_type in sorted(names.items()):
        found.setdefault(op_type, []).append(name)
    return found


FORWARD = _by_operator({name: node_cases()[name].op_type for name in NODE_NAMES})
BACKWARD = _by_operator({name: case.op_type for name, case in BACKWARD_CASES.items()})


@pytest.mark.parametrize("op_type", FORWARD)
def test_gpu_forward_is_numpys(xp: Any, op_type: str) -> None:
    for name in FORWARD[op_type]:
        case = node_cases()[name]
        inputs = [case.tensors[value] if value else None for value in case.node.inputs]
        expected = run_node(KernelContext(""), case.node, inputs)
        device = [None if array is None else xp.asarray(array) for array in inputs]
        outputs = run_node(KernelContext("", xp=xp), case.node, device)
        for array, wanted in zip(outputs, expected, strict=True):
            _same(xp, array, wanted, name)


@pytest.mark.parametrize("op_type", BACKWARD)
def test_gpu_backward_is_numpys(xp: Any, op_type: str) -> None:
    for name in BACKWARD[op_type]:
        for dtype in ("float16", "float32", "float64"):
            nodes, values = differentiated_nodes(BACKWARD_CASES[name], dtype)
            for node in nodes:
                inputs = [xp.asarray(values[value]) if value else None for value in node.inputs]
                outputs = run_node(KernelContext("", xp=xp), node, inputs)
                for value, array in zip(node.outputs, outputs, strict=True):
                    if value:
                        _same(xp, array, values[value], f"{name}, {dtype}, {node.op_type}: {value}")


@pytest.mark.parametrize("op_type", FORWARD)
def test_gpu_kernels_that_do_not_wait_run_in_a_cuda_graph(xp: Any, op_type: str) -> None:
    """What `waits` says is so: a graph of them, launched once its arrays are filled, gives NumPy's results."""
    stream, pool = xp.cuda.get_current_stream(), xp.cuda.MemoryPool()
    for name in FORWARD[op_type]:
        node, tensors = node_cases()[name].node, node_cases()[name].tensors
        if waits(node) or schema_of(node).random:
            continue
        host = [tensors[value] if value else None for value in node.inputs]
        expected = run_node(KernelContext(""), node, host)
        on_host, attributes = host_inputs(node), schema_of(node).attributes_of(node)
        device = [each if each is None or at in on_host else xp.asarray(each) for at, each in enumerate(host)]
        context = KernelContext(node.name, xp=xp, asked=node.outputs)
        kept = [each if each is None or at in on_host else each.copy() for at, each in enumerate(device)]
        with xp.cuda.using_allocator(pool.malloc):
            kernel_of(node)(context, device, attributes)
            stream.synchronize()
            stream.begin_capture()
            try:
                outputs = kernel_of(node)(context, device, attributes)
            finally:
                graph = stream.end_capture()
        for each in outputs:
            each.fill(0)
        for at, each in enumerate(device):
            if each is not None and at not in on_host:
                each[...] = kept[at]
        graph.launch(stream)
        for array, wanted in zip(outputs, expected, strict=False):
            _same(xp, array, wanted, name)


@pytest.mark.parametrize("most", [0, module.INDEX_32_ELEMENTS], ids=["64 bits", "32 bits"])
def test_gpu_kernels_read_and_write_arrays_where_they_lie(xp: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned, sliced and repeated inputs, and a turned place for the result."""
    monkeypatch.setattr(module, "INDEX_32_ELEMENTS", most)
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(33, 17)).astype(np.float32), draw.normal(size=(2, 17)).astype(np.float32)
    whole = xp.asarray(np.repeat(x, 2, axis=1))
    for given in (xp.asarray(x.T.copy()).T, whole[:, ::2], xp.asarray(x[::-1].copy())[::-1]):
        place = xp.empty((17, 33), dtype=np.float32).T
        node = Node("Sub", "n", ("x", "y"), ("z",))
        (made,) = kernel_of(node)(KernelContext("n", xp=xp, placed=(place,)), [given, xp.asarray(y)[1]], {})
        assert made is place
        _same(xp, made, x - y[1], "difference")


def test_gpu_runs_are_repeatable(xp: Any) -> None:
    """A gradient of rows is summed in one order: the same bits in every run."""
    draw = np.random.default_rng(1)
    given = xp.asarray(draw.normal(size=(5000, 33)).astype(np.float32))
    index = xp.asarray(draw.integers(0, 40, size=5000))
    first = xp.asnumpy(kernels.sum_rows(xp, given, index, 40))
    for _ in range(5):
        np.testing.assert_array_equal(xp.asnumpy(kernels.sum_rows(xp, given, index, 40)), first)


def test_gpu_masks_are_the_hosts_bits(xp: Any) -> None:
    mask = xp.asnumpy(kernels.kept(xp, (3, 9), 5, (100003,), 2**62))
    np.testing.assert_array_equal(mask, host_draws((3, 9), 5, 100003) >= np.uint64(2**62))


@pytest.mark.parametrize("name", [*(name for name, rule in built_in().items() if not rule.whole), *user_rules()])
def test_gpu_rules_are_numpys(xp: Any, name: str) -> None:
    rule = rule_from(user_rules().get(name, name))
    draw = np.random.default_rng(2)
    host = {each: draw.uniform(0.5, 1, size=(50, 7)).astype(np.float32) for each in ("weight", *rule.state)}
    device = {each: xp.asarray(array) for each, array in host.items()}
    gradient = draw.normal(size=(50, 7)).astype(np.float32)
    state = {each: device[each] for each in rule.state}
    options: Any = {"step": 1, "hyper": rule.hyper}
    if name in user_rules():
        fused = rules.FusedRule(rule_graph_from_json(user_rules()[name]))
        fused.apply(xp, device["weight"], xp.asarray(gradient), state, **options)
    else:
        rules.apply_built_in(xp, name, device["weight"], xp.asarray(gradient), state, **options)
    rule.apply(host["weight"], gradient.copy(), {each: host[each] for each in rule.state}, 1, rule.hyper)
    for each, array in device.items():
        _same(xp, array, host[each], each)


def test_gpu_generated_kernels_are_numpys(xp: Any) -> None:
    none = xp.zeros(1, dtype=xp.int64)
    assert every_operator().entries
    for case in generated_cases().values():
        made = xp.zeros(case.expected.shape, dtype=case.expected.dtype)
        arrays = [xp.asarray(array) for array in case.inputs]
        launch_generated(xp, case.fused.text, made.size, [*arrays, made, made.size, 1, none, 0])
        _same(xp, made, case.expected, case.name)
