"""The client: submits jobs to a server and finds them again."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import quote

from pydantic import ValidationError

from weft.api.agent import AgentInfo, AgentList
from weft.api.dry_run import DryRun, Passes
from weft.api.job import FromUpload, Job, JobPage, JobSpec, Scale, StopWhen
from weft.api.lifecycle import JobState
from weft.api.token import DEFAULT_PROJECT, NewToken, Scope, TokenCreated, TokenInfo, TokenList
from weft.api.values import Uploaded
from weft.arguments import checked, stop_when_of
from weft.errors import DEFAULT_PORT, ProtocolError
from weft.first_values import file_of
from weft.http import DEFAULT_RETRY, SYSTEM_CLOCK, Clock, Http, Progress, Retry
from weft.job_arguments import JobArguments, shown_with_keywords_of
from weft.job_handle import JobHandle
from weft.parameter_file import save_values
from weft.submission import first_values, job_spec

if TYPE_CHECKING:
    import httpx

    from weft.expression import Expression
    from weft.records import Array
    from weft.trainable import Trainable

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
URL_VARIABLE = "WEFT_URL"
TOKEN_VARIABLE = "WEFT_TOKEN"  # noqa: S105 - the name of a variable

TIMEOUT_S = 30.0
UPLOAD_TIMEOUT_S = 120.0
"""Of each read and write of an upload, after the last of which the server looks at the whole file."""
PAGE = 100


class Client:
    """A server's API. A context manager; safe to share between threads.

    `url` and `token` are those of `WEFT_URL` and `WEFT_TOKEN` where left out. `transport` replaces the network.
    `timeout_s` bounds each attempt of a call, not the life of a stream.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = TIMEOUT_S,
        retry: Retry = DEFAULT_RETRY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.http = Http(
            url or os.environ.get(URL_VARIABLE) or DEFAULT_URL,
            token or os.environ.get(TOKEN_VARIABLE) or None,
            timeout_s=timeout_s,
            transport=transport,
            retry=retry,
            clock=clock,
        )

    @property
    def url(self) -> str:
        """The server's URL."""
        return self.http.url

    @shown_with_keywords_of(job_spec)
    def submit(self, loss: Expression | Trainable, **arguments: Unpack[JobArguments]) -> JobHandle:
        """Train the parameters of `loss`, a scalar that is the mean over the batch; returns once the job is accepted.

        A model that was read trains as `model.with_loss(...)`, or by a loss built on its values; its parameters' values
        go up first. `metrics` are further such scalars by name, `outputs` what else the graph is to give later, when it
        is exported. `batch_size` samples make a step, over all workers; the data's own count
        where left out. The run lasts `epochs` over the training rows or `steps`. Metrics are taken on the rows kept for
        evaluation after each epoch, or each `evaluate_every` steps. `optimizer` is plain SGD unless set. A path as
        `data` is `weft.numpy_data(path)`.

        `mode` "async" applies each worker's part as it arrives. `update` "workers" leaves the optimizer to the workers,
        and merged gradients to the shards. `merge` "arrival" gives up equal bits for sums in any order. `slice_bytes`
        are merged and retried as one.

        `init_from` is where parameters of the same name begin: a job's handle or id, or the path of a safetensors file,
        which is uploaded first; it replaces the values of a model that was read. `keep_state` keeps the optimizer's
        state beside the parameters. `resume` is a job that has ended, from whose last snapshot this one goes on, see
        `Client.resume`. Where one of the job's processes is lost, it goes on from its newest snapshot, as often as
        `max_restarts`, and its result is the same; a snapshot is taken each `snapshot_every_s`. `recompute` "cheap" or
        "segments" has workers hold less of a step, and compute it again.

        `stop_when="accuracy:3:max"` ends the job once three evaluations in a row brought no better accuracy, with the
        values of the best one; `keep_best="accuracy:max"` trains to the end, and has those values too. `on_nan` "go_on"
        has it train on though its loss is not finite, "skip" leaves such a step out.

        `precision` "bfloat16" or "float16" computes products in that type. `clip_norm` bounds the whole norm of a
        step's gradient. `accumulate` computes a worker's samples of a step in parts. `ema` keeps averages of the
        parameters, 0.999 (a decay) or `{"start": 1000}`, which `evaluate_ema` has evaluations read, and
        `JobHandle.values(ema=True)` brings. `compression`, `{"gradients": {"kind": "2bit", "threshold": 0.5}}`, has
        gradients travel in fewer bytes.

        Raises ArgumentError for what makes no sense here, InvalidRequestError, with a pointer for each thing that the
        server finds wrong, before anything starts. `weft.job_spec` makes the same job without sending it.
        """
        begins = arguments.get("init_from")
        file = file_of(begins)
        if file is not None:
            arguments["init_from"] = None
        spec = job_spec(loss, **arguments)
        if file is not None:
            spec = spec.model_copy(update={"init_from": self.upload(file)})
        elif begins is None and spec.resume is None:
            values = first_values(loss, arguments.get("metrics"), arguments.get("outputs", ()))
            if values:
                spec = spec.model_copy(update={"init_from": self.upload_values(values)})
        return self.submit_spec(spec)

    def dry_run(self, spec: JobSpec | str | bytes, *, passes: Passes | None = None) -> DryRun:
        """What the job would be, which `weft.job_spec` makes: programs, memory, bytes of a step. Nothing is stored.

        With `passes`, also what each pass of the converter does to the graph, as text.

        Raises InvalidRequestError as `submit_spec` does.
        """
        headers = {"Content-Type": "application/json"}
        content = spec.model_dump_json() if isinstance(spec, JobSpec) else spec
        params = {"dry_run": "true"} if passes is None else {"dry_run": "true", "passes": passes.value}
        return self.http.call(DryRun, "POST", "/v1/jobs", params=params, content=content, headers=headers)

    def upload(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> FromUpload:
        """Bring a safetensors file to the server, to begin a job with: `init_from`. It is kept for a while.

        `progress` is told bytes sent and bytes in all. Raises InvalidRequestError where the file is none, OSError where
        it cannot be read.
        """
        with open(path, "rb") as file:
            uploaded = self.http.upload(
                Uploaded, "POST", "/v1/uploads", file, progress=progress, timeout=UPLOAD_TIMEOUT_S
            )
        return FromUpload(upload=uploaded.id)

    def upload_values(self, values: Mapping[str, Array], *, progress: Progress | None = None) -> FromUpload:
        """Bring arrays by name, as `upload` does a file, by way of one in the folder for temporary files."""
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "values.safetensors"
            save_values(values, path)
            return self.upload(path, progress=progress)

    def submit_spec(self, spec: JobSpec | str | bytes, *, idempotency_key: str | None = None) -> JobHandle:
        """Submit a job as it is, or its JSON, which the server checks. A repeated key brings back the first job."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        content = spec.model_dump_json() if isinstance(spec, JobSpec) else spec
        return JobHandle(self.http, self.http.call(Job, "POST", "/v1/jobs", content=content, headers=headers))

    def resume(
        self,
        job: JobHandle | str,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        workers: int | None = None,
        shards: int | None = None,
        lr: float | None = None,
        stop_when: StopWhen | Mapping[str, Any] | str | None = None,
        name: str | None = None,
    ) -> JobHandle:
        """Submit a job that goes on from the last snapshot of one that has ended, exactly where it was: parameters,
        optimizer, step, schedule and data order. `job` is a handle or an id.

        What is given replaces what that job had. `steps` or `epochs` is the length of both together; `stop_when="none"`
        has it end with its last step. Only its own evaluations are compared. Raises
        NotFoundError, InvalidRequestError where there is no snapshot, ArgumentError.
        """
        identifier = job.id if isinstance(job, JobHandle) else job
        said = self.http.send("GET", f"/v1/jobs/{quote(identifier, safe='')}/spec").content
        try:
            spec = JobSpec.from_answer(said)
        except ValidationError as error:
            raise ProtocolError(f"the server answered with what is no JobSpec: {error}") from None
        changes: dict[str, Any] = {"resume": identifier, "init_from": None}
        if name is not None:
            changes["name"] = name
        if steps is not None or epochs is not None:
            changes["run"] = {**spec.run.model_dump(), "steps": steps, "epochs": epochs}
        if lr is not None:
            changes["optimizer"] = {**spec.optimizer.model_dump(exclude_unset=True), "lr": lr}
        if isinstance(stop_when, str):
            changes["stop_when"] = None if stop_when == "none" else stop_when_of(stop_when)
        elif stop_when is not None:
            changes["stop_when"] = stop_when
        with checked("resume"):
            if workers is not None or shards is not None:
                changes["parallelism"] = Scale(workers=workers, shards=shards).of(spec.parallelism)
            resumed = JobSpec.model_validate({**spec.model_dump(), **changes})
        changed = resumed.model_dump(mode="json", include=set(changes))
        return self.submit_spec(json.dumps({**json.loads(said), **changed}))  # With what only the server knows of.

    def job(self, id: str) -> JobHandle:  # noqa: A002 - what the API calls it
        """The job of this id. Raises NotFoundError."""
        return JobHandle(self.http, self.http.call(Job, "GET", f"/v1/jobs/{quote(id, safe='')}"))

    def remove(self, *jobs: JobHandle | str) -> None:
        """Delete jobs that have ended, of these handles or ids, as `JobHandle.remove` does. Raises NotFoundError."""
        for job in jobs:
            identifier = job.id if isinstance(job, JobHandle) else job
            self.http.send("DELETE", f"/v1/jobs/{quote(identifier, safe='')}")

    def jobs(self, *, state: JobState | Sequence[JobState] | None = None) -> Iterator[JobHandle]:
        """Jobs, newest first, of these states; pages are fetched as they are gone through."""
        states = [state] if isinstance(state, JobState) else state
        params: dict[str, str | int | list[str]] = {"limit": PAGE}
        if states is not None:
            params["state"] = [s.value for s in states]
        while True:
            page = self.http.call(JobPage, "GET", "/v1/jobs", params=params)
            yield from (JobHandle(self.http, job) for job in page.jobs)
            if page.next is None:
                return
            params["cursor"] = page.next

    def agents(self) -> list[AgentInfo]:
        """The workers and shards that the server knows."""
        return self.http.call(AgentList, "GET", "/v1/agents").agents

    def create_token(
        self, name: str, *, scope: Scope | str = Scope.RUNNER, project: str = DEFAULT_PROJECT
    ) -> TokenCreated:
        """Make a user's token, whose secret is in this answer alone.

        `scope` is "viewer", "runner" or "admin". The token sees and changes only jobs of `project`, or of all where it
        is "*". Raises ForbiddenError without an admin's token, ConflictError where the name is taken.
        """
        with checked("create_token"):
            new = NewToken(name=name, scope=Scope(scope), project=project)
        return self.http.call(TokenCreated, "POST", "/v1/tokens", json=new.model_dump(mode="json"))

    def tokens(self) -> list[TokenInfo]:
        """Users' tokens, without their secrets. Raises ForbiddenError without an admin's token."""
        return self.http.call(TokenList, "GET", "/v1/tokens").tokens

    def remove_token(self, name: str) -> None:
        """Remove a user's token: it opens nothing from now on. Raises NotFoundError, ForbiddenError."""
        self.http.send("DELETE", f"/v1/tokens/{quote(name, safe='')}")

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"
