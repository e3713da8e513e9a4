"""The client: submits jobs to a server and finds them again."""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from pydantic import ValidationError

from weft.api.agent import AgentInfo, AgentList
from weft.api.base import ID_PATTERN, Model
from weft.api.dry_run import DryRun, Passes
from weft.api.job import FromUpload, Job, JobPage, JobSpec, Scale, StopWhen
from weft.api.lifecycle import JobState
from weft.api.token import DEFAULT_PROJECT, NewToken, Scope, TokenCreated, TokenInfo, TokenList
from weft.api.values import Uploaded, UploadList, upload_id
from weft.arguments import checked, refuse_unknown, stop_when_of
from weft.command_line import command
from weft.errors import DEFAULT_PORT, ArgumentError, InvalidRequestError, NotFoundError, ProtocolError
from weft.http import DEFAULT_RETRY, SYSTEM_CLOCK, Clock, Http, Progress, Retry
from weft.job_handle import JobHandle
from weft.parameter_file import save_values
from weft.submission import (
    JobArguments,
    Optimizer,
    check_words,
    file_of,
    job_spec,
    optimizer_given,
    shown_with_keywords_of,
    trainable_of,
)

if TYPE_CHECKING:
    import httpx

    from weft.expression import Expression
    from weft.records import Array
    from weft.trainable import Trainable

M = TypeVar("M", bound=Model)

NO_FIELD = ("there is no field", "Extra inputs are not permitted")
"""How servers of this release and of earlier ones refuse a field that they do not know."""

DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
URL_VARIABLE = "WEFT_URL"
TOKEN_VARIABLE = "WEFT_TOKEN"  # noqa: S105 - the name of a variable

TIMEOUT_S = 30.0
UPLOAD_TIMEOUT_S = 120.0
"""Of each read and write of an upload, after the last of which the server looks at the whole file."""
CHECKED_FIRST_BYTES = 4 << 20
"""Values of at least so many bytes go up only after a dry run of their job; fewer take less time than that."""
PAGE = 100
SEARCHED_JOBS = 1000
"""Newest jobs among which the beginning of an id is looked for."""


class ResumeArguments(TypedDict, total=False):
    """What `Client.resume` changes; None changes nothing."""

    steps: int | None
    epochs: int | None
    workers: int | None
    shards: int | None
    optimizer: Optimizer | None
    lr: float | None
    stop_when: StopWhen | Mapping[str, Any] | str | None
    name: str | None


