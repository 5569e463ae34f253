"""Check a plan before anything runs: refuse what this machine cannot do, and estimate the cost of its slots."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, MeterError, Refused, StoreError, join_errors
from joulelab.core.scope import find_family
from joulelab.recorder.plan import Plan as RecorderPlan
from joulelab.recorder.plan import open_meter
from joulelab.run import workload_registry
from joulelab.run.run_options import read_offers
from joulelab.store.documents import read_json
from joulelab.study import executors, slot_setup
from joulelab.study.knobs import fill_command
from joulelab.study.matrix import GPUS_ADVICE, LOCAL, SLURM, TWIN, NodeType
from joulelab.study.results import read_trial
from joulelab.study.slots import NOTES, State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.control.client import CapDevice, CapRequest, CapStatus
    from joulelab.core.toml_reading import Place
    from joulelab.instruments.visible import VisibleGpus
    from joulelab.study.folder import Plan, Settings, Study
    from joulelab.study.knobs import Value
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot

CAP_KNOBS = ("cap", "clock", "cpu_cap")
MAX_VALUES_SHOWN = 5  # in the line of a refusal
MAX_SLOTS_READ = 3  # of a cell, to estimate its cost


class Refusals:
    """Collect refusals, each with its place: a line of the study file, or an option of sweep."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._found: list[tuple[int, JoulelabError]] = []
        self._lines: Mapping[Place, int] = {}
        self._content: Mapping[str, Any] = {}
        if file is not None:
            self._lines, self._content = _read_lines(file)

    def add(self, error: JoulelabError, place: Place = (), label: str = "", option: str = "") -> None:
        """Add a refusal, with the place and a label for a study file, with the option for a sweep."""
        from joulelab.core.toml_reading import find_line

        line = find_line(self._lines, place) or 0 if self._lines else 0
        if self.file is None:
            error.where = option or error.where
        elif place:
            shown = self.file.relative_to(Path.cwd()) if self.file.is_relative_to(Path.cwd()) else self.file
            error.where = f"{shown}:{line}" if line else str(shown)
            error.what = f"{label}: {error.what}" if label else error.what
        self._found.append((line, error))

    @contextlib.contextmanager
    def collect_error(self, place: Place = (), label: str = "", option: str = "") -> Iterator[None]:
        """Add an error that is raised inside the block, and continue after the block."""
        try:
            yield
        except JoulelabError as error:
            self.add(error, place, label, option)

    def check(self) -> None:
        """Raise the refusals; several become one ConfigError with a line for each."""
        if self._found:
            raise join_errors([error for _, error in sorted(self._found, key=lambda one: one[0])])

    def find_knob(self, name: str, workload: str) -> Place:
        """Return the place of a knob of a workload: in its own table, or in [knobs]."""
        own = self.get_table("workloads", workload, "knobs")
        return ("workloads", workload, "knobs", name) if name in own else ("knobs", name)

    def get_table(self, *keys: str) -> Mapping[str, Any]:
        """Return a table of the file as it is written, empty if there is none."""
        found: Any = self._content
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _read_lines(file: Path) -> tuple[Mapping[Place, int], Mapping[str, Any]]:
    """Return the lines and the content of a study file, nothing if it cannot be read any more."""
    import tomllib

    from joulelab.core.toml_reading import find_lines
    from joulelab.store.safe_files import read_regular

    try:
        text = read_regular(file).decode("utf-8-sig")
        return find_lines(text), tomllib.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}, {}


