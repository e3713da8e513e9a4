"""Documents that are brought to begin jobs with, for some hours: `uploads/ID.safetensors`, and
`uploads/ID.PROJECT.safetensors` in a project that is not the default one. Every method blocks."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from weft.api.token import ALL_PROJECTS, DEFAULT_PROJECT
from weft.api.values import Uploaded, UploadInfo, UploadList
from weft_server.refusals import FullError, UnknownError
from weft_server.storage.job_files import Reservation, Reservations, Upload
from weft_server.storage.parameter_file import ParameterFileError, read_header
from weft_server.users import Party

LARGEST_HEADER_BYTES = 16 << 20
"""Of a document of which nothing is known: some hundred thousand tensors."""
MOST_UPLOADS = 1024
MOST_OF_PROJECT = 256
"""So that one project leaves room for the others."""
MOST_AT_ONCE = 64
"""Documents that are being brought."""
LEFT_TO_OTHERS = 4
"""One in so many of the bytes, and of the documents that are being brought, is left to other projects."""
_TEMPORARY = ".upload-"
_SUFFIX = ".safetensors"


class Uploads:
    """Files below one directory. An upload's age is that of its file, so it outlives the server's process.

    They are bounded in number and bytes: where there is no room, none more is taken until some expire or are deleted.
    Jobs have copies of their own.
    """

    def __init__(self, directory: Path, hours: float, most_bytes: int, reservations: Reservations) -> None:
        self._folder = directory / "uploads"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lifetime = timedelta(hours=hours)
        self._most_bytes = most_bytes
        self._reservations = reservations

    def clean(self, now: datetime, *, at_start: bool = False) -> None:
        """Deletes what has expired; at the server's start also what was not brought to its end."""
        if at_start:
            for path in self._folder.glob(f"{_TEMPORARY}*"):
                path.unlink(missing_ok=True)
        for path, found in self._kept():
            if self._expires(found) <= now:
                path.unlink(missing_ok=True)

    def start(self, identifier: str, now: datetime, project: str, party: Party) -> Upload:
        """A temporary file for a new upload, which is on its way from now on. Raises FullError."""
        self.clean(now)
        self._folder.mkdir(parents=True, exist_ok=True)  # also where somebody has deleted it
        path = self._folder / f"{_TEMPORARY}{identifier}"
        with self._reservations.lock:
            projects = [each.project for each in self._reservations.values() if each.project is not None]
            if len(projects) >= MOST_AT_ONCE:
                raise FullError("upload", MOST_AT_ONCE, unit="unfinished ")
            own = projects.count(project)
            if own >= _of_project(MOST_AT_ONCE):
                raise FullError("upload", own, unit="unfinished ", of=f"project {project}")
            self._check_room(0)
            upload = Upload(path, path.open("wb"), lambda nbytes: self._check_room(nbytes, project, path))
            self._reservations[path] = Reservation(party, project)
        return upload

    def keep(self, upload: Upload, identifier: str, now: datetime, project: str = DEFAULT_PROJECT) -> Uploaded:
        """Checks that it is a safetensors document with tensors and gives it its name.

        Raises ParameterFileError, or FullError where there is no room for it.
        """
        upload.close()
        names = list(read_header(upload.path, LARGEST_HEADER_BYTES))
        if not names:
            raise ParameterFileError("there is no tensor in it")
        name = identifier if project == DEFAULT_PROJECT else f"{identifier}.{project}"
        target = self._folder / f"{name}{_SUFFIX}"
        with self._reservations.lock:
            written = upload.path.stat()
            self._check_room(written.st_size, project, upload.path, target)
            upload.path.replace(target)
            self._reservations.pop(upload.path, None)
        return Uploaded(id=identifier, names=names, size_bytes=written.st_size, expires_at=self._expires(written))

    def describe(self, now: datetime, project: str = ALL_PROJECTS) -> UploadList:
        """Those of the project that have not expired, oldest first."""
        shown = [
            UploadInfo(id=path.stem.partition(".")[0], size_bytes=found.st_size, expires_at=self._expires(found))
            for path, found in self._kept()
            if project in {ALL_PROJECTS, _project(path)}
        ]
        return UploadList(uploads=[each for each in shown if each.expires_at > now])

    def find(self, identifier: str, now: datetime, project: str = ALL_PROJECTS) -> Path:
        """The document. Raises UnknownError, also for one that has expired or is another project's."""
        for path, found in self._kept(f"{identifier}.*"):
            if project in {ALL_PROJECTS, _project(path)} and self._expires(found) > now:
                return path
        raise UnknownError("upload", identifier)

    def projects(self, identifier: str) -> list[str]:
        """Those that have an upload of that id, which is of its content and what it was brought with."""
        return [_project(path) for path, _ in self._kept(f"{identifier}.*")]

    def delete(self, identifier: str, project: str) -> None:
        """Raises UnknownError."""
        try:
            self.find(identifier, datetime.fromtimestamp(0, UTC), project).unlink()
        except FileNotFoundError as error:
            raise UnknownError("upload", identifier) from error

    def _kept(self, pattern: str = f"*{_SUFFIX}") -> list[tuple[Path, os.stat_result]]:
        """Those of such a name, oldest first. One that another thread deletes meanwhile is left out."""
        kept = []
        for path in self._folder.glob(pattern):
            with suppress(FileNotFoundError):
                kept.append((path, path.stat()))
        return sorted(kept, key=lambda each: each[1].st_mtime)

    def _check_room(self, size: int, project: str | None = None, *itself: Path) -> None:
        """Raises FullError unless one more of `size` bytes fits beside those that are kept and those that come, also
        into what the project may have. `itself`: does not count, since it is that one or is replaced by it."""
        kept = [(_project(path), found.st_size) for path, found in self._kept() if path not in itself]
        coming = [
            (each.project, each.nbytes)
            for path, each in self._reservations.items()
            if each.project is not None and path not in itself
        ]
        own = [nbytes for of, nbytes in kept if of == project]
        most, total = self._most_bytes, sum(nbytes for _, nbytes in (*kept, *coming))
        own_bytes = sum(nbytes for of, nbytes in (*kept, *coming) if of == project)
        if len(kept) >= MOST_UPLOADS:
            raise FullError("upload", len(kept))
        if len(own) >= MOST_OF_PROJECT:
            raise FullError("upload", len(own), of=f"project {project}")
        if total + size > most:
            raise FullError("upload", total, unit="bytes of ")
        if project is not None and own_bytes + size > _of_project(most):
            raise FullError("upload", own_bytes, unit="bytes of ", of=f"project {project}")

    def _expires(self, found: os.stat_result) -> datetime:
        return datetime.fromtimestamp(found.st_mtime, UTC) + self._lifetime


def _project(path: Path) -> str:
    return path.stem.partition(".")[2] or DEFAULT_PROJECT


def _of_project(most: int) -> int:
    return most - most // LEFT_TO_OTHERS
