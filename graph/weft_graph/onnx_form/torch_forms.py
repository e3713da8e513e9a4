"""Other words for what PyTorch's exporter writes, where its own have other values or gradients than PyTorch's calls.

| Call | Where its nodes go wrong | Written here as |
|---|---|---|
| `detach` | gradients flow | StopGradient |
| `embedding` | an id below 0 counts from the end | Embedding, which refuses it |
| `embedding` with `padding_idx` | the row of the padding has a gradient | StopGradient at that row |
| `clamp` | on a bound: half the gradient | comparisons, whose gradient is whole there |
| `hardtanh`, `relu6` | on a bound: a gradient, where PyTorch has none | comparisons, whose gradient is 0 there |
| `max`, `min` over a dimension | equals share the gradient | the first of them, by its place |
| `std`, `vector_norm` at 0 | an infinite slope, and NaN | a slope of 0 |
| `sinc` at 0 | 0 / 0 | 1, without a slope |
| attention, at rows that are wholly masked | even shares, or NaN | 0 |
| `binary_cross_entropy` of 0 or 1 | NaN | the bound of the logarithm, without a slope |
| `atan2` beside an axis | y / 0 | the quotient that is at most 1 |
| `log_sigmoid`, `logaddexp` far from 0 | the exponential overflows | Softplus |
| `log1p`, `expm1` near 0 | the sum with 1 rounds it away | Atanh and Sinh |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from weft_graph.onnx_form.errors import Array
from weft_graph.onnx_form.own_metadata import OPERATOR
from weft_graph.onnx_form.torch_notes import Call, Notes
from weft_graph.weft_domain import EMBEDDING, STOP_GRADIENT

_ROW: Final = re.compile(r"\d{1,18}")
_MASKED: Final = -1e30
"""What is added to a score that is masked is less: the type's lowest number, or minus infinity."""
_PLACE: Final = re.compile(r"-?\d{1,3}")


def rewritten(protos: Iterable[onnx.NodeProto], notes: Notes) -> Iterator[onnx.NodeProto]:
    """The nodes, with what the table says. Nodes of other exporters pass unchanged."""
    made: dict[str, onnx.NodeProto] = {}
    for proto in protos:
        made.update((name, proto) for name in proto.output)
        call = notes.calls.get(proto.output[0]) if proto.output and proto.input else None
        form = None if call is None else _FORMS.get((proto.op_type, _stem(call.target)))
        if call is None or form is None:
            yield proto
            continue
        written = _Form(proto, call, made, notes)
        form(written)
        yield from written.nodes or (proto,)


def _stem(target: str) -> str:
    """`aten.clamp` of `aten.clamp.Tensor`."""
    return ".".join(target.split(".")[:2])


class _Form:
    """The nodes that stand for one. None means that it stays."""

    def __init__(self, proto: onnx.NodeProto, call: Call, made: Mapping[str, onnx.NodeProto], notes: Notes) -> None:
        self.proto = proto
        self.call = call
        self.made = made
        """Nodes of the file by what they compute."""
        self.notes = notes
        self.nodes: list[onnx.NodeProto] = []

    @property
    def inputs(self) -> list[str]:
        return list(self.proto.input)

    def maker(self, name: str, op_type: str) -> onnx.NodeProto | None:
        """The node that computes this, if it is one of this operator."""
        proto = self.made.get(name)
        return proto if proto is not None and proto.op_type == op_type else None

    def apply(self, op_type: str, *inputs: str, **attributes: int) -> str:
        """The name of what a new node computes."""
        return self._add(op_type, inputs, f"{self.proto.output[0]}/{len(self.nodes)}", attributes)

    def end(self, op_type: str, *inputs: str, **attributes: int) -> None:
        """The last node, which computes what the node did."""
        self._add(op_type, inputs, self.proto.output[0], attributes)

    def _add(self, op_type: str, inputs: Iterable[str], output: str, attributes: Mapping[str, Any]) -> str:
        stem = self.proto.name or self.proto.output[0]
        name = stem if output == self.proto.output[0] else f"{stem}/{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, value: Array) -> str:
        name = f"{self.proto.output[0]}/{len(self.nodes)}"
        tensor = onnx.numpy_helper.from_array(value)
        self.nodes.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def number(self, value: float, like: str) -> str:
        """A scalar of the element type of `like`."""
        return self.apply("CastLike", self.constant(np.asarray(value, np.float64)), like)

    def stop(self, value: str, output: str) -> str:
        made = helper.make_node("Identity", [value], [output], name=output)
        made.metadata_props.add(key=OPERATOR, value=STOP_GRADIENT)
        self.nodes.append(made)
        return output

    def not_zero(self, value: str) -> tuple[str, str]:
        """(whether it is 0, the value, with 1 where it is 0)."""
        is_zero = self.apply("Equal", value, self.number(0, value))
        return is_zero, self.apply("Where", is_zero, self.number(1, value), value)


