"""Records what a release's SDK sends and what it requires of answers, for `test_release_before.py` of the next one.

Run it with the code of the release that is about to become the one before:

    python tests/sdk/release_before/record.py

It writes `calls.json`, the requests in their order with the model that each answer is read as, and `answers.json`,
those models as JSON Schema. Unknown fields of an answer are left out by a client, so the schemas allow them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import weft
from weft import nn
from weft.api.agent import AgentList
from weft.api.dry_run import DryRun, Passes
from weft.api.event import Event, EventPage
from weft.api.job import Job, JobPage, JobSpec, ParameterList
from weft.api.problem import Problem
from weft.api.values import Uploaded, ValuesSet
from weft.http import Http

HERE = Path(__file__).parent
MODELS = (Job, JobPage, JobSpec, DryRun, AgentList, Event, EventPage, ParameterList, ValuesSet, Uploaded, Problem)
HEADERS = ("accept", "user-agent", "content-type", "last-event-id")


class Recorder(httpx.BaseTransport):
    """Keeps requests on their way to a real server."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        response = self._network.handle_request(request)
        call: dict[str, Any] = {
            "method": request.method,
            "path": request.url.raw_path.decode(),
            "headers": {name: request.headers[name] for name in HEADERS if name in request.headers},
            "status": response.status_code,
        }
        if "idempotency-key" in request.headers:
            call["idempotent"] = True
        if content and request.headers.get("content-type") == "application/json":
            call["json"] = json.loads(content)
        elif content:
            call["base64"] = base64.b64encode(content).decode()
        if not response.headers["content-type"].startswith("text/event-stream"):
            body = response.read()
            response = httpx.Response(response.status_code, headers=response.headers, content=body, request=request)
            told = json.loads(body) if body and "json" in response.headers["content-type"] else None
            if request.method == "POST" and isinstance(told, dict) and "id" in told:
                call["makes"] = told["id"]
            if request.method == "GET" and isinstance(told, dict) and "state" in told:
                call["until"] = told["state"]
                if self.calls and self.calls[-1]["path"] == call["path"]:
                    self.calls.pop()  # asked again until it was in that state
        else:
            call["events"] = True
        self.calls.append(call)
        return response


def scenario(client: weft.Client) -> None:
    """One call of everything that the SDK can ask a server."""
    x, y = weft.input("x", ("batch", 4)), weft.input("y", ("batch",), "int64")
    scores = nn.Linear(4, 2, name="fc")(x)
    loss = nn.cross_entropy(scores, y)
    data = weft.numpy_data("points.npz", train=(0, 80), evaluate=(80, 100))
    common: dict[str, Any] = {"metrics": {"accuracy": nn.accuracy(scores, y)}, "data": data, "batch": 20}
    decayed = weft.Adam(lr=weft.cosine(0.1, steps=12), beta1=0.8, multipliers={"*.bias": {"lr": 2.0}})
    spec = weft.job_spec(loss, **common, passes=2, rule=decayed, average=0.9, evaluate_average=True, keep_state=True)
    client.dry_run(spec)
    client.dry_run(spec, passes=Passes.SHORT)
    job = client.submit(
        loss, **common, passes=2, rule=decayed, average=0.9, evaluate_average=True, keep_state=True, shards=1
    )
    job.wait(60)
    list(job.events())
    list(job.log())
    job.parameters()
    job.values()
    job.values(["fc.bias"], state=True)
    job.values(average=True)
    job.model(["fc"])
    job.programs()
    job.programs_text()
    job.passes_text()
    list(client.jobs())
    list(client.jobs(state=weft.JobState.SUCCEEDED))
    client.agents()
    client.resume(job, passes=3, lr=0.05).wait(60)

    @weft.rule(state={"velocity": 0.0}, lr=0.1, momentum=0.9)
    def heavy(weight: Any, gradient: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
        velocity = momentum * velocity + gradient
        return weight - lr * velocity, {"velocity": velocity}

    uploaded = client.upload_values({"fc.bias": np.ones(2, np.float32)})
    own = client.submit(loss, **common, steps=3, rule=heavy(lr=0.2), init_from=uploaded, stop_when="loss:3")
    own.wait(60)
    with contextlib.suppress(weft.InvalidRequestError):
        client.submit(loss, data=weft.numpy_data("no.npz"), passes=1, rule=weft.Sgd(momentum=0.9))
    rules = [
        weft.Nesterov(),
        weft.AdamW(),
        weft.Adagrad(),
        weft.Rmsprop(decay=0.8),
        weft.Ftrl(),
        weft.Lamb(),
        weft.Lars(),
    ]
    for rule in rules:
        client.dry_run(weft.job_spec(loss, **common, passes=1, rule=rule))
    long = client.submit(loss, **common, steps=2_000_000, shards=1, snapshot_every_s=1.0)
    pause = threading.Event()
    while long.refresh().state is not weft.JobState.RUNNING or long.job.progress.step == 0:
        pause.wait(0.05)
    long.set("fc.bias", 0.0)
    long.scale(shards=2)
    while long.refresh().state is not weft.JobState.RUNNING:
        pause.wait(0.05)
    long.stop()
    long.wait(60)
    long.remove()
    cancelled = client.submit(loss, **common, steps=2_000_000)
    cancelled.cancel(discard=True)
    cancelled.refresh()


def schema(model: Any) -> dict[str, Any]:
    """What an answer has to be, to be read as this model."""
    made = model.model_json_schema(mode="validation")

    def allow(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: allow(v) for k, v in part.items() if not (k == "additionalProperties" and v is False)}
        return [allow(each) for each in part] if isinstance(part, list) else part

    allowed: dict[str, Any] = allow(made)
    if model is JobSpec:  # a rule of pydantic's that JSON Schema does not have
        allowed["$defs"]["RunLength"]["oneOf"] = [
            {"required": [name], "properties": {name: {"type": "integer"}}} for name in ("passes", "steps")
        ]
    return allowed


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((100, 4)).astype(np.float32)
        np.savez(Path(folder) / "points.npz", x=x, y=(x.sum(1) > 0).astype(np.int64))
        recorder = Recorder()
        parsed = Http._parsed

        def noting(self: Any, model: Any, method: str, response: httpx.Response) -> Any:
            if recorder.calls:
                recorder.calls[-1]["model"] = model.__name__
            return parsed(self, model, method, response)

        Http._parsed = noting  # type: ignore[method-assign]
        with (
            weft.Cluster(1, 2, data_root=folder) as cluster,
            weft.Client(cluster.url, transport=recorder) as client,
        ):
            scenario(client)
    (HERE / "calls.json").write_text(json.dumps(recorder.calls, indent=1) + "\n")
    (HERE / "answers.json").write_text(json.dumps({model.__name__: schema(model) for model in MODELS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
