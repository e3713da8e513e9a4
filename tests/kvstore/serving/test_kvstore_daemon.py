"""The shard daemon: its settings, the orders that it carries out, and the processes that it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
import typer
from pydantic import ValidationError
from typer.testing import CliRunner

from store_cluster import WAIT_S, key_of, store_of
from weft.api.agent import Orders, Registration, ShardAllocation
from weft.api.lifecycle import AllocationEvent
from weft.api.membership import Holder
from weft.api.store import StoreSpec
from weft_kvstore.__main__ import main
from weft_kvstore.bucket import part as bucket_part
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import KeyDescription, StoreDescription, description_from_json, first_elements
from weft_kvstore.errors import StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.serving.daemon import Lease, ShardDaemon, ShardSettings, advertised, changes
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

SETTINGS = ShardSettings(server="http://127.0.0.1:1", name="shard-0")
LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S)


class Reports:
    """Stands for the reporter of one allocation."""

    def __init__(self, facts: SimpleQueue[tuple[str, AllocationEvent, str | None]], allocation: str) -> None:
        self._facts = facts
        self._allocation = allocation

    def report(self, *, event: AllocationEvent, reason: str | None = None) -> None:
        self._facts.put((self._allocation, event, reason))

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        self._facts.put((self._allocation, AllocationEvent.RELEASED, "closed"))


class Members:
    """Stands for the membership: the test gives the orders."""

    def __init__(self, registration: Registration, holder: Holder) -> None:
        self.registration = registration
        self.holder = holder
        self.facts: SimpleQueue[tuple[str, AllocationEvent, str | None]] = SimpleQueue()

    def run(self, stop: threading.Event) -> None:
        stop.wait()

    def reporter(self, allocation_id: str, term: int) -> Any:
        return Reports(self.facts, allocation_id)

    def close(self) -> None:
        pass


def allocation(description: StoreDescription, number: str, *, shard: int = 0) -> ShardAllocation:
    spec = StoreSpec.model_validate_json(msgspec.json.encode(description))
    return ShardAllocation(id=number, term=description.term, job=description.job, shard=shard, store=spec)


def orders(*allocations: ShardAllocation) -> Orders:
    return Orders(version=1, allocations=list(allocations))


def described(endpoint: str, *, job: str = "job", term: int = 1) -> StoreDescription:
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1, job=job)
    return msgspec.structs.replace(description, shards=(endpoint,), term=term)


def test_a_daemon_opens_what_is_ordered_and_closes_what_is_ordered_no_more() -> None:
    made: list[Members] = []

    def join(registration: Registration, holder: Holder) -> Members:
        made.append(Members(registration, holder))
        return made[0]

    stop = threading.Event()
    with ShardServer() as server:
        daemon = ShardDaemon(SETTINGS, server, join=join)
        (members,) = made
        running = threading.Thread(target=daemon.run, args=(stop,))
        running.start()
        assert members.registration.endpoint == server.endpoint
        first = described(server.endpoint)
        members.holder.hold(orders(allocation(first, "a")))
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.READY, None)
        client = StoreClient(first, 0, settings=LINK)
        assert client.pull("w", 0).result(WAIT_S).shape == (300,)
        waiting = client.pull("w", 1)
        members.holder.hold(orders(allocation(described(server.endpoint, term=2), "b")))
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.RELEASED, "closed")
        assert members.facts.get(timeout=WAIT_S) == ("b", AllocationEvent.READY, None)
        with pytest.raises(StoreLostError, match="closed on this shard"):
            waiting.result(WAIT_S)
        client.close()
        members.holder.lost()
        assert members.facts.get(timeout=WAIT_S) == ("b", AllocationEvent.RELEASED, "closed")
        assert server.statistics().jobs == 0
        stop.set()
        running.join(WAIT_S)
        assert not running.is_alive()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rule": "magic"}, "rule: 'magic' is none of"),
        ({"hyper": {"speed": 1.0}}, "hyper: rule 'sgd' has no 'speed'"),
        ({"slice_bytes": 1 << 30}, "slice_bytes: 1 to"),
    ],
)
def test_what_cannot_be_opened_is_reported_as_failed_by_its_reason(changed: dict[str, Any], told: str) -> None:
    made: list[Members] = []

    def join(registration: Registration, holder: Holder) -> Members:
        made.append(Members(registration, holder))
        return made[0]

    stop = threading.Event()
    with ShardServer() as server:
        daemon = ShardDaemon(SETTINGS, server, join=join)
        running = threading.Thread(target=daemon.run, args=(stop,))
        running.start()
        bad = msgspec.structs.replace(described(server.endpoint), **changed)
        made[0].holder.hold(orders(allocation(bad, "a")))
        number, event, reason = made[0].facts.get(timeout=WAIT_S)
        assert (number, event) == ("a", AllocationEvent.FAILED)
        assert reason is not None
        assert told in reason
        stop.set()
        running.join(WAIT_S)


def started(server: ShardServer, stop: threading.Event) -> tuple[Members, threading.Thread]:
    """A daemon that runs, and the membership that gives it orders."""
    made: list[Members] = []

    def join(registration: Registration, holder: Holder) -> Members:
        made.append(Members(registration, holder))
        return made[0]

    daemon = ShardDaemon(SETTINGS, server, join=join)
    running = threading.Thread(target=daemon.run, args=(stop,))
    running.start()
    return made[0], running


class SlowFirst:
    """First values of jobs with a key "slow", which wait in the middle until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.made = 0
        monkeypatch.setattr(bucket_part, "first_elements", self)
        monkeypatch.setattr(bucket_part, "FIRST_ELEMENTS", 100)

    def __call__(self, key: KeyDescription, seed: int, start: int, stop: int) -> Any:
        if key.key == "slow":
            self.made += 1
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        return first_elements(key, seed, start, stop)


