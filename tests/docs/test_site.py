"""The documentation builds without a warning, loads nothing from other hosts, and its reference has all of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import weft
import weft_kvstore
from weft.cli.app import app
from weft_server.access import RULES
from weft_server.openapi import PATHS
from weft_server.pages import described
from weft_server.problems import KINDS
from weft_server.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; a link to a page or heading that is not there fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def page(site: Path, name: str) -> str:
    return (site / "reference" / name / "index.html").read_text()


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for each in pages:
        text = each.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]* src="([^"]+)', text)
        loaded += re.findall(r'<link[^>]* href="([^"]+)', text)
        assert loaded
        assert not [target for target in loaded if re.match(r"(\w+:)?//", target)], each


def test_every_public_name_of_python_has_its_entry(site: Path) -> None:
    public = [
        ("python", "weft", sorted({*weft.__all__} - {"nn", "ops"})),
        ("kvstore", "weft_kvstore", weft_kvstore.__all__),
    ]
    public += [("nn", "weft.nn", weft.nn.__all__), ("ops", "weft.ops", weft.ops.__all__)]
    for name, module, names in public:
        ids = set(re.findall(r' id="([^"]+)"', page(site, name)))
        assert {f"{module}.{each}" for each in names} <= ids
    assert "weft.Client.submit" in re.findall(r' id="([^"]+)"', page(site, "python"))
    assert "weft_kvstore.KVStore.pushpull" in re.findall(r' id="([^"]+)"', page(site, "kvstore"))


def commands(command: Any, path: str) -> Iterator[str]:
    yield path
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from commands(each, f"{path} {name}")


def test_every_command_has_its_help(site: Path) -> None:
    text = unescape(re.sub(r"<[^>]+>", "", page(site, "command-line")))
    for path in commands(get_command(app), "weft"):
        assert f"Usage: {path} [OPTIONS]" in text


def test_every_call_of_users_and_every_problem_is_listed(site: Path) -> None:
    text = unescape(re.sub(r"<[^>]+>", "", page(site, "http")))
    agents = described("agents", Settings())["paths"]
    pages = {*PATHS.values(), "/docs", "/agents/docs", "/problems", "/problems/{code}"}
    for method, _, path in (route.partition(" ") for route in RULES):
        assert path in agents or path in pages or f"{method} {path}\u00b6" in text, (method, path)
    assert {*KINDS} <= set(re.findall(r' id="([^"]+)"', page(site, "problems")))


def test_every_setting_of_a_daemon_says_what_it_is(site: Path) -> None:
    rows = re.findall(
        r"<tr>\s*<td><code>(WEFT_\w+)</code></td>\s*<td>.*?</td>\s*<td>(.*?)</td>", page(site, "settings")
    )
    assert {f"WEFT_SERVER_{name.upper()}" for name in Settings.model_fields} <= {name for name, _ in rows}
    assert not [name for name, said in rows if not said]


def test_links_between_files_of_the_repository_lead_to_files_that_are_there() -> None:
    """Of pages that somebody reads without the site."""
    dead = []
    for file in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "helm").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]+)?[^)]*\)", file.read_text()):
            there = file.parent / target if target else file
            headings = there.read_text() if there.suffix == ".md" and there.is_file() else None
            if not there.exists() or (anchor and headings is not None and anchor[1:] not in anchors(headings)):
                dead.append(f"{file.relative_to(ROOT)}: {target}{anchor}")
    assert not dead


def anchors(page: str) -> set[str]:
    """What GitHub and others make of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
