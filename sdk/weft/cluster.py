"""All daemons of a cluster on this machine, as children of this process."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from weft.agent.held_files import FileLock
from weft.agent.private import make_directory
from weft.api.lifecycle import AgentState
from weft.client import Client
from weft.errors import ClusterError, WeftError
from weft.exclusive import LOCK_FILE, check_port_is_free, hold_directory, holder
from weft.http import Retry
from weft.process import Command, Process, begin_anew

SERVER = "server"
"""The name of the server's process; agents have a number."""

HOST = "127.0.0.1"
"""This machine alone: several machines start the daemons themselves, with tokens."""

LOGS = "logs"
OWN_LOG = "up.log"
"""Of `weft up` in the background."""

START_TIMEOUT_S = 60.0
"""Until all daemons have registered; a cold disk under a slow machine takes a good part of it to import NumPy."""

TELL_TIMEOUT_S = 2.0
"""For the server to hear that an agent has ended."""

EXIT_WITH_PARENT = "--exit-with-parent"

STOP_GRACE_S = 5.0
"""Of the agents together, then of the server, which has its database to close however long an agent hung."""

POLL_S = 0.05

LOGS_S = 0.5
"""Between two looks at how large logs are."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""How many threads a worker's matrix products take: its share of the cores, or the workers fight over them."""

NEEDED_MODULES = ("fastapi", "msgspec", "uvicorn", "zmq")
"""A few of what the extra `cluster` brings, to say so before a daemon dies for want of it."""


class Listening(BaseModel):
    """What the server writes into `server.json` once it listens."""

    url: str
    pid: int


def listening_in(directory: Path) -> Listening:
    """What the server of this directory wrote last. Raises FileNotFoundError, ValidationError."""
    return Listening.model_validate_json((directory / "server.json").read_bytes())


