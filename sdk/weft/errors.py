"""What the SDK raises.

WeftError
+-- ArgumentError           an argument makes no sense; nothing was sent
|   +-- UrlError                the URL is not one of a server
|   +-- ModuleRefusedError      a PyTorch module cannot be taken as it is; the message says what to do
|   +-- FeedError               an array does not have its input's or parameter's shape
+-- ClosedError             the client is closed
+-- ConnectError            nothing answered at the URL, or the answer broke off and retries did not help
+-- ProtocolError           what answered is not a weft server of this API, or its answer makes no sense
+-- ProblemError            the server refused a call; `problem` is its RFC 9457 document
|   +-- InvalidRequestError     400, 422 and every other 4xx: the request is wrong; each pointer says where
|   +-- UnauthenticatedError    401: no token, or one that the server does not know
|   +-- ForbiddenError          403: the token may not do this
|   +-- NotFoundError           404, 410: there is no such thing (any more)
|   +-- ConflictError           409, 412: not in this state
|   +-- UnavailableError        429, 503, 504: later, perhaps
|   +-- ServerFaultError        every other 5xx: the server's fault
+-- JobError                a job did not end as was asked; `job` is its last state
|   +-- JobFailedError
|   +-- JobCancelledError
+-- WaitTimeoutError        a deadline passed before the job ended; the job goes on
+-- MissingPackageError     what was asked for needs a package that is not installed; the message says which
+-- EvaluatorError          expressions cannot be evaluated here: no evaluator, or several of one name
+-- ClusterError            the daemons of a local cluster did not start, or one ended

What is wrong with a graph is a `weft_graph.errors.GraphError`, raised at the line that wrote it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from weft.api.lifecycle import JobState
from weft.command_line import command

if TYPE_CHECKING:
    from weft.api.job import Job
    from weft.api.problem import Problem


class WeftError(Exception):
    """The root of all that the SDK raises about a cluster."""


class ArgumentError(WeftError, ValueError):
    """An argument makes no sense; the message names it and says what it takes. Nothing was sent."""


class UrlError(ArgumentError):
    """The URL is not one of a server."""


class ModuleRefusedError(ArgumentError):
    """PyTorch cannot export a module, or its graph would train otherwise than the module does. `reason` is what the
    exporter said, whole, where it was the exporter."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class FeedError(ArgumentError):
    """What is fed to an expression does not have its input's or parameter's shape; the message shows both sides."""


class ClosedError(WeftError):
    """The client was closed before the call."""


DEFAULT_PORT: Final = 8470
"""Of a server."""


class ConnectError(WeftError):
    """Nothing answered at `url`. `remedy` is what to do where it is not to start a server there."""

    def __init__(self, url: str, detail: str, remedy: str = "") -> None:
        port = urlsplit(url).port
        up = command("up" if port in {None, DEFAULT_PORT} else f"up --port {port}")
        remedy = remedy or f"start one with: {up}, or wait if one is starting"
        super().__init__(f"no server at {url} ({detail}); {remedy}")
        self.url = url


class ProtocolError(WeftError):
    """The answer is not one that this API gives."""


class ProblemError(WeftError):
    """The server refused a call. The message has the problem's detail and one line for each pointer.

    What is wrong is said once: on one line where it is a single thing, below the problem's title where the detail only
    repeats the lines.
    """

    def __init__(self, status: int, problem: Problem) -> None:
        said, lines = problem.detail or problem.title, pointer_lines(problem)
        if lines and all(each.detail in said for each in problem.errors):
            said = problem.title
        super().__init__(lines[0].strip() if len(lines) == 1 and said == problem.title else "\n".join((said, *lines)))
        self.status = status
        self.problem = problem

    @property
    def code(self) -> str:
        """The problem's code, such as `unknown-job`."""
        return self.problem.code


class InvalidRequestError(ProblemError):
    """The request is wrong."""


class UnauthenticatedError(ProblemError):
    """The call has no token, or one that the server does not know."""


class ForbiddenError(ProblemError):
    """The token's scopes do not cover the call."""


class NotFoundError(ProblemError):
    """There is no such job, agent or parameter."""


class ConflictError(ProblemError):
    """The call does not fit the state that the thing is in."""


class UnavailableError(ProblemError):
    """The server, or somebody it waits for, cannot answer now."""


class ServerFaultError(ProblemError):
    """The server broke while it answered."""


class JobError(WeftError):
    """A job ended in another way than success."""

    def __init__(self, job: Job) -> None:
        why = job.reason or ("" if job.state is JobState.CANCELLED else "no reason was given")
        text = f"job {job.id} ({job.name}) {job.state.value}{f': {why}' if why else ''}"
        if job.snapshot is not None:
            # The same steps would come to the same numbers.
            python, shell = (", lr=...", " --lr ...") if why.startswith("the loss is") else ("", "")
            resume = f"client.resume({job.id!r}{python}), or: weft resume {job.id}{shell}"
            text += f"; go on from step {job.snapshot} with {resume}"
        super().__init__(text)
        self.job = job


class JobFailedError(JobError):
    """The job failed; `job.reason` says what it died of."""


class JobCancelledError(JobError):
    """Somebody cancelled the job."""


class WaitTimeoutError(WeftError):
    """The job had not ended when the deadline passed."""


class MissingPackageError(WeftError):
    """A package that only some need is not installed here."""


class EvaluatorError(WeftError):
    """No evaluator is installed, or the one that is asked for is not."""


class ClusterError(WeftError):
    """A local cluster cannot start or go on."""


_BY_STATUS: dict[int, type[ProblemError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    412: ConflictError,
    429: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def error_for(status: int, problem: Problem) -> ProblemError:
    """The error of the class that the status asks for."""
    kind = _BY_STATUS.get(status, ServerFaultError if status >= 500 else InvalidRequestError)
    return kind(status, problem)


def pointer_lines(problem: Problem) -> list[str]:
    """One line for each thing that is wrong: `  /graph/nodes/3 (conv1): detail`."""
    return [f"  {e.pointer or '/'}{f' ({e.node})' if e.node else ''}: {e.detail}" for e in problem.errors]
