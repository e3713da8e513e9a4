"""What a benchmark does now, told on standard error while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Telling = Callable[[str], None]
"""Called with what is done now: the case, or a part of the work, then a colon and how far that is."""


@contextmanager
def progress_told(total: int | None = None, *, console: Console | None = None) -> Iterator[Telling]:
    """A bar on a terminal, of `total` calls where that is known, which leaves nothing behind; else a line for each case
    begun, so that a pipe or a file has something to show."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(console).tell
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


class _Lines:
    """Says of each case once that it has begun."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: set[str] = set()

    def tell(self, text: str) -> None:
        case = text.partition(":")[0]
        if case not in self._begun:
            self._begun.add(case)
            self._console.print(case, markup=False, highlight=False, soft_wrap=True)
