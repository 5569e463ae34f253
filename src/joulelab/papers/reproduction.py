"""Reproduce one paper: run its study on its twins, compute its figures, and write files of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.cli.output import shorten_path, show_progress
from joulelab.core.errors import MissingDependency
from joulelab.core.scope import rank_scope
from joulelab.core.version import __version__
from joulelab.papers.node_changes import change_twins
from joulelab.papers.paper import find_paper, find_study_file
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.papers.judgement import Figure
    from joulelab.papers.node_changes import ChangedTwin, NodeChange
    from joulelab.papers.paper import Paper, PaperTable
    from joulelab.study.drive import SlotEvent
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.twin.nodefile import Description

    SlotEnergies = tuple[str, Mapping[str, Quantity], Mapping[str, float]]  # cell, found and true energies by scope

KNOWING = "knowing"  # the word in a twin's sources for a number that was chosen with a published figure in mind
PICTURES = (".svg", ".png", ".pdf")
LOCAL = "local"
JOB = "job"  # the scope of what a cluster accounts for
CODE = ("core", "analysis", "instruments", "store", "study", "twin")  # decides the results of runs on a twin
NEWS_S = 10.0  # time between two lines on the progress of a study
ENOUGH = 0.95  # the share of a cell's slots that an interval of k = 2 shall hold the truth in


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """Hold the options of the command; `out` is the folder of files, None for beside the runs."""

    paper: str
    changes: Sequence[NodeChange]
    seed: int | None
    studies: Path
    out: Path | None
    figures: bool | None
    keep: bool


@dataclass(frozen=True, slots=True)
class TruthCoverage:
    """Count intervals (k = 2) that the true energy lies in: of the scope each slot is judged by, and of every scope.

    `widest` is the largest half-width among the former as a share of the energy, `farthest` the largest error. Of
    `cells`, `cells_inside` have the true energy in the interval in at least ENOUGH of their slots; `worst` is the one
    with the smallest share, with that many of its slots inside and in all.
    """

    slots: int = 0
    inside: int = 0
    scopes: int = 0
    scopes_inside: int = 0
    widest: float = 0.0
    farthest: float = 0.0
    cells: int = 0
    cells_inside: int = 0
    worst: tuple[str, int, int] = ("", 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Hold one paper's reproduction: its figures, the twins it ran on, times (s), and files.

    `twins` are titles by name, `changes` the options --set; `ran_s` is the time that the runs took in virtual time,
    `took_s` that of this call; `left` are slots without a result. `assumed` names the twins' numbers that were chosen
    knowing published figures.
    """

    paper: Paper
    figures: Sequence[Figure]
    twins: Mapping[str, str]
    seed: int
    slots: int
    ran_s: float
    took_s: float
    left: int = 0
    new: int = 0
    changes: Sequence[str] = ()
    assumed: Sequence[str] = ()
    coverage: TruthCoverage = field(default_factory=TruthCoverage)
    meters: Sequence[str] = ()
    tables: Sequence[PaperTable] = ()
    folder: str = ""
    files: Sequence[str] = ()
    next_commands: Sequence[tuple[str, str]] = ()


def reproduce_paper(
    options: ReproduceOptions, notify: Callable[[str], None], *, file: Path | None = None
) -> Reproduction:
    """Run what has not run yet of a paper's study on its twins, and compute its figures.

    `file` is the paper's study file unless given. Raises ConfigError for changes that a twin does not take,
    MissingDependency for pictures that were asked for.
    """
    from joulelab.papers.study_runs import list_slots
    from joulelab.study.study_file import read_study
    from joulelab.twin.virtual import run_twin_study

    paper = find_paper(options.paper)
    file = file or find_study_file(paper.entries.study)
    twins = _read_twins(paper, options.changes)
    if options.figures:
        require_matplotlib()
    found = read_study(file)
    place = options.studies / f"reproduce-{paper.name}-{hash_inputs(file, paper, twins, options.seed)}"
    # The name that `joulelab study` has for a file on a twin: its commands find it there.
    folder, began = place / f"{found.name}-twin", time.monotonic()
    before = sum(slot.state.value == "done" for slot in list_slots(folder))
    given = {node: twins[name] for node, name in paper.entries.twins.items()}
    with show_progress("runs in virtual time") as step:
        study = run_twin_study(
            file,
            {node: twin.describe() if twin.changes else twin.name for node, twin in given.items()},
            folder,
            seed=options.seed,
            tell=make_listener(step, notify),
        )
    slots = len(found.plan.cells) * found.plan.repeats
    with show_progress(f"computing the figures of {paper.name}"):
        described = {name: twin.describe() for name, twin in twins.items()}
        made = _compute_reproduction(options, paper, study, described, slots)
    made = replace(
        made,
        new=slots - made.left - before,
        took_s=time.monotonic() - began,
        next_commands=_list_next_commands(paper, file, study, is_kept=options.keep and not options.changes),
    )
    files = _write_files(options, made, study, notify)
    if not options.keep:
        shutil.rmtree(study.folder, ignore_errors=True)
    return replace(made, files=list_files(files), folder=_describe_folder(study.folder))


