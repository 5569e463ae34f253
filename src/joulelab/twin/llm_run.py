"""Measure a simulated inference server in virtual time: requests, true power, readings of meters, a run folder.

`write_llm_run` writes a run as `joulelab serving load` under `joulelab run` would: idle time, then for each rate the
phases warm-up, steady and drain, the work done in them, and one mark line per request in the format of
`joulelab.serving.request_records`. It returns the truth, which no reader of the run knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.mark_lines import encode_json, format_begin, format_end, make_fact_line
from joulelab.twin.flaws import MountedMeter, PanelFlaws
from joulelab.twin.llm_model import EnginePlace, LlmEngine, LlmParameters, LlmRequest, LlmSimulation
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.power_curves import Curve, Pieces
from joulelab.twin.timeline import GpuWants, Timeline
from joulelab.twin.virtual.meters import Bench, find_slowest_s, list_cap_events, read_meters
from joulelab.twin.virtual.run_writing import FIRST_NS, MOST_STEPS, RunDescription, write_run
from joulelab.twin.workload_progress import RunRequest, check_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from joulelab.twin.llm_model import LlmCourse
    from joulelab.twin.power_curves import Floats, Ints

GPU, WALL = "gpu", "node.ac"  # the scopes whose truth is known for every request
PROGRESS_S = 0.25  # of the records of requests
WORK_S = 0.5  # between reports of work
WARMED_UP = 10  # requests that have to end before the steady window begins
LONGEST_WARM_UP = 5  # times as long as asked for
TEAMS = ("a", "b", "c")  # labels of requests, in turn
FACT_S = 0.001  # before the end of the steady window
TAIL_S = 5.0
_WORK_KINDS = ("output_tokens", "prompt_tokens", "requests")

NVML = MountedMeter(family="nvml", point="gpu", ask_s=0.1, gain_sd=0.02)
WALL_METERS = {
    "analyzer": MountedMeter(
        family="analyzer", ask_s=0.1, gain_sd=0.0006,
        flaws=PanelFlaws(period_s=0.1, window_s=0.1, noise_w=0.5, quantum_w=0.1),
        options={"feeds": "node.ac", "period_s": 0.1},
    ),
    "pdu": MountedMeter(
        family="snmp", ask_s=1.0, gain_sd=0.005,
        options={"vendor": "apc_rpdu2", "outlets": [1, 2, 3, 4], "feeds": "node.ac", "energy": False},
    ),
    "bmc": MountedMeter(family="ipmi", ask_s=1.0, gain_sd=0.01),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Describe lengths of prompts or answers: log-normal around `median` tokens, `sigma` that of the logarithm."""

    median: float
    sigma: float = 0.6
    most: int = 16_384

    def draw_lengths(self, rng: np.random.Generator, count: int) -> Ints:
        """Return whole numbers of tokens, at least 1."""
        drawn = np.rint(rng.lognormal(math.log(self.median), self.sigma, count))
        return np.clip(drawn, 1, self.most).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmScenario:
    """Describe a load on an inference server, and the meters that read the node.

    Each of `rates` (requests/s) is one step, whose steady window lasts for `requests` of them on average. `cap_w` is
    per GPU. `latency_s` is the time from the server to its client and back. Times in s.
    """

    node: Node = field(default_factory=Node)
    parameters: LlmParameters = field(default_factory=LlmParameters)
    rates: tuple[float, ...] = (1.0, 2.0, 4.0)
    requests: int = 200
    arrivals: Literal["poisson", "fixed"] = "poisson"
    prompt: TokenLengths = TokenLengths(300)
    output: TokenLengths = TokenLengths(100)
    cap_w: float | None = None
    meters: Mapping[str, MountedMeter] = field(default_factory=lambda: {"nvml": NVML})
    idle_s: float = 30.0
    warm_up_s: float = 10.0
    drain_s: float = 60.0
    latency_s: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) <= 0 or self.requests < 1:
            raise ConfigError("a load needs rates above 0 and at least one request", where="llm scenario")
        for gpu in self.node.gpus[: self.parameters.gpus]:
            if self.cap_w is not None and not gpu.min_cap_w <= self.cap_w <= gpu.max_cap_w:
                why = f"{gpu.name} takes {gpu.min_cap_w:g} to {gpu.max_cap_w:g} W"
                raise ConfigError(f"a cap of {self.cap_w:g} W cannot be set", where="llm scenario", why=why)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Hold the times of one rate (requests/s): its begin, those of steady window and drain, and its end, in s."""

    rate: float
    begin_s: float
    steady_s: float
    drain_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RequestTruth:
    """Hold the true energy of a request above idle (J) by scope and part, and its tokens.

    `prefill_tokens` are those of its prompt that were computed, `decode_tokens` its output after the first token.
    """

    id: str
    prefill_tokens: int
    decode_tokens: int
    prefill_j: Mapping[str, float]
    decode_j: Mapping[str, float]

    def find_energy_j(self, scope: str = GPU) -> float:
        """Return its energy above idle at a scope, in J."""
        return self.prefill_j[scope] + self.decode_j[scope]


@dataclass(frozen=True, slots=True)
class LlmTruth:
    """Hold what truly happened in a run: `timeline` has the power of every point, `steps` the rates.

    Scopes of requests are `gpu` (all GPUs of the server) and `node.ac`. Energies are above those of the idle node.
    """

    run: Path
    timeline: Timeline
    requests: tuple[RequestTruth, ...]
    steps: tuple[LoadStep, ...]

    def find_prefill_j(self, scope: str = GPU) -> float:
        """Return the energy per prompt token that was computed, in J."""
        tokens = sum(request.prefill_tokens for request in self.requests)
        return sum(request.prefill_j[scope] for request in self.requests) / tokens

    def find_decode_j(self, scope: str = GPU) -> float:
        """Return the energy per output token after the first of each request, in J."""
        tokens = sum(request.decode_tokens for request in self.requests)
        return sum(request.decode_j[scope] for request in self.requests) / max(tokens, 1)

    def find_energy_j(self, scope: str, a_ns: int, b_ns: int) -> float:
        """Return the whole energy of a scope between two times, idle included, in J."""
        return sum(self.timeline.energy(point, a_ns, b_ns) for point in self._list_points(scope))

    def find_idle_w(self, scope: str) -> float:
        """Return the power of a scope before the load, in W."""
        at = np.array([self.timeline.begin_ns])
        curves = [self.timeline.curve(point) for point in self._list_points(scope)]
        return sum(share * float(curve.watts(at)[0]) for share, curve in curves)

    def _list_points(self, scope: str) -> list[str]:
        return [f"gpu:{gpu}" for gpu in self.timeline.used] if scope == GPU else [scope]


def write_llm_run(runs: Path, scenario: LlmScenario) -> LlmTruth:
    """Simulate a load, write it as a closed run into the folder `runs`, and return the truth. Raises JoulelabError."""
    served = _ServedLoad(scenario)
    timeline = served.lay_out_power()
    caps = {} if scenario.cap_w is None else dict.fromkeys(served.place.gpus, scenario.cap_w)
    ask = RunRequest({}, served.place.gpus, caps=caps)
    bench = Bench(timeline, ask, scenario.seed, study_seed=scenario.seed)
    rates = ",".join(f"{rate:g}" for rate in scenario.rates)
    about = RunDescription(
        name="serving",
        labels={},
        command=["joulelab", "serving", "load", "--url", "http://127.0.0.1:8000", "--rate", rates],
        host=scenario.node.name,
        twin={"name": scenario.node.name, "seed": scenario.seed},
        options={"idle_s": scenario.idle_s},
    )
    measured = read_meters(bench, scenario.meters)
    marks = {"1": served.list_marks(), "requests-1": served.list_records()}
    run = write_run(runs, about, timeline, measured, list_cap_events(bench), marks)
    return LlmTruth(run, timeline, tuple(served.list_truths()), tuple(served.steps))


class _ServedLoad:
    """Serve the load of a scenario; then lay out its power, its marks and its truth."""

    def __init__(self, scenario: LlmScenario) -> None:
        self._scenario = scenario
        self._rng = np.random.default_rng(scenario.seed)
        self.place = EnginePlace(scenario.node, scenario.parameters.gpus)
        cap_w = self.place.gpu.default_cap_w if scenario.cap_w is None else scenario.cap_w
        engine = LlmEngine(scenario.parameters, self.place.gpu, self.place.wall_w)
        self._simulation = LlmSimulation(engine, cap_w)
        self._start_ns = FIRST_NS + scenario.seed % 100_000 * 3600 * NS
        self._dropped: set[LlmRequest] = set()
        self.steps = [self._serve_step(rate) for rate in scenario.rates]
        count = len(self.course.requests)
        self._latency_s = scenario.latency_s * self._rng.uniform(0.5, 1.5, count)

    @property
    def course(self) -> LlmCourse:
        """Return the simulated time."""
        return self._simulation.course

    def _serve_step(self, rate: float) -> LoadStep:
        """Serve one rate: warm-up, steady window, drain; requests that are left then are dropped."""
        scenario, simulation = self._scenario, self._simulation
        begin_s, lasts_s = simulation.now_s, scenario.requests / rate
        longest_s = LONGEST_WARM_UP * scenario.warm_up_s
        simulation.add_requests(self._draw_requests(rate, begin_s, longest_s + lasts_s))
        before = simulation.ended
        simulation.advance(begin_s + scenario.warm_up_s)
        while simulation.ended < before + WARMED_UP and simulation.now_s < begin_s + longest_s and simulation.coming:
            simulation.run_iteration()
        steady_s = simulation.now_s
        drain_s = steady_s + lasts_s
        while simulation.coming and simulation.coming[-1].arrival_s >= drain_s:
            simulation.coming.pop()
        simulation.advance(drain_s)
        self._dropped.update(simulation.finish(drain_s + scenario.drain_s))
        end_s = max(simulation.now_s, drain_s) + 2 * scenario.latency_s
        simulation.advance(end_s)
        return LoadStep(rate, begin_s, steady_s, drain_s, end_s)

    def _draw_requests(self, rate: float, begin_s: float, seconds: float) -> list[LlmRequest]:
        count = round(rate * seconds * 1.5) + 50
        if self._scenario.arrivals == "fixed":
            times = begin_s + np.arange(1, count + 1) / rate
        else:
            times = begin_s + np.cumsum(self._rng.exponential(1 / rate, count))
        times = times[times < begin_s + seconds]
        prompts = self._scenario.prompt.draw_lengths(self._rng, len(times)).tolist()
        outputs = self._scenario.output.draw_lengths(self._rng, len(times)).tolist()
        cached = self._scenario.parameters.count_cached
        rows = zip(times.tolist(), prompts, outputs, strict=True)
        return [LlmRequest(time, prompt, output, cached(prompt)) for time, prompt, output in rows]

    def _to_ns(self, seconds: float) -> int:
        return self._start_ns + round(seconds * NS)

    def lay_out_power(self) -> Timeline:
        """Return the true power of every leaf, from the idle time before the load to that after it."""
        course, node, scenario = self.course, self._scenario.node, self._scenario
        end_s = self.steps[-1].end_s
        check_run(end_s, len(course.begins_s), "llm scenario")
        begin_ns, end_ns = self._to_ns(-scenario.idle_s), self._to_ns(end_s)
        at_ns = self._start_ns + np.rint(np.array(course.begins_s) * NS).astype(np.int64)
        t_ns = np.concatenate([[begin_ns], at_ns])
        above_w, wanted_w = (np.array([0.0, *watts]) for watts in (course.watts, course.wanted_w))
        leaves = {}
        for leaf in node.list_leaves():
            leaves[leaf] = Curve()
            leaves[leaf].replace_from(Pieces(t_ns, self.place.leaf_watts(leaf, above_w), np.zeros(len(t_ns))))
        wants = GpuWants(
            t_ns,
            np.where(above_w > 0, 1.0, 0.0),
            {gpu: self.place.leaf_watts(f"gpu:{gpu}", wanted_w) for gpu in range(len(node.gpus))},
        )
        tail_s = max(TAIL_S, 1.2 * find_slowest_s(scenario.meters))
        times = (begin_ns, self._start_ns, end_ns, end_ns + round(tail_s * NS))
        return Timeline(node, leaves, times, [], wants, self.place.gpus)

    def list_marks(self) -> list[str]:
        """Return phases, work and facts as the lines of a marks file."""
        done = self._count_work()
        lines: list[str] = []
        for number, step in enumerate(self.steps, 1):
            whole = math.floor(step.rate) if step.rate == math.floor(step.rate) else None
            name, own = "rate" if whole is not None else f"rate {step.rate:g}", f"1-{number}"
            labels = {"rate": step.rate}
            lines.append(format_begin(self._to_ns(step.begin_s), own, name, whole, labels, None, 1, 0))
            parts = {"warm-up": step.begin_s, "steady": step.steady_s, "drain": step.drain_s}
            ends = (step.steady_s, step.drain_s, step.end_s)
            for (part, begin_s), end_s in zip(parts.items(), ends, strict=True):
                identity = f"{own}-{part}"
                lines.append(format_begin(self._to_ns(begin_s), identity, part, None, None, own, 1, 0))
                lines += self._list_work(identity, begin_s, end_s, done)
                if part == "steady":
                    at_ns = self._to_ns(end_s - FACT_S)
                    lines.append(encode_json(make_fact_line(at_ns, self._find_facts(step), 0)))
                lines.append(format_end(self._to_ns(end_s), identity))
            lines.append(format_end(self._to_ns(step.end_s), own))
        return lines

    def _count_work(self) -> dict[str, tuple[Floats, Floats]]:
        """Return when (s) the client saw which amounts of each kind of work."""
        course, late_s = self.course, self._scenario.latency_s
        begun = [request for request in course.requests if request.produced]
        ended = [request.last_s for request in begun if request.is_done]
        amounts = (
            (course.ends_s, course.tokens),
            ([request.first_s for request in begun], [request.prompt_tokens for request in begun]),
            (ended, [1.0] * len(ended)),
        )
        return {
            kind: (np.array(times) + late_s, np.array(values, dtype=float))
            for kind, (times, values) in zip(_WORK_KINDS, amounts, strict=True)
        }

    def _list_work(
        self, phase: str, begin_s: float, end_s: float, done: Mapping[str, tuple[Floats, Floats]]
    ) -> Iterator[str]:
        """Yield the work of a phase as reports of WORK_S each; they have the times of tokens."""
        edges = np.append(np.arange(begin_s, end_s, WORK_S), end_s)
        columns = {}
        for kind, (times, values) in done.items():
            inside = (times >= begin_s) & (times < end_s)
            columns[kind] = np.histogram(times[inside], edges, weights=values[inside])[0]
        tokens_s = done["output_tokens"][0]
        for k, (from_s, to_s) in enumerate(pairwise(edges.tolist())):
            amounts = {kind: float(column[k]) for kind, column in columns.items() if column[k]}
            first, last = np.searchsorted(tokens_s, (from_s, to_s))
            if amounts and last > first:
                places = np.unique(np.linspace(first, last - 1, MOST_STEPS).astype(np.int64))
                at = [self._to_ns(t) for t in tokens_s[places].tolist()]
                about = {"from": self._to_ns(from_s), "phase": phase, "amounts": amounts, "count": len(at), "at": at}
                yield encode_json({"t": at[-1], "mark": "work", **about, "rank": 0})

    def _find_facts(self, step: LoadStep) -> dict[str, float]:
        """Return the statistics of the requests that arrived in a steady window; times in s."""
        seconds, late_s = step.drain_s - step.steady_s, self._scenario.latency_s
        there = [one for one in self.course.requests if step.steady_s <= one.arrival_s < step.drain_s]
        good = [one for one in there if one.is_done]
        times = {
            "ttft": [one.first_s - one.arrival_s + late_s for one in good],
            "tpot": [(one.last_s - one.first_s) / (one.produced - 1) for one in good if one.produced > 1],
            "latency": [one.last_s - one.arrival_s + late_s for one in good],
        }
        facts = {
            f"{name}_p{percent}": float(np.percentile(values, percent))
            for name, values in times.items()
            if values
            for percent in (50, 99)
        }
        ended = sum(step.steady_s <= one.last_s < step.drain_s for one in self.course.requests if one.is_done)
        counts = {"requests_ok": len(good), "requests_failed": len(there) - len(good), "late_sends": 0.0}
        return {**facts, **counts, "rate_offered": len(there) / seconds, "rate_done": ended / seconds}

    def list_records(self) -> list[str]:
        """Return one mark line per request."""
        ends_s = np.array(self.course.ends_s)
        rows = zip(self.course.requests, self._latency_s.tolist(), strict=True)
        records = [self._make_record(k, request, late_s, ends_s) for k, (request, late_s) in enumerate(rows)]
        return [encode_json(record) for record in sorted(records, key=lambda record: int(record["t"]))]

    def _make_record(self, number: int, request: LlmRequest, late_s: float, ends_s: Floats) -> dict[str, Any]:
        """Return a request as its client sees it: without the server's last word it knows no tokens."""
        is_ok, first = request not in self._dropped, request.first_iteration
        tokens_s = ends_s[first - 1 : first - 1 + request.produced] if request.produced else ends_s[:0]
        progress = np.bincount(((tokens_s[1:] - request.first_s) / PROGRESS_S).astype(np.int64))
        last_ns = self._to_ns(request.last_s + late_s)
        times = {
            "due_ns": self._to_ns(request.arrival_s),
            "sent_ns": self._to_ns(request.arrival_s),
            "first_ns": self._to_ns(request.first_s + late_s) if request.produced else None,
            "last_ns": last_ns,
        }
        tokens = {
            "prompt_tokens": request.prompt_tokens if is_ok else None,
            "output_tokens": request.output_tokens if is_ok else None,
            "status": "ok" if is_ok else "cancelled",
            "detail": "",
            "cached_tokens": request.cached_tokens if is_ok else None,
            "chunks": request.produced,
            "progress": progress.tolist(),
            "labels": {"team": TEAMS[number % len(TEAMS)]},
        }
        return {"t": last_ns, "mark": "request", "id": _name_request(number), **times, **tokens}

    def list_truths(self) -> Iterator[RequestTruth]:
        """Yield the truth of every request."""
        for number, request in enumerate(self.course.requests):
            yield RequestTruth(
                _name_request(number),
                request.prefilled - request.cached_tokens,
                max(request.produced - 1, 0),
                {GPU: request.prefill_j, WALL: request.wall_prefill_j},
                {GPU: request.decode_j + request.base_j, WALL: request.wall_decode_j},
            )


