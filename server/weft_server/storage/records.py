"""What outlives the server's process: jobs, their plans and events. Every query is in this file.

Methods block and may be called from any thread; writes are to come from one thread, in order.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, cast

from sqlalchemy import Engine, Table, bindparam, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import Session

from weft.agent.private import make_directory
from weft.api.event import Event
from weft.api.job import Job, JobPage
from weft.api.lifecycle import JobState
from weft.api.token import ALL_PROJECTS, Scope, TokenInfo
from weft_server.control.instructions import Append, Instruction, Remember, RememberAgent, Replan, Save
from weft_server.control.memory import AgentMemory, KeptJob
from weft_server.planning.plan import JobPlan
from weft_server.storage.database import (
    AgentRow,
    EventRow,
    JobRow,
    PartRow,
    PlanRow,
    RemovedTokenRow,
    StartRow,
    SubmissionRow,
    TokenRow,
    connect,
)
from weft_server.users import User


class KeyReusedError(Exception):
    """An idempotency key came again with another body."""


class TokenRemovedError(Exception):
    """A token's secret is one that was removed."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is kept of a new job. `key` is the idempotency key, `digest` that of the body."""

    job: Job
    spec: str
    plan: JobPlan
    first: Event
    key: str | None
    digest: str


# Made once: making a statement takes longer than SQLite's work for a row.
_ADD_EVENTS: Final = insert(EventRow).on_conflict_do_nothing()
_PUT_PARTS: Final = insert(PartRow).on_conflict_do_update(
    index_elements=["job", "part"], set_={"document": insert(PartRow).excluded.document}
)
_PARTS: Final = cast(Table, PartRow.__table__)
_DROP_PARTS: Final = _PARTS.delete().where(_PARTS.c.job == bindparam("of_job"), _PARTS.c.part == bindparam("of_part"))


