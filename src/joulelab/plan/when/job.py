"""Describe a job that can be shifted: how much work, what it draws at each cap and in pauses, and over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import UNSEEN, Quantity
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import find_cap, fit_cap_response, model_cap_response
from joulelab.plan.cost.energy import side_of
from joulelab.plan.cost.entries import SIDES
from joulelab.plan.measured_runs import count_nodes, list_even_spread_notes, list_idle_doubts
from joulelab.plan.when.optimum import Modes
from joulelab.plan.when.repeats import repeats_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.when.repeats import Repeats

IdleFrom = Literal["measured", "given", "assumed"]
CapsFrom = Literal["", "measured", "twin", "model"]

# An idle H100 node draws 2.2 kW of the 7 kW it trains with (public logs of 8xH100 servers).
IDLE_SHARE = 0.31
GIVEN_PLATE = "nameplate as given"
LOWEST_MODELLED = 0.6  # share of the highest cap: below it the model is known to be poor
ASSUMED_IDLE = (
    f"idle power is assumed: {100 * IDLE_SHARE:.0f} % of the power at work, as in public logs of 8xH100 servers"
)


@dataclass(frozen=True, slots=True)
class Mode:
    """Hold what the job does at a cap (W on each GPU, None: as it ran): slowdown, and power of all its nodes (W)."""

    cap_w: float | None
    slowdown: Quantity
    power: Quantity


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job: work (s at full speed), its modes with the fastest last, power in pauses (W of all nodes).

    `course_j` is the energy (J) of each of equal steps of its own course, empty where that is not known: then it draws
    the same all the time. `rated_w` is what the nameplates (or the GPUs' rated powers) of its nodes add up to;
    `rated_alike` is False where that is not of what was measured: of some parts of it, or of more. `rated_times` is
    then how many times what the same parts used it is, None where nobody knows. `sure` is False where nobody states how
    accurate its power is; `known` of its modes then says whether that of their ratios is: costs have no interval, gains
    may have one.
    """

    name: str
    work_s: float
    modes: tuple[Mode, ...]
    idle: Quantity
    idle_from: IdleFrom
    nodes: int = 1
    course_j: tuple[float, ...] = ()
    rated_w: float | None = None
    rated_by: str = ""
    rated_alike: bool = True
    rated_times: float | None = None
    twin: str = ""
    caps_from: CapsFrom = ""
    sure: bool = True
    notes: tuple[str, ...] = field(default=())

    @property
    def full(self) -> Mode:
        """Return the mode without a cap of its own."""
        return self.modes[-1]

    @property
    def caps(self) -> bool:
        """Return whether there is more than one mode."""
        return len(self.modes) > 1

    def arrays(self, pause_w: float | None, *, caps: bool) -> Modes:
        """Return the modes as arrays, all or only the fastest."""
        used = self.modes if caps else self.modes[-1:]
        speeds = np.array([1.0 / mode.slowdown.value for mode in used])
        return Modes(speeds, np.array([mode.power.value for mode in used]), pause_w)

    def energy_to(self, times_s: Floats) -> Floats:
        """Return the energy (J) from the job's start to some times (s), at full speed without pauses."""
        if not self.course_j:
            return self.full.power.value * np.clip(times_s, 0.0, self.work_s)
        edges = np.linspace(0.0, self.work_s, len(self.course_j) + 1)
        found: Floats = np.interp(times_s, edges, np.append(0.0, np.cumsum(self.course_j)))
        return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold what a person says of a job; None is what the run says. Powers are in W of one node."""

    duration_s: float | None = None
    power_w: float | None = None
    idle_w: float | None = None
    rated_w: float | None = None
    nodes: int | None = None
    gpus: int | None = None
    gpu_w: float | None = None
    caps_w: tuple[float, ...] = ()
    name: str = ""


def job_given(wanted: Wanted) -> Job:
    """Return a job from figures alone. Raises ConfigError where its power or duration is missing."""
    if wanted.power_w is None or wanted.duration_s is None:
        what = "power" if wanted.power_w is None else "duration"
        raise ConfigError(
            "there is no job to plan", why=f"no run is named, and no {what} is given",
            next="name a run, or give --power 6.9kW --duration 30h",
        )  # fmt: skip
    nodes = wanted.nodes or 1
    power = Quantity(wanted.power_w * nodes)
    job = Job(
        wanted.name or "job as given", wanted.duration_s, (Mode(None, Quantity(1.0), power),),
        *_idle(wanted, None, power, nodes, nodes), nodes=nodes,
        rated_w=None if wanted.rated_w is None else wanted.rated_w * nodes,
        rated_by=GIVEN_PLATE if wanted.rated_w else "", sure=False,
    )  # fmt: skip
    if wanted.gpus and wanted.gpu_w:
        node_w = power * (1 / nodes)
        job = with_caps(job, model_cap_response(node_w, node_w.value, gpus=wanted.gpus, gpu_w=wanted.gpu_w), wanted)
    elif wanted.caps_w:
        _refuse_caps()
    return _noted(job)


def job_of(measured: Sequence[MeasuredRun], wanted: Wanted) -> Job:
    """Return a job from runs of one workload: at several caps, or one run and its repeats. Raises ConfigError.

    The mean of the runs without a cap (else of those at the highest) is the job; the others say what caps do to it.
    """
    if not measured:
        return job_given(wanted)
    repeats = repeats_of(measured, wanted.gpu_w)
    run = repeats.first
    hosts = count_nodes(run)
    nodes = wanted.nodes or hosts
    scale = nodes / hosts
    whole = repeats.energy * (scale / repeats.duration_s)
    power = replace(whole, known=True) if wanted.power_w is None else Quantity(wanted.power_w * nodes)
    own = wanted.duration_s is None and wanted.power_w is None
    idle, idle_from = _idle(wanted, repeats.idle, power, nodes, hosts)
    job = Job(
        run.result.name or run.result.run, wanted.duration_s or repeats.duration_s,
        (Mode(None, Quantity(1.0), power),), idle, idle_from, nodes=nodes,
        course_j=tuple((repeats.course() * scale).tolist()) if own else (), twin=run.result.twin,
        sure=whole.known and wanted.power_w is None,
    )  # fmt: skip
    doubts = list_idle_doubts(repeats.runs) if idle_from == "measured" else ()
    job = replace(_with_rated(job, repeats, wanted, scale), notes=(*_notes(repeats, wanted, hosts), *doubts))
    response = _response(measured, repeats, wanted)
    if response is not None:
        job = with_caps(job, response, wanted)
    elif wanted.caps_w:
        _refuse_caps()
    return _noted(job)


def _notes(repeats: Repeats, wanted: Wanted, hosts: int) -> tuple[str, ...]:
    """Return what has to be said of the runs that the job is made from."""
    nodes, notes = wanted.nodes or hosts, []
    if wanted.duration_s is not None or wanted.power_w is not None:
        notes.append("the job is longer or shorter than its run, or its power is given: it draws that all along")
    if nodes != hosts:
        notes.append(f"{nodes} nodes are taken to draw {nodes / hosts:g} times what {hosts} did, in the same time")
    if wanted.power_w is None:
        notes += [repeats.said, *list_even_spread_notes(repeats.runs), SIDES.get(side_of(repeats.first), "")]
    return tuple(note for note in notes if note)


def _noted(job: Job) -> Job:
    """Return the job with what has to be said of its idle power."""
    notes = [ASSUMED_IDLE] if job.idle_from == "assumed" else []
    if job.idle.value > job.full.power.value:
        powers = f"{job.idle.value:.4g} W, at work {job.full.power.value:.4g} W"
        notes.append(f"a node draws more in pauses than at work ({powers}): one of the two is hardly right")
    return replace(job, notes=(*job.notes, *notes))


def _refuse_caps() -> None:
    why = "all is at one cap, and a model of caps needs the GPUs and the power of whole nodes"
    raise ConfigError(
        "what caps do is not known", why=why, next="name runs at several caps, or give --gpus 8 --gpu-power 700W"
    )


def with_caps(job: Job, response: CapResponse, wanted: Wanted) -> Job:
    """Return the job with the caps of a response, or those that are wanted. Raises ConfigError for unknown caps."""
    reference = response.points[-1]
    caps = wanted.caps_w or response.caps_w[:-1]
    if response.source == "model" and not wanted.caps_w:
        caps = tuple(c for c in caps if c >= LOWEST_MODELLED * reference.cap_w)
    modes = []
    for cap_w in sorted({c for c in caps if c < reference.cap_w}):
        point = response.at(cap_w)
        ratio = point.node_w / reference.node_w
        modes.append(Mode(cap_w, point.slowdown, job.full.power * ratio))
    said = f"caps: {response.said}" if response.said else ""
    source: CapsFrom = response.source if modes else ""
    # A slower mode that draws more is none that anybody wants, but it is what was measured: the optimum leaves it out.
    modes.sort(key=lambda mode: -mode.slowdown.value)
    return replace(job, modes=(*modes, job.full), caps_from=source, notes=(*job.notes, *([said] if said else [])))


def _response(measured: Sequence[MeasuredRun], repeats: Repeats, wanted: Wanted) -> CapResponse | None:
    """Return what caps do: measured where runs have several, else modelled where the GPUs are known."""
    if repeats.levels > 1:
        return fit_cap_response(measured, highest_cap_w=wanted.gpu_w)
    run = repeats.first
    draw = run.draws[0] if run.draws else None  # none of a run that a cluster accounted for
    rated = [
        d.watts for d in run.result.rated.devices if find_family(d.scope) == "gpu" and draw and d.host == draw.host
    ]
    gpus, gpu_w = wanted.gpus or (draw.gpus if draw else 0), wanted.gpu_w or max(rated, default=None)
    if not gpus or gpu_w is None or side_of(run) not in ("ac", "dc") or find_cap(run.result) is not None:
        return None
    part = draw.parts.get("gpu") if draw else None
    mean = None if part is None else float(np.nanmean(part)) / gpus
    node_w = repeats.energy * (1 / repeats.duration_s / count_nodes(run))
    models = [s.model for s in run.result.scopes if find_family(s.scope) == "gpu"]
    model = models[0] if models else ""
    node_w = replace(node_w, known=True)  # what the model adds is known, whatever the meter is worth
    highest_w = draw.highest_w if draw else node_w.value
    return model_cap_response(node_w, highest_w, gpus=gpus, gpu_w=gpu_w, model=model, gpu_mean_w=mean)


def _idle(
    wanted: Wanted, measured: Quantity | None, power: Quantity, nodes: int, hosts: int
) -> tuple[Quantity, IdleFrom]:
    """Return what all nodes draw in a pause, and how it is known; `measured` is of the hosts of the run."""
    if wanted.idle_w is not None:
        return Quantity(wanted.idle_w * nodes, known=wanted.idle_w == 0), "given"
    if measured is not None:
        return measured * (nodes / hosts), "measured"
    return Quantity(IDLE_SHARE * power.value, known=False), "assumed"


def _with_rated(job: Job, repeats: Repeats, wanted: Wanted, scale: float) -> Job:
    """Return the job with what nameplates say, of the nodes where that is known, else of the devices that are rated."""
    run, told = repeats.first, wanted.power_w is not None
    if wanted.rated_w is not None:
        alike = told or side_of(run) != "parts"
        return replace(job, rated_w=wanted.rated_w * job.nodes, rated_by=GIVEN_PLATE, rated_alike=alike)
    rated = [draw.rated_w for draw in run.draws]
    known = [w for w in rated if w is not None]
    if known and len(known) == len(rated):
        return replace(job, rated_w=sum(known) * scale, rated_by=f"nameplate ({run.draws[0].rated_by})")
    devices = run.result.rated
    if not devices.devices:
        return job
    used = [one.result.rated.measured for one in repeats.runs]
    used_j = 0.0 if told else sum(q.value for q in used if q is not None)
    times = sum(one.result.rated.energy_j for one in repeats.runs) / used_j if None not in used and used_j else None
    by = f"rated power of {devices.families}"
    return replace(job, rated_w=devices.watts * scale, rated_by=by, rated_alike=False, rated_times=times)


def job_to_json(job: Job) -> dict[str, Any]:
    """Return a job as plain data."""
    return {
        "name": job.name, "work_s": job.work_s, "nodes": job.nodes,
        "modes": [
            {
                "cap_w": m.cap_w, "slowdown": quantity_to_json(m.slowdown),
                "power_w": quantity_to_json(m.power, sure=job.sure),
            }
            for m in job.modes
        ],
        "idle_w": quantity_to_json(job.idle), "idle_from": job.idle_from, "course_j": list(job.course_j),
        "rated_w": job.rated_w, "rated_by": job.rated_by, "rated_alike": job.rated_alike,
        "rated_times": job.rated_times, "twin": job.twin, "simulated": bool(job.twin),
        "caps_from": job.caps_from, "accuracy_known": job.sure, "notes": list(job.notes),
    }  # fmt: skip


def quantity_to_json(q: Quantity, *, sure: bool = True) -> dict[str, Any]:
    """Return a quantity with all of its terms, as plain data; without an interval where that is not sure."""
    expanded = q.expanded if sure else None
    return {
        "value": q.value,
        "expanded": expanded,
        "known": q.known and sure,
        "ratio_known": q.known,
        "terms": {**q.terms, **{f"{UNSEEN}{source}": u for source, u in q.bounds.items()}},
    }
