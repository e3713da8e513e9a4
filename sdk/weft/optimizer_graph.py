"""Update rules of a user's own: a Python function of expressions, traced once here, of which only the graph is sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.api.optimizer import GraphOptimizer
from weft.collect import collect
from weft.errors import ArgumentError
from weft.evaluation import run_graph
from weft.expression import Expression
from weft.leaves import input  # noqa: A004 - ONNX's word
from weft.optimizers import Hyper, Multipliers, graph_optimizer
from weft.records import Array
from weft_graph.ir import Graph
from weft_graph.rules.binding import bound_rule
from weft_graph.rules.graph import GRADIENT, OF_EVERY_RULE, STEP, WEIGHT, RuleGraph, checked, rule_graph_to_json
from weft_graph.rules.schedule import value_at
from weft_graph.types import DType, TensorType

Next = Expression | tuple[Expression, Mapping[str, Expression]]
Function = Callable[..., Next]

ELEMENTS = ("elements",)


class CustomOptimizer:
    """An optimizer that was made of a function. Called with hyper-parameters, it gives what a job takes as its
    `optimizer`."""

    def __init__(self, rule: RuleGraph, doc: str | None = None) -> None:
        self._rule = rule
        self.__doc__ = doc or f"The optimizer {rule.name!r}."

    @property
    def name(self) -> str:
        return self._rule.name

    @property
    def document(self) -> dict[str, Any]:
        """What is sent: the graph, the states' starts, the hyper-parameters' defaults. A new object."""
        return rule_graph_to_json(self._rule)

    def __call__(self, *, multipliers: Multipliers | None = None, **hyper: Hyper) -> GraphOptimizer:
        """The optimizer of a job, with these hyper-parameters, each a number or a schedule; defaults for the others.

        Raises ArgumentError.
        """
        self._check_hyper(hyper)
        return graph_optimizer(self.document, hyper, multipliers)

    def apply(
        self, weight: Any, gradient: Any, state: Mapping[str, Any] | None = None, *, step: int = 1, **hyper: Hyper
    ) -> tuple[Array, dict[str, Array]]:
        """Runs the optimizer here, on arrays: the next weight and the next states, new arrays of the weight's type.

        `step` counts a parameter's updates from 1; states that are left out are as they start. Raises ArgumentError,
        GraphRefusedError where the optimizer is not for such a weight, EvaluatorError where nothing can evaluate.
        """
        self._check_hyper(hyper)
        weight = np.asarray(weight)
        if weight.dtype.kind != "f":
            raise ArgumentError(f"a weight is floats, not {weight.dtype}")
        given = {} if state is None else state
        unknown = sorted(given.keys() - self._rule.state.keys())
        if unknown:
            raise ArgumentError(
                f"optimizer {self.name!r} has no state {unknown[0]!r}; it has {_listed(self._rule.state)}"
            )
        bound = bound_rule(self._rule, DType(weight.dtype.name), weight.shape).graph
        types = {input_.name: input_.type for input_ in bound.inputs}
        starts = {name: np.full(weight.shape, start) for name, start in self._rule.state.items()}
        arrays = {WEIGHT: weight, GRADIENT: gradient, **starts, **given}
        feeds = {name: self._array(name, array, weight, types[name]) for name, array in arrays.items()}
        numbers = {name: value_at(_plain(hyper.get(name, default)), step - 1) for name, default in self._hyper()}
        numbers[STEP] = float(step)
        feeds.update({name: np.asarray(numbers[name], t.dtype.numpy) for name, t in types.items() if name in numbers})
        values = run_graph(bound, feeds)
        computed = {name: values[value].reshape(weight.shape) for name, value in self._rule.next.items()}
        with np.errstate(over="ignore"):
            updated = computed.pop(WEIGHT).astype(weight.dtype, copy=False)
        return updated, {name: _kept(array, weight.dtype) for name, array in computed.items()}

    def __repr__(self) -> str:
        hyper = ", ".join(f"{name}={default:g}" for name, default in self._hyper())
        return f"<optimizer {self.name}({hyper}), state: {_listed(self._rule.state)}>"

    def _hyper(self) -> Sequence[tuple[str, float]]:
        return list(self._rule.hyper.items())

    def _array(self, name: str, value: Any, weight: Array, type_: TensorType) -> Array:
        array = np.asarray(value, weight.dtype).astype(type_.dtype.numpy, copy=False)
        if array.shape != weight.shape:
            raise ArgumentError(f"{name} is of shape {array.shape}, and the weight of {weight.shape}")
        return array.reshape(type_.static_shape)

    def _check_hyper(self, hyper: Mapping[str, object]) -> None:
        unknown = sorted(hyper.keys() - self._rule.hyper.keys())
        if unknown:
            has = _listed(self._rule.hyper)
            raise ArgumentError(f"optimizer {self.name!r} has no hyper-parameter {unknown[0]!r}; it has {has}")


def _kept(state: Array, dtype: np.dtype[Any]) -> Array:
    """A computed state in the weight's element type; a narrower one keeps it finite, and what is not 0 from being 0."""
    if state.dtype == dtype:
        return state
    limits = np.finfo(dtype)
    kept = np.clip(state, -limits.max, limits.max).astype(dtype)
    return np.where((kept == 0) & (state != 0), np.copysign(limits.smallest_subnormal, state).astype(dtype), kept)


