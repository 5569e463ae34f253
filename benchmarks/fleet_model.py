"""Make an hour of a fleet's telemetry from twins: what agents on its nodes show at every scrape, and what is true."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from joulelab.twin.model import Node
from joulelab.twin.timeline import RunTimes, Timeline, lay_out_run
from joulelab.twin.workload_progress import RunRequest, Stage, WorkloadModel

if TYPE_CHECKING:
    from collections.abc import Iterator

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NS = 1_000_000_000
GPUS = 8
PORT = 9797
READ_S = 1.0  # how often an agent reads its meters
MISSED = 0.003  # share of the scrapes that fail
LOAD_S, VALIDATE_S, SAVE_S = 45.0, 20.0, 12.0
MODEL = WorkloadModel(
    stages=(
        Stage(name="load", seconds="load_s", cpu=0.35, memory=0.3),
        Stage(name="train", each="epoch", seconds="epoch_s", busy=0.97, intensity=0.85, cpu=0.15, memory=0.25,
              flutter=0.12, flutter_s=3.0),
        Stage(name="validate", each="epoch", seconds=VALIDATE_S, busy=0.8, intensity=0.5, cpu=0.2, memory=0.2,
              flutter=0.1, flutter_s=2.0),
        Stage(name="save", each="epoch", seconds="save_s", cpu=0.25, memory=0.2),
    ),
    parameters={"epochs": 7, "epoch_s": 260.0, "load_s": LOAD_S, "save_s": SAVE_S},
    power_scatter=0.01,
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Hold a job: its number, its nodes, when it truly begins and ends (ns)."""

    number: str
    nodes: range
    start_ns: int
    end_ns: int
    epochs: int
    epoch_s: float


@dataclass(frozen=True)
class Plan:
    """Say what fleet to make: how many nodes, from when (ns) and how long (s), scraped how often (s), by what seed.

    `gains` are the accuracies that the agents state for GPUs and node; what is drawn lies within them, as one for all
    devices of a kind for a `shared` of 1, as each device's own for 0. Jobs that are `abrupt` begin and end under load.
    """

    nodes: int
    start_ns: int
    span_s: float = 3600.0
    scrape_s: float = 15.0
    job_nodes: int = 64
    job_s: float = 2100.0
    seed: int = 1
    gains: tuple[float, float] = (0.05, 0.02)
    shared: float = 0.5
    abrupt: bool = False
    name: str = "node"
    first_job: int = 4711

    def name_of(self, number: int) -> str:
        """Return the name of a node."""
        return f"{self.name}{number + 1:04d}"