def make_listener(step: Callable[[], object], notify: Callable[[str], None]) -> Callable[[SlotEvent], None]:
    """Return a listener to a study that moves a bar, and prints failures at once and the progress now and then."""
    last = time.monotonic()

    def hear_event(event: SlotEvent) -> None:
        nonlocal last
        step()
        if event.why and event.what.startswith("failed"):
            notify(f"a run failed: {event.why} ({shorten_path(event.slot)})")
        if time.monotonic() - last > NEWS_S:
            last = time.monotonic()
            notify(f"{event.finished} of {event.total} runs are done")

    return hear_event


def _compute_reproduction(
    options: ReproduceOptions, paper: Paper, study: Study, twins: Mapping[str, Description], slots: int
) -> Reproduction:
    found = paper.module.compute_numbers(study, paper)
    fitted = {figure for described in twins.values() for figure in described.calibrated}
    chosen = {figure for described in twins.values() for figure in described.chosen}
    runs = list(_list_runs(study))
    return Reproduction(
        paper=paper,
        figures=paper.make_figures(found, fitted, chosen),
        twins={name: described.title for name, described in twins.items()},
        seed=study.seed,
        slots=slots,
        left=slots - len(runs),
        ran_s=sum(time_s for _, time_s in runs),
        took_s=0.0,
        changes=[change.typed for change in options.changes],
        assumed=list_assumed(twins),
        coverage=count_coverage((energies for energies, _ in runs), study.data.get("scope")),
        meters=paper.word_meters(found),
        tables=found.tables,
    )


def list_assumed(twins: Mapping[str, Description]) -> list[str]:
    """List the twins' numbers that were chosen knowing published figures, by their sources."""
    return [
        key if len(twins) == 1 else f"{name}:{key}"
        for name, described in twins.items()
        for key, source in described.sources.items()
        if KNOWING in source.lower()
    ]


def list_node_names(paper: Paper) -> set[str]:
    """List the names by which the nodes of a paper can be changed: node types of its study, and twins."""
    return {*paper.entries.twins, *paper.entries.twins.values()}


