"""What a shard tells of itself: statistics, the metrics made of them, the page about them, and the port."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from store_cluster import WAIT_S, NamedClient, key_of, store_of, wait_until_shared
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.daemon import ShardSettings
from weft_kvstore.serving.metrics import (
    METRICS,
    MOST_AT_ONCE,
    ShardCollector,
    counted,
    metrics_served,
    summed,
)
from weft_kvstore.serving.shard_server import OPEN_STEPS, STAGES, ShardServer, Stragglers
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S, same_host=False)
PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def told(statistics: dict[str, float]) -> dict[tuple[str, str], float]:
    """What Prometheus reads, by the sample's name and its labels' values."""
    registry = CollectorRegistry()
    registry.register(ShardCollector(lambda: statistics))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_shard_that_worked_tells_what_it_did() -> None:
    elements, payload = 1 << 17, 1 << 19
    description = store_of([key_of("w", [elements], 2, priority=3)], slots=2, shards=1, slice_bytes=payload)
    with ShardServer() as server:
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        server.open(here, 0)
        with NamedClient(here, 0, settings=LINK) as first, NamedClient(here, 1, settings=LINK) as second:
            for step in range(3):
                pushed = first.push("w", step, np.ones(elements, np.float32))
                first.pull("w", step).result(WAIT_S)  # What the shard answers last, it has heard before.
                second.push("w", step, np.ones(elements, np.float32)).result(WAIT_S)
                pushed.result(WAIT_S)
                first.pull("w", step + 1).result(WAIT_S)
            until = time.monotonic() + WAIT_S
            while (statistics := server.statistics())["sent_bytes"] < 6 * payload:  # It counts what has left.
                assert time.monotonic() < until
    found = told(statistics)
    assert found["weft_shard_received_bytes_total", ""] >= 6 * payload
    assert found["weft_shard_sent_bytes_total", ""] >= 6 * payload
    assert found["weft_shard_job_received_bytes_total", "job"] >= 6 * payload
    assert found["weft_shard_job_sent_bytes_total", "job"] >= 6 * payload
    assert found["weft_shard_job_memory_bytes", "job"] >= 1 << 20
    assert (found["weft_shard_jobs", ""], found["weft_shard_links", ""]) == (1, 2)
    assert found["weft_shard_job_waited_seconds", "job,1"] > 0
    assert {stage for name, stage in found if name == "weft_shard_stage_seconds_total"} == set(STAGES)
    for stage in STAGES:
        assert found["weft_shard_stage_seconds_total", stage] > 0


def test_what_passes_through_shared_memory_is_told_beside_what_passes_the_socket() -> None:
    payload = 1 << 20
    description = store_of([key_of("w", [payload // 4], 1)], slots=1, shards=1)
    with ShardServer() as server:
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        server.open(here, 0)
        with NamedClient(here, 0, settings=LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S)) as client:
            wait_until_shared([client])
            client.push("w", 0, np.ones(payload // 4, np.float32)).result(WAIT_S)
            client.pull("w", 1).result(WAIT_S)
            of_client = client.statistics()
            statistics = server.statistics()
    found = told(statistics)
    for name in ("", "job_"):
        label = "job" if name else ""
        for way, count in (("received", of_client.shared_bytes_sent), ("sent", of_client.shared_bytes_received)):
            assert found[f"weft_shard_{name}shared_memory_{way}_bytes_total", label] == count == payload
        assert found[f"weft_shard_{name}received_bytes_total", label] < payload
    assert of_client.links[0].payload_bytes_sent == payload > of_client.bytes_sent > 0


def shown_names() -> list[str]:
    """Of the metrics, as Prometheus shows them."""
    return [f"weft_shard_{name}{'_total' * (kind.family is CounterMetricFamily)}" for name, kind in METRICS.items()]


def test_names_follow_prometheus_conventions() -> None:
    assert len(set(shown_names())) == len(METRICS)
    for name, kind in METRICS.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert not re.search(r"_(ms|us|kib|mib|count|total)(_|$)", name)
        assert set(kind.labels) <= {"job", "slot", "stage"}


def test_a_jobs_name_cannot_break_the_lines() -> None:
    name = 'a:"b\\c\nweft_shard_jobs 99'
    found = told({"jobs": 0.0, f"job_memory_bytes:{name}": 5.0, f"job_waited_seconds:3:{name}": 2.5})
    assert found["weft_shard_job_memory_bytes", name] == 5
    assert found["weft_shard_job_waited_seconds", f"{name},3"] == 2.5
    assert found["weft_shard_jobs", ""] == 0


def test_the_page_names_every_metric_as_the_code_does() -> None:
    rows = re.findall(r"^\| `(weft_\w+)` \| (.*?) ?\| (.*) \|$", PAGE, re.M)
    labels = [", ".join(f"`{label}`" for label in kind.labels) for kind in METRICS.values()]
    assert rows == list(zip(shown_names(), labels, [kind.text for kind in METRICS.values()], strict=True))
    for stage in STAGES:
        assert f"`{stage}`" in PAGE
    assert set(re.findall(r"weft_shard_\w+", PAGE)) <= set(shown_names())


def test_shards_together_tell_their_sums_and_one_that_has_ended_what_it_counted() -> None:
    one = {"sent_bytes": 1.0, "links": 2.0, "stage_seconds:merge": 1.0, "job_sent_bytes:a": 1.0}
    both = summed([one, one | {"job_links:b": 1.0}])
    assert both.items() >= {"sent_bytes": 2, "links": 4, "stage_seconds:merge": 2, "job_sent_bytes:a": 2}.items()
    ended = counted(both)
    assert ended.items() >= {"sent_bytes": 2, "stage_seconds:merge": 2}.items()
    assert not ended.keys() & {"links", "job_sent_bytes:a", "job_links:b"}
    assert set(told(summed([]))) >= {("weft_shard_jobs", ""), ("weft_shard_sent_bytes_total", "")}


def test_the_slot_that_is_waited_for_most_is_told_with_the_seconds() -> None:
    one = Stragglers([0, 1, 2])
    assert one.waits(0.0) is None
    for step, late in ((0, 2), (1, 2), (2, 0)):
        for slot in (0, 1, 2):
            one.arrived(slot, step, 10.0 * step + (2.5 if slot == late else 0.0))
        one.arrived(0, step, 10.0 * step + (2.5 if late == 0 else 0.5))  # the rest of its gradients
    one.arrived(1, 3, 30.0)
    assert one.waits(30.0) == (2, 5.0)
    for slot in (0, 2):
        one.arrived(slot, 3, 30.0)
    one.arrived(1, 4, 40.0)
    assert one.waits(40.0) == (2, 5.0)
    assert one.waits(49.0) == (2, 14.0)  # It is missing just now, and so is slot 0.


def test_stragglers_keep_few_steps_whoever_says_what() -> None:
    one = Stragglers([0, 1])
    for step in range(1000):
        one.arrived(0, step, float(step))
        one.arrived(7, step, float(step))
    assert len(one._arrived) <= OPEN_STEPS
    one.arrived(1, 0, 1e9)
    assert one.waited == {}
    assert Stragglers([]).waits(1.0) is None


def test_what_comes_as_soon_as_a_job_is_open_is_known_and_a_second_job_takes_nothing_from_it() -> None:
    description = store_of([key_of("w", (4,), 2)], slots=2, shards=1)
    with ShardServer() as server:
        core = server._core

        def opened(job: JobShard) -> None:
            ShardCore.open(core, job)
            core.arrived(0, 0, 1.0)

        with patch.object(core, "open", opened):
            server.open(description, 0)
        with pytest.raises(StoreError, match="serves job 'job' already"):
            server.open(description, 0)
        assert server._stragglers.newest == 0


def test_metrics_are_served_over_http_until_the_end() -> None:
    with ShardServer() as server:
        with metrics_served("127.0.0.1", 0, server.statistics) as url:
            assert url is not None
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert "weft_shard_jobs 0.0" in answer.read().decode()
            port = int(url.split(":")[2].split("/")[0])
            with pytest.raises(StoreError, match=f"cannot serve metrics at 127.0.0.1:{port}"):
                metrics_served("127.0.0.1", port, server.statistics).__enter__()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=WAIT_S)
        with metrics_served("127.0.0.1", None, server.statistics) as url:
            assert url is None


def test_connections_to_the_port_of_metrics_that_say_nothing_are_few_and_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft_kvstore.serving.metrics._Handler.timeout", 0.1)
    with metrics_served("127.0.0.1", 0, lambda: {}) as url, ExitStack() as stack:
        assert url is not None
        port = int(url.split(":")[2].split("/")[0])
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S)) for _ in range(2 * MOST_AT_ONCE)
        ]
        assert [one.recv(1) for one in silent] == [b""] * len(silent)
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            assert "weft_shard_jobs" in answer.read().decode()


def test_a_process_says_where_its_metrics_are_and_ends_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(description, shards=("tcp://127.0.0.1:0",))))
    options = ["--shard", "0", "--exit-with-parent", "--metrics-port", "0"]
    command = [sys.executable, "-m", "weft_kvstore", "--description", str(path), *options, "--job-memory", "4GiB"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"ready: shard 0 of 1 of {path} listens at tcp://127.0.0.1:")
            url = process.stdout.readline().removeprefix("metrics at ").strip()
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                lines = answer.read().decode()
            rest, log = process.communicate("", timeout=WAIT_S)
        finally:
            process.kill()
    assert (rest, "ready" in log, "listening" in log, "metrics at" in log) == ("", False, False, False)
    assert 'weft_shard_job_links{job="job"} 0.0' in lines
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("elements", "options", "said"),
    [
        (1 << 26, ["--job-memory", "256MiB"], "error: "),
        (4, ["--metrics-port", "1", "--metrics-host", "203.0.113.1"], "error: cannot serve metrics at 203.0.113.1:1: "),
    ],
)
def test_a_process_that_cannot_serve_as_told_says_why(
    elements: int, options: list[str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "store.json"
    description = store_of([key_of("w", (elements,), 1)], slots=1, shards=1)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(description, shards=("tcp://127.0.0.1:0",))))
    command = [sys.executable, "-m", "weft_kvstore", "--description", str(path), "--shard", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert said in " ".join(ended.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("setting", "value"),
    [("metrics_port", 70000), ("metrics_port", -1), ("job_memory", "1MiB")],
)
def test_settings_that_cannot_be_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ValidationError, match=setting):
        ShardSettings(server="http://127.0.0.1:1", **{setting: value})  # type: ignore[arg-type]
