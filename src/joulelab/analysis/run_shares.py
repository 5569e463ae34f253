"""Find the part of a run in the energy of a node that others used at the same time.

Use is what the recorder notes anyway: the loads of the workload's and of all other processes on each GPU, and the CPU
time of the workload and of the machine. A run that had the node for itself has no such part.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.device_load import LoadCurve
from joulelab.analysis.job_accounting import JOB_SCOPE
from joulelab.analysis.job_shares import (
    LEAST_USE,
    NOBODY,
    DeviceUse,
    IdlePower,
    JobShare,
    add_device_shares,
    divide_cells,
    find_idle_power,
    split_device,
)
from joulelab.analysis.readings import Readings
from joulelab.analysis.result import Check
from joulelab.core.scope import find_family, find_roots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.checks import RunEvidence
    from joulelab.analysis.readings import Floats, Ints
    from joulelab.store.run_reader import Run

    Bools = npt.NDArray[np.bool_]
    CpuUse = tuple[dict[str, Floats], float]  # CPU time (s) by job in each cell, and the number of CPUs

RUN, OTHERS = "run", "others"
CELL_S, MOST_CELLS, FEWEST_CELLS = 1.0, 2000, 5
UNREAD = ("gpu", "accel", "cpu", "dram")  # parts of a whole that belong to anybody if their use is not known
WHOLES = ("node.ac", "node.dc", "psys", "module")  # scopes whose rest is divided like the parts inside them
# Powers per CPU second of two jobs differ by at most this: code with wide vectors draws about twice the power of a
# plain loop, and the clocks of two cores differ by up to a factor of two. The rest of a node follows its parts alike.
CPU_RATIO = 4.0
# The most that a device draws at rest, as a share of its limit: GPUs 70 of 700 W (H100) to 58 of 400 W (A100).
MOST_IDLE = {"gpu": 0.25}
USE_ERROR = {"gpu": 0.01}  # loads are whole percents
TICK_ERROR = 0.002  # of CPU time, as a share of all CPUs
PRESENT_CPUS = 0.2  # others that use less than this (CPU seconds per second) are the system, not a job
SHARED_CPUS, SHARED_PART = 0.5, 0.1  # others share the CPUs if they use this many, and this part of all CPU time
QUIET_LOAD = 0.02  # highest load of a device whose idle power was measured
FEWEST_READINGS = 3
FILLED_CELLS = 2
# Programs that let a service, or another node, start the processes of a run: nobody can tell them from those of others.
STARTED_ELSEWHERE = frozenset(("docker", "nerdctl", "kubectl", "srun", "ssh", "systemd-run", "ctr", "crictl"))
LATE_S = 2.0  # longest time between the reading of a load and that of energy


def check_run_share(run: Run, evidence: RunEvidence) -> Iterator[Check]:
    """Yield `shared-node` with the energy of the run and its bounds (J), if others used a measured device, too.

    `shared-node.elsewhere` has bounds only: the others may be processes of the run.
    """
    whole = next((group for group in evidence.groups if group.name == "measured"), None)
    cells = min(round((evidence.end_ns - evidence.start_ns) * 1e-9 / CELL_S), MOST_CELLS)
    hosts = set() if whole is None else set(whole.hosts)
    if (
        whole is None
        or whole.estimate
        or evidence.imported
        or evidence.nodes
        or evidence.counted  # the server whose work was counted is not among the processes of the run
        or len(hosts) != 1
        or cells < FEWEST_CELLS
    ):
        return
    edges = np.linspace(evidence.start_ns, evidence.end_ns, cells + 1).astype(np.int64)
    scopes = {s.scope: s for s in evidence.channels if s.host in hosts}
    is_twin = bool(run.meta.get("twin") or (run.meta.get("environment") or {}).get("JOULELAB_TWIN"))
    # The CPUs of a simulated node do not run the processes of this machine.
    cpu_use = None if is_twin else _measure_cpu_use(run, evidence, edges)
    if not _is_shared(scopes.values(), evidence, cpu_use):
        return
    # The program may follow another one: `sudo docker`, `env A=1 docker`.
    words = [PurePath(str(word)).name for word in list(run.meta.get("command") or ())[:3]]
    if program := next((word for word in words if word in STARTED_ELSEWHERE), ""):
        numbers = {"node_j": whole.energy.value, "low_j": 0.0, "high_j": whole.energy.value}
        yield Check("shared-node.elsewhere", "note", numbers=numbers, texts={"program": program})
        return
    parts = [device for s in scopes.values() if (device := _measure_gpu(s, evidence, edges)) is not None]
    if cpu_use is not None:
        for family in ("cpu", "dram"):
            members = [s for name, s in scopes.items() if find_family(name) == family]
            parts += [_make_cpu_device(family, members, cpu_use, edges, evidence)] if members else []
    known = {name: scopes[name].parent for name in whole.scopes if name in scopes}
    roots = [root for root in find_roots(list(whole.scopes), known) if root in scopes]
    # Parts of a measured whole whose use is not known: GPUs of other vendors, MIG, no host meter.
    unread = [
        scope for name, scope in scopes.items()
        if find_family(name) in UNREAD and "/" not in name and name not in roots
        and not any(_is_part(name, part) for part in parts) and not is_twin
    ]  # fmt: skip
    unread_parts = [_make_unread_device(scope, edges) for scope in unread]
    devices, covered = _add_rests([*parts, *unread_parts], roots, scopes, edges, cpu_use)
    if not devices:
        return
    shares = add_device_shares(split_device(device) for device in devices)
    measured = sum(share.energy_j for share in shares)
    is_whole = set(covered) == set(whole.scopes)
    factor = whole.energy.value / measured if is_whole and measured > 0 else 1.0
    rows = {s.job: _scale_share(s, factor).widen_for_meter(whole.energy) for s in shares}
    own = rows[RUN]
    numbers = {"node_j": measured * factor, "energy_j": own.energy_j, "low_j": own.low_j, "high_j": own.high_j}
    numbers |= {"idle_j": own.idle_j, "others_j": rows[OTHERS].energy_j, "nobody_j": rows[NOBODY].energy_j}
    texts = {"rule": "equal"} | ({} if is_whole else {"covers": ", ".join(sorted(covered))})
    yield Check("shared-node", "note", numbers=numbers, texts=texts)


def check_accounted_share(evidence: RunEvidence) -> Iterator[Check]:
    """Yield `shared-node.accounted` if other jobs were on the nodes of a job whose energy a cluster accounted.

    The accounting has one energy and one CPU time for each job. How both were spread over time is not known, so the
    part of the job is given by CPU time and by reserved CPUs, and nothing bounds it: it may be none or all.
    """
    energy = next((s.energy.value for s in evidence.scopes if s.scope == JOB_SCOPE), 0.0)
    for event in evidence.list_events("shared-jobs")[:1] if energy > 0 else ():
        jobs = {str(job["job"]): job for job in event["jobs"]}
        own, seconds = jobs[str(event["job"])], (evidence.end_ns - evidence.start_ns) * 1e-9
        numbers = {"node_j": energy, "low_j": 0.0, "high_j": energy, "jobs": len(jobs) - 1}
        cpus = [float(job["cpus"]) for job in jobs.values()]
        numbers["reserved_j"] = energy * _share_accounted(own, jobs.values(), cpus, seconds)
        # The CPU time of a job is known after its end, and 0 s for all where the cluster does not gather it.
        times = [job["cpu_s"] for job in jobs.values()]
        if None not in times and any(times):
            rates = [job["cpu_s"] / max(job["to_s"] - job["from_s"], 1e-9) for job in jobs.values()]
            numbers["energy_j"] = energy * _share_accounted(own, jobs.values(), rates, seconds)
        yield Check("shared-node.accounted", "note", numbers=numbers)


def _share_accounted(
    own: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]], weights: Sequence[float], seconds: float
) -> float:
    """Return the share of a job, if energy flows evenly and is divided by the weights of the jobs that run."""
    known = list(jobs)
    edges = np.unique(np.clip([0.0, seconds, *(job[end] for job in known for end in ("from_s", "to_s"))], 0.0, seconds))
    rates = [
        np.where((edges[:-1] >= job["from_s"]) & (edges[1:] <= job["to_s"]), weight, 0.0)
        for job, weight in zip(known, weights, strict=True)
    ]
    total = np.sum(rates, axis=0)
    return float((np.diff(edges) * rates[known.index(own)] / np.where(total > 0, total, 1.0)).sum() / seconds)


def _is_shared(scopes: Iterable[ScopeChannels], evidence: RunEvidence, cpu_use: CpuUse | None) -> bool:
    """Return whether others used a GPU or the CPUs so much that energy has to be divided."""
    loads = [evidence.read_state(scope, "others_load") for scope in scopes]
    if any(load.size and load.mean() > LEAST_USE for load in loads):
        return True
    if cpu_use is None:
        return False
    own, others = (float(cpu_use[0][job].sum()) for job in (RUN, OTHERS))
    seconds = (evidence.end_ns - evidence.start_ns) * 1e-9
    return others > SHARED_CPUS * seconds and others > SHARED_PART * (own + others)


# Devices.


def _measure_gpu(scope: ScopeChannels, evidence: RunEvidence, edges: Ints) -> DeviceUse | None:
    """Return the energy and use of one GPU in cells, None if the loads of its processes are not known."""
    loads = [scope.state.get(name) for name in ("workload_load", "others_load")]
    if (
        find_family(scope.scope) != "gpu"
        or "/" in scope.scope
        or any(r is None or len(r) < FEWEST_READINGS for r in loads)
    ):
        return None
    use = {
        job: _measure_load(scope, readings, edges)
        for job, readings in zip((RUN, OTHERS), loads, strict=True)
        if readings is not None
    }
    present = _find_present(scope, evidence, edges, use)
    caps = evidence.read_state(scope, "cap_enforced_w")
    limits = scope.best.spec.limits
    most_w = float(caps.max()) if caps.size else limits[1] if limits is not None else math.inf
    return _make_device(scope.scope, [scope], use, present, edges, evidence, most_w)


def _measure_load(scope: ScopeChannels, readings: Readings, edges: Ints) -> Floats:
    """Return the time (s) of each cell in which processes used a GPU, NaN where it was not read."""
    curve = LoadCurve.from_readings(scope.host, scope.scope, readings)
    busy, covered = (np.diff(np.interp(edges, curve.edges_ns, sums)) for sums in (curve.busy_s, curve.covered_s))
    seconds = np.diff(edges) * 1e-9
    is_read = covered > 0.5 * seconds
    rate = np.where(is_read, busy / np.where(is_read, covered, 1.0), np.nan)
    # The first reading follows the start of the workload, the last one precedes its end: there the nearest one holds.
    for _ in range(FILLED_CELLS):
        rate = np.where(np.isnan(rate), np.append(rate[1:], np.nan), rate)
    for _ in range(FILLED_CELLS):
        rate = np.where(np.isnan(rate), np.append(np.nan, rate[:-1]), rate)
    return rate * seconds


def _find_present(
    scope: ScopeChannels, evidence: RunEvidence, edges: Ints, use: Mapping[str, Floats]
) -> dict[str, Bools]:
    """Return in which cells the run and others had a process on a GPU: by NVML's list, or by their load."""
    ours = {int(p) for e in evidence.list_events("tree") for p in e.get("pids", ())}
    ours |= {int(e["pid"]) for e in evidence.list_events("workload") if "pid" in e}
    present = {job: np.nan_to_num(time) > 0 for job, time in use.items()}
    events = [e for e in evidence.list_events("process") if e.get("host", scope.host) == scope.host]
    events = sorted((e for e in events if e.get("scope") == scope.scope), key=lambda e: int(e["t"]))
    for event, following in zip(events, [*events[1:], None], strict=False):
        until = int(edges[-1]) if following is None else int(following["t"])
        inside = (edges[1:] > int(event["t"])) & (edges[:-1] < until)
        pids = {int(p) for p in event.get("pids", ())}
        present[RUN] |= inside & bool(pids & ours)
        present[OTHERS] |= inside & bool(pids - ours)
    return present