class Client:
    """A server's API. A context manager; safe to share between threads.

    `url` and `token` default to the environment variables `WEFT_URL` and `WEFT_TOKEN`. `timeout_s` limits each attempt
    of a call. `transport`, `retry` and `clock` are for tests.
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
        """Submit a job and return once the server has accepted it.

        What to train:

        - `loss`: a scalar expression, the mean over the batch; or `model.with_loss(...)`. Values of a model from
          PyTorch or ONNX are uploaded first.
        - `metrics`: more scalar expressions by name. `outputs`: values to be exported later.
        - `data`: `weft.numpy_data(...)`, or the path of a `.npz` file.
        - `batch_size`: samples of a step over all workers; 64 unless the data says otherwise.
        - `epochs` or `steps`: exactly one of them. `evaluate_every`: steps between evaluations, an epoch by default.
        - `optimizer`: `weft.SGD()` by default. `seed` determines initial values, sample order and dropout.

        Where it runs:

        - `workers`, `shards`: numbers of processes. One worker needs no shard.
        - `communication`: `weft.Communication(mode="async")` and the like: how gradients and parameters travel.
        - `recovery`: `weft.Recovery(max_restarts=0)` and the like: what it survives, and what is saved.

        What it starts from:

        - `init_from`: a job, its id, or a safetensors file. Parameters of the same name are copied.
        - `resume`: a job that has ended, to be continued exactly; see `Client.resume`.

        How it trains:

        - `precision`: "bfloat16" or "float16" for products. `loss_scale`: settings for float16.
        - `allow_tf32`: whether GPUs compute products of float32 in TF32, which is faster and less precise.
        - `clip_norm`: limit of the gradient's global norm. `accumulate`: parts that a step is computed in.
        - `recompute`: "cheap" or "segments" saves memory by computing values again in the backward pass.
        - `ema`: averages of the parameters: a decay such as 0.999, or `weft.EMA(0.999, start=1000, evaluate=True)`.

        When it ends, and what is kept:

        - `stop_when`: "accuracy:3:max" ends after 3 evaluations without a better accuracy, and keeps the best.
        - `keep_best`: "accuracy:max" trains to the end and keeps the best evaluation's values.

        Raises ArgumentError for wrong arguments, and InvalidRequestError if the server rejects the job, with a JSON
        pointer for each error. `weft.job_spec` takes the same arguments and sends nothing.
        """
        check_words("submit", arguments)
        begins = arguments.get("init_from")
        file = file_of(begins)
        if file is not None:
            if not file.is_file():
                raise ArgumentError(f"init_from: there is no file {file.absolute()}")
            arguments["init_from"] = None
        elif isinstance(begins, str):
            arguments["init_from"] = self.job(begins)
        if isinstance(resumed := arguments.get("resume"), str):
            arguments["resume"] = self.job(resumed)
        name = arguments.get("name", JobSpec.model_fields["name"].default)
        trained = trainable_of(loss, arguments.pop("metrics", None), arguments.pop("outputs", ()), name)
        spec = job_spec(trained, **arguments)
        own = trained.values if begins is None and spec.resume is None else {}
        return self.submit_spec(spec, values=own if file is None else file)

    def dry_run(self, spec: JobSpec | str | bytes, *, passes: Passes | None = None) -> DryRun:
        """Validate a job and return what it needs: programs, memory, bytes per step. Nothing is stored or started.

        `spec` is what `weft.job_spec` returns, or JSON. With `passes`, the converter's passes are included as text.
        `lacking` of the answer says which parameters need first values, such as `values` of `submit_spec`.

        Raises InvalidRequestError for a job that cannot run.
        """
        params = {"dry_run": "true"} if passes is None else {"dry_run": "true", "passes": passes.value}
        return self._post(DryRun, _text(spec), params=params)[0]

    def upload(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None, idempotency_key: str | None = None
    ) -> FromUpload:
        """Upload a safetensors file, to be `init_from` of a job. The server keeps it for some hours.

        `progress` is called with the bytes sent and the total. With the `idempotency_key` of an upload of the same
        content that the server keeps, nothing is sent. Raises InvalidRequestError for a file of another format, OSError
        for one that cannot be read.
        """
        if idempotency_key is not None:
            kept = upload_id(idempotency_key, path)
            if any(each.id == kept for each in self.http.call(UploadList, "GET", "/v1/uploads").uploads):
                return FromUpload(upload=kept)
        headers = _key(idempotency_key)
        with open(path, "rb") as file:
            uploaded = self.http.upload(
                Uploaded, "POST", "/v1/uploads", file, progress=progress, headers=headers, timeout=UPLOAD_TIMEOUT_S
            )
        return FromUpload(upload=uploaded.id)

    def upload_values(
        self, values: Mapping[str, Array], *, progress: Progress | None = None, idempotency_key: str | None = None
    ) -> FromUpload:
        """Upload arrays by name, through a temporary file; else as `upload`."""
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "values.safetensors"
            save_values(values, path)
            return self.upload(path, progress=progress, idempotency_key=idempotency_key)

    def submit_spec(
        self,
        spec: JobSpec | str | bytes,
        *,
        values: Mapping[str, Array] | Path | None = None,
        progress: Progress | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Submit what `weft.job_spec` returned, or JSON. The same `idempotency_key` returns the first job again, and
        uploads the same `values` no second time. With others it raises InvalidRequestError.

        A relative path of data is that of a file in this folder, if there is one and the server can read it; else it
        starts from where the cluster was started. `values`, arrays by name or a safetensors file, are uploaded as the
        first values of parameters: if they are large, only after the server has accepted the job in a dry run.
        """
        content = _text(spec)
        if values:
            size = values.stat().st_size if isinstance(values, Path) else sum(each.nbytes for each in values.values())
            if size >= CHECKED_FIRST_BYTES:
                _, content = self._post(DryRun, content, params={"dry_run": "true"})
            if isinstance(values, Path):
                uploaded = self.upload(values, progress=progress, idempotency_key=idempotency_key)
            else:
                uploaded = self.upload_values(values, progress=progress, idempotency_key=idempotency_key)
            content = json.dumps({**json.loads(content), "init_from": uploaded.model_dump()})
        job, _ = self._post(Job, content, lambda: _key(idempotency_key))
        return JobHandle(self.http, job)

    def _post(
        self,
        kind: type[M],
        content: str | bytes,
        headers: Callable[[], dict[str, str]] = dict,
        params: Mapping[str, str] | None = None,
    ) -> tuple[M, str | bytes]:
        """Sends a job, and returns the answer with what was sent: first with the absolute path of its data in this
        folder, then, if the server cannot read that, as it is."""

        def call(content: str | bytes) -> tuple[M, str | bytes]:
            told = {"Content-Type": "application/json", **headers()}
            return self.http.call(kind, "POST", "/v1/jobs", params=params or {}, content=content, headers=told), content

        def send(content: str | bytes) -> tuple[M, str | bytes]:
            try:
                return call(content)
            except InvalidRequestError as error:
                older = _for_older_server(content, error)
                if older is None:
                    raise
            return call(older)

        local = _with_data_of_this_folder(content)
        if local is None:
            return send(content)
        try:
            return send(local)
        except InvalidRequestError as error:
            refused = error
            if not _is_of_path(error):
                raise
        try:
            return send(content)
        except InvalidRequestError as error:
            if not _is_of_path(error):
                raise
        raise refused

    @shown_with_keywords_of(ResumeArguments)
    def resume(self, job: JobHandle | str, **changes: Unpack[ResumeArguments]) -> JobHandle:
        """Continue a job that has ended from its last snapshot: parameters, optimizer state, step and data order.

        `job` is a handle or an id. The result is a new job. Arguments replace those of the first job: `steps` or
        `epochs` is the total length of both, `stop_when="none"` removes its early stop, and `optimizer` is one with the
        same state, such as AdamW for Adam. Raises NotFoundError, InvalidRequestError if there is no snapshot,
        ArgumentError.
        """
        return self.submit_spec(self.resume_spec(job, **changes))

    @shown_with_keywords_of(ResumeArguments)
    def resume_spec(self, job: JobHandle | str, **changes: Unpack[ResumeArguments]) -> str:
        """The JSON of the job that `resume` submits, of which any other field may be changed first. Raises
        NotFoundError, ArgumentError."""
        refuse_unknown("resume", changes, ResumeArguments.__annotations__)
        identifier = self._id(job)
        said = self.http.send("GET", f"/v1/jobs/{quote(identifier, safe='')}/spec").content
        try:
            spec = JobSpec.from_answer(said)
        except ValidationError as error:
            raise ProtocolError(f"the server answered with what is no JobSpec: {error}") from None
        given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        changed: dict[str, Any] = {"resume": identifier, "init_from": None}
        if "name" in given:
            changed["name"] = given["name"]
        if "steps" in given or "epochs" in given:
            changed["run"] = {**spec.run.model_dump(), "steps": given.get("steps"), "epochs": given.get("epochs")}
        if "optimizer" in given:
            changed["optimizer"] = optimizer_given(given["optimizer"])
        if "lr" in given:
            if "optimizer" in given:
                raise ArgumentError("resume: lr is the earlier optimizer's; say that of the new one as its own lr")
            changed["optimizer"] = {**spec.optimizer.model_dump(exclude_unset=True), "lr": given["lr"]}
        if "stop_when" in given:
            end = given["stop_when"]
            changed["stop_when"] = None if end == "none" else stop_when_of(end) if isinstance(end, str) else end
        with checked("resume"):
            if "workers" in given or "shards" in given:
                scale = Scale(workers=given.get("workers"), shards=given.get("shards"))
                changed["parallelism"] = scale.of(spec.parallelism)
            resumed = JobSpec.model_validate({**spec.model_dump(), **changed})
        told = resumed.model_dump(mode="json", include=set(changed))
        return json.dumps({**json.loads(said), **told})  # With what only the server knows of.

    def job(self, id: str) -> JobHandle:  # noqa: A002 - what the API calls it
        """The job with this id, or the only one of the newest 1,000 whose id begins so.

        Raises NotFoundError, which says what there is where none or several begin so, and ArgumentError for what is no
        id.
        """
        if not re.fullmatch(ID_PATTERN, id):
            what = f"not a job's id, which has letters, digits and hyphens; `{command('jobs')}` lists them"
            raise ArgumentError(f"{id!r} is {what}")
        try:
            return JobHandle(self.http, self.http.call(Job, "GET", f"/v1/jobs/{quote(id, safe='')}"))
        except NotFoundError as error:
            if error.code != "unknown-job":
                raise
            refused = error
        newest = list(islice(self.jobs(), SEARCHED_JOBS))
        found = [job for job in newest if job.id.startswith(id)]
        if len(found) == 1:
            return found[0]
        if found:
            listed = "\n".join(f"  {job.id}  {job.job.name}  {job.state.value}" for job in found[:10])
            said = f"{len(found)} jobs begin with {id!r}; give more of the id:\n{listed}"
        elif not newest:
            said = f"there is no job {id!r}, and no other; submit one with: {command('submit JOB.json')}"
        else:
            named = next((f"; the newest job named so is {job.id}" for job in newest if job.job.name == id), "")
            said = f"no job's id begins with {id!r}{named}; `{command('jobs')}` lists them"
        raise NotFoundError(refused.status, refused.problem.model_copy(update={"detail": said})) from None

    def _id(self, job: JobHandle | str) -> str:
        return job.id if isinstance(job, JobHandle) else self.job(job).id

    def remove(self, *jobs: JobHandle | str) -> None:
        """Delete jobs that have ended, given as handles or ids; see `JobHandle.remove`. Raises NotFoundError."""
        for identifier in [self._id(job) for job in jobs]:
            self.http.send("DELETE", f"/v1/jobs/{quote(identifier, safe='')}")

    def jobs(self, *, state: JobState | Sequence[JobState] | None = None) -> Iterator[JobHandle]:
        """Iterate over jobs, newest first; only those in `state`, if given. Pages are fetched as needed."""
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
        """The registered workers and shards."""
        return self.http.call(AgentList, "GET", "/v1/agents").agents

    def create_token(
        self, name: str, *, scope: Scope | str = Scope.RUNNER, project: str = DEFAULT_PROJECT
    ) -> TokenCreated:
        """Create a user's token. Only this result has its secret.

        `scope` is "viewer", "runner" or "admin". The token sees and changes only jobs of `project`, "*" for all.
        Raises ForbiddenError without an admin's token, ConflictError if the project has one of that name.
        """
        with checked("create_token"):
            new = NewToken(name=name, scope=scope, project=project)  # type: ignore[arg-type]  # it makes the word of a text
        return self.http.call(TokenCreated, "POST", "/v1/tokens", json=new.model_dump(mode="json"), headers=_key())

    def tokens(self) -> list[TokenInfo]:
        """Users' tokens, without their secrets. Raises ForbiddenError without an admin's token."""
        return self.http.call(TokenList, "GET", "/v1/tokens").tokens

    def remove_token(self, name: str, *, project: str | None = None) -> None:
        """Remove a user's token, of that `project` where several have one of the name. Raises NotFoundError,
        ForbiddenError, ConflictError where it is not said which."""
        params = {} if project is None else {"project": project}
        self.http.send("DELETE", f"/v1/tokens/{quote(name, safe='')}", params=params)

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


