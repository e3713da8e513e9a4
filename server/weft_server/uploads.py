"""Documents that are brought to begin jobs with: `uploads/ID.safetensors`, for some hours. Every method blocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from weft.api.values import Uploaded
from weft_server.job_files import Upload
from weft_server.parameter_file import read_header
from weft_server.refusals import FullError, UnknownError

LARGEST_HEADER_BYTES = 16 << 20
"""Of a document of which nothing is known: some hundred thousand tensors."""
MOST_UPLOADS = 256
_TEMPORARY = ".upload-"


class Uploads:
    """Files below one directory. An upload's age is that of its file, so it outlives the server's process."""

    def __init__(self, directory: Path, hours: float) -> None:
        self._folder = directory / "uploads"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lifetime = timedelta(hours=hours)

    def clean(self, now: datetime, *, at_start: bool = False) -> None:
        """Deletes what has expired; at the server's start also what was not brought to its end."""
        if at_start:
            for path in self._folder.glob(f"{_TEMPORARY}*"):
                path.unlink(missing_ok=True)
        for path in self._folder.glob("*.safetensors"):
            if self._expires(path) <= now:
                path.unlink(missing_ok=True)

    def start(self, identifier: str, now: datetime) -> Upload:
        """A temporary file for a new upload. Raises FullError."""
        self.clean(now)
        if sum(1 for _ in self._folder.iterdir()) >= MOST_UPLOADS:
            raise FullError("upload", MOST_UPLOADS)
        path = self._folder / f"{_TEMPORARY}{identifier}"
        return Upload(path, path.open("wb"))

    def keep(self, upload: Upload, identifier: str) -> Uploaded:
        """Checks that it is a safetensors document and gives it its name. Raises ParameterFileError."""
        upload.close()
        names = list(read_header(upload.path, LARGEST_HEADER_BYTES))
        target = self._path(identifier)
        upload.path.replace(target)
        expires = self._expires(target)
        return Uploaded(id=identifier, names=names, size_bytes=target.stat().st_size, expires_at=expires)

    def discard(self, upload: Upload) -> None:
        """Deletes what was not kept. Idempotent."""
        upload.file.close()
        upload.path.unlink(missing_ok=True)

    def find(self, identifier: str, now: datetime) -> Path:
        """The document. Raises UnknownError, also for one that has expired."""
        path = self._path(identifier)
        if not path.is_file() or self._expires(path) <= now:
            raise UnknownError("upload", identifier)
        return path

    def delete(self, identifier: str) -> None:
        """Raises UnknownError."""
        try:
            self._path(identifier).unlink()
        except FileNotFoundError as error:
            raise UnknownError("upload", identifier) from error

    def _path(self, identifier: str) -> Path:
        return self._folder / f"{identifier}.safetensors"

    def _expires(self, path: Path) -> datetime:
        try:
            written = path.stat().st_mtime
        except FileNotFoundError:
            return datetime.fromtimestamp(0, UTC)
        return datetime.fromtimestamp(written, UTC) + self._lifetime
