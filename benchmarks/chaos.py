"""Disturbs jobs by seeded plans, and compares what they come to with undisturbed ones, bit by bit.

    python benchmarks/chaos.py [--runs N] [--seed S] [--fault NAME ...] [--case NAME ...]
    python benchmarks/chaos.py --seconds 3600

Each run submits one job to a cluster of this machine and carries out the plan of its seed. A plan names messages and
steps: "message 137 of worker 1 to shard 0", "step 12 of shard 1". There it kills processes, one or two at once, stops
one for a while, or cuts a connection; or messages are lost, repeated and swapped all the time. What died is started
again. `faults/sitecustomize.py` is how. The job has to succeed with the parameters and the rule's state of an
undisturbed one. The last lines count the runs by fault and case. The exit code is 1 where any differs; below each such
line is the command that repeats it.

With `--seconds`, jobs run one after the other with faults all the time for so long, and no daemon is killed: the last
table says how much memory and how many descriptors each daemon had.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn
from weft.http import Retry

ROWS, WIDTH, IDS = 2048, 20, 500
SNAPSHOT_S = 0.3
RECOVERY = weft.Recovery(keep_state=True, max_restarts=20, snapshot_every_s=SNAPSHOT_S)
WAIT_S = 180.0
POLL_S = 0.05
PATIENT = Retry(attempts=20)
"""A server that was killed takes seconds to come back."""

CASES: dict[str, dict[str, Any]] = {
    "dense": {"optimizer": weft.SGD(lr=0.05, momentum=0.9)},
    "adam": {"optimizer": weft.Adam()},
    "table": {"optimizer": weft.Adagrad(lr=0.05)},
    "2bit": {
        "optimizer": weft.SGD(lr=0.05, momentum=0.9),
        "communication": weft.Communication(
            compression={"gradients": {"kind": "2bit", "threshold": 0.01}, "least_bytes": 0}
        ),
    },
    "workers": {
        "optimizer": weft.Adam(),
        "communication": weft.Communication(
            update="workers",
            compression={
                "gradients": {"kind": "2bit", "threshold": 0.01},
                "merged": {"kind": "2bit", "threshold": 0.01},
                "least_bytes": 0,
            },
        ),
    },
    "float16": {"optimizer": weft.Adam(), "precision": "float16"},
    "clipped": {"optimizer": weft.Adam(), "clip_norm": 0.5},
    "one worker": {"optimizer": weft.Adam(), "workers": 1, "shards": 0},
}

TABLES = ("table", "workers")
"""Cases with a table, which is on the shards whoever updates the rest."""

FAULTS = ("kill", "kill two", "stop", "cut", "noise")
NOISE = {"lost": 0.3, "twice": 0.1, "swapped": 0.1}
NOISY_SHARE = 0.03
"""Of a job's steps: with so much noise a step takes seconds."""

ALONE_TIMES = 20
"""Steps of one worker without shards are so much faster."""

LONGEST_STOP_S = 1.5
"""Shorter than what counts as silence: nobody is given up."""

MESSAGES_A_STEP = 2
"""At least, on each link."""

SLOTS = ("worker 0", "worker 1", "shard 0", "shard 1")
DAEMONS = ("server", *(f"daemon of {slot}" for slot in SLOTS))

SAMPLE_S = 5.0


