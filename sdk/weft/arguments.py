"""What users pass, where it does not fit: one line that names the argument, what it was, and what it takes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from weft.errors import ArgumentError

NAME_RULE = "a name is of letters, digits, '_', '.' and '-', begins with none of the last two, and has 1 to 128"

_OF_OTHERS = {"learning_rate": "lr", "eta": "lr", "beta_1": "beta1", "beta_2": "beta2"}
"""What other libraries call the words of optimizers."""


@contextmanager
def checked(owner: str = "") -> Iterator[None]:
    """Turns what a model refuses into an ArgumentError with a sentence for each argument. `owner` stands in front."""
    try:
        yield
    except ValidationError as error:
        # What is left out follows from what is given: where that is wrong, it cannot be told, and need not be.
        told = [one for one in error.errors(include_url=False) if one["type"] != "default_factory_not_called"]
        sentences = "; ".join(dict.fromkeys(map(_sentence, told)))
        raise ArgumentError(f"{owner}: {sentences}" if owner else sentences) from None


def refuse_unknown(owner: str, unknown: Iterable[str], known: Collection[str]) -> None:
    """Raises ArgumentError for the first word that `owner` does not know, with what may be meant."""
    from weft_graph.spelling import did_you_mean

    for word in unknown:
        near = did_you_mean(_OF_OTHERS.get(word, word), known) or f"; it has {', '.join(known)}"
        raise ArgumentError(f"{owner} has no {word!r}{near}")


def stop_when_of(text: str) -> dict[str, Any]:
    """`loss:3`, `accuracy:3:max`: after how many evaluations without a better one a job ends. Raises ArgumentError."""
    metric, _, rest = text.partition(":")
    patience, _, mode = rest.partition(":")
    if not metric or not patience.isdecimal() or mode not in {"", "min", "max"}:
        raise ArgumentError(f"stop_when is {text!r}, which is not like loss:3 or accuracy:3:max")
    return {"metric": metric, "patience": int(patience), "mode": mode or "min"}


def keep_best_of(text: str) -> dict[str, Any]:
    """`loss`, `accuracy:max`: by what an evaluation is the best. Raises ArgumentError."""
    metric, _, mode = text.partition(":")
    if not metric or mode not in {"", "min", "max"}:
        raise ArgumentError(f"keep_best is {text!r}, which is not like loss or accuracy:max")
    return {"metric": metric, "mode": mode or "min"}


def _sentence(entry: Any) -> str:
    """`batch_size is 0; it should be greater than or equal to 1`."""
    said = str(entry["msg"]).removeprefix("Value error, ")
    # What has a blank is a kind among several that a value may be of, no field.
    *path, last = [place for place in entry["loc"] if " " not in str(place)] or ("",)
    where = f"a name in {path[0]}" if last == "[key]" else ".".join(map(str, (*path, last)))
    if entry["type"] == "string_pattern_mismatch":
        said = NAME_RULE
    elif said.startswith("Input should"):
        said = f"it {said.removeprefix('Input ')}"
    return f"{where} is {entry['input']!r}; {said}" if where else said