def _name_request(number: int) -> str:
    return f"twin-{number:05d}"


def draw_scenario(seed: int, *, requests: int = 560) -> LlmScenario:
    """Draw a scenario: GPUs, the engine's times and powers, lengths, three rates from light to overload, cap, meters.

    Powers are physical: prefill takes 30 to 95 % of the range of the GPUs, a full batch at most 95 %.
    """
    rng = np.random.default_rng((seed, 25))
    count = int(rng.choice([1, 1, 1, 2, 4]))
    gpu = find_gpu_model(str(rng.choice(["h100", "a100", "rtx6000"])))
    node = Node(name="llm-twin", gpus=(gpu,) * max(count, int(rng.choice([1, 4, 8]))), seed=seed + 1)
    range_w = count * (gpu.max_w - gpu.idle_w)
    prompt = TokenLengths(float(rng.uniform(60, 900)), float(rng.uniform(0.3, 0.9)))
    output = TokenLengths(float(rng.uniform(40, 300)), float(rng.uniform(0.3, 0.8)))
    parameters = _draw_parameters(rng, count, range_w, prompt.median + output.median / 2)
    p, context = parameters, (prompt.median + output.median / 2) / 1000
    token_s = p.fixed_s / min(p.most_running, 64) + p.decode_s + p.context_s * context
    most_rate = 1 / (p.prefill_s * prompt.median * (1 - p.cached_share) + token_s * output.median)
    loads = rng.uniform(0.08, 0.35) * rng.uniform(1.3, 1.9) ** np.arange(3)
    cap_w = None
    if rng.random() < 0.35:
        cap_w = float(np.clip(rng.uniform(0.45, 0.9) * gpu.max_w, gpu.min_cap_w, gpu.max_cap_w).round())
    wall = str(rng.choice(["", "", *WALL_METERS]))
    return LlmScenario(
        node=node,
        parameters=parameters,
        rates=tuple(float(f"{load * most_rate:.2g}") for load in loads),
        requests=math.ceil(requests / 3),
        prompt=prompt,
        output=output,
        cap_w=cap_w,
        meters={"nvml": NVML, **({wall: WALL_METERS[wall]} if wall else {})},
        seed=seed,
    )


