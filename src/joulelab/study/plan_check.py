"""Check a plan before anything runs: refuse what this machine cannot do, and estimate what its slots cost."""

from __future__ import annotations

import contextlib
import os
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
from joulelab.study.matrix import GPUS_ADVICE, LOCAL, SLURM, TWIN, NodeType
from joulelab.study.programs import check_program, program_of
from joulelab.study.results import read_trial
from joulelab.study.slot_setup import make_run_options
from joulelab.study.slots import NOTES, SLOT, State, read_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.control.client import CapDevice, CapRequest, CapStatus
    from joulelab.core.toml_reading import Place
    from joulelab.instruments.visible import VisibleGpus
    from joulelab.study.folder import Plan, Settings, Study
    from joulelab.study.knobs import Value
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot


class Refusals:
    """Collect refusals, to tell all of them at once, each once."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._found: list[tuple[int, JoulelabError]] = []
        self._lines: Mapping[Place, int] = {}
        self._content: Mapping[str, Any] = {}
        if file is not None:
            self._lines, self._content = _look_into(file)

    def add(self, error: JoulelabError, place: Place = (), label: str = "", option: str = "") -> None:
        """Note a refusal: of a study file with its place and what it is of, of a sweep with its option."""
        line = self._line(place)
        if self.file is None:
            error.where = option or error.where
        elif place:
            shown = self.file.relative_to(Path.cwd()) if self.file.is_relative_to(Path.cwd()) else self.file
            error.where = f"{shown}:{line}" if line else str(shown)
            error.what = f"{label}: {error.what}" if label else error.what
        self._found.append((line, error))

    @contextlib.contextmanager
    def taken(self, place: Place = (), label: str = "", option: str = "") -> Iterator[None]:
        """Note what is refused inside the block, and go on after it."""
        try:
            yield
        except JoulelabError as error:
            self.add(error, place, label, option)

    def check(self) -> None:
        """Raise what was refused; several become one ConfigError with a line for each."""
        if self._found:
            raise join_errors([error for _, error in sorted(self._found, key=lambda one: one[0])])

    def _line(self, place: Place) -> int:
        """Return the line of a place, 0 where nobody knows."""
        if not self._lines:
            return 0
        from joulelab.core.toml_reading import find_line

        return find_line(self._lines, place) or 0

    def knob(self, name: str, workload: str) -> Place:
        """Return where a knob of a workload stands: among its own, or among those of all."""
        own = self.table("workloads", workload, "knobs")
        return ("workloads", workload, "knobs", name) if name in own else ("knobs", name)

    def table(self, *keys: str) -> Mapping[str, Any]:
        """Return a table of the file as it is written, empty where there is none."""
        found: Any = self._content
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _look_into(file: Path) -> tuple[Mapping[Place, int], Mapping[str, Any]]:
    """Return the lines and the content of a study file; none where it cannot be read any more."""
    import tomllib

    from joulelab.core.toml_reading import find_lines
    from joulelab.store.safe_files import read_regular

    try:
        text = read_regular(file).decode("utf-8-sig")
        return find_lines(text), tomllib.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}, {}


CAP_KNOBS = ("cap", "clock", "cpu_cap")
MOST_SHOWN = 5


def check_limits(cells: Sequence[PlannedCell], seen: VisibleGpus, status: CapStatus | None, refusals: Refusals) -> None:
    """Refuse more GPUs than are visible, and what devices do not take; without a `status` nobody knows their ranges."""
    limits = _Limits(seen, status, refusals)
    for cell in cells:
        limits.check(cell)
    limits.tell()


@dataclass(frozen=True, slots=True)
class _Asked:
    """Name a knob on a node type: that of all workloads, or of the one that is named."""

    knob: str
    workload: str
    node: str

    @property
    def label(self) -> str:
        return f"knob {self.knob} on {self.node}" if self.node != LOCAL else f"knob {self.knob}"


@dataclass(frozen=True, slots=True)
class _Reason:
    """Hold why a device does not take values: what cannot be done with it, why, and what to do."""

    what: str
    why: str | None
    next: str | None = None


class _Limits:
    """Check cells one after another; what is refused alike is told in one line at the end."""

    def __init__(self, seen: VisibleGpus, status: CapStatus | None, refusals: Refusals) -> None:
        self._seen, self._status, self._refusals = seen, status, refusals
        there = () if status is None else status.devices
        self._packages = list(dict.fromkeys(d.scope for d in there if d.scope.startswith("cpu:")))
        self._checked: set[tuple[_Asked, Value, tuple[str, ...]]] = set()
        self._few: dict[_Asked, dict[str, ConfigError]] = {}
        self._values: dict[tuple[_Asked, _Reason], dict[str, dict[str, None]]] = {}

    def check(self, cell: PlannedCell) -> None:
        """Hold a cell's knobs against the devices."""
        count = cell.knobs.get("gpus")
        try:
            used = self._seen.take_first(None if count is None else int(count.value))
        except ConfigError as error:
            self._few.setdefault(self._asked("gpus", cell), {})[str(count and count.text)] = error
            return
        for name in (name for name in CAP_KNOBS if name in cell.knobs):
            asked, value = self._asked(name, cell), cell.knobs[name]
            if self._status is not None and (asked, value, used.scopes) not in self._checked:
                self._checked.add((asked, value, used.scopes))
                self._check_value(asked, value, used, self._status)

    def tell(self) -> None:
        """Pass on what was refused."""
        for asked, errors in self._few.items():
            why = next(iter(errors.values())).why
            what = f"{_several(list(errors))} GPUs are asked for"
            self._add(ConfigError(what, why=why, code="config.too-many-gpus"), asked)
        for (asked, reason), by_device in self._values.items():
            alike: dict[tuple[str, ...], list[str]] = {}
            for device, values in by_device.items():
                alike.setdefault(tuple(values), []).append(device)
            for texts, scopes in alike.items():
                at = f" at {_several(texts)}" if any(texts) else ""
                what = f"{', '.join(scopes)} {reason.what}{at}"
                code = "refused.out-of-range" if any(texts) else "refused.not-cappable"
                self._add(Refused(what, why=reason.why, next=reason.next, code=code), asked, "sweep")

    def _asked(self, knob: str, cell: PlannedCell) -> _Asked:
        own = self._refusals.knob(knob, cell.workload.name)[0] == "workloads"
        return _Asked(knob, cell.workload.name if own else "", cell.workload.node_type)

    def _add(self, error: ConfigError, asked: _Asked, option: str = "") -> None:
        place = self._refusals.knob(asked.knob, asked.workload)
        self._refusals.add(error, place, asked.label, option or f"--{asked.knob.replace('_', '-')}")

    def _check_value(self, asked: _Asked, value: Value, used: VisibleGpus, status: CapStatus) -> None:
        try:
            wishes = slot_setup.list_cap_requests({asked.knob: value}, used, self._packages)
        except ConfigError as error:
            self._add(error, asked)
            return
        for wish in wishes:
            refused = _refused(wish, status)
            if refused is not None:
                self._values.setdefault((asked, refused[0]), {}).setdefault(wish.device, {})[refused[1]] = None