def _measure_cpu_use(run: Run, evidence: RunEvidence, edges: Ints) -> CpuUse | None:
    """Return the CPU time (s) of the run and of others in each cell, and the number of CPUs; None if unknown."""
    found: dict[str, Readings] = {}
    for table in run.tables():
        for stream in (s for s in table.streams if s.scope in ("host", "workload")):
            for name in {"cpu_s", "busy"} & {spec.name for spec in stream.channels}:
                series = run.series(table, stream.name, channels=[name])
                found[f"{stream.scope}.{name}"] = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[name])
    if any(len(found.get(name, ())) < FEWEST_READINGS for name in ("host.cpu_s", "host.busy", "workload.cpu_s")):
        return None
    machine, tree, busy = found["host.cpu_s"], found["workload.cpu_s"], found["host.busy"]
    every = np.diff(np.interp(edges, machine.t0_ns, machine.value))
    ended = next(iter(evidence.list_events("workload-end")), {})
    last = max(float(tree.value[-1]), float(ended.get("user_s", 0.0)) + float(ended.get("system_s", 0.0)))
    times = np.concatenate(([edges[0]], np.clip(tree.t0_ns, edges[0], edges[-1]), [edges[-1]]))
    own = np.minimum(np.diff(np.interp(edges, times, np.concatenate(([0.0], tree.value, [last])))), every)
    rise, passed = np.diff(machine.value), np.diff(machine.t0_ns) * 1e-9
    loads = np.interp(machine.t0_ns[1:], busy.t0_ns, busy.value) * passed
    cpus = float(np.percentile(rise / np.maximum(loads, 1e-9), 90))  # most readings, in which something ran
    return {RUN: own, OTHERS: every - own}, max(round(cpus), 1)


