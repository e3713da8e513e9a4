"""The store alone, as processes: the command line of a shard, and the example that the documentation leads to."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from free_ports import free_port
from shard_command import weft_kvstore
from weft_kvstore import (
    DescriptionError,
    Key,
    KVStore,
    ShardServer,
    StoreError,
    StoreLostError,
    StoreRefusedError,
    describe,
)
from weft_kvstore.description.form import read_description

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0

STORE = """
slots = 2
shards = ["tcp://127.0.0.1:{}", "tcp://127.0.0.1:{}"]
rule = "sgd"
hyper = {{ lr = 1.0 }}

[[keys]]
key = "w"
shape = [300, 200]
initializer = 0

[[keys]]
key = 5
shape = [3]
"""


def written(tmp_path: Path) -> Path:
    path = tmp_path / "store.toml"
    path.write_text(STORE.format(free_port(), free_port()))
    return path


@contextmanager
def started(*commands: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes, which are killed in the end."""
    with ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
            )
            stack.callback(process.communicate, timeout=WAIT_S)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def shard(path: Path, number: int, *more: str) -> list[str]:
    return ["-m", "weft_kvstore", "--description", str(path), "--shard", str(number), *more]


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_check_says_what_each_shard_will_hold(tmp_path: Path) -> None:
    path = written(tmp_path)
    told = weft_kvstore("--description", path, "--check")
    assert told.exit_code == 0, told.stderr
    assert "…" not in told.stdout
    assert "compressed" not in told.stdout
    assert "'w': float32[300, 200], update rule, 1 of 2 slices, 128 KiB, and 0 B of state" in told.stdout
    assert "5: float32[3], update rule, 1 of 1 slices, 12 B, and 0 B of state" in told.stdout
    assert "#barrier" not in told.stdout
    assert "shard 1 at tcp://127.0.0.1:" in told.stdout


