"""The store's page is what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import weft_kvstore
from weft_kvstore import DescriptionForm, Key, KVStore, read_description
from weft_kvstore.description.form import SLICE_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "kvstore.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(found)


def test_the_program_of_one_process_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("python"), {"__name__": "__main__"})
    assert float(capsys.readouterr().out) < 0.04


def test_the_file_is_a_description_and_the_workers_program_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    ("head", "form"),
    [
        ("| Field | If left out | |\n|---|---|---|\n| `keys`", DescriptionForm),
        ("| Field | If left out | |\n|---|---|---|\n| `key`", Key),
    ],
)
def test_every_field_is_on_the_page(head: str, form: Any) -> None:
    told = set(re.findall(r"`(\w+)`", " ".join(rows(head))))
    assert told - {"key"} == {field.name for field in msgspec.structs.fields(form)}
    assert f"| {SLICE_BYTES} |" in PAGE


def test_every_call_is_on_the_page() -> None:
    public = {name for name in vars(KVStore) if not name.startswith("_")}
    assert {name for name in public if f"`{name}" not in PAGE and f".{name}(" not in PAGE} == set()
    called = set(re.findall(r"`(\w+)\(", " ".join(rows("| Call |")))) | {"set_rows"}
    assert called <= public


def test_every_error_is_on_the_page() -> None:
    told = set(re.findall(r"`(\w+Error)`", " ".join(rows("| Error |")))) | {"StoreError"}
    assert told == {name for name in weft_kvstore.__all__ if name.endswith("Error")}
