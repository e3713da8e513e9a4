"""The processes that read models, from the server's side: started when first needed, replaced where one ends."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
from typing import Final

from weft_server.onnx_import.request import ModelOutcome, ModelRequest
from weft_server.planning.apart import ONE_THREAD, PASSED_ON

_log = logging.getLogger("weft.server")

_START_S: Final = 60.0
"""Beside what reading may take: a machine with much to do is slow to start a process."""


class ModelReaders:
    """As many processes as are asked at the same time. Methods block, and may be called from any thread."""

    def __init__(self) -> None:
        self._idle: list[_Reader] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, request: ModelRequest) -> ModelOutcome | None:
        """The outcome; None where the process was lost, which says nothing about the file."""
        with self._lock:
            reader = self._idle.pop() if self._idle else _Reader()
        outcome = reader.read(request)
        if outcome is None:
            reader.close()
            _log.error("the process that reads models ended, or did not answer")
            return None
        if outcome.is_defect:
            _log.error("a model broke its reader: %s", outcome.errors[0].detail)
        with self._lock:
            if not self._is_closed:
                self._idle.append(reader)
                return outcome
        reader.close()
        return outcome

    def close(self) -> None:
        """Ends the processes; those that read end when they have."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()


class _Reader:
    """One process of `weft_server.onnx_import.fork`."""

    def __init__(self) -> None:
        kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "weft_server.onnx_import.fork"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, **ONE_THREAD},
        )
        self._rest = b""

    def read(self, request: ModelRequest) -> ModelOutcome | None:
        """None where the process has ended, or answers nothing in time."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(request.limits.seconds + _START_S)
        except OSError:
            return None
        return None if line is None else ModelOutcome.model_validate_json(line)

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # what was not read by a process that has ended
        self._process.wait()

    def _line(self, seconds: float) -> bytes | None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], seconds)
            part = os.read(descriptor, 1 << 16) if ready else b""
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line
