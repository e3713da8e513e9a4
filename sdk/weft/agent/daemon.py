"""A daemon of workers or shards: it registers with a server, and has a child process for each allocation."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from weft.agent.alive import AliveFile, Question
from weft.agent.children import TOLD_CHARACTERS, Child, ForkError, Forkserver, ProcessLimits
from weft.agent.machine import memory_bytes
from weft.agent.membership import Join, joining
from weft.agent.reporter import Reporter
from weft.agent.state import (
    AnyAllocation,
    Ended,
    Exit,
    Forget,
    Holding,
    Instruction,
    Lease,
    Lost,
    Ordered,
    RequestSet,
    RequestSnapshot,
    RequestUpload,
    Said,
    Start,
    Stimulus,
    Stop,
    Tell,
    Terminate,
    lease_of,
)
from weft.agent.transfer import DownloadError
from weft.api.agent import Orders, Registration, Report, WorkerAllocation
from weft.api.lifecycle import AllocationEvent

OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory")
"""What a child's last words have that found no memory."""
EXIT_DEADLINE_S = 4.0
"""For children to end once the daemon is to: above the grace that each has, below the daemon's own after its parent's
end."""
MOST_PROGRAMS = 4
"""Documents that are kept: a child that takes the place of another runs the same programs."""
FLUSH_S = 0.5
LEAVE_S = 1.5

_FACTS = tuple(name for name in Report.model_fields if name not in {"term", "seq"})

_log = logging.getLogger("weft.agent")


class AgentSettings(Protocol):
    """What is set of either kind of agent."""

    @property
    def server(self) -> str | None:
        """The server's URL."""

    @property
    def token(self) -> str | None:
        """The bearer token that the server asks of agents."""

    @property
    def alive_file(self) -> Path | None:
        """What is touched at every heartbeat while the daemon's work goes on."""

    @property
    def job_memory(self) -> int | None:
        """Bytes of private memory that a child may have; the machine's where left out."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Put in the queue by whoever wants to know whether it is handled."""


