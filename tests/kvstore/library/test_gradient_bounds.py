"""`rescale_grad` and `clip_gradient`, as MXNet's optimizers have them, for any rule of the store."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from face_stores import faces
from plain_rules import Array
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.gradient_bounds import bounded
from weft_kernels.rules.lookup import rule_from, rules
from weft_kvstore import DescriptionError, Key, describe

WAIT_S = 60.0
GRADIENT = np.array([1.0, -8.0, 40.0, 0.25], np.float32)


@pytest.mark.parametrize("kind", ["network", "local"])
def test_the_sum_is_scaled_then_bounded_by_element(kind: str) -> None:
    """clip((g + g) / 4, -2, 2), taken off with lr 1."""
    described = describe(
        {"w": Key(shape=(4,), initializer=0.0)}, rule="sgd", lr=1.0, rescale_grad=0.25, clip_gradient=2.0, slots=2
    )
    with faces(kind, described) as stores:
        futures = [store.pushpull("w", GRADIENT) for store in stores]
        for future in futures:
            assert future.result(WAIT_S).tolist() == [-0.5, 2.0, -2.0, -0.125]


@pytest.mark.parametrize("kind", ["network", "local"])
def test_both_may_change_while_the_store_runs(kind: str) -> None:
    """As Gluon's Trainer sets rescale_grad before each step, to 1 / batch size."""
    described = describe({"w": Key(shape=(1,), initializer=0.0)}, rule="sgd", lr=1.0, rescale_grad=1.0, clip_gradient=0)
    with faces(kind, described) as (store,):
        assert store.hyper("w") == {"lr": 1.0, "weight_decay": 0.0, "rescale_grad": 1.0, "clip_gradient": 0.0}
        values = [store.pushpull("w", [64]).result(WAIT_S).tolist()]
        store.set_hyper("rescale_grad", 1 / 32).result(WAIT_S)
        values.append(store.pushpull("w", [64]).result(WAIT_S).tolist())
        store.set_hyper("clip_gradient", 0.5).result(WAIT_S)
        values.append(store.pushpull("w", [64]).result(WAIT_S).tolist())
    assert values == [[-64], [-66], [-66.5]]


def test_a_table_may_have_them_for_itself() -> None:
    described = describe(
        {
            "table": Key(shape=(3, 2), rows=True, initializer=0.0, hyper={"clip_gradient": 1.0}),
            "w": Key(shape=(2,), initializer=0.0),
        },
        rule="sgd",
        lr=1.0,
    )
    with faces("local", described) as (store,):
        store.push_rows("table", [1], [[5, 0.5]]).result(WAIT_S)
        assert store.pull_rows("table", [1]).result(WAIT_S).tolist() == [[-1, -0.5]]
        assert store.pushpull("w", [5, 0.5]).result(WAIT_S).tolist() == [-5, -0.5]


@pytest.mark.parametrize("rule", ["lamb", "lars"])
def test_a_single_number_of_a_rule_for_whole_keys_is_bounded_as_an_array_is(rule: str) -> None:
    keys = {"number": Key((), initializer=2.0), "array": Key((1,), initializer=2.0)}
    for bounds in ({"clip_gradient": 1.0}, {"rescale_grad": 0.5}):
        with faces("local", describe(keys, rule=rule, lr=1.0, **bounds)) as (store,):
            number, array = store.pushpull(["number", "array"], [5.0, [5.0]]).result(WAIT_S)
            assert array.tolist() == [number] != [2.0]


def test_weight_decay_is_not_bounded_and_a_rule_that_needs_none_has_none() -> None:
    with faces("local", describe({"w": (1,)}, rule="sgd", lr=1.0)) as (store,):
        assert store.hyper("w") == {"lr": 1.0, "weight_decay": 0.0}
    described = describe({"w": Key((1,), initializer=8.0)}, rule="sgd", lr=1.0, weight_decay=0.5, clip_gradient=1.0)
    with faces("local", described) as (store,):
        assert store.pushpull("w", [100]).result(WAIT_S).tolist() == [3.0]  # 8 - (1 + 0.5 * 8)


def test_a_rule_of_ones_own_keeps_its_meaning_of_the_name() -> None:
    @weft.custom_optimizer(lr=1.0, rescale_grad=1.0)
    def odd(weight: Any, gradient: Any, lr: Any, rescale_grad: Any) -> Any:
        return weight - lr * (gradient + rescale_grad)

    described = describe({"w": Key((1,), initializer=0.0)}, rule=odd.document, lr=1.0, rescale_grad=3.0)
    with faces("local", described) as (store,):
        assert store.pushpull("w", [100]).result(WAIT_S).tolist() == [-103]
    both = describe({"w": Key((1,), initializer=0.0)}, rule=odd.document, lr=1.0, rescale_grad=3.0, clip_gradient=2.0)
    with faces("local", both) as (store,):
        assert store.pushpull("w", [100]).result(WAIT_S).tolist() == [-5]


def test_a_bound_that_is_no_number_is_refused() -> None:
    with pytest.raises(DescriptionError, match="clip_gradient"):
        describe({"w": (1,)}, rule="sgd", clip_gradient="much")
    with pytest.raises(DescriptionError, match="'clip_gradients'"):
        describe({"w": (1,)}, rule="sgd", clip_gradients=1.0)


@pytest.mark.parametrize("name", sorted(rules()))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_each_rule_gets_what_numpy_makes_of_the_gradient(name: str, dtype: str) -> None:
    """Bit for bit, also where the arrays are cut into blocks."""
    rule = rule_from(name)
    draw = np.random.Generator(np.random.Philox(key=5))
    weight, gradient = (draw.normal(size=CACHE_ELEMENTS + 100).astype(dtype) for _ in range(2))
    wide = np.dtype(np.float32 if dtype == "float16" else dtype)
    plain = np.clip(gradient.astype(wide) * wide.type(0.75), -0.5, 0.5)
    found = [weight.copy(), weight.copy()]
    states: list[dict[str, Array]] = [
        {state: np.full(weight.shape, start, dtype) for state, start in rule.state.items()} for _ in range(2)
    ]
    before = gradient.copy()
    rule.apply(found[0], plain.astype(dtype), states[0], 1, rule.hyper)
    bounded(rule).apply(found[1], gradient, states[1], 1, {**rule.hyper, "rescale_grad": 0.75, "clip_gradient": 0.5})
    assert found[0].tobytes() == found[1].tobytes()
    assert all(states[0][state].tobytes() == states[1][state].tobytes() for state in rule.state)
    assert gradient.tobytes() == before.tobytes()