def test_a_check_says_what_travels_compressed(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("a") as file:
        file.write('[compression]\ngradients = { kind = "2bit", threshold = 0.5 }\n')
        file.write('weights = { kind = "bf16", residual = false }\n')
    told = weft_kvstore("--description", path, "--check")
    assert told.exit_code == 0, told.stderr
    assert "128 KiB, and 0 B of state; compressed: gradients 2bit, values bf16\n" in told.stdout
    assert "12 B, and 0 B of state; compressed: nothing\n" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--check"], 2, "--check needs --description"),
        (["--description", "STORE"], 2, "--description and --shard belong together"),
        (["--description", "STORE", "--shard", "2"], 1, "shard 2: it has 2, numbered from 0"),
        (
            ["--description", "STORE", "--shard", "0", "--bind", "nowhere"],
            1,
            "cannot bind nowhere: it has to be tcp://HOST:PORT",
        ),
        (["--description", "/nowhere.toml", "--check"], 1, "No such file or directory: '/nowhere.toml'"),
    ],
)
def test_a_shard_that_cannot_start_says_what_to_do(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    path = written(tmp_path)
    ended = weft_kvstore(*(str(path) if one == "STORE" else one for one in arguments))
    assert ended.exit_code == code
    assert told in " ".join(ended.stderr.replace("│", " ").split())


def test_an_endpoint_that_is_not_here_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    path.write_text(STORE.format(1, 2).replace("127.0.0.1", "192.0.2.1"))  # RFC 5737: an address for documentation
    ended = weft_kvstore(*shard(path, 0)[2:])
    assert ended.exit_code == 1
    assert "cannot bind tcp://192.0.2.1:1: " in ended.stderr


def test_a_store_without_shards_is_for_one_process(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    path.write_text("\n".join(line for line in STORE.format(1, 2).splitlines() if not line.startswith("shards")))
    assert "shards: none; a store of processes has an endpoint for each" in weft_kvstore(*shard(path, 0)[2:]).stderr
    with pytest.raises(DescriptionError, match="shards: none"):
        KVStore.connect(path, 0)
    with ShardServer() as server, pytest.raises(DescriptionError, match="shards: none"):
        server.open(read_description(path), 0)
    with KVStore.local(path) as store:
        assert store.keys == ("w", 5)


def test_shards_and_workers_start_in_any_order_and_a_shard_ends_at_ctrl_c(tmp_path: Path) -> None:
    path = written(tmp_path)
    first = read_description(path).shards[1]
    with started(shard(path, 0), shard(path, 1, "--bind", first.replace("127.0.0.1", "*"))) as shards:
        with KVStore.connect(path, 0) as one, KVStore.connect(path, 1) as other:
            one.init(5, [1, 2, 3]).result(WAIT_S)
            values = [
                store.pushpull([5, "w"], [np.ones(3, np.float32), np.ones((300, 200), np.float32)])
                for store in (one, other)
            ]
            for value in values:
                five, w = value.result(WAIT_S)
                assert (five.tolist(), float(w.min()), float(w.max())) == ([-1.0, 0.0, 1.0], -2.0, -2.0)
            with pytest.raises(StoreError, match="slot 1 takes a `connect` of its own"):
                one.at_slot(1)
        another = tmp_path / "another.toml"
        another.write_text(path.read_text().replace("lr = 1.0", "lr = 2.0"))
        with pytest.raises(StoreRefusedError, match=r"slot 0: shard . at .* the client has another description"):
            KVStore.connect(another, 0)
        for slot in (2, "1", True, 0.5, None):
            with pytest.raises(ValueError, match=f"slot: a whole number from 0 to 1, not {slot!r}"):
                KVStore.connect(path, slot)  # type: ignore[arg-type]  # that is what is refused
        for timeout_s in ("2", 0, True):
            with pytest.raises(ValueError, match=f"timeout_s: a number of seconds above 0, not {timeout_s!r}"):
                KVStore.connect(path, 0, timeout_s=timeout_s)  # type: ignore[arg-type]  # that is what is refused
        wrong: dict[str, Any] = {"wait_s": -1, "incarnation": 0, "endpoints": "tcp://127.0.0.1:5"}
        for name, value in wrong.items():
            with pytest.raises(ValueError, match=rf"{name}: a .*, not {value!r}"):
                KVStore.connect(path, 0, **{name: value})
        for number, process in enumerate(shards):
            assert re.match(rf"ready: shard {number} of 2 of {path} listens at tcp://[\d.]+:\d+$", ready(process))
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WAIT_S)
            assert (process.returncode, "Traceback" in errors) == (0, False), errors


def test_a_worker_that_finds_no_shard_says_how_one_is_started() -> None:
    description = describe({"w": (3,)}, shards=[f"tcp://127.0.0.1:{free_port()}"], rule="sgd")
    with pytest.raises(StoreLostError, match=r"slot 0 has waited 0 s: shard 0 at .* python -m weft_kvstore --desc"):
        KVStore.connect(description, 0, wait_s=0.1)
    with KVStore.connect(description, 0, wait_s=0, timeout_s=0.2) as store, pytest.raises(StoreError, match="shard 0"):
        store.pull("w").result(WAIT_S)


def test_endpoints_in_another_order_than_the_shards_are_refused() -> None:
    key = Key((300, 200), initializer=0.0)
    description = describe({"w": key}, shards=["tcp://127.0.0.1:0", "ipc:///tmp/none"], rule="sgd")
    with ShardServer("tcp://127.0.0.1:0") as first, ShardServer("tcp://127.0.0.1:0") as second:
        first.open(description, 0)
        second.open(description, 1)
        for here in ([second.endpoint, first.endpoint], [first.endpoint] * 2):
            told = r"this is shard [01], and the client takes it for shard [01]: endpoints= are in the order of"
            with pytest.raises(StoreRefusedError, match=told):
                KVStore.connect(description, 0, endpoints=here)
        with KVStore.connect(description, 0, endpoints=[first.endpoint, second.endpoint]) as store:
            assert store.pull("w").result(WAIT_S).shape == (300, 200)


def test_numbers_of_numpy_are_numbers_and_what_is_none_is_named() -> None:
    description = describe(
        {"w": Key((3,), initializer=0.0), "t": Key((4, 2), rows=True)}, shards=["tcp://127.0.0.1:0"], rule="sgd", lr=1.0
    )
    with ShardServer("tcp://127.0.0.1:0") as server:
        server.open(description, 0)
        here = [server.endpoint]
        for named, number in (("step", 1.5), ("step", -1), ("incarnation", "2"), ("incarnation", -1)):
            with pytest.raises(ValueError, match=f"{named}: a whole number from [01] to .*, not {number!r}"):
                KVStore.connect(description, 0, endpoints=here, **{named: number})
        with KVStore.connect(description, np.int64(0), endpoints=here, incarnation=np.int64(2)) as store:
            assert store.pushpull("w", np.ones(3, np.float32)).result(WAIT_S).shape == (3,)
            assert store.set([], [], version=1).result(WAIT_S) is None
            assert store.pushpull_rows([], [], []).result(WAIT_S) == []
    with pytest.raises(StoreLostError, match=r"shard 0 at tcp://127\.0\.0\.1:9 "):
        KVStore.connect(description, 0, endpoints=["tcp://127.0.0.1:9"], wait_s=0.1)


def accuracies(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"steps (\d\.\d+) of the digits", text)]