@dataclass
class Fleet:
    """Hold the jobs of a fleet and draw its nodes one by one; the first job is the one that is asked for."""

    plan: Plan
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, rng = self.plan, np.random.default_rng(self.plan.seed)
        free = max((plan.span_s - plan.job_s) * 0.7, 1.0)
        self.jobs = [
            self._job(f"{plan.first_job}", range(plan.job_nodes), rng.uniform(0.2, 0.9) * free + 60, plan.job_s)
        ]
        at = plan.job_nodes
        while at < plan.nodes:
            count = min(int(rng.choice([1, 1, 2, 4, 8, 16, 32])), plan.nodes - at)
            if rng.random() < 0.85:  # the others stay idle
                begin, length = rng.uniform(-0.3, 0.6) * plan.span_s, rng.uniform(0.1, 0.9) * plan.span_s
                self.jobs.append(self._job(f"{plan.first_job + len(self.jobs)}", range(at, at + count), begin, length))
            at += count
        self.kinds = rng.uniform(-1, 1, 2)  # what all meters of a kind are off by, as a share of what is stated

    def _job(self, number: str, nodes: range, begin_s: float, length_s: float) -> Job:
        epochs, (load_s, save_s) = max(round(length_s / 300), 1), self._ends_s
        epoch_s = max((length_s - load_s) / epochs - VALIDATE_S - save_s, 5.0)
        start = self.plan.start_ns + round(begin_s * NS)
        took_s = load_s + epochs * (epoch_s + VALIDATE_S + save_s)
        return Job(number, nodes, start, start + round(took_s * NS), epochs, epoch_s)

    @property
    def _ends_s(self) -> tuple[float, float]:
        return (0.0, 0.0) if self.plan.abrupt else (LOAD_S, SAVE_S)

    def job_of(self, number: int) -> Job | None:
        """Return the job that runs on a node in this hour."""
        return next((job for job in self.jobs if number in job.nodes), None)

    def timeline(self, number: int) -> Timeline:
        """Return what truly happens on a node."""
        node = Node(name=self.plan.name_of(number), spread=0.03, seed=self.plan.seed * 100_003 + number)
        job = self.job_of(number)
        if job is None:  # idle before a job of the day after
            when, ask = (
                RunTimes(self.plan.start_ns + 86_400 * NS, 90_000.0),
                RunRequest({"epochs": 1}, tuple(range(GPUS))),
            )
            return lay_out_run(node, MODEL, ask, when, node.seed)
        load_s, save_s = self._ends_s
        asked = {"epochs": job.epochs, "epoch_s": job.epoch_s, "load_s": load_s, "save_s": save_s}
        ask = RunRequest(asked, tuple(range(GPUS)))
        return lay_out_run(node, MODEL, ask, RunTimes(job.start_ns), node.seed)

    def true_j(self, job: Job, since_ns: int, until_ns: int) -> dict[str, float]:
        """Return the true energy (J) of a job's nodes in an interval: of all GPUs, and of the nodes."""
        made = [self.timeline(number) for number in job.nodes]
        gpus = sum(m.energy(f"gpu:{g}", since_ns, until_ns) for m in made for g in range(GPUS))
        return {"gpu": gpus, "node.ac": sum(m.energy("node.ac", since_ns, until_ns) for m in made)}

    def telemetry(self) -> Iterator[Scraped]:
        """Yield what was scraped of each node."""
        for number in range(self.plan.nodes):
            yield self.scraped(number)

    def scraped(self, number: int) -> Scraped:
        """Return what was scraped of a node, gains and all."""
        plan, made, job = self.plan, self.timeline(number), self.job_of(number)
        rng = np.random.default_rng([plan.seed, number])
        offset = rng.uniform(0, plan.scrape_s)
        at = plan.start_ns + np.rint((np.arange(offset, plan.span_s, plan.scrape_s)) * NS).astype(np.int64)
        at = (at + rng.integers(0, 4_000_000, at.size)) // 1_000_000 * 1_000_000
        at = at[rng.random(at.size) >= MISSED]
        # The agent reads at its own pace; a scrape shows what it read last.
        phase = rng.uniform(0, READ_S)
        first = plan.start_ns - round((READ_S - phase) * NS)
        read = first + (at - first) // round(READ_S * NS) * round(READ_S * NS)
        found = Scraped(plan.name_of(number), at // 1_000_000)
        for gpu in range(GPUS):
            gain = 1 + plan.gains[0] * self._off(0, rng)
            _gpu(found, made, gpu, read, gain, float(rng.integers(1 << 30)))
        grid = np.arange(first, int(read[-1]) + 1, round(READ_S * NS), dtype=np.int64)
        _node(found, made, grid, read, 1 + plan.gains[1] * self._off(1, rng))
        busy = made.load(0, read)
        found.add("joulelab_load_ratio", 0.15 * busy, scope="host", meter="host")
        for meter, scopes, stated in (("nvml", [f"gpu:{g}" for g in range(GPUS)], 0), ("bmc", ["node.ac"], 1)):
            found.add("joulelab_meter_last_reading_timestamp_seconds", read / NS, meter=meter)
            found.add("joulelab_meter_up", np.ones(at.size), meter=meter)
            for scope in scopes:
                found.add("joulelab_accuracy_ratio", np.full(at.size, plan.gains[stated]), scope=scope, meter=meter)
        found.add("joulelab_build_info", np.ones(at.size), version="bench")
        if job is not None:
            looked = at - rng.integers(0, 2 * NS)  # what the agent knows of jobs is up to two seconds old
            there = (looked >= job.start_ns) & (looked <= job.end_ns)
            told = {"slurm_job": job.number, "user": "ada", "account": "physics", "partition": "gpu"}
            found.add("joulelab_slurm_job_info", np.ones(int(there.sum())), at=found.t_ms[there], **told)
        return found

    def _off(self, kind: int, rng: np.random.Generator) -> float:
        return float(self.plan.shared * self.kinds[kind] + (1 - self.plan.shared) * rng.uniform(-1, 1))


def _gpu(found: Scraped, made: Timeline, gpu: int, read: Ints, gain: float, base: float) -> None:
    _, curve = made.curve(f"gpu:{gpu}")
    watts = curve.watts(read)
    labels = {"scope": f"gpu:{gpu}", "meter": "nvml", "device": f"GPU-{found.name}-{gpu}"}
    joules = base + gain * (curve.joules(read) - curve.joules(read[:1]))
    found.add("joulelab_energy_joules_total", np.round(joules, 3), **labels, source="counter")
    found.add("joulelab_power_watts", np.round(gain * watts, 3), **labels)
    found.add("joulelab_load_ratio", np.round(made.load(gpu, read), 2), **labels)
    found.add("joulelab_temperature_celsius", np.round(made.node.gpus[gpu].compute_celsius(watts)), **labels)
    found.add("joulelab_cap_watts", np.full(read.size, made.node.gpus[gpu].default_cap_w), **labels)


def _node(found: Scraped, made: Timeline, grid: Ints, read: Ints, gain: float) -> None:
    """Add a node's wall: powers that the agent reads every second, in whole watts, and adds up itself."""
    _, curve = made.curve("node.ac")
    watts = np.round(gain * curve.watts(grid))
    joules = np.append(0.0, np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(grid) / NS))
    at = np.searchsorted(grid, read)
    labels = {"scope": "node.ac", "meter": "bmc", "device": found.name}
    found.add("joulelab_energy_joules_total", joules[at], **labels, source="integrated")
    found.add("joulelab_power_watts", watts[at], **labels)


