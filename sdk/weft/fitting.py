"""`weft.fit` and `weft.submit`: from a model and a file of data to a trained job, in one call.

What the data's columns feed is found by their names, or by their order in the file; a PyTorch module is exported with
the file's first rows as its example.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Unpack

import numpy as np

from weft.arguments import refuse_unknown
from weft.client import Client
from weft.errors import ArgumentError, InvalidRequestError, ModuleRefusedError
from weft.submission import JobArguments, TrainingArguments, check_words, data_of, job_spec, shown_with_keywords_of
from weft.trained_model import LOSS_MODULE
from weft_graph.literals import parsed_header

if TYPE_CHECKING:
    from onnx import ModelProto

    from weft.api.data import DataSpec
    from weft.api.job import JobSpec
    from weft.expression import Expression
    from weft.job_handle import JobHandle
    from weft.model import Model
    from weft.records import Array
    from weft.torch_run import Run
    from weft.trainable import Trainable
    from weft_graph.losses.comparison import Loss

EXAMPLE_ROWS: Final = 8
"""Rows that a module is exported with: enough that BatchNorm's gradients are not all zero."""
MOST_READ_BYTES: Final = 1 << 28
"""Of a column, for its first rows."""
_FEWEST_ROWS: Final = 2
"""From which PyTorch's exporter sees that the batch may have any size."""
_NUMBERS: Final = "numpy.unique(column, return_inverse=True)[1]"
"""What makes numbers of text."""


@shown_with_keywords_of(job_spec)
def submit(loss: Expression | Trainable, **arguments: Unpack[JobArguments]) -> JobHandle:
    """Submit a job to the server at `WEFT_URL`, as `Client.submit` does, which explains the arguments."""
    return Client().submit(loss, **arguments)


@shown_with_keywords_of(job_spec, but=("metrics", "data"))
def fit(
    model: Any | Expression | Trainable | Model | ModelProto | str | os.PathLike[str],
    data: DataSpec | str | os.PathLike[str],
    *more: Never,
    loss: Any | str | Loss | Sequence[str | Loss] | None = None,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    metrics: str | Sequence[str] | Mapping[str, Expression] | None = None,
    example: Any = None,
    progress: bool = True,
    client: Client | None = None,
    **arguments: Unpack[TrainingArguments],
) -> JobHandle:
    """Train a model on the cluster at `WEFT_URL`, show its progress, and return the job when it has succeeded.

        job = weft.fit(net, "digits.npz", loss=nn.CrossEntropyLoss(), epochs=10, optimizer=weft.Adam())
        job.load_into(net)

    - `model`: a PyTorch module, an ONNX file (a path or a `ModelProto`), what `weft.from_torch` or `weft.from_onnx`
      returned, `model.with_loss(...)`, or a scalar expression that is the loss itself.
    - `data`: the path of a `.npz` file, or `weft.numpy_data(...)`, which also says which rows are for evaluation.
    - `loss`: PyTorch's, such as `nn.CrossEntropyLoss()` or `functional.mse_loss`, or what `Model.with_loss` takes.
      Not for an expression or `model.with_loss(...)`.
    - `inputs`: the columns that feed the model, in the order of its inputs. Where left out, an input takes the column
      that the data's own `columns` map it to, else the column of its name; if none is mapped and none has its name,
      inputs take the columns in the order of the file.
    - `target`: the column that the loss compares with. Where left out, it is the only one that feeds no input.
    - `metrics`: "accuracy" and the like, as for `Model.with_loss`; for an expression, expressions by name.
    - `example`: inputs of a module, as for `weft.from_torch`, where this machine cannot read the data.
    - `progress`: whether progress is shown. Ctrl-C stops waiting, not the job.
    - `client`: another server's than that at `WEFT_URL`.

    The other arguments are those of `Client.submit`. The server is asked about data, batch and processes before a
    module is exported. Raises ArgumentError, ModuleRefusedError, OnnxError and the like, ConnectError where there is no
    server, InvalidRequestError if the server rejects the job, JobFailedError and JobCancelledError.
    """
    if more:
        raise ArgumentError(
            "fit takes the model and its data, and all else by name, such as loss=..., epochs=3; of arrays, "
            "numpy.savez('data.npz', x=x, y=y) makes a file of data"
        )
    of_the_loss = {word: f"loss=weft.Loss('mse', {word}=...)" for word in ("output", "classes_axis", "ignore_index")}
    check_words("fit", arguments, ("loss", "inputs", "target", "example", "progress", "client"), of_the_loss)
    stand_in, client = _stand_in(data_of(data), arguments), client or Client()
    trained, spec, scalars = _prepared(
        model,
        data_of(data),
        partial(_ask, client, stand_in),
        loss=loss,
        inputs=inputs,
        target=target,
        metrics=metrics,
        example=example,
    )
    kind = type(model).__name__
    if _is_module(model) and kind.isascii():
        arguments.setdefault("name", kind[:128])
    job = client.submit(trained, data=spec, metrics=scalars, **arguments)
    if progress:
        job.watch()
    else:
        job.wait()
    return job


