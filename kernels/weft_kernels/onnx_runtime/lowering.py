"""Which nodes onnxruntime computes on a CPU, and gradient operators in ONNX's words.

An operator is listed where onnxruntime is as fast as the NumPy body, or where the body would cut a run of nodes in two.
Numbers that must be in a range, as a label that is to be a class, are checked before the session: see `check_of`. What
is of another element type than float32, or of a size that only a step decides, stays with its body.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Node, Subgraph
from weft_graph.schema import schema_of
from weft_graph.shapes.windows import Windows, windows_of
from weft_graph.types import DType, TensorType
from weft_graph.weft_domain import FUSED, STOP_GRADIENT
from weft_kernels.errors import OutOfRangeError
from weft_kernels.kernel import Array, KernelContext

Types = Mapping[str, TensorType]

_DTYPES: Final = frozenset({DType.FLOAT32, DType.INT64, DType.BOOL})

MOVES: Final = frozenset({"Flatten", "Identity", "Reshape", "ReshapeLike", "Squeeze", "StopGradient", "Unsqueeze"})
"""What a body does by a view, for nothing: no session is made for these alone."""

DIRECT: Final = frozenset(
    {
        *("Abs", "Add", "And", "AveragePool", "Cast", "Concat", "ConvTranspose", "Div", "Equal", "Erf", "Exp"),
        *("Gelu", "Gemm", "GlobalAveragePool", "Greater", "GreaterOrEqual", "HardSigmoid"),
        *("Identity", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul"),
        *("MaxPool", "Mul", "Neg", "Not", "Or", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceSum", "Relu"),
        *("Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Sum", "Tanh", "Transpose", "Where"),
    }
)
"""Operators of ONNX that a session runs as they are."""


@dataclass
class Lowered:
    """Nodes in ONNX's words, with what they need beside the values of the program. Names are the program's, or begin
    with those of the node that they are made of."""

    types: Types
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    threads: int = 0
    """That the session computes with."""

    def emit(
        self, node: Node, op_type: str, inputs: Sequence[str], output: str = "", **attributes: AttributeValue
    ) -> str:
        """Adds a node on behalf of `node`; returns its output, which is `output` or new."""
        (made,) = self.emit_all(node, op_type, inputs, (output,), **attributes)
        return made

    def emit_all(
        self, node: Node, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: AttributeValue
    ) -> tuple[str, ...]:
        """Adds a node on behalf of `node`; returns its outputs, of which those without a name get a new one."""
        number = len(self.nodes)
        made = tuple(name or f"{node.name}/{number}:{op_type} {place}" for place, name in enumerate(outputs))
        self.nodes.append(Node(op_type, f"{node.name}/{number}", tuple(inputs), made, attributes))
        return made

    def constant(self, node: Node, array: np.ndarray) -> str:
        """Adds a constant; returns its name."""
        name = f"{node.name}/constant {len(self.constants)}"
        self.constants.append(Constant(name, array))
        return name

    def float(self, node: Node, value: float) -> str:
        """Adds a constant of one float32; returns its name."""
        return self.constant(node, np.asarray(value, np.float32))

    def numbers(self, node: Node, *values: int) -> str:
        """Adds a constant of whole numbers (n,); returns its name."""
        return self.constant(node, np.asarray(values, np.int64))

    def reshape(self, node: Node, value: str, *shape: int) -> str:
        """Adds a Reshape; returns its output."""
        return self.emit(node, "Reshape", (value, self.numbers(node, *shape)))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].static_shape


def lowered(node: Node, into: Lowered) -> bool:
    """Adds the node in ONNX's words; whether it has any. Adds nothing where it has none."""
    before = len(into.nodes), len(into.constants)
    if _is_fit(node, into.types) and _written(node, into):
        return True
    del into.nodes[before[0] :], into.constants[before[1] :]
    return False


def _is_fit(node: Node, types: Types) -> bool:
    """Whether everything that the node reads and makes is of a type that a session takes, and of a known size."""
    named = [types.get(name) for name in (*node.inputs, *node.outputs) if name]
    return all(type_ is not None and type_.is_static and type_.dtype in _DTYPES and type_.size for type_ in named)


def _written(node: Node, into: Lowered) -> bool:
    lower = LOWER.get(node.op_type)
    if lower is not None:
        return lower(node, into)
    return node.domain == ONNX_DOMAIN and node.op_type in DIRECT and _direct(node, into)


