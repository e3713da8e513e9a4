"""The OpenAPI documents are of one piece: schemas, examples, problems, links and security. That they are true is held
against every answer of the other tests here (see `documented`) and of test_server_schemathesis."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator, ValidationError
from sqlalchemy.exc import OperationalError

from documented import ANY_PATH, checker, operations, validator
from server_running import running
from server_specs import save_rows
from weft_server.examples import EXAMPLES, SPEC
from weft_server.openapi import PATHS, Audience, codes_of, describe
from weft_server.problems import KINDS, MEDIA_TYPE, problem
from weft_server.settings import Settings
from weft_server.threads import Threads

AUDIENCES: list[Audience] = ["users", "agents"]


def document(audience: Audience) -> dict[str, Any]:
    return describe(audience, tokens=True, is_loopback=True)


def calls(audience: Audience) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document(audience)["paths"].items():
        for method, call in methods.items():
            yield f"{method} {path}", call


@pytest.mark.parametrize("audience", AUDIENCES)
def test_every_example_is_one_of_its_schema(audience: Audience) -> None:
    whole, count = document(audience), 0
    for where, call in calls(audience):
        for status, part in {"request": call.get("requestBody", {}), **call["responses"]}.items():
            for kind, content in part.get("content", {}).items():
                for name, example in content.get("examples", {}).items():
                    value = whole["components"]["examples"][name]["value"] if "$ref" in example else example["value"]
                    validator(whole, content["schema"]).validate(value), f"{where} {status} {kind}"
                    count += 1
        for parameter in call.get("parameters", ()):
            if "example" in parameter:
                validator(whole, parameter["schema"]).validate(parameter["example"])
    assert count > 50


def test_every_call_with_json_has_an_example() -> None:
    lacking = {
        (call["operationId"], status)
        for audience in AUDIENCES
        for _, call in calls(audience)
        for status, part in {"request": call.get("requestBody", {}), **call["responses"]}.items()
        if "$ref" in part.get("content", {}).get("application/json", {}).get("schema", {})
        and status not in EXAMPLES.get(call["operationId"], {})
    }
    assert lacking == {("submit_job", "200")}, "a dry run's answer is long"


def test_the_example_of_a_job_is_a_job(tmp_path: Path) -> None:
    spec = copy.deepcopy(SPEC)
    spec["data"]["source"]["path"] = str(save_rows(tmp_path / "rows.npz"))
    with running(tmp_path / "server") as client:
        made = client.post("/v1/jobs", json=spec)
        assert made.status_code == 201, made.text
        assert client.get(f"/v1/jobs/{made.json()['id']}/spec").json()["graph"] == spec["graph"]


@pytest.mark.parametrize("audience", AUDIENCES)
def test_schemas_are_json_schema_and_every_reference_leads_somewhere(audience: Audience) -> None:
    whole = document(audience)
    for schema in whole["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(whole)
    for kind in ("schemas", "examples"):
        for name in {part.split('"')[0] for part in text.split(f"#/components/{kind}/")[1:]}:
            assert name in whole["components"][kind]
    assert "HTTPValidationError" not in text
    assert whole["openapi"].startswith("3.1")


def test_links_lead_to_calls_that_have_the_parameter() -> None:
    for audience in AUDIENCES:
        by_name = {call["operationId"]: call for _, call in calls(audience)}
        for call in by_name.values():
            for response in call["responses"].values():
                for link in response.get("links", {}).values():
                    names = {each["name"] for each in by_name[link["operationId"]]["parameters"]}
                    assert link["parameters"].keys() <= names


def test_every_kind_of_problem_is_sent_by_some_call() -> None:
    """And no code is documented that is no kind."""
    sent = set(ANY_PATH)
    for audience in AUDIENCES:
        for _, call in calls(audience):
            for status, response in call["responses"].items():
                if not status.startswith("2"):
                    assert list(response["content"]) == [MEDIA_TYPE]
                    codes = codes_of(call, int(status))
                    assert codes, f"{call['operationId']} {status}"
                    sent.update(codes)
    assert sent == KINDS.keys()


def test_users_and_agents_calls_stand_apart() -> None:
    users, agents = ({call["operationId"] for _, call in calls(each)} for each in AUDIENCES)
    assert not users & agents
    assert {"submit_job", "list_agents"} <= users
    assert {"register", "heartbeat", "report"} <= agents


def test_each_call_says_which_token_it_takes() -> None:
    taken = {call["operationId"]: call["security"] for audience in AUDIENCES for _, call in calls(audience)}
    assert taken["submit_job"] == [{"runnerToken": []}]
    assert taken["list_jobs"] == taken["list_agents"] == [{"viewerToken": []}]
    assert taken["create_token"] == [{"adminToken": []}]
    assert taken["leave"] == [{"adminToken": []}, {"agentCredential": []}]
    assert taken["register"] == [{"agentToken": []}]
    assert taken["heartbeat"] == [{"agentCredential": []}]
    assert taken["report"] == [{"allocationCredential": []}]
    assert taken["healthz"] == []
    for audience in AUDIENCES:
        schemes = document(audience)["components"]["securitySchemes"]
        assert {each for _, call in calls(audience) for one in call["security"] for each in one} == schemes.keys()


def test_a_server_without_a_token_documents_none() -> None:
    whole = describe("users", tokens=False, is_loopback=True)
    assert "securitySchemes" not in whole["components"]
    for methods in whole["paths"].values():
        for call in methods.values():
            assert call["security"] == []
            assert "401" not in call["responses"]


def test_requests_are_closed_and_answers_are_open() -> None:
    """A later release may add fields to what it answers, and a client that knows the schema has to let them pass."""
    schemas = document("users")["components"]["schemas"]
    assert schemas["JobSpec-Input"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["JobSpec-Output"]
    assert schemas["Scale"]["additionalProperties"] is False
    for name in ("Job", "JobPage", "AgentInfo", "Problem", "Event"):
        assert "additionalProperties" not in schemas[name]


def test_the_documents_are_served(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for audience in AUDIENCES:
            assert client.get(PATHS[audience]).json() == describe(audience, tokens=False, is_loopback=True)


USERS, AGENTS = "a-token-of-all-users", "a-token-of-all-agents"
PLACES = dict.fromkeys(("job", "agent", "allocation", "upload", "number", "name"), "1") | {"sha256": "0" * 64}
JSON = MappingProxyType({"Content-Type": "application/json"})


def codes(client: httpx.Client, headers: Mapping[str, str]) -> dict[str, str]:
    """What each call, by its name, is answered: a code or nothing; the client holds it against the document."""
    found: dict[str, str] = {}
    for audience in AUDIENCES:
        for where, call in calls(audience):
            method, path = where.split()
            body = {} if method == "get" else {"content": b"{" + b" " * 64 + b"}"}
            answer = client.request(method, path.format_map(PLACES), headers=headers, **body)
            found[call["operationId"]] = answer.json()["code"] if answer.is_error else ""
    return found


def test_what_is_refused_before_a_call_is_reached_is_documented_of_each_call(tmp_path: Path) -> None:
    limits = dict.fromkeys(("job_bytes", "report_bytes", "model_bytes", "upload_bytes"), 8)
    changing = {call["operationId"] for each in AUDIENCES for where, call in calls(each) if not where.startswith("get")}
    streamed = {"set_values", "bring_parameters"}  # the job's parameters say how large
    with running(tmp_path, **limits) as client:
        for headers, code, refused in (
            ({"Origin": "https://example.org"}, "wrong-origin", changing),
            ({"Content-Encoding": "gzip"}, "unknown-encoding", changing),
            ({}, "too-large", changing - streamed),
        ):
            assert {name for name, told in codes(client, headers).items() if told == code} == refused, code
        assert set(codes(client, {"Host": "example.org"}).values()) == {"wrong-host"}


def test_each_call_documents_which_tokens_it_refuses(tmp_path: Path) -> None:
    wants = {call["operationId"]: call["security"] for audience in AUDIENCES for _, call in calls(audience)}
    guarded = {name for name, schemes in wants.items() if schemes}
    for_viewers = {name for name, schemes in wants.items() if {"viewerToken": []} in schemes}
    with running(tmp_path, token=USERS, agent_token=AGENTS) as client:
        asked = {"name": "r", "scope": "viewer", "project": "p"}
        made = client.post("/v1/tokens", json=asked, headers={"Authorization": f"Bearer {USERS}"})
        for token, told, refused in (
            ("", {"unauthorized"}, guarded),
            ("agents.a.b", {"unknown-credential"}, guarded),
            (AGENTS, {"wrong-credential"}, guarded - {"register"}),
            (made.json()["token"], {"wrong-credential", "scope-needed"}, guarded - for_viewers),
        ):
            found = codes(client, {"Authorization": f"Bearer {token}"} if token else {})
            assert {name for name, code in found.items() if code in told} == refused, token


def test_records_that_do_not_answer_are_documented_of_each_call_that_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def locked(*_: Any) -> None:
        raise OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked"))

    with running(tmp_path) as client, monkeypatch.context() as broken:
        broken.setattr(Threads, "read", locked)
        broken.setattr(Threads, "read_large", locked)
        broken.setattr(Threads, "write", locked)
        found = codes(client, JSON)
    assert "internal-error" not in found.values()
    told = {name for name, code in found.items() if code == "records-unavailable"}
    assert {"list_jobs", "get_job", "get_values", "get_events", "get_programs", "cancel_job", "remove_job"} <= told


def test_an_answer_that_is_not_documented_fails_the_test_that_gets_it() -> None:
    check = checker(Settings())
    request = httpx.Request("GET", "http://127.0.0.1/v1/jobs/x")

    def answer(code: str) -> httpx.Response:
        told = problem(code, "why")
        kind = {"Content-Type": MEDIA_TYPE}
        return httpx.Response(told.status, text=told.model_dump_json(), headers=kind, request=request)

    check(answer("unknown-job"))
    with pytest.raises(AssertionError, match="wrong-state"):
        check(answer("wrong-state"))
    with pytest.raises(ValidationError):
        check(httpx.Response(200, json={"id": "x"}, request=request))
    with pytest.raises(KeyError):
        check(httpx.Response(201, json={}, request=request))


def test_a_path_without_placeholders_is_found_first() -> None:
    assert [call["operationId"] for call in operations(document("users"), "GET", "/v1/jobs/a/spec")] == ["get_job_spec"]