OF_ANY_GRAPH: Final = ("/data/source", "/data/train", "/data/evaluate", "/data/batch_size", "/run", "/parallelism")
"""Where a job's errors are the same for any graph."""


def _stand_in(data: DataSpec, arguments: TrainingArguments) -> JobSpec:
    """A job of these arguments with the smallest graph. Raises ArgumentError for what is wrong with any graph."""
    from weft.leaves import input as input_
    from weft.leaves import parameter
    from weft.nn.initializers import zeros

    of_the_model = ("outputs", "init_from", "resume", "stop_when", "keep_best")
    given: Any = {name: value for name, value in arguments.items() if name not in of_the_model}
    return job_spec((input_("x") * parameter("w", (), zeros(()))).mean(), data=data, **given)


def _ask(client: Client, stand_in: JobSpec, column: str) -> None:
    """Asks the server about data, batch and processes before a model is exported, which may take minutes.

    Raises what it answers: ConnectError, UnauthenticatedError, InvalidRequestError. `column` is any one of the data.
    """
    data = stand_in.data.model_copy(update={"columns": {"x": column}})
    try:
        client.dry_run(stand_in.model_copy(update={"data": data}))
    except InvalidRequestError as error:
        told = [each for each in error.problem.errors if each.pointer.startswith(OF_ANY_GRAPH)]
        if told:
            problem = error.problem.model_copy(update={"errors": told, "detail": ""})
            raise type(error)(error.status, problem) from None


def _is_module(model: object) -> bool:
    torch: Any = sys.modules.get("torch")  # who has a module has imported it
    return torch is not None and isinstance(model, torch.nn.Module)


def _prepared(
    model: Any,
    data: DataSpec,
    ask: Callable[[str], None],
    *,
    loss: Any,
    inputs: Any,
    target: str | None,
    metrics: Any,
    example: Any,
) -> tuple[Expression | Trainable, DataSpec, Mapping[str, Expression] | None]:
    """What `submit` takes: what to train, its data with a column for each input, metrics that are expressions.

    `ask` is called once arguments and columns are found right, before a module or a file is read.
    """
    from weft.expression import Expression
    from weft.model import Model
    from weft.onnx_model import check_source, from_onnx
    from weft.trainable import Trainable
    from weft_graph.losses.comparison import Loss

    if isinstance(model, Expression | Trainable):
        given = {"loss": loss, "inputs": inputs, "target": target, "example": example}
        told = [name for name, value in given.items() if value is not None]
        if told:
            raise ArgumentError(
                f"{' and '.join(told)}: of a model without a loss; {type(model).__name__} has its loss, and "
                "weft.numpy_data(..., columns={input: column}) says what feeds its inputs"
            )
        return model, data, metrics
    if not _is_module(model) and not isinstance(model, Model):
        check_source(model)
    if loss is None:
        raise ArgumentError("loss is missing: loss=torch.nn.CrossEntropyLoss(), loss='mse' or the like")
    of, source = _loss_of(loss), _Columns.read(data)
    if _is_module(model):
        only = _listed(of)[0] if len(_listed(of)) == 1 else None  # a word, or a Loss
        words = {"metrics": _listed(metrics), "loss": [getattr(each, "loss", each) for each in _listed(of)]}
        read, feeding = _exported(
            model,
            source,
            inputs,
            target,
            example,
            inside=loss if of is None else None,
            only=Loss(only) if isinstance(only, str) else only,
            words=words,
            ask=ask,
        )
        of = of or Loss(LOSS, output="output", target=next(reversed(feeding)))
    elif of is None:
        raise ArgumentError("loss: only a PyTorch module trains by a loss of PyTorch's that weft has no word for")
    else:
        if example is not None:
            raise ArgumentError("example: only a PyTorch module needs one")
        if not isinstance(model, Model):
            ask(source.any)
            model = from_onnx(model)
        read, feeding = model, source.feeding(list(model.inputs), inputs, target)
    trainable = read.with_loss(of, metrics=() if metrics is None else metrics)
    for warning in trainable.warnings:
        sys.stderr.write(f"weft: {warning}\n")
    added = [name for name in trainable.targets if name not in read.inputs]
    if len(added) == 1:
        found = source.target(added[0], feeding, target)
        feeding = feeding if found is None else {**feeding, added[0]: found}
    elif target is not None and target not in feeding.values():
        raise ArgumentError(f"target is {target!r}, and the loss has {len(added)} targets: {', '.join(added) or '-'}")
    return trainable, data.model_copy(update={"columns": {**feeding, **data.columns}}), None


