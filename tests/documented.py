"""Holds every answer that a test gets from a server against the server's OpenAPI documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from weft_server.openapi import PATHS, codes_of
from weft_server.pages import described
from weft_server.problems import KINDS, MEDIA_TYPE
from weft_server.settings import Settings

ANY_PATH = {"not-found", "method-not-allowed", "malformed-request", "wrong-host", "wrong-origin", "internal-error"} | {
    "unauthorized",
    "unknown-credential",
    "wrong-credential",
    "unknown-encoding",
    "too-large",
    "too-many-calls",
}
"""What a path is answered that is not in the documents."""


def checker(settings: Settings) -> Callable[[httpx.Response], None]:
    """A hook for a client of a server with these settings."""
    documents = [described(audience, settings) for audience in PATHS]

    def check(response: httpx.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0]
        if kind in {"text/event-stream", "application/octet-stream"}:
            return  # may have no end yet
        response.read()
        found = [
            (document, call)
            for document in documents
            for call in operations(document, response.request.method, response.url.raw_path.decode().partition("?")[0])
        ]
        if response.is_success:
            for document, call in found:
                check_answer(document, call, response, kind)
            return
        assert kind == MEDIA_TYPE, f"{response.request.method} {response.url}: {response.status_code} {response.text}"
        code = response.json()["code"]
        assert KINDS[code].status == response.status_code
        assert response.json()["type"] == f"/problems/{code}"
        documented = [codes_of(call, response.status_code) for _, call in found] or [sorted(ANY_PATH)]
        assert code in documented[0], (
            f"{response.request.method} {response.url.path} sent {response.status_code} {code}, and its document "
            f"has {documented[0]}: {response.text[:500]}"
        )

    return check


def operations(document: dict[str, Any], method: str, path: str) -> Iterator[dict[str, Any]]:
    """The operation of a call, if the document has it. A path without placeholders comes first."""
    for template in sorted(document["paths"], key=lambda each: "{" in each):
        call = document["paths"][template].get(method.lower())
        if call is not None and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
            yield call
            return


def check_answer(document: dict[str, Any], call: dict[str, Any], response: httpx.Response, kind: str) -> None:
    """The answer's status, type and JSON are what the document says."""
    documented = call["responses"][str(response.status_code)]
    if response.status_code == HTTPStatus.NO_CONTENT:
        assert "content" not in documented
        return
    schema = documented["content"][kind].get("schema")
    if kind == "application/json" and schema is not None:
        validator(document, schema).validate(response.json())


_VALIDATORS: dict[tuple[int, str], Draft202012Validator] = {}


def validator(document: dict[str, Any], schema: Any) -> Draft202012Validator:
    """Of a schema within the document, which is one that `describe` has made and lives as long as the process."""
    key = id(document), str(schema)
    if key not in _VALIDATORS:
        _VALIDATORS[key] = Draft202012Validator({"components": document["components"], **schema})
    return _VALIDATORS[key]
