"""A shard's daemon in this process, whose children are real, and the membership that gives it orders."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from same_host_children import wait_until
from store_cluster import WAIT_S
from weft.agent.membership import Holder
from weft.api.agent import Orders, Registration, ShardAllocation
from weft.api.lifecycle import AllocationEvent
from weft.api.store import StoreSpec
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.serving.daemon import ShardDaemon, ShardSettings

SETTINGS = ShardSettings(server="http://127.0.0.1:1", name="shard-0")


class Reports:
    """Stands for the reporter of one allocation."""

    def __init__(self, facts: SimpleQueue[tuple[str, AllocationEvent, str | None]], allocation: str) -> None:
        self._facts = facts
        self._allocation = allocation

    def report(
        self, *, event: AllocationEvent, reason: str | None = None, endpoint: str | None = None, **others: Any
    ) -> None:
        self._facts.put((self._allocation, event, endpoint or reason))

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


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


class Served:
    """A daemon that runs, and the membership that gives it orders."""

    def __init__(self, settings: ShardSettings = SETTINGS) -> None:
        made: list[Members] = []

        def join(registration: Registration, holder: Holder) -> Members:
            made.append(Members(registration, holder))
            return made[0]

        self._stop = threading.Event()
        self.daemon = ShardDaemon(settings, join=join)
        (self.members,) = made
        self.forkserver = self.daemon._daemon._forkserver._process.pid  # type: ignore[union-attr]  # it was started
        self._running = threading.Thread(target=self.daemon.run, args=(self._stop,))
        self._running.start()

    def order(self, *allocations: ShardAllocation) -> None:
        self.members.holder.hold(orders(*allocations))

    def heard(self) -> tuple[str, AllocationEvent, str | None]:
        """What is told next: of which allocation, what, and where or why."""
        return self.members.facts.get(timeout=WAIT_S)

    def opened(self, description: StoreDescription, number: str, *more: ShardAllocation) -> StoreDescription:
        """Orders one more, and returns it with the endpoint at which it is ready."""
        self.order(allocation(description, number), *more)
        name, event, endpoint = self.heard()
        assert (name, event) == (number, AllocationEvent.READY)
        assert endpoint is not None
        return msgspec.structs.replace(description, shards=(endpoint,))

    def end(self) -> None:
        self._stop.set()
        self._running.join(WAIT_S)
        assert not self._running.is_alive()


def until_idle(served: Served) -> None:
    wait_until(lambda: not served.daemon._daemon._carried and not served.daemon.statistics()["jobs"])


def jobs_of(served: Served) -> list[str]:
    """The jobs of which a child has told."""
    return sorted(name.partition(":")[2] for name in served.daemon.statistics() if name.startswith("job_links:"))


def children_of(served: Served) -> list[int]:
    """The processes of its children, in the order of their start."""
    listed = Path(f"/proc/{served.forkserver}/task/{served.forkserver}/children").read_text()
    return [int(process) for process in listed.split()]
