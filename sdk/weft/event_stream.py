"""A job's events as they happen: one stream, taken up again where it broke, and the parser of server-sent events.

The parser is an incremental one of the format in the WHATWG HTML standard, section 9.2. It splits lines itself, because
text readers also split at U+2028 and its like, which may stand in a log line's JSON and end no line of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TypeVar

from pydantic import ValidationError

from weft.api.event import Event, StateChanged
from weft.api.job import Job
from weft.errors import ConnectError, ProtocolError, ServerFaultError, UnavailableError, WeftError
from weft.http import DEFAULT_RETRY, Http, Retry

SILENCE_S = 30.0
"""A stream that says nothing for so long, no comment either, is taken for broken; the server sends comments sooner."""

PATIENCE_S = 90.0
"""Without an answer: long enough for a server to be started again, also where its records take a while to open."""

POLL = Retry(first_s=0.02, longest_s=1.0, growth=1.2)
"""How a job is asked for that starts or ends soon: its end is known a fifth of its time later, or one second."""

R = TypeVar("R")

AWAY = (ConnectError, UnavailableError, ServerFaultError)
"""What says that the server is away, or not ready, rather than that it refuses."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a server is waited for: for how long, after what pauses, and after what silence a stream is broken."""

    patience_s: float = PATIENCE_S
    pauses: Retry = DEFAULT_RETRY
    silence_s: float = SILENCE_S


DEFAULT_RESUMPTION = Resumption()


class Absence:
    """Counts a server's failures in a row. `failures` is 0 while it answers."""

    def __init__(self, http: Http, resumption: Resumption = DEFAULT_RESUMPTION) -> None:
        self._clock = http.clock
        self._resumption = resumption
        self._since_s = 0.0
        self.failures = 0
        self.notice = f"no answer from {http.url}; waiting up to {resumption.patience_s:g} s for the server to be back"

    def endure(self, error: WeftError) -> None:
        """Pauses before another try. Raises `error` where the server has been away for too long."""
        now = self._clock.now()
        if not self.failures:
            self._since_s = now
        self.failures += 1
        left_s = self._since_s + self._resumption.patience_s - now
        if left_s <= 0:
            raise error.with_traceback(None) from None
        self._clock.sleep(min(self._resumption.pauses.pause_s(self.failures), left_s))

    def end(self) -> None:
        """It has answered."""
        self.failures = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something for people that is no event of the job: that the server is away, say."""

    text: str


BACK = Notice("the server answers again")


def follow(http: Http, job: str, *, after: int = 0, resumption: Resumption = DEFAULT_RESUMPTION) -> Iterator[Event]:
    """The job's events with `seq` > `after`, each once and in order; ends with the event of its last state.

    Raises ConnectError when the stream could not be taken up for `resumption.patience_s`.
    """
    for told in narrate(http, job, after=after, resumption=resumption):
        if isinstance(told, Event):
            yield told


def narrate(
    http: Http,
    job: str,
    *,
    after: int = 0,
    tail: int | None = None,
    resumption: Resumption = DEFAULT_RESUMPTION,
) -> Iterator[Event | Notice]:
    """What `follow` gives, and a notice where a broken stream could not be taken up at once, and when it was.

    Of the events so far, only the newest `tail`, where that is said."""
    absence, told = Absence(http, resumption), False
    while True:
        try:
            for event in _connection(http, job, after, tail, resumption.silence_s):
                tail = None  # from here on, `after` says what is new
                if event.seq > after:
                    after = event.seq
                    absence.end()
                    if told:
                        told = False
                        yield BACK
                    yield event
                    if is_last(event):
                        return
            if http.call(Job, "GET", f"/v1/jobs/{job}").state.is_terminal:
                return  # the caller had the last event before, or the stream would have brought it
            broken: WeftError = ConnectError(http.url, f"the event stream of job {job} ended before the job")
        except AWAY as error:
            broken = error
        if absence.failures == 1 and not told:
            told = True
            yield Notice(absence.notice)
        absence.endure(broken)


def is_last(event: Event) -> bool:
    """Whether no event follows this one."""
    return isinstance(event.body, StateChanged) and event.body.state.is_terminal


def _connection(http: Http, job: str, after: int, tail: int | None, silence_s: float) -> Iterator[Event]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    parser = SseParser(last_id=str(after))
    path = f"/v1/jobs/{job}/events" + ("" if tail is None else f"?tail={tail}")
    with http.stream(path, headers=headers, read_timeout_s=silence_s) as response:
        kind = response.headers.get("Content-Type", "")
        if not kind.startswith("text/event-stream"):
            raise ProtocolError(f"{response.url} answered with {kind or 'no type'!r} instead of an event stream")
        for chunk in response.iter_bytes():
            yield from _events(parser, chunk)


def _events(parser: SseParser, chunk: bytes) -> Iterator[Event]:
    try:
        for message in parser.feed(chunk):
            yield Event.from_answer(message.data)
    except (ValidationError, SseFormatError) as error:
        raise ProtocolError(f"the event stream holds something that is no event of this release: {error}") from None


_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 4 << 20
"""A longer line is no event of this API; without a bound a broken server could fill the memory."""


class SseFormatError(ValueError):
    """The stream is not one of server-sent events."""


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatched event. `id` is the last id seen on the stream, also when the message itself brought none."""

    event: str
    data: str
    id: str


