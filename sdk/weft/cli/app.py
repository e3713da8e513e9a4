"""The commands put together; what they raise becomes one red block and an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_INTERRUPTED = 130

USAGE_ERROR: Any = typer.BadParameter.__mro__[1]
"""The base of typer's own errors, which it does not name in public."""

TRACEBACK = "WEFT_TRACEBACK"
"""A variable that has a defect of weft print its traceback."""

HELP = """Train computation graphs on a cluster. Send a graph, not code.

The server is the one at WEFT_URL, http://127.0.0.1:8470 unless set; WEFT_TOKEN is the token it asks for, if any.

Exit codes: 0 success; 1 an error: the job failed, or the server rejected the request; 2 wrong usage: an option, an
argument or a file on this machine; 3 no server answered; 130 Ctrl-C.
"""

COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Cluster": {
        "up": ("up", "Start a server, shards and workers on this machine."),
        "down": ("up", "End the cluster that `weft up` started."),
        "agents": ("jobs", "List workers and shards."),
        "doctor": ("doctor", "Check this machine and the server."),
        "token": ("tokens", "Create, list and remove users' tokens."),
    },
    "Jobs": {
        "submit": ("jobs", "Submit a job file, an ONNX file, or a job once more."),
        "resume": ("jobs", "Go on with a job that has ended."),
        "jobs": ("jobs", "List jobs, newest first."),
        "show": ("jobs", "Show one job."),
        "watch": ("jobs", "Show a job's progress until it ends."),
        "wait": ("jobs", "Wait for a job to succeed, run or end."),
        "logs": ("jobs", "Print a job's events."),
        "scale": ("jobs", "Change a running job's workers and shards."),
        "stop": ("jobs", "End a job soon and keep what it has trained."),
        "cancel": ("jobs", "End a job now, without a result."),
        "rm": ("jobs", "Delete jobs that have ended."),
        "report": ("traces", "Print what a job's steps spend their time on."),
        "trace": ("traces", "Write a job's traced steps to a file."),
    },
    "Models": {
        "inspect": ("models", "Print what an ONNX file has."),
        "programs": ("programs", "Print what workers run for a job or a file."),
        "params": ("parameters", "List, get, save, set or load a job's parameters."),
        "export": ("models", "Write a job's trained model to an ONNX file."),
    },
}
"""By topic: each command's module in this package, and what it does in a few words. A module is loaded once one of its
commands is called, so help and the start of a command cost no more than they need."""


OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("get", "list", "ls", "ps", "squeue", "queue", "status"), "jobs"),
    **dict.fromkeys(("describe", "info"), "show"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("apply", "create", "run", "train", "fit", "sbatch"), "submit"),
    **dict.fromkeys(("kill", "scancel", "abort"), "cancel"),
    **dict.fromkeys(("nodes", "workers", "sinfo", "top"), "agents"),
    **dict.fromkeys(("start", "init"), "up"),
    **dict.fromkeys(("attach", "follow"), "watch"),
    "download": "params save",
    "help": "--help",
    "version": "--version",
    "shards": "agents",
    "metrics": "show",
}
"""Commands of kubectl, docker, Slurm and the like -> weft's own."""


class _Commands(Mapping[str, Any]):
    """Commands by name, each built once it is asked for."""

    def __init__(self) -> None:
        self._modules = {name: module for named in COMMANDS.values() for name, (module, _) in named.items()}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        module = self._modules[name]
        if name not in self._built:
            made = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
            importlib.import_module(f"weft.cli.{module}").add_to(made)
            made.callback()(lambda: None)  # a group, also of one command
            group: Any = typer.main.get_command(made)
            _write_arguments_plainly(group)
            self._built.update(group.commands)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def _write_arguments_plainly(command: Any) -> None:
    """In the lines of usage: `ID`, where typer writes `{ID}`."""
    for argument in command.params:
        if argument.param_type_name == "argument":
            usual = argument.get_usage_pieces
            argument.get_usage_pieces = lambda ctx, usual=usual: [one.translate(_BRACES) for one in usual(ctx)]
    for one in getattr(command, "commands", {}).values():
        _write_arguments_plainly(one)


_BRACES = str.maketrans("", "", "{}")


class Reporting(TyperGroup):
    """Turns errors into a message and an exit code. Where a defect of weft lies is printed if TRACEBACK is set."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command; of another program's word it says weft's."""
        own = OF_OTHERS.get(args[0]) if args else None
        if own is not None and args[0] not in self.commands:
            raise USAGE_ERROR(f"weft has no command {args[0]!r}; did you mean {own!r}?", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands by topic, without loading them."""
        for topic, named in COMMANDS.items():
            with formatter.section(topic):
                formatter.write_dl([(f"{name:8}", told) for name, (_, told) in named.items()])

    def invoke(self, ctx: Any) -> Any:
        from weft import http  # nor of these
        from weft.api.words import plain
        from weft.errors import ArgumentError, ConnectError, WeftError
        from weft_graph.errors import GraphError

        http.LOG.addHandler(_SHOWN)  # once, however often it is added
        http.LOG.setLevel(logging.INFO)
        try:
            return super().invoke(ctx)
        except ConnectError as error:
            code = _complain(error, EXIT_NO_SERVER)
        except ArgumentError as error:
            code = _complain(error, EXIT_USAGE)
        except (WeftError, GraphError) as error:
            code = _complain(error, EXIT_FAILED)
        except BrokenPipeError:
            raise  # who read the output has enough of it: typer ends the process without a word
        except OSError as error:
            file = os.path.abspath(error.filename) if isinstance(error.filename, str | os.PathLike) else None
            code = _complain(f"{file}: {error.strerror}" if file and error.strerror else str(error), EXIT_FAILED)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except USAGE_ERROR as error:
            error.message = plain(error.message)  # typer asks pydantic
            raise
        except (typer.Exit, typer.Abort):
            raise  # typer's own ways to end
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            code = _complain(f"{told}; this is a defect of weft, and with {TRACEBACK}=1 it says where", EXIT_FAILED)
        sys.exit(code)


class _Shown(logging.Handler):
    """Prints what the client says of its calls to where standard error is now."""

    def emit(self, record: logging.LogRecord) -> None:
        _print(record.getMessage(), "yellow")


_SHOWN = _Shown()

app = typer.Typer(
    name="weft", cls=Reporting, help=HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # help needs none of it

        typer.echo(f"weft {version('weft')}")
        raise typer.Exit


@app.callback()
def _weft(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


def _complain(error: Exception | str, code: int) -> int:
    notes: list[str] = getattr(error, "__notes__", [])
    _print("\n".join([str(error), *notes]), "red", ("weft: ", "bold red"))
    return code


def _print(message: str, style: str, *before: tuple[str, str]) -> None:
    from rich.text import Text

    from weft.terminal import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(*before, (message, style)))
