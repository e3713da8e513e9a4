"""What client and shard say to each other. `docs/wire.md` gives the bytes; the order of fields is the wire format."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from operator import itemgetter
from typing import Annotated, Final, NamedTuple

import msgspec

# --- What a client's frame may carry in one run -----------------------------------------------------------------------


class PayloadKind(IntEnum):
    """The wire's numbers for it."""

    GRADIENT = 0
    VALUE = 1
    IDS = 2
    RESTORED = 3


class SentEntry(NamedTuple):
    """What a run that a client sends says beside slice numbers: see `messages.Push`."""

    payload_kind: PayloadKind
    request: int
    bucket: int
    step: int
    chunks: int


# --- What client and shard say to each other --------------------------------------------------------------------------
# `docs/wire.md` gives the bytes.
#
# A run is `count` adjacent slices of what the shard has of one bucket, the first of them numbered `first`; `nbytes` is
# the length of all of them together. Buckets are numbered as in `weft_kvstore.sharding`. Of a table, a run is of
# adjacent chunks instead, of `chunks` in all; else `chunks` is 0. A message has a row, an array, for each of its runs.
#
# Client and shard of one host may read each other's memory: a payload then is there, at `at`, which has the offset and
# the length of each part of it, and no second part comes.


MAX_RUNS: Final = 4096
"""Runs, requests or keys in one message, at most."""

MAX_TERMS: Final = 64
"""Terms of a sum in one message: more than any sum of float64 numbers has."""

MAX_NUMBERS: Final = 64
"""Hyper-parameters in one message: far more than a rule has."""

MAX_CALL_PRIORITY: Final = 1 << 30
"""Of a call, and its negative: a higher priority goes first, 0 is that of a call that names none."""

NOBODY: Final = 0
"""The request of a message whose answer nobody waits for."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
CallPriority = Annotated[int, msgspec.Meta(ge=-MAX_CALL_PRIORITY, le=MAX_CALL_PRIORITY)]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Column = Annotated[list[Count], msgspec.Meta(max_length=MAX_RUNS)]
Digest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class RefusalCode(StrEnum):
    """Why a shard will not talk. A client that was never welcomed tries again after the first two, until its silence
    is over; after the third it says Hello on a new connection. Everything else is final."""

    UNKNOWN_JOB = "unknown-job"
    BUSY = "busy"
    UNKNOWN_LINK = "unknown-link"
    STALE_TERM = "stale-term"
    STALE_INCARNATION = "stale-incarnation"
    OTHER_DESCRIPTION = "other-description"
    NO_SUCH_SLOT = "no-such-slot"
    MALFORMED = "malformed"
    CLOSED = "closed"


class FailureCode(StrEnum):
    """What became of a request that a shard gives up."""

    LOST = "lost"
    REFUSED = "refused"
    PASSED = "passed"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A message; its tag is the wire's word for it."""


class Hello(Message, frozen=True, omit_defaults=True, tag="hello"):
    """The first message of a connection: who speaks. `process` is drawn once per client, `session` counts its
    connections to this shard from 1, `description` is the digest of what both must agree on. `loopback`: the connection
    leaves the host through no network."""

    job: Name
    term: Count
    slot: Count
    incarnation: Count
    process: Digest
    session: Count
    description: Digest
    loopback: bool = False


class Reading(IntEnum):
    """Which version of a value a pull has. OWN: what holds once this slot's steps before it are applied; where slots go
    on by themselves, SETTLED: those of every slot. EXACT: that version and no later one, or a failure."""

    OWN = 0
    SETTLED = 1
    EXACT = 2


AskedRun = tuple[Count, Count, Count, Count]
"""`bucket`, `first`, `count`, and the `chunks` of ids that follow, of a table: then `first` and `count` are 0."""

Ask = tuple[
    Count, Count, bool, Reading, bool, Annotated[list[AskedRun], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]
]
"""`request`, `version`, `state`, `reading`, `compressed`, `runs`: see `Pull`."""


