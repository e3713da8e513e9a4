"""What the converter makes of an ONNX file, made here: without a server, and without the data of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.api.dry_run import Passes
from weft_graph.convert import convert
from weft_graph.passes.draft import Options
from weft_graph.program_json import programs_to_json
from weft_graph.program_text.passes import Recorder, passes_text
from weft_graph.program_text.program import programs_text
from weft_graph.types import BATCH

if TYPE_CHECKING:
    from weft.trainable import Trainable


def local_text(trainable: Trainable) -> str:
    """The programs as text, without what depends on the job's processes. Raises GraphRefusedError and its kin."""
    return programs_text(convert(trainable.graph, loss=trainable.loss, metrics=trainable.metrics))


def local_json(trainable: Trainable) -> dict[str, Any]:
    """The programs in their JSON form. Raises GraphRefusedError and its kin."""
    return programs_to_json(convert(trainable.graph, loss=trainable.loss, metrics=trainable.metrics))


def local_passes(trainable: Trainable, told: Passes, batch: int | None) -> str:
    """What each pass does to the graph; `batch` is what sizes go by. Raises GraphRefusedError and its kin."""
    recorder, dims = Recorder(), {} if batch is None else {BATCH: batch}
    options = Options(dims=dims)
    convert(trainable.graph, loss=trainable.loss, metrics=trainable.metrics, options=options, watch=recorder)
    return passes_text(recorder.runs, full=told is Passes.FULL, dims=dims)
