"""What has to be true of a server's directory before it works there: its database opens, and knows every result."""

from __future__ import annotations

from pathlib import Path

from weft_server.storage.database import open_database
from weft_server.storage.job_files import JobFiles
from weft_server.storage.records import Records


class UnknownResultsError(Exception):
    """There are final parameters of jobs that the database does not know: it was emptied, lost or replaced."""


def check_directory(directory: Path) -> None:
    """Raises DatabaseRefusedError or UnknownResultsError. Blocks; nothing that is there is changed but the schema."""
    engine = open_database(directory / "weft.db")
    try:
        files, records = JobFiles(directory), Records(engine)
        results = files.results()
        unknown = sorted(set(results) - records.states(results).keys())
    finally:
        engine.dispose()
    if unknown:
        more = f" (and {len(unknown) - 1} more folders beside it)" if len(unknown) > 1 else ""
        raise UnknownResultsError(
            f"{directory / 'jobs' / unknown[0]}{more} holds final parameters of a job that {directory / 'weft.db'} "
            "does not know: put the database back that belongs to it, or move the folder away"
        )
