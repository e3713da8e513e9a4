"""A shard with encrypted links, by its command line: the page's commands, and what does not fit."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from free_ports import free_port
from shard_command import Ended, weft_kvstore
from weft_kvstore import KVStore, StoreLostError, StoreRefusedError
from weft_kvstore.description.check import CurveKeyError
from weft_kvstore.encryption import make_key_files, new_curve_keys, read_curve_keys

WAIT_S = 60.0

STORE = """
shards = [{shards}]
{curve_keys}
rule = "sgd"
hyper = {{ lr = 1.0 }}

[[keys]]
key = "w"
shape = [3]
initializer = 0
"""


def written(path: Path, *curve_keys: str, shards: int = 1) -> Path:
    """A description in a file; without keys, of plain links."""
    endpoints = ", ".join(f'"tcp://127.0.0.1:{free_port()}"' for _ in range(shards))
    line = f"curve_keys = [{', '.join(repr(one) for one in curve_keys)}]" if curve_keys else ""
    path.write_text(STORE.format(shards=endpoints, curve_keys=line))
    return path


def told(ended: Ended) -> str:
    return " ".join(re.sub("[│╭╮╰╯─]", " ", ended.stderr).split())


@contextmanager
def serving(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A shard's process, once it is ready."""
    command = [sys.executable, "-m", "weft_kvstore", *map(str, arguments)]
    with ExitStack() as stack:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stack.callback(process.communicate, timeout=WAIT_S)
        stack.callback(process.kill)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(
            r"ready: shard \d+ of \d+ of \S+ listens at tcp://127\.0\.0\.1:\d+, links encrypted$",
            line,
        )
        yield process