def _direct(node: Node, into: Lowered) -> bool:
    made = [into.types[name] for name in node.outputs if name]
    if node.op_type in _WINDOWED and (into.types[node.inputs[0]].rank != 4 or len(made) > 1):
        return False
    if node.attributes.get("ceil_mode"):
        return False  # its last window changed in an opset that not every onnxruntime has
    if node.op_type == "Where" and made[0].size > _FEW_ELEMENTS:
        return False
    # Whole numbers are moved, and otherwise looked at by the bodies, which say what is out of range.
    moves = node.op_type in MOVES or node.op_type in {"Concat", "Transpose"}
    if any(type_.dtype == DType.INT64 for type_ in made) and not moves:
        return False
    into.nodes.append(node)
    return True


_WINDOWED: Final = frozenset({"AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "MaxPool"})


def _identity(node: Node, into: Lowered) -> bool:
    into.emit(node, "Identity", node.inputs, node.outputs[0])
    return True


def _fused(node: Node, into: Lowered) -> bool:
    """A body's nodes, one by one."""
    body = node.attributes["body"]
    assert isinstance(body, Subgraph), "the schema says so"
    names = dict(zip(body.inputs, node.inputs, strict=True)) | dict(zip(body.outputs, node.outputs, strict=True))
    into.constants += [
        Constant(names.setdefault(constant.name, f"{node.name}/{constant.name}"), constant.array)
        for constant in body.constants
    ]
    types = dict(into.types)
    shape = into.types[node.outputs[0]]
    inner = Lowered(types, into.nodes, into.constants, into.threads)
    for each in body.nodes:
        renamed = Node(
            each.op_type,
            f"{node.name}/{each.name}",
            tuple(names.get(name, f"{node.name}/{name}") if name else "" for name in each.inputs),
            tuple(names.get(name, f"{node.name}/{name}") if name else "" for name in each.outputs),
            each.attributes,
            each.domain,
        )
        made = [name for name in renamed.outputs if name not in types]
        if made:
            # A body's values have the shape of its outputs; the type of one that is not known here is a guess that
            # holds for what is listed: comparisons give booleans, and all else gives what the outputs are.
            dtype = DType.BOOL if each.op_type in _BOOLEANS else shape.dtype
            types.update((name, TensorType(dtype, shape.shape)) for name in made)
        if each.op_type == "Cast" or not lowered(renamed, inner):
            return False
    return True


_MANY_ELEMENTS: Final = 1 << 20
"""Above this what a session makes on the way is not worth its memory."""

_FEW_ELEMENTS: Final = 1 << 17
"""Up to here a few more passes over an array, which stays in the cache, take less time than a cut between sessions."""

_BOOLEANS: Final = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"})


def _relu_grad(node: Node, into: Lowered) -> bool:
    """The gradient between 0 and 0, or between both infinities: onnxruntime chooses elements an order of magnitude
    slower, and a product of an infinite gradient and 0 is no number. The least positive output takes three products to
    be infinite. Where an output is no number, its gradient is none."""
    gradient, output = node.inputs
    if into.types[output].size > _FEW_ELEMENTS:
        return False
    large, most = into.constant(node, np.asarray(np.finfo(np.float32).max)), output
    for _ in range(3):
        most = into.emit(node, "Mul", (most, large))
    least = into.emit(node, "Neg", (most,))
    into.emit(node, "Min", (into.emit(node, "Max", (gradient, least)), most), node.outputs[0])
    return True


def _sigmoid_grad(node: Node, into: Lowered) -> bool:
    gradient, output = node.inputs
    one = into.constant(node, np.ones((), np.float32))
    slope = into.emit(node, "Mul", (output, into.emit(node, "Sub", (one, output))))
    into.emit(node, "Mul", (gradient, slope), node.outputs[0])
    return True


def _tanh_grad(node: Node, into: Lowered) -> bool:
    gradient, output = node.inputs
    one = into.constant(node, np.ones((), np.float32))
    slope = into.emit(node, "Sub", (one, into.emit(node, "Mul", (output, output))))
    into.emit(node, "Mul", (gradient, slope), node.outputs[0])
    return True


def _gelu_grad(node: Node, into: Lowered) -> bool:
    """gradient * (share below x + x * density at x), of the normal distribution."""
    gradient, x = node.inputs
    if as_str(schema_of(node).attribute(node, "approximate")) != "none":
        return False

    def times(value: str, number: float) -> str:
        return into.emit(node, "Mul", (value, into.constant(node, np.asarray(number, np.float32))))

    half = into.constant(node, np.asarray(0.5, np.float32))
    below = into.emit(node, "Add", (times(into.emit(node, "Erf", (times(x, math.sqrt(0.5)),)), 0.5), half))
    bell = into.emit(node, "Exp", (times(into.emit(node, "Mul", (x, x)), -0.5),))
    moved = into.emit(node, "Mul", (times(x, 1 / math.sqrt(2 * math.pi)), bell))
    into.emit(node, "Mul", (gradient, into.emit(node, "Add", (below, moved))), node.outputs[0])
    return True


def _softmax_grad(node: Node, into: Lowered) -> bool:
    gradient, output = node.inputs
    axis = _axis(node, into.types[output].rank)
    product = into.emit(node, "Mul", (gradient, output))
    total = into.emit(node, "ReduceSum", (product, into.constant(node, np.asarray([axis]))), keepdims=1)
    into.emit(node, "Sub", (product, into.emit(node, "Mul", (output, total))), node.outputs[0])
    return True


def _log_softmax_grad(node: Node, into: Lowered) -> bool:
    gradient, output = node.inputs
    axis = _axis(node, into.types[output].rank)
    total = into.emit(node, "ReduceSum", (gradient, into.constant(node, np.asarray([axis]))), keepdims=1)
    share = into.emit(node, "Mul", (into.emit(node, "Exp", (output,)), total))
    into.emit(node, "Sub", (gradient, share), node.outputs[0])
    return True


def _axis(node: Node, rank: int) -> int:
    return as_int(schema_of(node).attribute(node, "axis")) % rank


def _sum_to(node: Node, into: Lowered) -> bool:
    data, like = (into.shape(name) for name in node.inputs)
    if into.types[node.inputs[0]].dtype != DType.FLOAT32:
        return False
    padded = (1,) * (len(data) - len(like)) + like
    axes = [axis for axis, (size, wanted) in enumerate(zip(data, padded, strict=True)) if size != wanted]
    if not axes:
        return _reshaped(node, into, node.inputs[0], like)
    keep = int(len(data) == len(like))
    if not keep and axes != list(range(len(data) - len(like))):
        summed = into.emit(node, "ReduceSum", (node.inputs[0], into.constant(node, np.asarray(axes))), keepdims=1)
        return _reshaped(node, into, summed, like)
    reads = (node.inputs[0], into.constant(node, np.asarray(axes)))
    into.emit(node, "ReduceSum", reads, node.outputs[0], keepdims=keep)
    return True


def _reshape_like(node: Node, into: Lowered) -> bool:
    return _reshaped(node, into, node.inputs[0], into.shape(node.inputs[1]))


def _move(node: Node, into: Lowered) -> bool:
    """The shape is known: what the node reads of it, perhaps out of a value's shape, is read by no session."""
    return _reshaped(node, into, node.inputs[0], into.shape(node.outputs[0]))


def _expand(node: Node, into: Lowered) -> bool:
    if into.types[node.outputs[0]].dtype == DType.INT64:
        return False
    shape = into.numbers(node, *into.shape(node.outputs[0]))
    into.emit(node, "Expand", (node.inputs[0], shape), node.outputs[0])
    return True


def _reshaped(node: Node, into: Lowered, value: str, shape: tuple[int, ...], output: int = 0) -> bool:
    """Adds a Reshape that makes an output of the node."""
    into.emit(node, "Reshape", (value, into.numbers(node, *shape)), node.outputs[output])
    return True


def _matmul_left_grad(node: Node, into: Lowered) -> bool:
    """gradient (..., m, n) times right (..., k, n), transposed."""
    gradient, left, right = node.inputs
    if not _is_batched(into, left, right) and len(into.shape(right)) != 2:
        return False
    if len(into.shape(left)) < 2:
        return False
    into.emit(node, "MatMul", (gradient, _transposed(node, into, right)), node.outputs[0])
    return True


def _matmul_right_grad(node: Node, into: Lowered) -> bool:
    """left (..., m, k), transposed, times gradient (..., m, n); summed over what a matrix on the right is read for."""
    gradient, left, right = node.inputs
    if len(into.shape(left)) < 2:
        return False
    if len(into.shape(right)) == 2:
        rows = [
            into.reshape(node, value, -1, into.shape(value)[-1]) if into.types[value].rank != 2 else value
            for value in (left, gradient)
        ]
        into.emit(node, "Gemm", rows, node.outputs[0], transA=1)
        return True
    if not _is_batched(into, left, right):
        return False
    into.emit(node, "MatMul", (_transposed(node, into, left), gradient), node.outputs[0])
    return True


def _is_batched(into: Lowered, left: str, right: str) -> bool:
    """Whether both are stacks of matrices, of one shape."""
    a, b = into.shape(left), into.shape(right)
    return len(a) == len(b) >= 2 and a[:-2] == b[:-2]


def _transposed(node: Node, into: Lowered, value: str) -> str:
    rank = into.types[value].rank
    return into.emit(node, "Transpose", (value,), perm=(*range(rank - 2), rank - 1, rank - 2))


# --- Convolutions -----------------------------------------------------------------------------------------------------
# onnxruntime computes image by image, and reads all weights for each. Where images are small, one product over the
# whole batch is faster: six times for a layer of ResNet-18's last stage on images of 32 x 32.


_FEW_WINDOWS: Final = 16
"""Windows of an image up to which one product over as many images is faster than one for each."""

_FEW_WINDOWS_APART: Final = 4
"""The same for the gradient of an input whose windows do not begin next to each other: zeros go between."""

_MANY_COLUMNS: Final = 1 << 22
"""Elements of columns above which a body that makes them in blocks is faster, and takes less memory."""

_FEW_WEIGHTS: Final = 1 << 16
"""Weights that a product turns faster than it reads a wide matrix across."""

_FEW_FEATURES: Final = 8
"""Below so many it does not: a product is computed some 16 of its columns at a time, however few there are."""

_GATHERED_BATCH: Final = 16
"""Images from which on columns are gathered run by run, a run for each place of an image: it takes three quarters of
the time of slices that are joined, which move longer runs twice."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """What the three operators of a convolution have in common: the input (batch, channels, 2 dimensions), the weights
    (features, channels / group, kernel). `taps` are the places of the kernel that see any element of an image."""

    batch: int
    channels: int
    features: int
    group: int
    windows: Windows
    taps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, node: Node, into: Lowered, data: str, weights: str) -> _Convolution | None:
        """None where there are other than two dimensions."""
        batch, channels, *size = into.shape(data)
        features, _, *kernel = into.shape(weights)
        if len(size) != 2:
            return None
        attributes = schema_of(node).attributes_of(node)
        windows = windows_of(tuple(size), attributes.get, tuple(kernel))
        rows, columns = (
            [
                place
                for place in range(windows.kernel[axis])
                if any(
                    0 <= window * windows.strides[axis] + place * windows.dilations[axis] - windows.begin[axis] < extent
                    for window in range(windows.count[axis])
                )
            ]
            for axis, extent in enumerate(windows.size)
        )
        taps = tuple(product(rows, columns))
        return cls(batch, channels, features, as_int(attributes["group"]), windows, taps)

    @property
    def is_one_product(self) -> bool:
        """Whether one product over the batch is faster than what onnxruntime does."""
        return self.group == 1 and self.count <= min(_FEW_WINDOWS, self.batch) and bool(self.taps)

    @property
    def count(self) -> int:
        """Windows of an image."""
        return math.prod(self.windows.count)

    @property
    def elements(self) -> int:
        """Of all columns."""
        return self.channels * math.prod(self.windows.kernel) * self.batch * self.count

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The places of the kernel that a product reads: one alone where no other sees an element, all otherwise."""
        rows, columns = self.windows.kernel
        return self.taps if len(self.taps) == 1 else tuple(product(range(rows), range(columns)))

    def seen(self, place: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Where the elements of an image begin that the windows have at a place of the kernel, and end: below 0, or
        beyond its size, in the padding."""
        windows = self.windows
        shifts = zip(place, windows.dilations, windows.begin, strict=True)
        begins = [at * dilation - begin for at, dilation, begin in shifts]
        spans = [(count - 1) * stride + 1 for count, stride in zip(windows.count, windows.strides, strict=True)]
        return begins, [begin + span for begin, span in zip(begins, spans, strict=True)]

    def columns(self, node: Node, into: Lowered, data: str) -> str:
        """(channels * places of the kernel, windows * batch): what one product convolves. The batch goes last, so that
        what is moved lies in long runs however narrow the images are."""
        windows, size = self.windows, self.windows.size
        value = into.emit(node, "Transpose", (data,), perm=(1, 2, 3, 0))
        spans, shift = [self.seen(place) for place in self.places], (0, 0)
        if any(begin < 0 or end > size for span in spans for begin, end, size in zip(*span, windows.size, strict=True)):
            pads, shift = (0, *windows.begin, 0, 0, *windows.end, 0), (windows.begin[0], windows.begin[1])
            value = into.emit(node, "Pad", (value, into.numbers(node, *pads)))
            size = tuple(sum(one) for one in zip(size, windows.begin, windows.end, strict=True))
        if self.batch >= _GATHERED_BATCH:
            value = into.reshape(node, value, self.channels * math.prod(size), self.batch)
            down, across = (
                np.asarray([at[axis] + shift[axis] for at, _ in spans])[:, None]
                + np.arange(windows.count[axis]) * windows.strides[axis]
                for axis in range(2)
            )
            seen = down[:, :, None] * size[1] + across[:, None, :]
            index = np.arange(self.channels)[:, None, None, None] * math.prod(size) + seen
            value = into.emit(node, "Gather", (value, into.constant(node, index.astype(np.int32))), axis=0)
            return into.reshape(node, value, self.channels * len(spans), -1)
        parts = list[str]()
        axes, strides = into.numbers(node, 1, 2), into.numbers(node, *windows.strides)
        for span in spans:
            begins, ends = (into.numbers(node, at[0] + shift[0], at[1] + shift[1]) for at in span)
            parts.append(into.emit(node, "Slice", (value, begins, ends, axes, strides)))
        value = into.emit(node, "Concat", parts, axis=1) if len(parts) > 1 else parts[0]
        return into.reshape(node, value, self.channels * len(parts), -1)

    def matrix(self, node: Node, into: Lowered, weights: str) -> str:
        """(features, channels * places of the kernel), from the weights."""
        if self.is_narrow:
            flat = into.reshape(node, weights, -1, math.prod(self.windows.kernel))
            weights = into.emit(node, "MatMul", (flat, into.constant(node, self.only_place().T)))
        return into.reshape(node, weights, self.features, -1)

    @property
    def is_narrow(self) -> bool:
        """Whether one place of the kernel alone sees an element, and not all."""
        return len(self.places) < math.prod(self.windows.kernel)

    def only_place(self) -> Array:
        """(1, places of the kernel): 1 at the one that sees an element. A product with it takes that of all weights, or
        puts it there, in half the time of an operator that moves elements."""
        ((row, column),) = self.places
        found = np.zeros((1, *self.windows.kernel), np.float32)
        found[0, row, column] = 1
        return found.reshape(1, -1)

    def rows(self, node: Node, into: Lowered, output: str) -> str:
        """(features, windows * batch), from (batch, features, windows ...)."""
        turned = into.emit(node, "Transpose", (output,), perm=(1, 2, 3, 0))
        return into.reshape(node, turned, self.features, -1)


def _conv(node: Node, into: Lowered) -> bool:
    data, weights, *bias = node.inputs
    convolution = _Convolution.of(node, into, data, weights)
    if convolution is None or not convolution.is_one_product:
        return _direct(node, into)
    reads = [convolution.matrix(node, into, weights), convolution.columns(node, into, data)]
    reads += [into.reshape(node, each, -1, 1) for each in bias if each]
    made = into.emit(node, "Gemm", reads)
    made = into.reshape(node, made, convolution.features, *convolution.windows.count, convolution.batch)
    into.emit(node, "Transpose", (made,), node.outputs[0], perm=(3, 0, 1, 2))
    return True


def _conv_input_grad(node: Node, into: Lowered) -> bool:
    """The transposed convolution, or the transposed product, whose parts are added where they were read."""
    gradient, data, weights = node.inputs
    convolution = _Convolution.of(node, into, data, weights)
    if convolution is None:
        return False
    windows = convolution.windows
    is_apart = set(windows.strides) != {1}
    if not convolution.is_one_product or (is_apart and convolution.count > _FEW_WINDOWS_APART):
        missing = tuple(
            size + begin + end - ((count - 1) * stride + extent)
            for size, begin, end, count, stride, extent in zip(
                windows.size, windows.begin, windows.end, windows.count, windows.strides, windows.extent, strict=True
            )
        )
        into.emit(
            node,
            "ConvTranspose",
            (gradient, weights),
            node.outputs[0],
            strides=windows.strides,
            dilations=windows.dilations,
            pads=windows.begin + windows.end,
            output_padding=missing,
            group=convolution.group,
        )
        return True
    reads = convolution.matrix(node, into, weights), convolution.rows(node, into, gradient)
    spread = into.emit(node, "Gemm", reads, transA=1)
    places, channels, batch = convolution.places, convolution.channels, convolution.batch
    spread = into.reshape(node, spread, channels, len(places), batch * convolution.count)
    parts = into.emit_all(node, "Split", (spread,), ("",) * len(places), axis=1, num_outputs=len(places))
    added = []
    for place, part in zip(places, parts, strict=True):
        begins, _ = convolution.seen(place)
        image, count = into.reshape(node, part, channels, *windows.count, batch), windows.count
        if is_apart and convolution.count > 1:
            image = into.reshape(node, image, channels, count[0], 1, count[1], 1, batch)
            down, across = windows.strides
            image = into.emit(node, "Pad", (image, into.numbers(node, *(0,) * 8, down - 1, 0, across - 1, 0)))
            count = count[0] * windows.strides[0], count[1] * windows.strides[1]
            image = into.reshape(node, image, channels, *count, batch)
        ends = [size - at - n for size, at, n in zip(windows.size, begins, count, strict=True)]
        added.append(into.emit(node, "Pad", (image, into.numbers(node, 0, *begins, 0, 0, *ends, 0))))
    total = into.emit(node, "Sum", added)
    into.emit(node, "Transpose", (total,), node.outputs[0], perm=(3, 0, 1, 2))
    return True


def _conv_weight_grad(node: Node, into: Lowered) -> bool:
    """One product of the gradient with what each weight saw. The body, which makes that in blocks of images, is faster
    where it is large."""
    gradient, data, weights = node.inputs
    convolution = _Convolution.of(node, into, data, weights)
    if convolution is None or convolution.group != 1 or convolution.elements > _MANY_COLUMNS:
        return False
    columns, rows = convolution.columns(node, into, data), convolution.rows(node, into, gradient)
    shape = into.shape(weights)
    if math.prod(shape) <= _FEW_WEIGHTS and convolution.features >= _FEW_FEATURES:
        total = into.emit(node, "Transpose", (into.emit(node, "Gemm", (columns, rows), transB=1),), perm=(1, 0))
    else:
        total = into.emit(node, "Gemm", (rows, columns), transB=1)
    if convolution.is_narrow:
        reads = into.reshape(node, total, -1, 1), into.constant(node, convolution.only_place())
        total = into.emit(node, "MatMul", reads)
    _reshaped(node, into, total, shape)
    return True


# --- Batch normalization, in training ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Batch:
    """The statistics of a batch (batch, channels, ...) by channel, each (1, channels, 1 ...): its mean, the elements
    without it, and 1 over the standard deviation."""

    centred: str
    mean: str
    variance: str
    inverse: str


def _batch_of(node: Node, into: Lowered, data: str) -> _Batch | None:
    """None for what onnxruntime does not normalize: by running statistics, or so large that passes over memory cost."""
    attributes, shape = schema_of(node).attributes_of(node), into.shape(data)
    if not attributes["training_mode"] or into.types[data].size > _MANY_ELEMENTS:
        return None
    axes = into.numbers(node, *(axis for axis in range(len(shape)) if axis != 1))
    mean = into.emit(node, "ReduceMean", (data, axes))
    centred = into.emit(node, "Sub", (data, mean))
    variance = into.emit(node, "ReduceMean", (into.emit(node, "Mul", (centred, centred)), axes))
    deviation = into.emit(
        node, "Sqrt", (into.emit(node, "Add", (variance, into.float(node, as_float(attributes["epsilon"])))),)
    )
    return _Batch(centred, mean, variance, into.emit(node, "Reciprocal", (deviation,)))


def _by_channel(node: Node, into: Lowered, value: str, data: str) -> str:
    """One number a channel, to stand beside the data."""
    return into.reshape(node, value, -1, *(1,) * (into.types[data].rank - 2))


def _batch_norm(node: Node, into: Lowered) -> bool:
    data, scale, bias, *running = node.inputs
    batch = _batch_of(node, into, data)
    if batch is None:
        return False
    factor = into.emit(node, "Mul", (batch.inverse, _by_channel(node, into, scale, data)))
    scaled = into.emit(node, "Mul", (batch.centred, factor))
    into.emit(node, "Add", (scaled, _by_channel(node, into, bias, data)), node.outputs[0])
    kept = as_float(schema_of(node).attribute(node, "momentum"))
    for before, now, output in zip(running, (batch.mean, batch.variance), node.outputs[1:], strict=False):
        if output:
            old = into.emit(node, "Mul", (before, into.float(node, kept)))
            new = into.emit(node, "Mul", (into.reshape(node, now, -1), into.float(node, 1 - kept)))
            into.emit(node, "Add", (old, new), output)
    return True


def _batch_norm_grad(node: Node, into: Lowered) -> bool:
    """scale * inverse * (gradient - its mean - normal * mean of gradient * normal)."""
    gradient, data, scale, *_ = node.inputs
    batch = _batch_of(node, into, data)
    if batch is None:
        return False
    shape = into.shape(data)
    axes = into.numbers(node, *(axis for axis in range(len(shape)) if axis != 1))
    count = into.float(node, math.prod(shape) // shape[1])
    by_bias = into.emit(node, "ReduceSum", (gradient, axes))
    by_centred = into.emit(node, "ReduceSum", (into.emit(node, "Mul", (gradient, batch.centred)), axes))
    by_scale = into.emit(node, "Mul", (by_centred, batch.inverse))
    for number, value in enumerate((by_scale, by_bias), 1):
        if node.outputs[number]:
            _reshaped(node, into, value, into.shape(scale), number)
    slope = into.emit(node, "Div", (into.emit(node, "Mul", (by_scale, batch.inverse)), count))
    moved = into.emit(node, "Sub", (gradient, into.emit(node, "Mul", (batch.centred, slope))))
    moved = into.emit(node, "Sub", (moved, into.emit(node, "Div", (by_bias, count))))
    factor = into.emit(node, "Mul", (batch.inverse, _by_channel(node, into, scale, data)))
    into.emit(node, "Mul", (moved, factor), node.outputs[0])
    return True


# --- Pools, rows by index, losses -------------------------------------------------------------------------------------


def _max_pool_grad(node: Node, into: Lowered) -> bool:
    """Of windows of 2 x 2 side by side: what each half of a window has of its gradient, first of its rows, then of the
    columns. Indices from MaxPool would take onnxruntime twice as long, most of it for branches that it cannot foresee.
    """
    gradient, data, _ = node.inputs
    shape = into.shape(data)
    windows = windows_of(shape[2:], schema_of(node).attributes_of(node).get)
    tiles = windows.kernel == windows.strides == (2, 2) and not any(windows.begin + windows.end)
    if not tiles or shape[2] % 2 or shape[3] % 2 or into.types[data].size > _MANY_ELEMENTS:
        return False

    def halves(value: str) -> tuple[str, str]:
        first, second = into.emit_all(node, "Split", (value,), ("", ""), axis=1, num_outputs=2)
        return first, second

    def shared(whole: str, first: str, second: str) -> str:
        """The first half has it where its element is not smaller."""
        has = into.emit(node, "Cast", (into.emit(node, "GreaterOrEqual", (first, second)),), to=1)
        of_first = into.emit(node, "Mul", (whole, has))
        return into.emit(node, "Concat", (of_first, into.emit(node, "Sub", (whole, of_first))), axis=1)

    left, right = halves(into.reshape(node, data, -1, 2))
    above, below = halves(into.reshape(node, into.emit(node, "Max", (left, right)), -1, 2, shape[3] // 2))
    by_rows = shared(into.reshape(node, gradient, -1, 1, shape[3] // 2), above, below)
    _reshaped(node, into, shared(into.reshape(node, by_rows, -1, 1), left, right), shape)
    return True


def _embedding(node: Node, into: Lowered) -> bool:
    """Rows of a table."""
    if "padding_id" in node.attributes:
        return False
    return _gather(node, into)


def _gather(node: Node, into: Lowered) -> bool:
    """Entries along an axis, by index."""
    data, indices = node.inputs
    if into.types[data].dtype != DType.FLOAT32 or into.types[indices].dtype != DType.INT64:
        return False
    into.emit(node, "Gather", (data, indices), node.outputs[0], axis=_gathered_axis(node))
    return True


def _gather_grad(node: Node, into: Lowered) -> bool:
    """Rows added where their indices say, in order: by one thread, since several would add at the same time."""
    gradient, data, indices = node.inputs
    attributes = schema_of(node).attributes_of(node)
    if attributes["axis"] != 0 or "padding_id" in attributes or into.threads != 1:
        return False
    if into.types[indices].dtype != DType.INT64:
        return False
    shape = into.constant(node, np.asarray(into.shape(data), np.int64))
    index = into.emit(node, "Unsqueeze", (indices, into.constant(node, np.asarray([-1]))))
    reads = into.emit(node, "ConstantOfShape", (shape,)), index, gradient
    into.emit(node, "ScatterND", reads, node.outputs[0], reduction="add")
    return True


def _reduce_grad(node: Node, into: Lowered) -> bool:
    """What each element has of the gradient of a sum or mean."""
    gradient, data, *further = node.inputs
    axes = schema_of(node).attributes_of(node).get("axes")
    if any(further) or not isinstance(axes, tuple) or not axes:
        return False
    shape = into.shape(data)
    reduced = {as_int(axis) % len(shape) for axis in axes}
    if node.op_type == "ReduceMeanGrad":
        count = math.prod(shape[axis] for axis in reduced)
        gradient = into.emit(node, "Div", (gradient, into.constant(node, np.asarray(count, np.float32))))
    kept = [1 if axis in reduced else size for axis, size in enumerate(shape)]
    gradient = into.emit(node, "Reshape", (gradient, into.constant(node, np.asarray(kept, np.int64))))
    into.emit(node, "Expand", (gradient, into.constant(node, np.asarray(shape, np.int64))), node.outputs[0])
    return True


def _gathered_axis(node: Node) -> int:
    return as_int(schema_of(node).attribute(node, "axis")) if node.op_type == "Gather" else 0


def _cross_entropy(node: Node, into: Lowered) -> bool:
    """Of all labels alike: the mean or sum of what the logarithm of softmax is at each."""
    scores, labels, *further = node.inputs
    reduction = as_str(schema_of(node).attribute(node, "reduction"))
    if any(further) or "ignore_index" in node.attributes or reduction == "none":
        return False
    if into.types[labels].dtype != DType.INT64 or into.types[scores].dtype != DType.FLOAT32:
        return False
    loss, log_prob = (*node.outputs, "")[:2]
    log_prob = into.emit(node, "LogSoftmax", (scores,), log_prob, axis=1)
    index = into.emit(node, "Unsqueeze", (labels, into.constant(node, np.asarray([1]))))
    likelihood = into.emit(node, "GatherElements", (log_prob, index), axis=1)
    total = into.emit(node, "ReduceSum" if reduction == "sum" else "ReduceMean", (likelihood,), keepdims=0)
    into.emit(node, "Neg", (total,), loss)
    return True


def _cross_entropy_grad(node: Node, into: Lowered) -> bool:
    """(softmax - one-hot label) times the gradient of a mean or sum; the labels were checked by the loss."""
    gradient, log_prob, labels, *further = node.inputs
    reduction = as_str(schema_of(node).attribute(node, "reduction"))
    if any(further) or "ignore_index" in node.attributes or not gradient or reduction == "none":
        return False
    if into.types[labels].dtype != DType.INT64:
        return False
    shape = into.shape(log_prob)
    depth = into.constant(node, np.asarray([shape[1]], np.int64))
    hot = into.constant(node, np.asarray([0, 1], np.float32))
    right = into.emit(node, "OneHot", (labels, depth, hot), axis=1)
    apart = into.emit(node, "Sub", (into.emit(node, "Exp", (log_prob,)), right))
    scale = gradient
    if reduction == "mean":
        count = into.constant(node, np.asarray(into.types[labels].size, np.float32))
        scale = into.emit(node, "Div", (gradient, count))
    into.emit(node, "Mul", (apart, scale), node.outputs[0])
    return True


LOWER: Final[Mapping[str, Callable[[Node, Lowered], bool]]] = {
    FUSED: _fused,
    "BatchNormalization": _batch_norm,
    "BatchNormalizationGrad": _batch_norm_grad,
    "Embedding": _embedding,
    "Gather": _gather,
    STOP_GRADIENT: _identity,
    "Conv": _conv,
    "ConvInputGrad": _conv_input_grad,
    "ConvWeightGrad": _conv_weight_grad,
    "Expand": _expand,
    "Flatten": _move,
    "GatherGrad": _gather_grad,
    "GeluGrad": _gelu_grad,
    "LogSoftmaxGrad": _log_softmax_grad,
    "MatMulLeftGrad": _matmul_left_grad,
    "MatMulRightGrad": _matmul_right_grad,
    "MaxPoolGrad": _max_pool_grad,
    "ReduceMeanGrad": _reduce_grad,
    "ReduceSumGrad": _reduce_grad,
    "ReluGrad": _relu_grad,
    "Reshape": _move,
    "ReshapeLike": _reshape_like,
    "SigmoidGrad": _sigmoid_grad,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "SoftmaxCrossEntropyLossGrad": _cross_entropy_grad,
    "SoftmaxGrad": _softmax_grad,
    "Squeeze": _move,
    "SumTo": _sum_to,
    "TanhGrad": _tanh_grad,
    "Unsqueeze": _move,
}


@dataclass(frozen=True, slots=True)
class RangeCheck:
    """A kernel that gives nothing. Raises OutOfRangeError where a number of input `place` is outside [low, stop)."""

    place: int
    what: str
    low: int
    stop: int
    of: str

    def __call__(
        self, context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        numbers = inputs[self.place]
        assert numbers is not None, "a node that is lowered has it"
        # Below 0 is very large without a sign.
        is_wrong = int(np.maximum.reduce(numbers.view(np.uint64), axis=None)) >= self.stop
        if is_wrong and (self.low == 0 or int(numbers.min()) < self.low or int(numbers.max()) >= self.stop):
            wrong = numbers[(numbers < self.low) | (numbers >= self.stop)]
            raise OutOfRangeError(self.what, int(wrong[0]), self.low, self.stop, of=self.of)
        return ()


def check_of(node: Node, types: Types) -> RangeCheck | None:
    """What is to be checked before a session computes the node: onnxruntime would not say which number is wrong."""
    if node.op_type == "SoftmaxCrossEntropyLoss":
        return RangeCheck(1, "label", 0, types[node.inputs[0]].static_shape[1], ", the classes of the scores")
    if node.op_type == "GatherGrad":
        count = types[node.inputs[1]].static_shape[0]
        return RangeCheck(2, "index", -count if node.attributes.get("wraps") else 0, count, "")
    if node.op_type in {"Embedding", "Gather"}:
        shape = types[node.inputs[0]].static_shape
        count = shape[_gathered_axis(node)]
        return RangeCheck(1, "index", -count if node.op_type == "Gather" else 0, count, "")
    return None
