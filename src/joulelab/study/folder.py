"""The folder of a study: its plan and its cells. There is no index: cells and slots are folders."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import read_clock_pair
from joulelab.core.errors import ConfigError, NewerSchema, StoreError
from joulelab.core.version import __version__
from joulelab.store.documents import read_json
from joulelab.store.redact import redact_command
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.safe_files import open_file
from joulelab.study.matrix import NodeType, PlannedCell, Workload, check_slots, hash_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.analysis.study_cells import Note
    from joulelab.study.knobs import Value

SCHEMA = 1
FILE = "study.json"
CELL = "cell.json"
NEEDED = ("name", "seed", "created", "command", "settings", "goals", "reference", "work")
VALID_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MIN_REPEATS = 3  # fewer repeats do not show how much runs differ
MAX_REPEATS = 20  # of a cell that is repeated until it is precise, unless another maximum is given


@dataclass(frozen=True, slots=True)
class PrecisionTarget:
    """Hold the wanted half-width of the 95 % interval of a cell's mean energy, as a share of the mean.

    Only the scatter between repeats counts: a common error of the meter (its gain) is not reduced by repeating. `scope`
    chooses whose energy counts, None all that is measured. Cells get at most `max_repeats` repeats.
    """

    share: float
    max_repeats: int = MAX_REPEATS
    scope: str | None = None

    def check_repeats(self, repeats: int) -> None:
        """Refuse a number of first repeats that does not fit. Raises ConfigError."""
        if repeats < MIN_REPEATS:
            what, why = f"{repeats} repeats are too few", "they do not show how much runs differ"
            raise ConfigError(what, where="until", why=why, next=f"repeat {MIN_REPEATS} times or more")
        if self.max_repeats < repeats:
            what = f"the maximum of {self.max_repeats} repeats is below the first {repeats}"
            raise ConfigError(what, where="until", next="raise the maximum, or lower the first repeats")


def parse_precision(text: Any) -> float:
    """Return the share that a text like `1%` means. Raises ConfigError."""
    number = text.strip().removesuffix("%") if isinstance(text, str) and text.strip().endswith("%") else ""
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(f"{text!r} is not a precision", where="until", next="write a percentage: 1%")
    return share


@dataclass(frozen=True, slots=True)
class Settings:
    """Hold how slots are run; none of it is part of a cell's identity. Times in s, temperature in degC.

    Without `meters` the default ones are read. A slot waits at most `cool_limit_s` for `cool_c`, and always `cool_s`.
    `timeout_s` limits the workload. `estimate` adds load x rated power, with `rated_cpu_w` for the CPUs.
    """

    idle_s: float | None = None
    period_s: float | None = None
    meters: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    config: str | None = None
    cool_c: float | None = None
    cool_s: float = 0.0
    cool_limit_s: float = 600.0
    timeout_s: float | None = None
    estimate: bool = False
    rated_cpu_w: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Restore from `to_json`; unknown keys of other versions are left out."""
        known = {f.name for f in fields(cls)}
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold what a study runs, and how it is judged. Raises ConfigError for more slots than a study can hold.

    `nodes` are the node types by name; without any all is local. `work` are patterns; one with a `workload` applies to
    that one only. `timeouts` (s) are the time limits of single workloads. `file` is the study file, None for a sweep.
    With `until` cells get more repeats, at most `repeat_max`, until the interval of their mean energy is this share.
    """

    cells: Sequence[PlannedCell]
    repeats: int = 1
    warmup: int = 0
    settings: Settings = field(default_factory=Settings)
    goals: tuple[str, ...] = ()
    reference: Mapping[str, Any] = field(default_factory=dict)
    work: tuple[Mapping[str, Any], ...] = ()
    scope: str | None = None
    per: str | None = None
    nodes: Mapping[str, NodeType] = field(default_factory=dict)
    timeouts: Mapping[str, float] = field(default_factory=dict)
    file: Path | None = None
    until: float | None = None
    repeat_max: int = MAX_REPEATS

    def __post_init__(self) -> None:
        """Refuse too many slots."""
        check_slots(len(self.cells), self.max_repeats)
        if self.target is not None:
            self.target.check_repeats(self.repeats)

    @property
    def target(self) -> PrecisionTarget | None:
        """Return the precision that cells are repeated for, None if all have the same number of repeats."""
        return None if self.until is None else PrecisionTarget(self.until, self.repeat_max, self.scope)

    @property
    def max_repeats(self) -> int:
        """Return how many repeats a cell can get."""
        return self.repeats if self.until is None else max(self.repeats, self.repeat_max)


class Study:
    """Hold a study's folder and the content of its `study.json`."""

    def __init__(self, folder: Path, data: Mapping[str, Any]) -> None:
        self.folder = folder
        self.data = dict(data)
        self.notes: list[Note] = []

    @property
    def name(self) -> str:
        """Return the study's name."""
        return str(self.data["name"])

    @property
    def seed(self) -> int:
        """Return the seed of the order."""
        return int(self.data["seed"])

    @property
    def settings(self) -> Settings:
        """Return how slots are run."""
        return Settings.from_json(self.data["settings"])

    @property
    def target(self) -> PrecisionTarget | None:
        """Return the precision that cells are repeated for, if any."""
        share = self.data.get("until")
        return None if share is None else PrecisionTarget(share, self.data["repeat_max"], self.data.get("scope"))

    @property
    def nodes(self) -> dict[str, NodeType]:
        """Return the node types by name."""
        return {name: NodeType.from_json(node) for name, node in self.data.get("nodes", {}).items()}

    def get_settings(self, workload: str) -> Settings:
        """Return the settings for slots of a workload, with its own time limit if it has one."""
        limit_s = self.data.get("timeouts", {}).get(workload)
        return self.settings if limit_s is None else replace(self.settings, timeout_s=limit_s)

    def get_slot_folder(self, key: str, repeat: int, kind: str = "r") -> Path:
        """Return the folder of a slot; `kind` is `r` for a repeat and `w` for a warm-up."""
        return self.folder / "cells" / key / f"{kind}{repeat:02d}"

    def read_cells(self) -> dict[str, PlannedCell]:
        """Read all cells of the folder, by key; unreadable ones are left out and listed in `notes`."""
        found = {}
        self.notes.clear()
        for file in sorted((self.folder / "cells").glob(f"*/{CELL}")):
            try:
                found[file.parent.name] = read_cell(file.parent)
            except StoreError as error:
                from joulelab.analysis.study_cells import Note

                self.notes.append(Note("cell-unreadable", texts={"error": str(error)}))
        return found

    def add_cells(self, planned: Iterable[PlannedCell]) -> None:
        """Make the folders of new cells, and write damaged cell files again. Raises StoreError."""
        lacking = [cell for cell in planned if not _has_readable_cell(self.folder / "cells" / cell.key)]
        if lacking:
            with lock_folder(self.folder):
                for cell in lacking:
                    folder = self.folder / "cells" / cell.key
                    _make_folder(folder)
                    write_json_atomic(folder / CELL, {"schema": SCHEMA, **cell.to_json()})

    def remove_leftovers(self) -> None:
        """Remove unfinished files of killed writers: files are written only under the lock, which is held here."""
        with lock_folder(self.folder):
            for pattern in (f".{FILE}.*.tmp", f"cells/*/.{CELL}.*.tmp"):
                for rest in self.folder.glob(pattern):
                    with contextlib.suppress(OSError):
                        rest.unlink()


