"""The processes of one side of a case: servers that wait, workers that do rounds when told."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from exchange import END, MEET
from reporting import Round, joined
from store_cases import FLOAT_BYTES, RATE, TOLERANCE, Case
from weft.api.job import Parallelism
from weft_graph.program import Update
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Merge, StoreDescription
from weft_kvstore.encryption import make_key_files

ANSWER_S = 180.0
"""For a worker's next word: a first one takes imports, a million rows, and a machine with other work."""
LEAVE_S = 5.0
LOOK_S = 0.5
"""How often, while a worker is silent, somebody looks whether its servers still run."""
LOG_LINES = 8

HERE = Path(__file__).resolve().parent


class SideError(Exception):
    """A side's process ended, was silent, or came to other values than NumPy; the message names it."""


class Worker:
    """A process that speaks in lines of JSON."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self._process, self._log = name, process, log
        self._pending = b""

    def say(self, **fields: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(fields).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("has ended") from None

    def hear(self, look: Callable[[], None]) -> dict[str, Any]:
        """Its next word; `look` is called again and again meanwhile. Raises SideError once it has ended or been silent
        for too long."""
        assert self._process.stdout is not None
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._pending:
            if not select.select([self._process.stdout], [], [], LOOK_S)[0]:
                if time.monotonic() > until:
                    raise self._failed(f"was silent for {ANSWER_S:.0f} s")
                look()
                continue
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._failed("has ended")
            self._pending += part
        text, self._pending = self._pending.split(b"\n", 1)
        word: dict[str, Any] = json.loads(text)
        return word

    def post_mortem(self) -> str:
        """What it said last where it has ended by an error, else nothing."""
        return "" if self._process.poll() in (None, 0) else f"\n{self._failed('has ended')}"

    def _failed(self, how: str) -> SideError:
        return failure(self.name, how, self._log)


def failure(name: str, how: str, log: Path) -> SideError:
    """What became of a process, and what it said last."""
    lines = log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
    return SideError("\n".join([f"{name} {how}", *lines]))


class Group:
    """One side's processes. Used as a context, it ends all of them."""

    def __init__(self, name: str, case: Case, directory: Path) -> None:
        self.name, self.case, self.directory = name, case, directory
        self.versions: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[Worker] = []
        self._servers: list[tuple[str, subprocess.Popen[bytes], Path]] = []
        self._files: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serve(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a process that nobody speaks with. Its standard input stays open until the group is closed."""
        log, process = self._start(name, command, environment, subprocess.DEVNULL)
        self._servers.append((f"{self.name}, {name}", process, log))

    def work(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a worker."""
        log, process = self._start(name, command, environment, subprocess.PIPE)
        self._workers.append(Worker(f"{self.name}, {name}", process, log))

    def hold(self, file: int) -> None:
        """A file's descriptor, closed with the group."""
        self._files.append(file)

    def wait_until_ready(self) -> None:
        for worker in self._workers:
            self.versions |= self._heard(worker)["versions"]

    def round(self) -> Round:
        """Every worker's iterations, from the first that leaves the barrier to the last that can read new values."""
        return joined(self.words(self.case.warm_up))

    def words(self, warm_up: int) -> list[dict[str, Any]]:
        """What the workers say of their iterations; their values were compared."""
        for worker in self._workers:
            worker.say(do="round", warm_up=warm_up, iterations=self.case.iterations)
        for _ in range(warm_up + self.case.iterations if len(self._workers) > 1 else 0):
            self._expect(MEET)
            for worker in self._workers:
                worker.say(do=MEET)
        words = self._expect("done")
        for worker, word in zip(self._workers, words, strict=True):
            if not word["apart"] <= TOLERANCE:
                raise SideError(f"{worker.name}: values are {word['apart']:g} from NumPy's, more than {TOLERANCE:g}")
        return words

    def close(self) -> None:
        """End what runs: by word, and by signal where that does not help. Idempotent; whoever interrupts it, even more
        than once, ends them all the sooner."""
        try:
            self._leave()
        finally:
            for process in self._processes:
                process.kill()  # Nothing where it has ended.
            for process in self._processes:
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    with contextlib.suppress(BrokenPipeError):
                        if pipe is not None:
                            pipe.close()
            for file in self._files:
                os.close(file)
            self._processes, self._workers, self._servers, self._files = [], [], [], []

    def _leave(self) -> None:
        """Asks all to end, and gives them time. The last that started are the workers: they leave first."""
        for worker in self._workers:
            with contextlib.suppress(SideError):
                worker.say(do=END)
        until = time.monotonic() + LEAVE_S
        for process in reversed(self._processes):
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))

    def _expect(self, do: str) -> list[dict[str, Any]]:
        words = [self._heard(worker) for worker in self._workers]
        for worker, word in zip(self._workers, words, strict=True):
            if word["do"] != do:
                raise SideError(f"{worker.name} said {word['do']!r}, not {do!r}")
        return words

    def _heard(self, worker: Worker) -> dict[str, Any]:
        """Its next word. One worker's end shows in another's silence, so the error tells of both."""
        try:
            return worker.hear(self._look)
        except SideError as error:
            others = "".join(other.post_mortem() for other in self._workers if other is not worker)
            raise SideError(f"{error}{others}") from None

    def _look(self) -> None:
        """Raises SideError for a server that has ended."""
        for name, process, log in self._servers:
            if process.poll() is not None:
                raise failure(name, "has ended", log)

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], stdout: int
    ) -> tuple[Path, subprocess.Popen[bytes]]:
        log = self.directory / f"{self.name}-{name}.log".replace(" ", "-")
        with log.open("wb") as errors:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=stdout, stderr=errors, env={**os.environ, **environment}
                )
            except OSError as error:
                raise SideError(f"{self.name}, {name} cannot be started: {error}") from error
        self._processes.append(process)
        return log, process


