"""Runs the probes with real processes: a shard and a worker for each setting of slices and frames, in turns."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from groups import HERE, Group, SideError, description_of, free_port
from probe import Measured, Probe
from store_cases import FLOAT_BYTES, Case

Setting = tuple[int, int]
"""Bytes of a slice, and of the frames of both ends or 0."""


class ProbeGroup(Group):
    """A shard and the worker that probes it."""

    def begin(self, setting: Setting) -> None:
        slice_bytes, frame_bytes = setting
        description = description_of(self.case, slice_bytes, (f"tcp://127.0.0.1:{free_port()}",))
        path = self.directory / f"store-{slice_bytes}-{frame_bytes}.json"
        path.write_bytes(msgspec.json.encode(description))
        settings = json.dumps({"frame_bytes": frame_bytes} if frame_bytes else {})
        self.serve(
            "shard", [sys.executable, str(HERE / "layers_shard.py"), str(path), description.shards[0], settings], {}
        )
        shard = str(self._processes[-1].pid)
        self.work("worker", [sys.executable, str(HERE / "probe_side.py"), str(path), str(frame_bytes), shard], {})

    def probe(self, key: str, probe: Probe) -> dict[str, Any]:
        """One round. Raises SideError."""
        self._workers[0].say(do="probe", key=key, probe=asdict(probe))
        return self._expect("done")[0]


def run_probes(
    chosen: Sequence[Probe], rounds: int, slice_bytes: int, progress: Callable[[str], None]
) -> list[Measured]:
    """Medians over the rounds, of which the probes take turns. Raises SideError."""
    settings: dict[Setting, list[Probe]] = {}
    for probe in chosen:
        settings.setdefault((probe.slice_bytes or slice_bytes, probe.frame_bytes or 0), []).append(probe)
    found: dict[Probe, list[dict[str, Any]]] = {probe: [] for probe in chosen}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="weft-benchmark-")))
        groups: dict[Setting, tuple[ProbeGroup, list[int]]] = {}
        for number, (setting, own) in enumerate(settings.items()):
            sizes = sorted({probe.nbytes for probe in own})
            case = Case("probe", tuple((size // FLOAT_BYTES,) for size in sizes), 1, 1, 1, 1)
            group = stack.enter_context(ProbeGroup(f"weft {number}", case, directory))
            progress(f"starts a store with slices of {setting[0]} bytes")
            group.begin(setting)
            group.wait_until_ready()
            groups[setting] = group, sizes
        for turn in range(rounds):
            for setting, own in settings.items():
                group, sizes = groups[setting]
                for probe in own:
                    progress(f"{probe.name}, round {turn + 1}")
                    found[probe].append(group.probe(f"key{sizes.index(probe.nbytes)}", probe))
    return [_median(probe, each, slice_bytes) for probe, each in found.items()]


def _median(probe: Probe, rounds: Sequence[dict[str, Any]], slice_bytes: int) -> Measured:
    if not rounds:
        raise SideError(f"{probe.name}: no round was run")
    roles = rounds[0]["processor_s"]
    return Measured(
        probe,
        statistics.median([each["time_s"] for each in rounds]),
        {role: statistics.median([each["processor_s"][role] for each in rounds]) for role in roles},
        statistics.median([each["push_frames"] for each in rounds]),
        statistics.median([each["pull_frames"] for each in rounds]),
        -(-probe.nbytes // (probe.slice_bytes or slice_bytes)),
    )
