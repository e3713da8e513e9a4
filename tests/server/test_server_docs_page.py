"""`/docs` shows the whole API and loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

from server_running import running
from weft_server.routes.docs import page


def test_every_call_is_shown_and_nothing_is_loaded_from_another_host(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        shown = client.get("/docs")
        description = client.get("/openapi.json").json()
    assert shown.headers["content-type"].startswith("text/html")
    for path, calls in description["paths"].items():
        for method in calls:
            assert f'<span class="method">{method.upper()}</span><code>{path}</code>' in shown.text
    assert len(re.findall("<details>", shown.text)) == sum(map(len, description["paths"].values()))
    assert "//" not in "".join(re.findall(r'(?:src|href)="([^"]*)"', shown.text))
    assert "<script" not in shown.text
    assert "JobSpec" in shown.text


def test_what_a_description_says_is_text_and_no_markup() -> None:
    call = {"description": "<script>", "responses": {"200": {"description": "a < b & c"}}}
    shown = page({"info": {"title": "<t>", "version": "1"}, "paths": {"/<x>": {"get": call}}})
    assert "<script>" not in shown
    assert "a &lt; b &amp; c" in shown
