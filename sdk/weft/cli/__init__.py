"""The command line `weft`."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    from weft.cli.app import app  # `weft.cli` may be imported without rich and typer being loaded

    app()
