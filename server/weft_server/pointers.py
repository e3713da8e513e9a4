"""JSON pointers (RFC 6901) into a request's body."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.json_place import escape_token


def pointer_of(loc: Sequence[int | str], body: object, *, is_missing: bool = True) -> str:
    """The pointer of pydantic's `loc`, followed through the body.

    pydantic names the tags of unions on its way, which are no part of the document: what is not found there is
    skipped, except at the end, where it names a field if one `is_missing`.
    """
    tokens: list[str] = []
    here = body
    for index, step in enumerate(loc):
        names_missing_field = is_missing and isinstance(here, dict) and index == len(loc) - 1
        if _holds(here, step):
            here = here[step]  # type: ignore[index]  # _holds has looked
        elif not names_missing_field:
            continue
        tokens.append(escape_token(str(step)))
    return "".join(f"/{token}" for token in tokens)


def _holds(here: object, step: int | str) -> bool:
    if isinstance(here, list):
        return isinstance(step, int) and 0 <= step < len(here)
    return isinstance(here, dict) and step in here