def _refused(wish: CapRequest, status: CapStatus) -> tuple[_Reason, str] | None:
    """Return why a device does not take a value, and the value in words (empty: it takes none); None if it does."""
    kind = "clocks" if wish.unit == "Hz" else "power"
    device = next((d for d in status.devices if d.scope == wish.device and d.kind == kind), None)
    what = f"cannot be {'locked to a clock' if kind == 'clocks' else 'capped'}"
    if device is None:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing) or None
        return _Reason(what, why, "joulelab cap status"), ""
    if wish.unit == "share" and device.default is None:
        return _Reason("has no default", None, "give its cap in W"), ""
    value = wish.value * (device.default or 0.0) if wish.unit == "share" else wish.value
    if device.lowest - 0.5 <= value <= device.highest + 0.5:
        return None
    return _Reason(what, _range(device)), _text(value, device)


def _range(device: CapDevice) -> str:
    lowest, highest = _text(device.lowest, device), _text(device.highest, device)
    return f"{device.model or 'it'} takes {lowest} to {highest}"


def _text(value: float, device: CapDevice) -> str:
    return f"{value / 1e6:.0f} MHz" if device.unit == "Hz" else f"{value:.0f} W"


def _several(texts: Sequence[str]) -> str:
    if len(texts) <= MOST_SHOWN:
        return ", ".join(texts)
    return f"{', '.join(texts[: MOST_SHOWN - 2])}, ... {texts[-1]}"