# --- Plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Where and what: see `faults/sitecustomize.py`. `role` "job" is the job's progress, as the server knows it.

    With `saved`, the harm is done once the job has a snapshot. With `until_saved`, a process stops again and again
    until then, so that the job comes slowly to the step that the snapshot is of.
    """

    id: int
    role: str
    number: int
    peer: int | None
    unit: str
    count: int
    cut: bool = False
    kill: Sequence[str] = ()
    stop: str = ""
    stop_s: float = 0.0
    saved: bool = False
    until_saved: bool = False

    def __str__(self) -> str:
        does = "cut" if self.cut else f"kill {' and '.join(self.kill)}" if self.kill else f"stop {self.stop}"
        does += f" for {self.stop_s:.1f} s" if self.stop else ""
        return f"{does} at {self.unit} {self.count} of {self.role} {self.number}" + (
            "" if self.peer is None else f" to shard {self.peer}"
        )


def plan_of(seed: int, fault: str, case: str, steps: int, *, daemons: bool = True) -> list[Point]:
    """What is to happen. `daemons`: whether they may be victims too."""
    choose = random.Random(seed)
    alone = case == "one worker"
    processes = SLOTS[:1] if alone else SLOTS
    around = [name for name in DAEMONS if not alone or name in {"server", "daemon of worker 0"}]
    victims = [*processes, *(around if daemons else ())]
    points = []
    for number in range({"noise": 0, "cut": choose.randint(2, 6)}.get(fault, choose.randint(1, 2))):
        role, of = choose.choice(SLOTS).split()
        unit = choose.choice(("message", "step"))
        if alone:
            role, of, unit = "job", "0", "step"
        elif fault == "cut":
            role = "worker"
        peer = choose.randrange(2) if role == "worker" else None
        harm: dict[str, Any] = {"cut": True}
        if fault == "stop":
            harm = {"stop": choose.choice(victims), "stop_s": choose.uniform(0.1, LONGEST_STOP_S)}
        elif fault != "cut":
            harm = {"kill": choose.sample(victims, min(1 + (fault == "kill two"), len(victims)))}
        most = steps if unit == "step" else steps * MESSAGES_A_STEP
        points.append(Point(number, role, int(of), peer, unit, choose.randrange(1, most), **harm))
    return points


# --- What is disturbed ------------------------------------------------------------------------------------------------


def loss_of(case: str) -> weft.Expression:
    label = weft.input("y", ("batch",), "int64")
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))
    if case in TABLES:
        net = nn.Sequential(nn.Embedding(IDS, 8), nn.Flatten(), nn.Linear(32, 2))
        return nn.cross_entropy(net(weft.input("ids", ("batch", 4), "int64")), label)
    return nn.cross_entropy(net(weft.input("x", ("batch", WIDTH))), label)


def write_data(path: Path) -> None:
    random_ = np.random.default_rng(0)
    x = random_.standard_normal((ROWS, WIDTH), dtype=np.float32)
    np.savez(path, x=x, ids=random_.integers(0, IDS, (ROWS, 4)), y=(x[:, 0] * x[:, 1] > 0).astype(np.int64))


def submit(client: weft.Client, case: str, steps: int) -> weft.JobHandle:
    options = {"workers": 2, "shards": 2, **CASES[case]}
    names = {"ids": "ids", "y": "y"} if case in TABLES else {"x": "x", "y": "y"}
    data = weft.numpy_data("data.npz", columns=names)
    return client.submit(loss_of(case), data=data, steps=steps, recovery=RECOVERY, **options)


def bits(job: weft.JobHandle) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in job.values(state=True).items()}


def parent_of(pid: int) -> int:
    """0 where there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be ending: a daemon's takes its children with it."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class Disturbed:
    """A cluster and the plan of the job that it runs now."""

    def __init__(self, cluster: weft.Cluster, client: weft.Client, folder: Path) -> None:
        self.cluster = cluster
        self.client = client
        self._folder = folder
        self._run = folder
        self._runs = 0
        self._expected: dict[tuple[str, int], dict[str, bytes]] = {}

    def begin(self, seed: int, points: Sequence[Point], noise: Mapping[str, float]) -> None:
        """Jobs that are submitted from now on are disturbed like this."""
        self._runs += 1
        self._run = self._folder / f"run-{self._runs}"
        self._run.mkdir()
        document = {
            "run": self._run.name,
            "seed": seed,
            "noise": dict(noise),
            "points": [asdict(point) for point in points],
        }
        written = self._folder / "new.json"
        written.write_text(json.dumps(document))
        written.replace(self._folder / "plan.json")

    def expected(self, case: str, steps: int) -> dict[str, bytes]:
        """What an undisturbed job comes to."""
        if (case, steps) not in self._expected:
            self.begin(0, [], {})
            job = submit(self.client, case, steps)
            job.wait(timeout_s=WAIT_S)
            self._expected[case, steps] = bits(job)
        return self._expected[case, steps]

    def carry_out(self, job: weft.JobHandle, points: Sequence[Point]) -> Iterator[str]:
        """Does what the plan says until the job has ended; what was done."""
        left, end = list(points), time.monotonic() + WAIT_S
        while not job.refresh().state.is_terminal:
            if time.monotonic() > end:
                raise TimeoutError(f"job {job.id} has not ended within {WAIT_S:g} s")
            for point in list(left):
                reached = self._run / f"{point.id}.reached"
                if point.role == "job" and job.job.progress.step >= point.count:
                    reached.touch()
                if reached.exists() and (job.job.snapshot or not point.saved):
                    left.remove(point)
                    yield self._do(point, job)
            for process in self.cluster.ended():
                self.cluster.restart(process.name)
            time.sleep(POLL_S)
        yield from (f"not reached: {point}" for point in left)

    def _do(self, point: Point, job: weft.JobHandle) -> str:
        if point.cut:
            return str(point)
        number = signal.SIGKILL if point.kill else signal.SIGSTOP
        found = {name: self._pid(name) for name in point.kill or (point.stop,)}
        for pid in filter(None, found.values()):
            send(pid, number)
        (self._run / f"{point.id}.done").touch()
        if point.stop and found[point.stop]:
            time.sleep(point.stop_s)
            send(found[point.stop], signal.SIGCONT)
            while point.until_saved and not (job.refresh().state.is_terminal or job.job.snapshot):
                send(found[point.stop], signal.SIGSTOP)
                time.sleep(point.stop_s)
                send(found[point.stop], signal.SIGCONT)
        for process in self.cluster.processes:
            if point.kill and process.pid in found.values():
                while process.exit_code is None:
                    time.sleep(POLL_S)
        missing = [name for name, pid in found.items() if not pid]
        if len(missing) == len(found):
            return f"not reached: {point}"
        return f"{point}" + (f" (no {', no '.join(missing)})" if missing else "")

    def _pid(self, name: str) -> int:
        """Of a process of this cluster; 0 where there is none."""
        if name == "server":
            return self.cluster.processes[0].pid
        slot = self._run / f"{name.removeprefix('daemon of ').replace(' ', '-')}.pid"
        pid = int(slot.read_text() or 0) if slot.exists() else 0
        daemon = parent_of(parent_of(pid)) if pid else 0
        if daemon not in {process.pid for process in self.cluster.processes}:
            return 0
        return daemon if name.startswith("daemon") else pid


