"""A submitted job, from the side of who submitted it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from weft.absence import AWAY, Absence
from weft.api.dry_run import Passes
from weft.api.event import Event, EventPage
from weft.api.job import Job, JobSpec, ParameterInfo, ParameterList, Scale, Traffic
from weft.api.lifecycle import JobState
from weft.api.values import STEP_HEADER, ValuesSet
from weft.arguments import checked
from weft.errors import JobCancelledError, JobFailedError, ProtocolError, WaitTimeoutError
from weft.event_stream import Notice, follow, narrate
from weft.http import Http, Retry
from weft.parameter_file import averages_of, document_of
from weft.placement import await_placement
from weft.replacing import replacing

if TYPE_CHECKING:
    from rich.console import Console

    from weft.model import Model

Array = np.ndarray[Any, np.dtype[Any]]

POLL = Retry(first_s=0.1, longest_s=1.0)
"""How `wait` asks: often at first, so that a short job is seen to end, then once a second."""

VALUES_TIMEOUT_S = 60.0
"""Of values of a running job: longer than the server itself waits for the worker that brings them."""


class Values(dict[str, Array]):
    """Parameters' values by name, all of one step: `step` counts the finished ones."""

    def __init__(self, arrays: dict[str, Array], step: int) -> None:
        super().__init__(arrays)
        self.step = step


