"""What outlives the process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.exc import IntegrityError, OperationalError

from server_specs import plan
from weft.api.event import Event, LogLine, StateChanged
from weft.api.job import Job, Progress
from weft.api.lifecycle import JobState
from weft.api.token import Scope
from weft_server.control.instructions import Append, Remember, Save
from weft_server.storage.database import Base, migrate, open_database
from weft_server.storage.records import KeyReusedError, Records, Submission
from weft_server.users import User

AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(tmp_path / "weft.db")
    yield engine
    engine.dispose()


@pytest.fixture
def records(engine: Engine) -> Records:
    return Records(engine)


def job(identifier: str, state: JobState = JobState.PENDING) -> Job:
    return Job(
        id=identifier, name="linear", state=state, progress=Progress(steps=6), workers=2, shards=1, created_at=AT
    )


def add(records: Records, identifier: str, *, key: str | None = None, digest: str = "d") -> None:
    first = Event(seq=1, at=AT, body=StateChanged(state=JobState.PENDING))
    records.add(Submission(job(identifier), "{}", plan(), first, key, digest))


def log(identifier: str, seq: int) -> Append:
    return Append(identifier, Event(seq=seq, at=AT, body=LogLine(level="info", source="server", message=f"{seq}")))


def test_the_schema_equals_all_migrations(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrations_can_be_applied_again_and_lose_nothing(engine: Engine, records: Records) -> None:
    add(records, "a")
    migrate(engine)
    assert records.job("a") == job("a")


def test_tokens_of_an_earlier_release_stay(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'weft.db'}")
    migrate(engine, "0003")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tokens VALUES ('ci', 'digest', 'runner', 'red', '2030-01-01T00:00:00Z')"))
    migrate(engine)
    assert Records(engine).users() == [("digest", User("ci", Scope.RUNNER, "red"))]
    engine.dispose()


def test_a_migration_that_is_cut_off_changes_nothing_and_is_made_by_the_next_start(tmp_path: Path) -> None:
    """Each of its statements in turn is the one that there is no room for."""
    for done in range(100):
        path, left = tmp_path / f"{done}.db", done
        engine = create_engine(f"sqlite:///{path}")
        migrate(engine, "0002")
        before = inspect(engine).get_table_names()

        def fail(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OperationalError("", {}, Exception("database or disk is full"))

        event.listen(engine, "before_cursor_execute", fail)
        try:
            migrate(engine)
        except OperationalError:
            event.remove(engine, "before_cursor_execute", fail)
            assert inspect(engine).get_table_names() == before
            migrate(engine)
            assert Records(engine).users() == []
        else:
            break
        finally:
            engine.dispose()
    assert done > 10


def test_the_comparison_of_schemas_sees_a_difference(engine: Engine) -> None:
    """The test above would fail if a migration were lacking."""
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN colour TEXT"))
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) != []
    assert "colour" in {column["name"] for column in inspect(engine).get_columns("jobs")}


def test_the_database_logs_ahead_and_holds_its_foreign_keys(engine: Engine, records: Records) -> None:
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    with pytest.raises(IntegrityError):
        records.carry_out([log("nobody", 1)])


def test_instructions_are_carried_out_whole_or_not_at_all(records: Records) -> None:
    add(records, "a")
    running = job("a", JobState.RUNNING)
    with pytest.raises(IntegrityError):
        records.carry_out([log("a", 2), Save(running), log("nobody", 1)])
    assert records.job("a") == job("a")
    assert len(records.events("a", 0, 10)) == 1
    records.carry_out([log("a", 2), Save(running), log("a", 3)])
    assert records.job("a") == running
    assert [each.seq for each in records.events("a", 1, 10)] == [2, 3]


def test_instructions_that_come_a_second_time_change_nothing(records: Records) -> None:
    """A commit may be answered by an error and have succeeded."""
    add(records, "a")
    running = job("a", JobState.RUNNING)
    for _ in range(2):
        records.carry_out([log("a", 2), Save(running)])
    assert records.job("a") == running
    assert [each.seq for each in records.events("a", 0, 10)] == [1, 2]


def test_a_key_finds_its_job_and_refuses_another_body(records: Records) -> None:
    add(records, "a", key="k", digest="one")
    assert records.submitted("default", "k", "one") == job("a")
    assert records.submitted("default", "other", "one") is None
    assert records.submitted("other", "k", "one") is None
    with pytest.raises(KeyReusedError):
        records.submitted("default", "k", "two")
    with pytest.raises(IntegrityError):
        add(records, "b", key="k", digest="one")
    assert records.job("b") is None


def test_what_has_not_ended_is_found_again_with_its_plan(records: Records) -> None:
    for identifier, state in (("a", JobState.SUCCEEDED), ("b", JobState.RUNNING), ("c", JobState.PENDING)):
        add(records, identifier)
        records.carry_out([log(identifier, 2), Save(job(identifier, state))])
    kept = records.unfinished()
    assert [(each.job.id, each.events, each.plan) for each in kept] == [("b", 2, plan()), ("c", 2, plan())]


def test_programs_are_read_alone_also_those_of_releases_that_kept_them_as_an_object(
    engine: Engine, records: Records
) -> None:
    add(records, "new")
    add(records, "old")
    whole = plan().programs_json
    as_object = text("UPDATE plans SET plan = json_set(plan, '$.programs', json(:it), '$.programs_json', NULL)")
    with engine.begin() as connection:
        connection.execute(text(f"{as_object} WHERE job = 'old'"), {"it": whole})
    assert records.programs("new") == whole
    assert json.loads(records.programs("old") or "") == json.loads(whole)
    assert records.programs("none") is None


def test_a_metric_that_is_not_finite_is_kept(records: Records) -> None:
    add(records, "a")
    records.carry_out([Save(job("a").model_copy(update={"metrics": {"train/loss": float("inf")}}))])
    found = records.job("a")
    assert found is not None
    assert found.metrics == {"train/loss": float("inf")}


def test_many_parts_and_events_go_in_a_few_statements(engine: Engine, records: Records) -> None:
    add(records, "a")
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *about: said.append(about[2]))
    parts = [f"sum/train/{step}/0" for step in range(2000)]
    records.carry_out([Remember("a", dict.fromkeys(parts, "{}")), *(log("a", seq) for seq in range(2, 2002))])
    records.carry_out([Remember("a", dict.fromkeys(parts[1:]))])
    assert len(said) < 20
    with engine.connect() as connection:
        assert connection.execute(text("SELECT part FROM parts")).scalars().all() == parts[:1]
    assert len(records.events("a", 0, 5000)) == 2001
