"""The SQLite database: its tables, and how it is opened. A change of a table needs a migration in `migrations`."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import JSON, Engine, ForeignKey, Index, Integer, MetaData, String, Text, create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from weft.agent.machine import full_disk

BUSY_TIMEOUT_MS = 10_000
"""How long a statement waits for a lock; only somebody else's tool on the same file ever holds one that long."""


class DatabaseRefusedError(Exception):
    """The file is no database of weft's, or one of a newer weft."""


def open_database(path: Path) -> Engine:
    """The engine, with the newest schema. The file is made where there is none. Raises DatabaseRefusedError.

    Later connections make none: one that was deleted meanwhile would seem to be empty.
    """
    mode = "rwc"

    def connected() -> sqlite3.Connection:
        return connect(path, mode)

    engine = create_engine(f"sqlite:///{path}", creator=connected)
    event.listen(engine, "connect", _set_up)
    try:
        migrate(engine)
    except CommandError as error:
        # A revision that no migration of ours has.
        engine.dispose()
        raise DatabaseRefusedError(f"{path} was made by a newer weft: {error}") from error
    except DatabaseError as error:
        engine.dispose()
        full = full_disk(path.parent)
        told = f"{path} cannot be opened as weft's database: {error.orig}"
        raise DatabaseRefusedError(told if full is None else f"{told}; {full}") from error
    except BaseException:
        engine.dispose()
        raise
    mode = "rw"
    return engine


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """A connection that any thread may use. `mode`: `rwc` makes the file where there is none."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True, check_same_thread=False)


def migrate(engine: Engine, revision: str = "head") -> None:
    """Brings the schema up to `revision`, or changes nothing: a process that ends in the middle leaves the old one."""
    config = Config()
    config.set_main_option("script_location", str(resources.files("weft_server.storage") / "migrations"))
    with engine.begin() as connection:
        # Python's driver begins no transaction for statements that change tables; each would be committed by itself.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        level, driver.isolation_level = driver.isolation_level, None
        try:
            driver.execute("BEGIN IMMEDIATE")
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
        finally:
            driver.isolation_level = level


def _set_up(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # Agents act on what was committed: it has to be there after a power cut too.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()


NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)


class JobRow(Base):
    """A job as it is told. `number` counts submissions; it is the cursor of a listing."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_state_number", "state", "number"),
        Index("ix_jobs_project_number", "project", "number"),
    )

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    """JSON form of `weft.api.job.Job`."""
    events: Mapped[int] = mapped_column(Integer)
    """The newest event's number."""
    project: Mapped[str] = mapped_column(String(128), server_default="default")


class PlanRow(Base):
    """What a job was submitted as and what is run; apart from `jobs`, since it is large and rarely read."""

    __tablename__ = "plans"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    spec: Mapped[str] = mapped_column(Text)
    """JSON form of `weft.api.job.JobSpec`."""
    plan: Mapped[str] = mapped_column(Text)
    """JSON form of `weft_server.planning.plan.JobPlan`."""


class EventRow(Base):
    """An entry of a job's log; rows are only ever added."""

    __tablename__ = "events"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    document: Mapped[str] = mapped_column(Text)
    """JSON form of `weft.api.event.Event`."""


class SubmissionRow(Base):
    """An idempotency key of a project and what was submitted under it."""

    __tablename__ = "submissions"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the body, hexadecimal."""
    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"))


class TokenRow(Base):
    """A user's token; its secret is in no table."""

    __tablename__ = "tokens"

    project: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the secret, hexadecimal."""
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[str] = mapped_column(String(40))


class RemovedTokenRow(Base):
    """A secret that opens nothing any more, and is not made again by a repeated call."""

    __tablename__ = "removed_tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the secret, hexadecimal."""


class PartRow(Base):
    """What is remembered of a job that has not ended; see `weft_server.control.memory`."""

    __tablename__ = "parts"

    job: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    part: Mapped[str] = mapped_column(String(128), primary_key=True)
    document: Mapped[str] = mapped_column(Text)


class AgentRow(Base):
    """A registered agent."""

    __tablename__ = "agents"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    """JSON form of `weft_server.control.memory.AgentMemory`."""


class StartRow(Base):
    """A start of a server on these records. Numbers that have to grow over all of them are counted from it."""

    __tablename__ = "starts"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    at: Mapped[str] = mapped_column(String(40))
