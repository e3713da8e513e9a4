"""Runs a program's nodes one after the other on NumPy's arrays, with a store that is two dicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft_graph.program import LOSS_SCALE, Program, Programs
from weft_graph.types import BATCH
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_BARRIER, SEND_ROWS
from weft_kernels.initializers import first_values
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import run_node


def first_parameters(programs: Programs, seed: int = 0) -> dict[str, Array]:
    """The first value of each key, whole."""
    return {
        key.key: first_values(
            key.initializer, seed=seed, key=key.key, start=0, stop=key.type.size, dtype=key.type.dtype.numpy
        ).reshape(key.type.static_shape)
        for key in programs.keys
    }


def run_program(
    program: Program, feeds: Mapping[str, Array], parameters: Mapping[str, Array], samples: int
) -> dict[str, Array]:
    """The program's outputs by name, and what it sends as `send/KEY`; rows as `send/KEY` and `ids/KEY`."""
    values = {**feeds, **{constant.name: constant.array for constant in program.constants}}
    scales = [declared for declared in program.inputs if declared.name == LOSS_SCALE]
    values.update((declared.name, np.ones((), declared.type.dtype.numpy)) for declared in scales)
    context = KernelContext("", samples=samples)
    found: dict[str, Array] = {}
    for node in program.nodes:
        key = str(node.attributes.get("key", ""))
        if node.op_type == FETCH:
            values[node.outputs[0]] = parameters[key]
        elif node.op_type == FETCH_ROWS:
            ids = values[node.inputs[0]]
            rows = np.where((ids >= 0)[:, None], parameters[key][ids], 0)
            values[node.outputs[0]] = rows.astype(parameters[key].dtype)
        elif node.op_type == SEND:
            found[f"send/{key}"] = values[node.inputs[0]]
        elif node.op_type == SEND_ROWS:
            found[f"ids/{key}"], found[f"send/{key}"] = (values[name] for name in node.inputs)
        elif node.op_type != SEND_BARRIER:
            made = run_node(context, node, [values[name] if name else None for name in node.inputs])
            values.update((name, array) for name, array in zip(node.outputs, made, strict=True) if name)
    assert BATCH not in values
    return {**found, **{name: values[value] for name, value in program.outputs.items()}}
