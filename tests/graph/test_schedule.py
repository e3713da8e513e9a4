"""Schedules: the formulas, what is refused and where, and the bounds of what they ever are."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_graph.errors import GraphFormatError
from weft_graph.rules.portable_math import half_cosine, power
from weft_graph.rules.schedule import Schedule, hyper_from_json, schedule_from_json, value_at

WARMUP = {"steps": 4, "start": 0.0}
LINEAR = {"schedule": "linear", "start": 1.0, "end": 0.2, "steps": 8}
COSINE = {"schedule": "cosine", "start": 1.0, "end": 0.2, "steps": 8}
POLYNOMIAL = {"schedule": "polynomial", "start": 1.0, "end": 0.2, "steps": 8, "power": 1.7}
EXPONENTIAL = {"schedule": "exponential", "start": 1.0, "factor": 0.5, "steps": 3}
PIECEWISE = {
    "schedule": "piecewise",
    "start": 1.0,
    "boundaries": [{"step": 3, "factor": 0.5}, {"step": 5, "factor": 0.1}],
}
EVERY = [{"schedule": "constant", "value": 0.3}, LINEAR, COSINE, POLYNOMIAL, EXPONENTIAL, PIECEWISE]


def formula(document: dict[str, Any], step: int) -> float:
    """The forms as Loshchilov and Hutter 2017 (cosine) and the documentation of optax.schedules write them."""
    start, share = document.get("start", 0.0), min(step / document.get("steps", 1), 1.0)
    match document["schedule"]:
        case "constant":
            return document["value"]
        case "linear":
            return start + share * (document["end"] - start)
        case "cosine":
            return document["end"] + 0.5 * (start - document["end"]) * (1 + math.cos(math.pi * share))
        case "polynomial":
            return (start - document["end"]) * (1 - share) ** document["power"] + document["end"]
        case "exponential":
            return start * document["factor"] ** (step / document["steps"])
    return start * math.prod(b["factor"] for b in document["boundaries"] if step >= b["step"])


@pytest.mark.parametrize("document", EVERY, ids=lambda document: document["schedule"])
def test_values_are_those_of_the_formula_also_behind_a_warm_up(document: dict[str, Any]) -> None:
    expected = [formula(document, step) for step in range(12)]
    assert [value_at(document, step) for step in range(12)] == pytest.approx(expected, rel=1e-14)
    warm = {**document, "warmup": WARMUP}
    line = [expected[0] * step / 4 for step in range(4)]
    assert [value_at(warm, step) for step in range(16)] == pytest.approx(line + expected, rel=1e-14)
    assert [schedule_from_json(json.loads(json.dumps(warm))).at(step) for step in range(16)] == [
        value_at(warm, step) for step in range(16)
    ]


def test_a_number_is_itself_at_every_step() -> None:
    assert value_at(3, 0) == 3.0
    assert hyper_from_json(0.25) == 0.25


def test_a_transition_begins_late_and_ends_exactly() -> None:
    late = {**LINEAR, "begin": 5}
    assert [value_at(late, step) for step in (0, 5, 9, 13, 1 << 50)] == [1.0, 1.0, 0.6, 0.2, 0.2]
    assert value_at(COSINE, 8) == value_at(POLYNOMIAL, 800) == 0.2
    assert value_at({**EXPONENTIAL, "begin": 2}, 5) == 0.5


def test_an_exponential_may_go_in_stairs_and_stops_at_its_end() -> None:
    stairs = {**EXPONENTIAL, "staircase": True, "end": 0.2}
    assert [value_at(stairs, step) for step in range(0, 10)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2]
    grows = {**EXPONENTIAL, "factor": 2.0, "end": 3.0}
    assert [value_at(grows, step) for step in (0, 3, 6, 9)] == [1.0, 2.0, 3.0, 3.0]


def test_growth_without_an_end_has_no_bound_and_is_infinite_in_time() -> None:
    grows = schedule_from_json({**EXPONENTIAL, "factor": 10.0, "steps": 1})
    assert grows.bounds() == (1.0, math.inf)
    assert grows.at(1 << 50) == math.inf


@pytest.mark.parametrize(
    ("document", "pointer", "says"),
    [
        ({"schedule": "linaer"}, "/schedule", "one of constant, linear, cosine"),
        ({}, "", "field 'schedule' is missing: one of constant"),
        ({"schedule": ["linear"]}, "/schedule", "an array"),
        ({**LINEAR, "step": 8}, "", "unknown field 'step'"),
        ({"schedule": "linear", "start": 1.0}, "", "field 'steps' is missing"),
        ({**LINEAR, "steps": 0}, "/steps", "an integer from 1"),
        ({**LINEAR, "steps": 1.5}, "/steps", "an integer"),
        ({**LINEAR, "start": math.nan}, "/start", "a finite number"),
        ({**LINEAR, "end": math.inf}, "/end", "a finite number"),
        ({**LINEAR, "begin": -1}, "/begin", "an integer from 0"),
        ({**LINEAR, "warmup": 5}, "/warmup", "an object"),
        ({**LINEAR, "warmup": {"steps": 0}}, "/warmup/steps", "an integer from 1"),
        ({**LINEAR, "warmup": {"steps": 3, "end": 1}}, "/warmup", "unknown field 'end'"),
        ({**POLYNOMIAL, "power": 0}, "/power", "above 0"),
        ({**EXPONENTIAL, "factor": -0.5}, "/factor", "above 0"),
        ({**EXPONENTIAL, "start": -0.5}, "/start", "a number from 0"),
        ({**EXPONENTIAL, "end": 1.5}, "/end", "away from 1.5"),
        ({**EXPONENTIAL, "factor": 2, "end": 0.5}, "/end", "away from 0.5"),
        ({**EXPONENTIAL, "staircase": 1}, "/staircase", "true or false"),
        ({**PIECEWISE, "boundaries": [{"step": 3, "factor": 1}] * 2}, "/boundaries/1/step", "after step 3"),
        ({**PIECEWISE, "boundaries": [{"step": 1, "factor": 1}] * 65}, "/boundaries", "at most 64"),
        ({**PIECEWISE, "boundaries": [{"step": 1, "factor": "half"}]}, "/boundaries/0/factor", "a number"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], pointer: str, says: str) -> None:
    with pytest.raises(GraphFormatError) as caught:
        hyper_from_json(document, "/rule/lr")
    assert caught.value.pointer == f"/rule/lr{pointer}"
    assert says in caught.value.message
    with pytest.raises(ValueError, match="schedule: "):
        value_at(document, 0)


FINITE = st.floats(-1e6, 1e6)
STEPS = st.integers(1, 50)
DOCUMENTS = st.one_of(
    st.fixed_dictionaries({"schedule": st.sampled_from(["linear", "cosine"]), "start": FINITE, "steps": STEPS}),
    st.fixed_dictionaries(
        {"schedule": st.just("polynomial"), "start": FINITE, "end": FINITE, "steps": STEPS, "power": st.floats(0.1, 5)}
    ),
    st.builds(
        lambda start, factor, steps, share, staircase: {
            "schedule": "exponential",
            "start": start,
            "factor": factor,
            "steps": steps,
            "staircase": staircase,
            "end": None if share is None else start * (share if factor < 1 else 1 + share),
        },
        st.floats(0, 1e6),
        st.floats(0.01, 1.2),
        STEPS,
        st.none() | st.floats(-1, 1).map(abs),
        st.booleans(),
    ),
    st.builds(
        lambda start, gaps, factor: {
            "schedule": "piecewise",
            "start": start,
            "boundaries": [{"step": 1 + sum(gaps[: n + 1]), "factor": factor} for n in range(len(gaps))],
        },
        FINITE,
        st.lists(STEPS, max_size=4),
        st.floats(-3, 3),
    ),
)


@given(DOCUMENTS, st.none() | st.fixed_dictionaries({"steps": STEPS, "start": FINITE}))
def test_no_value_is_outside_the_bounds(document: dict[str, Any], warmup: dict[str, Any] | None) -> None:
    schedule = schedule_from_json(document if warmup is None else {**document, "warmup": warmup})
    assert isinstance(schedule, Schedule)
    low, high = schedule.bounds()
    slack = 1e-12 * max(abs(low), abs(high)) if math.isfinite(high - low) else 0.0
    assert all(low - slack <= schedule.at(step) <= high + slack for step in range(0, 200, 7))


@given(st.floats(0, 1))
def test_half_a_wave_is_that_of_the_c_library_to_the_last_bits(share: float) -> None:
    assert half_cosine(share) == pytest.approx((1 + math.cos(math.pi * share)) / 2, rel=1e-14, abs=1e-15)


@given(st.floats(0, 1e3), st.floats(0, 100))
def test_powers_are_those_of_the_c_library_to_the_last_bits(base: float, exponent: float) -> None:
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-14)


def test_bits_do_not_depend_on_the_machine() -> None:
    """Written down once, from IEEE operations and `decimal` alone; another machine gives the same."""
    assert half_cosine(0.3).hex() == HALF_COSINE
    assert power(0.96, 0.123).hex() == POWER


HALF_COSINE = "0x1.96791823aad30p-1"
POWER = "0x1.fd6f85ef3a249p-1"
