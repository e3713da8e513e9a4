"""Commands about a job's parameters: `weft params ls|get|save|set|load`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from weft.api.job import ParameterList
from weft.api.values import SAFETENSORS
from weft.cli import render
from weft.cli.options import Form, Format, JobId, Url, check_suffix, print_json, say
from weft.client import Client
from weft.errors import ArgumentError
from weft.job_handle import JobHandle
from weft.terminal import Console

File = Annotated[Path, typer.Argument(metavar="FILE.safetensors", dir_okay=False, show_default=False)]
SET_HELP = "A number, which fills the parameter, or a .npy file of its shape."

params = typer.Typer(help="A job's parameters: list, get, save, set, load.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Adds the group."""
    app.add_typer(params, name="params")


@params.command()
def ls(id: JobId, url: Url = None, form: Form = Format.TABLE) -> None:  # noqa: A002 - the argument's name to users
    """List names, dtypes and shapes."""
    with Client(url) as client:
        found = client.job(id).parameters()
    if form is Format.JSON:
        print_json(ParameterList(parameters=found))
    else:
        render.print_table(render.parameters_table(found))


@params.command()
def get(
    id: JobId,  # noqa: A002 - the argument's name to users
    name: Annotated[str, typer.Argument(help="The parameter's name.", show_default=False)],
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Print the values of one parameter, also while the job runs."""
    with Client(url) as client:
        values = client.job(id).values([name])
    array, out = values[name], Console(soft_wrap=True)
    if form is Format.JSON:
        document = {"name": name, "dtype": array.dtype.name, "shape": array.shape, "step": values.step}
        print_json({**document, "values": array.tolist()}, indent=None)
        return
    shape = ", ".join(map(str, array.shape))
    out.print(f"{name}  {array.dtype.name}[{shape}]  after {values.step} steps", highlight=False, markup=False)
    out.print(_statistics(array), highlight=False, markup=False)
    out.out(str(array), highlight=False)


@params.command()
def save(
    id: JobId,  # noqa: A002 - the argument's name to users
    file: File,
    *,
    state: Annotated[
        bool, typer.Option("--state", help="Also write the optimizer's state; for a job with `keep_state`.")
    ] = False,
    ema: Annotated[bool, typer.Option("--ema", help="Write the averaged parameters; for a job with `ema`.")] = False,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Write all parameters to a safetensors file."""
    check_suffix(file, SAFETENSORS)
    with Client(url) as client:
        job = client.job(id)
        step = job.save(file, state=state, ema=ema)
    if form is Format.JSON:
        print_json({"path": str(file), "step": step})
    else:
        what = "averages of parameters" if ema else "parameters"
        what = f"{what} and state" if state else what
        say(f"{file}: {file.stat().st_size:,} bytes, {what} of job {job.id} after {render.counted(step, 'step')}")


@params.command("set")
def set_(
    id: JobId,  # noqa: A002 - the argument's name to users
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help=SET_HELP, show_default=False)],
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Set parameters of a job that has not ended, all at once, between two of its steps."""
    values = dict(assigned(assignment) for assignment in assignments)
    if len(values) < len(assignments):
        names = [assignment.partition("=")[0] for assignment in assignments]
        twice = next(name for name in names if names.count(name) > 1)
        raise ArgumentError(f"{twice} is given twice: give each parameter one value")
    for name, value in values.items():
        if np.asarray(value).dtype.kind == "f" and not np.isfinite(value).all():
            raise ArgumentError(f"{name}: the value is not finite, and every loss after it would be nan: correct it")
    with Client(url) as client:
        job = client.job(id)
        _tell_set(job, list(values), job.set_all(values), form)


@params.command()
def load(
    id: JobId,  # noqa: A002 - the argument's name to users
    file: File,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Set parameters from a safetensors file, as `set` does."""
    with Client(url) as client:
        job = client.job(id)
        _tell_set(job, [str(file)], job.load(file), form)


def assigned(assignment: str) -> tuple[str, Any]:
    """`NAME=NUMBER` or `NAME=FILE.npy` as a name and its value. Raises ArgumentError, OSError."""
    name, equals, value = assignment.partition("=")
    if not (name and equals and value):
        raise ArgumentError(f"{assignment!r} should be NAME=NUMBER or NAME=FILE.npy")
    try:
        return name, float(value)
    except ValueError:
        pass
    try:
        with open(value, "rb") as file:
            return name, np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise ArgumentError(f"{value!r} is no number, and there is no file {Path(value).absolute()}") from None
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{value!r} is no .npy file, as numpy.save writes one: {error}") from None


def _tell_set(job: JobHandle, what: list[str], step: int, form: Format) -> None:
    if form is Format.JSON:
        print_json({"set": what, "step": step})
    else:
        when = f"after step {step}" if step else "before the first step"
        say(f"job {job.id}: {', '.join(what)} {'was' if len(what) == 1 else 'were'} set {when}")


def _statistics(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Of all elements, in float64; what is not finite is counted and left out."""
    if array.size == 0:
        return "no elements"
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    rest = array.size - finite.size
    text = f"{array.size:,} elements"
    if finite.size:
        text += (
            f"  min {finite.min():.6g}  max {finite.max():.6g}  mean {finite.mean():.6g}  deviation {finite.std():.6g}"
        )
    return f"{text}  {rest:,} not finite" if rest else text
