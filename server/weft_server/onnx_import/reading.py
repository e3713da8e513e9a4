"""Reads one ONNX file into an answer and a document of values. Runs in a process of its own, which may be killed."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import ValidationError

from weft.api.job import FromUpload, ParameterInfo
from weft.api.model import ReadModel, ReadRequest, ValueInfo, shape_of
from weft.api.optimizer import OptimizerSpec, optimizer_of
from weft.api.problem import FieldError
from weft_graph.errors import GraphError
from weft_graph.infer import infer
from weft_graph.ir import Graph
from weft_graph.json_form import graph_from_json, graph_to_json
from weft_graph.losses.with_loss import WithLoss, losses_of, with_loss
from weft_graph.onnx_form.errors import Imported, OnnxError, ReadOptions, TrainingStep
from weft_graph.onnx_form.files import read_bytes, read_file
from weft_graph.types import TensorType
from weft_server.onnx_import.request import ANSWER, MODEL, PARTS, VALUES, ModelOutcome, ModelRequest
from weft_server.storage.parameter_file import write_arrays

_MOST_PARTS: Final = 1000
_MOST_NAME: Final = 1000
_MOST_PART: Final = 255
"""Bytes of a file's name in an archive, and of each part of it: disks take no more."""
_NAMED: Final = 200
"""Characters of such a name that are said."""
_SAID: Final = 2000
"""Characters of a refusal: names in a file may be long."""


def outcome_of(request: ModelRequest) -> ModelOutcome:
    """Reads the file; whatever is wrong with it is among the outcome's errors."""
    try:
        return _read(request)
    except GraphError as error:
        node = None if error.node is None else error.node[:_SAID]
        return ModelOutcome(errors=[FieldError(pointer=error.pointer, detail=error.message[:_SAID], node=node)])
    except RecursionError:
        return ModelOutcome(errors=[FieldError(pointer="", detail="the model is nested too deep")])
    except OSError as error:
        detail = f"the model cannot be unpacked here: {error.strerror or error}"
        return ModelOutcome(errors=[FieldError(pointer="", detail=detail)])


def _read(request: ModelRequest) -> ModelOutcome:
    folder, options = Path(request.folder), request.options
    read = _imported(folder, request)
    made = _with_loss(read.graph, options)
    answer = _answer(request.id, made, read)
    (folder / ANSWER).write_text(answer.model_dump_json())
    if read.values:
        write_arrays(folder / VALUES, read.values)
    return ModelOutcome(parameters=len(read.values))


def _imported(folder: Path, request: ModelRequest) -> Imported:
    path, options = folder / MODEL, request.options
    how = ReadOptions(
        parameters=tuple(options.parameter),
        constants=tuple(options.constant),
        untrained=tuple(options.untrained),
        frozen=tuple(options.frozen),
        shapes=dict(map(shape_of, options.shape)),
        training=options.training,
        batch=options.batch,
    )
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"
    if is_archive:
        return read_file(_unpacked(path, folder / PARTS, request.most_bytes), how)
    return read_bytes(path.read_bytes(), how, most_bytes=request.most_bytes)


def _unpacked(archive: Path, folder: Path, most_bytes: int) -> Path:
    """The archive's one ONNX file, beside the others. Raises OnnxError for what is no such archive, or too much."""
    try:
        with zipfile.ZipFile(archive) as held:
            parts = [each for each in held.infolist() if not each.is_dir()]
            if len(parts) > _MOST_PARTS:
                raise OnnxError(f"the archive has {len(parts)} files, and at most {_MOST_PARTS} are allowed")
            if sum(each.file_size for each in parts) > most_bytes:
                raise OnnxError(f"the archive's files have more than {most_bytes} bytes")
            paths = _paths([each.filename for each in parts])
            for each, path in zip(parts, paths, strict=True):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with held.open(each) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError) as error:
        raise OnnxError(f"the file is no zip archive that can be read: {error}") from None
    found = sorted(folder.rglob("*.onnx"))
    if len(found) != 1:
        raise OnnxError(f"the archive has {len(found)} files that end in .onnx, and one is needed")
    return found[0]


def _paths(names: Sequence[str]) -> list[PurePosixPath]:
    """Where the archive's files lie. Raises OnnxError for names that cannot all be files of one folder."""
    paths = [_inside(name) for name in names]
    files: set[PurePosixPath] = set()
    for name, path in zip(names, paths, strict=True):
        if path in files:
            raise OnnxError(f"the archive has the file {name[:_NAMED]!r} twice")
        files.add(path)
    for name, path in zip(names, paths, strict=True):
        folder = next((parent for parent in path.parents if parent in files), None)
        if folder is not None:
            what = f"the archive's file {name[:_NAMED]!r} lies in {str(folder)[:_NAMED]!r}"
            raise OnnxError(f"{what}, which is a file of the archive too")
    return paths


def _inside(name: str) -> PurePosixPath:
    if _size(name) > _MOST_NAME or max(map(_size, name.split("/"))) > _MOST_PART:
        told = f"at most {_MOST_NAME} bytes are allowed, and {_MOST_PART} between slashes"
        raise OnnxError(f"the archive's file {name[:_NAMED]!r}... has a name of {_size(name)} bytes; {told}")
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts:
        raise OnnxError(f"the archive's file {name[:_NAMED]!r} has a name that leads out of it")
    return path


def _size(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _with_loss(graph: Graph, options: ReadRequest) -> WithLoss | None:
    if not any(options.loss):
        return None
    what = (options.loss, options.output, options.target, options.classes_axis, options.ignore_index)
    return with_loss(graph, losses_of(*what), options.metric)


def _answer(identifier: str, made: WithLoss | None, read: Imported) -> ReadModel:
    whole = read.graph if made is None else made.graph
    types = infer(whole)
    document = graph_to_json(whole)
    graph_from_json(document)  # which may have bounds that a file has not; a job is to take what is answered
    return ReadModel(
        id=identifier,
        graph=document,
        loss=None if made is None else made.loss,
        metrics={} if made is None else dict(made.metrics),
        targets=[] if made is None else list(made.targets),
        init_from=FromUpload(upload=identifier) if read.values else None,
        optimizer=None if read.step is None else _rule(read.step),
        inputs=[_value(input_.name, input_.type) for input_ in whole.inputs],
        outputs=[_value(name, types[name]) for name in whole.outputs],
        parameters=[
            ParameterInfo(
                name=each.name,
                dtype=each.type.dtype.value,
                shape=list(each.type.static_shape),
                trainable=each.trainable,
            )
            for each in whole.parameters
        ],
        warnings=[*read.warnings, *(() if made is None else made.notes)],
    )


def _rule(step: TrainingStep) -> OptimizerSpec:
    """What the file's own optimizer is here. Raises OnnxError for a number that the rule does not take."""
    try:
        return optimizer_of(step.rule, step.hyper)
    except ValidationError as error:
        first = error.errors()[0]
        raise OnnxError(f"the model's own {step.rule}: {first['loc'][1]}: {first['msg']}") from None


def _value(name: str, type_: TensorType) -> ValueInfo:
    return ValueInfo(name=name, dtype=type_.dtype.value, shape=list(type_.shape))
