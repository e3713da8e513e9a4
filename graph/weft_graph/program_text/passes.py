"""What each pass of the converter did, for people: a line or two a pass, or every node that came and went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from weft_graph.dimensions import is_unknown
from weft_graph.ir import Node, Subgraph
from weft_graph.names import RESERVED_PREFIX
from weft_graph.passes.draft import Draft, made
from weft_graph.passes.pipeline import Pass
from weft_graph.program import Role
from weft_graph.program_text.listing import counted, folded, listed, name_text, size_text, type_text
from weft_graph.types import TensorType

_USUAL_DIM = 32
"""What a dimension that nobody has filled counts as where sizes are compared."""
_TITLES = {None: "both programs", Role.TRAIN: "training", Role.EVALUATE: "evaluation"}


@dataclass(frozen=True, slots=True)
class PassRun:
    """One run of a pass."""

    name: str
    before: Draft
    after: Draft


class Recorder:
    """A `watch` for `convert` that keeps what it sees."""

    def __init__(self) -> None:
        self.runs: list[PassRun] = []

    def __call__(self, each: Pass, before: Draft, after: Draft) -> None:
        self.runs.append(PassRun(each.name, before, after))


def passes_text(runs: Iterable[PassRun], *, full: bool = False, dims: Mapping[str, int] | None = None) -> str:
    """The runs in order, below what they make; with `full`, each node that came (+) and went (-).

    Sizes are those of values with the dimensions `dims`; one that is not in it counts as 32.
    """
    lines: list[str] = []
    for role, group in groupby(runs, key=lambda run: run.after.role):
        lines += [""] * bool(lines) + [_TITLES[role]]
        for changes, some in groupby(group, key=lambda run: "; ".join(_changes(run, dims or {}))):
            same = list(some)
            if not changes:
                lines += folded(f"nothing to do: {', '.join(run.name for run in same)}", " " * 2, " " * 4)
            for run in same if changes else ():
                lines += _run_lines(run, changes)
                lines += _node_lines(run) if full else ()
    return "\n".join(lines)


def _run_lines(run: PassRun, changes: str) -> list[str]:
    before, after = run.before.graph.nodes, run.after.graph.nodes
    count = f"{len(before)} → {len(after)} nodes" if len(before) != len(after) else counted(len(after), "node")
    return folded(f"{run.name:<24}{count:<18}{changes}", "  ", " " * 44)


def _changes(run: PassRun, dims: Mapping[str, int]) -> Iterator[str]:
    """What is different, the nodes first."""
    gone, come, rewritten = _difference(run)
    if gone:
        yield f"- {_operators(gone)}"
    if come:
        yield f"+ {_operators(come)}"
    if rewritten:
        yield f"{counted(rewritten, 'node')} rewritten"
    constants = len(run.after.graph.constants) - len(run.before.graph.constants)
    if constants:
        yield f"{constants:+} {'constant' if abs(constants) == 1 else 'constants'}"
    yield from _decisions(run.before, run.after)
    yield from _saved(run, dims)


def _difference(run: PassRun) -> tuple[list[Node], list[Node], int]:
    """The nodes that went, those that came, and how many stayed by name and are not what they were."""
    old = {node.name: node for node in run.before.graph.nodes}
    new = {node.name: node for node in run.after.graph.nodes}
    gone = [node for name, node in old.items() if name not in new]
    come = [node for name, node in new.items() if name not in old]
    return gone, come, sum(1 for name, node in new.items() if name in old and old[name] != node)


def _operators(nodes: Iterable[Node]) -> str:
    counts = Counter(node.op_type for node in nodes)
    return listed((op_type if n == 1 else f"{n} {op_type}" for op_type, n in counts.most_common()), 9)


def _decisions(before: Draft, after: Draft) -> Iterator[str]:
    if after.statistics != before.statistics and len(after.statistics) > len(before.statistics):
        yield f"{counted(len(after.statistics), 'running statistic')} to send"
    if after.gradients and not before.gradients:
        yield f"gradients of {counted(len(after.gradients), 'parameter')}"
    if after.urgency != before.urgency:
        order = sorted(after.urgency, key=lambda key: after.urgency[key])
        yield f"the most urgent is {name_text(order[0])}, the least {name_text(order[-1])}" if order else "no parameter"
    if after.tables != before.tables:
        if after.tables.keys:
            yield f"read by rows alone: {listed(map(name_text, after.tables.keys))}"
        if after.tables.dense:
            yield f"dense though read by rows: {listed(map(name_text, after.tables.dense))}"
    narrow = [node for node in after.graph.nodes if _narrowed(node, before, after)]
    if narrow:
        dtype = _narrowed(narrow[0], before, after)
        rest = counted(len(before.graph.nodes) - len(narrow), "other node")
        yield f"in {dtype}: {_operators(narrow)}; {rest} as before"
    if after.reads and not before.reads:
        yield f"rows stand in the place of {listed(name_text(read.key) for read in after.reads)}"


def _narrowed(node: Node, before: Draft, after: Draft) -> str:
    """The type that the node gives instead of the one that it gave; nothing where that is the same."""
    for name in node.outputs:
        if name in before.types and name in after.types and before.types[name].dtype is not after.types[name].dtype:
            return after.types[name].dtype.value
    return ""


def _saved(run: PassRun, dims: Mapping[str, int]) -> Iterator[str]:
    """How many bytes of values are made no more, and the largest of them."""
    left = set(made(run.after.graph.nodes)) | {name for node in run.after.graph.nodes for name in _inner(node)}
    written = set(made(run.after.graph.nodes))
    gone = {
        name: _nbytes(run.before.types[name], dims)
        for name in made(run.before.graph.nodes)
        if name not in written and name in run.before.types
    }
    large = {name: size for name, size in gone.items() if run.before.types[name].rank}
    if not large:
        return
    name = max(large, key=lambda each: large[each])
    what = "not written to memory" if all(each in left for each in large) else "not made"
    shown = f"{_name(name)} {type_text(run.before.types[name])}"
    total = sum(large.values())
    yield f"{size_text(total)} {what}" + (f", the largest {shown}" if len(large) > 1 else f": {shown}")


def _inner(node: Node) -> Iterator[str]:
    for value in node.attributes.values():
        if isinstance(value, Subgraph):
            yield from made(value.nodes)


def _nbytes(type_: TensorType, dims: Mapping[str, int]) -> int:
    names = {dim for dim in type_.shape if isinstance(dim, str)}
    usual = {part: _USUAL_DIM for name in names for part in _words(name)}
    bound = type_.bind({**usual, **dims})
    return bound.nbytes if bound.is_static else 0


def _words(dim: str) -> Iterator[str]:
    """The names in a polynomial of dimensions: `8*batch+length` has two."""
    if not is_unknown(dim):
        yield from (word for term in dim.split("+") for word in term.split("*") if not word.isdigit())


def _node_lines(run: PassRun) -> Iterator[str]:
    old = {node.name: node for node in run.before.graph.nodes}
    new = {node.name: node for node in run.after.graph.nodes}
    for name, node in old.items():
        if name not in new or new[name] != node:
            yield from _one_line("-", node, run.before.types)
    for name, node in new.items():
        if name not in old or old[name] != node:
            yield from _one_line("+", node, run.after.types)


def _name(value: str) -> str:
    return name_text(value.removeprefix(RESERVED_PREFIX)) or "-"


def _one_line(sign: str, node: Node, types: Mapping[str, TensorType]) -> Iterator[str]:
    outputs = ", ".join(_name(name) for name in node.outputs if name)
    inputs = ", ".join(_name(name) for name in node.inputs)
    written = ", ".join(type_text(types[name]) for name in node.outputs if name in types)
    inside = ", ".join(
        each.op_type for value in node.attributes.values() if isinstance(value, Subgraph) for each in value.nodes
    )
    body = f" of {inside}" if inside else ""
    equals = f"{outputs} = " if outputs else ""
    yield from folded(f"{sign} {equals}{node.op_type}({inputs}){body}  {written}".rstrip(), " " * 6, " " * 10)
