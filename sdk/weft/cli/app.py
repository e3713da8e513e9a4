"""The commands put together; what they raise becomes one red block and an exit code."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from weft import http
from weft.cli import doctor, jobs, models, parameters, programs, tokens, traces, up
from weft.errors import ArgumentError, ConnectError, WeftError
from weft.terminal import Console
from weft_graph.errors import GraphError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_INTERRUPTED = 130

HELP = """Train computation graphs on a cluster. Send a graph, not code.

The server is the one at WEFT_URL, http://127.0.0.1:8470 unless set; WEFT_TOKEN is the token it asks for, if any.

Exit codes: 0 all well; 1 the job failed, or the server refused; 2 wrong usage; 3 no server answered.
"""


class Reporting(TyperGroup):
    """Turns what users can meet into a message. What they cannot, a defect of weft, keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        http.LOG.addHandler(_SHOWN)  # once, however often it is added
        http.LOG.setLevel(logging.INFO)
        try:
            return super().invoke(ctx)
        except ConnectError as error:
            code = _complain(str(error), EXIT_NO_SERVER)
        except ArgumentError as error:
            code = _complain(str(error), EXIT_USAGE)
        except (WeftError, GraphError, OSError) as error:
            code = _complain(str(error), EXIT_FAILED)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        sys.exit(code)


class _Shown(logging.Handler):
    """Prints what the client says of its calls to where standard error is now."""

    def emit(self, record: logging.LogRecord) -> None:
        text = Text(record.getMessage(), "yellow")
        Console(stderr=True, highlight=False, soft_wrap=True).print(text)


_SHOWN = _Shown()

app = typer.Typer(
    name="weft", cls=Reporting, help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"weft {version('weft')}")
        raise typer.Exit


@app.callback()
def _weft(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


up.add_to(app)
doctor.add_to(app)
jobs.add_to(app)
programs.add_to(app)
traces.add_to(app)
models.add_to(app)
parameters.add_to(app)
tokens.add_to(app)


def _complain(message: str, code: int) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("weft: ", "bold red"), (message, "red")))
    return code
