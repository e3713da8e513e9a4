"""`weft.submit`: a job without a client of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from weft.client import Client
from weft.job_arguments import JobArguments, shown_with_keywords_of
from weft.submission import job_spec

if TYPE_CHECKING:
    from weft.expression import Expression
    from weft.job_handle import JobHandle
    from weft.trainable import Trainable


@shown_with_keywords_of(job_spec)
def submit(loss: Expression | Trainable, **arguments: Unpack[JobArguments]) -> JobHandle:
    """Submit a job to the server at `WEFT_URL`, as `Client.submit` does, which explains the arguments."""
    return Client().submit(loss, **arguments)
