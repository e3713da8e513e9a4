"""What a kernel is, and how it is found.

Each operator is one module of `weft_kernels.operators`, of the same name as its schema's, with a function `run`. One
whose body looks at the numbers of an input before it computes (axes, a shape, a ratio) says so by `HOST_INPUTS`, their
places: it is given them as NumPy's arrays on every device.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Protocol

import numpy as np

from weft_graph.ir import AttributeValue, Node

Array = np.ndarray[Any, np.dtype[Any]]
"""An array of the module that runs: NumPy's, or CuPy's, which has the same face."""


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What a kernel may know beside its inputs and attributes.

    `xp` is the array module. `seed`, `step` and `first_sample` (the place of this batch's first sample in the step's
    global batch) key random numbers together with the node's name, so that they do not depend on the number of workers.
    """

    node: str
    xp: Any = np
    seed: int = 0
    step: int = 0
    first_sample: int = 0
    samples: int | None = None
    """Samples of this batch; None where the first dimension of every array counts them."""
    iteration: str = ""
    """Which turns of the loops around it the node is in; it keys random numbers together with the node's name."""
    asked: tuple[str, ...] | None = None
    """The node's outputs, '' for one that it leaves out; None asks for all."""

    def asks(self, index: int) -> bool:
        """Whether output `index` is asked for; a kernel may skip a trailing one that is not."""
        return self.asked is None or (index < len(self.asked) and self.asked[index] != "")


class Kernel(Protocol):
    """The body of an operator.

    `inputs` has an array for each input of the node, None where it is left out. `attributes` is whole: the schema's
    defaults are filled in. Returns every output that the operator has, in ONNX's order, less trailing ones that
    `context` does not ask for. Inputs are never written. An output may be a view of an input, and read-only.
    """

    def __call__(
        self, context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]: ...


@cache
def kernels() -> Mapping[tuple[str, str], Kernel]:
    """Every operator's kernel by (domain, op_type)."""
    package = importlib.import_module("weft_kernels.operators")
    graph_side = importlib.import_module("weft_graph.operators")
    found: dict[tuple[str, str], Kernel] = {}
    for info in pkgutil.iter_modules(package.__path__):
        schema = importlib.import_module(f"{graph_side.__name__}.{info.name}").SCHEMA
        body: Kernel = importlib.import_module(f"{package.__name__}.{info.name}").run
        found[schema.domain, schema.op_type] = _finished(body, _host_inputs()[schema.domain, schema.op_type])
    return found


def host_inputs(node: Node) -> frozenset[int]:
    """Places of the node's inputs that its kernel reads on the host; none for an operator without a kernel."""
    return _host_inputs().get((node.domain, node.op_type), frozenset())


@cache
def _host_inputs() -> Mapping[tuple[str, str], frozenset[int]]:
    package = importlib.import_module("weft_kernels.operators")
    found: dict[tuple[str, str], frozenset[int]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        schema = importlib.import_module(f"weft_graph.operators.{info.name}").SCHEMA
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        found[schema.domain, schema.op_type] = frozenset(getattr(module, "HOST_INPUTS", ()))
    return found


def _finished(body: Kernel, on_host: frozenset[int]) -> Kernel:
    """The body with IEEE's silent infinities and NaNs, as ONNX has them, and arrays where NumPy returns its scalars.

    An input that the body reads on the host, and that was computed on a device, is waited for and brought.
    """

    @wraps(body)
    def run(
        context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        array_type = context.xp.ndarray
        if on_host and context.xp is not np:
            inputs = [
                context.xp.asnumpy(array) if place in on_host and isinstance(array, array_type) else array
                for place, array in enumerate(inputs)
            ]
        with np.errstate(all="ignore"):
            outputs = body(context, inputs, attributes)
        return tuple(out if isinstance(out, array_type) else context.xp.asarray(out) for out in outputs)

    return run


def kernel_of(node: Node) -> Kernel:
    """The kernel of the node's operator; the checker has made sure that there is one. Raises KeyError otherwise."""
    return kernels()[node.domain, node.op_type]
