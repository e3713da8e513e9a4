"""The messages between client and shard. `docs/wire.md` gives the bytes; the order of fields is the wire format."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from operator import itemgetter
from typing import Annotated, Final, NamedTuple

import msgspec

# --- The segments of a client's frame ---------------------------------------------------------------------------------


class PayloadKind(IntEnum):
    """What a segment of a push has, by its number on the wire."""

    GRADIENT = 0
    VALUE = 1
    IDS = 2
    RESTORED = 3
    RESTORED_STATE = 4  # Of rows of a table.


class SentEntry(NamedTuple):
    """The fields of a segment of a push, without its slices: see `Push`."""

    payload_kind: PayloadKind
    request: int
    bucket: int
    step: int
    chunks: int


# --- The messages -----------------------------------------------------------------------------------------------------
# A segment is `count` adjacent slices of a bucket on one shard, the first of them numbered `first`; `nbytes` is their
# length together. Buckets are numbered as in `weft_kvstore.sharding`. A segment of a table has adjacent chunks instead,
# of `chunks` in all; else `chunks` is 0. A message has a row, an array, for each of its segments.
#
# Client and shard of one host may read each other's memory: then `at` has the offset and length of each extent of the
# payload there, and the message has no second part.


MAX_ENTRIES: Final = 4096
"""Segments, ranges, requests or keys in one message, at most."""

MAX_TERMS: Final = 64
"""Terms of a sum in one message: more than any sum of float64 numbers has."""

MAX_NUMBERS: Final = 64
"""Hyper-parameters in one message: far more than a rule has."""

MAX_CALL_PRIORITY: Final = 1 << 30
"""Of a call, and its negative: a higher priority goes first, 0 is that of a call that names none."""

NO_REQUEST: Final = 0
"""The request number of a message that needs no answer."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
CallPriority = Annotated[int, msgspec.Meta(ge=-MAX_CALL_PRIORITY, le=MAX_CALL_PRIORITY)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Column = Annotated[list[Count], msgspec.Meta(max_length=MAX_ENTRIES)]
Digest = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class RefusalCode(StrEnum):
    """Why a shard refuses a connection. After the first a client tries again for as long as it is open; after the
    second, if it was never welcomed; after the third it opens a new connection. All others are final."""

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
    """Why a shard could not answer a request."""

    LOST = "lost"
    REFUSED = "refused"
    PASSED = "passed"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """A message; its tag is its type on the wire."""


class Hello(Message, frozen=True, omit_defaults=True, tag="hello"):
    """The first message of a connection: who connects. `process` is drawn once per client, `session` counts its
    connections to this shard from 1, `description` is the digest of what both must agree on. `loopback`: the connection
    uses no network. `boot` is that of the shard's Welcome, if the process has had one: it is known there. `shard`: the
    number of the shard that the client takes the other side for."""

    job: Name
    term: Count
    slot: Count
    incarnation: Count
    process: Digest
    session: Count
    description: Digest
    loopback: bool = False
    boot: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    shard: Count = 0


class Reading(IntEnum):
    """Which value a pull of version v gets. OWN: once this slot's steps before v are applied. SETTLED, in async: once
    those of every slot are. EXACT: exactly version v; the pull fails if that has passed."""

    OWN = 0
    SETTLED = 1
    EXACT = 2


AskedRange = tuple[Count, Count, Count, Count]
"""`bucket`, `first`, `count`, and the `chunks` of ids that follow, of a table: then `first` and `count` are 0."""

Ask = tuple[
    Count, Count, bool, Reading, bool, Annotated[list[AskedRange], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
]
"""`request`, `version`, `state`, `reading`, `compressed`, `ranges`: see `Pull`."""


class Pull(Message, frozen=True, omit_defaults=True, tag="pull"):
    """Requests ranges of slices, each answered once it is at `version`, by `reading`; `state`: the rule's state instead
    of the value. Of a table, the rows are requested whose ids follow in pushes. `compressed`: the values may be
    encoded, as the description says. `priority` is that of the calls: values of a higher one are sent first."""

    asks: Annotated[list[Ask], msgspec.Meta(max_length=MAX_ENTRIES)]
    priority: CallPriority = 0


At = Annotated[list[tuple[Count, Positive]], msgspec.Meta(max_length=MAX_ENTRIES)]
"""Where a payload is in its sender's memory: offset and length of each of its extents, in order. Empty: it is the
message's second part."""

chunks_in, nbytes_of = itemgetter(4), itemgetter(-1)
"""Fields of a row of a Push; `nbytes_of` also of a row of Values."""

SentRow = tuple[PayloadKind, Count, Count, Count, Count, Count, Positive, Count]
"""The fields of a `SentEntry`, then `first`, `count`, `nbytes`."""

ValueRow = tuple[Count, Count, Count, Count, bool, Count, Positive, Count]
"""`request`, `array`, `bucket`, `version`, `compressed`, `first`, `count`, `nbytes`."""


class Push(Message, frozen=True, omit_defaults=True, tag="push"):
    """Data from a client; the payload is the bytes of the segments, joined, or is `at` offsets in the client's memory.

    `payload_kind` 0: gradients of step `step`; 1: values to be set at version `step`; 2: ids of the rows that pull
    `request` asks for; 3: what a key that nobody has pushed was at version `step`, its value where `chunks` is 0, else
    the rule's state array of that number, from 1, and of a table rows of its value; 4: rows of a table's state, the
    rule's array number `step`. `request` numbers the client's call; of gradients it is 0, so that those of several
    calls may be one segment, or the call's number, so that they are not. `acknowledge`: as `Acknowledge`. `pull`: a
    Pull that the shard answers after the frame; of ids and rows it is read before, since they belong to it."""

    frame: Count
    segments: Annotated[list[SentRow], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    at: At = []
    acknowledge: Column = []
    pull: Pull | None = None


class Barrier(Message, frozen=True, tag="barrier"):
    """This slot has sent all of `step`, and nothing for the keys in `nothing`. Keys beyond 4,096 take further
    messages."""

    request: Count
    step: Count
    nothing: Column


class Measure(Message, frozen=True, tag="measure"):
    """This slot has sent its whole barrier of `step`. The shard answers with the measure of its part of the merged
    gradient, once every slot has asked and the step is merged. Only if steps are committed."""

    request: Count
    step: Count


class Commit(Message, frozen=True, tag="commit"):
    """Applies `step`: the gradient's norm over all shards, and whether all of it is finite."""

    request: Count
    step: Count
    norm: float
    finite: bool


class Hyper(Message, frozen=True, tag="hyper"):
    """Hyper-parameters have these numbers from `step` on: of one key, or of the whole job if `key` is empty."""

    request: Count
    step: Count
    key: Annotated[list[Count], msgspec.Meta(max_length=1)]
    names: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_NUMBERS)]
    numbers: Annotated[list[float], msgspec.Meta(min_length=1, max_length=MAX_NUMBERS)]


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
    """Answers a Hello. `boot` is drawn once per shard process; after `silence_ms` without a message the shard counts
    the client as lost. `listener` names the socket at which they can share memory; empty if they cannot."""

    session: Count
    boot: Digest
    silence_ms: Count
    listener: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Released(Message, frozen=True, tag="released"):
    """The shard no longer reads these frames in the client's memory, which may write there. After a Welcome it reads
    none of earlier connections."""

    frame: Column


class Refused(Message, frozen=True, tag="refused"):
    """The shard refuses this connection."""

    code: RefusalCode
    reason: Text


class PushRefused(Message, frozen=True, tag="push-refused"):
    """Segment number `segment` of frame `frame` was refused."""

    frame: Count
    segment: Count
    reason: Text


class Values(Message, frozen=True, omit_defaults=True, tag="values"):
    """Answers Pulls: each segment belongs to its `request`; `array` 0 is the value or the rule's first state array.
    `compressed`: its slices are encoded, as the description says for values of their key. `acknowledge`: as
    `Acknowledge`. The payload may be `at` offsets in the shard's memory."""

    frame: Count
    segments: Annotated[list[ValueRow], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    at: At = []
    acknowledge: Column = []


class Done(Message, frozen=True, tag="done"):
    """Answers these barriers, commits, or changes of hyper-parameters."""

    request: Column


class Measured(Message, frozen=True, omit_defaults=True, tag="measured"):
    """Answers a Measure: terms whose exact sum is the sum of squares of the shard's part, whether all of it is finite,
    and the loss scale that it was divided by, after `good` finite steps in a row."""

    request: Count
    squares: Annotated[list[float], msgspec.Meta(max_length=MAX_TERMS)]
    finite: bool
    scale: float
    good: Count = 0


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


Request = Hello | Push | Pull | Barrier | Measure | Commit | Hyper | Cancel | Why | Ping | Bye | Acknowledge
"""Messages of a client."""

Reply = Welcome | Refused | Released | PushRefused | Values | Done | Measured | Failed | Because | Pong | Acknowledge
"""Messages of a shard."""
