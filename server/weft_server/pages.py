"""Pages for people, and the documents that they are made of: `/docs`, `/problems` and `/openapi.json`.

They load nothing from other hosts, so they show anywhere, and need no script. `/agents/docs` and `/agents/openapi.json`
are those of the calls that agents make.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from weft_server.openapi import PATHS, Audience, Json, describe
from weft_server.problems import KINDS, MEDIA_TYPE, ProblemError, problem
from weft_server.routes.context import Use
from weft_server.settings import Settings

# No route is a coroutine: to draw the first description takes seconds on a busy machine, and others are answered then.
router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
summary { cursor: pointer; padding: .3rem 0; border-top: 1px solid #ddd; }
details details { margin-left: 1rem; } details details summary { border: 0; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; } pre { white-space: pre-wrap; margin: .4rem 0; }
pre.json { background: #f6f6f6; padding: .5rem; } h2 { margin-top: 2rem; }
.method { display: inline-block; width: 4.5rem; font-weight: bold; }
td { padding: 0 1rem .2rem 0; vertical-align: top; }
"""
_CODE_OR_LINK = re.compile(r"`([^`]+)`|\[([^\]]+)\]\((/[^)]+)\)")


def described(audience: Audience, settings: Settings) -> Json:
    """The OpenAPI document of a server with these settings."""
    return describe(audience, tokens=settings.token is not None, is_loopback=settings.is_loopback)


@router.get(PATHS["users"])
def openapi(use: Use) -> JSONResponse:
    return JSONResponse(described("users", use.settings))


@router.get(PATHS["agents"])
def agents_openapi(use: Use) -> JSONResponse:
    return JSONResponse(described("agents", use.settings))


@router.get("/docs", response_class=HTMLResponse)
def docs(use: Use) -> str:
    return calls_page(described("users", use.settings), PATHS["users"])


@router.get("/agents/docs", response_class=HTMLResponse)
def agents_docs(use: Use) -> str:
    return calls_page(described("agents", use.settings), PATHS["agents"])


@router.get("/problems", response_class=HTMLResponse)
async def problems() -> str:
    """Every kind of problem."""
    rows = "".join(
        f'<tr><td>{kind.status.value}</td><td><a href="/problems/{code}">{code}</a></td>'
        f"<td>{_marked(kind.meaning)}</td></tr>"
        for code, kind in KINDS.items()
    )
    text = (
        "Every answer of the server that is not 2xx is a problem document (RFC 9457, "
        f"<code>{MEDIA_TYPE}</code>). Its <code>code</code> is one of these."
    )
    return _page("Problems", f"<p>{text}</p><table>{rows}</table>")


@router.get("/problems/{code}", response_class=HTMLResponse)
async def problem_page(code: str) -> str:
    """What one kind of problem means, and what to do."""
    kind = KINDS.get(code)
    if kind is None:
        raise ProblemError("not-found", f"there is no problem {code[:100]!r}; /problems lists them")
    example = problem(code, kind.example).model_dump(mode="json")
    return _page(
        f"{kind.status.value} {code}",
        f"<h2>What it means</h2><p>{_marked(kind.meaning)}</p><h2>What to do</h2><p>{_marked(kind.remedy)}</p>"
        f'<h2>Example</h2>{_json(example)}<p><a href="/problems">All problems</a></p>',
    )


def calls_page(description: Mapping[str, Any], path: str) -> str:
    """An OpenAPI document as HTML, its calls by tag."""
    calls = [(method, where, call) for where, each in description["paths"].items() for method, call in each.items()]
    parts = [f"<p>{_marked(each)}</p>" for each in description["info"].get("description", "").split("\n\n")]
    parts.append(f'<p>The whole document, with every model: <a href="{path}">{path[1:]}</a>.</p>')
    for tag in description.get("tags", ()):
        parts.append(f"<h2>{escape(tag['name'].capitalize())}</h2><p>{_marked(tag['description'])}</p>")
        parts += [_call(method, where, call) for method, where, call in calls if call["tags"] == [tag["name"]]]
    return _page(f"{description['info']['title']} {description['info']['version']}", "\n".join(parts))


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>\n{body}\n</body></html>"
    )


def _call(method: str, path: str, call: Mapping[str, Any]) -> str:
    head = f'<span class="method">{escape(method.upper())}</span><code>{escape(path)}</code>'
    told = f"<p>{_marked(call.get('description', ''))}</p>"
    scheme = ", ".join(name for each in call.get("security", ()) for name in each)
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(where)}</td><td>{what}</td></tr>"
        for name, where, what in [*_rows(call), *([("security", "header", escape(scheme))] if scheme else [])]
    )
    examples = "".join(
        f"<details><summary>Example: {escape(what)}</summary>{_json(value)}</details>"
        for what, value in _examples(call)
    )
    return f"<details><summary>{head}</summary>{told}<table>{rows}</table>{examples}</details>"


def _rows(call: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, where it stands, what it is, as HTML) of parameters, body and answers."""
    for parameter in call.get("parameters", ()):
        needed = "required" if parameter.get("required") else ""
        yield parameter["name"], parameter["in"], _marked(parameter.get("description", needed))
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        yield "body", kind, escape(_model(content))
    for status, answer in call["responses"].items():
        kinds = ", ".join(answer.get("content", {}))
        models = ", ".join(filter(None, map(_model, answer.get("content", {}).values())))
        is_problem = MEDIA_TYPE in answer.get("content", {})
        yield status, kinds, _marked(answer.get("description", "")) if is_problem or not models else escape(models)


def _examples(call: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for what, part in {"request": call.get("requestBody", {}), **call["responses"]}.items():
        for example in part.get("content", {}).get("application/json", {}).get("examples", {}).values():
            yield what, example["value"]


def _model(content: Mapping[str, Any]) -> str:
    reference: str = content.get("schema", {}).get("$ref", "")
    return reference.rpartition("/")[2]


def _json(value: Any) -> str:
    return f'<pre class="json">{escape(json.dumps(value, indent=2))}</pre>'


def _marked(text: str) -> str:
    """Text as HTML: `code`, and links within this server."""

    def put(found: re.Match[str]) -> str:
        code, word, path = found.groups()
        return f"<code>{code}</code>" if code else f'<a href="{path}">{word}</a>'

    return _CODE_OR_LINK.sub(put, escape(text, quote=False))
