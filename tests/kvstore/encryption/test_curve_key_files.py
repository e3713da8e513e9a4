"""CURVE keys in files: who may read them, what is not written over, and what is no such file."""

from __future__ import annotations

import os
import re
import stat
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq.auth

from weft_kvstore.description.check import CurveKeyError
from weft_kvstore.encryption import (
    make_key_files,
    new_curve_keys,
    public_keys_in,
    read_curve_keys,
    read_public_key,
)


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secret_file(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
def test_the_secret_file_is_its_owners_alone_whatever_the_umask(
    tmp_path: Path, umask: Callable[[int], int], mask: int
) -> None:
    umask(mask)
    public, secret, keys = make_key_files(tmp_path / "shard-0")
    assert (public.name, secret.name) == ("shard-0.key", "shard-0.key_secret")
    assert (mode(public), mode(secret)) == (0o644, 0o600)
    assert read_curve_keys(secret) == keys
    assert read_public_key(public) == keys.public
    assert keys.secret not in public.read_text()


def test_a_name_with_points_keeps_them(tmp_path: Path) -> None:
    public, secret, _ = make_key_files(tmp_path / "10.0.0.7")
    assert (public.name, secret.name) == ("10.0.0.7.key", "10.0.0.7.key_secret")


@pytest.mark.parametrize("there", ["a.key", "a.key_secret"])
def test_nothing_is_written_over_and_of_two_files_there_are_both_or_none(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(FileExistsError, match=there):
        make_key_files(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "a.key_secret").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        make_key_files(tmp_path / "a")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("full", ["secret", "public"])
def test_a_disk_that_is_full_leaves_neither_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """The system's calls are counted: the first file to be written is the secret one."""
    begun: list[int] = []
    change = os.fchmod

    def fails(file: int, to: int) -> None:
        begun.append(to)
        if to == (0o600 if full == "secret" else 0o644):
            raise OSError(28, "No space left on device")
        change(file, to)

    monkeypatch.setattr(os, "fchmod", fails)
    with pytest.raises(OSError, match="No space left"):
        make_key_files(tmp_path / "a")
    assert begun == ([0o600] if full == "secret" else [0o600, 0o644])
    assert list(tmp_path.iterdir()) == []


def test_no_directory_for_them_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make_key_files(tmp_path / "nowhere" / "a")


@pytest.mark.parametrize(("bits", "told"), [(0o604, "600"), (0o644, "600"), (0o444, "0400")])
def test_a_secret_that_everybody_can_read_is_refused(tmp_path: Path, bits: int, told: str) -> None:
    _, secret, keys = make_key_files(tmp_path / "a")
    secret.chmod(bits)
    with pytest.raises(CurveKeyError, match=rf"a\.key_secret: everybody on this machine can read .*{told}") as caught:
        read_curve_keys(secret)
    assert keys.secret not in str(caught.value)


@pytest.mark.parametrize("bits", [0o400, 0o440, 0o600, 0o640])
def test_its_owner_and_a_group_may_read_it(tmp_path: Path, bits: int) -> None:
    """A mounted secret is often root's, with a group for the process."""
    _, secret, keys = make_key_files(tmp_path / "a")
    secret.chmod(bits)
    assert read_curve_keys(secret) == keys


def test_the_public_file_is_told_from_the_secret_one(tmp_path: Path) -> None:
    public, _, _ = make_key_files(tmp_path / "a")
    with pytest.raises(CurveKeyError, match=r"a\.key: it has no secret key; the file that ends in \.key_secret does"):
        read_curve_keys(public)


PAIR = new_curve_keys()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has no CURVE key"),
        ("public-key", "it has no CURVE key"),
        ("public-key\nsecret-key\n", "it has no CURVE key"),
        ("\x89PNG\r\n\x1a\n" * 100, "it has no CURVE key"),
        ("-----BEGIN PRIVATE KEY-----\n", "it has no CURVE key"),
        (f'secret-key = "{PAIR.secret}"\n', "it has no CURVE key"),
        (f'public-key = "{PAIR.public}"\nsecret-key = ""\n', "it has no secret key"),
        (f'public-key = "{PAIR.public}"\nsecret-key = "{PAIR.secret[:-1]}"\n', "the secret key is not 40"),
        (f'public-key = "é"\nsecret-key = "{PAIR.secret}"\n', "the public key is not 40"),
        (f'public-key = "{new_curve_keys().public}"\nsecret-key = "{PAIR.secret}"\n', "does not belong"),
        (f'public-key = "{PAIR.secret}"\nsecret-key = "{PAIR.public}"\n', "does not belong"),
    ],
    ids=["empty", "no sign", "no signs", "picture", "pem", "no public", "no secret", "short", "é", "two", "swapped"],
)
def test_what_is_no_file_of_a_pair_is_refused_by_its_name_and_shows_no_secret(
    tmp_path: Path, text: str, told: str
) -> None:
    path = secret_file(tmp_path / "a.key_secret", text)
    with pytest.raises(CurveKeyError, match=rf"a\.key_secret: .*{told}") as caught:
        read_curve_keys(path)
    assert PAIR.secret[:-1] not in "".join(traceback.format_exception(caught.value))


def test_bytes_that_are_no_text_are_no_key(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "a.key_secret", "")
    path.write_bytes(b'public-key = "\xff\xfe"\nsecret-key = "\x80"\n')
    with pytest.raises(CurveKeyError, match=r"a\.key_secret: the public key is not 40"):
        read_curve_keys(path)


def test_what_is_missing_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.key_secret"):
        read_curve_keys(tmp_path / "nothing.key_secret")
    with pytest.raises(CurveKeyError, match=rf"{tmp_path.name}: not a regular file"):
        read_curve_keys(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        public_keys_in(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"a\.txt"):
        public_keys_in(secret_file(tmp_path / "a.txt", ""))


def test_the_tools_of_zeromq_make_the_same_once_the_mode_is_right(tmp_path: Path, umask: Callable[[int], int]) -> None:
    umask(0o022)
    _, secret = zmq.auth.create_certificates(tmp_path, "a", {"name": "worker 0", "note": "public = key"})
    with pytest.raises(CurveKeyError, match="everybody on this machine"):
        read_curve_keys(Path(secret))
    Path(secret).chmod(0o600)
    keys = read_curve_keys(Path(secret))
    assert public_keys_in(tmp_path) == ([keys.public], [])


def test_zeromq_reads_what_is_made_here(tmp_path: Path) -> None:
    public, secret, keys = make_key_files(tmp_path / "a")
    assert zmq.auth.load_certificate(public) == (keys.public.encode(), None)
    assert zmq.auth.load_certificate(secret) == (keys.public.encode(), keys.secret.encode())


def test_of_a_directory_only_what_ends_in_key_counts(tmp_path: Path) -> None:
    made = [make_key_files(tmp_path / name)[2].public for name in ("a", "b.c")]
    for name in ("notes.txt", "a.key~", "key", ".key", "a.key.bak"):
        (tmp_path / name).write_text("no key")
    assert public_keys_in(tmp_path) == (made, [])


@pytest.mark.parametrize("text", ["", "public-key", 'public-key = "short"', f'public-key = "{"#" * 40}"'])
def test_a_file_of_the_directory_that_has_no_key_is_named(tmp_path: Path, text: str) -> None:
    made = make_key_files(tmp_path / "a")[2].public
    (tmp_path / "b.key").write_text(text)
    keys, (error,) = public_keys_in(tmp_path)
    assert keys == [made]
    assert re.search(r"b\.key: .*CURVE key", str(error))
