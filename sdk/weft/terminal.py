"""What the command line prints on: jobs, agents and other users have written part of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import console
from rich.segment import Segment

from weft.agent.printable import escaped


class Console(console.Console):
    """rich's, on which text moves no cursor, colours nothing and sets no title: control characters are escaped."""

    def render(self, renderable: Any, options: console.ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)

    def out(self, *objects: Any, **options: Any) -> None:
        super().out(*(escaped(str(each)) for each in objects), **options)

    def write(self, text: str) -> None:
        """Writes text as it is but for control characters: nothing is folded or coloured."""
        self.file.write(escaped(text))
