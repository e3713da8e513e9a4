"""Every route of the application, with every scope, in one's own project and in another's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from safetensors.numpy import save
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from server_hands import B, refused
from server_running import cast, eventually, running, state, submit
from server_specs import save_rows, spec_json
from weft import Client
from weft.api.lifecycle import AllocationEvent
from weft.api.token import Scope
from weft.cli.app import app as weft_command
from weft.errors import ConflictError, ForbiddenError, UnauthenticatedError
from weft_server.access import RULES
from weft_server.app import create_app
from weft_server.settings import Settings

ADMIN, AGENTS = "an-admin-by-the-settings", "a-token-to-join-with"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def routes(app: FastAPI) -> list[str]:
    """`GET /v1/jobs` and so on, as the application has them."""
    found = []
    for each in app.routes:
        included = getattr(each, "original_router", None)
        for route in [each] if included is None else included.routes:
            found += [f"{method} {route.path}" for method in route.methods]  # type: ignore[attr-defined]
    return sorted(found)


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    assert routes(create_app(Settings())) == sorted(RULES)


def test_viewers_change_nothing_and_runners_make_no_tokens() -> None:
    for route, rule in RULES.items():
        method, _, path = route.partition(" ")
        if rule.scope is not None and method not in {"GET", "HEAD"}:
            assert rule.scope.covers(Scope.RUNNER), route
        if path.startswith("/v1/tokens"):
            assert rule.scope is Scope.ADMIN, route
        assert not rule.open or path in {"/healthz", "/readyz", "/problems", "/problems/{code}"}, route


class World:
    """A server with a job and an upload in each of two projects, and a token for each scope in each."""

    def __init__(self, client: httpx.Client, folder: Path) -> None:
        self.client = client
        self.document: dict[str, Any] = spec_json(save_rows(folder / "rows.npz"))
        self.tokens = {
            (scope, project): self.call("POST", "/v1/tokens", ADMIN, json=new(scope, project)).json()["token"]
            for scope, project in product(Scope, ("red", "blue", "*"))
        }
        self.jobs = {
            project: self.call("POST", "/v1/jobs", self.tokens[Scope.RUNNER, project], json=self.document).json()["id"]
            for project in ("red", "blue")
        }

    def call(self, method: str, path: str, token: str, **more: Any) -> httpx.Response:
        return self.client.request(method, path, headers=bearer(token) if token else {}, **more)

    def upload(self, project: str, array: Any = B) -> str:
        runner = self.tokens[Scope.RUNNER, project]
        found: str = self.call("POST", "/v1/uploads", runner, content=save({"b": array})).json()["id"]
        return found

    def token(self, project: str) -> str:
        name = f"spare-{project}"
        self.call("POST", "/v1/tokens", ADMIN, json=new(Scope.VIEWER, project) | {"name": name})
        return name

    def path(self, route: str, project: str) -> str:
        """The route's path, to things of the project."""
        path = (
            route.partition(" ")[2]
            .replace("{job}", self.jobs[project])
            .replace("{number}", "1")
            .replace("{code}", "too-large")
        )
        if "{upload}" in path:
            path = path.replace("{upload}", self.upload(project))
        if "{name}" in path:
            path = path.replace("{name}", self.token(project))
        return path.replace("{agent}", "nobody").replace("{allocation}", "nothing")


def new(scope: Scope, project: str) -> dict[str, str]:
    return {"name": f"{scope}-{'all' if project == '*' else project}", "scope": scope, "project": project}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("access")
    with running(folder / "server", token=ADMIN, agent_token=AGENTS) as client:
        yield World(client, folder)


def test_a_cancelled_job_names_who_cancelled_it(world: World) -> None:
    runner = world.tokens[Scope.RUNNER, "red"]
    job = world.call("POST", "/v1/jobs", runner, json=world.document).json()["id"]
    assert world.call("POST", f"/v1/jobs/{job}/cancel", runner).json()["reason"] == "by runner-red"


