"""The client over a network that is a function: what it sends, repeats, and makes of answers."""

from __future__ import annotations

import inspect
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import weft
from sdk_fakes import URL, answers, job, problem, unavailable
from weft import nn
from weft.api.job import JobPage, JobSpec, RunLength
from weft.api.lifecycle import JobState
from weft.http import Retry
from weft.submission import JobArguments, TrainingArguments
from weft_graph.json_form import graph_from_json

DATA = weft.numpy_data("points.npz", columns={"x": "features"}, train=(0, 80), evaluate=(80, 100))


def expressions() -> tuple[weft.Expression, weft.Expression]:
    scores = nn.Linear(4, 2)(weft.input("x", ("batch", 4)))
    labels = weft.input("y", ("batch",), "int64")
    return nn.cross_entropy(scores, labels), nn.accuracy(scores, labels)


def test_a_submitted_job_has_all_that_was_asked_for() -> None:
    script = answers(job())
    loss, accuracy = expressions()
    handle = script.client().submit(
        loss, metrics={"accuracy": accuracy}, data=DATA, batch_size=32, epochs=3, evaluate_every=7,
        optimizer=weft.Adam(lr=0.01), workers=2, shards=3, seed=5, name="points",
    )  # fmt: skip
    assert handle.id == "job-1"
    (request,) = script.requests
    assert (request.method, request.url.path) == ("POST", "/v1/jobs")
    spec = JobSpec.model_validate_json(request.content)
    assert spec.name == "points"
    graph = graph_from_json(spec.graph)
    assert spec.loss == graph.outputs[0]
    assert spec.metrics == {"accuracy": graph.outputs[1]}
    assert spec.data.columns == {"x": "features", "y": "y"}
    assert spec.data.batch_size == 32
    assert spec.run == RunLength(epochs=3, evaluate_every=7)
    assert spec.optimizer == weft.Adam(lr=0.01)
    assert (spec.parallelism.workers, spec.parallelism.shards, spec.seed) == (2, 3, 5)


def test_a_loss_that_is_also_a_metric_is_one_output() -> None:
    script = answers(job())
    loss, _ = expressions()
    script.client().submit(loss, metrics={"again": loss}, data=DATA, steps=1)
    spec = JobSpec.model_validate(script.body())
    assert spec.metrics == {"again": spec.loss}
    assert spec.graph["outputs"] == [spec.loss]


def test_submit_takes_what_job_spec_takes_and_is_shown_with_it() -> None:
    """Editors read the typed dictionary, `help` the signature: no third list may drift away from them."""
    own, whole = inspect.signature(weft.Client.submit), inspect.signature(weft.job_spec)
    assert list(own.parameters.values())[1:] == [p for p in whole.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert own.return_annotation == "JobHandle"
    keywords = {name: p for name, p in whole.parameters.items() if p.kind is p.KEYWORD_ONLY}
    words = TrainingArguments.__annotations__ | JobArguments.__annotations__
    typed = {name: each.__forward_arg__ for name, each in words.items()}
    assert {name: text.removeprefix("Required[") for name, text in typed.items()} == {
        name: p.annotation + ("]" if p.default is p.empty else "") for name, p in keywords.items()
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("epoch", "has no 'epoch'; did you mean 'epochs'?"),
        ("lr", "has no 'lr'; write optimizer=weft.SGD(lr=...)"),
        ("learning_rate", "has no 'learning_rate'; write optimizer=weft.SGD(lr=...)"),
        ("mode", "has no 'mode'; write communication=weft.Communication(mode=...)"),
        ("keep_state", "has no 'keep_state'; write recovery=weft.Recovery(keep_state=...)"),
        ("evaluate_ema", "has no 'evaluate_ema'; write ema=weft.EMA(0.999, evaluate=True)"),
        ("shuffle", "has no 'shuffle'; write data=weft.numpy_data(path, shuffle=...)"),
        ("beta1", "has no 'beta1'; write optimizer=weft.Adam(betas=...)"),
        ("lr_schedule", "has no 'lr_schedule'; write optimizer=weft.SGD(lr=weft.cosine(...))"),
        ("num_epochs", "has no 'num_epochs'; did you mean 'epochs'?"),
        ("qqqqq", "has no 'qqqqq'; it has "),
    ],
)
def test_an_unknown_word_says_where_it_belongs(word: str, said: str) -> None:
    loss, client, given = expressions()[0], answers(job()).client(), {"data": DATA, "steps": 1, word: 1}
    for owner, call in (("submit", client.submit), ("job_spec", weft.job_spec), ("fit", weft.fit)):
        with pytest.raises(weft.ArgumentError, match=re.escape(f"{owner} {said}")):
            call(loss, **given)  # type: ignore[operator]  # the mistake


