"""Which clients a shard accepts, a key at a time, while the directory of clients changes."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from weft_kvstore import encryption
from weft_kvstore.description.check import CurveKeyError
from weft_kvstore.encryption import (
    DOMAIN,
    MAX_LOGGED_KEYS,
    CurveAuthenticator,
    CurveKeys,
    make_key_files,
    new_curve_keys,
)

SHARD = new_curve_keys()


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    directory = tmp_path / "clients"
    directory.mkdir()
    return directory


def lets_in(authenticator: CurveAuthenticator, keys: CurveKeys) -> bool:
    return authenticator.callback(DOMAIN, keys.public.encode())


def warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_key_counts_from_when_its_file_is_there_to_when_it_is_not(clients: Path) -> None:
    """All within a moment: the file system's clock stands still between some of these."""
    authenticator = CurveAuthenticator(SHARD, clients)
    for number in range(50):
        public, _, keys = make_key_files(clients / str(number))
        assert lets_in(authenticator, keys)
        public.unlink()
        assert not lets_in(authenticator, keys)


def test_a_file_that_is_written_anew_in_its_place_counts_as_it_is_now(clients: Path) -> None:
    public, _, old = make_key_files(clients / "a")
    authenticator = CurveAuthenticator(SHARD, clients)
    assert lets_in(authenticator, old)
    new = new_curve_keys()
    public.write_text(public.read_text().replace(old.public, new.public))
    assert (lets_in(authenticator, old), lets_in(authenticator, new)) == (False, True)


@pytest.mark.parametrize("text", ["", "public-key", "public-key = short", "\x00\x01"])
def test_a_broken_file_costs_itself_alone_and_is_told_once(
    clients: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    _, _, known = make_key_files(clients / "a")
    authenticator = CurveAuthenticator(SHARD, clients)
    (clients / "b.key").write_text(text)
    assert all(lets_in(authenticator, known) for _ in range(20))
    (told,) = warnings(caplog)
    assert told.startswith(f"a file of client keys is skipped: {clients / 'b.key'}")
    caplog.clear()
    _, _, other = make_key_files(clients / "d")
    assert lets_in(authenticator, other)
    (clients / "d.key").unlink()
    assert not lets_in(authenticator, other)
    caplog.clear()
    (clients / "b.key").unlink()
    _, _, new = make_key_files(clients / "c")
    assert lets_in(authenticator, new)
    (clients / "b.key").write_text(text)
    assert lets_in(authenticator, new)
    assert len(warnings(caplog)) == 1, "it has come again"


def test_a_directory_that_is_gone_lets_nobody_in_until_it_is_there_again(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, known = make_key_files(clients / "a")
    kept = (clients / "a.key").read_text()
    authenticator = CurveAuthenticator(SHARD, clients)
    shutil.rmtree(clients)
    assert not any(lets_in(authenticator, keys) for keys in (known, known, new_curve_keys()))
    assert [told for told in warnings(caplog) if "No such file" in told and str(clients) in told] == warnings(caplog)[
        :1
    ]
    clients.mkdir()
    (clients / "a.key").write_text(kept)
    assert lets_in(authenticator, known)


def test_what_is_no_small_file_holds_nobody_up(clients: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe that nobody writes to, a directory, a file that is large, links that lead in a circle or nowhere."""
    _, _, known = make_key_files(clients / "known")
    authenticator = CurveAuthenticator(SHARD, clients)
    os.mkfifo(clients / "pipe.key")
    (clients / "directory.key").mkdir()
    with (clients / "large.key").open("wb") as file:
        file.truncate(1 << 33)
    (clients / "circle.key").symlink_to(clients / "circle.key")
    (clients / "nowhere.key").symlink_to(clients / "none")
    assert lets_in(authenticator, known)
    assert not lets_in(authenticator, new_curve_keys())
    told = "\n".join(warnings(caplog))
    assert all(f"{name}.key" in told for name in ("pipe", "directory", "large", "circle"))
    with pytest.raises((CurveKeyError, OSError), match=r"circle|directory|large|pipe"):
        CurveAuthenticator(SHARD, clients)


def test_where_a_link_leads_counts(clients: Path, tmp_path: Path) -> None:
    """As Kubernetes mounts a secret: what changes is a link to a directory beside the files."""
    authenticator = CurveAuthenticator(SHARD, clients)
    found = []
    for number in ("one", "two"):
        (tmp_path / number).mkdir()
        found.append(make_key_files(tmp_path / number / "a")[2])
    (clients / "..data").symlink_to(tmp_path / "one")
    (clients / "a.key").symlink_to(Path("..data") / "a.key")
    assert lets_in(authenticator, found[0])
    (tmp_path / "next").symlink_to(tmp_path / "two")
    (tmp_path / "next").rename(clients / "..data")
    assert (lets_in(authenticator, found[0]), lets_in(authenticator, found[1])) == (False, True)


def test_the_guards_thread_goes_on_whatever_fails(
    clients: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, known = make_key_files(clients / "a")
    authenticator = CurveAuthenticator(SHARD, clients)

    def fails(_: Path) -> None:
        raise MemoryError("none is left")

    with monkeypatch.context() as patch:
        patch.setattr(encryption, "read_public_key", fails)
        assert not lets_in(authenticator, known)
    assert "none is left" in caplog.text
    assert lets_in(authenticator, known)


def test_a_key_that_is_not_let_in_is_logged_once_and_all_of_them_only_so_often(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authenticator = CurveAuthenticator(SHARD, clients)
    stranger = new_curve_keys()
    assert not any(lets_in(authenticator, stranger) for _ in range(5))
    (told,) = warnings(caplog)
    assert told == f"a client with the CURVE key {stranger.public} is rejected: no NAME.key in {clients} has it"
    assert not any(lets_in(authenticator, new_curve_keys()) for _ in range(MAX_LOGGED_KEYS + 20))
    assert len(warnings(caplog)) == MAX_LOGGED_KEYS + 1
    assert warnings(caplog)[-1] == f"further rejected keys are not logged: there were {MAX_LOGGED_KEYS}"
    assert SHARD.secret not in caplog.text


def test_a_lock_is_not_made_of_what_does_not_fit(clients: Path, tmp_path: Path) -> None:
    with pytest.raises(CurveKeyError, match="does not belong"):
        CurveAuthenticator(CurveKeys(new_curve_keys().public, SHARD.secret))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CurveAuthenticator(SHARD, tmp_path / "nowhere")
    (clients / "a.key").write_text("nonsense")
    with pytest.raises(CurveKeyError, match=r"a\.key: it has no CURVE key"):
        CurveAuthenticator(SHARD, clients)
