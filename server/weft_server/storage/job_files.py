"""The files that are kept of jobs: `jobs/ID/parameters.safetensors`, a running job's newest values, values to be set.

Values that were given are called `given-TOKEN.safetensors`; the controller knows the token. They go when the job ends,
but for those of an upload, `given-upload-ID.safetensors`, of a job that has not succeeded: it may be submitted again.
What is left then goes when the job is removed.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from weft.api.job import ParameterInfo
from weft_server.planning.plan import Given
from weft_server.storage.parameter_file import (
    MOST_ERRORS,
    ParameterFileError,
    check_document,
    join,
    largest_header,
    part_errors,
    read_header,
)
from weft_server.users import Party

FINAL = "parameters.safetensors"
DELETED = "deleted"
TRACE = "trace.jsonl"
MOST_TRACE_BYTES = 64 << 20
OF_UPLOAD = "upload-"
_log = logging.getLogger("weft.server")
_TEMPORARY = ".upload-"


@dataclass(slots=True)
class Reservation:
    """The room on the disk for a document that is being received: who sends it, None for an agent, the bytes that it is
    to have as far as they are known, and those that are written. `project`: into which it is uploaded, None for one
    that is no upload."""

    party: Party | None
    project: str | None = None
    nbytes: int = 0
    written: int = 0


class Reservations(dict[Path, Reservation]):
    """Of all documents that are being received, by their files. What is decided by them is decided under the `lock`."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Upload:
    """A document that is being written."""

    path: Path
    file: BinaryIO
    check_room: Callable[[int], None] = lambda _: None
    """Raises FullError where it may not have so many bytes. Called under the lock of reservations."""

    def close(self) -> None:
        """What was written is on the disk. Idempotent."""
        if not self.file.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def abandon(self) -> None:
        """Closes it, whatever is lost: what a full disk has refused is refused again as it closes. Idempotent."""
        with suppress(OSError):
            self.file.close()

    def discard(self) -> None:
        """Deletes it, unless it was given another name. Idempotent."""
        self.abandon()
        self.path.unlink(missing_ok=True)


