"""Standard row-sparse semantics: rows that are brought up to date when they are met have the bits of a dense key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_documents import momentum, normalized, rule_document
from weft_kernels.averaging import averaged
from weft_kernels.rules import cache_blocks, replay
from weft_kernels.rules.hyper_log import HyperLog
from weft_kernels.rules.lookup import rule_from, rules
from weft_kernels.rules.record import Rule
from weft_kernels.rules.replay import replay_rows, replaying
from weft_kernels.rules.rows import apply_to_rows
from written_rules import AS_GRAPH

Array = np.ndarray[Any, np.dtype[Any]]
POINTWISE = [name for name, rule in rules().items() if not rule.whole]
LATE = rule_document(
    [
        ("Sub", "beyond", ("step", "first")),
        ("Relu", "later", ("beyond",)),
        ("Mul", "slope", ("later", "lr")),
        ("Add", "move", ("gradient", "slope")),
        ("Sub", "w", ("weight", "move")),
    ],
    {"weight": "w"},
    hyper={"lr": 0.1},
    constants={"first": 40.0},
)
"""Moves nothing but by gradients up to step 40, and everything from then on: at rest only to who does not count."""

RULES: Mapping[str, Rule] = {
    **{name: rules()[name] for name in POINTWISE},
    "averaged momentum": averaged(rules()["momentum"], 0.9, 2),
    "written momentum": rule_from(momentum()),
    "written adamw": rule_from(AS_GRAPH["adamw"].document),
    "late": rule_from(LATE),
    "adagrad from 0.5": rule_from({"name": "adagrad", "state": {"sum": 0.5}}),
    "adagrad beyond float16": rule_from({"name": "adagrad", "state": {"sum": 1e6}}),
}


@dataclass
class Table:
    """A table under a rule: rows are brought up to date when they are touched. `since` has what each has seen."""

    rule: Rule
    arrays: dict[str, Array]
    log: HyperLog = field(init=False)
    since: Array = field(init=False)

    def __post_init__(self) -> None:
        self.log = HyperLog(self.rule.hyper)
        self.since = np.zeros(len(self.arrays["weight"]), np.int64)

    @property
    def state(self) -> dict[str, Array]:
        return {name: self.arrays[name] for name in self.rule.state}

    def read(self, places: Array) -> None:
        with np.errstate(all="ignore"):
            replay_rows(self.rule, self.arrays["weight"], self.state, places, since=self.since[places], log=self.log)
        self.since[places] = self.log.last

    def update(self, places: Array, gradient: Array, hyper: Mapping[str, float]) -> None:
        self.read(places)
        self.log.append(hyper)
        with np.errstate(all="ignore"):
            apply_to_rows(self.rule, self.arrays["weight"], gradient, self.state, places, step=self.log.last,
                          hyper=hyper)  # fmt: skip
        self.since[places] = self.log.last


def begun(rule: Rule, rows: int, width: int, dtype: str) -> dict[str, Array]:
    """Whole blocks, so that the dense rule has no tail either. Zeros of both signs are among the weights."""
    weight = np.random.default_rng(rows * width).normal(size=(rows, width)).astype(dtype)
    weight[::5] = 0.0
    weight[1::5] = -0.0
    with np.errstate(over="ignore"):
        return {"weight": weight, **{name: np.full_like(weight, start) for name, start in rule.state.items()}}


def dense_update(rule: Rule, arrays: dict[str, Array], gradient: Array, step: int, hyper: Mapping[str, float]) -> None:
    with np.errstate(all="ignore"):
        rule.apply(arrays["weight"], gradient, {name: arrays[name] for name in rule.state}, step, hyper)


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array], rows: Any = slice(None)) -> None:
    for name, array in expected.items():
        assert found[name][rows].tobytes() == array[rows].tobytes(), name


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    """Updates, each of some rows (or of none), with numbers that stay for a while, and reads between them."""
    rows = draw(st.sampled_from([8, 64, 128]))
    steps = draw(st.integers(1, 40))
    changing = draw(st.sampled_from([0.0, 0.1, 1.0]))
    return {
        "rows": rows,
        "width": draw(st.sampled_from([8, 24, 64])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "steps": steps,
        "most": draw(st.sampled_from([0, 1, 3, rows])),
        "changing": changing,
        "decay": draw(st.sampled_from([0.0, 0.0, 0.01, 0.5])),
        "zero": draw(st.booleans()),
    }


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=10, deadline=None)
@given(
    program=programs(),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    block=st.sampled_from([64, 1 << 16]),
    interval=st.sampled_from([1, 3, 32]),
)
def test_replayed_rows_have_the_bits_of_a_dense_key(
    name: str, program: dict[str, Any], dtype: str, block: int, interval: int
) -> None:
    rule = RULES[name]
    rows, width = program["rows"], program["width"]
    table, dense = Table(rule, begun(rule, rows, width, dtype)), begun(rule, rows, width, dtype)
    random = np.random.default_rng(program["seed"])
    hyper = numbers(rule, random, program)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_blocks, "CACHE_ELEMENTS", block)
        patch.setattr(replay, "CACHE_ELEMENTS", block)
        patch.setattr(replay, "REST_INTERVAL", interval)
        for step in range(1, program["steps"] + 1):
            if random.random() < program["changing"]:
                hyper = numbers(rule, random, program)
            places = random.permutation(rows)[: random.integers(0, program["most"] + 1)]
            gradient = np.zeros((rows, width), dtype)
            gradient[places] = random.normal(size=(len(places), width)) * (0 if program["zero"] else 1)
            table.update(places, gradient[places], hyper)
            dense_update(rule, dense, gradient, step, hyper)
            assert_same(table.arrays, dense, places)
            if random.random() < 0.2:
                read = random.permutation(rows)[: random.integers(0, rows + 1)]
                table.read(read)
                assert_same(table.arrays, dense, read)
        table.read(np.arange(rows))
        assert_same(table.arrays, dense)


def numbers(rule: Rule, random: np.random.Generator, program: dict[str, Any]) -> dict[str, float]:
    drawn = {"lr": random.choice([0.0, 0.01, 1.0]), "weight_decay": random.choice([0.0, program["decay"]]), "l1": 0.1,
             "epsilon": random.choice([1e-8, 0.1])}  # fmt: skip
    return {**rule.hyper, **{name: float(value) for name, value in drawn.items() if name in rule.hyper}}


@pytest.mark.parametrize("name", RULES)
def test_rows_that_lag_far_have_the_bits_of_a_dense_key(name: str) -> None:
    """1,500 updates under the same numbers: momentum comes to rest on the way, Adam's mean is denormal. A row joins in
    the middle, another one shortly before the end."""
    rule, steps = RULES[name], 1500
    table, dense = Table(rule, begun(rule, 8, 8, "float32")), begun(rule, 8, 8, "float32")
    touched = {1: [0, 1, 2, 3], 700: [4], steps - 5: [5]}
    random = np.random.default_rng(1)
    for step in range(1, steps + 1):
        places = np.array(touched.get(step, []), np.int64)
        gradient = np.zeros((8, 8), np.float32)
        gradient[places] = random.normal(size=(len(places), 8))
        table.update(places, gradient[places], rule.hyper)
        dense_update(rule, dense, gradient, step, rule.hyper)
    table.read(np.arange(8))
    assert_same(table.arrays, dense)


def counted(rule: Rule, calls: list[int]) -> Rule:
    def apply(*arguments: Any) -> None:
        calls.append(arguments[0].size)
        rule.apply(*arguments)

    return Rule(rule.name, rule.state, rule.hyper, apply, counts=rule.counts, still=rule.still)


@pytest.mark.parametrize(
    ("name", "touched", "most"),
    [
        ("sgd", True, 0), ("adagrad", True, 0),  # plain descent: standard is what lazy is
        ("momentum", False, 0), ("nesterov", False, 0), ("adam", False, 0), ("rmsprop", False, 0),  # never touched
        ("momentum", True, 1200), ("ftrl", True, 32), ("ftrl", False, 32),  # at rest
    ],
)  # fmt: skip
def test_what_stands_still_or_rests_is_not_computed(name: str, touched: bool, most: int) -> None:
    calls: list[int] = []
    rule = counted(rules()[name], calls)
    table = Table(rule, begun(rule, 8, 8, "float32"))
    if touched:
        table.update(np.arange(8), np.full((8, 8), 0.5, np.float32), rule.hyper)
        calls.clear()
    for _ in range(100_000):
        table.log.append(rule.hyper)
    table.read(np.arange(8))
    assert len(calls) <= most


def test_a_changing_rate_moves_no_row_that_stands_still() -> None:
    calls: list[int] = []
    rule = counted(rules()["adam"], calls)
    table = Table(rule, begun(rule, 8, 8, "float32"))
    for step in range(1000):
        table.log.append({**rule.hyper, "lr": 1 / (1 + step)})
    table.read(np.arange(8))
    assert not calls


def test_a_replay_comes_in_parts() -> None:
    """What one part does is bounded; the rows are right at the end."""
    rule = rules()["adam"]
    table, dense = Table(rule, begun(rule, 64, 64, "float32")), begun(rule, 64, 64, "float32")
    table.update(np.arange(64), np.ones((64, 64), np.float32), rule.hyper)
    dense_update(rule, dense, np.ones((64, 64), np.float32), 1, rule.hyper)
    for step in range(2, 2002):
        table.log.append(rule.hyper)
        dense_update(rule, dense, np.zeros((64, 64), np.float32), step, rule.hyper)
    places = np.arange(64)
    parts = list(replaying(rule, table.arrays["weight"], table.state, places, since=table.since, log=table.log))
    assert len(parts) == 64 * 64 * 2000 // replay.WORK_ELEMENTS
    assert_same(table.arrays, dense)


def test_nothing_else_is_written() -> None:
    rule = rules()["adamw"]
    table = Table(rule, begun(rule, 50, 3, "float32"))
    before = {name: array.copy() for name, array in table.arrays.items()}
    table.log.append(rule.hyper)
    table.read(np.array([7, 3, 49]))
    changed = np.flatnonzero((table.arrays["weight"] != before["weight"]).any(axis=1))
    assert set(changed) <= {3, 7, 49}
    assert 3 in changed
    table.read(np.zeros(0, np.int64))
    replay_rows(rule, np.zeros((4, 0)), {}, np.arange(4), since=np.zeros(4, np.int64), log=table.log)


def test_what_cannot_be_replayed_is_refused() -> None:
    log = HyperLog(["lr"])
    for step in range(9):
        log.append({"lr": step // 3})
    log.forget(5)
    weight, since = np.zeros((2, 2)), np.array([5, 4])
    with pytest.raises(ValueError, match="needs a key whole, and is asked to replay 2 rows"):
        replay_rows(rule_from(normalized()), weight, {}, np.arange(2), since=since, log=log)
    decaying = HyperLog(rules()["sgd"].hyper, last=5)
    decaying.append({"lr": 0.1, "weight_decay": 0.1})
    with pytest.raises(ValueError, match=r"updates 5 to 6: known are 6 to 6"):
        replay_rows(rules()["sgd"], weight, {}, np.arange(2), since=since, log=decaying)
    replay_rows(rules()["sgd"], weight, {}, np.arange(1), since=since[:1], log=decaying)


def test_a_log_keeps_runs_and_forgets() -> None:
    log = HyperLog(["lr", "decay"])
    assert (log.first, log.last, list(log.runs(0, 0))) == (1, 0, [])
    for lr in (1.0, 1.0, 2.0, 2.0, 2.0, 1.0):
        log.append({"decay": 0.5, "lr": lr, "other": 3.0})
    one, two = {"lr": 1.0, "decay": 0.5}, {"lr": 2.0, "decay": 0.5}
    assert list(log.runs(0, 6)) == [(1, 3, one), (3, 6, two), (6, 7, one)]
    assert list(log.runs(1, 4)) == [(2, 3, one), (3, 5, two)]
    assert list(log.runs(6, 6)) == []
    assert log.nbytes == 3 * 3 * 8
    log.forget(3)
    assert (log.first, log.nbytes, list(log.runs(3, 6))) == (4, 2 * 3 * 8, [(4, 6, two), (6, 7, one)])
    with pytest.raises(ValueError, match="updates 3 to 6: known are 4 to 6"):
        list(log.runs(2, 6))
    with pytest.raises(ValueError, match="updates 5 to 7"):
        list(log.runs(4, 7))
    log.forget(100)
    assert (log.first, log.last, list(log.runs(6, 6))) == (7, 6, [])
    log.append(two)
    assert list(log.runs(6, 7)) == [(7, 8, two)]
    with pytest.raises(KeyError, match="decay"):
        log.append({"lr": 1.0})
    assert log.last == 7


def test_a_log_of_no_numbers_counts() -> None:
    log = HyperLog([])
    log.append({})
    log.append({})
    assert list(log.runs(0, 2)) == [(1, 3, {})]


def test_a_log_that_keeps_its_numbers_stays_small() -> None:
    log = HyperLog(["lr"])
    for _ in range(10_000):
        log.append({"lr": 0.1})
    assert log.nbytes == 16