@dataclass(slots=True)
class SseParser:
    """Takes a stream's bytes in order, cut anywhere.

    `_rest` is the line that has no end yet, `_data` the `data` fields since the last blank line. `last_id` and
    `retry_ms` outlive messages, as the standard asks. A stream that ends within a message drops it.
    """

    last_id: str = ""
    retry_ms: int | None = None
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _begun: bool = False

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """The messages that this chunk ends. Raises SseFormatError for a line without end."""
        buffer = self._rest + chunk
        if not self._begun and len(buffer) >= len(_BYTE_ORDER_MARK):
            buffer, self._begun = buffer.removeprefix(_BYTE_ORDER_MARK), True
        start = 0
        for end in _LINE_END.finditer(buffer):
            if end.group() == b"\r" and end.end() == len(buffer):
                break  # the next chunk may begin with the \n that belongs to it
            message = self._line(buffer[start : end.start()].decode("utf-8", "replace"))
            start = end.end()
            if message is not None:
                yield message
        self._rest = buffer[start:]
        if len(self._rest) > MAX_LINE_BYTES:
            raise SseFormatError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        if not data:
            return None
        return Message(event or "message", "\n".join(data), self.last_id)


def polled(
    http: Http,
    ask: Callable[[], R],
    *,
    resumption: Resumption = DEFAULT_RESUMPTION,
    deadline: float | None = None,
) -> Iterator[R | Notice]:
    """What `ask` returns, again and again after pauses, the last of which ends at the `deadline`; a notice instead each
    time that the server is away.

    Raises ConnectError and its like when the server was away for `resumption.patience_s`.
    """
    absence = Absence(http, resumption)
    for polls in count(1):
        try:
            answer = ask()
        except AWAY as error:
            yield Notice(absence.notice)
            absence.endure(error)
            continue
        absence.end()
        yield answer
        pause_s = POLL.pause_s(polls)
        http.clock.sleep(pause_s if deadline is None else min(pause_s, max(deadline - http.clock.now(), 0.0)))


def await_placement(http: Http, job: str, said: str = "") -> Iterator[Notice]:
    """Ends once the job has its agents, or has ended. Gives each new reason why it waits for them, `said` being the
    last one that was given, and when the server does not answer. Raises as `polled` does."""
    for found in polled(http, partial(http.call, Job, "GET", f"/v1/jobs/{job}")):
        if isinstance(found, Notice):
            text = found.text
        elif not found.state.is_waiting:
            return
        else:
            text = f"{found.state.value}: {found.reason}" if found.reason else said
        if text != said:
            said = text
            yield Notice(text)
