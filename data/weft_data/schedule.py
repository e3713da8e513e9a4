"""Which rows each step trains on."""

from __future__ import annotations

from weft_data.order import sample_order
from weft_data.source import Rows


class BatchPlan:
    """The global batches of a run over rows `rows_start` (included) to `rows_stop` (excluded) of a source.

    Step s of a pass takes the pass's order from `s * batch` on; the last batch of a pass is as short as what is left.
    The order of one pass is kept, so steps asked for in order cost one sort a pass. Safe to share between threads.
    """

    def __init__(self, rows_start: int, rows_stop: int, batch: int, seed: int, shuffle: bool) -> None:
        if not 0 <= rows_start < rows_stop:
            raise ValueError(f"rows {rows_start} to {rows_stop} are none")
        if batch < 1:
            raise ValueError(f"a batch of {batch} samples is none")
        self.rows_start = rows_start
        self.rows_stop = rows_stop
        self.batch = batch
        self.seed = seed
        self.shuffle = shuffle
        self._kept: tuple[int, Rows] | None = None

    @property
    def rows(self) -> int:
        """Rows of a pass."""
        return self.rows_stop - self.rows_start

    @property
    def steps_per_pass(self) -> int:
        """Steps of a pass, the short one at its end included."""
        return -(-self.rows // self.batch)

    def samples(self, step: int) -> int:
        """Samples of the global batch of `step`, counted from 0 over all passes, without making its order."""
        start = self._place(step)[1] * self.batch
        return min(self.batch, self.rows - start)

    def at(self, step: int) -> tuple[int, Rows]:
        """(pass, rows of the source in the global batch) of `step`, counted from 0 over all passes."""
        pass_number, within = self._place(step)
        start = within * self.batch
        return pass_number, self._order(pass_number)[start : start + self.batch] + self.rows_start

    def _place(self, step: int) -> tuple[int, int]:
        if step < 0:
            raise ValueError(f"step {step} is below 0")
        return divmod(step, self.steps_per_pass)

    def _order(self, pass_number: int) -> Rows:
        kept = self._kept
        if kept is None or kept[0] != pass_number:
            order = sample_order(self.rows, seed=self.seed, pass_number=pass_number, shuffle=self.shuffle)
            kept = self._kept = (pass_number, order)
        return kept[1]
