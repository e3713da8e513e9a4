"""`weft report` and `weft trace`: what a job's steps spend their time on."""

from __future__ import annotations

import json as json_form
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.options import Form, Format, JobId, Url, print_json
from weft.client import Client
from weft.terminal import Console
from weft.trace import perfetto

File = Annotated[Path, typer.Option("-o", "--output", metavar="FILE.json", help="The file to write.", dir_okay=False)]


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(report)
    app.command()(trace)


def report(id: JobId, *, url: Url = None, form: Form = Format.TABLE) -> None:  # noqa: A002 - what users call it
    """Print what a job's steps spend their time on: computing, communication, and how much the two overlap."""
    with Client(url) as client:
        found = client.job(id).report()
    if form is Format.JSON:
        print_json(found.as_json())
    else:
        Console(soft_wrap=True).print(str(found), markup=False, highlight=False)


def trace(id: JobId, *, file: File, url: Url = None) -> None:  # noqa: A002 - what users call it
    """Write what all processes of a job did in its traced steps, as a file that https://ui.perfetto.dev opens."""
    with Client(url) as client:
        found = client.job(id).trace()
    file.write_text(json_form.dumps(perfetto(found)))
    steps = f"steps {found.window.first_step} to {found.window.first_step + found.window.steps - 1}"
    Console(soft_wrap=True).print(f"{file} has {steps}; open it at https://ui.perfetto.dev", markup=False)
