"""Calls of the HTTP API: retried, parsed into models, and turned into errors.

Every call of this API may be repeated: reads by nature, most changes because they end in the same state, what makes
something (a job, an upload, a token) by its `Idempotency-Key`. So a broken connection and a gateway's 502, 503 and 504
are tried again. A DELETE that is repeated may say that nothing is there; a model that is read twice leaves an upload
that expires.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, BinaryIO, TypeVar

import httpx
from pydantic import ValidationError

from weft.api.base import Model
from weft.api.problem import Problem
from weft.errors import (
    ArgumentError,
    ClosedError,
    ConnectError,
    ProblemError,
    ProtocolError,
    UrlError,
    WeftError,
    error_for,
)

M = TypeVar("M", bound=Model)

Progress = Callable[[int, int], None]
"""Told of an upload: bytes sent, and bytes in all."""

LOG = logging.getLogger(__name__)
"""Says at level INFO that a call is tried again: a program that shows it need not seem to hang."""

CONNECT_TIMEOUT_S = 5.0
RETRIED_STATUSES = frozenset({502, 503, 504})
"""Tried again where a gateway answers so. What the server itself says is its last word, but for `not-ready`."""

SHOWN_CHARACTERS = 200
"""Of what a proxy or a stranger says."""
NOT_READY = "not-ready"

USER_AGENT = "weft"
"""By it a server knows an SDK of this release: that of the release before said `python-httpx/...`."""

UPLOAD_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Retry:
    """How a call is repeated: `attempts` in all, the first pause, the factor from one to the next, and the longest."""

    attempts: int = 4
    first_s: float = 0.1
    longest_s: float = 2.0
    growth: float = 2.0

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row, counted from 1."""
        return float(min(self.first_s * self.growth ** min(failures - 1, 32), self.longest_s))


