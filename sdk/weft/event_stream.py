"""A job's events as they happen: one stream, taken up again where it broke."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from weft.absence import AWAY, DEFAULT_RESUMPTION, Absence, Resumption
from weft.api.event import Event, StateChanged
from weft.api.job import Job
from weft.errors import ConnectError, ProtocolError, WeftError
from weft.http import Http
from weft.sse import SseFormatError, SseParser


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
    http: Http, job: str, *, after: int = 0, resumption: Resumption = DEFAULT_RESUMPTION
) -> Iterator[Event | Notice]:
    """What `follow` gives, and a notice where a broken stream could not be taken up at once, and when it was."""
    absence, told = Absence(http, resumption), False
    while True:
        try:
            for event in _connection(http, job, after, resumption.silence_s):
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


def _connection(http: Http, job: str, after: int, silence_s: float) -> Iterator[Event]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    parser = SseParser(last_id=str(after))
    with http.stream(f"/v1/jobs/{job}/events", headers=headers, read_timeout_s=silence_s) as response:
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
