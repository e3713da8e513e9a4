"""Shards that are processes of their own."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from free_ports import free_port
from store_cluster import WAIT_S
from store_raw import hello_of, raw_peer
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.wire.messages import Bye, RefusalCode, Refused


class ShardProcess:
    """`python -m weft_kvstore` for one shard of a description."""

    def __init__(self, description_path: Path, description: StoreDescription, shard: int) -> None:
        self._endpoint = description.shards[shard]
        self._hello = hello_of(description, 0, incarnation=0)
        description_path.write_bytes(msgspec.json.encode(description))
        command = [sys.executable, "-m", "weft_kvstore", "--description", str(description_path)]
        self._process = subprocess.Popen([*command, "--shard", str(shard), "--bind", self._endpoint])

    def wait_until_serving(self) -> None:
        """Until it knows its job. Starting Python takes seconds on a busy machine, more than silence is borne."""
        until = time.monotonic() + WAIT_S
        with raw_peer(self._endpoint) as peer:
            while isinstance(answer := peer.greet(self._hello), Refused) and answer.code is RefusalCode.UNKNOWN_JOB:
                assert time.monotonic() < until, "the shard did not open its job"
            peer.say(Bye())

    def memory_bytes(self) -> int:
        """What the process holds in memory now."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def kill(self) -> None:
        """SIGKILL: no good-bye, no clean-up."""
        self._process.kill()
        self._process.wait(WAIT_S)


@contextmanager
def shard_processes(
    description: StoreDescription, directory: Path
) -> Iterator[tuple[StoreDescription, Callable[[int], ShardProcess]]]:
    """The description with addresses, and a function that starts a shard and waits until it serves. Kills all."""
    endpoints = tuple(f"tcp://127.0.0.1:{free_port()}" for _ in description.shards)
    description = msgspec.structs.replace(description, shards=endpoints)
    with ExitStack() as stack:

        def start(shard: int) -> ShardProcess:
            process = ShardProcess(directory / "store.json", description, shard)
            stack.callback(process.kill)
            process.wait_until_serving()
            return process

        yield description, start
