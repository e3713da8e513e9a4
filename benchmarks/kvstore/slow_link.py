"""A slow link between a server and a worker, and how each store's processes are put at its ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

import msgspec

from groups import HERE, Group, description_of, free_port
from paced_proxy import Address, ProxiedLink, Route

HOSTS = ("10.77.0.1", "10.77.0.2")
"""The server's and the worker's address, in networks that nobody else sees."""

BURST = "128kb"
"""Above the rate over the kernel's clock, and above a packet of 64 KiB that a network card would cut."""
QUEUE = "50ms"
"""What does not leave within this is dropped."""


class NetworkError(Exception):
    """The network cannot be made here; the message says why."""


class ShapedNetwork:
    """As a context, the two hosts exist. Raises NetworkError on entering."""

    def __init__(self, bits_per_s: float) -> None:
        self._rate = f"{bits_per_s / 1e6:g}mbit"
        self._names = tuple(f"weft-{os.getpid()}-{place}" for place in range(2))

    def __enter__(self) -> ShapedNetwork:
        try:
            self._make()
        except NetworkError:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def inside(self, host: int) -> list[str]:
        """What a command begins with that is to run on a host."""
        return ["ip", "netns", "exec", self._names[host]]

    def close(self) -> None:
        """Takes the hosts away. Idempotent."""
        for name in self._names:
            with contextlib.suppress(NetworkError):
                _run("ip", "netns", "del", name)

    def _make(self) -> None:
        for name in self._names:
            _run("ip", "netns", "add", name)
        ends = [("netns", name, "name", "eth0") for name in self._names]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for name, host in zip(self._names, HOSTS, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            shape = ("tbf", "rate", self._rate, "burst", BURST, "latency", QUEUE)
            _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "eth0", "root", *shape)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")


SCHEDULER, RELAY = "127.0.0.1", "127.0.0.6"
SERVER, WORKER = ("127.0.0.2", "127.0.0.4"), ("127.0.0.3", "127.0.0.5")
"""Loopback addresses of one length: where a process of the peer listens, and where the others find it."""
SLOWED = "127.1"
"""127.0.0.1, written so that weft takes it for a network: over loopback its credit is a constant."""


class Shaping(Enum):
    TC = "tc"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Ends:
    """Where the store's processes run: what their commands begin with; `network` is None with a proxy."""

    bits_per_s: float
    network: ShapedNetwork | None

    def server(self, command: list[str]) -> list[str]:
        return command if self.network is None else [*self.network.inside(0), *command]

    def worker(self, command: list[str]) -> list[str]:
        return command if self.network is None else [*self.network.inside(1), *command]


@contextmanager
def slow_link(bits_per_s: float, shaping: Shaping) -> Iterator[Ends]:
    """The link, for as long as the context lasts. Raises NetworkError where namespaces cannot be made."""
    if shaping is Shaping.PROXY:
        yield Ends(bits_per_s, None)
        return
    with ShapedNetwork(bits_per_s) as network:
        yield Ends(bits_per_s, network)


def start_weft_over(ends: Ends, group: Group, slice_bytes: int, settings: Mapping[str, object]) -> None:
    """Starts a shard and a worker with those link settings; none are weft's own."""
    host = "127.0.0.1" if ends.network is None else HOSTS[0]
    port = free_port()
    bound = reached = f"tcp://{host}:{port}"
    if ends.network is None:
        listen = ("127.0.0.1", free_port())
        reached = f"tcp://{SLOWED}:{listen[1]}"
        _start_proxy(ends, group, Route(listen, (host, port)))
    path = group.directory / f"{group.name}.json".replace(" ", "-")
    path.write_bytes(msgspec.json.encode(description_of(group.case, slice_bytes, (reached,))))
    told = json.dumps(dict(settings))
    shard = [sys.executable, str(HERE / "layers_shard.py"), str(path), bound, told]
    group.serve("shard", ends.server(shard), {})
    worker = [sys.executable, str(HERE / "weft_side.py"), str(path), "0", group.case.to_json(), reached, told]
    group.work("worker", ends.worker(worker), {})


def start_mxnet_over(ends: Ends, group: Group, python: str, environment: Mapping[str, str]) -> None:
    """Starts MXNet's scheduler, server and worker. The scheduler is beside the server."""
    roots, places = _mxnet_places(ends, group)
    for role in ("scheduler", "server", "worker"):
        told = {
            "DMLC_ROLE": role,
            "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": "1",
            "DMLC_PS_ROOT_URI": roots[role][0],
            "DMLC_PS_ROOT_PORT": str(roots[role][1]),
            "DMLC_NODE_HOST": places[role][0],
            **({"PORT": str(places[role][1])} if role != "scheduler" else {}),
            **environment,
        }
        if role == "worker":
            command = [python, str(HERE / "mxnet_side.py"), group.case.to_json(), "layers"]
            group.work(role, ends.worker(command), told)
        else:
            group.serve(role, ends.server([python, "-c", "import mxnet"]), told)


def _mxnet_places(ends: Ends, group: Group) -> tuple[dict[str, Address], dict[str, Address]]:
    """Where each role finds the scheduler, and where it listens itself.

    Its processes tell the scheduler their addresses, and hear from it each other's. So that they meet through the
    proxy, what they say to the scheduler passes a relay that puts the proxy's address in the place of their own; and
    what reaches them through the proxy has their own again, for they look for it in what the scheduler tells all.
    """
    port = free_port()
    if ends.network is not None:
        places = {"scheduler": HOSTS[0], "server": HOSTS[0], "worker": HOSTS[1]}
        listens = {role: (host, free_port()) for role, host in places.items()}
        return dict.fromkeys(places, (HOSTS[0], port)), listens
    root, relay = (SCHEDULER, port), (RELAY, _free_at(RELAY))
    server, worker = _free_at(*SERVER), _free_at(*WORKER)
    _start_proxy(
        ends,
        group,
        Route(relay, root, paced=False, replace=(SERVER, WORKER)),
        Route((SERVER[1], server), (SERVER[0], server), up=True, replace=((SERVER[1], SERVER[0]),)),
        Route((WORKER[1], worker), (WORKER[0], worker), up=False, replace=((WORKER[1], WORKER[0]),)),
    )
    listens = {"scheduler": root, "server": (SERVER[0], server), "worker": (WORKER[0], worker)}
    return {"scheduler": root, "server": relay, "worker": relay}, listens


def _start_proxy(ends: Ends, group: Group, *routes: Route) -> None:
    link = ProxiedLink(ends.bits_per_s, routes)
    group.serve("link", [sys.executable, str(HERE / "paced_proxy.py"), link.to_json()], {})


def _free_at(*hosts: str) -> int:
    """A port that nothing listens on at any of these addresses."""
    while True:
        port = free_port()
        probes = []
        try:
            for host in hosts:
                probe = socket.socket()
                probes.append(probe)
                probe.bind((host, port))
            return port
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
