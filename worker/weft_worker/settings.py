"""Settings of a worker and of the runs that it carries out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from weft.api.base import Name
from weft_kvstore.settings import STEPS_AHEAD
from weft_worker.device import CPU, DEVICE_PATTERN


def _share_of_cores() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(asked), 256) if asked.isdecimal() and int(asked) else len(os.sched_getaffinity(0))


class RunSettings(BaseModel):
    """How a run uses this machine; nothing of it changes a result, but for a GPU's own rounding."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kernels: Literal["onnxruntime", "numpy"] = "onnxruntime"
    """What computes on the CPU: onnxruntime, and NumPy what that lacks; or NumPy alone, the reference. They round
    differently, so all workers of a job should have the same."""
    compute_threads: Annotated[int, Field(ge=1, le=256)] = Field(default_factory=_share_of_cores)
    """Threads that onnxruntime computes with: OMP_NUM_THREADS, as NumPy's matrix products, else this machine's cores.
    Results are the same bits from run to run for one number of threads and one version of onnxruntime."""
    io_threads: Annotated[int, Field(ge=1, le=64)] = 1
    """Threads of the IO lane. 1 is enough: an IO thread is never held while a reply is awaited."""
    steps_in_flight: Annotated[int, Field(ge=1, le=STEPS_AHEAD)] = STEPS_AHEAD
    """Steps pushed and not finished, at most. Two, so that a step's sends overlap the next one's first fetches; not
    more, because the store lets no slot go further ahead."""
    wait_timeout_s: Annotated[float, Field(gt=0, le=86400)] = 600.0
    """Deadline of every wait for a step or for values, seconds; above the store's own, whose messages say more."""
    device: Annotated[str, Field(pattern=DEVICE_PATTERN)] = CPU
    """Where kernels run: `cpu`, `cuda:0` (the number of a GPU), or `auto`, the first GPU where there is one. The CPU
    unless asked for: a GPU sums in another order, so which machines have one would show in the results."""
    overlap: bool = True
    """Whether gradients are sent while the backward pass goes on. Without it they are sent after it: to see what
    overlap brings. Results are the same, to the bit."""
    arena: bool = True
    """Whether a step's values share one piece of memory, as planned when its program was bound. Results are the same
    without, to the bit, and memory is then what Python frees in time: for debugging, and to see what it saves."""
    cuda_graphs: bool = True
    """Whether a GPU starts runs of kernels that are the same in each step as a whole (CUDA graphs), from the third step
    on. Results are the same, to the bit."""
    serial: bool = False
    """Run one piece of work after the other, for debugging."""


class WorkerSettings(BaseSettings, RunSettings):
    """A worker daemon's settings, each from the command line or from an environment variable WEFT_WORKER_..."""

    model_config = SettingsConfigDict(
        env_prefix="WEFT_WORKER_", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    server: Annotated[str, Field(pattern=r"^https?://")]
    """The server's URL."""
    name: Name
    """What people call this worker."""
    token: str | None = None
    """The bearer token that the server asks of agents, where it asks for one."""
    data_roots: Annotated[tuple[Path, ...] | None, NoDecode] = None
    """Directories that data may be read from; anywhere where left out. In the environment, joined as in PATH."""
    job_memory: Annotated[ByteSize, Field(ge=1 << 28)] | None = None
    """The most private memory that a job's process may take, as 4GiB; a job that wants more fails. What the machine
    has, or its container may take, where left out. Of the host's memory: a GPU's is not bounded."""
    alive_file: Path | None = None
    """A file that is touched at every heartbeat while the daemon's work goes on: its age tells a probe if it hangs."""
    exit_with_parent: bool = False
    """Whether to end when standard input closes."""

    @field_validator("data_roots", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(os.pathsep) if part) if isinstance(value, str) else value
