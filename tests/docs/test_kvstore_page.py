"""The store's page is what the code says."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from inspect import signature
from pathlib import Path

import pytest

import weft_kvstore
from weft_graph.rules.schedule import _READERS as READERS
from weft_graph.rules.schedule import value_at
from weft_kvstore import (
    AverageDescription,
    ClientStatistics,
    CommitDescription,
    Key,
    KVStore,
    LinkSettings,
    LinkStatistics,
    describe,
    read_description,
)
from weft_kvstore.description.form import SLICE_BYTES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, OPTIONS = (DOCS / "kvstore.md").read_text(), (DOCS / "training-options.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


def block(kind: str) -> str:
    (found,) = blocks(kind)
    return found


def test_the_programs_of_one_process_print_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = blocks("python")
    names = {"__name__": "__main__"}  # The later ones use what the first has imported.
    exec(first, names)
    assert float(capsys.readouterr().out) < 0.04
    assert len(others) == 3
    for other in others:
        exec(other, names)
        (told,) = re.findall(r"print\(.*\)  # (.*)", other)
        assert capsys.readouterr().out.strip() == told


def test_the_file_is_a_description_and_the_workers_program_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.toml"
    path.write_text(block("toml").replace("slots = 2", "slots = 1"))
    assert [key.key for key in read_description(path).keys] == ["weight", "bias", "#barrier"]

    def local(description: str, slot: int) -> KVStore:
        assert (description, slot) == ("store.toml", 0)
        return KVStore.local(path)

    monkeypatch.setattr(KVStore, "connect", local)
    monkeypatch.setattr("sys.argv", ["worker.py", "0"])
    exec(block("py"), {"__name__": "__main__"})
    assert re.fullmatch(r"slot 0: 100 steps, weights of deviation 0\.\d{4}\n", capsys.readouterr().out)


def rows(head: str) -> list[str]:
    """The first cells of the table whose first line begins so."""
    table = PAGE[PAGE.index(head) :].split("\n\n")[0]
    return [line.split("|")[1] for line in table.splitlines()[2:]]


def test_every_error_that_can_be_caught_is_on_the_page() -> None:
    public = [getattr(weft_kvstore, name) for name in weft_kvstore.__all__]
    errors = {one.__name__ for one in public if isinstance(one, type) and issubclass(one, Exception)}
    told = [re.findall(r"`(\w+)`", row)[0] for row in rows("| Error |")]
    assert sorted(told) == sorted(errors - {"StoreError"})


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("| Field | If left out | |\n|---|---|---|\n| `keys`", {*signature(describe).parameters}),
        ("| Field | If left out | |\n|---|---|---|\n| `key`", {*Key.__dataclass_fields__} - {"_"}),
    ],
)
def test_every_field_is_on_the_page(head: str, names: set[str]) -> None:
    told = set(re.findall(r"`(\w+)`", " ".join(rows(head))))
    assert told - {"key"} == names
    assert f"| {SLICE_BYTES} |" in PAGE


def named(head: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", " ".join(rows(head))))


def test_every_field_of_what_a_field_may_be_is_on_the_page() -> None:
    assert named("| Field | If left out | |\n|---|---|---|\n| `clip_norm`") == set(CommitDescription.__struct_fields__)
    assert named("| Field | If left out | |\n|---|---|---|\n| `decay`") == set(AverageDescription.__struct_fields__)


def test_every_argument_of_a_connection_is_on_the_page() -> None:
    known = {*signature(KVStore.connect).parameters, *signature(KVStore.local).parameters}
    assert named("| Argument | If left out | |\n|---|---|---|\n| `wait_s`") == known - {"description", "slot"}
    settings = {field.name for field in dataclasses.fields(LinkSettings)}
    assert named("| Field | If left out | |\n|---|---|---|\n| `silence_s`") == settings
    defaults = LinkSettings()
    assert (defaults.silence_s, defaults.ping_interval_s, defaults.request_timeout_s) == (5, 1, 60)


def test_every_field_of_the_statistics_is_on_the_page() -> None:
    client = named("| Field | |\n|---|---|\n| `bytes_sent`")
    assert client == {field.name for field in dataclasses.fields(ClientStatistics)}
    link = named("| Field | |\n|---|---|\n| `payload_bytes_sent`")
    assert link | (client - {"operations", "rows_pushed", "rows_pulled", "links"}) == {
        field.name for field in dataclasses.fields(LinkStatistics)
    }


def test_every_schedule_and_its_fields_are_on_the_page_it_leads_to() -> None:
    assert "(training-options.md#schedules)" in PAGE
    assert "\n## Schedules\n" in OPTIONS
    table = OPTIONS[OPTIONS.index("| `schedule` |") :].split("\n\n")[0].splitlines()[2:]
    told = {row.split("|")[1].strip(" `"): re.findall(r"`(\w+)`", row.split("|")[2]) for row in table}
    assert {name: set(fields) for name, fields in told.items()} == {
        name: {*required, *optional} for name, (required, optional, _) in READERS.items()
    }
    (document,) = re.findall(r"```toml\n(hyper .*?)```", OPTIONS, flags=re.DOTALL)
    assert value_at(tomllib.loads(document)["hyper"]["lr"], 50) == 0.001


def test_every_call_is_on_the_page() -> None:
    public = {name for name in dir(KVStore) if not name.startswith("_")}
    assert {name for name in public if f"`{name}" not in PAGE and f".{name}(" not in PAGE} == set()
    called = set(re.findall(r"`(\w+)\(", " ".join(rows("| Call |")))) | {"set_rows"}
    assert called <= public


def test_every_error_is_on_the_page() -> None:
    told = set(re.findall(r"`(\w+Error)`", " ".join(rows("| Error |")))) | {"StoreError"}
    assert told == {name for name in weft_kvstore.__all__ if name.endswith("Error")}
