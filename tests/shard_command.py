"""`python -m weft_kvstore` in this process, for what ends before anything is served."""

from __future__ import annotations

import io
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from weft_kvstore.__main__ import main


@dataclass(frozen=True)
class Ended:
    """How it has ended, and what it has said."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def weft_kvstore(*arguments: object, **environment: str) -> Ended:
    out, errors, code = io.StringIO(), io.StringIO(), 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        redirect_stdout(out),
        redirect_stderr(errors),
        patch.dict(os.environ, {"COLUMNS": "200", **environment}),
        patch("weft_kvstore.serving.shard_process.tune_process"),
    ):
        try:
            main([str(one) for one in arguments])
        except SystemExit as ended:
            if isinstance(ended.code, str):  # Python itself says it then.
                errors.write(f"{ended.code}\n")
            code = ended.code if isinstance(ended.code, int) else 1
    for number, handler in handlers.items():  # A shard sets its own, for the rest of its process.
        signal.signal(number, handler)
    return Ended(code, out.getvalue(), errors.getvalue())