def start_weft(group: Group, slice_bytes: int) -> None:
    """Starts weft's shards and workers."""
    case = group.case
    description = description_of(
        case, slice_bytes, tuple(f"tcp://127.0.0.1:{free_port()}" for _ in range(case.servers))
    )
    made = [make_key_files(group.directory / f"shard-{shard}") for shard in range(case.servers if case.curve else 0)]
    description = msgspec.structs.replace(description, curve_keys=tuple(keys.public for _, _, keys in made))
    path = group.directory / "store.json"
    path.write_bytes(msgspec.json.encode(description))
    for shard, endpoint in enumerate(description.shards):
        command = [sys.executable, "-m", "weft_kvstore", "--description", str(path), "--shard", str(shard)]
        command += ["--curve-keys", str(made[shard][1])] if case.curve else []
        group.serve(f"shard {shard}", [*command, "--bind", endpoint, "--exit-with-parent"], {})
    for slot in range(case.workers):
        command = [sys.executable, str(HERE / "weft_side.py"), str(path), str(slot), case.to_json()]
        group.work(f"worker {slot}", command, {})


def start_mxnet(group: Group, python: str, threads: int) -> None:
    """Starts MXNet's scheduler, servers and workers with that many OMP threads each."""
    case = group.case
    environment = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": str(case.servers),
        "DMLC_NUM_WORKER": str(case.workers),
        "OMP_NUM_THREADS": str(threads),
    }
    for role, count in (("scheduler", 1), ("server", case.servers)):
        for place in range(count):
            group.serve(f"{role} {place}", [python, "-c", "import mxnet"], {**environment, "DMLC_ROLE": role})
    for place in range(case.workers):
        command = [python, str(HERE / "mxnet_side.py"), case.to_json()]
        group.work(f"worker {place}", command, {**environment, "DMLC_ROLE": "worker"})


def description_of(case: Case, slice_bytes: int, shards: tuple[str, ...]) -> StoreDescription:
    """The case's store: ones at first, descent on the shards, merged in slot order, the first key the most urgent."""
    ones = InitializerDescription("ConstantOfShape", {"value": 1.0})
    slots = tuple(range(case.workers))
    keys = tuple(
        KeyDescription(f"key{place}", "float32", shape, ones, Update.RULE, place, slots, rows=bool(case.rows))
        for place, shape in enumerate(case.shapes)
    )
    return StoreDescription(
        job="benchmark",
        term=1,
        seed=0,
        slots=case.workers,
        shards=shards,
        keys=keys,
        rule="sgd",
        hyper={"lr": RATE},
        slice_bytes=slice_bytes,
        merge=Merge.SLOT,
    )


def default_slice_bytes() -> int:
    """What a job has that says nothing about it."""
    return int(Parallelism.model_fields["slice_bytes"].default)


def free_port() -> int:
    """A port of the loopback interface that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


BARE = "bare pyzmq"
"""The peer's name in a row."""


def has_bare(case: Case) -> bool:
    """Whether there is a bare side for it: not for rows through shared memory, and for nothing encrypted."""
    return not (case.curve or (case.rows and case.transport != "tcp"))


def start_bare(group: Group) -> None:
    """Starts the bare side's shards and workers."""
    case, memory = group.case, "-"
    if case.transport != "tcp":
        memory = _memory(group)
    ports = [str(free_port()) for _ in range(case.servers)]
    for shard, port in enumerate(ports):
        command = [sys.executable, str(HERE / "bare_shard.py"), port, case.to_json(), memory]
        group.serve(f"shard {shard}", command, {})
    for slot in range(case.workers):
        command = [sys.executable, str(HERE / "bare_side.py"), ",".join(ports), str(slot), case.to_json(), memory]
        group.work(f"worker {slot}", command, {})


def _memory(group: Group) -> str:
    """A file of ones that lies in memory, as long as the group is there; its path."""
    case = group.case
    file = os.memfd_create("weft-benchmark")
    group.hold(file)
    os.truncate(file, (case.workers + 1) * case.payload_bytes)
    path = f"/proc/{os.getpid()}/fd/{file}"
    np.memmap(path, np.float32, "r+", shape=((case.workers + 1) * (case.payload_bytes // FLOAT_BYTES),))[:] = 1
    return path