def test_records_have_the_defaults_of_the_api() -> None:
    loss, _ = expressions()
    plain = weft.job_spec(loss, data=DATA, steps=1)
    assert plain == weft.job_spec(
        loss, data=DATA, steps=1, communication=weft.Communication(), recovery=weft.Recovery(), ema=None
    )
    assert plain == JobSpec(**plain.model_dump(include={"graph", "loss", "data", "run"}))
    for wrong in ({"communication": {"mode": "async"}}, {"recovery": 3}, {"ema": {"decay": 0.9}}):
        [(name, value)] = wrong.items()
        with pytest.raises(weft.ArgumentError, match=re.escape(f"{name} is {value!r}; it should be weft.")):
            weft.job_spec(loss, data=DATA, steps=1, **wrong)


@pytest.mark.parametrize(("length", "what"), [({}, "epochs or steps"), ({"epochs": 1, "steps": 1}, "epochs or steps")])
def test_a_run_has_one_length(length: dict[str, int], what: str) -> None:
    loss, _ = expressions()
    with pytest.raises(weft.ArgumentError, match=what):
        answers(job()).client().submit(loss, data=DATA, **length)


def test_a_batch_of_none_is_refused_before_anything_is_sent() -> None:
    script = answers(job())
    with pytest.raises(weft.ArgumentError, match=r"^batch_size is 0"):
        script.client().submit(expressions()[0], data=DATA, batch_size=0, steps=1)
    assert script.requests == []


def test_a_submit_that_is_repeated_keeps_its_idempotency_key() -> None:
    def broken(_request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("connection reset")

    script = answers(broken, httpx.Response(502, text="<html>bad gateway</html>"), job())
    assert script.client().submit_spec(b"{}").id == "job-1"
    keys = [request.headers["Idempotency-Key"] for request in script.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    script.client().submit_spec(b"{}")
    assert script.requests[-1].headers["Idempotency-Key"] not in keys


def test_pauses_between_attempts_double_up_to_their_limit() -> None:
    script = answers(unavailable)
    with pytest.raises(weft.ConnectError):
        script.client(retry=Retry(attempts=6, first_s=0.1, longest_s=0.5)).job("x")
    assert len(script.requests) == 6
    assert script.time.slept == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_no_server_is_told_with_what_starts_one() -> None:
    with pytest.raises(
        weft.ConnectError, match=r"no server at http://127\.0\.0\.1:8470 .*; start one with: \S*weft up"
    ):
        answers(unavailable).client().job("x")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            httpx.RemoteProtocolError("Server disconnected without sending a response."),
            "another program, has this port",
        ),
        (httpx.ConnectError("[Errno -2] Name or service not known"), "this host's name is not known"),
    ],
)
def test_where_no_server_can_be_started_the_url_is_to_be_corrected(error: httpx.TransportError, remedy: str) -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        raise error from (socket.gaierror() if isinstance(error, httpx.ConnectError) else None)

    with pytest.raises(weft.ConnectError, match=f"^no server at {URL} .*{remedy}; WEFT_URL says where") as caught:
        answers(handler).client().job("x")
    assert "weft up" not in str(caught.value)


