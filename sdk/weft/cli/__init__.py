"""The command line `weft`."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    try:
        from weft.cli.app import app  # `weft.cli` may be imported without rich and typer being loaded

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        _flush()


def _flush() -> None:
    """Writes what is left of the output; where nobody reads it any more, it goes nowhere, without a word."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