class Cluster:
    """A server, shards and workers on this machine; a context manager.

    Entering starts the processes and waits until all have registered; leaving stops them. They also end when this
    process dies. `port` 0 takes a free port. `directory` holds database, logs and parameters; by default a temporary
    one, deleted at the end. Jobs read data below `data_root`, which relative paths start from. Workers compute on
    `device`: "cpu" unless WEFT_WORKER_DEVICE says otherwise, "cuda:0", or "auto". `progress` is called with what is
    being waited for. The environment variables `WEFT_SERVER_TOKEN` and `WEFT_SERVER_AGENT_TOKEN` are used if set.
    Raises ClusterError with the daemon's name and the end of its log.
    """

    def __init__(
        self,
        workers: int = 2,
        shards: int = 2,
        *,
        port: int = 0,
        directory: str | os.PathLike[str] | None = None,
        data_root: str | os.PathLike[str] = ".",
        device: str | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        if workers < 1 or shards < 1:
            raise ValueError(f"a cluster has at least one worker and one shard, not {workers} and {shards}")
        self.workers = workers
        self.shards = shards
        self.port = port
        self.data_root = Path(data_root).resolve()
        self.device = device
        self.start_timeout_s = start_timeout_s
        self.processes: list[Process] = []
        self._wanted_directory = directory
        self._directory: Path | None = None
        self._url: str | None = None
        self._token = os.environ.get("WEFT_SERVER_TOKEN")
        self._agents_token = os.environ.get("WEFT_SERVER_AGENT_TOKEN", self._token)
        self._progress = progress
        self._held = ExitStack()
        self._ending = threading.Event()
        self._log_keeper: threading.Thread | None = None
        self._lock: FileLock | None = None
        """Of a directory that outlives the cluster."""
        self._reported: set[Process] = set()
        self._untold: dict[int, Process] = {}
        """Agents that have ended, by process id, of which the server was not told."""

    @property
    def url(self) -> str:
        """The server's URL. Raises ClusterError while the cluster is not started."""
        if self._url is None:
            raise ClusterError("the cluster is not started; use it in a with statement")
        return self._url

    @property
    def directory(self) -> Path:
        """Where database, logs and parameters are. Raises ClusterError while the cluster is not started."""
        if self._directory is None:
            raise ClusterError("the cluster is not started; use it in a with statement")
        return self._directory

    def client(self) -> Client:
        """A new client of this cluster. The caller closes it."""
        return Client(self.url, token=self._token)

    def start(self) -> None:
        """Starts the daemons and waits until all have registered. Ends what was started where that fails."""
        self._check()
        try:
            self._directory = self._take_directory()
            self._ending.clear()
            self._log_keeper = threading.Thread(
                target=self._bound_logs, args=(self.directory,), name="logs", daemon=True
            )
            self._log_keeper.start()
            if self.port:
                check_port_is_free(HOST, self.port)
            deadline = time.monotonic() + self.start_timeout_s
            self._progress("starting the server")
            self._spawn(SERVER, "weft_server", self._server_arguments(self.port))
            self._url = self._await_server(deadline)
            self._spawn_agents()
            self._await_agents(deadline)
        except BaseException:  # also Ctrl-C while it starts: no daemon may be left; the error goes on
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all daemons: agents, then the server; SIGTERM, and SIGKILL after a grace of five seconds for each.

        All agents share one grace, the server has its own. Idempotent. A second Ctrl-C kills at once.
        """
        try:
            # Agents first, so that they can take leave of a server that still answers.
            _end_together(self.processes[1:])
            _end_together(self.processes[:1])
        finally:
            for process in self.processes:
                process.kill()
            self._ending.set()
            if self._log_keeper is not None:
                self._log_keeper.join()
            self.processes.clear()
            self._untold.clear()
            self._url = None
            self._directory = None
            self._held.close()

    def ended(self) -> list[Process]:
        """The daemons that ended by themselves since the last call. The server is told of the agents among
        them, and does not wait for them."""
        ended = [p for p in self.processes if p.exit_code is not None and p not in self._reported]
        self._reported.update(ended)
        self._untold.update({process.pid: process for process in ended if process.name != SERVER})
        if self._untold:
            self._tell()
        return ended

    def restart(self, name: str) -> Process:
        """Starts a daemon that ended again, under its name; the server on the same port and data. Does not wait.

        Raises OSError where no process can be started.
        """
        place, old = next((place, p) for place, p in enumerate(self.processes) if p.name == name)
        if old.exit_code is None:
            raise ClusterError(f"{name} still runs")
        old.kill()  # it has ended: this closes the pipe to it
        command = old.command
        if name == SERVER:
            arguments = (*self._server_arguments(urlsplit(self.url).port or 0), EXIT_WITH_PARENT)
            command = replace(command, arguments=arguments)
        self.processes[place] = Process(command)
        self._reported.discard(old)
        return self.processes[place]

    def hold_directory(self) -> bool:
        """Makes the directory again, and locks it, where somebody has deleted it. Whether that was done now.

        The server writes its own files again. Raises ClusterError where another cluster has the directory meanwhile:
        both go on, since jobs' files have names of their own. Raises OSError.
        """
        is_taken = False
        if self._lock is not None and self._lock.is_deleted:
            make_directory(self.directory)
            is_taken = self._lock.take()
            if not is_taken and (process := holder(self.directory)) is not None:
                raise ClusterError(f"the cluster of process {process} has it now")
        make_directory(self.directory / LOGS)
        return is_taken

    def listens(self) -> bool:
        """Whether the server that runs now listens."""
        return self._listening() is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _bound_logs(self, directory: Path) -> None:
        """Begins logs anew that are large, until the end."""
        while not self._ending.wait(LOGS_S):
            for process in list(self.processes):
                process.bound_log()
            begin_anew(directory / LOGS / OWN_LOG)

    def _tell(self) -> None:
        """Takes leave for agents whose processes have ended. A server that is away is told another time."""
        try:
            with Client(self.url, token=self._token, timeout_s=TELL_TIMEOUT_S, retry=Retry(attempts=1)) as client:
                for agent in client.agents():
                    process = self._untold.get(agent.pid)
                    if process is not None and agent.state is not AgentState.LOST:
                        client.http.send("DELETE", f"/v1/agents/{agent.id}", params={"reason": process.ending})
            self._untold.clear()
        except WeftError:
            return

    def _check(self) -> None:
        if self.processes:
            raise ClusterError("the cluster is started already")
        missing = [module for module in NEEDED_MODULES if importlib.util.find_spec(module) is None]
        if missing:
            raise ClusterError(f"the daemons need {', '.join(missing)}; install them with: pip install 'weft[cluster]'")
        if not self.data_root.is_dir():
            raise ClusterError(f"the data root {self.data_root} is no directory")

    def _take_directory(self) -> Path:
        if self._wanted_directory is None:
            return Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="weft-"))).resolve()
        directory = Path(self._wanted_directory).resolve()
        try:
            make_directory(directory, own=(LOGS, LOCK_FILE))
            self._lock = self._held.enter_context(hold_directory(directory))
        except OSError as error:
            raise ClusterError(f"the directory {directory} cannot be used: {error.strerror or error}") from None
        return directory

    def _server_arguments(self, port: int) -> list[str]:
        listen = ["--host", HOST, "--port", str(port)]
        return [*listen, "--directory", str(self.directory), "--data-root", str(self.data_root)]

    def _spawn_agents(self) -> None:
        token = {} if self._agents_token is None else {"WEFT_SHARD_TOKEN": self._agents_token}
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.workers))
        for number in range(self.shards):
            arguments = ["--server", self.url, "--name", f"shard-{number}", "--bind", "tcp://127.0.0.1:0"]
            self._spawn(f"shard-{number}", "weft_kvstore", arguments, token)
        for number in range(self.workers):
            arguments = ["--server", self.url, "--name", f"worker-{number}", "--data-root", str(self.data_root)]
            arguments += [] if self.device is None else ["--device", self.device]
            unset = {name: threads for name in THREAD_VARIABLES if name not in os.environ}
            if self._agents_token is not None:
                unset["WEFT_WORKER_TOKEN"] = self._agents_token
            self._spawn(f"worker-{number}", "weft_worker", arguments, unset)

    def _spawn(
        self, name: str, module: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        command = Command(
            name=name,
            module=module,
            arguments=(*arguments, EXIT_WITH_PARENT),
            log=self.directory / LOGS / f"{name}.log",
            directory=self.data_root,
            environment=environment or {},
        )
        self.processes.append(Process(command))

    def _await_server(self, deadline: float) -> str:
        while True:
            url = self._listening()
            if url is not None:
                return url
            self._pause(deadline, "the server to listen")

    def _listening(self) -> str | None:
        """The server's URL, if it has written it. What a server before this one wrote has another pid."""
        try:
            listening = listening_in(self.directory)
        except (FileNotFoundError, ValidationError):
            return None  # not there yet, or not written to its end
        return listening.url if listening.pid == self.processes[0].pid else None

    def _await_agents(self, deadline: float) -> None:
        waited_for = {process.pid: process.name for process in self.processes[1:]}
        with self.client() as client:
            while True:
                try:
                    alive = {agent.pid for agent in client.agents() if agent.state is AgentState.ALIVE}
                except WeftError as error:
                    self._raise_if_ended()
                    raise ClusterError(f"the server at {self.url} does not answer: {error}") from None
                missing = [name for pid, name in waited_for.items() if pid not in alive]
                if not missing:
                    return
                self._progress(f"waiting for {', '.join(missing)}")
                self._pause(deadline, ", ".join(missing) + " to register")

    def _pause(self, deadline: float, what: str) -> None:
        self._raise_if_ended()
        if time.monotonic() > deadline:
            logs = self.directory / LOGS
            raise ClusterError(f"waited {self.start_timeout_s:g} s for {what}, in vain; logs are in {logs}")
        time.sleep(POLL_S)

    def _raise_if_ended(self) -> None:
        ended = [process.obituary() for process in self.processes if process.exit_code is not None]
        if ended:
            raise ClusterError("\n".join(ended))


def _end_together(processes: Sequence[Process]) -> None:
    """Ends these within one grace, which begins now; those that outlast it are killed."""
    deadline = time.monotonic() + STOP_GRACE_S
    for process in processes:
        process.ask_to_end()
    for process in processes:
        process.end(deadline - time.monotonic())
