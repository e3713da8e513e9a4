"""What users pass, where it does not fit: one line that names the argument, what it was, and what it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from weft.api.words import nearest, said_here, sentence
from weft.errors import ArgumentError

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def checked(owner: str = "") -> Iterator[None]:
    """Turns what a model refuses into an ArgumentError with a sentence for each argument. `owner` stands in front."""
    try:
        yield
    except ValidationError as error:
        # What is left out follows from what is given: where that is wrong, it cannot be told, and need not be.
        told = [one for one in error.errors(include_url=False) if one["type"] != "default_factory_not_called"]
        sentences = "; ".join(dict.fromkeys(map(sentence, told)))
        raise ArgumentError(f"{owner}: {sentences}" if owner else sentences) from None


def refuse_unknown(
    owner: str, given: Iterable[str], known: Collection[str], homes: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises ArgumentError for the first word that `owner` does not know, with what may be meant.

    `homes` has what to write for words that have their place elsewhere.
    """
    for word in given:
        if word in known:
            continue
        said = said_here(word)
        if said in known:
            raise ArgumentError(f"{owner} has no {word!r}; did you mean {said!r}?")
        if said in homes or "=" in said:
            raise ArgumentError(f"{owner} has no {word!r}; write {homes.get(said, said)}")
        if " " in said:
            raise ArgumentError(f"{owner} has no {word!r}: {said}")
        raise ArgumentError(f"{owner} has no {word!r}{nearest(word, known) or f'; it has {_listed(known)}'}")


_ATTRIBUTES_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("mse", "mse_loss", "MSELoss"), "mean_squared_error"),
    **dict.fromkeys(("CrossEntropyLoss", "softmax_cross_entropy"), "cross_entropy"),
    **dict.fromkeys(("compile", "train"), "weft.fit(model, data, loss=..., epochs=..., optimizer=...)"),
    **dict.fromkeys(("Dataset", "DataLoader"), "weft.numpy_data(path)"),
    "Nesterov": "SGD(momentum=0.9, nesterov=True)",
    **dict.fromkeys(("view", "resize"), "reshape"),
    **dict.fromkeys(("to", "type", "cast"), "astype"),
    **dict.fromkeys(("float", "double", "half", "long", "int", "bool"), "astype"),
    **dict.fromkeys(("numpy", "item", "tolist"), "eval"),
    **dict.fromkeys(("dim", "ndimension"), "ndim"),
    **dict.fromkeys(("onecycle", "OneCycleLR", "one_cycle"), "weft.cosine(0.1, steps=900, warmup=100)"),
    "size": "shape",
    "var": "((x - x.mean(axis, keepdims=True)) ** 2).mean(axis)",
    "std": "((x - x.mean(axis, keepdims=True)) ** 2).mean(axis) ** 0.5",
}
"""Names of functions, layers and methods of PyTorch and NumPy -> weft's own, or what to write instead."""


def no_attribute(owner: str, name: str, known: Collection[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """What is said of a name that `owner` does not have; `elsewhere` has what to write for names of others."""
    from weft_graph.spelling import did_you_mean

    said = _ATTRIBUTES_OF_OTHERS.get(name, name)
    if said in known:
        near = f"; did you mean {said!r}?"
    elif not said.isidentifier() or name in (elsewhere or {}):
        near = f"; write {(elsewhere or {}).get(name, said)}"
    else:
        near = did_you_mean(name, known) or f"; it has {_listed(sorted(known))}"
    return f"{owner} has no {name!r}{near}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def says_its_words(function: F) -> F:
    """A function or class that answers a keyword which it has not with `refuse_unknown`, and other wrong calls in one
    line."""
    signature = inspect.signature(function)
    kind: Any = function if isinstance(function, type) else None
    body: Any = function if kind is None else kind.__init__

    @functools.wraps(body)
    def called(*args: Any, **keywords: Any) -> Any:
        wrong = ""
        try:
            signature.bind(*args[kind is not None :], **keywords)
        except TypeError as error:
            wrong = str(error)
        if wrong:
            name, words = function.__name__, list(signature.parameters)
            refuse_unknown(name, keywords, words)
            raise ArgumentError(f"{name}: {wrong}; its arguments are {_listed(words)}")
        return body(*args, **keywords)

    if kind is not None:
        kind.__init__ = called
        return function
    return called  # type: ignore[return-value]  # of the function's own signature


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
