"""`python -m weft_server`: the server's daemon."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from weft.agent.startup import start_daemon
from weft.api.words import setting_sentences
from weft_server.app import create_app
from weft_server.serving import DirectoryInUseError, UnknownJobsError, serve
from weft_server.settings import Settings
from weft_server.storage.database import DatabaseRefusedError

EXIT_REFUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is told to stop. Returns the exit code."""
    given = _given(arguments)
    try:
        settings = Settings(**given)
    except ValidationError as error:
        for each in setting_sentences(error, given, "WEFT_SERVER_"):
            _complain(each)
        return EXIT_REFUSED
    stop = start_daemon("server", exit_with_parent=settings.exit_with_parent)
    try:
        serve(create_app(settings), settings, stop)
    except (DatabaseRefusedError, UnknownJobsError) as error:
        _complain(str(error))
        return EXIT_REFUSED
    except (OSError, DirectoryInUseError) as error:
        _complain(f"cannot serve on {settings.host}:{settings.port} from {settings.directory}: {error}")
        return EXIT_REFUSED
    return 0


def _given(arguments: Sequence[str] | None) -> dict[str, Any]:
    """What the command line sets; the environment and defaults fill the rest. The token comes from there alone."""
    parser = argparse.ArgumentParser("weft_server", description="The weft server. WEFT_SERVER_* set what is left out.")
    parser.add_argument("--host", help="address to bind to; one that is not loopback needs WEFT_SERVER_TOKEN")
    parser.add_argument("--port", type=int, help="0 for a free one, told in DIRECTORY/server.json")
    parser.add_argument("--directory", type=Path, help="database, jobs' files and server.json")
    parser.add_argument(
        "--data-root", type=Path, action="append", dest="data_roots", help="where data may be read from"
    )
    parser.add_argument("--exit-with-parent", action="store_true", default=None, help="end when standard input closes")
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}


def _complain(message: str) -> None:
    sys.stderr.write(f"weft_server: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