@contextmanager
def disturbed_cluster(folder: Path, *, workers: int = 3, shards: int = 3) -> Iterator[Disturbed]:
    """A cluster whose jobs can be disturbed, with data, in an empty folder."""
    write_data(folder / "data.npz")
    faults = folder / "faults"
    faults.mkdir()
    before = {name: os.environ.get(name) for name in ("WEFT_FAULTS", "PYTHONPATH")}
    path = [str(Path(__file__).parent / "faults"), before["PYTHONPATH"] or ""]
    os.environ |= {"WEFT_FAULTS": str(faults), "PYTHONPATH": os.pathsep.join(filter(None, path))}
    try:
        with (
            weft.Cluster(workers=workers, shards=shards, data_root=folder, start_timeout_s=WAIT_S) as cluster,
            weft.Client(cluster.url, retry=PATIENT) as client,
        ):
            yield Disturbed(cluster, client, faults)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# --- One run, many runs, an hour --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What has become of a run. `wrong` is empty where all is as undisturbed."""

    seed: int
    fault: str
    case: str
    wrong: str
    restarts: int
    seconds: float
    done: Sequence[str]

    def __str__(self) -> str:
        told = self.wrong or "equal"
        return (
            f"{self.seed:>5}  {self.fault:<9} {self.case:<11} {self.restarts:>8} {self.seconds:>8.1f}  {told:<7}  "
            f"{'; '.join(self.done)}"
        )


def run(
    disturbed: Disturbed,
    seed: int,
    fault: str,
    case: str,
    steps: int,
    *,
    daemons: bool = True,
    noise: Mapping[str, float] = NOISE,
    points: Sequence[Point] | None = None,
) -> Outcome:
    """Disturbs a job by the plan of a seed, or by `points`."""
    if case == "one worker":
        steps *= ALONE_TIMES
    if fault == "noise":
        steps = max(int(steps * NOISY_SHARE), 4)
    else:
        noise = {}
    expected = disturbed.expected(case, steps)
    if points is None:
        points = plan_of(seed, fault, case, steps, daemons=daemons)
    disturbed.begin(seed, points, noise)
    begun, job = time.monotonic(), submit(disturbed.client, case, steps)
    done, wrong = [], ""
    try:
        for told in disturbed.carry_out(job, points):
            done.append(told)
        if job.state.value != "succeeded":
            wrong = f"{job.state.value}: {job.job.reason}"
        else:
            found = bits(job)
            differ = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
            wrong = f"DIFFER: {', '.join(sorted(differ))}" if differ else ""
    except (TimeoutError, weft.WeftError) as error:
        wrong = f"{type(error).__name__}: {error}"
        job.cancel()
    return Outcome(seed, fault, case, wrong, job.refresh().restarts, time.monotonic() - begun, done)


