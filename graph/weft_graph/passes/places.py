"""Where nodes run: a device of a worker, or one of another worker's, which runs another stage of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

PLACE_PATTERN: Final = r"^(stage:\d{1,4}(/(cpu|cuda:\d{1,3}))?|cpu|cuda:\d{1,3})$"
"""`cuda:0`, `cpu`, `stage:1`, `stage:1/cuda:0`."""

_STAGE: Final = re.compile(r"stage:(\d+)(?:/(.*))?")


@dataclass(frozen=True, slots=True)
class Place:
    """A device of a stage; its name is empty for the worker's own. Where there is one, stage 0 goes without saying."""

    stage: int
    device: str

    def __str__(self) -> str:
        stage = "" if self.device and not self.stage else f"stage:{self.stage}"
        return "/".join(filter(None, (stage, self.device)))


def place_of(text: str) -> Place:
    """The place that a text like `cuda:0` or `stage:1/cpu` names. Raises ValueError for another text."""
    if not re.fullmatch(PLACE_PATTERN, text):
        raise ValueError(f"{text!r} is no place; places are cpu, cuda:0, stage:1, stage:1/cuda:0")
    stage = _STAGE.fullmatch(text)
    return Place(int(stage[1]), stage[2] or "") if stage else Place(0, text)
