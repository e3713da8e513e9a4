"""Options of `weft submit` that stand in the place of the job's own: how it computes, what shards do with gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from weft.api.job import Precision, Recompute
from weft.arguments import keep_best_of, stop_when_of
from weft.errors import ArgumentError

_PANEL = "How it trains, instead of what the job says"


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar=metavar, show_default=False, rich_help_panel=_PANEL)


PrecisionOption = Annotated[Precision | None, _option("--precision", "What products are computed in.")]
ClipNorm = Annotated[float | None, _option("--clip-norm", "The most that the whole gradient's norm may be.", "NORM")]
Accumulate = Annotated[int | None, _option("--accumulate", "Parts in which a worker computes a step.", "PARTS")]
Ema = Annotated[
    str | None,
    _option(
        "--ema", "Keep averages of the parameters: with this decay, or 'uniform'; START steps first.", "DECAY[:START]"
    ),
]
RecomputeOption = Annotated[Recompute | None, _option("--recompute", "Hold less of a step, and compute it again.")]
CompressionOption = Annotated[
    str | None,
    _option("--compression", "Gradients in fewer bytes: bf16, fp16, 2bit:THRESHOLD or topk:RATIO.", "KIND[:NUMBER]"),
]
StopWhenOption = Annotated[
    str | None,
    _option(
        "--stop-when",
        "End once this metric of the evaluations has not improved for so many of them; keep the best.",
        "METRIC:PATIENCE[:max]",
    ),
]
KeepBestOption = Annotated[
    str | None,
    _option("--keep-best", "The result is of the evaluation that is best by this metric.", "METRIC[:max]"),
]
EvaluateEma = Annotated[bool, _option("--evaluate-ema", "Evaluate the averages.")]


def training_changes(
    *,
    recompute: Recompute | None,
    precision: Precision | None,
    clip_norm: float | None,
    accumulate: int | None,
    ema: str | None,
    evaluate_ema: bool,
    compression: str | None = None,
    stop_when: str | None = None,
    keep_best: str | None = None,
) -> dict[str, Any]:
    """The fields of the job that were said; the server checks them. Raises typer.BadParameter."""
    said: dict[str, Any] = {
        "recompute": None if recompute is None else recompute.value,
        "precision": None if precision is None else precision.value,
        "clip_norm": clip_norm,
        "accumulate": accumulate,
        "ema": None if ema is None else _ema(ema),
        "evaluate_ema": evaluate_ema or None,
        "compression": None if compression is None else _compression(compression),
        "stop_when": None if stop_when is None else _read("--stop-when", stop_when_of, stop_when),
        "keep_best": None if keep_best is None else _read("--keep-best", keep_best_of, keep_best),
    }
    return {name: value for name, value in said.items() if value is not None}


def changed(document: str | bytes, changes: dict[str, Any]) -> str | bytes:
    """The job's JSON, an object, with these fields in the place of its own."""
    return json.dumps({**json.loads(document), **changes}) if changes else document


def _compression(text: str) -> dict[str, Any]:
    """Gradients both ways; weights that shards update travel as they are."""
    kind, _, number = text.partition(":")
    field = {"2bit": "threshold", "topk": "ratio"}.get(kind)
    try:
        if kind not in {"bf16", "fp16", "2bit", "topk"} or (field is None) != (not number):
            raise ValueError
        one = {"kind": kind} if field is None else {"kind": kind, field: float(number)}
    except ValueError:
        told = f"{text!r} is none of bf16, fp16, 2bit:0.5 or topk:0.01"
        raise typer.BadParameter(told, param_hint="--compression") from None
    return {"gradients": one, "merged": one}


def _read(option: str, read: Callable[[str], dict[str, Any]], text: str) -> dict[str, Any]:
    try:
        return read(text)
    except ArgumentError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _ema(text: str) -> dict[str, Any]:
    decay, _, start = text.partition(":")
    try:
        found: dict[str, Any] = {} if decay == "uniform" else {"decay": float(decay)}
        return {**found, "start": int(start)} if start else found
    except ValueError:
        told = f"{text!r} is no decay such as 0.999, 'uniform' or uniform:1000"
        raise typer.BadParameter(told, param_hint="--ema") from None