def custom_optimizer(
    *,
    state: Mapping[str, float] | None = None,
    shape: Sequence[str] = ELEMENTS,
    name: str | None = None,
    **hyper: float,
) -> Callable[[Function], CustomOptimizer]:
    """Makes an optimizer from a function of expressions: `@weft.custom_optimizer(state={"velocity": 0.0}, lr=0.1,
    momentum=0.9)`.

    The function takes what it needs of `weight`, `gradient`, each state, `step` (a parameter's updates, from 1) and
    each hyper-parameter by these names, and returns the next weight, or (next weight, {state: its next}). `state` has
    what each state starts at, the other arguments are hyper-parameters with their defaults.

    Weight, gradient and states are flattened, so it works for any shape; with `shape=("rows", "columns")` it is for
    matrices only. Numbers computed from numbers alone are float64, all else has the parameter's dtype;
    `ops.cast(x, weight.dtype)` converts. An element-wise optimizer may be cut over shards and train tables; any other
    keeps each parameter on one shard.

    Raises ArgumentError for other parameters or results, GraphError for operators that an optimizer cannot use.
    """

    def made(function: Function) -> CustomOptimizer:
        called = function.__name__ if name is None else name
        return CustomOptimizer(_traced(called, function, state or {}, hyper, tuple(shape)), inspect.getdoc(function))

    return made


def _traced(
    name: str, function: Function, state: Mapping[str, float], hyper: Mapping[str, float], shape: tuple[str, ...]
) -> RuleGraph:
    if not shape or not all(isinstance(dim, str) for dim in shape):
        raise ArgumentError(f"optimizer {name!r}: a shape is names of dimensions, at least one, not {shape}")
    values = {each: input(each, shape, DType.FLOAT64) for each in (WEIGHT, GRADIENT, *state)}
    values.update({each: input(each, (), DType.FLOAT64) for each in (STEP, *hyper)})
    asked = _parameters(name, function, values, (*OF_EVERY_RULE, *state, *hyper))
    weight, states = _results(name, function(**{each: values[each] for each in asked}), state)
    following = {WEIGHT: weight, **states}
    collected = collect(tuple(following.values()), name)
    inputs = tuple(each for value in values.values() for each in collect((value,), name).graph.inputs)
    graph: Graph = replace(collected.graph, inputs=inputs)
    named = dict(zip(following, collected.outputs, strict=True))
    return checked(RuleGraph(name, graph, dict(state), dict(hyper), named))


def _parameters(
    name: str, function: Function, values: Mapping[str, Expression], known: Sequence[str]
) -> tuple[str, ...]:
    if len(values) < len(known):
        twice = next(each for each in known if known.count(each) > 1)
        raise ArgumentError(f"optimizer {name!r}: {twice!r} has two meanings")
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError(f"optimizer {name!r}: its function takes its parameters by name, not {parameter}")
        if parameter.name not in values:
            raise ArgumentError(f"optimizer {name!r}: nothing is called {parameter.name!r}; there are {_listed(known)}")
    unused = [each for each in known if each not in parameters and each not in OF_EVERY_RULE]
    if unused:
        raise ArgumentError(f"optimizer {name!r}: its function does not take {_listed(unused)}")
    return tuple(parameters)


def _results(name: str, result: object, state: Mapping[str, float]) -> tuple[Expression, dict[str, Expression]]:
    weight, states = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(states, Mapping) or not isinstance(weight, Expression):
        raise ArgumentError(
            f"optimizer {name!r}: its function returns the next weight, or (next weight, {{state: next}}), "
            f"not {result!r}"
        )
    if states.keys() != state.keys():
        raise ArgumentError(
            f"optimizer {name!r}: its function returns the next of {_listed(states) or 'no state'}, "
            f"and its states are {_listed(state) or 'none'}"
        )
    for each, value in states.items():
        if not isinstance(value, Expression):
            raise ArgumentError(f"optimizer {name!r}: the next {each!r} is an expression, not {value!r}")
    return weight, dict(states)


def _plain(hyper: Hyper) -> float | dict[str, Any]:
    return hyper if isinstance(hyper, int | float) else hyper.document()


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, names)) or "none"
