"""Opens the SQLite database: write-ahead log, foreign keys, and every migration that is lacking."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DatabaseError

BUSY_TIMEOUT_MS = 10_000
"""How long a statement waits for a lock; only somebody else's tool on the same file ever holds one that long."""


class DatabaseRefusedError(Exception):
    """The file is no database of weft's, or one of a newer weft."""


def open_database(path: Path) -> Engine:
    """The engine, with the newest schema. The file is made where there is none. Raises DatabaseRefusedError."""
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", _set_up)
    try:
        migrate(engine)
    except CommandError as error:
        # A revision that no migration of ours has.
        engine.dispose()
        raise DatabaseRefusedError(f"{path} was made by a newer weft: {error}") from error
    except DatabaseError as error:
        engine.dispose()
        raise DatabaseRefusedError(f"{path} cannot be opened as weft's database: {error.orig}") from error
    except BaseException:
        engine.dispose()
        raise
    return engine


def migrate(engine: Engine, revision: str = "head") -> None:
    """Brings the schema up to `revision`."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("weft_server") / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _set_up(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # Agents act on what was committed: it has to be there after a power cut too.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()
