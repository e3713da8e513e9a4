"""A job that is refused at submit, and everything that is wrong with it."""

from __future__ import annotations

from weft.api.problem import FieldError

MOST_IN_SUMMARY = 3
"""Errors that the answer's one line lists."""


class JobRefusedError(Exception):
    """The job cannot run. `errors` has at least one entry."""

    def __init__(self, errors: list[FieldError]) -> None:
        more = [f"and {len(errors) - MOST_IN_SUMMARY} more"] if len(errors) > MOST_IN_SUMMARY else []
        super().__init__("; ".join([*(error.detail for error in errors[:MOST_IN_SUMMARY]), *more]))
        self.errors = errors