class Pull(Message, frozen=True, omit_defaults=True, tag="pull"):
    """Asks for runs of slices, each once it is at `version`, in the way of `reading`; `state`: for the rule's state
    instead of the value. Of a table the rows are asked for whose ids follow. `compressed`: the values may come encoded,
    where the description says how. `priority` is that of the calls: values of a higher one are sent first."""

    asks: Annotated[list[Ask], msgspec.Meta(max_length=MAX_RUNS)]
    priority: CallPriority = 0


At = Annotated[list[tuple[Count, Positive]], msgspec.Meta(max_length=MAX_RUNS)]
"""Where a payload is in its sender's memory: offset and length of each of its parts, in their order. Empty: it is the
message's second part."""

chunks_of, nbytes_of = itemgetter(4), itemgetter(-1)
"""What a row of a Push has there; the last is of a row of Values too."""

SentRow = tuple[PayloadKind, Count, Count, Count, Count, Count, Positive, Count]
"""The fields of a `SentEntry`, then `first`, `count`, `nbytes`."""

ValueRow = tuple[Count, Count, Count, Count, bool, Count, Positive, Count]
"""`request`, `array`, `bucket`, `version`, `compressed`, `first`, `count`, `nbytes`."""


class Push(Message, frozen=True, omit_defaults=True, tag="push"):
    """What a client sends; the payload is the bytes of the runs, joined, or is `at` offsets in the client's memory.

    `payload_kind` 0: gradients of step `step`; 1: values to be set at version `step`; 2: ids of the rows that pull
    `request` asks for; 3: what a key that nobody has pushed was at version `step`, its value where `chunks` is 0, else
    the rule's state array of that number, from 1. `request` numbers the client's call; of gradients it is 0, so that
    those of several calls may be one run, or the call's number, so that they are not. `acknowledge`: as `Acknowledge`.
    `pull`: a Pull that the shard answers after the frame; of ids and rows it is read before, since they belong to it.
    """

    frame: Count
    runs: Annotated[list[SentRow], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]
    at: At = []
    acknowledge: Column = []
    pull: Pull | None = None


class Barrier(Message, frozen=True, tag="barrier"):
    """This slot has sent all of `step` and has nothing for the keys named. Keys beyond 4,096 take further messages."""

    request: Count
    step: Count
    nothing: Column


class Measure(Message, frozen=True, tag="measure"):
    """This slot's barrier of `step` is whole. Asks what this shard's part of the merged gradient amounts to, once every
    slot has said so and all of the step is merged here. Only where steps are committed."""

    request: Count
    step: Count


class Commit(Message, frozen=True, tag="commit"):
    """`step` is to be applied: what all shards measured adds up to `norm`, and all of it was finite (1) or not (0)."""

    request: Count
    step: Count
    norm: float
    finite: Flag


class Hyper(Message, frozen=True, tag="hyper"):
    """Proposes that hyper-parameters have these numbers from `step` on: of one key, or, where `key` is empty, of the
    whole job. `proposal` is drawn for each. It is held, and so are the step and what is later, until it is decided."""

    request: Count
    proposal: Digest
    step: Count
    key: Annotated[list[Count], msgspec.Meta(max_length=1)]
    names: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_NUMBERS)]
    numbers: Annotated[list[float], msgspec.Meta(min_length=1, max_length=MAX_NUMBERS)]


class HyperDecide(Message, frozen=True, tag="hyper-decide"):
    """To shard 0: what becomes of this proposal? `take` 1, said by the proposer alone: every shard holds it. 0: it is
    given up, unless it was taken. `request` 0: the answer is to be passed on to the other shards."""

    request: Count
    proposal: Digest
    take: Flag


class HyperSettle(Message, frozen=True, tag="hyper-settle"):
    """To the other shards: shard 0 has taken the proposal as change number `version`; 0: it was given up."""

    request: Count
    proposal: Digest
    version: Count


class Cancel(Message, frozen=True, tag="cancel"):
    """The client waits for these requests no longer; 0: nor for those that it asked for on an earlier connection and
    has not repeated on this one."""

    request: Column