class Records:
    """The records in one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._path = Path(engine.url.database or "")
        self._file = _identity(self._path)
        self._held: tuple[int, sqlite3.Connection] | None = None
        """The file, and what can be read of it also where it was deleted."""

    @property
    def is_moved(self) -> bool:
        """Whether the database's path leads to another file than the one that was opened, or to none."""
        return _identity(self._path) != self._file

    @property
    def is_deleted(self) -> bool:
        """Whether the file that is held has no name any more. Does not block."""
        return self._held is not None and not os.fstat(self._held[0]).st_nlink

    def hold(self) -> None:
        """From now on what is deleted can be put back. To be released."""
        # O_PATH: closing another descriptor of the file would drop SQLite's locks on it.
        held = connect(self._path)
        held.execute("SELECT count(*) FROM sqlite_master").fetchone()  # it opens the files now
        self._held = os.open(self._path, os.O_PATH), held

    def release(self) -> None:
        """Idempotent."""
        if self._held is not None:
            os.close(self._held[0])
            self._held[1].close()
            self._held = None

    def put_back(self) -> bool:
        """Writes the database again that was deleted, with its folder say, unless there is another one in its place.

        Whether it was written. Raises OSError.
        """
        if self._held is None or not self.is_deleted or self._path.exists():
            return False
        make_directory(self._path.parent)
        again = self._path.with_suffix(".again")
        again.unlink(missing_ok=True)
        try:
            with closing(connect(again, "rwc")) as copy:
                self._held[1].backup(copy)
        except sqlite3.Error as error:
            raise OSError(str(error)) from error
        for left in ("-wal", "-shm"):  # of the one that was deleted: they would be read as the new one's
            self._path.with_name(f"{self._path.name}{left}").unlink(missing_ok=True)
        again.replace(self._path)
        self._engine.dispose()
        self.release()
        self.hold()
        self._file = _identity(self._path)
        return True

    def submitted(self, project: str, key: str, digest: str) -> Job | None:
        """The project's job submitted under that key. Raises KeyReusedError where the body was another."""
        with Session(self._engine) as session:
            found = session.get(SubmissionRow, (project, key))
            if found is None:
                return None
            if found.digest != digest:
                raise KeyReusedError(key)
            return _job(session.scalars(select(JobRow).where(JobRow.id == found.job)).one())

    def add(self, submission: Submission) -> None:
        """Keeps a new job with its first event. Raises IntegrityError when its key was taken meanwhile."""
        job = submission.job
        with Session(self._engine) as session, session.begin():
            document = job.model_dump(mode="json")
            row = JobRow(id=job.id, state=job.state.value, document=document, events=1, project=job.project)
            session.add(row)
            session.flush()
            session.add(PlanRow(job=job.id, spec=submission.spec, plan=submission.plan.model_dump_json()))
            session.add(EventRow(job=job.id, seq=1, document=submission.first.model_dump_json()))
            if submission.key is not None:
                made = SubmissionRow(project=job.project, key=submission.key, digest=submission.digest, job=job.id)
                session.add(made)

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Appends and saves what the instructions say, all of it or nothing. Doing so again changes nothing."""
        appended = [each for each in instructions if isinstance(each, Append)]
        saved = {each.job.id: each.job for each in instructions if isinstance(each, Save)}
        newest = {each.job: each.event.seq for each in appended}
        rows = [{"job": each.job, "seq": each.event.seq, "document": each.event.model_dump_json()} for each in appended]
        with Session(self._engine) as session, session.begin():
            if rows:
                # A commit may have succeeded although it was answered by an error.
                session.execute(_ADD_EVENTS, rows)
            for job in saved.values():
                values = {"state": job.state.value, "document": job.model_dump(mode="json")}
                session.execute(update(JobRow).where(JobRow.id == job.id).values(**values))
            for job_id, seq in newest.items():
                session.execute(update(JobRow).where(JobRow.id == job_id).values(events=seq))
            for each in instructions:
                if isinstance(each, Replan):
                    values = {"spec": each.spec, "plan": each.plan.model_dump_json()}
                    session.execute(update(PlanRow).where(PlanRow.job == each.job).values(**values))
            _remember(session, instructions)
            ended = [job.id for job in saved.values() if job.state.is_terminal]
            if ended:
                session.execute(delete(PartRow).where(PartRow.job.in_(ended)))

    def begin(self, at: datetime) -> int:
        """A server starts on these records: how many have, this one included."""
        with Session(self._engine) as session, session.begin():
            row = StartRow(at=at.isoformat())
            session.add(row)
            session.flush()
            return row.number

    def agents(self) -> list[AgentMemory]:
        """Registered agents, in the order of their registration."""
        with Session(self._engine) as session:
            found = [AgentMemory.model_validate_json(each) for each in session.scalars(select(AgentRow.document))]
        return sorted(found, key=lambda agent: agent.number)

    def job(self, job: str) -> Job | None:
        with Session(self._engine) as session:
            found = session.scalars(select(JobRow).where(JobRow.id == job)).one_or_none()
            return None if found is None else _job(found)

    def jobs(self, limit: int, before: int | None, states: Sequence[JobState], project: str = ALL_PROJECTS) -> JobPage:
        """Jobs newest first, those numbered below `before`; of the states given, or of all where none is."""
        query = select(JobRow).order_by(JobRow.number.desc()).limit(limit + 1)
        if before is not None:
            query = query.where(JobRow.number < before)
        if states:
            query = query.where(JobRow.state.in_([state.value for state in states]))
        if project != ALL_PROJECTS:
            query = query.where(JobRow.project == project)
        with Session(self._engine) as session:
            rows = session.scalars(query).all()
        shown = rows[:limit]
        return JobPage(jobs=[_job(row) for row in shown], next=str(shown[-1].number) if len(rows) > limit else None)

    def events(self, job: str, after: int, limit: int) -> list[Event]:
        """Entries of a job's log with numbers above `after`, in order."""
        query = select(EventRow.document).where(EventRow.job == job, EventRow.seq > after)
        with Session(self._engine) as session:
            found = session.scalars(query.order_by(EventRow.seq).limit(limit)).all()
        return [Event.model_validate_json(document) for document in found]

    def newest(self, job: str) -> int:
        """The number of the last entry of a job's log."""
        with Session(self._engine) as session:
            return session.scalars(select(JobRow.events).where(JobRow.id == job)).one()

    def plan(self, job: str) -> JobPlan | None:
        with Session(self._engine) as session:
            found = session.get(PlanRow, job)
            return None if found is None else JobPlan.model_validate_json(found.plan)

    def programs(self, job: str) -> str | None:
        """The programs of the job's plan, as JSON. SQLite reads them, not Python: they may be large."""
        text = func.json_extract(PlanRow.plan, "$.programs_json")
        earlier = func.json_extract(PlanRow.plan, "$.programs")
        with Session(self._engine) as session:
            return session.scalars(select(func.coalesce(text, earlier)).where(PlanRow.job == job)).one_or_none()

    def spec(self, job: str) -> str | None:
        """What was submitted, as JSON; None where there is no such job."""
        with Session(self._engine) as session:
            found = session.get(PlanRow, job)
            return None if found is None else found.spec

    def unfinished(self) -> list[KeptJob]:
        """Jobs that have not ended, oldest first, with what is remembered of them."""
        ended = [state.value for state in JobState if state.is_terminal]
        query = (
            select(JobRow, PlanRow.plan)
            .join(PlanRow, PlanRow.job == JobRow.id)
            .where(JobRow.state.not_in(ended))
            .order_by(JobRow.number)
        )
        with Session(self._engine) as session:
            return [
                KeptJob(_job(row), JobPlan.model_validate_json(plan), row.events, _parts(session, row.id))
                for row, plan in session.execute(query)
            ]

    def ended(self) -> list[Job]:
        """Jobs that have ended, those first that ended first."""
        states = [state.value for state in JobState if state.is_terminal]
        with Session(self._engine) as session:
            found = [_job(row) for row in session.scalars(select(JobRow).where(JobRow.state.in_(states)))]
        return sorted(found, key=lambda job: job.ended_at or job.created_at)

    def remove(self, job: str) -> None:
        """Deletes all that there is of a job. Idempotent."""
        with Session(self._engine) as session, session.begin():
            for table in (EventRow, PlanRow, SubmissionRow, PartRow):
                session.execute(delete(table).where(table.job == job))
            session.execute(delete(JobRow).where(JobRow.id == job))

    def projects(self, jobs: Sequence[str]) -> dict[str, str]:
        """The projects of those of these jobs that there are."""
        with Session(self._engine) as session:
            found = session.execute(select(JobRow.id, JobRow.project).where(JobRow.id.in_(jobs)))
            return {row.id: row.project for row in found}

    def tokens(self) -> list[TokenInfo]:
        """Users' tokens, by name."""
        with Session(self._engine) as session:
            rows = session.scalars(select(TokenRow).order_by(TokenRow.name, TokenRow.project)).all()
        kept = ("name", "scope", "project", "created_at")
        return [TokenInfo.model_validate({name: getattr(row, name) for name in kept}) for row in rows]

    def users(self) -> list[tuple[str, User]]:
        """Users by the hashes of their tokens."""
        with Session(self._engine) as session:
            rows = session.scalars(select(TokenRow)).all()
        return [(row.digest, User(row.name, Scope(row.scope), row.project)) for row in rows]

    def add_token(self, token: TokenInfo, digest: str) -> list[tuple[str, User]]:
        """Keeps a token; all users then. Raises IntegrityError where its project has one of that name, and
        TokenRemovedError for a secret that was removed."""
        document = token.model_dump(mode="json")
        with Session(self._engine) as session, session.begin():
            if session.get(RemovedTokenRow, digest) is not None:
                raise TokenRemovedError
            session.add(TokenRow(digest=digest, **document))
        return self.users()

    def remove_token(self, project: str, name: str) -> list[tuple[str, User]]:
        """Deletes a token, whose secret stays removed; all users then. Idempotent."""
        with Session(self._engine) as session, session.begin():
            found = session.get(TokenRow, (project, name))
            if found is not None:
                session.add(RemovedTokenRow(digest=found.digest))
                session.delete(found)
        return self.users()

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """The states of those of these jobs that there are."""
        with Session(self._engine) as session:
            found = session.execute(select(JobRow.id, JobRow.state).where(JobRow.id.in_(jobs)))
            return {job: JobState(state) for job, state in found}

    def count(self) -> int:
        """How many jobs there are; a readiness probe asks it."""
        with Session(self._engine) as session:
            return session.scalars(select(func.count()).select_from(JobRow)).one()


