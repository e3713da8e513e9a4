"""Where a job's parameters begin, as a script names it: a job, or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from weft.api.job import FromJob, FromUpload
from weft.errors import ArgumentError

if TYPE_CHECKING:
    from weft.job_handle import JobHandle

FirstValues: TypeAlias = Union[FromJob, FromUpload, "JobHandle", str, "os.PathLike[str]"]
"""A job's handle or id, an upload, or the path of a safetensors file: a Path, or text with a `/` or `.safetensors`."""

SUFFIX = ".safetensors"


def file_of(first: FirstValues | None) -> Path | None:
    """The file that is meant, if it is one."""
    if isinstance(first, os.PathLike):
        return Path(first)
    return Path(first) if isinstance(first, str) and (os.sep in first or first.endswith(SUFFIX)) else None


def from_job_or_upload(first: FirstValues) -> FromJob | FromUpload:
    """What the job's document says. Raises ArgumentError for a file, which is uploaded first, and for anything else."""
    if isinstance(first, FromJob | FromUpload):
        return first
    file = file_of(first)
    if file is not None:
        raise ArgumentError(f"init_from is the file {file}; upload it first: init_from=client.upload({str(file)!r})")
    job = id_of(first)
    if job is None:
        raise ArgumentError(f"init_from is {first!r}; it should be a job, its id, or the path of a safetensors file")
    return FromJob(job=job)


def id_of(job: object) -> str | None:
    """The id of a job: of its handle, or what is one; None for anything else."""
    found = job if isinstance(job, str) else getattr(job, "id", None)
    return found if isinstance(found, str) else None
