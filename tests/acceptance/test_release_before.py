"""The SDK of the release before works with this release's server: what it sends is understood, what it gets it reads.

`release_before/record.py` recorded its requests, and the models by which it reads answers, before the words changed.
"""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from pydantic import TypeAdapter

from acceptance_place import Place
from server_running import eventually
from weft.api.data import DataSpec
from weft.api.earlier import in_earlier_words
from weft.api.event import StepDone
from weft.api.job import JobSpec, Progress, RunLength
from weft.api.optimizer import SGD, Adam, OptimizerSpec

RECORDED = Path(__file__).parents[1] / "sdk" / "release_before"
CALLS: list[dict[str, Any]] = json.loads((RECORDED / "calls.json").read_text())
ANSWERS: dict[str, dict[str, Any]] = json.loads((RECORDED / "answers.json").read_text())


def is_read(answer: Any, model: str) -> None:
    """Fails where the SDK of the release before would not read the answer as its model."""
    jsonschema.validate(answer, ANSWERS[model], cls=jsonschema.Draft202012Validator)


class Replay:
    """Recorded requests, sent once more; ids are those that the server of this test gives."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.ids: dict[str, str] = {}
        self.asked: dict[str, int] = {}
        """The numbers of shards or workers that the last job is to go on with; until then it runs with those before."""

    def send(self, call: dict[str, Any]) -> httpx.Response:
        content = json.dumps(call["json"]).encode() if "json" in call else base64.b64decode(call.get("base64", ""))
        path = call["path"]
        for recorded, here in self.ids.items():
            content, path = content.replace(recorded.encode(), here.encode()), path.replace(recorded, here)
        headers = dict(call["headers"])
        if call.get("idempotent"):
            headers["Idempotency-Key"] = uuid.uuid4().hex
        return self.client.request(call["method"], path, content=content, headers=headers)

    def check(self, call: dict[str, Any]) -> None:
        """Sends the request, again and again where it was asked until something came about, and reads the answer."""
        response = self.send(call)
        assert response.status_code == call["status"], (call["method"], call["path"], response.text)
        if "makes" in call:
            self.ids[call["makes"]] = response.json()["id"]
            self.asked = call["json"] if call["path"].endswith("/scale") else {}
        if "until" in call:
            eventually(lambda: self.has_come(call), f"{call['path']} is {call['until']}")
        if "model" in call:
            is_read(self.own(response.json()), call["model"])
        if call["status"] >= 400:
            is_read(response.json(), "Problem")
        if call["path"].endswith("/spec"):
            is_read(response.json(), "JobSpec")
        if call.get("events"):
            told = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
            assert len(told) > 3
            for each in told:
                is_read(json.loads(each), "Event")

    def own(self, answer: Any) -> Any:
        """The same of these jobs alone: others on the cluster have metrics that are no numbers, say."""
        if isinstance(answer, dict) and "jobs" in answer:
            return answer | {"jobs": [job for job in answer["jobs"] if job["id"] in self.ids.values()]}
        return answer

    def has_come(self, call: dict[str, Any]) -> bool:
        job = self.send(call).json()
        assert job["state"] == call["until"] or job["state"] not in {"failed", "cancelled", "succeeded"}, job
        if any(job[name] != number for name, number in self.asked.items()):
            return False
        return bool(job["state"] == call["until"] and (job["state"] != "running" or job["progress"]["step"] > 0))


def test_every_call_of_the_release_before_is_answered_as_it_reads_it(place: Place) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 4)).astype(np.float32)
    np.savez(place.folder / "points.npz", x=x, y=(x.sum(1) > 0).astype(np.int64))
    with httpx.Client(base_url=place.cluster.url, timeout=60) as client:
        replay = Replay(client)
        for call in CALLS:
            replay.check(call)
        assert len(replay.ids) >= 6


def test_the_recorded_calls_have_the_words_of_the_release_before() -> None:
    """Or the test above would prove nothing."""
    submitted = [call["json"] for call in CALLS if call["path"] == "/v1/jobs" and "json" in call]
    assert all("rule" in job and "batch" in job["data"] for job in submitted)
    assert any(job["run"].get("passes") for job in submitted)
    assert any(job["average"] for job in submitted)
    names = {call["json"]["rule"]["name"] for call in CALLS if "json" in call and "rule" in call["json"]}
    assert names >= {"sgd", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "ftrl", "lamb", "lars", "graph"}


def test_what_a_server_of_the_release_before_has_stored_is_read() -> None:
    for call in CALLS:
        if "rule" in call.get("json", {}):
            JobSpec.model_validate_json(json.dumps(call["json"]))
    assert RunLength.model_validate_json('{"passes": 3}').epochs == 3
    assert DataSpec.model_validate_json('{"source": {"path": "a"}, "columns": {}, "batch": 8}').batch_size == 8
    assert Progress.model_validate_json('{"step": 1, "steps": 4, "pass_number": 2}').epoch == 2
    stored = '{"kind": "step", "step": 1, "steps": 4, "pass_number": 2, "samples_per_second": 1.0}'
    done = StepDone.model_validate_json(stored)
    assert (done.epoch, done.pass_number) == (2, 2)
    assert StepDone.model_validate_json(done.model_dump_json()) == done


def test_optimizers_are_read_and_answered_in_the_words_of_the_release_before() -> None:
    optimizers = TypeAdapter(OptimizerSpec)
    stored = [call["json"]["rule"] for call in CALLS if "rule" in call.get("json", {})]
    assert stored
    for document in stored:
        told = in_earlier_words(optimizers.validate_json(json.dumps(document)))
        assert told == document
    adam = optimizers.validate_python({"name": "adam", "beta2": 0.5, "epsilon": 0.25})
    assert adam == Adam(betas=(0.9, 0.5), eps=0.25)
    with pytest.raises(ValueError, match="beta1 is the earlier name of betas: give betas alone"):
        optimizers.validate_python({"name": "adam", "beta1": 0.5, "betas": [0.5, 0.9]})
    assert optimizers.validate_python({"name": "nesterov"}) == SGD(momentum=0.9, nesterov=True)


def test_two_words_for_one_thing_have_to_agree() -> None:
    assert RunLength.model_validate({"passes": 3, "epochs": 3}).epochs == 3
    with pytest.raises(ValueError, match="passes is the earlier name of epochs: give epochs alone"):
        RunLength.model_validate({"passes": 3, "epochs": 4})
