"""How much memory programs take, as bounds that hold before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft_graph.errors import GraphRefusedError
from weft_graph.infer import infer_program
from weft_graph.program import KeyPlan, Program
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """Bytes of a program's values at given dimensions.

    `total` is all values held at once, so it bounds any order and any device. `peak` is the most that are held at the
    same time when nodes run one after the other and each value goes after its last reader; what kernels take besides,
    and values that share memory, are not in it.
    """

    total: int
    peak: int


def parameter_bytes(keys: Iterable[KeyPlan]) -> int:
    """Bytes of all parameters' values, of tables as if every row were touched; a rule's state comes on top of it."""
    return sum(key.type.nbytes for key in keys)


def program_memory(program: Program, dims: Mapping[str, int]) -> ProgramMemory:
    """Bytes that the program's values take with the named dimensions filled: `{"batch": 32}`.

    A table is in it with the rows that a step can fetch, and never whole.

    Raises GraphRefusedError naming a value whose dimensions `dims` does not fill, and ShapeError or DTypeError where
    the filled dimensions do not fit an operator.
    """
    sizes = {name: _nbytes(name, type_) for name, type_ in infer_program(program, dims).items()}
    held = [input_.name for input_ in program.inputs] + [constant.name for constant in program.constants]
    last_reader = {name: len(program.nodes) for name in (*held, *program.outputs.values())}
    for index, node in enumerate(program.nodes):
        for name in (*node.inputs, *node.outputs):
            if name:
                last_reader[name] = max(index, last_reader.get(name, index))
    ends: dict[int, int] = {}
    for name, index in last_reader.items():
        ends[index] = ends.get(index, 0) + sizes[name]
    live = sum(sizes[name] for name in held)
    peak = live
    for index, node in enumerate(program.nodes):
        live += sum(sizes[name] for name in node.outputs if name)
        peak = max(peak, live)
        live -= ends.get(index, 0)
    return ProgramMemory(total=sum(sizes.values()), peak=peak)


def _nbytes(name: str, type_: TensorType) -> int:
    if not type_.is_static:
        open_dims = ", ".join(sorted({dim for dim in type_.shape if isinstance(dim, str)}))
        raise GraphRefusedError(f"value {name!r} is {type_}; nothing fills {open_dims}", node=name)
    return type_.nbytes