@pytest.mark.parametrize("route", sorted(RULES))
def test_a_route_lets_in_whom_its_rule_names_and_nobody_else(world: World, route: str) -> None:
    method, rule = route.partition(" ")[0], RULES[route]
    more: dict[str, Any] = {"params": {"format": "json"}} if route.endswith("/events") else {}
    strange = world.call(method, world.path(route, "red"), "no-such-token-as-this", **more)
    assert strange.status_code not in {401, 403} if rule.open else strange.status_code == 401
    for scope, project, of in product(Scope, ("red", "*"), ("red", "blue")):
        told = f"{route} of project {of}, by a {scope} of {project}"
        answer = world.call(method, world.path(route, of), world.tokens[scope, project], **more)
        if rule.open:
            assert answer.status_code == 200, told
        elif rule.scope is None:
            refused(answer, 403, "wrong-credential")
        elif not scope.covers(rule.scope) or (rule.of_all_projects and project != "*"):
            if method == "HEAD":
                assert answer.status_code == 403, told
            else:
                assert f"scope {rule.scope}" in refused(answer, 403, "scope-needed").detail, told
        elif project != of and project != "*" and (noun := _noun(route)):
            assert refused(answer, 404, f"unknown-{noun}"), told
        else:
            assert answer.status_code not in {401, 403}, told
            assert answer.status_code != 404 or answer.json()["code"] in {"unknown-agent"}, (told, answer.text)


def _noun(route: str) -> str:
    return next((noun for noun in ("job", "upload") if f"{{{noun}}}" in route), "token" if "/tokens/" in route else "")


def test_a_path_that_no_rule_has_is_there_for_nobody(world: World) -> None:
    admin = world.tokens[Scope.ADMIN, "*"]
    for path in ("/v1/nothing", "/v1/jobs/", "/v1/jobs%0A", f"/v1/jobs/{world.jobs['red']}/nothing"):
        assert world.call("POST", path, admin).status_code == 404
    assert world.call("PATCH", "/v1/jobs", admin).status_code == 405


def test_lists_show_what_is_of_ones_project(world: World) -> None:
    uploads = {project: world.upload(project) for project in ("red", "blue")}
    for project in ("red", "blue"):
        viewer = world.tokens[Scope.VIEWER, project]
        jobs = world.call("GET", "/v1/jobs", viewer).json()["jobs"]
        assert {each["project"] for each in jobs} == {project}
        brought = {each["id"] for each in world.call("GET", "/v1/uploads", viewer).json()["uploads"]}
        assert brought.intersection(uploads.values()) == {uploads[project]}
        admin = world.tokens[Scope.ADMIN, project]
        tokens = world.call("GET", "/v1/tokens", admin).json()["tokens"]
        assert {each["project"] for each in tokens} == {project}
    everything = world.call("GET", "/v1/jobs", world.tokens[Scope.VIEWER, "*"]).json()["jobs"]
    assert {"red", "blue"} <= {each["project"] for each in everything}


@pytest.mark.parametrize("what", ["job", "upload", "resume"])
def test_a_job_begins_with_nothing_of_another_project(world: World, what: str) -> None:
    foreign = world.upload("blue") if what == "upload" else world.jobs["blue"]
    runner = world.tokens[Scope.RUNNER, "red"]

    def told(identifier: str, **params: str) -> str:
        begins = {"resume": identifier} if what == "resume" else {"init_from": {what: identifier}}
        answer = world.call("POST", "/v1/jobs", runner, json=world.document | begins, params=params)
        return refused(answer, 422, "job-refused").errors[0].detail.replace(identifier, "ID")

    nothing = told("0000000000000000")
    assert nothing.startswith("there is no ")
    assert told(foreign) == nothing
    assert told(foreign, dry_run="true") == nothing
    if what == "upload":
        mine = world.document | {"init_from": {"upload": world.upload("red")}}
        assert world.call("POST", "/v1/jobs", runner, json=mine).status_code == 201
        copied = world.call(
            "POST",
            "/v1/jobs",
            world.tokens[Scope.RUNNER, "blue"],
            json=world.document | {"init_from": {"upload": foreign}},
        )
        assert copied.status_code == 201
        world.call("DELETE", f"/v1/uploads/{foreign}", world.tokens[Scope.RUNNER, "blue"])
        assert told(foreign) == nothing, "nor the copy that a job of the other project has"