def _draw_parameters(rng: np.random.Generator, count: int, range_w: float, context: float) -> LlmParameters:
    """Draw the engine: `range_w` (W) is the range of its GPUs above idle, `context` (tokens) a typical context."""
    fixed_s, prefill_s, decode_s, context_s = (
        float(rng.uniform(low, high)) for low, high in ((0.004, 0.02), (10e-6, 80e-6), (50e-6, 400e-6), (20e-6, 200e-6))
    )
    busy_w = float(rng.uniform(0.03, 0.25)) * range_w
    prefill_j = max(float(rng.uniform(0.3, 0.95)) * range_w - busy_w, 0.05 * range_w) * prefill_s
    most_running = int(rng.choice([8, 16, 64, 256]))
    # A full batch takes a share of the range; that is divided between tokens and their contexts.
    batch, contexts = min(most_running, 64), min(most_running, 64) * context / 1000
    seconds = fixed_s + decode_s * batch + context_s * contexts
    joules = (float(rng.uniform(0.35, 0.95)) * range_w - busy_w) * seconds
    part = float(rng.uniform(0.1, 0.5))
    return LlmParameters(
        gpus=count, fixed_s=fixed_s, prefill_s=prefill_s, decode_s=decode_s, context_s=context_s, busy_w=busy_w,
        prefill_j=prefill_j, decode_j=(1 - part) * joules / batch, context_j=part * joules / contexts,
        most_running=most_running, most_prefill=int(rng.choice([512, 2048, 8192])),
        cached_share=float(rng.uniform(0.1, 0.6)) if rng.random() < 0.15 else 0.0,
    )  # fmt: skip
