"""Whom a shard lets in: asked as its guard asks, a key at a time, while the directory of clients changes."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from same_host_children import wait_until
from weft_kvstore.encryption import shard_lock
from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys
from weft_kvstore.encryption.key_files import make_key_files
from weft_kvstore.encryption.pairs import new_keys
from weft_kvstore.encryption.shard_lock import DOMAIN, TOLD_KEYS, ShardLock

SHARD = new_keys()


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    directory = tmp_path / "clients"
    directory.mkdir()
    return directory


def lets_in(lock: ShardLock, keys: CurveKeys) -> bool:
    return lock.callback(DOMAIN, keys.public.encode())


def warnings(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what is in the directory was changed long ago."""
    monkeypatch.setattr(shard_lock, "SETTLED_NS", -(1 << 62))


def test_a_key_counts_from_when_its_file_is_there_to_when_it_is_not(clients: Path) -> None:
    """All within a moment: the file system's clock stands still between some of these."""
    lock = ShardLock(SHARD, clients)
    for number in range(50):
        public, _, keys = make_key_files(clients / str(number))
        assert lets_in(lock, keys)
        public.unlink()
        assert not lets_in(lock, keys)


def test_a_file_that_is_written_anew_in_its_place_counts_as_it_is_now(
    clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory itself does not change by it."""
    settle(monkeypatch)
    public, _, old = make_key_files(clients / "a")
    lock = ShardLock(SHARD, clients)
    assert lets_in(lock, old)
    new = new_keys()
    text = public.read_text().replace(old.public, new.public)

    def is_later() -> bool:
        public.write_text(text)
        return public.stat().st_ctime_ns > clients.stat().st_ctime_ns

    wait_until(is_later)
    assert (lets_in(lock, old), lets_in(lock, new)) == (False, True)


def test_a_file_moved_in_with_an_old_time_counts(clients: Path, tmp_path: Path) -> None:
    lock = ShardLock(SHARD, clients)
    public, _, keys = make_key_files(tmp_path / "a")
    os.utime(public, (1, 1))
    public.rename(clients / "a.key")
    os.utime(clients, (1, 1))
    assert lets_in(lock, keys)


def test_files_are_not_read_again_while_nothing_changes(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read = shard_lock.read_public_keys

    def counted(directory: Path) -> frozenset[str]:
        reads.append(directory)
        return read(directory)

    monkeypatch.setattr(shard_lock, "read_public_keys", counted)
    settle(monkeypatch)
    _, _, keys = make_key_files(clients / "a")
    lock = ShardLock(SHARD, clients)
    assert all(lets_in(lock, keys) for _ in range(10))
    assert len(reads) == 1


@pytest.mark.parametrize("text", ["", "public-key", "public-key = short", "\x00\x01"])
def test_a_broken_file_keeps_what_is_known_and_is_told_once(
    clients: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    _, _, known = make_key_files(clients / "a")
    lock = ShardLock(SHARD, clients)
    (clients / "b.key").write_text(text)
    assert all(lets_in(lock, known) for _ in range(20))
    (told,) = warnings(caplog)
    assert told.startswith(f"keys of clients cannot be read anew: {clients / 'b.key'}")
    (clients / "b.key").unlink()
    _, _, new = make_key_files(clients / "c")
    assert lets_in(lock, new)
    (clients / "b.key").write_text(text)
    assert lets_in(lock, new)
    assert len(warnings(caplog)) == 2, "it has come again"


def test_a_directory_that_is_gone_keeps_what_is_known_until_it_is_there_again(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, known = make_key_files(clients / "a")
    lock = ShardLock(SHARD, clients)
    shutil.rmtree(clients)
    assert lets_in(lock, known)
    assert not lets_in(lock, new_keys())
    assert "cannot be read anew" in warnings(caplog)[0]
    clients.mkdir()
    assert not lets_in(lock, known)


def test_a_key_that_is_not_let_in_is_logged_once_and_all_of_them_only_so_often(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = ShardLock(SHARD, clients)
    stranger = new_keys()
    assert not any(lets_in(lock, stranger) for _ in range(5))
    (told,) = warnings(caplog)
    assert told == f"a client with the CURVE key {stranger.public} is not let in: it is not in {clients}"
    assert not any(lets_in(lock, new_keys()) for _ in range(TOLD_KEYS + 20))
    assert len(warnings(caplog)) == TOLD_KEYS
    assert SHARD.secret not in caplog.text


def test_a_lock_is_not_made_of_what_does_not_fit(clients: Path, tmp_path: Path) -> None:
    with pytest.raises(CurveKeyError, match="another pair"):
        ShardLock(CurveKeys(new_keys().public, SHARD.secret))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ShardLock(SHARD, tmp_path / "nowhere")
    (clients / "a.key").write_text("nonsense")
    with pytest.raises(CurveKeyError, match=r"a\.key: there is no CURVE key in it"):
        ShardLock(SHARD, clients)