DIGITS = """
import numpy as np

def load_digits(return_X_y):
    table = np.loadtxt(FILE, delimiter=",")
    return table[:, :-1], table[:, -1]
"""
"""Of `sklearn.datasets`, which takes seconds to import, what the example uses; FILE is the library's own."""


def test_the_example_trains_alike_over_shards_and_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (sklearn,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr, misc]
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()
    (tmp_path / "sklearn" / "datasets.py").write_text(
        DIGITS.replace("FILE", repr(f"{sklearn}/datasets/data/digits.csv.gz"))
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    path = tmp_path / "logistic.toml"
    text = (ROOT / "examples" / "kvstore" / "logistic.toml").read_text()
    for port in ("5555", "5556"):
        text = text.replace(port, str(free_port()))
    path.write_text(text)
    worker = ["examples/kvstore/logistic.py", "--description", str(path)]
    with started([*worker, "0"], [*worker, "1"], shard(path, 0), shard(path, 1)) as (zero, one, *_):
        told = [process.communicate(timeout=WAIT_S)[0] for process in (zero, one)]
    spec = spec_from_file_location("sklearn.datasets", tmp_path / "sklearn" / "datasets.py")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module_from_spec(spec))  # type: ignore[arg-type]
    spec.loader.exec_module(sys.modules["sklearn.datasets"])  # type: ignore[union-attr]
    monkeypatch.setattr(sys, "argv", [*worker, "local"])
    runpy.run_path(str(ROOT / worker[0]), run_name="__main__")
    (reached,) = set(accuracies(told[0]) + accuracies(told[1]) + accuracies(capsys.readouterr().out))
    assert len(accuracies(told[0] + told[1])) == 2
    assert reached > 0.85


AT_ONCE = """
import os, sys, threading
import numpy as np
from weft_kvstore import KVStore, describe

description = describe({"w": np.zeros(4, np.float32)}, slots=8, rule="sgd", shards=["tcp://127.0.0.1:9"])
sys.setswitchinterval(1e-5)

def connect(slot, begin):
    begin.wait()
    KVStore.connect(description, slot, wait_s=0).close()

def eight():
    begin = threading.Barrier(8)
    threads = [threading.Thread(target=connect, args=(slot, begin)) for slot in range(8)]
    for each in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            each(thread)

for _ in range(10):
    child = os.fork()
    if not child:
        eight()
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 0, f"a process ended with {ended}"
"""


def test_threads_may_connect_at_once_first_thing_in_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


LAST_CALLBACK = """
import threading
import numpy as np
from weft_kvstore import KVStore, describe

begun = threading.Event()

def next(future):
    begun.set()
    print(input())
    pushed = store.push("w", np.ones(4, np.float32))
    pushed.add_done_callback(last)
    pushed.result()

def last(future):
    print(store.pull("w").result())

store = KVStore.local(describe({"w": np.zeros(4, np.float32)}, rule="sgd", lr=1.0))
store.init("w", np.zeros(4, np.float32)).add_done_callback(next)
begun.wait()
print("the end", flush=True)
"""


def test_a_program_ends_once_its_callbacks_have_and_those_of_the_calls_that_they_make() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAST_CALLBACK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "the end\n"
        assert process.communicate("called back", timeout=60)[0] == "called back\n[-1. -1. -1. -1.]\n"
