"""The shard daemon: its settings, the orders that it carries out, and the processes that it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

from kvstore_daemon import Served, allocation, children_of, jobs_of, until_idle
from same_host_children import wait_until
from shard_command import weft_kvstore
from store_cluster import WAIT_S, NamedClient, key_of, store_of
from weft.api.agent import AgentKind
from weft.api.lifecycle import AllocationEvent
from weft_kvstore.description.records import StoreDescription, descriptions
from weft_kvstore.errors import StoreLostError
from weft_kvstore.serving.daemon import ShardDaemon, ShardSettings
from weft_kvstore.serving.shard_process import advertised
from weft_kvstore.settings import LinkSettings

QUICK = LinkSettings(silence_s=3.0, request_timeout_s=WAIT_S)


def described(endpoint: str = "", *, job: str = "job", term: int = 1) -> StoreDescription:
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1, job=job)
    return msgspec.structs.replace(description, shards=(endpoint,), term=term)


@pytest.fixture(scope="module")
def running() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """One daemon for all tests, which holds nothing before and after each."""
    yield running
    running.order()
    until_idle(running)
    while not running.members.facts.empty():
        running.members.facts.get()


def test_a_daemon_opens_what_is_ordered_and_ends_what_is_ordered_no_more(served: Served) -> None:
    registration = served.members.registration
    assert (registration.kind, registration.name) == (AgentKind.SHARD, "shard-0")
    first = served.opened(described(), "a")
    client = NamedClient(first, 0, settings=QUICK)
    assert client.pull("w", 0).result(WAIT_S).shape == (300,)
    waiting = client.pull("w", 1)
    served.opened(described(term=2), "b")
    with pytest.raises(StoreLostError, match="has been silent"):
        waiting.result(WAIT_S)
    client.close()
    served.members.holder.lost()
    until_idle(served)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rule": "magic"}, "rule: 'magic' is none of"),
        ({"hyper": {"speed": 1.0}}, "hyper: rule 'sgd' has no 'speed'"),
        ({"slice_bytes": 1 << 30}, "$.store.slice_bytes"),
    ],
)
def test_what_cannot_be_opened_is_reported_as_failed_by_its_reason(
    served: Served, changed: dict[str, Any], told: str
) -> None:
    served.order(allocation(msgspec.structs.replace(described(), **changed), "a"))
    number, event, reason = served.heard()
    assert (number, event) == ("a", AllocationEvent.FAILED)
    assert reason is not None
    assert told in reason


def test_a_process_that_dies_fails_its_job_by_its_cause_and_no_other(served: Served) -> None:
    other = served.opened(described(job="other"), "b")
    died = served.opened(described(), "a", allocation(other, "b"))
    _, process = children_of(served)
    with NamedClient(other, 0, settings=QUICK) as client:
        client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
        os.kill(process, signal.SIGSEGV)
        number, event, reason = served.heard()
        assert (number, event) == ("a", AllocationEvent.FAILED)
        assert reason is not None
        assert reason.startswith("its process was ended by SIGSEGV")
        assert client.pull("w", 1).result(WAIT_S).shape == (300,)
        served.order(allocation(died, "a"), allocation(other, "b"))  # It is not started again.
        client.push("w", 1, np.ones(300, np.float32)).result(WAIT_S)
        wait_until(lambda: jobs_of(served) == ["other"])


def test_a_daemons_statistics_are_those_of_its_children_and_stay_when_they_end(served: Served) -> None:
    begun = served.daemon.statistics()
    first, second = served.opened(described(), "a"), None
    second = served.opened(described(job="other"), "b", allocation(first, "a"))
    for one in (first, second):
        with NamedClient(one, 0, settings=QUICK) as client:
            client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
    wait_until(lambda: served.daemon.statistics()["received_frames"] == begun["received_frames"] + 2)
    here = served.daemon.statistics()
    assert here["jobs"] == 2
    assert jobs_of(served) == ["job", "other"]
    assert all(here[f"job_memory_bytes:{job}"] > 1 << 20 for job in ("job", "other"))
    served.order()
    until_idle(served)
    after = served.daemon.statistics()
    assert after["received_frames"] == here["received_frames"]
    assert after["received_bytes"] >= here["received_bytes"]


def test_a_daemon_that_ends_takes_its_children_with_it() -> None:
    served = Served()
    served.opened(described(), "a")
    (process,) = children_of(served)
    served.end()
    assert not Path(f"/proc/{process}").exists()


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
    assert ShardSettings().silence_s == 2.5


def test_a_shard_waits_for_a_silent_slot_as_long_as_the_server_says() -> None:
    daemon: Any = SimpleNamespace(_settings=ShardSettings(server="http://server", silence_s=5.0))
    told = allocation(described("tcp://127.0.0.1:1"), "a").model_copy(update={"lost_after_s": 300.0})
    assert ShardDaemon._task(daemon, told)["lost_after_s"] == 300.0


def test_a_wildcard_is_advertised_by_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "shard-0.shards")
    assert advertised("tcp://0.0.0.0:5555", None) == "tcp://shard-0.shards:5555"
    assert advertised("tcp://10.0.0.1:5555", None) == "tcp://10.0.0.1:5555"
    assert advertised("tcp://0.0.0.0:5555", "public") == "tcp://public:5555"


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:9-8", "tcp://0.0.0.0:0-5", "tcp://0.0.0.0:1-65536", "tcp://x:65536"])
def test_ports_that_there_are_not_are_refused(bind: str) -> None:
    with pytest.raises(ValidationError, match="port"):
        ShardSettings(server="http://x", bind=bind)


def test_an_api_description_is_the_stores_own() -> None:
    description = described("tcp://127.0.0.1:1")
    spec = allocation(description, "a").store
    assert descriptions.from_builtins(spec.model_dump(mode="json")) == description


SERVED = ("--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            [],
            2,
            "error: give either --server URL, to serve a weft server's jobs, or --description FILE --shard N",
        ),
        (["--description", "store.toml"], 2, "error: --description and --shard belong together"),
        (["--description", "store.toml", "--shard", "-1"], 2, "error: --shard is '-1'; it should be greater"),
        ([*SERVED, "--table-directory", "."], 2, "error: --table-directory and --table-memory belong together"),
        (
            [*SERVED, "--table-directory", ".", "--table-memory", "5"],
            2,
            "error: --table-memory is '5'; it should be greater",
        ),
        (
            [*SERVED, "--table-directory", "./tab", "--table-memory", "1GiB"],
            2,
            "error: --table-directory is './tab'; there is no such directory; make it first",
        ),
        ([*SERVED, "--metrics-host", "127.0.0.1"], 2, "--metrics-host needs --metrics-port: without a port no metrics"),
        (["--description", "/nowhere/store.json", "--shard", "0"], 1, "No such file"),
        (["--server", "http://127.0.0.1:1", "--bind", "tcp://127.0.0.1:70000"], 2, "a port from 0 to 65535, not 70000"),
    ],
)
def test_what_cannot_start_says_why(arguments: list[str], code: int, told: str) -> None:
    """What was typed wrong is wrong usage; what fails at run time is one plain line."""
    ended = weft_kvstore(*arguments)
    assert ended.exit_code == code
    assert ("usage:" in ended.stderr) == (code == 2)
    assert code == 2 or ended.stderr.splitlines()[-1].startswith("error: ")
    assert told in " ".join(ended.stderr.replace("│", " ").split())


def test_a_variable_that_is_wrong_is_told_by_its_name() -> None:
    ended = weft_kvstore(*SERVED, WEFT_SHARD_SILENCE_S="-1", COLUMNS="200")
    assert "error: WEFT_SHARD_SILENCE_S is '-1'; it should be greater than 0" in ended.stderr


def test_the_help_of_80_columns_cuts_nothing() -> None:
    told = weft_kvstore("--help").stdout
    assert "…" not in told
    assert " ." not in told
    for name in ("SERVER", "NAME", "BIND"):
        assert told.count(f"WEFT_SHARD_{name}") == 1
