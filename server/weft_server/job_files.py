"""The files that are kept of jobs: `jobs/ID/parameters.safetensors`, and a running job's newest values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weft.api.job import ParameterInfo
from weft_server.parameter_file import check_document

FINAL = "parameters.safetensors"
_TEMPORARY = ".upload-"


@dataclass(frozen=True, slots=True)
class Upload:
    """A document that is being written."""

    path: Path
    file: BinaryIO


class JobFiles:
    """Files below one directory. Every method blocks."""

    def __init__(self, directory: Path) -> None:
        self._jobs = directory / "jobs"
        self._jobs.mkdir(parents=True, exist_ok=True)

    def clean(self) -> None:
        """Deletes what uploads and running jobs of an earlier process have left."""
        for path in [*self._jobs.glob(f"*/{_TEMPORARY}*"), *self._jobs.glob("*/live-*.safetensors")]:
            path.unlink(missing_ok=True)

    def final(self, job: str) -> Path | None:
        """The final parameters, if they are there."""
        path = self._jobs / job / FINAL
        return path if path.is_file() else None

    def start(self, job: str, name: str) -> Upload:
        """A temporary file for an upload called `name`, unique among those that run now."""
        folder = self._jobs / job
        folder.mkdir(exist_ok=True)
        path = folder / f"{_TEMPORARY}{name}"
        return Upload(path, path.open("wb"))

    def check(self, upload: Upload, parameters: Sequence[ParameterInfo]) -> None:
        """Closes it, on the disk; raises ParameterFileError where it is not a document of these parameters."""
        upload.file.flush()
        os.fsync(upload.file.fileno())
        upload.file.close()
        check_document(upload.path, parameters)

    def put(self, upload: Upload, job: str, step: int, final: bool) -> Path:
        """Gives a checked upload its name, all at once; older live values go."""
        folder = self._jobs / job
        target = folder / (FINAL if final else f"live-{step}.safetensors")
        upload.path.replace(target)
        for old in folder.glob("live-*.safetensors"):
            if old != target:
                old.unlink(missing_ok=True)
        return target

    def discard(self, upload: Upload) -> None:
        """Deletes an upload that is not wanted. Idempotent."""
        upload.file.close()
        upload.path.unlink(missing_ok=True)

    def end(self, job: str, succeeded: bool) -> None:
        """The job has ended: live values go, and everything unless it has succeeded."""
        folder = self._jobs / job
        if not succeeded:
            shutil.rmtree(folder, ignore_errors=True)
        for old in folder.glob("live-*.safetensors"):
            old.unlink(missing_ok=True)