# --- Which column feeds what ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a job's data, in the order of the file; None where this machine cannot read it."""

    data: DataSpec
    found: Mapping[str, Array] | None
    """The first rows of each."""
    unreadable: str = ""
    """Why this machine cannot read it."""

    @classmethod
    def read(cls, data: DataSpec) -> _Columns:
        try:
            with zipfile.ZipFile(data.source.path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                return cls(data, {name: _first_rows(archive, name) for name in names})
        except ArgumentError as error:
            raise ArgumentError(f"{Path(data.source.path).absolute()}: {error}") from None
        except zipfile.BadZipFile:
            raise ArgumentError(
                f"{Path(data.source.path).absolute()} is no .npz file: numpy.savez('data.npz', x=x, y=y) writes one, "
                "also of a CSV file's columns"
            ) from None
        except (OSError, ValueError, KeyError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return cls(data, None, reason)  # Perhaps only the server has it.

    @property
    def any(self) -> str:
        """One of them; a usual name where they are not known."""
        return next(iter(self.found or {}), "x")

    @property
    def path(self) -> Path:
        return Path(self.data.source.path).absolute()

    def __str__(self) -> str:
        return f"{self.path} has the columns {self._listed}"

    @property
    def _listed(self) -> str:
        """`x (float32[64]), y (int64)`."""
        return ", ".join(f"{name} ({rows.dtype}{[*rows.shape[1:]] or ''})" for name, rows in (self.found or {}).items())

    def check(self, argument: str, name: str) -> None:
        """Raises ArgumentError for a column that is not there."""
        if self.found is not None and name not in self.found:
            raise ArgumentError(f"{argument}: {self.path} has no column {name!r}; it has {self._listed}")

    def check_rows(self, column: str) -> None:
        """Raises ArgumentError for first rows that PyTorch cannot be tried on: text, fewer than two, or a number that
        is not finite."""
        rows = (self.found or {})[column]
        if rows.dtype.kind in "US":
            raise ArgumentError(f"column {column!r} of {self.path} is text: save numbers for it, such as {_NUMBERS}")
        if rows.ndim and len(rows) < _FEWEST_ROWS:
            count = "no rows" if not len(rows) else "one row"
            raise ArgumentError(f"column {column!r} of {self.path} has {count}: a module is exported with two or more")
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            row = int(np.argmin(np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)))
            raise ArgumentError(f"row {row} of column {column!r} of {self.path} is not finite: correct the data")

    def check_classes(self, column: str | None, loss: str, *, is_guessed: bool) -> None:
        """Raises ArgumentError for a target that has no numbers of classes, before PyTorch exports the module.
        `is_guessed`: it is the target for its place in the file alone."""
        rows = (self.found or {}).get(column or "")
        if rows is not None and rows.dtype.kind not in "iub":
            others = [name for name, each in (self.found or {}).items() if each.dtype.kind in "iu" and each.ndim == 1]
            remedy = "save it with .argmax(-1), if the classes are its last axis"
            if is_guessed and others:
                remedy = (
                    f"inputs take the columns in the order of the file; say which is the target: target={others[0]!r}"
                )
            elif rows.dtype.kind in "US":
                remedy = f"save numbers for it, such as {_NUMBERS}"
            elif rows.ndim == 1:
                remedy = "save it with .astype('int64')"
            raise ArgumentError(
                f"target: column {column!r} of {self.path} is {rows.dtype}{[*rows.shape[1:]] or ''}, and {loss} takes "
                f"numbers of classes, such as int64: {remedy}"
            )

    def check_target(self, column: str, loss: Loss, output: tuple[int, ...]) -> None:
        """Raises ArgumentError for a target of another shape than the loss takes of an output of that shape."""
        from weft_graph.errors import GraphError
        from weft_graph.ir import Graph, Input
        from weft_graph.losses.comparison import CLASSES, Additions, Comparison
        from weft_graph.types import BATCH, DType, TensorType

        made = Input("output", TensorType(DType.FLOAT32, (BATCH, *output[1:])))
        additions = Additions(Graph("loss", (made,), (), (), (made.name,)))
        compared = Comparison(replace(loss, output=made.name, target=""), additions)
        rows = (self.found or {}).get(column)
        try:
            wanted = compared.nodes.types[compared.target].shape[1:]
        except GraphError:
            return  # The loss says it once the module is exported, with the output's name.
        if rows is None or rows.shape[1:] == wanted:
            return
        takes, remedy = "", "save the column so, or change the module's output"
        if loss.loss in CLASSES:
            axis = compared.classes_axis()
            takes = f" with its classes on axis {axis}"
            others = [at for at in range(1, len(output)) if (*output[1:at], *output[at + 1 :]) == rows.shape[1:]]
            if others:
                ignored = "" if loss.ignore_index is None else f", ignore_index={loss.ignore_index}"
                remedy = f"if axis {others[-1]} has the classes, say so: loss=weft.Loss({loss.loss!r}, classes_axis="
                remedy += f"{others[-1]}{ignored})"
        elif wanted == (*rows.shape[1:], 1):
            remedy = "save the column with [..., None]"
        raise ArgumentError(
            f"target: the module's output is {_shape('batch', output[1:])}{takes}, so {loss.loss} takes a target of "
            f"{_shape('batch', wanted)}, and column {column!r} of {self.path} is {_shape('rows', rows.shape[1:])}: "
            f"{remedy}"
        )

    def of_other_dtype(self, error: ModuleRefusedError, fed: Iterable[str], module: Any) -> ModuleRefusedError | None:
        """The error with the columns that PyTorch means, where it is of a dtype."""
        from weft.torch_run import IDS_WANTED, OTHER_DTYPE

        computes = str(next((each.dtype for each in module.parameters()), "float32")).removeprefix("torch.")
        dtypes = {column: (self.found or {})[column].dtype for column in fed}
        others = {column: dtype for column, dtype in dtypes.items() if dtype == np.float64 and computes != "float64"}
        wanted, takes = computes, f"computes in {computes}"
        if IDS_WANTED in str(error):
            others, wanted, takes = {c: d for c, d in dtypes.items() if d.kind == "f"}, "int64", "takes ids"
        elif OTHER_DTYPE in str(error) and not others:
            others = {column: dtype for column, dtype in dtypes.items() if dtype != computes}
        told = " and ".join(f"column {column!r} is {dtype}" for column, dtype in others.items())
        several = "the ids" if wanted == "int64" else "what is no id"
        what = "the column" if len(others) == 1 else several
        said = f"{self.path}: {told}, and the module {takes}: save {what} with .astype({wanted!r})"
        return ModuleRefusedError(said, reason=error.reason) if others else None

    def feeding(self, names: Sequence[str], inputs: str | Sequence[str] | None, target: str | None) -> dict[str, str]:
        """Input -> column. Raises ArgumentError where the columns do not tell."""
        if target is not None:
            self.check("target", target)
        if inputs is not None:
            listed = [inputs] if isinstance(inputs, str) else list(inputs)
            for column in listed:
                self.check("inputs", column)
            if len(listed) != len(names):
                raise ArgumentError(f"inputs is {listed}, and the model has {len(names)} inputs: {', '.join(names)}")
            self.check_mapped(fed := dict(zip(names, listed, strict=True)), "inputs")
            return fed
        given = {name: self.data.columns[name] for name in names if name in self.data.columns}
        for column in given.values():
            self.check("columns", column)
        named = [name for name in names if name not in given]
        missing = [name for name in named if self.found is not None and name not in self.found]
        if not missing:
            return {name: given.get(name, name) for name in names}  # in the order of the inputs
        if given:
            raise ArgumentError(
                f"{self}, none of the name of the input {' or '.join(map(repr, missing))}; an input that "
                "columns={...} does not map takes the column of its name: map it too"
            )
        mapped = set(self.data.columns.values())
        left = [name for name in self.found or {} if name != target and name not in mapped]
        if missing == names and len(left) == len(names) + (target is None and not mapped):
            return dict(zip(names, left, strict=False))
        if missing == names and len(left) == len(names) and target is None:
            raise ArgumentError(
                f"{self}, as many as the model has inputs ({', '.join(names)}), and none that the loss compares with: "
                "save the target in the file too; where a column is both, or the loss has no target, say inputs=(...)"
            )
        raise ArgumentError(
            f"{self}; say which of them feed the model's inputs {', '.join(names)}, in this order: inputs=(...)"
        )

    def check_mapped(self, feeding: Mapping[str, str], argument: str) -> None:
        """Raises ArgumentError where an argument and the data's own `columns` have another column for one input."""
        for name, column in feeding.items():
            if self.data.columns.get(name, column) != column:
                raise ArgumentError(
                    f"{argument}: input {name!r} takes column {column!r}, and columns={{...}} maps it to "
                    f"{self.data.columns[name]!r}; leave one of the two out"
                )

    def target(self, name: str, feeding: Mapping[str, str], asked: str | None) -> str | None:
        """The column that the loss's input `name` takes; None where the data's own `columns` say it."""
        if asked is not None:
            self.check_mapped({name: asked}, "target")
            return asked
        if name in self.data.columns:
            return None
        left = [column for column in self.found or {} if column not in feeding.values()]
        if self.found is None or name in left:
            return name
        if len(left) == 1:
            return left[0]
        none = "" if left else "none is left for the target: save it in the file too, or "
        raise ArgumentError(f"{self}; {none}say which of them the loss compares with: target=...")


def _shape(first: str, rest: Sequence[Any]) -> str:
    return f"({', '.join([first, *map(str, rest)])})"


def _first_rows(archive: zipfile.ZipFile, name: str) -> Array:
    """The first rows of a column. Of one in Fortran's order, which has them everywhere, zeros where it is large."""
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = parsed_header(header, member)
        if dtype.hasobject:
            raise ArgumentError(
                f"column {name!r} holds Python objects, as of rows that are not equally long: make it one array of "
                "numbers, with padding"
            )
        wanted = (min(shape[0], EXAMPLE_ROWS), *shape[1:]) if shape else ()
        order: Literal["C", "F"] = "F" if is_fortran else "C"
        read = shape if is_fortran else wanted
        size = math.prod(read) * dtype.itemsize
        if not shape or size > MOST_READ_BYTES:
            return np.zeros(wanted, dtype)
        return np.frombuffer(member.read(size), dtype).reshape(read, order=order)[: wanted[0]].copy()


# --- From PyTorch -----------------------------------------------------------------------------------------------------


LOSS: Final = "loss"
"""The output of a graph that has the loss of a module inside."""


def _exported(
    module: Any,
    source: _Columns,
    inputs: Any,
    target: str | None,
    example: Any,
    *,
    inside: Any,
    only: Loss | None,
    words: Mapping[str, Sequence[str]],
    ask: Callable[[str], None],
) -> tuple[Model, dict[str, str]]:
    """The module as a model, with the loss `inside` it if that is not None, and the columns of its inputs. `only`:
    the only loss of the module, whose target is looked at first."""
    from weft.torch_model import from_torch, try_out
    from weft_graph.losses.comparison import CLASSES, LOSSES
    from weft_graph.losses.with_loss import MEASURES

    torch: Any = sys.modules["torch"]
    compared = None
    if example is not None:
        if inside is not None:
            raise ArgumentError("example: a loss that weft has no word for needs data that can be read here")
        ask(source.any)
        model = from_torch(module, example)
        return model, source.feeding(list(model.inputs), inputs, target)
    names, is_by_name = _arguments(module, source, inputs)
    feeding = source.feeding(names, inputs, target)
    if source.found is None:
        raise ArgumentError(
            f"the module's inputs are made from the data, and {source.path} cannot be read on this machine "
            f"({source.unreadable}): correct the path, or, if only the server has the file, pass "
            "example=..., a tensor or a tuple of tensors such as torch.zeros(2, 20), as for weft.from_torch"
        )
    if inside is not None:
        of_classes = _torch_word(inside) in CLASSES
        last = "labels" if of_classes and "target" not in source.data.columns else "target"
        last = last if last not in names else f"loss_{last}"
        column = source.target(last, feeding, target) or source.data.columns[last]
        module, feeding = _with_loss_inside(module, inside, names, of_classes=of_classes), {**feeding, last: column}
    elif only is not None and only.loss in LOSSES:
        name = only.target or ("labels" if only.loss in CLASSES else "target")
        compared = feeding.get(name) or source.target(name, feeding, target) or source.data.columns[name]
        if only.loss in CLASSES:
            is_guessed = target is None and inputs is None and compared not in {name, source.data.columns.get(name)}
            source.check_classes(compared, only.loss, is_guessed=is_guessed)
    for column in feeding.values():
        source.check_rows(column)
    device = next((each.device for each in module.parameters()), None)
    rows = {name: torch.from_numpy(source.found[column]).to(device) for name, column in feeding.items()}
    fed = rows if is_by_name and inside is None else tuple(rows.values())
    ask(source.any)
    try:
        is_unknown = any(word not in MEASURES for named in words.values() for word in named)
        if is_unknown or compared is not None:  # In no time, beside that of an export.
            ran = try_out(module, fed)
            if is_unknown:
                _check_words(words, ran)
            named = dict(zip(ran.names or [""], ran.outputs, strict=False))
            if (
                only is not None
                and compared is not None
                and only.output in named
                and (only.output or not ran.names[1:])
            ):
                source.check_target(compared, only, named[only.output].shape)
        model = from_torch(
            module,
            fed,
            input_names=None if inside is None else list(rows),
        )
    except ModuleRefusedError as error:
        raise source.of_other_dtype(error, feeding.values(), module) or error from None
    if set(model.inputs) == set(feeding):
        return model, feeding
    return model, dict(zip(model.inputs, feeding.values(), strict=True))


def _listed(given: Any) -> list[Any]:
    """What is given of something that may be one, several or none."""
    return (
        [] if given is None else list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    )


def _check_words(words: Mapping[str, Sequence[str]], run: Run) -> None:
    """Raises ArgumentError for a loss or metric that is no output of the module either, as far as they have names."""
    from weft_graph.losses.with_loss import MEASURES

    if run.names or all(each.shape for each in run.outputs):
        named = [name for name, each in zip(run.names, run.outputs, strict=False) if not each.shape]
        for argument, given in words.items():
            refuse_unknown(argument, given, (*MEASURES, *named))


def _arguments(module: Any, source: _Columns, inputs: str | Sequence[str] | None) -> tuple[list[str], bool]:
    """(the arguments of `forward` that are fed, whether by name): as many as `inputs`, else those without a default,
    and others that have a column of their name or are mapped to one."""
    count = None if inputs is None else 1 if isinstance(inputs, str) else len(inputs)
    found = list(inspect.signature(module.forward).parameters.values())
    if any(each.kind is each.VAR_POSITIONAL for each in found):
        return [f"input_{number + 1}" for number in range(count or 1)], False
    usual = [each for each in found if each.kind is not each.VAR_KEYWORD]
    if count is not None:
        return [each.name for each in usual[:count]], False
    needed = [each.name for each in usual if each.default is each.empty]
    known = {*(source.found or {}), *source.data.columns}
    more = [each.name for each in usual if each.name not in needed and each.name in known]
    return needed + more, bool(more)


def _with_loss_inside(module: Any, loss: Any, names: Sequence[str], *, of_classes: bool) -> Any:
    """A module of the same parameters, of the inputs `names` and then the target: the loss, and the output. Numbers of
    classes may be of any integer dtype."""
    kind = type(module)
    every = inspect.signature(module.forward).parameters.values()
    has_rest = any(each.kind is each.VAR_POSITIONAL for each in every)

    def forward(self: Any, *inputs: Any) -> dict[str, Any]:
        *fed, target = inputs
        inner = self._modules.pop(LOSS_MODULE, None)  # a Sequential would call it as its last layer
        try:
            output = kind.forward(self, *fed) if has_rest else kind.forward(self, **dict(zip(names, fed, strict=True)))
        finally:
            if inner is not None:
                self._modules[LOSS_MODULE] = inner
        wanted = target.long() if of_classes and not target.is_floating_point() else target
        return {LOSS: loss(output, wanted), "output": output}

    made = copy.copy(module)
    made.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    if _is_module(loss):
        made._modules = {**module._modules, LOSS_MODULE: loss}
    return made


_TORCH_LOSSES: Final = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll",
    "MSELoss": "mse",
    "L1Loss": "l1",
    "BCELoss": "bce",
    "BCEWithLogitsLoss": "bce_with_logits",
    "cross_entropy": "cross_entropy",
    "nll_loss": "nll",
    "mse_loss": "mse",
    "l1_loss": "l1",
    "binary_cross_entropy": "bce",
    "binary_cross_entropy_with_logits": "bce_with_logits",
}
"""PyTorch's losses, modules and functions -> what `Model.with_loss` calls them."""