class Why(Message, frozen=True, tag="why"):
    """Asks what these requests wait for."""

    request: Column


class Ping(Message, frozen=True, tag="ping"):
    pass


class Bye(Message, frozen=True, tag="bye"):
    """The client closes."""


class Acknowledge(Message, frozen=True, tag="acknowledge"):
    """These frames have arrived; their bytes count against the credit no longer. Both directions."""

    frame: Column


class Welcome(Message, frozen=True, omit_defaults=True, tag="welcome"):
    """Answers a Hello. `boot` is drawn once per shard process; `silence_ms` is how long the shard bears silence.
    `listener` is where client and shard can give each other their memory; empty where they cannot."""

    session: Count
    boot: Digest
    silence_ms: Count
    listener: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Released(Message, frozen=True, tag="released"):
    """What these frames have in the client's memory is read no more; it may be written. That says too that they have
    arrived. 0 stands for all frames of the client's earlier connections."""

    frame: Column


class Refused(Message, frozen=True, tag="refused"):
    """The shard will not talk on this connection."""

    code: RefusalCode
    reason: Text


class PushRefused(Message, frozen=True, tag="push-refused"):
    """Run `run` of frame `frame` was not taken in."""

    frame: Count
    run: Count
    reason: Text


class Values(Message, frozen=True, omit_defaults=True, tag="values"):
    """Answers Pulls: each run belongs to its `request`; `array` 0 is the value or the rule's first state array.
    `compressed`: its slices are encoded, as the description says for values of their key. `acknowledge`: as
    `Acknowledge`, said on the way. The payload may be `at` a place in the shard's memory."""

    frame: Count
    runs: Annotated[list[ValueRow], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]
    at: At = []
    acknowledge: Column = []


class Done(Message, frozen=True, tag="done"):
    """These barriers, commits, or decisions on hyper-parameters, have been taken in."""

    request: Column


class Measured(Message, frozen=True, omit_defaults=True, tag="measured"):
    """Answers a Measure: terms that exactly add up to the squares of the shard's part, whether all of it is finite (1),
    and the loss scale that it was divided by, since which `good` steps in a row were finite."""

    request: Count
    squares: Annotated[list[float], msgspec.Meta(max_length=MAX_TERMS)]
    finite: Flag
    scale: float
    good: Count = 0


class HyperAnswer(Message, frozen=True, tag="hyper-answer"):
    """Answers a Hyper. `held` 1: the shard holds it. 0: it cannot; `step` is the first that is possible, the one asked
    for where that is not what stands in the way."""

    request: Count
    proposal: Digest
    held: Flag
    step: Count
    reason: Text


class HyperDecided(Message, frozen=True, tag="hyper-decided"):
    """Answers a HyperDecide: the proposal is change number `version`; 0: it was given up."""

    request: Count
    proposal: Digest
    version: Count


class HyperDoubt(Message, frozen=True, tag="hyper-doubt"):
    """This shard holds a proposal and hears nothing of its proposer: will somebody ask shard 0?"""

    proposal: Digest


class Failed(Message, frozen=True, tag="failed"):
    request: Count
    code: FailureCode
    reason: Text


class Because(Message, frozen=True, tag="because"):
    """Answers a Why."""

    request: Count
    reason: Text


class Pong(Message, frozen=True, tag="pong"):
    pass


Request = (
    Hello
    | Push
    | Pull
    | Barrier
    | Measure
    | Commit
    | Hyper
    | HyperDecide
    | HyperSettle
    | Cancel
    | Why
    | Ping
    | Bye
    | Acknowledge
)
"""What a client may say to a shard."""

Reply = (
    Welcome
    | Refused
    | Released
    | PushRefused
    | Values
    | Done
    | Measured
    | HyperAnswer
    | HyperDecided
    | HyperDoubt
    | Failed
    | Because
    | Pong
    | Acknowledge
)
"""What a shard may say to a client."""