def read_cell(folder: Path) -> PlannedCell:
    """Read the cell of a folder. Raises StoreError for a damaged file."""
    why: str | None = "it describes another cell"
    try:
        cell = PlannedCell.from_json(read_json(folder / CELL))
        if cell.key == folder.name:
            return cell
    except StoreError as error:
        why = error.why
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    then = "repeat the command: it is written again, finished slots stay"
    raise StoreError(f"{CELL} is damaged", where=str(folder), why=why, next=then)


def _has_readable_cell(folder: Path) -> bool:
    try:
        read_cell(folder)
    except StoreError:
        return False
    return True


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a study's folder."""
    file = folder / ".lock"
    try:
        fd = open_file(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        then = "run it as the user whose study it is, or choose another --studies"
        raise StoreError("the study cannot be locked", where=str(file), why=error.strerror, next=then) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def make_default_name(workload: Workload) -> str:
    """Return a name made of a command's first words and a short hash of the whole."""
    words = []
    for word in redact_command(workload.command):
        stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(word).stem if "{" not in word else "").strip("-").lower()
        if stem and not word.startswith("-"):
            words.append(stem)
    return "-".join([*words[:2], hash_workload(workload)])[:80].strip("-")


def open_study(folder: Path) -> Study:
    """Open an existing study. Raises StoreError, NewerSchema."""
    if not (folder / FILE).is_file():
        raise StoreError("there is no study", where=str(folder), why=f"no {FILE} in it", next="joulelab sweep --help")
    try:
        data = read_json(folder / FILE)
    except StoreError as error:
        if error.why and error.why.startswith("not "):
            raise _make_damage_error(folder, error.why) from error
        raise
    if data.get("schema", 0) > SCHEMA:
        raise NewerSchema("written by a newer joulelab", where=str(folder), next="pip install --upgrade joulelab")
    lacking = [key for key in NEEDED if key not in data]
    if lacking:
        raise _make_damage_error(folder, f"there is no {lacking[0]}")
    return Study(folder, data)


def _make_damage_error(folder: Path, why: str) -> StoreError:
    then = "remove it, then repeat the command: finished slots stay, and a new order is drawn"
    return StoreError(f"{FILE} is damaged", where=str(folder), why=why, next=then)