_USUAL: Final = {"weight": None, "pos_weight": None, "label_smoothing": 0.0}
"""Options that weft's losses lack, with their defaults."""


def _torch_word(loss: Any) -> str | None:
    """What `Model.with_loss` calls a loss of PyTorch's of that kind, whatever its options."""
    kind = type(loss) if _is_module(loss) else loss
    is_torchs = str(getattr(kind, "__module__", "")).startswith("torch.nn.")
    return _TORCH_LOSSES.get(getattr(kind, "__name__", "")) if is_torchs else None


def _loss_of(loss: Any) -> Any:
    """What `Model.with_loss` takes; None for a loss of PyTorch's that it has no word for. Raises ArgumentError."""
    from weft import nn
    from weft_graph.losses.comparison import CLASSES, Loss

    if isinstance(loss, str | Loss | Sequence):
        return loss
    own = {nn.cross_entropy: "cross_entropy", nn.mean_squared_error: "mse"}
    if not callable(loss):
        raise ArgumentError(f"loss is {loss!r}; it should be torch.nn.CrossEntropyLoss(), 'mse' or the like")
    if not _is_module(loss) and loss in own:
        return own[loss]
    kind = type(loss) if _is_module(loss) else loss
    if getattr(loss, "reduction", "mean") != "mean":
        raise ArgumentError(f"{kind.__name__} has reduction={loss.reduction!r}; a job's loss is a 'mean'")
    word = _torch_word(loss)
    if word is None and isinstance(loss, type):
        raise ArgumentError(f"loss is the class {kind.__name__}: give it made, such as {kind.__name__}()")
    if word is None or any(getattr(loss, option, usual) != usual for option, usual in _USUAL.items()):
        return None
    if word not in CLASSES:
        return word
    return Loss(word, classes_axis=1, ignore_index=getattr(loss, "ignore_index", -100))