def test_an_idempotency_key_brings_no_job_of_another_project(world: World) -> None:
    made = []
    for project in ("red", "blue", "red"):
        headers = bearer(world.tokens[Scope.RUNNER, project]) | {"Idempotency-Key": "the-same"}
        made.append(world.client.post("/v1/jobs", json=world.document, headers=headers).json()["id"])
    assert made[0] == made[2] != made[1]


def test_a_token_that_is_made_by_the_same_call_again_has_the_same_secret(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str, key: str, scope: Scope = Scope.VIEWER) -> httpx.Response:
        headers = bearer(ADMIN) | {"Idempotency-Key": key}
        return world.client.post("/v1/tokens", json=new(scope, "red") | {"name": name}, headers=headers)

    with monkeypatch.context() as patched:  # kept, but not answered
        locked = OperationalError("SELECT", {}, Exception("database is locked"))
        patched.setattr("weft_server.storage.records.Records.users", Mock(side_effect=locked))
        refused(made("again", "k"), 503, "records-unavailable")
    first = made("again", "k")
    assert made("again", "k").json() == first.json()
    assert world.call("GET", "/v1/jobs", first.json()["token"]).status_code == 200
    for other in (made("again", "l"), made("again", "k", Scope.RUNNER)):
        refused(other, 409, "wrong-state")
    assert made("another", "k").json()["token"] != first.json()["token"]
    assert world.call("DELETE", "/v1/tokens/again?project=red", ADMIN).status_code == 204
    refused(made("again", "k"), 409, "wrong-state")
    assert world.call("GET", "/v1/jobs", first.json()["token"]).status_code == 401
    assert made("again", "another key").status_code == 201


def test_agents_show_the_jobs_that_the_caller_sees(tmp_path: Path) -> None:
    with running(tmp_path / "server", token=ADMIN, agent_token=AGENTS) as client:
        world = World(client, tmp_path)
        client.headers.update(bearer(ADMIN))
        with cast(client, stop_at=AllocationEvent.RUNNING, token=AGENTS):
            eventually(lambda: state(client, world.jobs["red"]) == "running", "a job runs")
            for project, seen in (("red", {world.jobs["red"]}), ("blue", set()), ("*", {world.jobs["red"]})):
                agents = world.call("GET", "/v1/agents", world.tokens[Scope.VIEWER, project]).json()["agents"]
                assert {job for agent in agents for job in agent["jobs"]} == seen
                assert len(agents) == 3


def test_an_admin_of_a_project_makes_tokens_of_it_alone(world: World) -> None:
    admin = world.tokens[Scope.ADMIN, "red"]
    for project in ("blue", "*"):
        told = refused(world.call("POST", "/v1/tokens", admin, json=new(Scope.VIEWER, project)), 403, "scope-needed")
        assert "project red" in told.detail
    made = world.call("POST", "/v1/tokens", admin, json=new(Scope.RUNNER, "red") | {"name": "ci"})
    assert made.status_code == 201
    assert world.call("GET", "/v1/jobs", made.json()["token"]).status_code == 200


def test_names_of_tokens_are_their_projects(world: World) -> None:
    """Nobody learns the name of another project's token by the answer."""

    def made(project: str) -> str:
        admin = world.tokens[Scope.ADMIN, project]
        answer = world.call("POST", "/v1/tokens", admin, json=new(Scope.VIEWER, project) | {"name": "shared"})
        assert answer.status_code == 201
        secret: str = answer.json()["token"]
        return secret

    red, blue = made("red"), made("blue")
    ambiguous = refused(world.call("DELETE", "/v1/tokens/shared", ADMIN), 409, "wrong-state")
    assert ambiguous.detail == "the projects 'blue', 'red' each have token 'shared': say which, with ?project=NAME"
    refused(world.call("DELETE", "/v1/tokens/shared?project=green", ADMIN), 404, "unknown-token")
    assert world.call("DELETE", "/v1/tokens/shared?project=red", ADMIN).status_code == 204
    refused(world.call("GET", "/v1/jobs", red), 401, "unauthorized")
    assert world.call("DELETE", "/v1/tokens/shared", world.tokens[Scope.ADMIN, "blue"]).status_code == 204
    refused(world.call("GET", "/v1/jobs", blue), 401, "unauthorized")


