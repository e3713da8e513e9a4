"""The command line `weft`."""

from __future__ import annotations


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from weft.cli.app import app  # `weft.cli` may be imported without rich and typer being loaded

    app()
