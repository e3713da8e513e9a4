"""Who may come in."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from server_running import eventually, running
from server_specs import save_rows, spec_json
from weft.api.agent import AgentKind
from weft_server.access import TokenGate, Tokens
from weft_server.credentials import Credentials
from weft_server.gate import AGENT_CALLS, CallGate
from weft_server.settings import Settings

TOKEN = "a-token-of-these-tests"


def test_a_server_that_others_can_reach_needs_a_token() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "weft.example"):
        with pytest.raises(ValidationError, match="give a token"):
            Settings(host=host)
        assert Settings(host=host, token=TOKEN).token is not None
    for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1"):
        assert Settings(host=host).token is None


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 16"):
        Settings(token="secret")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SERVER_PORT", "99")
    monkeypatch.setenv("WEFT_SERVER_DATA_ROOTS", '["/data"]')
    assert Settings().port == 99
    assert Settings().readable == (Path("/data"),)
    assert Settings(port=98).port == 98


def test_silence_of_less_than_two_heartbeats_is_no_setting() -> None:
    with pytest.raises(ValidationError, match="less than two heartbeats"):
        Settings(heartbeat_interval_s=3, lost_after_s=5)


def test_without_roots_a_server_that_others_can_reach_reads_nothing() -> None:
    assert Settings().readable is None
    assert Settings(host="0.0.0.0", token=TOKEN).readable == ()


def test_every_route_but_the_probes_wants_the_token(tmp_path: Path) -> None:
    with running(tmp_path / "server", token=TOKEN) as client:
        for path in ("/healthz", "/readyz"):
            assert client.get(path).status_code == 200
        for header in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/v1/jobs", "/v1/agents", "/openapi.json", "/docs", "/nowhere"):
                refused = client.get(path, headers=header)
                assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
                assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/v1/jobs", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_an_agent_with_the_token_is_a_member(tmp_path: Path) -> None:
    from server_running import Actor

    with running(tmp_path / "server", token=TOKEN) as client:
        actor = Actor(client, AgentKind.WORKER, "worker-0", token=TOKEN)
        eventually(lambda: actor.orders, "the agent gets orders")
        actor.end()


def test_streams_of_a_user_and_of_a_project_leave_room_for_others_and_for_agents(tmp_path: Path) -> None:
    with (
        running(tmp_path / "server", token=TOKEN, most_connections=16, data_roots=[tmp_path]) as client,
        ExitStack() as held,
    ):
        admin = {"Authorization": f"Bearer {TOKEN}"}

        def token(name: str, project: str = "default") -> dict[str, str]:
            asked = {"name": name, "scope": "viewer", "project": project}
            return {"Authorization": f"Bearer {client.post('/v1/tokens', json=asked, headers=admin).json()['token']}"}

        job = client.post("/v1/jobs", json=spec_json(save_rows(tmp_path / "rows.npz")), headers=admin).json()["id"]
        ann, ben, cleo, dora = token("ann"), token("ben"), token("cleo"), token("dora", "speech")
        for told, headers in (("ann", ann), ("project default", ben)):
            for _ in range(4):
                stream = held.enter_context(client.stream("GET", f"/v1/jobs/{job}/events", headers=headers))
                assert stream.status_code == 200
            refused = client.get("/v1/jobs", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "too-many-calls")
            assert f"calls of {told} already, its share" in refused.json()["detail"]
        assert client.get("/v1/jobs", headers=cleo).status_code == 503
        assert client.get("/v1/jobs", headers=dora).status_code == 200
        agent = {"kind": "worker", "name": "worker-0", "pid": 1}
        assert client.post("/v1/agents", json=agent, headers=admin).status_code == 201
        held.close()
        eventually(lambda: client.get("/v1/jobs", headers=cleo).status_code == 200, "who has left is not counted")


def test_calls_of_one_agent_leave_room_for_others() -> None:
    """A gate alone, since calls are held here that the routes would answer."""

    async def scenario() -> None:
        held, statuses = asyncio.Event(), []

        async def hold(scope: Scope, receive: Receive, send: Send) -> None:
            await held.wait()
            await send({"type": "http.response.start", "status": 200})

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        gate = CallGate(hold, 64)

        async def call(agent: str) -> None:
            scope = {"type": "http", "method": "POST", "path": f"/v1/agents/{agent}/heartbeat", "headers": []}
            await gate(scope, cast(Receive, None), answered)

        async with asyncio.TaskGroup() as calls:
            for agent in (*["bad"] * (AGENT_CALLS + 3), "good"):
                calls.create_task(call(agent))
            while len(statuses) < 3:
                await asyncio.sleep(0)
            held.set()
        assert statuses == [503] * 3 + [200] * (AGENT_CALLS + 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8470", "127.0.0.1.evil.example", ""])
def test_a_name_that_is_not_loopbacks_is_refused(tmp_path: Path, host: str) -> None:
    """A page whose name was made to resolve to 127.0.0.1 sends its own name as Host."""
    with running(tmp_path / "server") as client:
        refused = client.get("/v1/jobs", headers={"Host": host})
        assert (refused.status_code, refused.json()["code"]) == (421, "wrong-host")
        for right in ("localhost", "localhost:1", "127.0.0.1", "[::1]:8470", "LOCALHOST"):
            assert client.get("/v1/jobs", headers={"Host": right}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "http://localhost", "null", ""])
def test_a_page_of_another_site_changes_nothing(tmp_path: Path, origin: str) -> None:
    """A browser sends a form, or a request without a body, for any page, and names the page's site as Origin."""
    with running(tmp_path / "server") as client:
        for method, path in (("POST", "/v1/jobs/x/cancel"), ("DELETE", "/v1/uploads/x"), ("PUT", "/v1/jobs/x/values")):
            refused = client.request(method, path, headers={"Origin": origin})
            assert (refused.status_code, refused.json()["code"]) == (403, "wrong-origin")
            own = client.request(method, path, headers={"Origin": str(client.base_url).rstrip("/")})
            assert own.status_code == client.request(method, path).status_code == 404
        assert client.get("/v1/jobs", headers={"Origin": origin}).status_code == 200


def test_a_compressed_body_is_refused_with_its_coding(tmp_path: Path) -> None:
    """Taken as it is, it would be kept as a document that nobody can read."""
    with running(tmp_path / "server") as client:
        for path, coding in (("/v1/uploads", "gzip"), ("/v1/jobs", "gzip, br"), ("/v1/models", "deflate")):
            refused = client.post(path, content=b"x", headers={"Content-Encoding": coding})
            assert (refused.status_code, refused.json()["code"]) == (415, "unknown-encoding")
            assert repr(coding) in refused.json()["detail"]
        assert client.post("/v1/uploads", content=b"x", headers={"Content-Encoding": "identity"}).status_code == 422


def test_the_token_is_kept_only_as_a_hash(tmp_path: Path) -> None:
    async def nothing(*_: object) -> None: ...

    tokens = Tokens(TOKEN)
    assert TOKEN not in repr(vars(TokenGate(nothing, tokens, TOKEN, Credentials(Path())))) + repr(vars(tokens))
    assert TOKEN not in repr(Settings(token=TOKEN))


def test_links_are_encrypted_where_others_reach_the_server_unless_told() -> None:
    assert not Settings().encrypts
    assert Settings(encrypt_links=True).encrypts
    assert Settings(host="0.0.0.0", token=TOKEN).encrypts
    assert not Settings(host="0.0.0.0", token=TOKEN, encrypt_links=False).encrypts