def _make_cpu_device(
    family: str, members: Sequence[ScopeChannels], cpu_use: CpuUse, edges: Ints,
    evidence: RunEvidence,
) -> DeviceUse:  # fmt: skip
    """Return all packages, or their memory, as one device: CPU time is not known by package."""
    use, cpus = cpu_use
    present = _find_cpu_presence(use, np.diff(edges) * 1e-9)
    use = {RUN: use[RUN], OTHERS: np.where(present[OTHERS], use[OTHERS], 0.0)}
    device = _make_device(family, members, use, present, edges, evidence, math.inf)
    # Which processes move data is not known: memory has no ratio, so its bounds are wide.
    return replace(device, capacity=cpus, ratio=CPU_RATIO if family == "cpu" else math.inf)


def _find_cpu_presence(use: Mapping[str, Floats], seconds: Floats) -> dict[str, Bools]:
    """Return in which cells the run and others were on the CPUs: the run always, others if they use enough of them."""
    return {RUN: np.ones(seconds.size, dtype=bool), OTHERS: use[OTHERS] >= PRESENT_CPUS * seconds}


def _make_device(
    name: str, members: Sequence[ScopeChannels], use: Mapping[str, Floats], present: Mapping[str, Bools], edges: Ints,
    evidence: RunEvidence, most_w: float,
) -> DeviceUse:  # fmt: skip
    seconds = np.diff(edges) * 1e-9
    energy_j = np.sum([_measure_cells(member, edges) for member in members], axis=0)
    known_w = 0.0
    if evidence.idle is not None and find_family(name) == "gpu" and _was_quiet(members[0], evidence.idle):
        a_ns, b_ns = evidence.idle
        known_w = members[0].best.energy(a_ns, b_ns).value / max((b_ns - a_ns) * 1e-9, 1e-9)
    most_idle_w = MOST_IDLE.get(find_family(name), math.inf) * most_w
    idle = find_idle_power(seconds, energy_j, use, present, most_idle_w, max(known_w, 0.0))
    error = USE_ERROR.get(find_family(name), TICK_ERROR)
    return DeviceUse(name, seconds, energy_j, use, present, idle, most_w, use_error=error, late_s=LATE_S)


