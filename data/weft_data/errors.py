"""What the data room raises.

DataError
+-- UnknownSourceError     no source of that type
+-- UnreadableFileError    no such file, not a regular file, not under a permitted root, no permission
+-- FileFormatError        the file is not what it says: no archive, a header that lies, changed while open
+-- MissingColumnError     the file has no column of that name
+-- ColumnRefusedError     a column that no graph can take: objects, records, text, no rows
+-- ColumnLengthError      columns of one source differ in their number of rows
+-- RowRangeError          a row that the source does not have
"""

from __future__ import annotations


class DataError(Exception):
    """A source cannot be used as asked. `path` is the source's path as it was given, `column` a column's name."""

    def __init__(self, message: str, *, path: str, column: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.column = column


class UnknownSourceError(DataError):
    """There is no source of the type asked for."""


class UnreadableFileError(DataError):
    """The file cannot be opened for reading, or may not be."""


class FileFormatError(DataError):
    """The file's bytes are not what its type or its own headers say."""


class MissingColumnError(DataError):
    """The source has no column of that name; the message lists those that it has."""


class ColumnRefusedError(DataError):
    """The column's element type or shape is none that a graph can take."""


class ColumnLengthError(DataError):
    """Two columns of one source have different numbers of rows."""


class RowRangeError(DataError):
    """A row below 0, or at or past the number of rows."""