def _detach(form: _Form) -> None:
    form.stop(form.proto.input[0], form.proto.output[0])


def _embedding(form: _Form) -> None:
    """An id below 0 is none, and does not count from the end. Rows of the padding are read as they are, and have no
    gradient."""
    padding = form.call.argument(2, "padding_idx", "-1")
    if len(form.proto.input) != 2 or any(each.name == "axis" and each.i for each in form.proto.attribute):
        return
    if not _ROW.fullmatch(padding):
        form.end("Gather", *form.inputs)
        form.nodes[-1].metadata_props.add(key=OPERATOR, value=EMBEDDING)
        return
    rows = form.apply("Gather", *form.inputs)
    form.nodes[-1].metadata_props.add(key=OPERATOR, value=EMBEDDING)
    ids = form.apply("Cast", form.proto.input[1], to=onnx.TensorProto.INT64)
    is_padding = form.apply("Equal", ids, form.constant(np.asarray(int(padding), np.int64)))
    mask = form.apply("Unsqueeze", is_padding, form.constant(np.asarray([-1], np.int64)))
    form.end("Where", mask, form.stop(rows, f"{form.proto.output[0]}/padding"), rows)


def _clamp(form: _Form) -> None:
    if len(form.proto.input) != 2:
        return
    x, bound = form.inputs
    form.end("Where", form.apply("Less" if form.proto.op_type == "Max" else "Greater", x, bound), bound, x)


def _hard_tanh(form: _Form) -> None:
    if len(form.proto.input) != 3 or not all(form.proto.input):
        return
    x, low, high = form.inputs
    raised = form.apply("Where", form.apply("LessOrEqual", x, low), low, x)
    form.end("Where", form.apply("GreaterOrEqual", x, high), high, raised)


def _extreme(form: _Form) -> None:
    dim = form.call.argument(1, "dim", "")
    if not _PLACE.fullmatch(dim):
        return
    x, axis = form.proto.input[0], int(dim)
    search = "ArgMax" if form.proto.op_type == "ReduceMax" else "ArgMin"
    found = form.apply("GatherElements", x, form.apply(search, x, axis=axis, keepdims=1), axis=axis)
    if form.call.argument(2, "keepdim", "False") == "True":
        form.end("Identity", found)
    else:
        form.end("Squeeze", found, form.constant(np.asarray([axis], np.int64)))


def _root_of_variance(form: _Form) -> None:
    maker = form.notes.calls.get(form.proto.input[0])
    if maker is not None and _stem(maker.target) in {"prims.var", "aten.var"}:
        _root(form)


def _root(form: _Form) -> None:
    """Of 0 it is 0, without a slope. The node is Sqrt, or Pow with its exponent."""
    value, *exponent = form.inputs
    is_zero, base = form.not_zero(value)
    form.end("Where", is_zero, form.number(0, value), form.apply(form.proto.op_type, base, *exponent))


def _root_of_norm(form: _Form) -> None:
    if form.maker(form.proto.input[0], "ReduceSum") is not None:
        _root(form)


def _masked_softmax(form: _Form) -> None:
    """The node reads scores and a mask, added up."""
    total = form.maker(form.proto.input[0], "Add")
    if total is None:
        return
    last = form.constant(np.asarray([-1], np.int64))
    highest = form.apply("ReduceMax", total.input[1], last, keepdims=1)
    is_read = form.apply("Greater", highest, form.number(_MASKED, highest))
    zero = form.number(0, total.output[0])
    shares = form.apply("Softmax", form.apply("Where", is_read, total.output[0], zero), axis=-1)
    form.end("Where", is_read, shares, zero)


def _bounded_log(form: _Form) -> None:
    """The larger one of a logarithm and its bound."""
    value, bound = form.inputs if len(form.proto.input) == 2 else ("", "")
    log = form.maker(value, "Log")
    if log is None:
        return
    is_zero, number = form.not_zero(log.input[0])
    form.end("Max", form.apply("Where", is_zero, bound, form.apply("Log", number)), bound)


def _quotient_of_sinc(form: _Form) -> None:
    sine, angle = form.inputs
    form.end("Div", sine, form.not_zero(angle)[1])


