"""Two hosts on one machine: network namespaces whose one link is shaped to a speed in each direction.

Needs root and iproute2. The queue is the kernel's, as with a network card of that speed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType

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
