"""What the server's forks compute: from a submitted job's text to its plan, what is told of it, and reading a model.

Everything here takes and gives text where it can: the graph of a large job is an object in no process that serves.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from weft.api.dry_run import Passes
from weft.api.earlier import in_earlier_words
from weft.api.job import JobSpec, Scale
from weft.api.problem import FieldError
from weft_graph.program_json import programs_from_json
from weft_graph.schema import schemas
from weft_server.bodies import read_json
from weft_server.forks import answer
from weft_server.onnx_import.request import ModelOutcome, ModelRequest
from weft_server.planning.check import read_and_check
from weft_server.planning.dry_run import dry_run_of, told_passes, told_programs
from weft_server.planning.estimate import Bounds
from weft_server.planning.plan import JobPlan
from weft_server.refusals import JobRefusedError

_SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)


@dataclass(frozen=True, slots=True)
class Checked:
    """A job that can run."""

    text: str
    """Of all that was submitted."""
    spec: JobSpec
    """The same without its graph."""
    plan: JobPlan


def check_submitted(body: bytes, roots: Sequence[Path] | None, bounds: Bounds, most_nodes: int) -> Checked:
    """Raises ProblemError for what is no job, JobRefusedError for one that cannot run."""
    spec = read_json(body, _SPEC)
    nodes = spec.graph.get("nodes")
    if isinstance(nodes, list) and len(nodes) > most_nodes:
        detail = f"the graph has {len(nodes)} nodes; at most {most_nodes} are taken here"
        raise JobRefusedError([FieldError(pointer="/graph/nodes", detail=detail)])
    return _checked(spec, read_and_check(spec, roots, bounds))


def check_scaled(text: str, asked: Scale, roots: Sequence[Path] | None, bounds: Bounds) -> Checked:
    """The job with other numbers of processes. Raises JobRefusedError."""
    spec = JobSpec.model_validate_json(text)
    try:
        changed = spec.model_copy(update={"parallelism": asked.of(spec.parallelism)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        pointer = f"/{first['loc'][0]}" if first["loc"] else ""
        detail = first["msg"].removeprefix("Value error, ")
        raise JobRefusedError([FieldError(pointer=pointer, detail=detail)]) from None
    return _checked(changed, read_and_check(changed, roots, bounds))


def _checked(spec: JobSpec, plan: JobPlan) -> Checked:
    return Checked(spec.model_dump_json(by_alias=True), spec.model_copy(update={"graph": {}}), plan)


def dry_run_text(plan: JobPlan, waits_for: str | None, text: str, passes: Passes | None, snapshots: str | None) -> str:
    """A dry run's answer."""
    return dry_run_of(plan, waits_for, JobSpec.model_validate_json(text), passes, snapshots).model_dump_json()


def spec_text(text: str, earlier: bool) -> str:
    """What was submitted, in the words of this release or of the one before."""
    spec = JobSpec.model_validate_json(text)
    return TypeAdapter(dict).dump_json(in_earlier_words(spec)).decode() if earlier else spec.model_dump_json()


def programs_text(plan: JobPlan) -> str:
    """The programs for people."""
    return told_programs(plan, programs_from_json(plan.programs))


def passes_text(text: str, plan: JobPlan, full: bool) -> str:
    """What each pass of the converter did to the job's graph."""
    return told_passes(JobSpec.model_validate_json(text), plan, full=full)


def read_onnx(request: ModelRequest) -> ModelOutcome:
    """Reads an ONNX file; what is wrong with it is in the outcome."""
    from weft_server.onnx_import.reading import outcome_of  # ONNX's library is in no process that serves

    return outcome_of(request)


_CALLED: Final = (check_submitted, check_scaled, dry_run_text, spec_text, programs_text, passes_text, read_onnx)


def prepare() -> None:
    """What would be found late, and in each fork anew."""
    importlib.import_module("weft_server.onnx_import.reading")
    schemas()


def main(channel: socket.socket) -> None:
    """A fork, from its request to its answer."""
    answer(channel, {each.__name__: each for each in _CALLED})