def test_a_refusal_is_not_repeated() -> None:
    script = answers(problem(422, "job-refused"))
    with pytest.raises(weft.InvalidRequestError):
        script.client().submit_spec(b"{}")
    assert len(script.requests) == 1


def test_the_server_s_own_504_is_its_last_word_and_a_gateway_s_is_not() -> None:
    script = answers(problem(504, "keeper-silent"))
    with pytest.raises(weft.UnavailableError):
        script.client().job("x")
    assert len(script.requests) == 1
    script = answers(httpx.Response(504), job())
    assert script.client().job("x").id == "job-1"


def test_a_server_that_is_not_ready_is_asked_again() -> None:
    script = answers(problem(503, "not-ready"), job())
    assert script.client().job("x").id == "job-1"


def test_an_answer_that_is_no_problem_document_is_shown_as_it_is() -> None:
    with pytest.raises(weft.NotFoundError, match=r"404.*nothing here") as caught:
        answers(httpx.Response(404, text="nothing here")).client().job("x")
    assert caught.value.code == "http-404"


@pytest.mark.parametrize(
    "response", [httpx.Response(200, text="<html>"), httpx.Response(200, json={"id": "x"}), httpx.Response(204)]
)
def test_an_answer_of_another_kind_is_no_answer(response: httpx.Response) -> None:
    with pytest.raises(weft.ProtocolError, match="Job"):
        answers(response).client().job("x")


def test_a_redirect_is_no_server() -> None:
    with pytest.raises(weft.ProtocolError, match="302"):
        answers(httpx.Response(302, headers={"Location": "http://elsewhere/"})).client().job("x")


def test_jobs_are_gone_through_page_by_page_as_they_are_read() -> None:
    pages = [JobPage(jobs=[job("a"), job("b")], next="7"), JobPage(jobs=[job("c")])]
    script = answers(*pages)
    found = script.client().jobs(state=[JobState.RUNNING, JobState.FAILED])
    assert next(found).id == "a"
    assert len(script.requests) == 1
    assert [handle.id for handle in found] == ["b", "c"]
    assert script.requests[1].url.params["cursor"] == "7"
    assert script.requests[1].url.params.get_list("state") == ["running", "failed"]


@pytest.mark.parametrize("id_", ["", "/", "../../agents?x"])
def test_what_is_no_id_is_refused_and_not_sent(id_: str) -> None:
    script = answers(job())
    with pytest.raises(weft.ArgumentError, match=rf"^{re.escape(repr(id_))} is not a job's id.* jobs` lists them"):
        script.client().job(id_)
    assert not script.requests


def test_url_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", "http://10.1.2.3:99/")
    monkeypatch.setenv("WEFT_TOKEN", "sesame")
    script = answers(job())
    with weft.Client(transport=httpx.MockTransport(script)) as client:
        assert client.url == "http://10.1.2.3:99"
        client.job("x")
    assert script.requests[0].headers["Authorization"] == "Bearer sesame"
    assert weft.Client("http://127.0.0.1:1").url == "http://127.0.0.1:1"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    assert weft.Client("http://127.0.0.1:1").http._client._mounts == {}
    assert weft.Client("http://example.com").http._client._mounts != {}


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8470", "http://", "http://[::1", "nonsense"])
def test_what_is_no_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(weft.UrlError, match=r"http://127\.0\.0\.1:8470"):
        weft.Client(url)


def test_data_says_which_rows_train_and_which_are_kept_back() -> None:
    assert weft.numpy_data("p.npz", evaluate=(80, 100)).train == DATA.train
    assert weft.numpy_data("p.npz").train is None
    with pytest.raises(ValueError, match="training reads 0 to 90"):
        weft.numpy_data("p.npz", train=(0, 90), evaluate=(80, 100))
    with pytest.raises(ValueError, match="train="):
        weft.numpy_data("p.npz", evaluate=(0, 10))
    with pytest.raises(ValueError, match="rows 5 to 5"):
        weft.numpy_data("p.npz", train=(5, 5))


