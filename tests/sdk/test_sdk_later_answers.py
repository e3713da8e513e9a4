"""Answers of a server that is newer than the SDK or the agent: fields that they do not know are left out."""

from __future__ import annotations

import threading

import httpx
import pytest
from pydantic import ValidationError

from sdk_fakes import answers
from weft.agent.membership import Membership
from weft.api.agent import AgentKind, Orders, Registration
from weft.api.event import EventPage
from weft.api.job import JobSpec
from weft.errors import InvalidRequestError

JOBS = b"""{"a_later_field": 1, "next": null, "jobs": [{
    "id": "8f41c2d09a3b7e55", "name": "digits", "state": "running", "reason": null, "a_later_field": {"deep": [1]},
    "progress": {"step": 3, "steps": 10, "pass_number": 1, "a_later_field": "x"}, "metrics": {"train/loss": 0.5},
    "traffic": {"sent_bytes": 7, "received_bytes": 8, "a_later_field": null}, "workers": 2, "shards": 1,
    "restarts": 0, "snapshot": 2, "created_at": "2024-05-06T07:08:09Z", "started_at": null, "ended_at": null}]}"""
EVENTS = b"""{"after": 1, "ended": false, "a_later_field": [], "events": [{"seq": 1, "at": "2024-05-06T07:08:09Z",
    "a_later_field": true, "body": {"kind": "state", "state": "pending", "reason": null, "a_later_field": 2}}]}"""
PROBLEM = b"""{"type": "/problems/job-refused", "title": "The job is refused", "status": 422, "detail": "no",
    "code": "job-refused", "a_later_field": 0,
    "errors": [{"pointer": "/loss", "detail": "none", "a_later_field": 0}]}"""
SPEC = """{"graph": {}, "loss": "loss", "data": {"source": {"path": "/d.npz"%s}, "columns": {},
    "batch": 2}, "run": {"steps": 3%s}%s}"""
REGISTERED = b'{"id": "a1", "heartbeat_interval_s": 1.0, "lost_after_s": 5.0, "a_later_field": 1}'
ORDERS = b"""{"version": 4, "a_later_field": {}, "upload": ["l1"],
    "sets": [{"allocation": "l1", "number": 3, "a_later_field": 1}],
    "snapshots": [{"allocation": "l1", "step": 9, "folder": "/s", "a_later_field": 1}],
    "allocations": [{"kind": "shard", "id": "l1", "term": 1, "job": "j", "shard": 0, "a_later_field": 1, "store": {
        "job": "j", "term": 1, "seed": 0, "slots": 1, "shards": [""], "rule": "sgd", "hyper": {}, "slice_bytes": 64,
        "merge": "slot", "a_later_field": 1, "keys": [{"key": "w", "dtype": "float32", "shape": [2], "update": "rule",
            "priority": 0, "slots": [0], "a_later_field": 1,
            "initializer": {"op_type": "Zeros", "attributes": {}, "a_later_field": 1}}]}}]}"""


def recorded(content: bytes, status: int = 200) -> httpx.Response:
    return httpx.Response(status, content=content, headers={"Content-Type": "application/json"})


def test_a_client_understands_jobs_events_and_problems_with_fields_that_it_does_not_know() -> None:
    (found,) = answers(recorded(JOBS)).client().jobs()
    assert (found.id, found.job.progress.step, found.traffic.sent_bytes) == ("8f41c2d09a3b7e55", 3, 7)
    log = answers(recorded(JOBS), recorded(EVENTS), recorded(b'{"events": [], "after": 1, "ended": false}')).client()
    (job,) = log.jobs()
    assert [event.seq for event in job.log()] == [1]
    with pytest.raises(InvalidRequestError, match="/loss: none"):
        answers(recorded(PROBLEM, 422)).client().job("j")


def test_an_agent_carries_out_orders_with_fields_that_it_does_not_know() -> None:
    stop, held = threading.Event(), []

    class Holder:
        def hold(self, orders: Orders) -> None:
            held.append(orders)
            stop.set()

        def lost(self) -> None:
            raise AssertionError("the orders were not understood")

    script = answers(recorded(REGISTERED), recorded(ORDERS))
    registration = Registration(kind=AgentKind.SHARD, name="shard-0", pid=1)
    membership = Membership("http://server", registration, Holder(), transport=httpx.MockTransport(script))
    membership.run(stop)
    membership.close()
    (orders,) = held
    (allocation,) = orders.allocations
    assert (orders.version, allocation.store.keys[0].key, orders.snapshots[0].step) == (4, "w", 9)


@pytest.mark.parametrize("where", range(3))
def test_a_request_with_such_a_field_is_refused_all_the_same(where: int) -> None:
    texts = ["", "", ""]
    JobSpec.model_validate_json(SPEC % tuple(texts))
    texts[where] = ', "a_later_field": 1'
    with pytest.raises(ValidationError, match="a_later_field"):
        JobSpec.model_validate_json(SPEC % tuple(texts))
    with pytest.raises(ValidationError, match="a_later_field"):
        EventPage.model_validate_json(EVENTS)
