"""If: the outputs of one body or of another, as a condition says.

Both bodies take no inputs and capture the same values, which are the node's inputs behind the condition. Where the
condition is known before any step, the body that is not taken counts for nothing: it need not even fit.
"""

from __future__ import annotations

from weft_graph.attributes import as_body
from weft_graph.formals import ANY, BOOLEANS, required, rest
from weft_graph.ir import Subgraph
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.bodies import infer_reads, is_one, joined
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    then, otherwise = (as_body(context.attribute(name)) for name in ("then_branch", "else_branch"))
    if not is_one(context.input(0)):
        raise context.shape_error("the condition must be one element")
    if then.inputs or otherwise.inputs:
        raise context.shape_error("a branch takes no inputs; what it reads from outside it captures")
    if len(then.outputs) != len(otherwise.outputs):
        raise context.shape_error(f"then_branch gives {len(then.outputs)} values, else_branch {len(otherwise.outputs)}")
    _, captured = infer_reads(context, 1, 0, then)
    condition = context.constant(0)
    if condition is not None:
        return context.body(then if condition.reshape(-1)[0] else otherwise, captured)
    pairs = zip(context.body(then, captured), context.body(otherwise, captured), strict=True)
    return tuple(joined(context, a, b, f"output {place}") for place, (a, b) in enumerate(pairs))


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    branches = {name: as_body(context.attribute(name)) for name in ("then_branch", "else_branch")}
    given = [place for place in range(len(context.node.outputs)) if context.gradient(place) is not None]
    condition, *outer = context.node.inputs
    types = [context.type_of(value) for value in outer]
    known = context.known(condition)
    taken = [name for name in branches if known is None or bool(known.reshape(-1)[0]) == (name == "then_branch")]
    derived = {name: context.derive(name, types, given, {}) for name in taken}
    captured = branches["then_branch"].captured
    wanted = [
        place
        for place, name in enumerate(captured)
        if context.needs(1 + place) and any(branch.gradient(name) is not None for branch in derived.values())
    ]
    outputs = {
        taken: [branch.gradient(captured[place]) or branch.zeros(captured[place]) for place in wanted]
        for taken, branch in derived.items()
    }
    seeds = {name: output for branch in derived.values() for output, name in branch.seeds.items()}
    read = {name for taken, branch in derived.items() for name in branch.reads(outputs[taken])}
    kept = [name for name in (*captured, *seeds) if name in read or name in {captured[place] for place in wanted}]
    values = {
        **dict(zip(captured, outer, strict=True)),
        **{name: context.gradient(seeds[name]) or "" for name in seeds},
    }
    closed = {name: branch.closed((), kept, outputs[name]) for name, branch in derived.items()}
    # The body that is not taken is of the right types, and nothing besides.
    never = Subgraph((), tuple(kept), (), tuple(captured[place] for place in wanted))
    results = context.emit(
        "If",
        (condition, *(values[name] for name in kept)),
        {name: closed.get(name, never) for name in branches},
        outputs=len(wanted),
    )
    found: list[str | None] = [None] * (1 + len(outer))
    for place, gradient in zip(wanted, results, strict=True):
        found[1 + place] = gradient
    return tuple(found)


SCHEMA = OpSchema(
    op_type="If",
    inputs=(required("cond", BOOLEANS), rest("captured", ANY)),
    outputs=(rest("outputs", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "then_branch": Attribute(Subgraph, required=True),
        "else_branch": Attribute(Subgraph, required=True),
    },
)