def test_the_pages_commands_make_keys_and_serve_whoever_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are made, a shard is served, killed and started again; clients come with and without keys."""
    monkeypatch.chdir(tmp_path)
    made = weft_kvstore("--new-curve-keys", "shard-0")
    assert made.exit_code == 0, made.stderr
    key = made.stdout.strip().splitlines()[-1].rpartition(" ")[2]
    keys = read_curve_keys(Path("shard-0.key_secret"))
    assert key == keys.public
    assert keys.secret not in made.output
    assert stat.S_IMODE(Path("shard-0.key_secret").stat().st_mode) == 0o600
    clients = tmp_path / "clients"
    clients.mkdir()
    weft_kvstore("--new-curve-keys", "worker-0")
    Path("worker-0.key").rename(clients / "worker-0.key")
    path = written(Path("store.toml"), key)
    command = (
        *("--description", path, "--shard", "0"),
        *("--curve-keys", "shard-0.key_secret", "--curve-clients", "clients"),
    )
    with ExitStack() as stack:
        with serving(*command) as shard:
            store = stack.enter_context(KVStore.connect("store.toml", 0, curve_keys="worker-0.key_secret"))
            assert store.pushpull("w", np.ones(3, np.float32)).result(WAIT_S).tolist() == [-1.0] * 3
            with pytest.raises(StoreRefusedError, match="it rejects a client with the CURVE key"):
                KVStore.connect("store.toml", 0)
            public, secret, other = make_key_files(Path("worker-1"))
            public.rename(clients / public.name)
            with KVStore.connect("store.toml", 0, curve_keys=secret, incarnation=2) as second:
                assert second.pull("w", version=1).result(WAIT_S).tolist() == [-1.0] * 3
            shard.kill()
            _, errors = shard.communicate(timeout=WAIT_S)
            assert errors.count("is rejected: no NAME.key in clients has it") == 1
            assert other.secret not in errors
        with serving(*command) as shard:
            with KVStore.connect("store.toml", 0, curve_keys=read_curve_keys(Path("worker-0.key_secret"))) as again:
                assert again.pull("w").result(WAIT_S).tolist() == [0.0] * 3
            with pytest.raises((StoreLostError, StoreRefusedError)):
                store.pull("w").result(WAIT_S)
            shard.send_signal(signal.SIGINT)
            _, errors = shard.communicate(timeout=WAIT_S)
            assert (shard.returncode, "Traceback" in errors) == (0, False)


def test_files_of_keys_are_not_written_over(tmp_path: Path) -> None:
    name = tmp_path / "shard-0"
    assert weft_kvstore("--new-curve-keys", name).exit_code == 0
    before = (tmp_path / "shard-0.key_secret").read_bytes()
    again = weft_kvstore("--new-curve-keys", name)
    assert (again.exit_code, "shard-0.key_secret" in again.stderr) == (1, True)
    assert (tmp_path / "shard-0.key_secret").read_bytes() == before
    (tmp_path / "shard-0.key_secret").unlink()
    again = weft_kvstore("--new-curve-keys", name)
    assert (again.exit_code, "shard-0.key'" in again.stderr) == (1, True)
    assert not (tmp_path / "shard-0.key_secret").exists()


def test_a_check_says_that_links_are_encrypted(tmp_path: Path) -> None:
    plain = weft_kvstore("--description", written(tmp_path / "plain.toml"), "--check").stdout
    assert "encrypted" not in plain
    path = written(tmp_path / "store.toml", new_curve_keys().public, new_curve_keys().public, shards=2)
    shown = weft_kvstore("--description", path, "--check")
    assert shown.exit_code == 0, shown.stderr
    assert ", links encrypted, digest " in shown.stdout
    short = weft_kvstore(
        "--description", written(tmp_path / "short.toml", new_curve_keys().public, shards=2), "--check"
    )
    assert (short.exit_code, "curve_keys: one for each shard, 2 of them, not 1" in short.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--server", "http://127.0.0.1:1", "--curve-keys", "shard.key_secret"],
            "--curve-keys belongs to --description: a weft server makes keys for each job itself",
        ),
        (
            ["--description", "store.toml", "--shard", "0", "--curve-clients", "."],
            "--curve-clients needs --curve-keys: without keys of its own the shard accepts everybody",
        ),
    ],
)
def test_options_that_do_not_belong_together_are_refused_by_name(arguments: list[str], error: str) -> None:
    ended = weft_kvstore(*arguments)
    assert ended.exit_code == 2
    assert error in told(ended)


def test_variables_stand_for_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "store.toml", new_curve_keys().public)
    monkeypatch.setenv("WEFT_SHARD_CURVE_CLIENTS", str(tmp_path))
    assert "--curve-clients needs --curve-keys" in told(weft_kvstore("--description", path, "--shard", "0"))
    _, secret, keys = make_key_files(tmp_path / "other")
    monkeypatch.setenv("WEFT_SHARD_CURVE_KEYS", str(secret))
    ended = weft_kvstore("--description", path, "--shard", "0")
    assert f"the file of --curve-keys has {keys.public}" in ended.stderr


def test_a_description_that_does_not_fit_the_shards_keys_is_refused_by_its_line(tmp_path: Path) -> None:
    _, secret, keys = make_key_files(tmp_path / "shard")
    other = new_curve_keys().public
    with_keys = ("--curve-keys", secret)

    def error(path: Path, shard: int, *more: object) -> str:
        ended = weft_kvstore("--description", path, "--shard", shard, *more)
        assert ended.exit_code == 1
        assert keys.secret not in ended.output
        return ended.stderr.strip()

    path = written(tmp_path / "store.toml", other)
    told = f"curve_keys[0]: the description has {other} of this shard; "
    assert error(path, 0).endswith(f"{told}name the file with its keys by --curve-keys")
    assert error(path, 0, *with_keys).endswith(f"{told}the file of --curve-keys has {keys.public}")
    path = written(tmp_path / "plain.toml", shards=2)
    told = "curve_keys[1]: the description has no key of this shard; "
    assert error(path, 1, *with_keys).endswith(f"{told}the file of --curve-keys has {keys.public}")


def test_files_that_are_no_keys_are_refused_by_name(tmp_path: Path) -> None:
    public, secret, keys = make_key_files(tmp_path / "shard")
    path = written(tmp_path / "store.toml", keys.public)
    empty = tmp_path / "clients"
    empty.mkdir()
    (empty / "bad.key").write_text("public-key")

    def error(*more: object) -> str:
        ended = weft_kvstore("--description", path, "--shard", "0", *more)
        assert ended.exit_code == 1
        assert ended.stderr.startswith("error: "), ended.stderr
        return ended.stderr

    assert "nothing.key_secret" in error("--curve-keys", tmp_path / "nothing.key_secret")
    assert str(tmp_path) in error("--curve-keys", tmp_path)
    assert f"{public}: " in error("--curve-keys", public)
    assert "nowhere" in error("--curve-keys", secret, "--curve-clients", tmp_path / "nowhere")
    assert f"{empty / 'bad.key'}: it has no CURVE key" in error("--curve-keys", secret, "--curve-clients", empty)
    assert "Not a directory" in error("--curve-keys", secret, "--curve-clients", public)
    secret.chmod(0o644)
    assert f"{secret}: everybody on this machine can read or write the secret key" in error("--curve-keys", secret)
    with pytest.raises(CurveKeyError, match="everybody on this machine can read or write the secret key"):
        KVStore.connect(path, 0, curve_keys=secret)