def slow(endpoint: str) -> StoreDescription:
    description = store_of([key_of("slow", (300,), 1)], slots=1, shards=1, job="large", slice_bytes=4096)
    return msgspec.structs.replace(description, shards=(endpoint,))


def test_other_orders_are_carried_out_while_a_large_job_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    first, stop = SlowFirst(monkeypatch), threading.Event()
    with ShardServer() as server:
        members, running = started(server, stop)
        large, small = allocation(slow(server.endpoint), "a"), allocation(described(server.endpoint), "b")
        members.holder.hold(orders(large))
        assert first.begun.wait(WAIT_S)
        members.holder.hold(orders(large, small))
        assert members.facts.get(timeout=WAIT_S) == ("b", AllocationEvent.READY, None)
        first.go_on.set()
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.READY, None)
        assert (first.made, server.statistics().jobs) == (3, 2)
        stop.set()
        running.join(WAIT_S)


def test_a_job_that_is_not_wanted_any_more_is_not_made_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    first, stop = SlowFirst(monkeypatch), threading.Event()
    with ShardServer() as server:
        members, running = started(server, stop)
        members.holder.hold(orders(allocation(slow(server.endpoint), "a")))
        assert first.begun.wait(WAIT_S)
        members.holder.hold(orders())
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.RELEASED, "closed")
        first.go_on.set()
        for thread in [one for one in threading.enumerate() if one.name == "open-large"]:
            thread.join(WAIT_S)
        assert (first.made, server.statistics().jobs) == (1, 0)
        assert members.facts.empty()
        stop.set()
        running.join(WAIT_S)


def test_a_job_that_opens_after_its_order_went_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, opened, go_on = threading.Event(), threading.Event(), threading.Event()
    with ShardServer() as server:
        really = server.open

        def open_late(*arguments: Any, **named: Any) -> None:
            really(*arguments, **named)
            opened.set()
            assert go_on.wait(WAIT_S)

        monkeypatch.setattr(server, "open", open_late)
        members, running = started(server, stop)
        members.holder.hold(orders(allocation(described(server.endpoint), "a")))
        assert opened.wait(WAIT_S)
        members.holder.hold(orders())
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.RELEASED, "closed")
        go_on.set()
        for thread in [one for one in threading.enumerate() if one.name == "open-job"]:
            thread.join(WAIT_S)
        assert server.statistics().jobs == 0
        assert members.facts.empty()
        stop.set()
        running.join(WAIT_S)


def test_a_job_that_is_hard_to_close_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    with ShardServer() as server:
        members, running = started(server, stop)
        members.holder.hold(orders(allocation(described(server.endpoint), "a")))
        assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.READY, None)

        def never(*_: object) -> None:
            raise StoreTimeoutError("it did not answer")

        with monkeypatch.context() as patched:
            patched.setattr(server, "close_job", never)
            members.holder.hold(orders())
            assert members.facts.get(timeout=WAIT_S) == ("a", AllocationEvent.RELEASED, "closed")
        members.holder.hold(orders(allocation(described(server.endpoint, term=2), "b")))
        assert members.facts.get(timeout=WAIT_S) == ("b", AllocationEvent.READY, None)
        stop.set()
        running.join(WAIT_S)
        assert not running.is_alive()


def test_changes_are_the_difference_between_what_is_held_and_the_orders() -> None:
    one, other = allocation(described("x"), "a"), allocation(described("x", job="other"), "b")
    assert changes(set(), orders(one, other)) == (set(), [(Lease("a", 1), one), (Lease("b", 1), other)])
    assert changes({Lease("a", 1), Lease("c", 1)}, orders(one)) == ({Lease("c", 1)}, [])
    assert changes({Lease("a", 0)}, orders(one)) == ({Lease("a", 0)}, [(Lease("a", 1), one)])


@pytest.mark.parametrize(
    "given",
    [{}, {"server": "http://x", "description": "f", "shard": 0}, {"description": "f"}, {"server": "x"}],
)
def test_settings_that_say_nothing_or_two_things_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ShardSettings(**given)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_SHARD_SERVER", "http://server:1")
    monkeypatch.setenv("WEFT_SHARD_SILENCE_S", "2.5")
    assert ShardSettings().link == LinkSettings(silence_s=2.5)


