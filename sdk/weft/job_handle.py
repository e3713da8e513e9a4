"""A submitted job, from the side of who submitted it."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from weft.api.dry_run import Passes
from weft.api.event import Event, EventPage, StateChanged
from weft.api.job import Job, JobSpec, ParameterInfo, ParameterList, Scale, Traffic
from weft.api.lifecycle import JobState
from weft.api.trace import JobTrace
from weft.api.values import STEP_HEADER, ValuesSet
from weft.arguments import checked
from weft.errors import ArgumentError, JobCancelledError, JobFailedError, ProtocolError, WaitTimeoutError
from weft.event_stream import Notice, await_placement, follow, narrate, polled
from weft.http import Http
from weft.parameter_file import averages_of, document_of, refuse_parameter_file, replacing
from weft.trace import StepReport, report_of

if TYPE_CHECKING:
    from rich.console import Console

    from weft.model import Model

Array = np.ndarray[Any, np.dtype[Any]]

LOG: Final = logging.getLogger(__name__)
"""Says at level WARNING what a job waits for: Python prints that also where nothing is set up."""

PENDING_S: Final = 10.0
"""How long a job may lack agents before a wait says which: those that are starting are there sooner."""

EVENTS = 200
"""Of a page of a job's log."""
VALUES_TIMEOUT_S = 60.0
"""Of values of a running job: longer than the server itself waits for the worker that brings them."""


class Values(dict[str, Array]):
    """Parameters' values by name, all of one step: `step` counts the finished ones."""

    def __init__(self, arrays: dict[str, Array], step: int) -> None:
        super().__init__(arrays)
        self.step = step


