"""How much memory programs take, as bounds that hold before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft_graph.dimensions import is_unknown
from weft_graph.errors import GraphRefusedError
from weft_graph.infer import largest_types
from weft_graph.layout.plan import layout
from weft_graph.program import KeyPlan, Program
from weft_graph.types import TensorType
from weft_graph.weft_domain import is_communication


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """Bytes of a program's values at given dimensions; what kernels take besides is not in it.

    A value whose size only other values decide counts as large as it can be (what is chosen of a batch is the whole
    batch at most); where nothing says how large, it counts as nothing, and `unknown` says how many there are.
    """

    given: int
    """Inputs, constants and what is fetched: there without a kernel."""
    intermediates: int
    """All that kernels make, as if each value had memory of its own for the whole step."""
    live: int
    """The most of it that is held at one time, but for what is `kept`."""
    arena: int
    """The memory that these share, as laid out for the nodes' order."""
    kept: int
    """What lies outside of the arena, all held at once: mainly gradients that the store is handed."""
    unknown: int = 0

    @property
    def peak(self) -> int:
        """What a step takes: given, arena and kept."""
        return self.given + self.arena + self.kept

    @property
    def total(self) -> int:
        """All values held at once, which bounds any order and any device."""
        return self.given + self.intermediates


def parameter_bytes(keys: Iterable[KeyPlan]) -> int:
    """Bytes of all parameters' values, of tables as if every row were touched; a rule's state comes on top of it."""
    return sum(key.type.nbytes for key in keys)


def program_memory(program: Program, dims: Mapping[str, int]) -> ProgramMemory:
    """Bytes that the program's values take with the named dimensions filled: `{"batch": 32}`.

    A table is in it with the rows that a step can fetch, and never whole.

    Raises GraphRefusedError naming a value whose dimensions `dims` does not fill, and ShapeError or DTypeError where
    the filled dimensions do not fit an operator.
    """
    types = largest_types(program, dims)
    sizes = {name: _nbytes(name, type_) for name, type_ in types.items()}
    given = [input_.name for input_ in program.inputs] + [constant.name for constant in program.constants]
    for node in program.nodes:
        if is_communication(node):
            given.extend(node.outputs)
    laid_out = layout(program, types)
    return ProgramMemory(
        given=sum(sizes[name] or 0 for name in given),
        intermediates=laid_out.intermediate_bytes,
        live=laid_out.live_bytes,
        arena=laid_out.arena_bytes,
        kept=laid_out.kept_bytes,
        unknown=sum(size is None for size in sizes.values()),
    )


def _nbytes(name: str, type_: TensorType) -> int | None:
    open_dims = sorted({dim for dim in type_.shape if isinstance(dim, str) and not is_unknown(dim)})
    if open_dims:
        raise GraphRefusedError(f"value {name!r} is {type_}; nothing fills {', '.join(open_dims)}", node=name)
    return type_.nbytes if type_.is_static else None