def test_a_wildcard_is_advertised_by_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "shard-0.shards")
    assert advertised(SETTINGS, "tcp://0.0.0.0:5555") == "tcp://shard-0.shards:5555"
    assert advertised(SETTINGS, "tcp://10.0.0.1:5555") == "tcp://10.0.0.1:5555"
    told = SETTINGS.model_copy(update={"advertise": "tcp://public:7"})
    assert advertised(told, "tcp://0.0.0.0:5555") == "tcp://public:7"


def test_an_api_description_is_the_stores_own() -> None:
    description = described("tcp://127.0.0.1:1")
    spec = allocation(description, "a").store
    assert description_from_json(spec.model_dump(mode="json")) == description


SERVED = ("--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            [],
            2,
            "Invalid value: give either --server URL, to serve a weft server's jobs, or --description FILE --shard N",
        ),
        (["--description", "store.toml"], 2, "Invalid value: --description and --shard belong together"),
        (["--description", "store.toml", "--shard", "-1"], 2, "Invalid value: --shard: Input should be greater"),
        ([*SERVED, "--table-directory", "."], 2, "Invalid value: --table-directory and --table-memory belong together"),
        ([*SERVED, "--table-directory", ".", "--table-memory", "5"], 2, "Invalid value: --table-memory: at least"),
        (
            [*SERVED, "--table-directory", "./tab", "--table-memory", "1GiB"],
            2,
            "--table-directory: tab is not there; make",
        ),
        ([*SERVED, "--metrics-host", "127.0.0.1"], 2, "--metrics-host needs --metrics-port: without a port no metrics"),
        (["--description", "/nowhere/store.json", "--shard", "0"], 1, "No such file"),
        (["--server", "http://127.0.0.1:1", "--bind", "tcp://127.0.0.1:70000"], 2, "a port from 0 to 65535, not 70000"),
        (
            ["--server", "http://127.0.0.1:1", "--bind", "tcp://nowhere.invalid:1"],
            1,
            "cannot bind tcp://nowhere.invalid:1",
        ),
    ],
)
def test_what_cannot_start_says_why(arguments: list[str], code: int, told: str) -> None:
    """What was typed wrong is wrong usage; what fails at run time is one plain line."""
    app = typer.Typer()
    app.command()(main)
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert ended.exit_code == code
    assert ("Usage:" in ended.stderr) == (code == 2)
    assert code == 2 or ended.stderr.splitlines()[-1].startswith("error: ")
    assert told in " ".join(ended.stderr.replace("│", " ").split())


def test_a_variable_that_is_wrong_is_told_by_its_name() -> None:
    command = [sys.executable, "-m", "weft_kvstore", *SERVED]
    environment = {**os.environ, "WEFT_SHARD_SILENCE_S": "-1", "COLUMNS": "200"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert "Invalid value: WEFT_SHARD_SILENCE_S: Input should be greater than 0" in ended.stderr


def test_the_help_of_80_columns_cuts_nothing() -> None:
    command = [sys.executable, "-m", "weft_kvstore", "--help"]
    told = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "COLUMNS": "80"}
    ).stdout
    assert "…" not in told
    assert " ." not in told
    for name in ("SERVER", "NAME", "BIND"):
        assert told.count(f"WEFT_SHARD_{name}") == 1


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    path.write_bytes(msgspec.json.encode(described("tcp://127.0.0.1:0")))
    command = [sys.executable, "-m", "weft_kvstore", "--description", str(path), "--shard", "0", "--exit-with-parent"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"ready: shard 0 of 1 of {path} listens at tcp://127.0.0.1:")
    _, _ = process.communicate("", timeout=WAIT_S)
    assert process.returncode == 0


def test_an_endpoint_that_is_none_fails_futures_by_its_name() -> None:
    description = described("tcp//no-endpoint")
    with StoreClient(description, 0, settings=LINK) as client:
        with pytest.raises(
            StoreRefusedError, match="key 'w', version 0: shard 0 at tcp//no-endpoint: Invalid argument"
        ):
            client.pull("w", 0).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="tcp//no-endpoint"):
            client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)


def test_first_values_do_not_depend_on_the_number_of_shards() -> None:
    keys = [key_of("w", (1000,), 1)]
    values = []
    for shards in (1, 3):
        description = store_of(keys, slots=1, shards=shards)
        servers = [ShardServer() for _ in range(shards)]
        description = msgspec.structs.replace(description, shards=tuple(one.endpoint for one in servers))
        for number, server in enumerate(servers):
            server.start()
            server.open(description, number)
        client = StoreClient(description, 0, settings=LINK)
        values.append(client.pull("w", 0).result(WAIT_S))
        client.close()
        for server in servers:
            server.stop()
    assert np.array_equal(*values)
    assert len(np.unique(values[0])) > 900