@dataclass(frozen=True, slots=True)
class Clock:
    """Time, as the client reads it and lets it pass; tests give one that does not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


DEFAULT_RETRY = Retry()
SYSTEM_CLOCK = Clock()


class Http:
    """One server's API as calls. Safe to share between threads, as httpx's client is."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        retry: Retry = DEFAULT_RETRY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Raises UrlError; ArgumentError for a token that no header can carry."""
        self.url = url.rstrip("/")
        self.clock = clock
        self.retry = retry
        self._is_away = False
        authorization = {"Authorization": f"Bearer {_checked_token(token)}"} if token else {}
        self._client = httpx.Client(
            base_url=_checked(self.url),
            headers={"User-Agent": USER_AGENT, **authorization},
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
            transport=transport,
            trust_env=not _is_loopback(self.url),  # a proxy of the environment has no way to this machine's loopback
        )
        # A handle may outlive every `with`: what nobody closes is closed as it is forgotten, without a warning.
        weakref.finalize(self, self._client.close)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def call(self, model: type[M], method: str, path: str, **request: Any) -> M:
        """The answer's body as `model`. Raises ProblemError, ConnectError, ProtocolError, ClosedError."""
        return self._parsed(model, method, self.send(method, path, **request))

    def document(self, path: str) -> Any:
        """What a GET answers, as JSON. Raises as `call` does."""
        response = self.send("GET", path)
        try:
            return response.json()
        except ValueError:
            raise ProtocolError(f"GET {response.url} answered {response.status_code} with what is no JSON") from None

    def _parsed(self, model: type[M], method: str, response: httpx.Response) -> M:
        try:
            return model.from_answer(response.content)
        except ValidationError as error:
            raise ProtocolError(
                f"{method} {response.url} answered {response.status_code} with what is no {model.__name__}: "
                f"{_first_error(error)}. Are client and server of the same release?"
            ) from None

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """The answer, read whole. Raises ProblemError for a status of 400 or more, ConnectError, ProtocolError."""

        def attempt() -> httpx.Response:
            return _accepted(self._client.request(method, path, **request))

        return self._retried(attempt)

    def download(self, path: str, file: BinaryIO, **request: Any) -> Mapping[str, str]:
        """GET a body into `file`, which holds it alone afterwards, a part in memory at a time; returns the headers."""

        def attempt() -> httpx.Response:
            file.seek(0)
            file.truncate()
            with self._client.stream("GET", path, **request) as response:
                if response.is_error:
                    response.read()
                _accepted(response)
                for chunk in response.iter_bytes():
                    file.write(chunk)
                return response

        return self._retried(attempt).headers

    def upload(
        self,
        model: type[M],
        method: str,
        path: str,
        file: BinaryIO,
        *,
        progress: Progress | None = None,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> M:
        """Send what is in `file`, a part in memory at a time, and read the answer as `model`. Raises as `call` does.

        `progress` is told bytes sent and bytes in all; a second attempt begins at 0 again.
        """
        size = file.seek(0, os.SEEK_END)
        told = {"Content-Type": "application/octet-stream", "Content-Length": str(size), **(headers or {})}

        def attempt() -> httpx.Response:
            file.seek(0)
            return _accepted(
                self._client.request(method, path, content=_chunks(file, size, progress), headers=told, **request)
            )

        return self._parsed(model, method, self._retried(attempt))

    @contextmanager
    def stream(self, path: str, *, headers: Mapping[str, str], read_timeout_s: float) -> Iterator[httpx.Response]:
        """An open GET, to be read as it comes; one attempt. Network failures inside the block become ConnectError."""
        self._check_open()
        timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            with self._client.stream("GET", path, headers=dict(headers), timeout=timeout) as response:
                if response.is_error:
                    response.read()
                _accepted(response)
                yield response
        except httpx.RequestError as error:
            raise self._unanswered(error) from None

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise ClosedError(f"the client of {self.url} is closed; a job can be watched and read while it is open")

    def _retried(self, attempt: Callable[[], httpx.Response]) -> httpx.Response:
        """What `attempt` returns. An error that is raised in the end names neither attempts nor sockets."""
        self._check_open()
        for failures in count(1):
            try:
                response = attempt()
            except ProblemError as error:
                failure: WeftError = error
                is_last = error.status not in RETRIED_STATUSES or error.code not in {f"http-{error.status}", NOT_READY}
            except httpx.RequestError as error:
                failure, is_last = self._unanswered(error), not isinstance(error, httpx.TransportError)
            else:
                self._is_away = False
                return response
            if is_last or failures >= self.retry.attempts:
                raise failure.with_traceback(None) from None
            if not self._is_away:  # one line for an absence of the server, however many calls fall into it
                LOG.info("no answer from %s yet; trying again", self.url)
            self._is_away = True
            self.clock.sleep(self.retry.pause_s(failures))
        raise AssertionError("it is tried at least once")

    def _unanswered(self, error: httpx.RequestError) -> WeftError:
        """The causes of `error` are sockets' words for the same."""
        said = str(error) or type(error).__name__
        if isinstance(error, httpx.TransportError):
            return ConnectError(self.url, said.split("] ")[-1] if said.startswith("[Errno") else said, _remedy(error))
        return ProtocolError(f"the answer of {self.url} cannot be read: {said}")


def _remedy(error: httpx.TransportError) -> str:
    """What to do where a server cannot be started at the URL: its host is none, or a program has its port."""
    if isinstance(error, httpx.RemoteProtocolError):
        return "a server that ends now, or another program, has this port; WEFT_URL says where the server is"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "this host's name is not known; WEFT_URL says where the server is"
        cause = cause.__cause__ or cause.__context__
    return ""


def _chunks(file: BinaryIO, size: int, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while chunk := file.read(UPLOAD_CHUNK_BYTES):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, size)


def _accepted(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    if not response.is_error:
        raise ProtocolError(f"{response.url} answered {response.status_code}; is there a weft server at this URL?")
    raise error_for(response.status_code, _problem(response))


def _problem(response: httpx.Response) -> Problem:
    """The answer's problem document; one made up from the status where a proxy or a stranger answered."""
    try:
        return Problem.from_answer(response.content)
    except ValidationError:
        status, text = response.status_code, " ".join(response.text.split())[:SHOWN_CHARACTERS]
        title = f"{response.url} answered {status} {response.reason_phrase}"
        return Problem(
            type="about:blank",
            title=title,
            status=status,
            detail=title if not text or text.startswith("<") else f"{title}: {text}",
            code=f"http-{status}",
        )


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def _checked(url: str) -> str:
    parsed = _parsed(url)
    if parsed is None or parsed.scheme not in {"http", "https"} or not parsed.host:
        raise UrlError(f"{url!r} is no URL of a server; one looks like http://127.0.0.1:8470")
    return url


def _parsed(url: str) -> httpx.URL | None:
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return None


def _is_loopback(url: str) -> bool:
    parsed = _parsed(url)
    if parsed is None:
        return False
    try:
        return ipaddress.ip_address(parsed.host).is_loopback
    except ValueError:
        return parsed.host == "localhost"


def _checked_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ArgumentError("the token holds characters that no token has: blanks, line ends or letters beyond ASCII")
    return token