def hash_inputs(file: Path, paper: Paper, twins: Mapping[str, ChangedTwin], seed: int | None) -> str:
    """Return a digest of study, twins with their changes, seed, version and code: other results must not be mixed."""
    nodes = {node: [twins[name].text, twins[name].changes] for node, name in paper.entries.twins.items()}
    plain = json.dumps([file.read_text("utf-8"), nodes, seed, __version__], sort_keys=True, default=str)
    digest = hashlib.sha256(plain.encode())
    package = Path(str(resources.files("joulelab")))
    for part in CODE:
        for source in sorted((package / part).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def _read_twins(paper: Paper, changes: Sequence[NodeChange]) -> dict[str, ChangedTwin]:
    nodes, types = resources.files("joulelab.twin") / "nodes", paper.entries.twins
    texts = {name: (nodes / f"{name}.toml").read_text("utf-8") for name in dict.fromkeys(types.values())}
    return change_twins(texts, types, changes)


def require_matplotlib() -> None:
    """Raise MissingDependency where pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        install = 'pip install "joulelab[figures]"'
        raise MissingDependency("pictures need matplotlib, which is not installed", next=install)


# How often the true energy lies within the stated uncertainty


def _list_runs(study: Study) -> Iterator[tuple[SlotEnergies, float]]:
    """List cell, found and true energies (J, by scope) of each slot that is done, and its time (s)."""
    from joulelab.papers.study_runs import list_finished
    from joulelab.study.results import load_trial
    from joulelab.twin.virtual import read_description, read_truth

    # The point of each node type that a cluster accounts for by job, where one does.
    points = {
        name: mounted.point
        for name, node in study.nodes.items()
        for mounted in read_description(node).meters.values()
        if mounted.family == "slurm"
    }
    for cell, slot, _ in list_finished(study):
        trial, true = load_trial(slot), read_truth(slot.folder)["energy_j"]
        point = points.get(cell.workload.node_type, "")
        true |= {JOB: true[point]} if point in true else {}
        yield (_name_cell(cell), trial.energies, true), trial.time_s


def _name_cell(cell: PlannedCell) -> str:
    """Return a name that no other cell of the study has: workload, kind of node, knobs."""
    node = "" if cell.workload.node_type == LOCAL else cell.workload.node_type
    parts = [cell.workload.name, node, cell.label if cell.knobs else ""]
    return ", ".join(part for part in parts if part) or cell.key


def count_coverage(slots: Iterable[SlotEnergies], scope: str | None = None) -> TruthCoverage:
    """Compare the energies (J) of slots with the true ones, both by scope, behind the name of the slot's cell.

    Each slot is judged by `scope`; where that is not known, by the scope that is nearest to the wall. Scopes without a
    true energy or with an unknown accuracy do not count.
    """
    found = TruthCoverage()
    cells: dict[str, list[bool]] = defaultdict(list)
    for cell, energies, true in slots:
        known = {name: q for name, q in energies.items() if name in true and q.expanded is not None}
        if not known:
            continue
        inside = {name: abs(q.value - true[name]) <= (q.expanded or 0.0) for name, q in known.items()}
        judged = scope if scope in known else max(known, key=rank_scope)
        size = true[judged] or math.inf
        cells[cell].append(inside[judged])
        found = TruthCoverage(
            slots=found.slots + 1,
            inside=found.inside + inside[judged],
            scopes=found.scopes + len(known),
            scopes_inside=found.scopes_inside + sum(inside.values()),
            widest=max(found.widest, (known[judged].expanded or 0.0) / size),
            farthest=max(found.farthest, abs(known[judged].value - true[judged]) / size),
        )
    if not cells:
        return found
    # By cell too, so that a few short runs are not hidden by many long ones.
    shares = {cell: sum(held) / len(held) for cell, held in cells.items()}
    name = min(shares, key=lambda cell: shares[cell])
    enough = sum(share >= ENOUGH for share in shares.values())
    return replace(found, cells=len(cells), cells_inside=enough, worst=(name, sum(cells[name]), len(cells[name])))


# Files


def _write_files(
    options: ReproduceOptions, made: Reproduction, study: Study, notify: Callable[[str], None]
) -> list[Path]:
    """Write figures as CSV and Markdown, the paper's tables, and its pictures; return the files."""
    from joulelab.papers.reproduction_text import write_document, write_figures_csv
    from joulelab.report.study_csv import write_records

    folder = study.folder.parent if options.out is None else options.out.absolute() / made.paper.name
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"figures.csv": write_figures_csv([made])}
    texts |= {f"{table.name}.csv": write_records(table.records) for table in made.tables}
    texts["figures.md"] = write_document(made, "markdown")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    files = [folder / name for name in texts]
    if options.figures is False:
        return files
    try:
        require_matplotlib()
        return [*files, *made.paper.module.draw_pictures(study, made.paper, folder)]
    except MissingDependency as error:
        notify(str(error))
        return files


def list_files(files: Sequence[Path]) -> list[str]:
    """List the names of files by folder: `here/: a.csv, b.csv`; pictures that come in several forms once."""
    folders: dict[Path, list[str]] = {}
    for file in files:
        names = folders.setdefault(file.parent, [])
        forms = [name for name in names if name.rpartition(".")[0] == file.stem]
        if forms and file.suffix in PICTURES:
            names[names.index(forms[0])] += f" {file.suffix}"
        else:
            names.append(file.name)
    return [f"{shorten_path(folder)}/: {', '.join(names)}" for folder, names in folders.items()]


def _describe_folder(folder: Path) -> str:
    """Return where the runs are, and how much room they take."""
    if not folder.exists():
        return "the runs were not kept"
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{shorten_path(folder)} ({fmt.format_bytes(taken)}; --no-keep would remove the runs)"


def _list_next_commands(paper: Paper, file: Path, study: Study, *, is_kept: bool) -> list[tuple[str, str]]:
    """List commands to type next; those of the study are of the twin as it is, if anything is kept."""
    types, path = paper.entries.twins, shorten_path(file)
    twins = [f"--twin {name}" if len(types) == 1 else f"--twin {node}={name}" for node, name in types.items()]
    report = f"joulelab study report {path} {' '.join(twins)} --studies {shorten_path(study.folder.parent)}"
    return [
        *([("every cell", report)] if is_kept else []),
        ("other physics", f"joulelab reproduce {paper.name} --set {paper.entries.example}"),
        ("real hardware", f"joulelab study run {path}"),
    ]
