"""`/docs`: the API as a page, made of its own description. It asks nothing of other hosts, so it shows anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
summary { cursor: pointer; padding: .3rem 0; border-top: 1px solid #ddd; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; } pre { white-space: pre-wrap; margin: .4rem 0; }
.method { display: inline-block; width: 4.5rem; font-weight: bold; }
td { padding: 0 1rem .2rem 0; vertical-align: top; }
"""


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> str:
    """Every call of the API: what it does, takes and answers."""
    return page(request.app.openapi())


def page(description: Mapping[str, Any]) -> str:
    """An OpenAPI description as HTML."""
    title = f"{description['info']['title']} {description['info']['version']}"
    calls = "\n".join(
        _call(method, path, call) for path, calls in description["paths"].items() for method, call in calls.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        '<p>The whole description, with every model: <a href="openapi.json">openapi.json</a>.</p>\n'
        f"{calls}\n</body></html>"
    )


def _call(method: str, path: str, call: Mapping[str, Any]) -> str:
    head = f'<span class="method">{escape(method.upper())}</span><code>{escape(path)}</code>'
    told = f"<pre>{escape(call.get('description', ''))}</pre>"
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(where)}</td><td>{escape(what)}</td></tr>"
        for name, where, what in _rows(call)
    )
    return f"<details><summary>{head}</summary>{told}<table>{rows}</table></details>"


def _rows(call: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, where it stands, what it is) of parameters, body and answers."""
    for parameter in call.get("parameters", ()):
        needed = "required" if parameter.get("required") else ""
        yield parameter["name"], parameter["in"], parameter.get("description", needed)
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        yield "body", kind, _model(content)
    for status, answer in call["responses"].items():
        kinds = ", ".join(answer.get("content", {}))
        models = ", ".join(filter(None, map(_model, answer.get("content", {}).values())))
        yield status, kinds, models or answer.get("description", "")


def _model(content: Mapping[str, Any]) -> str:
    reference: str = content.get("schema", {}).get("$ref", "")
    return reference.rpartition("/")[2]