class JobHandle:
    """One job of one server. `state` and its like are as of the last `refresh`."""

    def __init__(self, http: Http, job: Job) -> None:
        self._http = http
        self.job = job

    @property
    def id(self) -> str:
        """What the server calls the job."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """The state as of the last `refresh`."""
        return self.job.state

    @property
    def traffic(self) -> Traffic:
        """Bytes at the workers' store sockets since the job's start, as of the last `refresh`."""
        return self.job.traffic

    def refresh(self) -> Job:
        """The job as it is now. Raises NotFoundError when the server does not know it any more."""
        self.job = self._http.call(Job, "GET", self._path())
        return self.job

    def stop(self) -> Job:
        """Have the job end at a step soon, with what it has trained by then as its result: `wait` returns, and `values`
        are those. It can be resumed. Raises ConflictError where it does not run, or takes no snapshots."""
        self.job = self._http.call(Job, "POST", self._path("/stop"))
        return self.job

    def scale(self, *, workers: int | None = None, shards: int | None = None) -> Job:
        """Have the job go on with other numbers of workers and shards, from a snapshot at a step soon: the same job,
        with the same values, optimizer and data order. On other numbers of shards it has the same bits.

        Raises ArgumentError; ConflictError where the job does not run or takes no snapshots, or the cluster has not so
        many; InvalidRequestError where the job cannot run so.
        """
        with checked("scale"):
            asked = Scale(workers=workers, shards=shards)
        headers = {"Content-Type": "application/json"}
        content = asked.model_dump_json(exclude_none=True)
        self.job = self._http.call(Job, "POST", self._path("/scale"), content=content, headers=headers)
        return self.job

    def cancel(self, *, discard: bool = False) -> Job:
        """End the job at once, without a result; it can be resumed from its last snapshot, unless that is discarded.
        ConflictError where it has ended already in another state."""
        self.job = self._http.call(Job, "POST", self._path("/cancel"), params={"discard": "true"} if discard else {})
        return self.job

    def remove(self) -> None:
        """Delete the job, which has ended, from the server: result, snapshots and log. Nothing of it is left.

        Raises ConflictError where it has not ended, or another one goes on from its snapshot just now.
        """
        self._http.send("DELETE", self._path())

    def wait(self, timeout_s: float | None = None) -> Job:
        """The job once it has succeeded; asks the server now and then, also one that is away for a minute.

        Raises JobFailedError, JobCancelledError, and WaitTimeoutError once `timeout_s` have passed.
        """
        clock, absence = self._http.clock, Absence(self._http)
        deadline = None if timeout_s is None else clock.now() + timeout_s
        polls = 0
        while not self._has_ended(absence):
            polls += 1
            pause_s = POLL.pause_s(polls)
            if deadline is not None:
                left_s = deadline - clock.now()
                if left_s <= 0:
                    raise WaitTimeoutError(
                        f"job {self.id} ({self.job.name}) is still {self.state.value} after {timeout_s} s"
                        f"{f': {self.job.reason}' if self.job.reason else ''}; it goes on"
                    )
                pause_s = min(pause_s, left_s)
            clock.sleep(pause_s)
        return self.succeeded()

    def _has_ended(self, absence: Absence) -> bool:
        """Whether the job has; a server that does not answer is asked again later. Raises what `absence` does."""
        try:
            ended = self.refresh().state.is_terminal
        except AWAY as error:
            absence.endure(error)
            return False
        absence.end()
        return ended

    def succeeded(self) -> Job:
        """The job, which has ended, if it succeeded. Raises JobFailedError, JobCancelledError."""
        if self.state is JobState.FAILED:
            raise JobFailedError(self.job)
        if self.state is JobState.CANCELLED:
            raise JobCancelledError(self.job)
        return self.job

    def events(self, after: int = 0) -> Iterator[Event]:
        """Events with `seq` > `after` as they happen, until the job's last. A broken stream is taken up again."""
        return follow(self._http, self.id, after=after)

    def narrated(self, after: int = 0) -> Iterator[Event | Notice]:
        """`events`, and between them why the job waits and that the server does not answer, for people."""
        if self.state is JobState.PENDING:
            yield from await_placement(self._http, self.id)
        yield from narrate(self._http, self.id, after=after)

    def log(self, after: int = 0) -> Iterator[Event]:
        """Events with `seq` > `after` that are there now, in order; pages are fetched as they are gone through."""
        while True:
            page = self._http.call(EventPage, "GET", self._path("/events"), params={"format": "json", "after": after})
            if not page.events:
                return
            yield from page.events
            after = page.after

    def watch(self, console: Console | None = None) -> Job:
        """Show steps, rate, loss and evaluations until the job ends: a progress bar on a terminal, else plain lines.

        A job that waits says what for. Raises JobFailedError with the reason, JobCancelledError. Leaving it by Ctrl-C
        does not stop the job.
        """
        from weft.watch import watch  # rich is needed by who watches alone

        watch(self.narrated(), self.job, console)
        self.refresh()
        return self.succeeded()

    def parameters(self) -> list[ParameterInfo]:
        """Names, dtypes and shapes of the job's parameters."""
        return self._http.call(ParameterList, "GET", self._path("/parameters")).parameters

    def values(self, names: Iterable[str] | None = None, *, state: bool = False, ema: bool = False) -> Values:
        """Values of the named parameters, of all where left out, as of one step; also of a job that runs.

        With `state` the optimizer's state too, as `weft.state/NAME/KEY`, of a job that was submitted with `keep_state`.
        With `ema` the averages that a job submitted so keeps, in the place of the parameters.
        Raises NotFoundError for a name that the job has not, ConflictError while there are no values yet.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        query = _query(names, state or ema)
        response = self._http.send("GET", self._path("/values"), params=query, timeout=VALUES_TIMEOUT_S)
        try:
            found = load(response.content)
            return Values(averages_of(found, state=state) if ema else found, _step(response.headers))
        except SafetensorError as error:
            raise ProtocolError(f"{response.url} answered with what is no safetensors document: {error}") from None

    def save(
        self,
        path: str | os.PathLike[str],
        names: Iterable[str] | None = None,
        *,
        state: bool = False,
        ema: bool = False,
    ) -> int:
        """Write the values to `path` as safetensors and return the step that they are of; `state` and `ema` as for
        `values`. Averages are held in memory, all at once.

        A file that was there is replaced in one move, once all has come. Raises OSError where it cannot be written.
        """
        if ema:
            from safetensors.numpy import save

            values = self.values(names, state=state, ema=True)
            with replacing(Path(path)) as file:
                file.write(save(dict(values)))
            return values.step
        query = _query(names, state)
        with replacing(Path(path)) as file:
            headers = self._http.download(self._path("/values"), file, params=query, timeout=VALUES_TIMEOUT_S)
        return _step(headers)

    def set(self, name: str, value: Any) -> int:
        """Set a parameter: an array of its shape, or a number for all its elements. See `set_all`."""
        return self.set_all({name: value})

    def set_all(self, values: Mapping[str, Any]) -> int:
        """Set parameters, all at one step, and return the step from which on they hold: 0 before the first one.

        A number stands for all elements of a parameter. The optimizer's state stays. Raises ArgumentError for a name
        that the job has not, another shape, or elements that would lose their meaning; ConflictError once the job has
        ended.
        """
        document = io.BytesIO(document_of(values, self.parameters()))
        return self._put(document)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Set the parameters that a safetensors file has, as `set_all`. Raises OSError where it cannot be read."""
        with open(path, "rb") as file:
            return self._put(file)

    def _put(self, document: BinaryIO) -> int:
        done = self._http.upload(ValuesSet, "PUT", self._path("/values"), document, timeout=VALUES_TIMEOUT_S)
        return done.step

    def spec(self) -> JobSpec:
        """What was submitted."""
        return self._http.call(JobSpec, "GET", self._path("/spec"))

    def model(self, outputs: Iterable[str] | None = None, *, ema: bool = False) -> Model:
        """The job's graph up to these values, with its parameters as they are now: to evaluate, export or train again.

        Where left out, `outputs` are the graph's own that are neither its loss nor a metric. Raises ArgumentError,
        which says what there is, where none is left; GraphRefusedError for what is no value of the graph; and what
        `values` raises.
        """
        from weft.trained_model import trained_model  # most users of handles build no graph

        return trained_model(self.spec(), outputs, partial(self.values, ema=ema))

    def export_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        outputs: Iterable[str] | None = None,
        opset: int = 0,
        ema: bool = False,
        training: bool = False,
    ) -> None:
        """Write the trained model for inference, under the names that it came with; `outputs` as for `model`.

        `opset` is ONNX's version; what most runtimes take where left out. `ema` writes the averages of the
        parameters, in a job that keeps them. `training` keeps Dropout and BatchNormalization as they train, for a file
        to be trained further. Raises OnnxError, OSError too.
        """
        self.model(outputs, ema=ema).export_onnx(path, opset=opset, training=training)

    def programs(self) -> dict[str, Any]:
        """What the converter made of the graph, as JSON: what workers and shards get."""
        document: dict[str, Any] = self._http.send("GET", self._path("/programs")).json()
        return document

    def programs_text(self) -> str:
        """The programs as text for people: sentences on what travels and what is held, and a line for each node."""
        return self._http.send("GET", self._path("/programs"), params={"format": "text"}).text

    def passes_text(self, passes: Passes = Passes.SHORT) -> str:
        """What each pass of the converter did to the graph, for people."""
        form = "passes-full" if passes is Passes.FULL else "passes"
        return self._http.send("GET", self._path("/programs"), params={"format": form}).text

    def _path(self, rest: str = "") -> str:
        return f"/v1/jobs/{self.id}{rest}"

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.job.name} {self.state.value} at {self._http.url}>"


def _query(names: Iterable[str] | None, state: bool) -> dict[str, str | list[str]]:
    """The query of the values' route. Raises ValueError for an empty list of names."""
    kept: dict[str, str | list[str]] = {"state": "true"} if state else {}
    if names is None:
        return kept
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise ValueError("no parameter is named; leave the names out to get all")
    return {"name": listed, **kept}


def _step(headers: Mapping[str, str]) -> int:
    step = headers.get(STEP_HEADER, "")
    if not step.isdigit():
        raise ProtocolError(f"the values came without the step that they are of: {STEP_HEADER} is {step!r}")
    return int(step)
