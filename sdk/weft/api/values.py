"""Parameters' values over HTTP; every document is a safetensors file, media type application/octet-stream.

| Call | Answer | Problems beside 401, 404 `unknown-job` and 413 `too-large` |
|---|---|---|
| `GET /v1/jobs/{id}/values?name=&state=` | document, header `Weft-Step` | 404 `unknown-parameter`, 409 `wrong-state`, \
504 `keeper-silent` |
| `PUT /v1/jobs/{id}/values` | `ValuesSet` | 422 `wrong-values`, 409 `wrong-state`, `values-not-set`, \
503 `too-many-sets`, 504 `keeper-silent`, 507 `not-stored` |
| `POST /v1/uploads` | 201 `Uploaded` | 422 `wrong-values`, 503 `too-many-uploads`, 507 `not-stored` |
| `DELETE /v1/uploads/{id}` | 204 | 404 `unknown-upload` |

The errors of `wrong-values` have pointers by tensor: `/conv1.weight`. A document may hold some of the parameters.
Values of a pending job become its first ones; those of a job that starts or runs are set by its keeper, and the answer
says after which step. An ended job is not changed: submit another one with `init_from`. What is wrong with
`init_from` is refused at submit, with pointers below `/init_from`. With `state=true` a document has the optimizer's
state too, as tensors `weft.state/NAME/KEY`, where the job was submitted with `keep_state`.
"""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from typing import Final

from weft.api.base import Count, Identifier, Model

STEP_HEADER: Final = "Weft-Step"
"""How many steps were finished when a document's values held."""
SAFETENSORS: Final = ".safetensors"
"""What the names of files of parameters end in."""
STATE: Final = "weft.state/"
"""What the names of a optimizer's state begin with in documents."""


def state_tensor(name: str, key: str) -> str:
    """The name of the tensor of a key's state: `weft.state/NAME/KEY`."""
    return f"{STATE}{name}/{key}"


def state_key(tensor: str) -> str:
    """The key that a tensor `weft.state/NAME/KEY` belongs to; '' for another tensor."""
    return tensor.removeprefix(STATE).partition("/")[2] if tensor.startswith(STATE) else ""


AVERAGE: Final = "weft.average"
"""The state that says how far a parameter's average is ahead of it, of a job that keeps averages."""


def upload_id(key: str, path: str | os.PathLike[str]) -> str:
    """The id of the document in a file, all of which is read, once it is brought with that `Idempotency-Key`: the same
    document replaces it. Raises OSError."""
    with open(path, "rb") as file:
        document = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{document} {key}".encode()).hexdigest()[:32]


class ValuesSet(Model):
    """Which parameters were set, and the step after which: the next one uses them. 0 before a job's first step."""

    names: list[str]
    step: Count


class Uploaded(Model):
    """A document that was brought for `init_from`. It goes at `expires_at`, or when newer ones need its room."""

    id: Identifier
    names: list[str]
    """Its tensors."""
    size_bytes: Count
    expires_at: datetime


class UploadInfo(Model):
    """A document that is kept for `init_from`, without a look into it."""

    id: Identifier
    size_bytes: Count
    expires_at: datetime


class UploadList(Model):
    """Oldest first."""

    uploads: list[UploadInfo]
