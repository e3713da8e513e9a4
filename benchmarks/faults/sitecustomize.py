"""Faults at chosen messages and steps, within the processes of jobs: they stop there until somebody has done the harm.

Python imports this module at its start where its folder is in PYTHONPATH, as `benchmarks/chaos.py` has it for the
daemons that it starts. `WEFT_FAULTS` is a folder with `plan.json`, which a process reads when it begins to serve a job:

    {"run": NAME, "seed": 7, "noise": {"lost": 0.3, "twice": 0.1, "swapped": 0.1},
     "points": [{"id": 0, "role": "worker", "number": 1, "peer": 0, "unit": "message", "count": 137,
                 "cut": false}]}

That point is the 137th message of worker 1 to shard 0 (of a shard: the 137th that it gets from anybody). Where `unit`
is "step", it is the first message in which a worker sends gradients of the step, or a shard values that have it. Who
reaches a point writes the file `NAME/ID.reached` and waits for `NAME/ID.done`; or it cuts its connection, and goes on.
Each point is reached once, however many processes a slot has. `NAME/worker-1.pid` is slot 1's process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

WAIT_S = 20.0
POLL_S = 0.002
NOISY_PING_S = 0.05

Point = dict[str, Any]


class Plan:
    """What is to happen in this process, which has a job's slot or shard `number`."""

    def __init__(self, role: str, number: int) -> None:
        folder = Path(os.environ["WEFT_FAULTS"])
        document = json.loads((folder / "plan.json").read_bytes())
        self.folder = folder / document["run"]
        (self.folder / f"{role}-{number}.pid").write_text(str(os.getpid()))
        self.noise: dict[str, float] = document["noise"]
        self.choose = random.Random(f"{document['seed']} {role} {number}")
        self.points: list[Point] = [
            point for point in document["points"] if (point["role"], point["number"]) == (role, number)
        ]
        self.messages: Counter[int | None] = Counter()
        """By peer."""

    def look(self, unit: str, count: int, peer: int | None = None, endpoint: str = "") -> None:
        """So many messages have passed to a peer; or this one is of that step."""
        for point in list(self.points):
            if point["unit"] == unit and point["peer"] in {peer, None} and count >= point["count"]:
                self.points.remove(point)
                self._reach(point, endpoint)

    def _reach(self, point: Point, endpoint: str) -> None:
        try:
            (self.folder / f"{point['id']}.reached").touch(exist_ok=False)
        except FileExistsError:
            return
        if point["cut"]:
            cut(endpoint)
            return
        done, end = self.folder / f"{point['id']}.done", time.monotonic() + WAIT_S
        while not done.exists() and time.monotonic() < end:
            time.sleep(POLL_S)


def cut(endpoint: str) -> None:
    """Ends this process's TCP connections to an endpoint, under ZeroMQ, which hears of it as of any that breaks."""
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError), closing(socket.socket(fileno=os.dup(int(descriptor)))) as found:
            if found.getpeername() == (host, int(port)):
                found.shutdown(socket.SHUT_RDWR)


class Noise:
    """What becomes of the messages of one connection, one way."""

    def __init__(self, plan: Plan) -> None:
        self._draw = plan.choose.random
        self._shares = plan.noise
        self.held: deque[Any] = deque()

    def of(self, parts: Any) -> list[Any]:
        """What passes now: the message once, twice or not, and before the one that was held back."""
        shares = self._shares
        if not shares:
            return [parts]
        if self._draw() < shares["lost"]:
            return []
        if not self.held and self._draw() < shares["swapped"]:
            self.held.append(parts)
            return []
        passes = [parts] * (1 + (self._draw() < shares["twice"]))
        while self.held:
            passes.append(self.held.popleft())
        return passes


def in_client(module: ModuleType) -> None:
    """Links of a worker to shards."""
    from weft_kvstore.wire.codec import decode_request
    from weft_kvstore.wire.messages import Push

    plans: dict[int, Plan] = {}
    sockets, one = module.ClientSockets, module.LinkSocket
    connect, send, receive = sockets._connect, one.send, one.receive

    def connected(self: Any, link: Any) -> Any:
        made = connect(self, link)
        if made is not None:
            slot = self.core._slot
            plan = plans.get(slot) or plans.setdefault(slot, Plan("worker", slot))
            made.faults = plan, link.shard, made.socket.last_endpoint.decode(), Noise(plan), Noise(plan), deque()
        return made

    def sent(self: Any, parts: Any) -> bool:
        plan, shard, endpoint, noise, *_ = self.faults
        plan.messages[shard] += 1
        if plan.points:
            plan.look("message", plan.messages[shard], shard, endpoint)
            message, _, _ = decode_request(parts)
            if isinstance(message, Push):
                plan.look("step", max(step for _, _, _, step, *_ in message.segments), shard, endpoint)
        return all(send(self, one) for one in noise.of(parts))

    def received(self: Any, *, is_readable: bool = False) -> Any:
        *_, noise, come = self.faults
        while not come and (parts := receive(self, is_readable=is_readable)) is not None:
            come += noise.of(parts)
            is_readable = False
        return come.popleft() if come else None

    sockets._connect, one.send, one.receive = connected, sent, received


def in_shard(module: ModuleType) -> None:
    """The socket of a shard."""
    from weft_kvstore.wire.codec import decode_reply
    from weft_kvstore.wire.messages import Values

    server, router = module.ShardServer, module.Router
    opened, send, receive = server.open, router.send, router.receive

    def open_(self: Any, description: Any, shard: int, **options: Any) -> None:
        self._router.faults = Plan("shard", shard)
        opened(self, description, shard, **options)

    def sent(self: Any, identity: bytes, parts: Any) -> bool:
        plan = getattr(self, "faults", None)
        if plan is not None and plan.points:
            message, _, _ = decode_reply(parts)
            if isinstance(message, Values):
                plan.look("step", max(version for _, _, _, version, *_ in message.segments) - 1)
        return bool(send(self, identity, parts))

    def received(self: Any) -> Any:
        plan = getattr(self, "faults", None)
        if plan is not None:
            plan.messages[None] += 1
            plan.look("message", plan.messages[None])
        return receive(self)

    server.open, router.send, router.receive = open_, sent, received


def in_worker(module: ModuleType) -> None:
    """A worker that has no shards says who it is, so that it can be killed. Where there is noise, links ping often: a
    message that is lost is missed at the next one."""
    start, link_settings = module.Run.start, module.LinkSettings

    def settings(**options: Any) -> Any:
        return link_settings(**options, **({"ping_interval_s": NOISY_PING_S} if Plan("worker", -1).noise else {}))

    def started(self: Any) -> None:
        if self._allocation.slot == 0:
            Plan("worker", 0)
        start(self)

    module.Run.start, module.LinkSettings = started, settings


class Patched(MetaPathFinder):
    """Patches modules once they have been executed."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]  # of this one spec
        return spec


if "WEFT_FAULTS" in os.environ:
    sys.meta_path.insert(
        0,
        Patched(
            {
                "weft_kvstore.client.sockets": in_client,
                "weft_kvstore.serving.shard_server": in_shard,
                "weft_worker.run": in_worker,
            }
        ),
    )