def test_an_upload_that_several_projects_have_is_deleted_where_it_is_said(world: World) -> None:
    tokens = [world.tokens[Scope.RUNNER, project] for project in ("red", "blue")]
    document = save({"w": np.zeros(3, np.float32)})
    (upload,) = {
        world.client.post("/v1/uploads", content=document, headers=bearer(each) | {"Idempotency-Key": "k"}).json()["id"]
        for each in tokens
    }
    ambiguous = refused(world.call("DELETE", f"/v1/uploads/{upload}", ADMIN), 409, "wrong-state")
    assert ambiguous.detail == f"the projects 'blue', 'red' each have upload {upload!r}: say which, with ?project=NAME"
    assert world.call("DELETE", f"/v1/uploads/{upload}?project=blue", ADMIN).status_code == 204
    left = [world.call("GET", "/v1/uploads", each).text for each in tokens]
    assert [upload in each for each in left] == [True, False]


def test_a_token_outlives_the_server_as_a_hash_until_it_is_removed(tmp_path: Path) -> None:
    settings = {"token": ADMIN, "agent_token": AGENTS}
    with running(tmp_path / "server", **settings) as http:
        url = str(http.base_url)
        with Client(url, token=ADMIN) as client:
            secret = client.create_token("ci", scope="runner", project="red").token
            with pytest.raises(ConflictError, match="project red has a token 'ci' already"):
                client.create_token("ci", project="red")
        with Client(url, token=secret) as client, pytest.raises(ForbiddenError, match="scope admin"):
            client.tokens()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file())
    assert secret.encode() not in kept
    with running(tmp_path / "server", **settings) as http:
        url = str(http.base_url)
        with Client(url, token=ADMIN) as admin, Client(url, token=secret) as client:
            assert [(each.name, each.scope, each.project) for each in admin.tokens()] == [("ci", Scope.RUNNER, "red")]
            assert list(client.jobs()) == []
            admin.remove_token("ci")
            with pytest.raises(UnauthenticatedError):
                list(client.jobs())


def test_a_stream_of_events_ends_soon_after_its_token_was_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_server.routes.events.KEEP_ALIVE_S", 0.05)
    admin = world.tokens[Scope.ADMIN, "red"]
    made = world.call("POST", "/v1/tokens", admin, json={"name": "gone", "scope": "viewer", "project": "red"}).json()
    runner = world.tokens[Scope.RUNNER, "red"]
    job = world.call("POST", "/v1/jobs", runner, json=world.document).json()["id"]
    path = f"/v1/jobs/{job}/events"
    with world.client.stream("GET", path, headers=bearer(made["token"])) as stream:
        frames = stream.iter_text()
        assert next(frames).startswith(": events of")
        assert world.call("DELETE", "/v1/tokens/gone", admin).status_code == 204
        for _ in frames:  # It ends, though the job has not.
            pass
    assert world.call("GET", f"/v1/jobs/{job}", admin).json()["state"] == "pending"


def test_the_command_makes_lists_and_removes_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TOKEN", ADMIN)
    with running(tmp_path / "server", token=ADMIN) as http:

        def weft(*arguments: str) -> str:
            result = CliRunner().invoke(weft_command, ["token", *arguments, "--url", str(http.base_url)])
            assert result.exit_code == 0, result.output
            return result.stdout

        secret = weft("create", "ci", "--scope", "runner", "--project", "team-a").strip()
        assert http.get("/v1/jobs", headers=bearer(secret)).status_code == 200
        assert weft("ls").splitlines()[-1].split()[:3] == ["ci", "runner", "team-a"]
        weft("rm", "ci")
        wrong = refused(http.get("/v1/jobs", headers=bearer(secret)), 401, "unauthorized")
        assert wrong.detail == "the server does not know the call's token; weft sends that of WEFT_TOKEN"
        missing = refused(http.get("/v1/jobs", headers={"Authorization": ""}), 401, "unauthorized")
        assert str(missing.detail).startswith("the call has no token: ")


def test_a_server_without_tokens_makes_none(tmp_path: Path) -> None:
    with running(tmp_path / "server") as client:
        told = refused(client.post("/v1/tokens", json=new(Scope.ADMIN, "*")), 409, "wrong-state")
        assert "WEFT_SERVER_TOKEN" in told.detail
        document = spec_json(save_rows(tmp_path / "rows.npz"))
        assert submit(client, document).json()["project"] == "default"