def check_meters(settings: Settings, environ: Mapping[str, str], scope: str | None, refusals: Refusals) -> list[str]:
    """Open what a run would read; return what is to be warned of. Raises ConfigError for a wrong configuration.

    A meter that was asked for and cannot be read, and a scope that none covers, are refused.
    """
    options, warnings = make_run_options(settings, environ, Path())
    wanted = {str(entry["name"]) for entry in options.configured} | set(settings.meters)
    also, meters = list(options.also), None if options.meters is None else list(options.meters)
    plan = RecorderPlan(Path(), "", os.getpid(), meters=meters, also=also, offers=read_offers(environ))
    scopes: set[str] = set()
    missing: list[str] = []
    for one in plan.all_meters():
        try:
            with contextlib.closing(open_meter(plan, one)) as meter:
                scopes |= _scopes(meter.streams())
        except JoulelabError as error:
            if one.name in wanted or one.meter in wanted:
                what, then = f"the meter {one.name} cannot be read", f"joulelab doctor {one.name}"
                told = ConfigError(what, where="study", why=str(error), next=then)
                refusals.add(told, ("meters",) if settings.meters else ("config",) if settings.config else ())
            missing.append(f"{one.name}: {error.what}")
    if scope is not None and scope not in scopes:
        there = f"there are {', '.join(sorted(scopes))}" if scopes else "; ".join(missing) or None
        told = ConfigError(f"no meter here covers {scope!r}", where="scope", why=there, next="joulelab meters")
        refusals.add(told, ("scope",))
    if not scopes:
        warnings.append("no power meter can be read here: there will be times, but no energies; joulelab doctor")
    return warnings


def _scopes(streams: Sequence[Any]) -> set[str]:
    """Return the scopes, families and sums that tell power or energy."""
    found: set[str] = set()
    for stream in streams:
        if any(spec.kind == "power" or (spec.kind == "counter" and spec.unit == "J") for spec in stream.channels):
            found |= {stream.scope, find_family(stream.scope), "measured", *([stream.sums] if stream.sums else [])}
    return found