def check_name(name: str) -> None:
    """Refuse a name that is not valid for a folder inside the studies' folder. Raises ConfigError."""
    if VALID_NAME.fullmatch(name) is None:
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        then = "letters, digits, . _ and -, a letter or digit first, at most 100"
        raise ConfigError(f"{shown!r} cannot name a study", where="--name", next=then)


def join_study(folder: Path, name: str, plan: Plan, seed: int | None) -> Study:
    """Make a study's folder, or continue an existing study; the plan is added to it.

    Raises ConfigError for a study of another command or seed, StoreError.
    """
    check_name(name)
    _make_folder(folder)
    with lock_folder(folder):
        before = open_study(folder).data if (folder / FILE).exists() else None
        data = describe_plan(name, plan, seed, before)
        check_same_study(folder, before, plan, seed)
        if before is None:
            _hide_secrets(folder, plan)
        write_json_atomic(folder / FILE, data)
    study = Study(folder, data)
    if plan.file is None:  # a study file may have thousands: each is made when its first slot runs
        study.add_cells(plan.cells)
    return study


def _hide_secrets(folder: Path, plan: Plan) -> None:
    """Let only the owner read a study whose commands hold a secret: they are stored as typed, so that it can go on."""
    commands = {cell.workload.command for cell in plan.cells}
    if any(redact_command(command) != list(command) for command in commands):
        try:
            folder.chmod(0o700)
        except OSError as error:
            what, then = "its command holds a secret, and the folder is not yours", "choose another --name or --studies"
            raise StoreError(what, where=str(folder), why=error.strerror, next=then) from error


def describe_plan(name: str, plan: Plan, seed: int | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the content of `study.json` for a plan; seed and time of creation stay as `before`."""
    drawn = int.from_bytes(os.urandom(4)) if seed is None else seed
    knobs: dict[str, dict[str, Value]] = {}
    for cell in plan.cells:
        for knob, value in cell.knobs.items():
            knobs.setdefault(knob, {})[value.text] = value
    return {
        "schema": SCHEMA,
        "name": name,
        "seed": before["seed"] if before else drawn,
        "created": before["created"] if before else asdict(read_clock_pair()),
        "joulelab": __version__,
        **(_get_sweep_workload(plan).to_json() if plan.file is None else {"command": []}),
        "file": None if plan.file is None else str(plan.file),
        "nodes": {name: node.to_json() for name, node in plan.nodes.items()},
        "timeouts": dict(plan.timeouts),
        "knobs": {knob: [v.to_json() for v in there.values()] for knob, there in knobs.items()},
        "cells": len(plan.cells),
        "repeats": plan.repeats,
        **({} if plan.until is None else {"until": plan.until, "repeat_max": plan.repeat_max}),
        "warmup": plan.warmup,
        "settings": plan.settings.to_json(),
        "goals": list(plan.goals),
        "reference": dict(plan.reference),
        "work": [dict(w) for w in plan.work],
        "scope": plan.scope,
        "per": plan.per,
    }


def _is_other_study(folder: Path, before: Path, plan: Plan) -> bool:
    """Return whether a study belongs to another file. A file that was moved keeps it if they share a cell."""
    assert plan.file is not None
    try:
        return not before.samefile(plan.file)
    except OSError:
        stored = {cell.parent.name for cell in folder.glob(f"cells/*/{CELL}")}
        return bool(stored) and not any(cell.key in stored for cell in plan.cells)


def _get_sweep_workload(plan: Plan) -> Workload:
    """Return the workload that all cells of a sweep share."""
    return plan.cells[0].workload


def check_same_study(folder: Path, before: Mapping[str, Any] | None, plan: Plan, seed: int | None) -> None:
    """Refuse to continue a study of another command, file or seed. Raises ConfigError."""
    if before is None:
        return
    there = before.get("file")
    if plan.file is not None and not there and any(c.workload == Workload.from_json(before) for c in plan.cells):
        there = str(plan.file)  # the sweep goes on as a file
    if plan.file is not None and (not there or _is_other_study(folder, Path(there), plan)):
        why = f"it is of {there}" if there else f"it is of the command {' '.join(redact_command(before['command']))}"
        free = next(n for n in (f"{folder.name}-{k}" for k in range(2, 10_000)) if not folder.with_name(n).exists())
        then = f'write another name into the file: name = "{free}"'
        raise ConfigError("there is another study of that name", where=str(folder), why=why, next=then)
    if plan.file is None and (there or Workload.from_json(before) != _get_sweep_workload(plan)):
        go_on = f"joulelab study run {shlex.quote(there)}, or " if there else ""
        raise ConfigError(
            "the study there is of another command",
            where=str(folder),
            why=f"it is of {there}" if there else " ".join(redact_command(before["command"])),
            next=f"{go_on}choose another --name",
        )
    if seed is not None and seed != before["seed"]:
        raise ConfigError(f"the study there has the seed {before['seed']}", where=str(folder), next="leave out --seed")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError("cannot make a folder", where=str(folder), why=error.strerror, next="set --studies") from error
