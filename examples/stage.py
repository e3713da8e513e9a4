"""What the examples share: a cluster on this machine for as long as they run, and how they speak."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

import weft

Act = Callable[[Console, weft.Client, Path], None]
"""An example: trains on a cluster that reads data below that folder, and tells of it."""

NEXT = (
    ("weft up --detach", "a cluster until `weft down`"),
    ("python examples/first_job.py", "your own arrays"),
    ("weft jobs", "what ran there, and what runs"),
)


def perform(folder: Path, *acts: Act, takes: str, then: Iterable[tuple[str, str]] = NEXT) -> int:
    """Runs the acts on one cluster of two workers and two shards; returns the exit code.

    `takes` says how long that is, on two cores; `then` what to try next.
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            with doing(console, "starting") as say:
                cluster = stack.enter_context(weft.Cluster(2, 2, data_root=folder, progress=say))
            client = stack.enter_context(cluster.client())
            console.print(f"a server, 2 shards and 2 workers run at {cluster.url}")
            console.print(f"all of it takes {takes} on two cores; Ctrl-C ends it")
            for act in acts:
                console.print()
                act(console, client, folder)
    except KeyboardInterrupt:
        console.print("stopped; no process is left")
        return 130
    except (weft.WeftError, OSError) as error:  # OSError: a full disk, a library without source
        console.print(f"failed: {error}", style="red", markup=False)
        return 1
    _suggest(console, then)
    return 0


@contextmanager
def doing(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Shows what takes a while: on a terminal as long as it does, with how far it is; else as one line, so that a pipe
    is not silent."""
    if console.is_terminal:
        with console.status(what) as status:
            yield status.update
    else:
        console.print(f"{what} ...", markup=False)
        yield lambda _: None


def training_s(job: weft.Job) -> float:
    """How long an ended job ran."""
    assert job.started_at is not None
    assert job.ended_at is not None
    return (job.ended_at - job.started_at).total_seconds()


def shown(path: Path) -> Path:
    """The path as a reader of the screen would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _suggest(console: Console, then: Iterable[tuple[str, str]]) -> None:
    bin_ = shown(Path(sys.executable).parent)
    console.print("\nTry next:")
    for command, what in then:
        console.print(f"  {f'{bin_}/{command}':<38} # {what}")