def check_plan(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Check what can be checked beforehand; return what is to be warned of. Raises ConfigError with a line for each.

    What runs here is checked against this machine, what runs elsewhere by its executor.
    """
    nodes = plan.nodes or {LOCAL: NodeType()}
    refusals = Refusals(plan.file)
    virtual = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor == TWIN]
    real = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor != TWIN]
    _check_workloads(plan, real, refusals)
    warnings = _check_virtual(plan, virtual, refusals) if virtual else []
    if real or not virtual:
        with refusals.taken():
            make_run_options(plan.settings, environ, Path())
    warnings += _check_elsewhere(nodes, environ, refusals)
    here = {name: node for name, node in nodes.items() if node.executor == LOCAL}
    local = [cell for cell in plan.cells if cell.workload.node_type in here]
    if local:
        _check_programs(local, here, environ, refusals)
        for name, node in here.items():
            own = [cell for cell in local if cell.workload.node_type == name]
            _check_devices(own, {**environ, **node.environment}, refusals)
        _check_cooling(plan.settings, refusals)
        with refusals.taken():
            warnings += check_meters(plan.settings, environ, plan.scope, refusals)
    refusals.check()
    return warnings


def _check_virtual(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> list[str]:
    """Refuse workloads, parameters, GPUs, caps and meters that a twin does not have; return what it omits."""
    warnings: list[str] = executors.require_hook(TWIN, "check_cells")(plan, cells, refusals)
    return warnings


def _check_workloads(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> None:
    """Refuse notebooks and reference workloads that cannot be run by this Python: jobs run by the same."""
    seen: set[tuple[str, ...]] = set()
    for cell in (cell for cell in cells if cell.workload.kind):
        kind, name = cell.workload.kind, cell.workload.name
        if cell.workload.command not in seen:
            seen.add(cell.workload.command)
            with refusals.taken(("workloads", name, kind), cell.workload.command[0]):
                workload_registry.check_workload(kind, cell.make_argv(), (plan.file or Path()).parent)


def _check_programs(
    cells: Sequence[PlannedCell], nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals
) -> None:
    """Refuse commands that cannot be started; each program of a workload once."""
    seen: set[tuple[str, str, str]] = set()
    beside = None if refusals.file is None else refusals.file.parent
    for cell in (cell for cell in cells if not cell.workload.kind):
        name, node, program = cell.workload.name, cell.workload.node_type, program_of(cell)
        if (name, node, program) not in seen:
            seen.add((name, node, program))
            with refusals.taken(("workloads", name, "command"), f"workload {name}", "command"):
                check_program(program, environ, nodes[node].environment, beside)


def _check_elsewhere(nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals) -> list[str]:
    """Let other executors look at their node types; return what they warn of."""
    warnings: list[str] = []
    for name in dict.fromkeys(node.executor for node in nodes.values() if node.executor != LOCAL):
        try:
            warnings += executors.check_nodes(name, nodes, environ)
        except JoulelabError as error:
            # Slurm itself does not answer: what is asked of it is another matter.
            unmeant = _unmeant(nodes, refusals) if name == SLURM and isinstance(error.__cause__, MeterError) else {}
            for node, key in unmeant.items():
                refusals.add(_no_slurm(node, key, error), ("nodes", node, key))
            if any(node.executor == name and node.name not in unmeant for node in nodes.values()):
                refusals.add(error)
    return warnings


def _unmeant(nodes: Mapping[str, NodeType], refusals: Refusals) -> dict[str, str]:
    """Return the node types that are Slurm's only by a key of the file, each with that key."""
    wanted = [node for node in nodes.values() if node.executor == SLURM]
    tables = {node.name: refusals.table("nodes", node.name) for node in wanted}
    given = {node.name: [key for key in tables[node.name] if key in node.options] for node in wanted}
    return {name: keys[0] for name, keys in given.items() if keys and "executor" not in tables[name]}


def _no_slurm(node: str, key: str, error: JoulelabError) -> ConfigError:
    what = f"{key} makes {node} a node type of Slurm: {error.what}"
    then = f"to run it on this machine leave {key} out"
    then = f"{then}; {GPUS_ADVICE if key == 'gpus' else error.next}"
    return ConfigError(what, why=error.why, next=then, code="config.no-slurm")


def _check_devices(cells: Sequence[PlannedCell], environ: Mapping[str, str], refusals: Refusals) -> None:
    knobs = {name for cell in cells for name in cell.knobs}
    if not knobs & {"gpus", *CAP_KNOBS}:
        return
    status = None
    if knobs & set(CAP_KNOBS):
        with refusals.taken():
            status = _status(environ)
    check_limits(cells, slot_setup.read_visible_gpus(environ), status, refusals)


def _status(environ: Mapping[str, str]) -> CapStatus:
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        return caps.status()


def _check_cooling(settings: Settings, refusals: Refusals) -> None:
    if settings.cool_c is None:
        return
    with refusals.taken(("cool",), "cool", "--cool"), slot_setup.open_thermometer() as gauge:
        if not gauge.scopes:
            then = "--cool 60s" if refusals.file is None else 'cool = "60s"'
            then = f"wait for a time instead: {then}"
            raise ConfigError("no GPU tells its temperature here", next=then, code="config.no-thermometer")


MAX_SLOTS_READ = 3  # so many slots of a cell tell what it takes


@dataclass(frozen=True, slots=True)
class SlotCost:
    """Hold what a slot takes: time with everything around the run (s) and energy (J); None where it is not known."""

    time_s: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class CostSum:
    """Hold what slots take together, and how many of them nothing is known of."""

    time_s: float
    energy_j: float
    slots: int
    unknown: int


class CostForecast:
    """Tell what slots of cells take: by their own earlier runs, else by those of like cells."""

    def __init__(self, study: Study, cells: Mapping[str, PlannedCell], *, scope: str | None = None) -> None:
        self._cells, self._scope = cells, scope
        self._known: dict[str, SlotCost] = {}
        for folder in [study.folder, *_list_other_studies(study.folder)]:
            for key in _list_cell_keys(folder):
                if key in cells and key not in self._known:
                    self._look(key, folder / "cells" / key)
        self._like: dict[tuple[str, str], SlotCost] = {}

    def of(self, key: str) -> SlotCost:
        """Return what a slot of a cell takes: as it did before, else as those of the same workload and node type."""
        if key in self._known:
            return self._known[key]
        group = self._group(key)
        if group not in self._like:
            alike = [taken for other, taken in self._known.items() if self._group(other) == group]
            self._like[group] = _average_costs(alike)
        return self._like[group]

    def sum(self, keys: Iterable[str]) -> CostSum:
        """Return what slots of these cells take together."""
        every = [self.of(key) for key in keys]
        unknown = sum(taken.time_s is None for taken in every)
        time_s, energy_j = (sum(getattr(t, name) or 0.0 for t in every) for name in ("time_s", "energy_j"))
        return CostSum(time_s, energy_j, len(every), unknown)

    def _group(self, key: str) -> tuple[str, str]:
        workload = self._cells[key].workload
        return workload.name, workload.node_type

    def _look(self, key: str, cell: Path) -> None:
        found: list[SlotCost] = []
        with contextlib.suppress(OSError):
            for entry in sorted(os.scandir(cell), key=lambda e: e.name):
                if (
                    SLOT.fullmatch(entry.name)
                    and len(found) < MAX_SLOTS_READ
                    and (slot := read_slot(cell / entry.name)).state is State.DONE
                ):
                    taken = self._slot(slot)
                    found += [taken] if taken.time_s is not None else []
        if found:
            self._known[key] = _average_costs(found)

    def _slot(self, slot: Slot) -> SlotCost:
        try:
            time_s = read_json(slot.folder / NOTES).get("took_s")
        except StoreError:
            return SlotCost()
        trial = read_trial(slot)
        energy = None if trial is None else trial.get_energy(self._scope)
        return SlotCost(
            float(time_s) if isinstance(time_s, int | float) else None, None if energy is None else energy.value
        )


def _list_other_studies(study: Path) -> list[Path]:
    """Return the other studies of the same store."""
    with contextlib.suppress(OSError):
        return [study.parent / e.name for e in os.scandir(study.parent) if e.is_dir() and e.name != study.name]
    return []


def _list_cell_keys(study: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in os.scandir(study / "cells")]
    return []


def _average_costs(found: Iterable[SlotCost]) -> SlotCost:
    every = list(found)
    times = [t.time_s for t in every if t.time_s is not None]
    energies = [t.energy_j for t in every if t.energy_j is not None]
    return SlotCost(fmean(times) if times else None, fmean(energies) if energies else None)