class JobFiles:
    """Files below one directory. Every method blocks, but none for the deletion of large files: what is deleted gets
    another name, `deleted/NAME`, and a thread of its own deletes it from there."""

    def __init__(self, directory: Path) -> None:
        self._jobs = directory / "jobs"
        self._jobs.mkdir(parents=True, exist_ok=True)
        self._deleted = directory / DELETED
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="deletes")

    def close(self) -> None:
        """What is not deleted yet is when a server starts in this directory again."""
        self._deleter.shutdown(wait=False, cancel_futures=True)

    def clean(self) -> list[str]:
        """Deletes what uploads and live values of an earlier process have left. Jobs that there are files of."""
        for path in [*self._jobs.glob(f"*/{_TEMPORARY}*"), *self._jobs.glob("*/live-*.safetensors")]:
            self._delete(path)
        for path in self._deleted.glob("*"):
            self._deleter.submit(delete, path)
        return sorted(path.name for path in self._jobs.iterdir())

    def _delete(self, path: Path) -> None:
        """Idempotent."""
        self._deleted.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._deleter.submit(delete, path.rename(self._deleted / uuid4().hex))

    def results(self) -> list[str]:
        """Jobs that there are final parameters of."""
        return sorted(path.parent.name for path in self._jobs.glob(f"*/{FINAL}"))

    def final(self, job: str) -> Path | None:
        """The final parameters, if they are there."""
        path = self._jobs / job / FINAL
        return path if path.is_file() else None

    def start(self, job: str, name: str) -> Upload:
        """A temporary file for an upload called `name`, unique among those that run now."""
        folder = self._jobs / job
        folder.mkdir(parents=True, exist_ok=True)  # also where somebody has deleted all of it
        path = folder / f"{_TEMPORARY}{name}"
        return Upload(path, path.open("wb"))

    def check(self, upload: Upload, parameters: Sequence[ParameterInfo], arrays: int = 0, final: bool = True) -> None:
        """Closes it, on the disk; raises ParameterFileError where it is not a document of these parameters.

        `arrays` are those of the optimizer's state beside each trainable one; live values may come without.
        """
        upload.close()
        check_document(upload.path, parameters, arrays, state_required=final)

    def check_part(self, upload: Upload, parameters: Sequence[ParameterInfo]) -> list[str]:
        """Closes it, on the disk: the names in it. Raises ParameterFileError where it is not of some of these."""
        upload.close()
        found = read_header(upload.path, largest_header(parameters))
        errors = list(islice(part_errors(found, parameters), MOST_ERRORS))
        if errors or not found:
            raise ParameterFileError("" if found else "there is no tensor in it", errors)
        return [each.name for each in parameters if each.name in found]

    def put(self, upload: Upload, job: str, step: int, final: bool) -> Path:
        """Gives a checked upload its name, all at once; older live values go."""
        folder = self._jobs / job
        target = folder / (FINAL if final else f"live-{step}.safetensors")
        upload.path.replace(target)
        for old in folder.glob("live-*.safetensors"):
            if old != target:
                self._delete(old)
        return target

    def give(self, upload: Upload, job: str, names: Sequence[str]) -> Given:
        """Keeps a checked document of these parameters for the job to begin or go on with."""
        given = Given(names=list(names), file=upload.path.name.removeprefix(_TEMPORARY))
        upload.path.replace(self.given(job, given.file))
        return given

    def give_also(self, job: str, before: Given, after: Given, order: Sequence[str]) -> Given:
        """Both together, in a file of its own; the later one has the last word."""
        kept = [name for name in before.names if name not in after.names]
        names = [name for name in order if name in {*kept, *after.names}]
        given = Given(names=names, file=f"{after.file}-both")
        join(
            self.given(job, given.file),
            [(self.given(job, before.file), kept), (self.given(job, after.file), after.names)],
        )
        return given

    def take(self, source: Path, job: str, file: str) -> Path:
        """A copy of another document for the job, that outlives it. No bytes are copied where the disk can link."""
        target = self.given(job, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
        return target

    def given(self, job: str, file: str) -> Path:
        """Where values that were given are."""
        return self._jobs / job / f"given-{file}.safetensors"

    def drop(self, job: str, file: str) -> None:
        """Values that were given are not needed any more. Idempotent."""
        self._delete(self.given(job, file))

    def of_upload(self, upload: str) -> dict[str, Path]:
        """The copies of an upload that jobs have, by job."""
        return {path.parent.name: path for path in self._jobs.glob(f"*/given-{OF_UPLOAD}{upload}.safetensors")}

    def add_trace(self, job: str, part: str) -> None:
        """Keeps a part of the job's trace, one line; nothing where there is too much of it."""
        path = self._jobs / job / TRACE
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if file.tell() < MOST_TRACE_BYTES:
                file.write(f"{part}\n".encode())

    def trace(self, job: str) -> list[str]:
        """The parts, each once: one that was told again is the same."""
        with suppress(FileNotFoundError):
            lines = (self._jobs / job / TRACE).read_text().splitlines(keepends=True)
            return list(dict.fromkeys(line for line in lines if line.endswith("\n")))
        return []

    def end(self, job: str, succeeded: bool) -> None:
        """The job has ended: its final parameters stay, and unless it has succeeded the upload that it began with."""
        folder = self._jobs / job
        temporary = [*folder.glob(f"{_TEMPORARY}*"), *folder.glob("live-*.safetensors")]
        for old in [*temporary, *folder.glob("given-*.safetensors")]:
            if succeeded or not old.name.startswith(f"given-{OF_UPLOAD}"):
                self._delete(old)
        with suppress(OSError):  # It is not empty, or not there.
            folder.rmdir()

    def remove(self, job: str) -> None:
        """Deletes all that there is of a job. Idempotent."""
        self._delete(self._jobs / job)

    def nbytes(self, job: str) -> int:
        """What the files of a job take."""
        with suppress(FileNotFoundError):
            return sum(each.stat().st_size for each in (self._jobs / job).iterdir())
        return 0


def delete(path: Path) -> None:
    """Deletes a file or folder, however long that takes."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s, which is not needed any more, is left: %s", path, error)
