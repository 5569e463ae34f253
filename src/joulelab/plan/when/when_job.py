"""Describe a job that can be shifted, from runs or figures: its work, and its power at each cap and in pauses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.analysis.study_cells import Cell, Note, Trial, compute_means, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import (
    find_cap,
    fit_cap_response,
    list_caps,
    list_compared_facts,
    model_cap_response,
)
from joulelab.plan.cost.job_energy import find_side
from joulelab.plan.measured_runs import (
    count_nodes,
    find_node_count,
    list_even_spread_notes,
    list_idle_doubts,
    require_one_origin,
)
from joulelab.plan.when.when_plan import quantity_to_json
from joulelab.plan.when.when_program import JobModes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun

# An idle H100 node draws 2.2 kW of the 7 kW it trains with (public logs of 8xH100 servers).
IDLE_SHARE = 0.31
LOWEST_MODELLED = 0.6  # share of the highest cap: below it the model is known to be poor
MOST_STEPS = 1_000  # of the power over time


@dataclass(frozen=True, slots=True)
class CapMode:
    """Hold the job at a cap (W on each GPU, None: as it ran): slowdown, and power of all its nodes (W)."""

    cap_w: float | None
    slowdown: Quantity
    power: Quantity


@dataclass(frozen=True, slots=True)
class ShiftableJob:
    """Hold a job: work (s at full speed), its modes with the fastest last, power in pauses (W of all nodes).

    `course_j` is the energy (J) of each of equal steps of its time, empty for constant power. `is_accuracy_known` is
    False if the accuracy of its power is not stated: then costs have no interval, but savings may have one.
    """

    name: str
    work_s: float
    modes: tuple[CapMode, ...]
    idle: Quantity
    idle_source: Literal["measured", "given", "assumed"]
    nodes: int = 1
    course_j: tuple[float, ...] = ()
    twin: str = ""
    caps_source: Literal["", "measured", "twin", "model"] = ""
    is_accuracy_known: bool = True
    notes: tuple[Note, ...] = field(default=())

    @property
    def full(self) -> CapMode:
        """Return the mode without a cap."""
        return self.modes[-1]

    def get_modes(self, *, has_caps: bool) -> JobModes:
        """Return speeds and powers as arrays, of all modes or only of the fastest."""
        used = self.modes if has_caps else self.modes[-1:]
        return JobModes(np.array([1 / m.slowdown.value for m in used]), np.array([m.power.value for m in used]))

    def compute_energy(self, times_s: Floats) -> Floats:
        """Return the energy (J) from the job's start to times (s after it), at full speed without pauses."""
        if not self.course_j:
            return self.full.power.value * np.clip(times_s, 0.0, self.work_s)
        edges = np.linspace(0.0, self.work_s, len(self.course_j) + 1)
        found: Floats = np.interp(times_s, edges, np.append(0.0, np.cumsum(self.course_j)))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        modes = [
            {"cap_w": m.cap_w, "slowdown": quantity_to_json(m.slowdown), "power_w": quantity_to_json(m.power)}
            for m in self.modes
        ]
        return {
            "name": self.name, "work_s": self.work_s, "nodes": self.nodes, "modes": modes,
            "idle_w": quantity_to_json(self.idle), "idle_from": self.idle_source, "caps_from": self.caps_source,
            "accuracy_known": self.is_accuracy_known, "twin": self.twin,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Hold the figures of a job that a person gives; None: those of the run. Powers are in W of one node."""

    duration_s: float | None = None
    power_w: float | None = None
    idle_w: float | None = None
    nodes: int | None = None
    gpus: int | None = None
    gpu_w: float | None = None
    caps_w: tuple[float, ...] = ()


def make_job(measured: Sequence[MeasuredRun], figures: JobFigures) -> ShiftableJob:
    """Return a job from runs of one workload: at several caps, or one run and its repeats; without runs from figures.

    The mean of the runs without a cap (else of those at the highest) is the job; the others give the effect of caps.
    Raises ConfigError.
    """
    if not measured:
        return _make_given_job(figures)
    require_one_origin(measured)
    repeats = _find_repeats(measured, figures.gpu_w)
    run = repeats.runs[0]
    hosts = count_nodes(run)
    nodes = figures.nodes or hosts
    whole = repeats.energy * (nodes / hosts / repeats.duration_s)
    is_given = figures.power_w is not None
    power = replace(whole, known=True) if figures.power_w is None else Quantity(figures.power_w * nodes)
    is_changed = is_given or figures.duration_s is not None
    notes: list[Note] = []
    if is_changed:
        notes.append(Note("when.constant-power"))
    if nodes != hosts:
        notes.append(Note("when.other-nodes", {"nodes": nodes, "hosts": hosts}))
    if not is_given:
        notes += _list_run_notes(repeats)
    idle = repeats.find_idle()
    if figures.idle_w is None and idle is not None:
        notes += list_idle_doubts(repeats.runs)
        idle = idle * (nodes / hosts)
    job = ShiftableJob(
        run.result.name or run.result.run, figures.duration_s or repeats.duration_s,
        (CapMode(None, Quantity(1.0), power),), *_choose_idle(figures, idle, power, nodes), nodes=nodes,
        course_j=() if is_changed else tuple((repeats.compute_course() * (nodes / hosts)).tolist()),
        twin=run.result.twin, is_accuracy_known=whole.known and not is_given, notes=tuple(notes),
    )  # fmt: skip
    return _finish_job(job, _find_response(measured, repeats, figures), figures)


def _make_given_job(figures: JobFigures) -> ShiftableJob:
    if figures.power_w is None or figures.duration_s is None:
        what = "power" if figures.power_w is None else "duration"
        raise ConfigError(
            "there is no job to plan", why=f"no run is named, and no {what} is given",
            next="name a run, or give --power 6.9kW --duration 30h", code="config.no-job",
        )  # fmt: skip
    nodes = figures.nodes or 1
    power = Quantity(figures.power_w * nodes)
    job = ShiftableJob(
        "job", figures.duration_s, (CapMode(None, Quantity(1.0), power),), *_choose_idle(figures, None, power, nodes),
        nodes=nodes, is_accuracy_known=False,
    )  # fmt: skip
    response = None
    if figures.gpus and figures.gpu_w:
        node_w = power * (1 / nodes)
        response = model_cap_response(node_w, node_w.value, gpus=figures.gpus, gpu_w=figures.gpu_w)
    return _finish_job(job, response, figures)


def _choose_idle(
    figures: JobFigures, measured: Quantity | None, power: Quantity, nodes: int
) -> tuple[Quantity, Literal["measured", "given", "assumed"]]:
    """Return the power of all nodes in a pause, and its source."""
    if figures.idle_w is not None:
        return Quantity(figures.idle_w * nodes, known=figures.idle_w == 0), "given"
    if measured is not None:
        return measured, "measured"
    return Quantity(IDLE_SHARE * power.value, known=False), "assumed"


def _finish_job(job: ShiftableJob, response: CapResponse | None, figures: JobFigures) -> ShiftableJob:
    """Return the job with its caps, and notes on caps and idle power. Raises ConfigError for unknown caps."""
    notes: list[Note] = []
    if job.idle.value > job.full.power.value:
        notes.append(Note("when.idle-above-work", {"idle_w": job.idle.value, "work_w": job.full.power.value}))
    if job.idle_source == "assumed":
        notes.append(Note("when.idle-assumed", {"share": IDLE_SHARE}))
    modes: list[CapMode] = []
    if response is not None:
        reference = response.points[-1]
        least_w = LOWEST_MODELLED * reference.cap_w if response.source == "model" else 0.0
        caps = figures.caps_w or tuple(cap for cap in response.caps_w[:-1] if cap >= least_w)
        for cap_w in sorted({cap for cap in caps if cap < reference.cap_w}):
            point = response.at(cap_w)
            modes.append(CapMode(cap_w, point.slowdown, job.full.power * (point.node_w / reference.node_w)))
        if response.basis and modes:
            notes.append(Note("when.caps", texts={"what": response.basis}))
    elif figures.caps_w:
        raise ConfigError(
            "the effect of caps is not known", why="the job has one cap, and no model of its GPUs",
            next="name runs at several caps, or give --gpus 8 --gpu-power 700W", code="config.unknown-cap",
        )  # fmt: skip
    modes.sort(key=lambda mode: -mode.slowdown.value)
    source = response.source if response is not None and modes else ""
    return replace(job, modes=(*modes, job.full), caps_source=source, notes=(*notes, *job.notes))


def _find_response(measured: Sequence[MeasuredRun], repeats: _Repeats, figures: JobFigures) -> CapResponse | None:
    """Return the effect of caps: measured if runs have several, else modelled if the GPUs are known."""
    if repeats.levels > 1:
        return fit_cap_response(measured, highest_cap_w=figures.gpu_w)
    run = repeats.runs[0]
    trace = run.draws[0] if run.draws else None  # none of a run that a cluster accounted for
    gpus = figures.gpus or (trace.gpus if trace else 0)
    rated = [d.watts for d in run.result.rated.devices if find_family(d.scope) == "gpu"]
    gpu_w = figures.gpu_w or max(rated, default=None)
    if not gpus or gpu_w is None or find_side(run) not in ("ac", "dc") or find_cap(run.result) is not None:
        return None
    part = trace.parts.get("gpu") if trace else None
    node_w = replace(repeats.energy * (1 / repeats.duration_s / count_nodes(run)), known=True)
    model = next((s.model for s in run.result.scopes if find_family(s.scope) == "gpu"), "")
    return model_cap_response(
        node_w, trace.highest_w if trace else node_w.value, gpus=gpus, gpu_w=gpu_w, model=model,
        gpu_mean_w=None if part is None else float(np.nanmean(part)) / gpus,
    )  # fmt: skip


@dataclass(frozen=True)
class _Repeats:
    """Hold the runs that are the job: mean energy (J, all nodes) with their spread, and mean time (s).

    `has_spread`: the spread between runs is known, by these or by repeats at other caps. `levels` counts the caps of
    all named runs.
    """

    runs: tuple[MeasuredRun, ...]
    energy: Quantity
    duration_s: float
    has_spread: bool
    levels: int

    def find_idle(self) -> Quantity | None:
        """Return the idle power of all nodes (W), the mean of the runs; None if one did not measure it."""
        trials = []
        for run in self.runs:
            known = [trace.idle_w for trace in run.draws if trace.idle_w is not None]
            if not known or len(known) < len(run.draws):
                return None
            trials.append(Trial(add_quantities(known), 1.0, run=run.result.run))
        mean = compute_means(Cell(f"idle of {self.runs[0].result.run}", {}, tuple(trials)))
        return trials[0].energy if len(trials) == 1 or mean is None else mean.energy

    def compute_course(self) -> Floats:
        """Return the energy (J) of equal steps of their time, the mean of the runs."""

        def count_steps(run: MeasuredRun) -> int:
            step_s = max((trace.step_s for trace in run.draws), default=run.result.duration_s)
            return min(MOST_STEPS, max(round(run.result.duration_s / step_s), 1))

        steps = min(count_steps(run) for run in self.runs)
        each = [
            [q.value for q in run.energies(np.linspace(0.0, run.result.duration_s, steps + 1))] for run in self.runs
        ]
        return np.asarray(np.mean(np.array(each), axis=0))


def _find_repeats(measured: Sequence[MeasuredRun], gpu_w: float | None) -> _Repeats:
    """Return the runs without a cap (else those at the highest) as one job. Raises ConfigError if they differ."""
    asked = [find_cap(one.result) for one in measured]
    levels = [0.0] * len(measured) if len(set(asked)) < 2 else list_caps(measured, gpu_w)
    cells: dict[float, list[MeasuredRun]] = {}
    for one, level in zip(measured, levels, strict=True):
        cells.setdefault(level, []).append(one)
    highest = max(cells)
    own = sorted(cells[highest], key=lambda one: find_cap(one.result) is not None)
    _check_repeats(own)
    energies = {id(run): add_quantities(run.energies([0.0, run.result.duration_s])) for run in measured}
    named = {
        level: Cell(
            f"{level:g} W, job {runs[0].result.run}", {},
            tuple(Trial(energies[id(run)], run.result.duration_s, run=run.result.run) for run in runs),
        )
        for level, runs in cells.items()
    }  # fmt: skip
    found = compute_means(named[highest], None, pool_cells((cell, None) for cell in named.values()))
    if found is None or found.energy is None:
        raise ConfigError(
            "the job's energy is not known", next=f"joulelab show {own[0].result.run}", code="config.no-energy"
        )
    energy = found.energy if found.spread else energies[id(own[0])]
    return _Repeats(tuple(own), energy, found.time.value, found.spread, len(cells))


def _check_repeats(runs: Sequence[MeasuredRun]) -> None:
    """Refuse runs that do not repeat one job. Raises ConfigError."""

    def list_facts(run: MeasuredRun) -> dict[str, Any]:
        return list_compared_facts(run) | {"nodes": find_node_count(run), "measured": find_side(run)}

    first = list_facts(runs[0])
    for other in runs[1:]:
        for (what, mine), theirs in zip(first.items(), list_facts(other).values(), strict=True):
            if mine != theirs:
                raise ConfigError(
                    "the runs are not repeats of one job", where=f"runs {runs[0].result.run} and {other.result.run}",
                    why=f"{what}: {str(mine)[:60] or 'none'}, {str(theirs)[:60] or 'none'}",
                    next="name one of them, or choose by label: --only KEY=VALUE", code="config.other-work",
                )  # fmt: skip


def _list_run_notes(repeats: _Repeats) -> list[Note]:
    notes = []
    if len(repeats.runs) > 1:
        notes.append(Note("when.mean-of-runs", {"runs": len(repeats.runs)}))
    elif not repeats.has_spread:
        notes.append(Note("when.one-run"))
    notes += list_even_spread_notes(repeats.runs)
    side = find_side(repeats.runs[0])
    return notes if side == "ac" else [*notes, Note(f"when.side-{side}")]