@dataclass
class Scraped:
    """Hold what was scraped of a node: times (ms), and for each series its labels, values and times."""

    name: str
    t_ms: Ints
    series: list[tuple[dict[str, str], Floats, Ints | None]] = field(default_factory=list)

    def add(self, metric: str, values: Floats, at: Ints | None = None, **labels: str) -> None:
        """Add a series; it has a sample at every scrape unless times are given."""
        named = {"__name__": metric, "instance": f"{self.name}:{PORT}", "job": "joulelab", **labels}
        self.series.append((named, values, at))

    @property
    def samples(self) -> int:
        """Return how many there are."""
        return sum(values.size for _, values, _ in self.series)

    def victoria(self) -> bytes:
        """Return lines for VictoriaMetrics' import."""
        encode, common = msgspec.json.encode, msgspec.json.encode(self.t_ms.tolist())
        lines = []
        for labels, values, at in self.series:
            if values.size:
                times = common if at is None else encode(at.tolist())
                lines.append(
                    b'{"metric":%b,"values":%b,"timestamps":%b}\n' % (encode(labels), encode(values.tolist()), times)
                )
        return b"".join(lines)

    def openmetrics(self) -> dict[str, list[str]]:
        """Return lines for Prometheus' backfilling, by metric."""
        found: dict[str, list[str]] = {}
        for labels, values, at in self.series:
            inside = ",".join(f'{k}="{v}"' for k, v in labels.items() if k != "__name__")
            times = self.t_ms if at is None else at
            found.setdefault(labels["__name__"], []).extend(
                f"{labels['__name__']}{{{inside}}} {value!r} {t / 1000:.3f}"
                for value, t in zip(values.tolist(), times.tolist(), strict=True)
            )
        return found