def test_a_graph_s_constants_travel_with_the_job() -> None:
    script = answers(job())
    x = weft.input("x", ("batch", 4))
    loss = nn.mean_squared_error(nn.Linear(4, 4)(x) * weft.constant([1.0, 2, 3, 4], name="weights"), x)
    script.client().submit(loss, data=DATA, steps=1)
    graph = graph_from_json(script.body()["graph"])
    np.testing.assert_array_equal(graph.constants[0].array, [1, 2, 3, 4])


def test_a_scope_that_there_is_not_is_told_before_anything_is_sent() -> None:
    script = answers(job())
    with pytest.raises(weft.ArgumentError, match=r"^create_token: scope is 'boss'; it should be 'viewer', 'runner' or"):
        script.client().create_token("ann", scope="boss")
    assert script.requests == []


@pytest.mark.parametrize("token", ["\u00fc", "a\nb", "a b"])
def test_a_token_that_no_header_carries_is_told(token: str) -> None:
    with pytest.raises(weft.ArgumentError, match="token"):
        weft.Client("http://127.0.0.1:1", token=token)


def test_a_job_is_resumed_as_it_was_but_for_what_is_given() -> None:
    loss, _ = expressions()
    before = weft.job_spec(loss, data=DATA, epochs=3, evaluate_every=7, optimizer=weft.Adam(lr=0.01), workers=2, seed=5)
    script = answers(job(), before, job(), before, job(), before, job())
    client = script.client()
    client.resume("job")
    spec = JobSpec.model_validate_json(script.requests[2].content)
    assert [each.url.path for each in script.requests] == ["/v1/jobs/job", "/v1/jobs/job-1/spec", "/v1/jobs"]
    assert spec == before.model_copy(update={"resume": "job-1"})
    client.resume(weft.JobHandle(client.http, job()), steps=90, workers=4, shards=1, lr=0.5, name="longer")
    spec = JobSpec.model_validate_json(script.requests[4].content)
    assert (spec.resume, spec.name, spec.seed) == ("job-1", "longer", 5)
    assert spec.run == RunLength(steps=90, evaluate_every=7)
    assert (spec.parallelism.workers, spec.parallelism.shards, spec.optimizer) == (4, 1, weft.Adam(lr=0.5))
    client.resume(weft.JobHandle(client.http, job()), optimizer=weft.AdamW(lr=0.5))
    assert JobSpec.model_validate_json(script.requests[6].content).optimizer == weft.AdamW(lr=0.5)
    with pytest.raises(weft.ArgumentError, match=r"^resume has no 'epoch'; did you mean 'epochs'"):
        client.resume("job-1", epoch=3)  # type: ignore[call-arg]  # the mistake is the point


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([], r"there is no job 'ab', and no other; submit one with: \S*weft submit"),
        ([job("abc"), job("abd")], "2 jobs begin with 'ab'; give more of the id:\n  abc  digits  running\n  abd"),
        ([job("xyz")], r"no job's id begins with 'ab'; `\S*weft jobs` lists them"),
    ],
)
def test_an_id_that_fits_none_or_many_is_explained(listed: list[Any], message: str) -> None:
    client = answers(problem(404, "unknown-job"), JobPage(jobs=listed)).client()
    with pytest.raises(weft.NotFoundError, match=message):
        client.job("ab")


def test_the_beginning_of_an_id_will_do_wherever_a_job_is_meant() -> None:
    loss, _ = expressions()
    unknown, page = problem(404, "unknown-job"), JobPage(jobs=[job("abc"), job("def")])
    assert answers(unknown, page).client().job("ab").id == "abc"
    script = answers(unknown, page, httpx.Response(204))
    script.client().remove("ab")
    assert script.requests[-1].url.path == "/v1/jobs/abc"
    script = answers(unknown, page, job())
    script.client().submit(loss, data=DATA, steps=1, init_from="ab")
    assert script.body()["init_from"] == {"job": "abc"}
    script = answers(unknown, page, job())
    script.client().submit(loss, data=DATA, steps=9, resume="de")
    assert script.body()["resume"] == "def"


