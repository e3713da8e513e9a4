"""The image's recipe names what there is. Building it needs a container engine, which a laptop may not have."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

from chart_rendering import pods, render

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "Dockerfile").read_text()


def _project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_extras_that_it_installs_are_those_of_the_project() -> None:
    named = re.findall(r"EXTRAS=([a-z,]+)", RECIPE)
    assert named
    extras = _project()["project"]["optional-dependencies"]
    assert {extra for each in named for extra in each.split(",")} <= extras.keys()


def test_the_context_has_every_package_of_the_wheel() -> None:
    kept = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = _project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= kept
    assert {"pyproject.toml", "README.md", "LICENSE"} <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_its_user_and_modules_are_those_of_the_chart() -> None:
    (user,) = re.findall(r"^USER (\d+):", RECIPE, re.MULTILINE)
    told = re.search(r"# docker run (.*)", RECIPE)
    assert told is not None
    for pod in pods(render()).values():
        assert str(pod["securityContext"]["runAsUser"]) == user
        module = pod["containers"][0]["command"][2]
        assert importlib.util.find_spec(module) is not None
        assert module in told[1]