class JobHandle:
    """A submitted job. `state` and other properties are as of the last `refresh`."""

    def __init__(self, http: Http, job: Job) -> None:
        self._http = http
        self.job = job

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """The state as of the last `refresh`."""
        return self.job.state

    @property
    def traffic(self) -> Traffic:
        """Bytes between workers and shards since the job's start, as of the last `refresh`."""
        return self.job.traffic

    def refresh(self) -> Job:
        """Fetch the job's present state. Raises NotFoundError if it was removed."""
        self.job = self._http.call(Job, "GET", self._path())
        return self.job

    def stop(self) -> Job:
        """End the job within seconds. Its result is what it has trained so far, and it can be resumed.

        Raises ConflictError if the job is not running, or takes no snapshots."""
        self.job = self._http.call(Job, "POST", self._path("/stop"))
        return self.job

    def scale(self, *, workers: int | None = None, shards: int | None = None) -> Job:
        """Continue the same job on other numbers of workers and shards, from a snapshot a few seconds ahead.

        Another number of shards gives the same bits; numbers that it has already change nothing. Raises ArgumentError;
        ConflictError if the job is not running, takes no snapshots, or the cluster has too few agents;
        InvalidRequestError if the job cannot run so.
        """
        with checked("scale"):
            asked = Scale(workers=workers, shards=shards)
        headers = {"Content-Type": "application/json"}
        content = asked.model_dump_json(exclude_none=True)
        self.job = self._http.call(Job, "POST", self._path("/scale"), content=content, headers=headers)
        return self.job

    def cancel(self, *, discard: bool = False) -> Job:
        """End the job at once, without a result; it can be resumed from its last snapshot, unless that is discarded.
        Raises ConflictError if it has already ended otherwise."""
        self.job = self._http.call(Job, "POST", self._path("/cancel"), params={"discard": "true"} if discard else {})
        return self.job

    def remove(self) -> None:
        """Delete a job that has ended, with its result, snapshots and log.

        Raises ConflictError if it has not ended, or another job is starting from its snapshot.
        """
        self._http.send("DELETE", self._path())

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait until the job has succeeded, and return it. Tolerates a server restart. A warning of the logger
        `weft.job_handle` says what the job waits for, where it is pending or recovering for more than 10 s.

        Raises JobFailedError, JobCancelledError, and WaitTimeoutError after `timeout_s` seconds.
        """
        self.wait_until(lambda _: False, timeout_s)
        return self.succeeded()

    def wait_until(self, condition: Callable[[Job], bool], timeout_s: float | None = None) -> Job:
        """Wait until `condition` holds of the job or the job has ended, and return it. Tolerates a server restart.

        Raises WaitTimeoutError after `timeout_s` seconds.
        """
        now = self._http.clock.now
        deadline = None if timeout_s is None else now() + timeout_s
        warned_at, said = now() + PENDING_S, None
        for found in polled(self._http, self.refresh, deadline=deadline):
            if isinstance(found, Job):
                if condition(found) or found.state.is_terminal:
                    break
                if not found.state.is_waiting:
                    warned_at = now() + PENDING_S
                elif now() >= warned_at and found.reason not in {None, said}:
                    said = found.reason
                    LOG.warning("job %s (%s) is %s: %s", self.id, found.name, found.state.value, said)
            if deadline is not None and now() >= deadline:
                raise WaitTimeoutError(
                    f"job {self.id} ({self.job.name}) is still {self.state.value} after {timeout_s:g} s"
                    f"{f': {self.job.reason}' if self.job.reason else ''}; it goes on"
                )
        return self.job

    def succeeded(self) -> Job:
        """Return a job that has ended, if it succeeded. Raises JobFailedError, JobCancelledError."""
        if self.state is JobState.FAILED:
            raise JobFailedError(self.job)
        if self.state is JobState.CANCELLED:
            raise JobCancelledError(self.job)
        return self.job

    def events(self, after: int = 0) -> Iterator[Event]:
        """Events with `seq` > `after` as they happen, until the job ends. Reconnects by itself."""
        return follow(self._http, self.id, after=after)

    def narrated(self, after: int = 0, *, tail: int | None = None) -> Iterator[Event | Notice]:
        """`events`, with notices of why the job waits and of a server that does not answer; `tail` as for `log`."""
        if self.state is JobState.PENDING:
            yield from await_placement(self._http, self.id)
        for event in narrate(self._http, self.id, after=after, tail=tail):
            yield event
            change = event.body if isinstance(event, Event) else None
            if isinstance(change, StateChanged) and change.state is JobState.RECOVERING:
                yield from await_placement(self._http, self.id, f"{change.state.value}: {change.reason}")

    def log(self, after: int = 0, *, tail: int | None = None) -> Iterator[Event]:
        """Events with `seq` > `after` so far, or only the newest `tail` of them, in order."""
        newest = {} if tail is None else {"tail": tail}
        while tail is None or tail > 0:
            params = {"format": "json", "after": after, "limit": EVENTS, **newest}
            page = self._http.call(EventPage, "GET", self._path("/events"), params=params)
            yield from page.events[:tail]
            if len(page.events) < EVENTS:
                return  # what has happened since then is not waited for
            after, newest, tail = page.after, {}, None if tail is None else tail - len(page.events)

    def watch(self, console: Console | None = None) -> Job:
        """Show steps, rate, loss and evaluations until the job ends: a progress bar on a terminal, else plain lines.

        Begins with the last few events so far; `log` has all. Shows why a pending job waits. Ctrl-C stops the display,
        not the job. Raises JobFailedError with the reason, JobCancelledError.
        """
        from weft.watch import TAIL, watch  # rich is needed by who watches alone

        watch(self.narrated(tail=TAIL), self.job, console)
        self.refresh()
        return self.succeeded()

    def parameters(self) -> list[ParameterInfo]:
        """Names, dtypes and shapes of the job's parameters."""
        return self._http.call(ParameterList, "GET", self._path("/parameters")).parameters

    def values(self, names: Iterable[str] | None = None, *, state: bool = False, ema: bool = False) -> Values:
        """Values of the named parameters, or of all, at one step; also while the job runs.

        `state` adds the optimizer's state as `weft.state/NAME/KEY`, for a job with `keep_state`. `ema` gives averages
        in place of the parameters, for a job with `ema`. Raises NotFoundError for an unknown name, ConflictError while
        there are no values yet.
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
        """Write the values to a safetensors file and return their step; `state` and `ema` as for `values`.

        An existing file is replaced at once, after the download. Raises OSError if it cannot be written.
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
        """Set parameters, all at once, and return the step after which they were set, 0 before the first.

        A number fills the parameter. The optimizer's state is kept. Raises ArgumentError for an unknown name, another
        shape, or a dtype that cannot be converted; ConflictError once the job has ended.
        """
        document = io.BytesIO(document_of(values, self.parameters()))
        return self._put(document)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Set the parameters in a safetensors file, as `set_all` does. Raises OSError if it cannot be read."""
        with open(path, "rb") as file:
            return self._put(file)

    def _put(self, document: BinaryIO) -> int:
        done = self._http.upload(ValuesSet, "PUT", self._path("/values"), document, timeout=VALUES_TIMEOUT_S)
        return done.step

    def spec(self) -> JobSpec:
        """The job as it was submitted."""
        return self._http.call(JobSpec, "GET", self._path("/spec"))

    def spec_json(self) -> str:
        """The same as JSON, with fields that a newer server knows of: for `Client.submit_spec`."""
        return json.dumps(self._http.document(self._path("/spec")), indent=2)

    def model(self, outputs: Iterable[str] | None = None, *, ema: bool = False) -> Model:
        """The job's graph up to these values, with its parameters as they are now: to evaluate, export or train again.

        Where left out, `outputs` are the graph's own that are neither its loss nor a metric. Raises ArgumentError,
        which says what there is, where none is left; GraphRefusedError for what is no value of the graph; and what
        `values` raises.
        """
        from weft.trained_model import trained_model  # most users of handles build no graph

        return trained_model(self.spec(), outputs, partial(self.values, ema=ema))

    def load_into(self, module: Any, *, ema: bool = False, strict: bool = True) -> int:
        """Copy the trained values into the PyTorch module that was exported, and return their step.

        Parameters and running statistics are copied by name. Other buffers keep their values, BatchNorm's
        `num_batches_tracked` too: PyTorch reads it only with `momentum=None`. `ema` gives the averages. Nothing is
        copied if the names or shapes differ: ArgumentError names them. With `strict=False` parameters that only one
        side has are left out. Raises what `values` raises.
        """
        from weft.trained_model import load_into  # most users of handles have no module

        values = self.values(ema=ema)
        load_into(module, values, strict=strict)
        return values.step

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
        to be trained further. Raises OnnxError, OSError too, and ArgumentError for a name that ends in .safetensors.
        """
        refuse_parameter_file(path, "save(path)")
        self.model(outputs, ema=ema).export_onnx(path, opset=opset, training=training)

    def programs(self) -> dict[str, Any]:
        """The programs of workers and shards that the graph was converted to, as JSON."""
        document: dict[str, Any] = self._http.document(self._path("/programs"))
        return document

    def programs_text(self) -> str:
        """The programs as readable text: what is fetched, sent and held, and a line for each node."""
        return self._http.send("GET", self._path("/programs"), params={"format": "text"}).text

    def passes_text(self, passes: Passes = Passes.SHORT) -> str:
        """What each pass of the converter changed, as readable text."""
        form = "passes-full" if passes is Passes.FULL else "passes"
        return self._http.send("GET", self._path("/programs"), params={"format": form}).text

    def trace(self) -> JobTrace:
        """What all processes did in the job's traced steps, as spans of time; `weft.trace.perfetto` makes a file of it.

        Raises ConflictError before the steps are done, and for a job that traces none.
        """
        return self._http.call(JobTrace, "GET", self._path("/trace"))

    def report(self) -> StepReport:
        """What the job's traced steps spent their time on. Raises as `trace`."""
        return report_of(self.trace())

    def _path(self, rest: str = "") -> str:
        return f"/v1/jobs/{self.id}{rest}"

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.job.name} {self.state.value} at {self._http.url}>"


def _query(names: Iterable[str] | None, state: bool) -> dict[str, str | list[str]]:
    """The query of the values' route. Raises ArgumentError for an empty list of names."""
    kept: dict[str, str | list[str]] = {"state": "true"} if state else {}
    if names is None:
        return kept
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise ArgumentError("no parameter is named; leave the names out to get all")
    return {"name": listed, **kept}


def _step(headers: Mapping[str, str]) -> int:
    step = headers.get(STEP_HEADER, "")
    if not step.isdigit():
        raise ProtocolError(f"the values came without the step that they are of: {STEP_HEADER} is {step!r}")
    return int(step)
