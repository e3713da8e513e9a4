"""What a kernel is, and how it is found.

Each operator's body is a function in a module of `weft_kernels.operators`, which has the same name as the module of its
schema, marked by `@kernel(op_type)`. A body that reads the numbers of an input before it computes (axes, a shape, a
ratio) names their places in `host_inputs`: it is given them as NumPy arrays on every device.

float16 and bfloat16 have too few digits to compute with. A body whose data has one type, and that does more than round
once, has `in_float32`: on the host it is given float32 in their place, and its results are rounded to their type.
`in_float32` names those of the two that a device is given as float32 too; the others are for the body's own kernels
there, or for the device's matrix products, which sum in float32 themselves.

Two facts say what a body does on a device. One that `waits` exchanges numbers with the host as it runs: it asks whether
its inputs are in range, takes a size from them, or brings what was worked out on the host; always, or only with the
inputs that are named. Such a body can be no part of a CUDA graph, which starts the same work again and again. One that
`allocates` may make arrays although its outputs have their places; one that does not needs no memory but theirs. A
schema's `random` says that the work is another one in each step. What is pointwise runs on a device as one generated
kernel, and does neither.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np

from weft_graph.ir import AttributeValue, Node
from weft_graph.names import bodies_of
from weft_graph.schema import schemas
from weft_kernels.element_types import HALVES

Array = np.ndarray[Any, np.dtype[Any]]
"""An array of the module that runs: NumPy's, or CuPy's, which has the same face."""


@dataclass(slots=True)
class KernelContext:
    """What a kernel may know beside its inputs and attributes. It holds for one call: the worker gives the same one,
    with the numbers of another step, to the next.

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
    checkpoint: Callable[[], None] | None = None
    """Called between the turns of a loop, however many there are; raises where the run has been given up."""
    placed: tuple[Array | None, ...] = ()
    """Where a plan wants the outputs to lie; see `out`."""

    def within(self, node: str, asked: tuple[str, ...], iteration: str) -> KernelContext:
        """What a node of the same step sees, called `node` as its random numbers are keyed."""
        return KernelContext(
            node,
            self.xp,
            self.seed,
            self.step,
            self.first_sample,
            self.samples,
            iteration,
            asked,
            self.checkpoint,
        )

    def out(self, index: int, dtype: Any = None) -> Array | None:
        """The array that output `index` is to be written to, as a function's `out=` takes it; None has it made anew.

        It may be the memory of an input that the schema's `in_place` allows: from the first write on, that input must
        not be read at other places than are being written. A body that writes it more than once names its `dtype`,
        and gets none of another type. One that does not ask has its output copied there.
        """
        array = self.placed[index] if index < len(self.placed) else None
        return None if array is None or (dtype is not None and array.dtype != dtype) else array

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


Inputs: TypeAlias = Sequence[Array | None]
Attributes: TypeAlias = Mapping[str, AttributeValue]
Outputs: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class _Operator:
    """A body as it is run, the body itself, the places of the inputs that it looks at, and what it does on a device."""

    kernel: Kernel
    body: Kernel
    on_host: frozenset[int]
    waits: bool | tuple[int, ...]
    allocates: bool


_OPERATORS: Final[dict[tuple[str, str], _Operator]] = {}

B = TypeVar("B", bound=Kernel)
F = TypeVar("F", bound=Callable[..., Any])


def kernel(
    op_type: str,
    *,
    domain: str = "",
    host_inputs: Iterable[int] = (),
    in_float32: Iterable[str] | None = None,
    waits: bool | tuple[int, ...] = False,
    allocates: bool = True,
) -> Callable[[B], B]:
    """Makes a function the body of an operator; see the module's page for what it may say of it."""

    def register(body: B) -> B:
        on_host = frozenset(host_inputs)
        whole: Kernel = body if in_float32 is None else _in_float32(body, frozenset(in_float32), on_host)
        if (domain, op_type) in _OPERATORS:
            raise ValueError(f"operator {op_type!r} of domain {domain!r} has two bodies")
        _OPERATORS[domain, op_type] = _Operator(_finished(whole, on_host), whole, on_host, waits, allocates)
        return body

    return register