def _text(spec: JobSpec | str | bytes) -> str | bytes:
    return spec.model_dump_json() if isinstance(spec, JobSpec) else spec


def _with_data_of_this_folder(content: str | bytes) -> str | None:
    """The job with the absolute path of its data, if that is relative and there is such a file in this folder."""
    try:
        document = json.loads(content)
        source = document["data"]["source"]
        path = Path(source["path"])
    except (ValueError, KeyError, TypeError):
        return None  # The server says what is wrong with it.
    if path.is_absolute() or not path.is_file():
        return None
    source["path"] = str(path.absolute())
    return json.dumps(document)


def _for_older_server(content: str | bytes, error: InvalidRequestError) -> str | None:
    """The job without the fields that the server does not know, where their values are those that they have when they
    are left out; None where there are no such fields."""
    unknown = [each.pointer for each in error.problem.errors if each.detail.startswith(NO_FIELD)]
    try:
        spec, document = JobSpec.model_validate_json(content), json.loads(content)
        for pointer in unknown:
            here: Any = document
            *path, field = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
            for step in path:
                here = here[int(step)] if isinstance(here, list) else here[step]
            del here[field]
        is_same = JobSpec.model_validate(document) == spec
    except (ValueError, LookupError):
        return None  # fields that this release does not know either
    return json.dumps(document) if unknown and is_same else None


def _is_of_path(error: InvalidRequestError) -> bool:
    return any(each.pointer == "/data/source/path" for each in error.problem.errors)


def _key(given: str | None = None) -> dict[str, str]:
    """The header by which a call may be repeated."""
    return {"Idempotency-Key": given or uuid.uuid4().hex}