def _identity(path: Path) -> tuple[int, int] | None:
    """(device, inode) of the database's file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _job(row: JobRow) -> Job:
    return Job.model_validate(row.document)


def _remember(session: Session, instructions: Sequence[Instruction]) -> None:
    """Writes what is to be remembered; of what changed more than once, the newest."""
    agents = {each.agent: each.document for each in instructions if isinstance(each, RememberAgent)}
    parts = {
        (each.job, part): document
        for each in instructions
        if isinstance(each, Remember)
        for part, document in each.parts.items()
    }
    for agent, document in agents.items():
        if document is None:
            session.execute(delete(AgentRow).where(AgentRow.id == agent))
        else:
            session.merge(AgentRow(id=agent, document=document))
    written = [{"job": job, "part": part, "document": text} for (job, part), text in parts.items() if text is not None]
    if written:
        session.execute(_PUT_PARTS, written)
    dropped: list[dict[str, str]] = []
    for (job, part), text in parts.items():
        if text is None:
            dropped.append({"of_job": job, "of_part": part})
    if dropped:
        session.connection().execute(_DROP_PARTS, dropped)


def _parts(session: Session, job: str) -> dict[str, str]:
    found = session.execute(select(PartRow.part, PartRow.document).where(PartRow.job == job))
    return {row.part: row.document for row in found}
