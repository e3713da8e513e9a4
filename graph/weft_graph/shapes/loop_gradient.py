"""The gradient of Loop and Scan: LoopGrad, which runs the derived body once for each turn, from the last to the first.

The way forward is made to keep, of each turn, what the derived body reads of what the turn began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_graph.attributes import as_body
from weft_graph.dimensions.dims import is_unknown
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Subgraph
from weft_graph.schema import BodyDerivation, GradientContext
from weft_graph.shapes.flow import refusal
from weft_graph.shapes.scanning import Scanned
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Repeated:
    """How an operator repeats its body.

    `types` are those of what the body reads, inputs and captured values. `before` counts its inputs before the states,
    which are `states` many, and `condition` its outputs before them; `scanned` says how the inputs behind the states
    are taken apart, and `together` how the outputs behind them are put together. `turns` are known to be taken at
    least.
    """

    types: Sequence[TensorType]
    before: int
    states: int
    condition: int
    scanned: Sequence[Scanned]
    together: Sequence[Scanned]
    turns: int = 0


def repeated_gradient(
    context: GradientContext, how: Repeated, kept: dict[str, AttributeValue]
) -> tuple[str | None, ...]:
    """The gradients of the node's inputs. `kept` are attributes of scan outputs that further ones continue: lists."""
    body = as_body(context.attribute("body"))
    given = [index for index in range(len(context.node.outputs)) if context.gradient(index) is not None]
    carried = {how.condition + state: body.inputs[how.before + state] for state in range(how.states)}
    seeds = [how.condition + index for index in given]
    derived = context.derive("body", how.types, seeds, carried, may_not_run=how.turns < 1)
    return _Turned(context, how, body, derived).gradients(kept)


@dataclass(frozen=True, slots=True)
class _Turned:
    """The loop that runs backwards, as it is put together."""

    context: GradientContext
    how: Repeated
    body: Subgraph
    derived: BodyDerivation

    def gradients(self, kept: dict[str, AttributeValue]) -> tuple[str | None, ...]:
        body, how, derived = self.body, self.how, self.derived
        reads = (*body.inputs, *body.captured)
        states = [state for state in range(how.states) if how.condition + state in derived.seeds]
        parts = [place for place in range(len(how.together)) if how.condition + how.states + place in derived.seeds]
        flows = [place for place, name in enumerate(reads) if self._flows(place, name)]
        scanned = [place for place in flows if how.before + how.states <= place < len(body.inputs)]
        captured = [place for place in flows if place >= len(body.inputs)]
        outputs = [self._begun(state) for state in states]
        outputs += [derived.gradient(reads[place]) or "" for place in (*scanned, *captured)]
        needed = derived.reads(outputs)
        stacked = self._stacked(needed, parts, kept)
        summed_like = [
            name for name in body.captured if name in needed or len(body.inputs) + body.captured.index(name) in captured
        ]
        seeds = [derived.seeds[how.condition + state] for state in states]
        turned = derived.closed([*seeds, *(name for name, _, _ in stacked)], summed_like, outputs)
        results = self.context.emit(
            "LoopGrad",
            (
                *(self._final(state) for state in states),
                *(value for _, value, _ in stacked),
                *(self._outer(name) for name in summed_like),
            ),
            {
                "body": turned,
                "carried": len(states),
                **_ways("input", [way for _, _, way in stacked]),
                **_ways("output", [how.scanned[place - how.before - how.states] for place in scanned]),
                "summed": tuple(summed_like.index(reads[place]) for place in captured),
            },
            domain=WEFT_DOMAIN,
            outputs=len(outputs),
        )
        found: list[str | None] = [None] * len(self.context.node.inputs)
        for place, gradient in zip(
            (*(how.before + state for state in states), *scanned, *captured), results, strict=True
        ):
            found[place] = gradient
        return tuple(found)

    def _flows(self, place: int, name: str) -> bool:
        return self.context.needs(place) and self.derived.gradient(name) is not None

    def _begun(self, state: int) -> str:
        """The gradient of what a turn begins with; zeros are made like what needs not be kept, where that will do."""
        name = self.body.inputs[self.how.before + state]
        after = self.derived.seeds[self.how.condition + state]
        return self.derived.gradient(name) or self.derived.zeros(after if self._is_steady(state) else name)

    def _is_steady(self, state: int) -> bool:
        """Whether the state has the same shape before all turns and after them."""
        before, after = (
            self.context.type_of(self.context.input(self.how.before + state)),
            self.context.output_type(state),
        )
        return before.shape == after.shape and not any(map(is_unknown, before.shape))

    def _outer(self, name: str) -> str:
        return self.context.input((*self.body.inputs, *self.body.captured).index(name))

    def _final(self, state: int) -> str:
        return self.context.gradient(state) or self.context.zeros(self.context.output(state))

    def _stacked(
        self, needed: set[str], parts: Sequence[int], kept: dict[str, AttributeValue]
    ) -> list[tuple[str, str, Scanned]]:
        """(name in the body, value, how it is taken apart) of all that has a part for each turn, never nothing."""
        how, body = self.how, self.body
        first = how.before + how.states
        scanned = list(zip(body.inputs[first:], how.scanned, strict=True))
        stacked = [
            (name, self._outer(name), way) for place, (name, way) in enumerate(scanned) if name in needed or place == 0
        ]
        saved = [
            (place, name)
            for place, name in enumerate(body.inputs[:first])
            if name in needed or (place == 0 and not stacked)
        ]
        for place, name in saved:
            self._check_steady(place, name)
        values = self._saved([name for _, name in saved], kept) if saved else ()
        stacked += [(name, value, Scanned(0, backwards=False)) for (_, name), value in zip(saved, values, strict=True)]
        for place in parts:
            output = how.condition + how.states + place
            gradient = self.context.gradient(how.states + place)
            assert gradient is not None, "an output has a gradient of its own, or gets one at the next turn"
            stacked.append((self.derived.seeds[output], gradient, how.together[place]))
        return stacked

    def _saved(self, names: Sequence[str], kept: dict[str, AttributeValue]) -> tuple[str, ...]:
        """What each turn began with, as further outputs of the way forward."""
        body = self.body
        longer = Subgraph(body.inputs, body.captured, body.nodes, (*body.outputs, *names), body.constants)
        zeros = (0,) * len(names)
        lists = {name: (*value, *zeros) for name, value in kept.items() if isinstance(value, tuple)}
        return self.context.extend({"body": longer, **lists}, len(names))

    def _check_steady(self, place: int, name: str) -> None:
        """What turns have begun with can be kept together where it is of one shape."""
        if self.how.before <= place:
            before = self.context.type_of(self.context.input(place))
            after = self.how.types[place]
            if before.shape != after.shape and not before.is_known == after.is_known:
                raise refusal(
                    self.context,
                    f"{name!r} is {before} in the first turn and {after} in later ones; the gradient needs what each "
                    "turn began with, in one shape",
                )


def _ways(what: str, ways: Sequence[Scanned]) -> dict[str, AttributeValue]:
    return {
        f"{what}_axes": tuple(way.axis for way in ways),
        f"{what}_directions": tuple(int(way.backwards) for way in ways),
    }
