"""Options of `weft submit` that stand in the place of the job's own: how it computes, what shards do with gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from weft.api.job import Precision, Recompute
from weft.arguments import keep_best_of, stop_when_of
from weft.errors import ArgumentError

_PANEL = "For any job: how it trains (replaces what a job file says)"


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar=metavar, show_default=False, rich_help_panel=_PANEL)


StopWhenOption = Annotated[
    str | None,
    _option(
        "--stop-when",
        "End after PATIENCE evaluations without a better METRIC, such as loss:3, and keep the best; add :max where "
        "larger is better.",
        "METRIC:PATIENCE[:max]",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What was said of how a job trains; each field is an option of `weft submit`."""

    precision: Annotated[Precision | None, _option("--precision", "Number format of matrix products.")] = None
    allow_tf32: Annotated[
        bool, _option("--allow-tf32", "Let GPUs compute float32 products in TF32: faster, less precise.")
    ] = False
    clip_norm: Annotated[float | None, _option("--clip-norm", "Limit of the norm of the whole gradient.", "NORM")] = (
        None
    )
    accumulate: Annotated[
        int | None,
        _option("--accumulate", "Compute each worker's samples of a step in so many parts, to save memory.", "PARTS"),
    ] = None
    recompute: Annotated[
        Recompute | None, _option("--recompute", "Save memory: compute values again in the backward pass.")
    ] = None
    ema: Annotated[
        str | None,
        _option(
            "--ema",
            "Also keep averages of the parameters: a decay such as 0.999, or 'uniform'; from step START on.",
            "DECAY[:START]",
        ),
    ] = None
    evaluate_ema: Annotated[bool, _option("--evaluate-ema", "Evaluate these averages.")] = False
    compression: Annotated[
        str | None,
        _option("--compression", "Send gradients in fewer bytes: bf16, fp16, 2bit:THRESHOLD or topk:RATIO.", "KIND"),
    ] = None
    stop_when: StopWhenOption = None
    keep_best: Annotated[
        str | None,
        _option(
            "--keep-best",
            "Keep the parameters of the best evaluation by this metric; :max where larger is better.",
            "METRIC[:max]",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """The fields of the job that were said; the server checks them. Raises typer.BadParameter."""
        said: dict[str, Any] = {
            "recompute": self.recompute and self.recompute.value,
            "precision": self.precision and self.precision.value,
            "allow_tf32": self.allow_tf32 or None,
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
            "ema": None if self.ema is None else _ema(self.ema),
            "evaluate_ema": self.evaluate_ema or None,
            "compression": None if self.compression is None else _compression(self.compression),
            "stop_when": None if self.stop_when is None else _read("--stop-when", stop_when_of, self.stop_when),
            "keep_best": None if self.keep_best is None else _read("--keep-best", keep_best_of, self.keep_best),
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
