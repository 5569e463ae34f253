"""Read the part of a run that lists show: quickly, from its head, and without leaving the store."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import math
import os
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.analysis.results_file import load_head, read_head
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.core.quantity import Quantity
from joulelab.report.messages import word_check
from joulelab.report.run_summary import choose_work_kinds
from joulelab.site.footprint import choose_site, compute_footprint, restore_site
from joulelab.store.documents import read_document
from joulelab.store.manifest import compute_fingerprint
from joulelab.store.run_folder import RunState, read_end, read_meta, read_run_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.results_file import ResultHead
    from joulelab.report.watch.watched_run import RunWatch, WatchView
    from joulelab.site.footprint import Footprint, Site

# What is named before the program that does the work.
LAUNCHERS = ("python", "bash", "sh", "env", "srun", "mpirun", "mpiexec", "torchrun", "accelerate", "nice", "time", "uv")
MOST_DEPTH = 4  # folders below a run: hosts, and their marks
MOST_TEXT = 4000  # letters of a run that are searched
MOST_SAID = 300
NOT_YET = "reading"
METER_ERRORS = ("gain", "offset")  # kinds of error that runs on one meter share


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Hold one run of a list; `is_complete` if everything is known, times in s.

    The sources of `energy` (J) are kinds of error: `gain`, `edge`. `power_w` is the power now of a
    live run. `site` is the one that the run recorded, or the one that is set now. `warnings` are names of checks,
    `work` is the kind and the amount of the work that the energy is divided by.

    `status` is one word: live, ok, failed, killed, broken, or reading. `study`, `cell` and `slot` are empty for runs
    that are not of a study.
    """

    id: str
    path: Path
    status: str = NOT_YET
    study: str = ""
    cell: str = ""
    slot: str = ""
    name: str = ""
    command: tuple[str, ...] = ()
    workload: str = ""
    hosts: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    start_utc: str = ""
    duration_s: float | None = None
    energy: Quantity | None = None
    work: tuple[str, float] | None = None
    power_w: float | None = None
    site: Site | None = None
    warnings: tuple[str, ...] = ()
    estimate: bool = False
    outcome: str = ""
    exit_code: int | None = None
    signal: int | None = None
    twin: str = ""
    problem: str = ""
    is_complete: bool = False
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the API, without the folder of the run."""
        left_out = ("path", "is_complete", "text")
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in left_out}
        energy = None if self.energy is None else _describe(self.energy)
        lists = {key: list(plain[key]) for key in ("command", "hosts", "warnings")}
        work, per_work = None, self.energy_per_work
        if self.work is not None and per_work is not None:
            work = {"kind": self.work[0], "amount": self.work[1], "energy_j": _describe(per_work)}
        site, footprint = (part and part.to_json() for part in (self.site, self.footprint))
        return plain | lists | {"energy": energy, "work": work, "site": site, "footprint": footprint}

    @property
    def energy_per_work(self) -> Quantity | None:
        """Return the energy (J) per unit of work, None if one of them is unknown."""
        return None if self.work is None or self.energy is None else self.energy / self.work[1]

    @property
    def footprint(self) -> Footprint | None:
        """Return kWh, cost and CO2e, None where there is no energy."""
        return None if self.energy is None else compute_footprint(self.energy, self.site)


@dataclass(frozen=True, slots=True)
class Place:
    """Say where a run lies, and which slot it is of; `root` is what nothing may lead out of."""

    id: str
    path: Path
    root: Path
    study: str = ""
    cell: str = ""
    slot: str = ""

    def names(self) -> dict[str, Any]:
        """Return what an entry has from here."""
        return {key: getattr(self, key) for key in ("id", "path", "study", "cell", "slot")}


def make_stub(place: Place) -> Entry:
    """Make the entry of a run from its name alone, until it is read."""
    stamp = place.path.name
    start = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}+00:00"
    return Entry(**place.names(), start_utc=start, text=f"{place.id} {place.study}".lower())


def read_entry(place: Place, site: Site | None = None) -> Entry:
    """Read a run from its head; without one from `run.json`, and the entry is not complete.

    `site` is the one that is set now, for runs that recorded none.
    """
    try:
        check_inside(place)
        head = read_head(place.path)
        return _make_entry(place, head.with_site(site)) if head is not None else _make_begun(place, site)
    except Exception as error:  # noqa: BLE001 one run that cannot be read must not hide the others
        return make_broken(place, error)


def load_entry(place: Place, site: Site | None = None) -> Entry:
    """Read a run, analysed if it has no head."""
    try:
        check_inside(place)
        return _make_entry(place, load_head(place.path).with_site(site))
    except Exception as error:  # noqa: BLE001 as above
        return make_broken(place, error)


def read_live_entry(place: Place, known: Entry, watch: RunWatch) -> Entry:
    """Return a live run with the power and energy of now; one that has ended is worked out."""
    try:
        check_inside(place)
        entry = add_live_figures(known, watch.read())
    except Exception as error:  # noqa: BLE001 as above
        return make_broken(place, error)
    return entry if entry.status == "live" else load_entry(place, known.site)


def add_live_figures(entry: Entry, view: WatchView) -> Entry:
    """Return an entry with power now and energy so far: the figures of `joulelab watch`."""
    power_w = view.now_w if math.isfinite(view.now_w) else None
    if view.state != "live":
        return replace(entry, status=view.state)
    if view.energy is None:
        return replace(entry, power_w=power_w)
    energy = _make_energy(view.energy.value, view.energy.expanded, view.energy.budget())
    return replace(entry, power_w=power_w, energy=energy, duration_s=view.energy_s, estimate=view.estimate)


def _make_energy(value: Any, expanded: Any, budget: Mapping[str, Any]) -> Quantity | None:
    """Make an energy (J) whose sources are kinds of error. Raises ValueError, TypeError for bad numbers."""
    joules = _read_number(value)
    if joules is None or expanded is None:
        return None if joules is None else Quantity(joules, known=False)
    return Quantity(joules, {kind: _read_number(u) or 0.0 for kind, u in budget.items() if kind != "unseen"})


def make_broken(place: Place, error: Exception) -> Entry:
    """Make the entry of a run that cannot be read, with the reason."""
    begun = make_stub(place)
    said = word_problem(error, place.root)
    return Entry(
        **place.names(),
        status="broken",
        start_utc=begun.start_utc,
        problem=said,
        is_complete=True,
        text=f"{begun.text} {said.lower()}",
    )


def describe_files(place: Place) -> str | None:
    """Return names, sizes and times of a run's files as one hash; None while it is live, as they may be half written.

    It is empty for a link, which is not followed, and for a folder that cannot be listed.
    """
    if place.path.is_symlink():
        return ""
    with contextlib.suppress(Exception):  # whatever makes a run unreadable, its files may still be listed
        if read_run_state(place.path) is RunState.LIVE:
            return None
    with contextlib.suppress(OSError):
        return compute_fingerprint(place.path)
    return ""


def word_problem(error: Exception, root: Path) -> str:
    """Return the problem in one line, without the folders of this machine."""
    if isinstance(error, JoulelabError):
        text = f"{error.what} ({error.why})" if error.why else error.what
    elif isinstance(error, OSError):
        text = f"{type(error).__name__}: {error.strerror}"
    else:
        text = f"{type(error).__name__}: {error}"
    return text.replace(str(root), "...")[:MOST_SAID]


def check_inside(place: Place) -> None:
    """Refuse a run that has a link which leads out of its store. Raises StoreError, OSError."""
    folders = [(str(place.path), 0)]
    if place.path.is_symlink():
        _check_link(str(place.path), place.root)
    while folders:
        folder, depth = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _check_link(entry.path, place.root)
                elif depth < MOST_DEPTH and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, depth + 1))


def _check_link(path: str, root: Path) -> None:
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise StoreError("a link in it leads out of the store", why="such links are not followed")


def _make_entry(place: Place, head: ResultHead) -> Entry:
    hosts = tuple(dict.fromkeys(str(row["host"]) for row in head.energies if row.get("host")))
    live, failed = head.state == RunState.LIVE, head.failed_check
    energy = head.energy and _make_energy(head.energy["value"], head.energy["expanded"], head.energy["budget"])
    known: dict[str, Any] = {
        "name": head.name or "",
        "command": tuple(head.command),
        "labels": head.labels,
        "hosts": hosts or _read_host(place.path),
    }
    return Entry(
        **place.names(),
        **known,
        status="broken" if failed and not live else _name_status(head.state, head.outcome, head.exit_code),
        problem=word_check(failed).text if failed and not live else "",
        workload=_name_workload(known, head.facts),
        start_utc=_read_time(head.start_utc) or make_stub(place).start_utc,
        duration_s=_read_number(head.duration_s),
        energy=energy,
        work=_choose_work(head.work),
        warnings=tuple(head.warnings),
        site=None if head.site is None else _share_site(head.site),
        estimate=head.estimate,
        outcome=head.outcome,
        exit_code=head.exit_code,
        signal=head.signal,
        twin=head.twin,
        is_complete=not live,
        text=_make_text(place, known, head.facts),
    )


def _choose_work(work: Mapping[str, float]) -> tuple[str, float] | None:
    """Choose the kind of work that the energy is divided by in a list, and its amount."""
    kinds = [kind for kind in choose_work_kinds(work) if (_read_number(work[kind]) or 0.0) > 0]
    return (sys.intern(kinds[0]), work[kinds[0]]) if kinds else None


@functools.lru_cache(maxsize=1000)
def _share_site(site: Site) -> Site:
    """Return an equal site that other runs have already: it is stored once, not once per run."""
    return site


def _make_begun(place: Place, site: Site | None) -> Entry:
    meta, end = read_meta(place.path), read_end(place.path) or {}
    state = read_run_state(place.path, meta)
    known: dict[str, Any] = {
        "name": str(meta.get("name") or ""),
        "command": tuple(map(str, meta["command"])),
        "labels": {str(k): str(v) for k, v in (meta.get("labels") or {}).items()},
        "hosts": (str(meta["host"]),),
    }
    ended: dict[str, Any] = {
        "outcome": str(end.get("outcome") or ""),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
    }
    return Entry(
        **place.names(),
        **known,
        **ended,
        status=_name_status(state, end.get("outcome"), end.get("exit_code")),
        workload=_name_workload(known, {}),
        start_utc=make_stub(place).start_utc,
        site=choose_site(restore_site((meta.get("options") or {}).get("site")), site),
        text=_make_text(place, known, {}),
    )


def _describe(quantity: Quantity) -> dict[str, float | None]:
    return {"value": quantity.value, "expanded": quantity.expanded}


def _read_number(value: Any) -> float | None:
    """Return a number of a file that anybody may have written. Raises ValueError, TypeError for what is none."""
    found = None if value is None else float(value)
    if found is not None and not math.isfinite(found):
        raise ValueError("a number is not finite")
    return found


def _read_time(text: Any) -> str:
    """Return a time of such a file. Raises ValueError, TypeError for what is none."""
    return dt.datetime.fromisoformat(text).astimezone(dt.UTC).isoformat(timespec="milliseconds") if text else ""


def _read_host(run: Path) -> tuple[str, ...]:
    with contextlib.suppress(StoreError):
        host = read_document(f"{run}/run.json").get("host")
        return (str(host),) if host else ()
    return ()


def _name_status(state: str, outcome: object, exit_code: object) -> str:
    if RunState(state) is not RunState.CLOSED:
        return RunState(state).value
    return "ok" if outcome == "exit" and exit_code == 0 else "failed"


def _name_workload(known: dict[str, Any], facts: Mapping[str, Any]) -> str:
    return str(known["labels"].get("workload") or facts.get("workload") or name_program(known["command"]))


def name_program(command: tuple[str, ...]) -> str:
    """Return what a command runs, without interpreters and paths: `train.py`, `joulelab.workloads.resnet`."""
    module = False
    for word in command:
        if module:
            return word
        stem = word.rpartition("/")[2]
        if word == "-m":
            module = True
        elif word.startswith("-") or "=" in word or stem.rstrip("0123456789.") in LAUNCHERS:
            continue
        else:
            return stem
    return command[0].rpartition("/")[2] if command else ""


def _make_text(place: Place, known: dict[str, Any], facts: Mapping[str, Any]) -> str:
    words = [place.id, place.study, known["name"], _name_workload(known, facts), *known["hosts"]]
    words += [f"{key}={value}" for key, value in known["labels"].items()]
    words += [str(facts.get("data", "")), shlex.join(known["command"])]
    return " ".join(words).lower()[:MOST_TEXT]
