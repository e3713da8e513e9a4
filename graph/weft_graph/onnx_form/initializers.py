"""Which initializers become parameters, which constants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import onnx
from ml_dtypes import finfo

from weft_graph.ir import ONNX_DOMAIN, UNREACHED, Node, Subgraph
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.errors import Array, OnnxError, ReadOptions
from weft_graph.onnx_form.own_metadata import LAZY, ROLE, ROW_SPARSE, own_metadata
from weft_graph.onnx_form.torch_notes import BUFFER, PARAMETER
from weft_graph.schema import Setting, formal_at, schemas
from weft_graph.shapes.gradients import flat
from weft_graph.types import array_type


class Role(Enum):
    """What an initializer is in weft's graph."""

    PARAMETER = "parameter"
    UNTRAINED = "untrained parameter"
    CONSTANT = "constant"


_LOOKED_THROUGH: Final = 1 << 24
"""Elements of an initializer that are searched for what a mask has; masks have fewer."""

_MASKED: Final = -1e3
"""An additive mask has 0 and one number, which is as low as this or lower."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What the graph's nodes do with its values."""

    trained: Collection[str]
    """Values that lead to an output through floats."""
    statistics: Collection[str]
    """Running statistics of a BatchNormalization."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a file says of an initializer: PyTorch's exporter its `kind`, weft's writer its `role`."""

    kind: str | None = None
    role: Role | None = None
    row_sparse: bool = True
    lazy: bool = False
    """Whether its rule passes by rows that a step does not touch."""


def said_of(proto: onnx.TensorProto, kind: str | None) -> Said:
    """What stands beside the initializer; a word that is no role says nothing."""
    own = own_metadata(proto.metadata_props)
    roles = {role.name.lower(): role for role in Role}
    return Said(
        kind, roles.get(own.get(ROLE, "")), own.get(ROW_SPARSE) != "false", ROLE in own and own.get(LAZY) != "false"
    )


def reads(nodes: Sequence[Node], outputs: Iterable[str]) -> Reads:
    """Of nodes in an order in which they can run."""
    trained = set(outputs)
    statistics: set[str] = set()
    made = {name for node in nodes for name in node.outputs}
    for node in reversed(nodes):
        if node.op_type == "BatchNormalization" and node.domain == ONNX_DOMAIN:
            statistics.update(node.inputs[3:5])
        if any(output in trained for output in node.outputs) and _has_slope(node):
            settings = _settings(node)
            trained.update(
                name
                for name, setting in zip(node.inputs, settings, strict=True)
                if setting is None or (setting is Setting.GIVEN and name in made)
            )
    return Reads(trained, statistics - {""})


def role_of(name: str, array: Array, said: Said, found: Reads, options: ReadOptions) -> tuple[Role, str]:
    """What the initializer is, and why where it does not train: by the options, else by what its file says of it, else
    by what it is read for. Raises OnnxError where the options ask for what cannot be.
    """
    can_be_kept = array_type(array).dtype.is_float and array.size > 0
    if matches(name, options.constants):
        return Role.CONSTANT, "asked for"
    asked = Role.UNTRAINED if matches(name, options.untrained) else None
    if asked is None and matches(name, options.parameters):
        asked = Role.PARAMETER
    if asked is not None:
        if not can_be_kept:
            raise OnnxError(f"initializer {name!r} is {array_type(array)}, and cannot be a parameter", node=name)
        return asked, "asked for" if asked is Role.UNTRAINED else ""
    if not can_be_kept:
        return Role.CONSTANT, "no floats"
    if said.role is not None:
        return said.role, "" if said.role is Role.PARAMETER else "the file says so"
    if name in found.statistics and name not in found.trained:
        return Role.UNTRAINED, "running statistics"
    if said.kind not in {None, PARAMETER}:
        return Role.CONSTANT, _NO_PARAMETER.get(said.kind or "", "computed by the exporter")
    if said.kind == PARAMETER:
        return (Role.PARAMETER, "") if name in found.trained else (Role.UNTRAINED, UNREACHED)
    if name not in found.trained:
        return Role.CONSTANT, UNREACHED
    if array.ndim and not _is_mask(array):
        return Role.PARAMETER, ""
    return Role.CONSTANT, "a mask" if array.ndim else "a single number"


_NO_PARAMETER: Final = {BUFFER: "a buffer of the module", "CONSTANT_TENSOR": "a constant of the module"}


def _has_slope(node: Node) -> bool:
    """Whether gradients flow through the node; through one with bodies, and through an unknown one, they may."""
    schema = schemas().get((node.domain, node.op_type))
    if schema is None or any(isinstance(value, Subgraph) for value in node.attributes.values()):
        return True
    if node.op_type == "Cast" and node.domain == ONNX_DOMAIN:
        to = node.attributes.get("to")
        return isinstance(to, int) and to in DTYPE_OF_NUMBER and DTYPE_OF_NUMBER[to].is_float
    return schema.gradient is not None and schema.gradient is not flat


def _settings(node: Node) -> list[Setting | None]:
    """What the operator's schema says of each input."""
    schema = schemas().get((node.domain, node.op_type))
    formals = [formal_at(schema.inputs, place) if schema else None for place in range(len(node.inputs))]
    return [formal.setting if formal else None for formal in formals]


def _is_mask(array: Array) -> bool:
    """Whether it has infinities or its type's lowest number, or is 0 but for one very low number: no weight is so."""
    if array.size > _LOOKED_THROUGH:
        return False
    lowest = array.min()
    if not np.isfinite(array).all() or lowest == finfo(array.dtype).min:  # type: ignore[no-untyped-call]
        return True
    return bool(lowest <= _MASKED and ((array == 0) | (array == lowest)).all() and (array == 0).any())


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the glob patterns is the name's."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