@dataclass(slots=True)
class Carried:
    """A child, from its order to its end, and its allocation's way to the server; `unsaid` waits for its fork."""

    reporter: Reporter
    child: Child | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    unsaid: list[Mapping[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class AgentDaemon:
    """One queue of stimuli, handled on the thread that calls `run`; a thread for each child hears what it says.

    A child's first line is what `task` makes of its allocation. It says `{"report": {...}}`, the facts of a `Report`;
    `heard` gets whatever else it says, and None once it has ended, on its thread; what it raises of a line fails the
    allocation. It is told `{"upload": true}`,
    `{"set": number}` and `{"snapshot": {"step": number, "folder": where}}`.
    """

    def __init__(
        self,
        settings: AgentSettings,
        registration: Registration,
        forkserver: Forkserver,
        task: Callable[[AnyAllocation], Mapping[str, Any]],
        *,
        at_once: int | None = None,
        heard: Callable[[Lease, dict[str, Any] | None], None] = lambda lease, line: None,
        join: Join | None = None,
    ) -> None:
        self._state = Holding(registration.kind, at_once)
        self._forkserver = forkserver
        self._task = task
        self._heard = heard
        self._memory_bytes = settings.job_memory or memory_bytes()
        self._stimuli: SimpleQueue[Stimulus | _Asked | None] = SimpleQueue()
        self._carried: dict[Lease, Carried] = {}
        self._programs: dict[str, bytes] = {}
        """The newest documents that the server gave, by their SHA-256."""
        self._question = Question(lambda: self._stimuli.put(_Asked()))
        alive = AliveFile(settings.alive_file, self._question.lives) if settings.alive_file is not None else None
        join = join or joining(settings.server, token=settings.token, alive=alive)
        self._members = join(registration, self)

    def hold(self, orders: Orders) -> None:
        """Called on the membership's thread."""
        self._stimuli.put(Ordered(orders))

    def lost(self) -> None:
        """Called on the membership's thread."""
        self._stimuli.put(Lost())

    def run(self, stop: threading.Event) -> None:
        """Works for the server until `stop` is set and all children have ended, or could not within a few seconds; the
        forkserver takes these with it."""
        threads = [
            threading.Thread(target=self._members.run, args=(stop,), name="membership", daemon=True),
            threading.Thread(target=self._await, args=(stop,), name="await-stop", daemon=True),
        ]
        for thread in threads:
            thread.start()
        while (stimulus := self._stimuli.get()) is not None:
            if isinstance(stimulus, _Asked):
                self._question.answer()
            elif self._carry_out_all(stimulus):
                break
        else:
            _log.error("%s did not end within %g s", ", ".join(map(str, self._carried)), EXIT_DEADLINE_S)
        self._forkserver.close()
        for carried in self._carried.values():
            carried.reporter.flush(FLUSH_S)
            carried.reporter.close()
        threads[0].join(LEAVE_S)
        if not threads[0].is_alive():
            self._members.close()

    def _await(self, stop: threading.Event) -> None:
        stop.wait()
        self._stimuli.put(Terminate())
        threading.Event().wait(EXIT_DEADLINE_S)
        self._stimuli.put(None)

    def _carry_out_all(self, stimulus: Stimulus) -> bool:
        """Whether the daemon is to end."""
        instructions = self._state.handle(stimulus)
        for instruction in instructions:
            self._carry_out(instruction)
        return Exit() in instructions

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Start(allocation):
                self._start(allocation)
            case Stop(lease):
                _log.info("allocation %s is stopped", lease)
                carried = self._carried[lease]
                with carried.lock:
                    carried.stopped.set()
                    child = carried.child
                if child is not None:
                    threading.Thread(target=child.stop, name=f"stop-{lease.id}", daemon=True).start()
            case RequestUpload(lease):
                self._say(lease, {"upload": True})
            case RequestSet(lease, number):
                self._say(lease, {"set": number})
            case RequestSnapshot(lease, step, folder, since):
                self._say(lease, {"snapshot": {"step": step, "folder": folder, "since": since}})
            case Tell(lease, facts):
                if facts.event is not None:
                    level = logging.ERROR if facts.reason else logging.INFO
                    _log.log(level, "allocation %s: %s %s", lease, facts.event, facts.reason or "")
                self._carried[lease].reporter.report(**{name: getattr(facts, name) for name in _FACTS})
            case Forget(lease):
                self._carried.pop(lease).reporter.close()
            case Exit():
                _log.info("no child is left")

    def _say(self, lease: Lease, line: Mapping[str, Any]) -> None:
        carried = self._carried[lease]
        with carried.lock:
            if carried.child is None:
                carried.unsaid.append(line)
            else:
                carried.child.send(line)

    def _start(self, allocation: AnyAllocation) -> None:
        lease = lease_of(allocation)
        carried = self._carried[lease] = Carried(self._members.reporter(lease.id, lease.term))
        threading.Thread(
            target=self._live, args=(lease, carried, allocation), name=f"child-{lease.id}", daemon=True
        ).start()

    def _live(self, lease: Lease, carried: Carried, allocation: AnyAllocation) -> None:
        """On a thread of the child's own: has what it needs, forks it, and hears it until it has ended."""
        try:
            task = self._task(self._with_programs(allocation, carried))
            with carried.lock:
                if carried.stopped.is_set():
                    raise ForkError("it was stopped before it began")
                child = self._forkserver.fork(ProcessLimits(memory_bytes=self._memory_bytes))
                for line in (task, *carried.unsaid):
                    child.send(line)
                carried.child = child
        except (ForkError, DownloadError) as error:
            self._stimuli.put(Ended(lease, str(error), lost=True))
        except Exception as error:  # noqa: BLE001  # the thread's outermost frame: the server has to hear of it
            _log.exception("allocation %s does not begin", lease)
            self._stimuli.put(Ended(lease, f"its process could not be begun: {error}", lost=True))
        else:
            self._listen(lease, carried, child)

    def _with_programs(self, allocation: AnyAllocation, carried: Carried) -> AnyAllocation:
        """The allocation with its programs, which the server is asked for where no earlier one had them. Raises
        DownloadError."""
        if not isinstance(allocation, WorkerAllocation) or not allocation.programs_sha256 or allocation.programs:
            return allocation
        sha256 = allocation.programs_sha256
        document = self._programs.pop(sha256, None)
        if document is None:
            file = io.BytesIO()
            carried.reporter.download(f"programs/{sha256}", file, carried.stopped)
            document = file.getvalue()
            if hashlib.sha256(document).hexdigest() != sha256:
                raise DownloadError(f"the server gave other programs than those of SHA-256 {sha256}")
        self._programs[sha256] = document  # the newest is the last
        while len(self._programs) > MOST_PROGRAMS:
            del self._programs[next(iter(self._programs))]
        return allocation.model_copy(update={"programs": json.loads(document)})

    def _listen(self, lease: Lease, carried: Carried, child: Child) -> None:
        for line in child.lines():
            try:
                if "report" not in line:
                    self._heard(lease, line)
                    continue
                facts = Report.model_validate({"term": lease.term, "seq": 0, **line["report"]})
            except Exception as error:  # noqa: BLE001  # whatever it says, it has to be heard until it has ended
                reason = f"its process said what is no report: {error}"
                facts = Report(term=lease.term, seq=0, event=AllocationEvent.FAILED, reason=reason[:TOLD_CHARACTERS])
            self._stimuli.put(Said(lease, facts))
        how = f"{child.ending}; its log ended with: {child.last_logged}" if child.last_logged else child.ending
        if any(word in child.last_logged for word in OUT_OF_MEMORY):
            how += f"; a job's process may take {self._memory_bytes} bytes of memory here (--job-memory)"
        carried.child = None
        self._heard(lease, None)
        _log.info("allocation %s, process %d: %s", lease, child.process, child.ending)
        self._stimuli.put(Ended(lease, how, lost=child.was_killed))
