"""What a run of a plan is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from weft.agent.trace import TraceRecorder
from weft.api.trace import SpanKind
from weft_kernels.kernel import Array
from weft_kvstore.store import StepOutcome
from weft_worker.engine.work import Variable
from weft_worker.plan import Plan
from weft_worker.table import ValueTable

Locate = Callable[[int, Collection[str]], str | None]
"""Where the data has this number: `row 7 of column 'y'`. The columns of the named inputs are looked at first."""


_UNTRACED: Final = nullcontext()


@dataclass(frozen=True, slots=True)
class StepContext:
    """Which step is run, and for which samples: see `KernelContext`. `label` is what messages call it.

    The store's values are of version `step`; with `settled`, once every slot's steps before it are in. `trace` notes
    what is done, where the step is traced. `goes_on`: another step follows.
    """

    step: int
    first_sample: int
    seed: int
    label: str
    settled: bool = False
    locate: Locate | None = None
    trace: TraceRecorder | None = None
    goes_on: bool = False

    def span(self, kind: SpanKind, name: str, of: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Notes what is done within it, where the step is traced."""
        return _UNTRACED if self.trace is None else self._span(self.trace, kind, name, of)

    @contextmanager
    def _span(self, trace: TraceRecorder, kind: SpanKind, name: str, of: Sequence[str]) -> Iterator[None]:
        begin_ns = trace.now()
        yield
        trace.add(kind, f"{name} {', '.join(of)}" if of else name, self.step + 1, begin_ns)


@dataclass(slots=True)
class Ending:
    """What the slots agreed on of a step, once its barrier is; None where they agree on nothing."""

    outcome: StepOutcome | None = None

    def take(self, outcome: StepOutcome | None) -> None:
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class LateFeed:
    """An input that is known once what `after` stands for is done: `read` gives it then."""

    name: str
    after: tuple[Variable, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class PushedStep:
    """A run of a plan that the engine has. `outputs` are free once the outputs exist on the host, `sent` once the
    barrier is, and so is what `ending` has. `brought` has the outputs where they were copied from a device."""

    plan: Plan
    table: ValueTable
    outputs: tuple[Variable, ...]
    sent: tuple[Variable, ...]
    ending: Ending
    brought: list[Array] = field(default_factory=list)

    def scalars(self) -> dict[str, float]:
        """The outputs, each a scalar, which are released. To be called by work that reads `outputs`."""
        places = self.plan.outputs
        arrays = self.brought or [self.table.get(place) for place in places.values()]
        self.table.release(places.values())
        return {name: float(array) for name, array in zip(places, arrays, strict=True)}
