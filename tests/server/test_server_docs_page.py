"""`/docs` shows the whole API and `/problems` every problem, and they load nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from server_running import running
from weft_server import pages
from weft_server.openapi import Audience, describe
from weft_server.pages import calls_page
from weft_server.problems import KINDS


@pytest.mark.parametrize(("page", "document"), [("/docs", "/openapi.json"), ("/agents/docs", "/agents/openapi.json")])
def test_every_call_is_shown_and_nothing_is_loaded_from_another_host(tmp_path: Path, page: str, document: str) -> None:
    with running(tmp_path) as client:
        shown = client.get(page)
        description = client.get(document).json()
    assert shown.headers["content-type"].startswith("text/html")
    for path, calls in description["paths"].items():
        for method, call in calls.items():
            assert f'<span class="method">{method.upper()}</span><code>{path}</code>' in shown.text
            assert all(f"<td><code>{status}</code></td>" in shown.text for status in call["responses"])
    calls = sum(map(len, description["paths"].values()))
    assert len(re.findall('<details><summary><span class="method">', shown.text)) == calls
    assert "//" not in "".join(re.findall(r'(?:src|href)="([^"]*)"', shown.text))
    assert "<script" not in shown.text


def test_the_server_answers_others_while_it_draws_a_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop: list[bool] = []

    def drawn(audience: Audience, **settings: Any) -> Any:
        on_the_loop.append(asyncio._get_running_loop() is not None)
        return describe(audience, **settings)

    monkeypatch.setattr(pages, "describe", drawn)
    with running(tmp_path) as client:
        for path in ("/openapi.json", "/docs", "/agents/openapi.json", "/agents/docs"):
            assert client.get(path).status_code == 200
    assert set(on_the_loop) == {False}


def test_each_problem_has_a_page_that_anybody_may_read(tmp_path: Path) -> None:
    """A `type` is followed by a browser, which has no token."""
    with running(tmp_path, token="a-token-of-these-tests") as client:
        index = client.get("/problems").text
        for code, kind in KINDS.items():
            assert f'href="/problems/{code}"' in index
            page = client.get(f"/problems/{code}")
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert f"{kind.status.value} {code}" in page.text
        assert client.get("/problems/none").json()["code"] == "not-found"
        assert client.get("/problemsx").json()["code"] == "unauthorized"


def test_a_problem_that_was_met_says_where_its_page_is(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        found = client.get("/v1/jobs/none").json()
        page = client.get(found["type"]).text
    assert "There is no job with this id" in page


def test_what_a_description_says_is_text_and_no_markup() -> None:
    call = {"description": "<script>", "tags": ["<b>"], "responses": {"200": {"description": "a < b & `c`"}}}
    tags = [{"name": "<b>", "description": "[x](/y) [z](https://elsewhere)"}]
    shown = calls_page({"info": {"title": "<t>", "version": "1"}, "tags": tags, "paths": {"/<x>": {"get": call}}}, "/d")
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "a &lt; b &amp; <code>c</code>" in shown
    assert '<a href="/y">x</a> [z](https://elsewhere)' in shown
