"""What names mean in one graph of a model: in its main graph, in a body, in one call of a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.shared import Shared


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value: a tensor, a sequence, or none."""

    value: str | tuple[str, ...] | None


Value = str | tuple[str, ...] | Maybe
"""A tensor by its name in weft's graph, or a sequence by those of its items, or what is one of these or none."""


def items_of(value: Value) -> tuple[str, ...]:
    """The tensors that the value is made of."""
    inner = value.value if isinstance(value, Maybe) else value
    return () if inner is None else (inner,) if isinstance(inner, str) else inner


@dataclass(slots=True, eq=False)
class Frame:
    """A body looks names up in the frames around it; a function's call sees its own alone."""

    shared: Shared
    opsets: Mapping[str, int]
    outer: Frame | None = None
    given: Mapping[str, AttributeProto] = field(default_factory=dict)
    """Attributes of the call of the function that this frame is in."""
    calls: tuple[str, ...] = ()
    """The functions around, from the outermost."""
    reserved: dict[str, str] = field(default_factory=dict)
    """Names that values will have once they are defined: those of the main graph, and of a call's outputs."""
    kept: frozenset[str] = frozenset()
    """Values that must have their reserved name, since they are outputs."""
    names: dict[str, Value] = field(default_factory=dict)

    def define(self, name: str, where: str) -> str:
        """The name in weft's graph of a value that is defined here. Raises OnnxError where it is defined already."""
        if not name:
            raise OnnxError(f"{where} defines a value without a name", node=where)
        if name in self.names:
            raise OnnxError(f"value {name!r}, which {where} defines, is defined already", node=name)
        made = self.reserved.get(name) or self.shared.value_name(name)
        self.names[name] = made
        return made

    def find(self, name: str) -> Value | None:
        found = self.names.get(name)
        return found if found is not None or self.outer is None else self.outer.find(name)

    def tensor(self, name: str, where: str) -> str:
        """The tensor of that name; '' stands for one that is left out. Raises OnnxError."""
        if not name:
            return ""
        found = self.value(name, where)
        if isinstance(found, str):
            return found
        raise OnnxError(
            f"{where} reads {name!r}, a sequence or an optional value, and weft's graphs have tensors alone", node=where
        )

    def value(self, name: str, where: str) -> Value:
        found = self.find(name)
        if found is None:
            raise OnnxError(f"{where} reads {name!r}, which nothing defines", node=where)
        return found
