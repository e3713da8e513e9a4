"""The snapshots of jobs as they lie in their place, `JOB/STEP-TERM/`: a file of each process, and a manifest.

Processes write their files themselves; the manifest comes last, so a folder that has one is whole. Every function
blocks, and may raise whatever the library of the place does.
"""

from __future__ import annotations

import json

from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no stubs

from weft.api.agent import Snapshot
from weft_server.control.snapshots import JobFolder, beside, name_of, step_and_term

MANIFEST = "snapshot.json"
FORMAT = 1
MARK = "job.json"
"""In the place of a job's snapshots, by which its processes know that they reach the one that the server has made. On
another machine the same path leads elsewhere, where nobody would ever delete anything."""


class SnapshotIncompleteError(Exception):
    """A file of a snapshot is not there, or not whole."""


def complete(job: str, snapshot: Snapshot) -> None:
    """Writes the manifest of a snapshot whose files are there. Raises SnapshotIncompleteError."""
    system, folder = url_to_fs(snapshot.folder, skip_instance_cache=True)
    for file in snapshot.files:
        path = f"{beside(folder, file.folder)}/{file.name}"
        try:
            nbytes = system.info(path)["size"]
        except FileNotFoundError:
            raise SnapshotIncompleteError(
                f"{path} was written, and the server does not see it: it and the agents have to reach the same place "
                "(WEFT_SERVER_SNAPSHOTS)"
            ) from None
        if nbytes != file.nbytes:
            raise SnapshotIncompleteError(f"{path} has {nbytes} bytes of {file.nbytes}")
    manifest = {"format": FORMAT, "job": job, **snapshot.model_dump(mode="json", exclude={"folder"})}
    with system.transaction, system.open(f"{folder}/{MANIFEST}", "wb") as stream:
        stream.write(json.dumps(manifest, indent=1).encode())


def is_there(snapshot: Snapshot) -> bool:
    """Whether a snapshot was not deleted since."""
    system, folder = url_to_fs(snapshot.folder, skip_instance_cache=True)
    return bool(system.exists(f"{folder}/{MANIFEST}"))


def newest(location: str, job: str) -> Snapshot | None:
    """The last whole snapshot that is kept of a job; None where there is none. Raises SnapshotIncompleteError where
    none can be read, though there are some."""
    place = JobFolder(location, job).path
    system, path = url_to_fs(place, skip_instance_cache=True)
    found: list[Snapshot] = []
    damaged: list[str] = []
    for folder in system.ls(path, detail=False) if system.exists(path) else ():
        manifest = f"{folder}/{MANIFEST}"
        if not system.exists(manifest):
            continue
        try:
            found.append(_read(system.cat_file(manifest), f"{place}/{name_of(folder)}"))
        except ValueError:
            damaged.append(f"{manifest} is no manifest of a snapshot of this release")
    if damaged and not found:
        raise SnapshotIncompleteError("; ".join(damaged))
    return max(found, key=lambda snapshot: snapshot.step, default=None)


def _read(manifest: bytes, folder: str) -> Snapshot:
    """What the manifest of that folder says. Raises ValueError."""
    said = json.loads(manifest)
    if not isinstance(said, dict) or said.get("format") != FORMAT or not said.get("files"):
        raise ValueError("no manifest")
    fields = {field: said[field] for field in Snapshot.model_fields if field in said}
    snapshot = Snapshot.model_validate({**fields, "folder": folder})
    named = step_and_term(folder)
    if named is None or named[0] != snapshot.step:
        raise ValueError("of another step")
    return snapshot


def tidy(location: str, job: str, keep: tuple[str, ...] | None, since: tuple[int, int] | None = None) -> None:
    """Has a place for the job's snapshots, and deletes what is there but these folders, and those that are later than
    `since`, (term, step); the place itself for None."""
    system, path = url_to_fs(JobFolder(location, job).path, skip_instance_cache=True)
    if keep is None:
        if system.exists(path):
            system.rm(path, recursive=True)
        return
    mark = f"{path}/{MARK}"
    if not system.exists(mark):
        system.makedirs(path, exist_ok=True)
        system.pipe_file(mark, json.dumps({"format": FORMAT, "job": job}).encode())
    kept = {url_to_fs(folder)[1].rstrip("/") for folder in keep} | {mark}
    for found in system.ls(path, detail=False):
        step, term = step_and_term(found) or (0, 0)
        if found.rstrip("/") not in kept and (since is None or (term, step) <= since):
            system.rm(found, recursive=True)
