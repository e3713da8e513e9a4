"""How shards agree on a change of hyper-parameters, so that all of them use it from a step on or none does. Pure.

| A proposal is | once                                                   | then, on this shard                         |
|---------------|--------------------------------------------------------|---------------------------------------------|
| held          | nobody has begun its step here, and no other is held   | its step, and what is later, is not applied |
| taken         | shard 0 has decided so, when each shard was holding it | steps from its own on use the numbers       |
| given up      | shard 0 has decided so: it was withdrawn, or took long | it is as if it had never been               |

Shard 0 decides, and remembers: so what was decided can be learned wherever the proposer dies. The other shards hold a
proposal until they hear of it. In doubt they have any client ask shard 0, which gives up what it has not decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from weft_kvstore.wire.codec import ProtocolError

KEPT: Final = 64
"""Of proposals that were taken, and of those given up, so many are remembered. While a shard is in doubt of one that
was taken no other can be, so it is among them."""

MOST_AHEAD: Final = 1 << 24
"""Steps from the first that nobody has begun to the first that a change is for: no job has so many to go."""

MOST_WAITING: Final = 1024
"""Changes of the job, or of a key, that are kept for steps that are not applied."""


class ChangeRefusedError(Exception):
    """A change that cannot be made. `step` is the first from which it can be; the one asked for where that is not
    what stands in the way."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.step = step


@dataclass(frozen=True, slots=True)
class Proposal:
    """Numbers that a slot wants to hold from a step on: of the key at `place`, or with None of the whole job.

    `id` is drawn by the proposer's process, `process`. `since` is when the shard began to hold it, seconds.
    """

    id: bytes
    slot: int
    process: bytes
    step: int
    place: int | None
    numbers: Mapping[str, float]
    since: float


class Changed(Protocol):
    """What a change is made to."""

    def begun(self, place: int | None) -> tuple[int, str]:
        """The first step of which nobody has pushed or declared anything, of a key or of all; and who has begun the one
        before it, in words."""

    def waiting(self, place: int | None) -> int:
        """How many changes are kept for steps that are not applied, of a key or of the job."""

    def change(self, place: int | None, step: int, numbers: Mapping[str, float]) -> None:
        """These numbers hold from a step on."""


class HyperAgreement:
    """`version` counts the changes that were taken: the same ones, in the same order, on every shard."""

    __slots__ = ("_decides", "_doubts", "_given_up", "_of", "_taken", "held", "version")

    def __init__(self, of: Changed, *, decides: bool) -> None:
        """`decides`: this is shard 0."""
        self.held: Proposal | None = None
        self.version = 0
        self._of = of
        self._decides = decides
        self._doubts = 0
        self._taken: OrderedDict[bytes, int] = OrderedDict()
        self._given_up: OrderedDict[bytes, None] = OrderedDict()

    @property
    def decides(self) -> bool:
        return self._decides

    def holds(self, step: int) -> bool:
        """Whether a step is not to be applied yet."""
        return self.held is not None and step >= self.held.step

    def next_doubt(self) -> int:
        """A number that grows each time."""
        self._doubts += 1
        return self._doubts

    def told(self) -> str:
        """What it waits for, in words."""
        held = self.held
        return "nothing" if held is None else f"slot {held.slot}, which changes hyper-parameters from step {held.step}"

    def propose(self, proposal: Proposal) -> None:
        """Holds a proposal. That it is held already changes nothing. Raises ChangeRefusedError."""
        if self.held is not None:
            if self.held.id == proposal.id:
                return
            told = f"slot {self.held.slot} is changing hyper-parameters at this moment; try again"
            raise ChangeRefusedError(told, proposal.step)
        if proposal.id in self._given_up:
            raise ChangeRefusedError("it took too long and was given up; try again", proposal.step)
        first, told = self._of.begun(proposal.place)
        if proposal.step < first:
            raise ChangeRefusedError(f"{told}; step {first} is possible", first)
        if proposal.step > first + MOST_AHEAD:
            far = f"step {proposal.step} is more than {MOST_AHEAD} steps ahead: step {first} has not begun"
            raise ChangeRefusedError(far, proposal.step)
        if self._of.waiting(proposal.place) >= MOST_WAITING:
            raise ChangeRefusedError(f"{MOST_WAITING} changes wait for their steps already", proposal.step)
        self.held = proposal

    def decide(self, proposal: bytes, *, take: bool) -> int:
        """What becomes of a proposal: its version, or 0 where it is given up. It is decided once; `take` is the
        proposer's word that every shard holds it. Raises ProtocolError on a shard that does not decide."""
        if not self._decides:
            raise ProtocolError("HyperDecide: this is not shard 0")
        if proposal not in self._taken and proposal not in self._given_up:
            holds = self.held is not None and self.held.id == proposal
            self._settled(proposal, self.version + 1 if take and holds else 0)
        return self._taken.get(proposal, 0)

    def settle(self, proposal: bytes, version: int) -> None:
        """Hears what was decided; again, it changes nothing. Raises ProtocolError for what cannot have been."""
        if self._decides:
            raise ProtocolError("HyperSettle: this is shard 0, which decides")
        if self.held is None or self.held.id != proposal:
            return
        if version not in {0, self.version + 1}:
            raise ProtocolError(f"HyperSettle.version: {version}, this shard has {self.version} changes")
        self._settled(proposal, version)

    def is_in_doubt(self, now: float, silence_s: float, linked: Mapping[int, bytes]) -> bool:
        """Whether its proposer is gone, or takes long; `linked` has the process of each slot that is connected."""
        held = self.held
        return held is not None and (now - held.since > silence_s or linked.get(held.slot) != held.process)

    def _settled(self, proposal: bytes, version: int) -> None:
        held = self.held
        if version:
            assert held is not None
            self.version = version
            self._taken[proposal] = version
            self._of.change(held.place, held.step, held.numbers)
        else:
            self._given_up[proposal] = None
        if held is not None and held.id == proposal:
            self.held = None
        if len(self._taken) > KEPT:
            self._taken.popitem(last=False)
        if len(self._given_up) > KEPT:
            self._given_up.popitem(last=False)