def check_plan(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Check a plan, and return warnings. Raises ConfigError with a line for each refusal.

    Cells that run here are checked against this machine, other cells by their executor.
    """
    nodes = plan.nodes or {LOCAL: NodeType()}
    refusals = Refusals(plan.file)
    virtual = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor == TWIN]
    real = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor != TWIN]
    _check_workloads(plan, real, refusals)
    warnings: list[str] = []
    if virtual:
        warnings += executors.require_hook(TWIN, "check_cells")(plan, virtual, refusals)
    if real or not virtual:
        with refusals.collect_error():
            slot_setup.make_run_options(plan.settings, environ, Path())
    warnings += _check_elsewhere(nodes, environ, refusals)
    here = {name: node for name, node in nodes.items() if node.executor == LOCAL}
    local = [cell for cell in plan.cells if cell.workload.node_type in here]
    if local:
        _check_programs(local, here, environ, refusals)
        for name, node in here.items():
            own = [cell for cell in local if cell.workload.node_type == name]
            _check_devices(own, {**environ, **node.environment}, refusals)
        _check_cooling(plan.settings, refusals)
        with refusals.collect_error():
            warnings += check_meters(plan.settings, environ, plan.scope, refusals)
    refusals.check()
    return warnings


def _check_workloads(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> None:
    """Refuse notebooks and reference workloads that this Python cannot run: jobs run with the same Python."""
    for cell in {cell.workload.command: cell for cell in reversed(cells) if cell.workload.kind}.values():
        place = ("workloads", cell.workload.name, cell.workload.kind)
        with refusals.collect_error(place, cell.workload.command[0]):
            workload_registry.check_workload(cell.workload.kind, cell.make_argv(), (plan.file or Path()).parent)


def _check_programs(
    cells: Sequence[PlannedCell], nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals
) -> None:
    """Refuse commands that cannot be started; each program of a workload once."""
    beside = None if refusals.file is None else refusals.file.parent

    def find_start(cell: PlannedCell) -> tuple[str, str, str]:
        texts = {name: value.text for name, value in cell.knobs.items()}
        return cell.workload.name, cell.workload.node_type, fill_command(cell.workload.command[:1], texts)[0]

    for name, node, program in dict.fromkeys(find_start(cell) for cell in cells if not cell.workload.kind):
        with refusals.collect_error(("workloads", name, "command"), f"workload {name}".rstrip(), "command"):
            check_program(program, environ, nodes[node].environment, beside)


def check_program(name: str, environ: Mapping[str, str], own: Mapping[str, str], beside: Path | None) -> None:
    """Refuse a program that cannot be started here. Raises ConfigError.

    `own` are variables of the workload: their PATH is not searched, but named in the advice, as is `beside`, the folder
    of the study file.
    """
    if "/" in name:
        _check_program_file(Path(name), name, beside)
        return
    if shutil.which(name, path=environ.get("PATH", os.defpath)) is not None:
        return
    why, then = "it is not in PATH", "install it, or name its file"
    found = shutil.which(name, path=own["PATH"]) if "PATH" in own else None
    if found is not None:
        why, then = (
            "it is only in the PATH of its node type, which applies to programs that it starts itself",
            f"write {found}",
        )
    elif Path(name).is_file():
        why, then = "it is not in PATH, but a file of this folder", f"write ./{name}, or its interpreter before it"
    raise ConfigError(f"there is no program {name!r}", why=why, next=then)


def _check_program_file(file: Path, name: str, beside: Path | None) -> None:
    if file.is_file() and os.access(file, os.X_OK):
        return
    if file.is_file():
        then = f"chmod +x {name}, or write its interpreter before it"
        raise ConfigError(f"{name} cannot be started", why="it may not be executed", next=then)
    if file.exists():
        raise ConfigError(f"{name} cannot be started", why="it is not a file", next="name a program")
    then = "commands run in the folder where joulelab is started"
    if beside is not None and (beside / file).is_file():
        then = f"{then}: start it in {beside}"
    raise ConfigError(f"there is no program {name}", why=f"looked for in {Path.cwd()}", next=then)


def _check_elsewhere(nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals) -> list[str]:
    """Let other executors check their node types; return their warnings."""
    warnings: list[str] = []
    for name in dict.fromkeys(node.executor for node in nodes.values() if node.executor != LOCAL):
        try:
            warnings += executors.check_nodes(name, nodes, environ)
        except JoulelabError as error:
            own = [node for node in nodes.values() if node.executor == name]
            # Slurm does not answer: node types that did not ask for it by name may not mean it.
            is_silent = name == SLURM and isinstance(error.__cause__, MeterError)
            unmeant = _find_unmeant_keys(own, refusals) if is_silent else {}
            for node, key in unmeant.items():
                what = f"{key} makes {node} a node type of Slurm: {error.what}"
                advice = GPUS_ADVICE if key == "gpus" else error.next
                then = f"to run it on this machine leave {key} out; {advice}"
                refused = ConfigError(what, why=error.why, next=then, code="config.no-slurm")
                refusals.add(refused, ("nodes", node, key))
            if len(unmeant) < len(own):
                refusals.add(error)
    return warnings


def _find_unmeant_keys(nodes: Sequence[NodeType], refusals: Refusals) -> dict[str, str]:
    """Return the node types without an executor in the file, each with the first key that makes it one of Slurm."""
    found = {}
    for node in nodes:
        table = refusals.get_table("nodes", node.name)
        keys = [key for key in table if key in node.options]
        if keys and "executor" not in table:
            found[node.name] = keys[0]
    return found


def _check_devices(cells: Sequence[PlannedCell], environ: Mapping[str, str], refusals: Refusals) -> None:
    knobs = {name for cell in cells for name in cell.knobs}
    if not knobs & {"gpus", *CAP_KNOBS}:
        return
    status = None
    if knobs & set(CAP_KNOBS):
        from joulelab.control.client import Caps

        with refusals.collect_error(), Caps(environ) as caps:
            status = caps.status()
    check_limits(cells, slot_setup.read_visible_gpus(environ), status, refusals)


def _check_cooling(settings: Settings, refusals: Refusals) -> None:
    if settings.cool_c is None:
        return
    with refusals.collect_error(("cool",), "cool", "--cool"), slot_setup.open_thermometer() as gauge:
        if not gauge.scopes:
            then = "--cool 60s" if refusals.file is None else 'cool = "60s"'
            then = f"wait for a time instead: {then}"
            raise ConfigError("no GPU here shows its temperature", next=then, code="config.no-thermometer")


def check_meters(settings: Settings, environ: Mapping[str, str], scope: str | None, refusals: Refusals) -> list[str]:
    """Open each meter that a run reads; return warnings. Raises ConfigError for a wrong configuration.

    A requested meter that cannot be read, and a scope without a meter, are refused.
    """
    options, warnings = slot_setup.make_run_options(settings, environ, Path())
    wanted = {str(entry["name"]) for entry in options.configured} | set(settings.meters)
    also, meters = list(options.also), None if options.meters is None else list(options.meters)
    plan = RecorderPlan(Path(), "", os.getpid(), meters=meters, also=also, offers=read_offers(environ))
    scopes: set[str] = set()
    missing: list[str] = []
    for one in plan.all_meters():
        try:
            with contextlib.closing(open_meter(plan, one)) as meter:
                scopes |= _list_scopes(meter.streams())
        except JoulelabError as error:
            if one.name in wanted or one.meter in wanted:
                what, then = f"the meter {one.name} cannot be read", f"joulelab doctor {one.name}"
                refused = ConfigError(what, where="study", why=str(error), next=then)
                refusals.add(refused, ("meters",) if settings.meters else ("config",) if settings.config else ())
            missing.append(f"{one.name}: {error.what}")
    if scope is not None and scope not in scopes:
        why = f"there are {', '.join(sorted(scopes))}" if scopes else "; ".join(missing) or None
        refused = ConfigError(f"no meter here covers {scope!r}", where="scope", why=why, next="joulelab meters")
        refusals.add(refused, ("scope",))
    if not scopes:
        warnings.append("no power meter can be read here: there will be times, but no energies; joulelab doctor")
    return warnings


def _list_scopes(streams: Sequence[Any]) -> set[str]:
    """Return the scopes, families and sums with a power or an energy."""
    found: set[str] = set()
    for stream in streams:
        if any(spec.kind == "power" or (spec.kind == "counter" and spec.unit == "J") for spec in stream.channels):
            found |= {stream.scope, find_family(stream.scope), "measured", *([stream.sums] if stream.sums else [])}
    return found


# Limits of devices


@dataclass(frozen=True, slots=True)
class _KnobPlace:
    """Name a knob on a node type; with a `workload` it is a knob of that one alone."""

    knob: str
    workload: str
    node: str


@dataclass(frozen=True, slots=True)
class _LimitReason:
    """Hold why a device refuses values: what cannot be done, why, and what to do."""

    what: str
    why: str | None
    next: str | None = None


def check_limits(cells: Sequence[PlannedCell], seen: VisibleGpus, status: CapStatus | None, refusals: Refusals) -> None:
    """Refuse more GPUs than are visible, and values outside the limits of devices (unknown without a `status`).

    Values and devices that are refused for one reason share a line.
    """
    there = () if status is None else status.devices
    packages = list(dict.fromkeys(d.scope for d in there if d.scope.startswith("cpu:")))
    checked: set[tuple[_KnobPlace, Value, tuple[str, ...]]] = set()
    few: dict[_KnobPlace, dict[str, ConfigError]] = {}
    refused: dict[tuple[_KnobPlace, _LimitReason], dict[str, dict[str, None]]] = {}

    def find_place(knob: str, cell: PlannedCell) -> _KnobPlace:
        is_own = refusals.find_knob(knob, cell.workload.name)[0] == "workloads"
        return _KnobPlace(knob, cell.workload.name if is_own else "", cell.workload.node_type)

    for cell in cells:
        count = cell.knobs.get("gpus")
        try:
            used = seen.take_first(None if count is None else int(count.value))
        except ConfigError as error:
            few.setdefault(find_place("gpus", cell), {})[str(count and count.text)] = error
            continue
        for name in (name for name in CAP_KNOBS if name in cell.knobs and status is not None):
            place, value = find_place(name, cell), cell.knobs[name]
            if (place, value, used.scopes) in checked:
                continue
            checked.add((place, value, used.scopes))
            try:
                requests = slot_setup.list_cap_requests({name: value}, used, packages)
            except ConfigError as error:
                _add_knob_refusal(error, place, refusals)
                continue
            for request in requests:
                reason = _find_limit(request, status)
                if reason is not None:
                    refused.setdefault((place, reason[0]), {}).setdefault(request.device, {})[reason[1]] = None
    for place, errors in few.items():
        what, why = f"{_join_values(list(errors))} GPUs are requested", next(iter(errors.values())).why
        _add_knob_refusal(ConfigError(what, why=why, code="config.too-many-gpus"), place, refusals)
    for (place, limit), by_device in refused.items():
        _add_limit_refusals(limit, by_device, place, refusals)


def _add_limit_refusals(
    limit: _LimitReason, by_device: Mapping[str, Iterable[str]], place: _KnobPlace, refusals: Refusals
) -> None:
    """Add the refused values by device; devices that refuse the same values share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for device, values in by_device.items():
        alike.setdefault(tuple(values), []).append(device)
    for texts, scopes in alike.items():
        at, code = (
            (f" at {_join_values(texts)}", "refused.out-of-range") if any(texts) else ("", "refused.not-cappable")
        )
        what = f"{', '.join(scopes)} {limit.what}{at}"
        refused = Refused(what, why=limit.why, next=limit.next, code=code)
        _add_knob_refusal(refused, place, refusals, "sweep")


def _add_knob_refusal(error: JoulelabError, place: _KnobPlace, refusals: Refusals, option: str = "") -> None:
    label = f"knob {place.knob} on {place.node}" if place.node != LOCAL else f"knob {place.knob}"
    at = refusals.find_knob(place.knob, place.workload)
    refusals.add(error, at, label, option or f"--{place.knob.replace('_', '-')}")


def _find_limit(request: CapRequest, status: CapStatus | None) -> tuple[_LimitReason, str] | None:
    """Return why a device refuses a value, and the value as text (empty: it takes none); None if it takes it."""
    assert status is not None
    kind = "clocks" if request.unit == "Hz" else "power"
    device = next((d for d in status.devices if d.scope == request.device and d.kind == kind), None)
    what = f"cannot be {'locked to a clock' if kind == 'clocks' else 'capped'}"
    if device is None:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        return _LimitReason(what, why, "joulelab cap status"), ""
    if request.unit == "share" and device.default is None:
        return _LimitReason("has no default", None, "give its cap in W"), ""
    value = request.value * (device.default or 0.0) if request.unit == "share" else request.value
    if device.lowest - 0.5 <= value <= device.highest + 0.5:
        return None
    lowest, highest = (_format_limit(limit, device) for limit in (device.lowest, device.highest))
    return _LimitReason(what, f"{device.model or 'it'} takes {lowest} to {highest}"), _format_limit(value, device)


def _format_limit(value: float, device: CapDevice) -> str:
    return f"{value / 1e6:.0f} MHz" if device.unit == "Hz" else f"{value:.0f} W"


def _join_values(texts: Sequence[str]) -> str:
    if len(texts) <= MAX_VALUES_SHOWN:
        return ", ".join(texts)
    return f"{', '.join(texts[: MAX_VALUES_SHOWN - 2])}, ... {texts[-1]}"


# Cost of slots


@dataclass(frozen=True, slots=True)
class SlotCost:
    """Hold the cost of a slot: time with everything around the run (s) and energy (J); None if unknown."""

    time_s: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class CostSum:
    """Hold the cost of several slots, and the number of slots whose cost is unknown."""

    time_s: float
    energy_j: float
    slots: int
    unknown: int


class CostForecast:
    """Estimate the cost of slots by earlier runs of the same cells in all studies, else by similar cells."""

    def __init__(self, study: Study, cells: Mapping[str, PlannedCell], *, scope: str | None = None) -> None:
        self._cells = cells
        self._known: dict[str, SlotCost] = {}
        for folder in [study.folder, *_list_folders(study.folder.parent)]:
            for cell in _list_folders(folder / "cells"):
                if cell.name in cells and cell.name not in self._known:
                    costs = _read_costs(cell, scope)
                    self._known |= {cell.name: _average_costs(costs)} if costs else {}
        self._similar: dict[tuple[str, str], SlotCost] = {}

    def get_cost(self, key: str) -> SlotCost:
        """Return the mean cost of a cell's slots, else that of cells of the same workload and node type."""
        if key in self._known:
            return self._known[key]
        group = self._get_group(key)
        if group not in self._similar:
            self._similar[group] = _average_costs(
                [cost for other, cost in self._known.items() if self._get_group(other) == group]
            )
        return self._similar[group]

    def sum_costs(self, keys: Iterable[str]) -> CostSum:
        """Return the cost of a slot of each of these cells together."""
        costs = [self.get_cost(key) for key in keys]
        time_s, energy_j = sum(c.time_s or 0.0 for c in costs), sum(c.energy_j or 0.0 for c in costs)
        return CostSum(time_s, energy_j, len(costs), sum(c.time_s is None for c in costs))

    def _get_group(self, key: str) -> tuple[str, str]:
        workload = self._cells[key].workload
        return workload.name, workload.node_type


def _read_costs(cell: Path, scope: str | None) -> list[SlotCost]:
    """Read the cost of the first finished slots of a cell."""
    found: list[SlotCost] = []
    for folder in list_claimed_slots(cell):
        if len(found) < MAX_SLOTS_READ and (slot := read_slot(folder)).state is State.DONE:
            cost = _read_cost(slot, scope)
            found += [] if cost is None else [cost]
    return found


def _read_cost(slot: Slot, scope: str | None) -> SlotCost | None:
    try:
        time_s = read_json(slot.folder / NOTES).get("took_s")
    except StoreError:
        return None
    if not isinstance(time_s, int | float):
        return None
    trial = read_trial(slot)
    energy = None if trial is None else trial.get_energy(scope)
    return SlotCost(float(time_s), None if energy is None else energy.value)


def _list_folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [folder / entry.name for entry in os.scandir(folder) if entry.is_dir()]
    return []


def _average_costs(costs: Sequence[SlotCost]) -> SlotCost:
    times = [c.time_s for c in costs if c.time_s is not None]
    energies = [c.energy_j for c in costs if c.energy_j is not None]
    return SlotCost(fmean(times) if times else None, fmean(energies) if energies else None)