def chosen(seed: int, faults: Sequence[str], cases: Sequence[str]) -> tuple[str, str]:
    """The fault and the case of a seed. One worker has no connections."""
    case = cases[seed % len(cases)]
    some = [fault for fault in faults if case != "one worker" or fault not in {"cut", "noise"}] or ["kill"]
    return some[seed // len(cases) % len(some)], case


def table(outcomes: Sequence[Outcome]) -> str:
    """How many runs of each fault and case were equal, of those that were disturbed, as Markdown."""
    outcomes = [one for one in outcomes if one.fault == "noise" or any("not reached" not in told for told in one.done)]
    cases = [case for case in CASES if any(one.case == case for one in outcomes)]
    lines = [f"| | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for fault in FAULTS:
        some = [one for one in outcomes if one.fault == fault]
        runs, equal = Counter(one.case for one in some), Counter(one.case for one in some if not one.wrong)
        told = [f"{equal[case]} of {runs[case]}" if runs[case] else "" for case in cases]
        lines += [f"| {fault} | {' | '.join(told)} |"] if some else []
    return "\n".join(lines)


class Samples:
    """Memory (MiB) and descriptors of the server, the daemons and their forkservers, every few seconds."""

    def __init__(self, cluster: weft.Cluster) -> None:
        self._begun = self._next = time.monotonic()
        self._cluster = cluster
        self.of: dict[str, list[tuple[float, int]]] = {}

    def take(self) -> None:
        """Takes one, if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        for process in self._cluster.processes:
            below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for name, pid in ((process.name, process.pid), *((f"{process.name}'s child", int(one)) for one in below)):
                words = Path(f"/proc/{pid}/statm").read_text().split()
                found = int(words[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20), len(os.listdir(f"/proc/{pid}/fd"))
                self.of.setdefault(name, []).append(found)

    def __str__(self) -> str:
        lines = ["| | MiB at 10 % | 40 % | 70 % | 100 % of the time | descriptors | | | |", "|---" * 9 + "|"]
        for name, taken in sorted(self.of.items()):
            at = [taken[min(int(share * len(taken)), len(taken) - 1)] for share in (0.1, 0.4, 0.7, 1.0)]
            told = [*(f"{memory:.1f}" for memory, _ in at), *(str(count) for _, count in at)]
            lines.append(f"| {name} | {' | '.join(told)} |")
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300, help="of each job")
    parser.add_argument("--case", action="append", choices=list(CASES), help="these alone (repeatable)")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="these alone (repeatable)")
    parser.add_argument("--seconds", type=float, help="go on for so long, and watch the daemons' memory")
    arguments = parser.parse_args()
    cases, faults = arguments.case or list(CASES), arguments.fault or list(FAULTS)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, disturbed_cluster(Path(folder)) as disturbed:
        samples, end = Samples(disturbed.cluster), time.monotonic() + (arguments.seconds or 0.0)
        print(f"{'seed':>5}  {'fault':<9} {'case':<11} {'restarts':>8} {'seconds':>8}  {'bits':<7}  what was done")
        seed = arguments.seed
        while time.monotonic() < end if arguments.seconds else seed < arguments.seed + arguments.runs:
            fault, case = chosen(seed, faults, cases)
            outcome = run(disturbed, seed, fault, case, arguments.steps, daemons=not arguments.seconds)
            outcomes.append(outcome)
            print(outcome, flush=True)
            if outcome.wrong:
                print(f"       again: {again(arguments, outcome)}", flush=True)
            if arguments.seconds:
                samples.take()
            seed += 1
    wrong = sum(bool(one.wrong) for one in outcomes)
    print(f"{len(outcomes) - wrong} of {len(outcomes)} came to the bits of an undisturbed job\n\n{table(outcomes)}")
    if arguments.seconds:
        print(f"\n{samples}")
    return int(wrong > 0)


def again(arguments: argparse.Namespace, outcome: Outcome) -> str:
    """The command that does the same."""
    told = f"--seed {outcome.seed} --runs 1 --steps {arguments.steps} --fault '{outcome.fault}' --case '{outcome.case}'"
    return f"python benchmarks/chaos.py {told}"


if __name__ == "__main__":
    sys.exit(main())
