"""Where a thread's time goes. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Stage = Literal["receive", "decode", "merge", "answer", "send", "idle"]
"""Of a shard's socket thread. Receive: reading messages from the socket; decode: understanding them, taking gradients
in and handing over what can be answered at once; merge: summing, and the rule; answer: reading rows and filling frames;
send: handing frames to the socket; idle: waiting for something to do."""

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


@dataclass(slots=True)
class StageTimes:
    """Seconds in each stage."""

    receive: float = 0.0
    decode: float = 0.0
    merge: float = 0.0
    answer: float = 0.0
    send: float = 0.0
    idle: float = 0.0

    def add(self, stage: Stage, seconds: float) -> None:
        setattr(self, stage, getattr(self, stage) + seconds)

    def told(self) -> dict[Stage, float]:
        """Seconds by the stage's name."""
        return {stage: getattr(self, stage) for stage in STAGES}