def elementwise(op_type: str, *, domain: str = "") -> Callable[[F], F]:
    """Makes a function `(xp, *inputs, **attributes)` the body of an operator with one output; it is given the
    attributes that it has keywords for, and float32 in the place of the halves."""

    def register(made: F) -> F:
        keywords = inspect.signature(made).parameters.values()
        names = [each.name for each in keywords if each.kind is each.KEYWORD_ONLY]

        @wraps(made)
        def body(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
            return (made(context.xp, *inputs, **{name: attributes[name] for name in names}),)

        kernel(op_type, domain=domain, in_float32=HALVES)(body)
        return made

    return register


def function(op_type: str, name: str) -> Kernel:
    """Makes the array module's function `name` the body of an operator that it computes element by element."""

    def body(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
        return (getattr(context.xp, name)(*inputs, out=context.out(0)),)

    return kernel(op_type, allocates=False)(body)


@cache
def _operators() -> Mapping[tuple[str, str], _Operator]:
    package = importlib.import_module("weft_kernels.operators")
    for info in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{info.name}")
    # The generator needs the operators, whose bodies it runs.
    run_alone = importlib.import_module("weft_kernels.cuda.fused").run_alone
    for name, operator in _OPERATORS.items():
        if name in schemas() and schemas()[name].pointwise and not operator.on_host:
            generated = partial(run_alone, *name)
            finished = _finished(operator.body, operator.on_host, generated)
            _OPERATORS[name] = replace(operator, kernel=finished, waits=False, allocates=False)
    return _OPERATORS


@cache
def kernels() -> Mapping[tuple[str, str], Kernel]:
    """Every operator's kernel by (domain, op_type)."""
    return {name: operator.kernel for name, operator in _operators().items()}


def body_of(node: Node) -> Kernel:
    """The same as `kernel_of`, for who has set NumPy to ignore what IEEE 754 calls exceptions, and takes NumPy's
    scalars in the place of arrays without dimensions."""
    return _operators()[node.domain, node.op_type].body


def host_inputs(node: Node) -> frozenset[int]:
    """Places of the node's inputs that its kernel reads on the host; none for an operator without a kernel."""
    operator = _operators().get((node.domain, node.op_type))
    return operator.on_host if operator else frozenset()


def waits(node: Node) -> bool:
    """Whether the node's kernel exchanges numbers with the host as it runs on a device, beside its `host_inputs`."""
    own = _operators()[node.domain, node.op_type].waits
    if isinstance(own, tuple):
        own = any(place in own and name for place, name in enumerate(node.inputs))
    return bool(own) or any(waits(inner) for body in bodies_of(node).values() for inner in body.nodes)


def allocates(node: Node) -> bool:
    """Whether the node's kernel makes arrays on a device although its outputs are placed."""
    return _operators()[node.domain, node.op_type].allocates


def _finished(
    body: Kernel, on_host: frozenset[int], generated: Callable[..., tuple[Array, ...] | None] | None = None
) -> Kernel:
    """The body with IEEE's silent infinities and NaNs, as ONNX has them, and arrays where NumPy returns its scalars.

    An input that the body reads on the host, and that was computed on a device, is waited for and brought. On a device
    that runs CUDA C, `generated` goes before the body, which is for what it gives None for.
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
        if generated is not None and context.xp is not np:
            made = generated(context, inputs, attributes)
            if made is not None:
                return made
        with np.errstate(all="ignore"):
            outputs = body(context, inputs, attributes)
        return tuple(out if isinstance(out, array_type) else context.xp.asarray(out) for out in outputs)

    return run


def _in_float32(body: Kernel, on_device: frozenset[str], on_host: frozenset[int]) -> Kernel:
    """The body with float32 in the place of the halves: of both on the host, of those named on a device.

    Inputs that the body reads on the host are numbers, and stay as they are.
    """

    @wraps(body)
    def run(
        context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        names = HALVES if context.xp is np else on_device
        wide = list(inputs)
        narrow = None
        for place, array in enumerate(inputs):
            if array is not None and array.dtype.itemsize == 2 and array.dtype.name in names and place not in on_host:
                narrow, wide[place] = array.dtype, array.astype(np.float32)
        if narrow is None:
            return body(context, inputs, attributes)
        # What it makes is of another type than the places that the outputs are to have.
        outputs = body(replace(context, placed=()), wide, attributes)
        return tuple(out.astype(narrow) if out.dtype == np.float32 else out for out in outputs)

    return run


def kernel_of(node: Node) -> Kernel:
    """The kernel of the node's operator; the checker has made sure that there is one. Raises KeyError otherwise."""
    return kernels()[node.domain, node.op_type]