def _atan2(form: _Form) -> None:
    """The quotient of the smaller and the larger one, whose angle is then turned to its quadrant."""
    if form.proto.output[0] != form.call.name:
        return
    quotient = next((each for each in _behind(form, "Div")), None)
    if quotient is None:
        return
    y, x = quotient.input
    is_steep = form.apply("Greater", form.apply("Abs", y), form.apply("Abs", x))
    nowhere, larger = form.not_zero(form.apply("Where", is_steep, y, x))
    smaller = form.apply("Where", nowhere, form.number(0, x), form.apply("Where", is_steep, x, y))
    angle = form.apply("Atan", form.apply("Div", smaller, larger))
    zero, below = form.number(0, x), form.apply("Less", y, form.number(0, y))
    half = form.apply("Where", below, form.number(-math.pi, x), form.number(math.pi, x))
    quarter = form.apply("Mul", half, form.number(0.5, x))
    flat = form.apply("Add", angle, form.apply("Where", form.apply("Less", x, zero), half, zero))
    form.end("Where", is_steep, form.apply("Sub", quarter, angle), flat)


def _behind(form: _Form, op_type: str) -> Iterator[onnx.NodeProto]:
    """Nodes of the same call and this operator that the node follows from."""
    waiting, seen = list(form.proto.input), set()
    while waiting:
        proto = form.made.get(waiting.pop())
        if proto is None or proto.output[0] in seen:
            continue
        seen.add(proto.output[0])
        call = form.notes.calls.get(proto.output[0])
        if call is None or call.name != form.call.name:
            continue
        if proto.op_type == op_type:
            yield proto
        waiting.extend(proto.input)


def _log_sigmoid(form: _Form) -> None:
    sigmoid = form.maker(form.proto.input[0], "Sigmoid")
    if sigmoid is not None:
        form.end("Neg", form.apply("Softplus", form.apply("Neg", sigmoid.input[0])))


def _log_of_sum(form: _Form) -> None:
    """log(exp(a) + exp(b)) = b + softplus(a - b)."""
    total = form.maker(form.proto.input[0], "Add")
    terms = [] if total is None else [form.maker(name, "Exp") for name in total.input]
    if len(terms) == 2 and terms[0] is not None and terms[1] is not None:
        a, b = terms[0].input[0], terms[1].input[0]
        form.end("Add", b, form.apply("Softplus", form.apply("Sub", a, b)))


def _log1p(form: _Form) -> None:
    """2 atanh(x / (2 + x)) near 0."""
    total = form.maker(form.proto.input[0], "Add")
    if total is None:
        return
    x = total.input[0]
    is_near, near = _near_zero(form, x)
    two = form.number(2, x)
    exact = form.apply("Mul", two, form.apply("Atanh", form.apply("Div", near, form.apply("Add", near, two))))
    form.end("Where", is_near, exact, form.apply("Log", form.proto.input[0]))


def _expm1(form: _Form) -> None:
    """2 sinh(x / 2) exp(x / 2) near 0."""
    exponential = form.maker(form.proto.input[0], "Exp")
    if exponential is None:
        return
    x = exponential.input[0]
    is_near, near = _near_zero(form, x)
    half = form.apply("Mul", near, form.number(0.5, x))
    product = form.apply("Mul", form.apply("Sinh", half), form.apply("Exp", half))
    exact = form.apply("Mul", form.number(2, x), product)
    form.end("Where", is_near, exact, form.apply("Sub", *form.inputs))


def _near_zero(form: _Form, x: str) -> tuple[str, str]:
    """(whether it is near 0, the value, 0 where it is not)."""
    is_near = form.apply("Less", form.apply("Abs", x), form.number(0.5, x))
    return is_near, form.apply("Where", is_near, x, form.number(0, x))


_FORMS: Final[Mapping[tuple[str, str], Callable[[_Form], None]]] = {
    ("Identity", "aten.detach"): _detach,
    ("Identity", "aten.detach_"): _detach,
    ("Gather", "aten.embedding"): _embedding,
    **{(op_type, target): _clamp for op_type in ("Max", "Min") for target in (
        "aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.clip"
    )},
    ("Clip", "aten.hardtanh"): _hard_tanh,
    ("Clip", "aten.relu6"): _hard_tanh,
    ("ReduceMax", "aten.max"): _extreme,
    ("ReduceMin", "aten.min"): _extreme,
    ("Sqrt", "aten.sqrt"): _root_of_variance,
    ("Sqrt", "aten.std"): _root,
    ("Pow", "aten.linalg_vector_norm"): _root_of_norm,
    ("Div", "aten.sinc"): _quotient_of_sinc,
    ("Softmax", "aten.scaled_dot_product_attention"): _masked_softmax,
    ("Max", "aten.maximum"): _bounded_log,
    ("Where", "aten.atan2"): _atan2,
    ("Log", "aten.log_sigmoid"): _log_sigmoid,
    ("Log", "aten.logaddexp"): _log_of_sum,
    ("Log", "aten.log1p"): _log1p,
    ("Sub", "aten.expm1"): _expm1,
}  # fmt: skip
"""By operator and call."""
