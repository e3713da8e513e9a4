"""What every daemon does at its start: private files, logs to stderr, signals to an event, an end with its parent."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from typing import Any, BinaryIO, TextIO

from weft.agent.held_files import OwnLog
from weft.agent.printable import escaped
from weft.agent.private import UMASK

GRACE_S = 5.0
"""What a daemon has to clean up once its parent is gone; then it is ended hard."""

ORPHANED_EXIT_CODE = 3

MOST_FILES = 1 << 16
FEW_FILES = 64
"""Open at the same time, of a process of a job with a few neighbours."""


def start_daemon(name: str, *, exit_with_parent: bool = False, level: int = logging.INFO) -> threading.Event:
    """Sets up logging and signals; returns the event that says stop. To be called on the main thread, once."""
    os.umask(UMASK)
    log_to_stderr(name, level)
    _raise_files()
    stop = threading.Event()
    stop_on_signals(stop)
    if exit_with_parent:
        watch_parent(stop)
    return stop


def _raise_files() -> None:
    """As many open files as this process may have. Where those are few it is told: ZeroMQ ends a process that lacks
    one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if 0 <= soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < FEW_FILES:
        told = "only %d files may be open, where processes of jobs want some %d: `ulimit -n` raises that"
        logging.getLogger("weft.agent").warning(told, most, FEW_FILES)


def log_to_stderr(name: str, level: int = logging.INFO) -> None:
    """Sends structlog's and the standard library's records to stderr: for people on a tty, else as lines of JSON."""
    import structlog  # the cluster extra: the SDK alone does not have it

    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _adding_daemon(name),
    ]
    tty = sys.stderr.isatty()
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, _escaping, structlog.dev.ConsoleRenderer()]
        if tty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = _Handler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("httpx", "httpcore", "alembic", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to stderr, also where that is a file which somebody has deleted."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._log = OwnLog()

    def emit(self, record: logging.LogRecord) -> None:
        self._log.reopen()
        super().emit(record)


def stop_on_signals(stop: threading.Event) -> None:
    """SIGINT and SIGTERM set `stop`; a second SIGINT interrupts what does not come to its end."""

    def handle(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def watch_parent(
    stop: threading.Event,
    *,
    stdin: BinaryIO | None = None,
    grace_s: float = GRACE_S,
    end: Callable[[int], object] = os._exit,
) -> threading.Thread:
    """Reads standard input, a pipe that the parent holds, until it closes; then sets `stop`; after a grace calls `end`.

    The pipe closes however the parent ended. The thread does not keep the process alive.
    """
    # Not through a buffered reader: a thread waiting in one holds its lock, and the interpreter aborts on that at exit.
    pipe = (stdin if stdin is not None else sys.stdin.buffer).fileno()

    def watch() -> None:
        try:
            while os.read(pipe, 4096):
                pass
        except OSError:
            pass  # a pipe that cannot be read any more has no parent at its other end
        stop.set()
        # Nobody sets this one: the wait is the grace, and a process that ends sooner takes this thread with it.
        threading.Event().wait(grace_s)
        end(ORPHANED_EXIT_CODE)

    thread = threading.Thread(target=watch, name="watch-parent", daemon=True)
    thread.start()
    return thread


_Record = MutableMapping[str, Any]


def _adding_daemon(name: str) -> Callable[[Any, str, _Record], _Record]:
    def add(_logger: Any, _method: str, record: _Record) -> _Record:
        record["daemon"] = name
        record.pop("color_message", None)  # uvicorn's second copy of the message, with escape codes
        return record

    return add


def _escaping(_logger: Any, _method: str, record: _Record) -> _Record:
    """Jobs and agents have a part in what is logged; on a terminal their control characters would be carried out."""
    return {name: escaped(value) if isinstance(value, str) else value for name, value in record.items()}
