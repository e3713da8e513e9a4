"""Rules of a user's own, schedules and multipliers, as scripts write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import custom_optimizer, ops
from weft.api import optimizer as api
from weft.api import schedule
from weft_graph.rules.graph import rule_graph_from_json, rule_graph_to_json
from weft_kernels.rules.lookup import rule_from


@custom_optimizer(state={"velocity": 0.5}, lr=0.1, momentum=0.9)
def nesterov(weight: Any, gradient: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    """Looks ahead."""
    velocity = momentum * velocity + gradient
    return weight - lr * (gradient + momentum * velocity), {"velocity": velocity}


@custom_optimizer(lr=0.1)
def unit(weight: Any, gradient: Any, lr: Any) -> Any:
    return weight - lr * gradient / ops.sqrt(ops.reduce_sum(gradient * gradient))


def test_a_function_becomes_a_document_that_is_a_rule() -> None:
    document = nesterov.document
    assert rule_graph_to_json(rule_graph_from_json(document)) == document
    assert (document["name"], document["state"]) == ("nesterov", {"velocity": 0.5})
    assert document["hyper"] == {"lr": 0.1, "momentum": 0.9}
    assert [each["name"] for each in document["graph"]["inputs"]] == [
        "weight", "gradient", "velocity", "step", "lr", "momentum",
    ]  # fmt: skip
    assert (nesterov.name, nesterov.__doc__) == ("nesterov", "Looks ahead.")
    assert repr(nesterov) == "<optimizer nesterov(lr=0.1, momentum=0.9), state: 'velocity'>"


def test_calling_it_with_hyper_parameters_makes_the_rule_of_a_job() -> None:
    made = nesterov(lr=weft.cosine(0.1, steps=10), multipliers={"*.bias": {"lr": 2.0, "momentum": 0.0}})
    assert made == api.GraphOptimizer(
        document=nesterov.document,
        hyper={"lr": schedule.Cosine(start=0.1, steps=10)},
        multipliers=[api.GraphMultiplier.model_validate({"keys": "*.bias", "lr": 2.0, "momentum": 0.0})],
    )
    assert api.GraphOptimizer.model_validate_json(made.model_dump_json()) == made


def test_a_job_takes_the_rule_itself_too() -> None:
    x, y = weft.input("x", ("batch", 4)), weft.input("y", ("batch",), "int64")
    loss = weft.nn.cross_entropy(weft.nn.Linear(4, 3)(x), y)
    spec = weft.job_spec(loss, data="points.npz", steps=1, optimizer=nesterov)
    assert spec.optimizer == nesterov()
    assert weft.JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_runs_here_on_arrays(dtype: str) -> None:
    weight, gradient = np.array([[1.0, 2.0]], dtype), np.array([[0.5, -1.0]], dtype)
    new, state = nesterov.apply(weight, gradient, {"velocity": np.zeros((1, 2))}, lr=0.5)
    assert (new.dtype, state["velocity"].dtype) == (np.dtype(dtype), np.dtype(dtype))
    rtol = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(new, [[1 - 0.5 * 1.9 * 0.5, 2 + 0.5 * 1.9]], rtol=rtol)
    np.testing.assert_allclose(state["velocity"], gradient, rtol=rtol)
    started, _ = nesterov.apply(weight, gradient, lr=0.0)
    np.testing.assert_array_equal(started, weight)
    assert nesterov.apply(weight, gradient)[1]["velocity"][0, 0] == pytest.approx(0.95, rel=2e-3)
    reduced, _ = unit.apply(weight, gradient)
    np.testing.assert_allclose(reduced, weight - 0.1 * gradient / np.linalg.norm(gradient.astype("f8")), rtol=2e-3)


def test_a_rule_of_halves_loses_no_small_and_no_large_state_as_on_a_shard() -> None:
    @custom_optimizer(state={"square": 0.0}, lr=0.5)
    def adagrad(weight: Any, gradient: Any, square: Any, lr: Any) -> Any:
        square = square + gradient * gradient
        return weight - lr * gradient / (ops.sqrt(square) + 1e-12), {"square": square}

    weight, gradient = np.zeros(4, np.float16), np.array([1e-5, -3.0, 1000.0, 0.0], np.float16)
    on_shard, its_square = weight.copy(), np.zeros_like(weight)
    rule_from(adagrad.document).apply(on_shard, gradient.copy(), {"square": its_square}, 1, {"lr": 0.5})
    updated, state = adagrad.apply(weight, gradient)
    np.testing.assert_array_equal(updated, np.array([-0.5, 0.5, -0.5, 0.0], np.float16))
    np.testing.assert_array_equal(state["square"], np.array([6e-8, 9.0, 65504.0, 0.0], np.float16))
    assert (updated.tobytes(), state["square"].tobytes()) == (on_shard.tobytes(), its_square.tobytes())


def test_a_schedule_follows_the_step_here_too() -> None:
    @custom_optimizer(lr=0.1)
    def plain(weight: Any, gradient: Any, lr: Any, step: Any) -> Any:
        return weight - lr * step * gradient

    decayed = weft.linear(1.0, 0.0, steps=4)
    moves = [-plain.apply(np.zeros(1), np.ones(1), step=step, lr=decayed)[0][0] for step in range(1, 6)]
    assert moves == [1.0, 1.5, 1.5, 1.0, 0.0]


def returns(*results: Any) -> Any:
    """A function of weight and gradient, with what it returns."""
    return lambda weight, gradient: results[0] if len(results) == 1 else results


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: custom_optimizer(lr=0.1)(lambda weight, gradient: weight - gradient), weft.ArgumentError,
         "optimizer '<lambda>': its function does not take 'lr'"),
        (lambda: custom_optimizer()(lambda weight, grad: weight - grad), weft.ArgumentError,
         "nothing is called 'grad'; there are 'weight', 'gradient', 'step'"),
        (lambda: custom_optimizer()(lambda *arrays: arrays[0]), weft.ArgumentError, "by name, not *arrays"),
        (lambda: custom_optimizer()(returns(1.0)), weft.ArgumentError, "returns the next weight, or (next weight"),
        (lambda: custom_optimizer()(lambda weight, gradient: (weight - gradient, {"v": gradient})), weft.ArgumentError,
         "returns the next of 'v', and its states are none"),
        (lambda: custom_optimizer(state={"v": 0.0})(lambda weight, gradient, v: weight - gradient), weft.ArgumentError,
         "returns the next of none, and its states are 'v'"),
        (lambda: custom_optimizer(state={"v": 0.0})(lambda weight, gradient, v: (weight - v * gradient, {"v": 1.0})),
         weft.ArgumentError, "the next 'v' is an expression, not 1.0"),
        (lambda: custom_optimizer(state={"lr": 0.0}, lr=0.1)(lambda weight, gradient, lr: weight), weft.ArgumentError,
         "'lr' has two meanings"),
        (lambda: custom_optimizer(step=0.1)(lambda weight, gradient, step: weight), weft.ArgumentError,
         "'step' has two meanings"),
        (lambda: custom_optimizer(shape=())(lambda weight, gradient: weight), weft.ArgumentError,
         "names of dimensions"),
        (lambda: custom_optimizer()(lambda weight, gradient: weight), weft.GraphRefusedError, "never reads 'gradient'"),
        (lambda: custom_optimizer()(lambda weight, gradient: ops.reduce_sum(weight * gradient)), weft.ShapeError,
         "'reduce_sum' is float64[], and 'weight' is float64[elements]"),
        (lambda: custom_optimizer()(lambda weight, gradient: weight - ops.dropout(gradient)), weft.GraphRefusedError,
         "(Dropout): a rule takes"),
        (lambda: custom_optimizer(lr=float("nan"))(lambda weight, gradient, lr: weight - lr * gradient),
         weft.GraphRefusedError, "'lr' is nan"),
        (lambda: nesterov(eta=0.1), weft.ArgumentError, "no hyper-parameter 'eta'; it has 'lr', 'momentum'"),
        (lambda: nesterov(lr=float("inf")), weft.ArgumentError, "nesterov: hyper.lr is inf; it should be a finite"),
        (lambda: nesterov.apply(np.zeros(3, int), np.zeros(3)), weft.ArgumentError, "floats, not int64"),
        (lambda: nesterov.apply(np.zeros(3), np.zeros(2)), weft.ArgumentError, "gradient is of shape (2,)"),
        (lambda: nesterov.apply(np.zeros(3), np.zeros(3), {"v": 0}), weft.ArgumentError, "has no state 'v'"),
        (lambda: weft.SGD(multipliers={"*": 2.0}), weft.ArgumentError, "factors by pattern"),
        (lambda: weft.SGD(multipliers={"*": {"eta": 2.0}}), weft.ArgumentError,
         "multipliers of '*': there is no field 'eta'"),
        (lambda: weft.SGD(multipliers={"*": {"lr": -2.0}}), weft.ArgumentError,
         "multipliers of '*': lr is -2.0; it should be greater"),
        (lambda: weft.SGD(weft.linear(0.1, -0.1, steps=3)), weft.ArgumentError, "its values go from -0.1 to 0.1"),
        (lambda: weft.Adam(betas=(weft.warmup(1.0, 3), 0.9)), weft.ArgumentError, "should be at least 0 and below 1"),
        (lambda: weft.Adam(weft.exponential(0.1, 1.1, steps=3)), weft.ArgumentError, "grows without end; say an end"),
        (lambda: weft.exponential(0.1, 0.5, steps=3, end=0.2), weft.ArgumentError, "away from 0.2"),
        (lambda: weft.linear(0.1, steps=0), weft.ArgumentError, "linear: steps is 0; it should be greater"),
        (lambda: weft.linear(0.1, steps=3, warmup=-1), weft.ArgumentError, "linear: steps is -1"),
        (lambda: weft.piecewise(0.1, {0: 0.5}), weft.ArgumentError, "piecewise: step is 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_schedules_are_the_models() -> None:
    warm = schedule.Warmup(steps=5, start=0.01)
    assert weft.warmup(0.1, 5, start=0.01) == schedule.Constant(value=0.1, warmup=warm)
    assert weft.linear(0.1, 0.01, steps=9, begin=2, warmup=5, warmup_start=0.01) == schedule.Linear(
        start=0.1, end=0.01, steps=9, begin=2, warmup=warm
    )
    assert weft.cosine(0.1, steps=9) == schedule.Cosine(start=0.1, steps=9)
    assert weft.polynomial(0.1, steps=9, power=2) == schedule.Polynomial(start=0.1, steps=9, power=2)
    assert weft.exponential(0.1, 0.5, steps=9, end=0.01, staircase=True) == schedule.Exponential(
        start=0.1, factor=0.5, steps=9, end=0.01, staircase=True
    )
    assert weft.piecewise(0.1, {20: 0.5, 10: 0.1}) == schedule.Piecewise(
        start=0.1, boundaries=[schedule.Boundary(step=10, factor=0.1), schedule.Boundary(step=20, factor=0.5)]
    )


def test_rules_take_schedules_and_multipliers() -> None:
    made = weft.Adagrad(
        weft.linear(0.1, steps=9), initial_accumulator_value=0.1, multipliers={"*.bias": {"lr": 2.0}, "*": {}}
    )
    assert made == api.Adagrad(
        lr=schedule.Linear(start=0.1, steps=9),
        initial_accumulator_value=0.1,
        multipliers=[api.Multiplier(keys="*.bias", lr=2.0), api.Multiplier(keys="*")],
    )
    assert made.hyper()["lr"] == {"schedule": "linear", "start": 0.1, "end": 0.0, "steps": 9, "begin": 0}
    assert api.Adagrad.model_validate_json(made.model_dump_json()) == made