@pytest.mark.parametrize("told", ["Extra inputs are not permitted", "there is no field 'x'; there are lr, name"])
def test_fields_that_an_older_server_does_not_know_are_left_out_where_they_say_nothing(told: str) -> None:
    """The server of the release before refuses them; `record.py` has its words."""
    loss, _ = expressions()
    later = ("/keep_best", "/data/shuffle", "/optimizer/amsgrad", "/parallelism/mode")

    def older(request: httpx.Request) -> httpx.Response:
        document = json.loads(request.content)
        wrong = [path for path in later if has(document, path)]
        errors = [{"pointer": path, "detail": told} for path in wrong]
        return problem(422, "invalid-request", "fields", errors) if wrong else answers(job()).handlers[0](request)

    def has(document: Any, path: str) -> bool:
        *records, field = path.split("/")[1:]
        for each in records:
            document = document[each]
        return field in document

    script = answers(older)
    assert script.client().submit(loss, data=DATA, steps=1, optimizer=weft.Adam()).id == "job-1"
    whole, sent = (JobSpec.model_validate(script.body(each)) for each in (0, 1))
    assert whole == sent
    assert sent.optimizer == weft.Adam()
    refused = answers(older)
    with pytest.raises(weft.InvalidRequestError, match="/optimizer/amsgrad: "):
        refused.client().submit(loss, data=DATA, steps=1, optimizer=weft.Adam(amsgrad=True))
    assert len(refused.requests) == 1  # it would train otherwise


def test_what_a_job_goes_on_from_and_when_it_ends_are_keywords_too() -> None:
    loss, _ = expressions()
    spec = weft.job_spec(
        loss, data=DATA, steps=9, resume="job-1", stop_when={"patience": 3}, recovery=weft.Recovery(on_nan="go_on")
    )
    assert spec.stop_when is not None
    assert (spec.resume, spec.stop_when.patience, spec.on_nan) == ("job-1", 3, "go_on")
    with pytest.raises(weft.ArgumentError, match="give patience, reaches or after_s"):
        weft.job_spec(loss, data=DATA, steps=9, stop_when={"metric": "loss"})


def test_data_of_this_folder_is_sent_by_its_absolute_path_unless_the_server_cannot_read_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loss, _ = expressions()
    lacking = problem(
        422, "job-refused", "no", [{"pointer": "/data/source/path", "detail": "cannot open /a/points.npz"}]
    )
    with pytest.raises(weft.InvalidRequestError, match="cannot open /a/points"):
        answers(lacking).client().submit(loss, data=DATA, steps=1)
    (tmp_path / "points.npz").write_bytes(b"")
    script = answers(lacking, job())
    script.client().submit(loss, data=DATA, steps=1)
    assert [script.body(each)["data"]["source"]["path"] for each in (0, 1)] == [f"{tmp_path}/points.npz", "points.npz"]
    first, second = (request.headers["Idempotency-Key"] for request in script.requests)
    assert first != second  # the second is another job
    script = answers(job())
    script.client().submit(loss, data=DATA, steps=1)
    assert script.body()["data"]["source"]["path"] == f"{tmp_path}/points.npz"
    nowhere = problem(422, "job-refused", "no", [{"pointer": "/data/source/path", "detail": "there is none here"}])
    script = answers(lacking, nowhere)
    with pytest.raises(weft.InvalidRequestError, match="cannot open /a/points") as caught:
        script.client().dry_run(weft.job_spec(loss, data=DATA, steps=1))
    assert len(script.requests) == 2
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    script = answers(problem(422, "job-refused", "no", [{"pointer": "/data/columns/x", "detail": "wrong"}]))
    with pytest.raises(weft.InvalidRequestError, match="wrong"):
        script.client().submit(loss, data=DATA, steps=1)
    assert len(script.requests) == 1