def _measure_cells(scope: ScopeChannels, edges: Ints) -> Floats:
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([scope.best.energy(a_ns, b_ns).value for a_ns, b_ns in pairs])


def _was_quiet(scope: ScopeChannels, idle: tuple[int, int]) -> bool:
    """Return whether nobody used a device in the idle stretch before the run."""
    load = scope.state.get("load")
    seen = np.empty(0) if load is None else load.value[load.between(*idle)]
    return bool(seen.size and seen.max() <= QUIET_LOAD)


def _make_unread_device(scope: ScopeChannels, edges: Ints) -> DeviceUse:
    """Return a device of which only the energy is known: it may be anybody's."""
    seconds = np.diff(edges) * 1e-9
    use = {job: np.full(seconds.size, math.nan) for job in (RUN, OTHERS)}
    present = {job: np.zeros(seconds.size, dtype=bool) for job in use}
    return DeviceUse(scope.scope, seconds, _measure_cells(scope, edges), use, present, IdlePower(0.0, 0.0))


def _add_rests(
    parts: Sequence[DeviceUse],
    roots: Sequence[str],
    scopes: Mapping[str, ScopeChannels],
    edges: Ints,
    cpu_use: CpuUse | None,
) -> tuple[list[DeviceUse], list[str]]:
    """Return the devices and, for a node that is measured as a whole, its rest; and the scopes that they cover."""
    wholes = [root for root in roots if find_family(root) in WHOLES]
    inside = [part for part in parts if not any(_is_part(root, part) for root in roots)]
    plain = [root for root in roots if any(_is_part(root, part) for part in parts)]
    if not wholes or (cpu_use is None and not parts):
        return list(parts), plain or [part.scope for part in parts]
    seconds = np.diff(edges) * 1e-9
    energy_j = np.sum([_measure_cells(scopes[root], edges) for root in wholes], axis=0)
    energy_j = energy_j - np.sum([part.energy_j for part in inside], axis=0)
    nowhere = np.zeros(seconds.size, dtype=bool)
    present = {RUN: ~nowhere, OTHERS: np.any([nowhere, *(part.present[OTHERS] for part in parts)], axis=0)}
    ratio, is_read = CPU_RATIO, all(np.isfinite(part.use[RUN]).any() for part in inside)
    if cpu_use is not None and not any(part.scope == "cpu" for part in parts):
        # The CPUs are the largest part of this rest, and how much of it they are is not known.
        use, most = cpu_use
        present[OTHERS] = present[OTHERS] | _find_cpu_presence(use, seconds)[OTHERS]
        ratio = math.inf
    else:
        use = {job: np.zeros(seconds.size) for job in (RUN, OTHERS)}
        for part in inside:
            for job, joules in divide_cells(part).items():
                use[job] += np.maximum(joules, 0.0)
        most = max(float((sum(use.values()) / seconds).max()), 1e-9)
    idle = find_idle_power(seconds, energy_j, use, present)
    rest = DeviceUse("rest", seconds, energy_j, use, present, idle, capacity=most, ratio=ratio if is_read else math.inf)
    return [*parts, rest], [*wholes, *plain]


def _is_part(scope: str, device: DeviceUse) -> bool:
    """Return whether a scope is a device, or a part of one: `cpu:0` of `cpu`."""
    return scope == device.scope or scope.partition(":")[0] == device.scope


def _scale_share(share: JobShare, factor: float) -> JobShare:
    return JobShare(share.job, *(factor * v for v in (share.energy_j, share.low_j, share.high_j, share.idle_j)))
