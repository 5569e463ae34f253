"""Reproduce one paper: its study on its twins, its figures, what the twins know, and the files of it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import time
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from joulelab.cli.output import show_progress
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.core.version import __version__
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.progress import Progress

    from joulelab.core.quantity import Quantity
    from joulelab.papers import Paper
    from joulelab.papers.changes import Change, Twin
    from joulelab.papers.told import Told
    from joulelab.study.drive import SlotEvent as News
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot
    from joulelab.twin.nodefile import Description

KNOWING = "knowing"  # the word in a twin's sources for a number that was chosen with a published figure in mind
PICTURES = (".svg", ".png", ".pdf")
DONE = "done"
LOCAL = "local"
JOB = "job"  # the scope of what a cluster accounts for
CODE = ("analysis", "meters", "store", "study", "twins")  # what decides what runs on a twin give
LINE_S = 10.0  # so often a line says how far a study is, where there is no terminal


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold what was asked for; `out` is where files go, None for beside the runs."""

    paper: str
    changes: Sequence[Change]
    seed: int | None
    studies: Path
    out: Path | None
    figures: bool | None
    keep: bool


def reproduce(
    asked: Asked, tell: Callable[[str], None], *, paper: Paper | None = None, file: Path | None = None
) -> Told:
    """Run what has not run yet of a paper's study on its twins, and gather what there is to tell.

    `paper` and `file` are those of the name that was asked for unless given. Raises ConfigError for changes that a twin
    does not take, MissingDependency for pictures that were asked for.
    """
    from joulelab.papers import find
    from joulelab.papers.files import study_file
    from joulelab.study.study_file import read_study
    from joulelab.twin.virtual import run_twin_study

    paper = paper or find(asked.paper)
    file = file or study_file(paper.file)
    twins = _twins(paper, asked.changes)
    if asked.figures:
        need_matplotlib()
    place = asked.studies / f"reproduce-{paper.name}-{digest(file, paper, twins, asked.seed)}"
    # The name that `joulelab study` has for a file on a twin: its commands find it there.
    folder = place / f"{read_study(file).name}-twin"
    before, began = _done(folder), time.monotonic()
    given = {node: twins[name].given() for node, name in paper.twins.items()}
    with Advancing(sys.stderr, tell) as news:
        study = run_twin_study(file, given, folder, seed=asked.seed, tell=news)
    with show_progress(f"working out the figures of {paper.name}"):
        told = _told(asked, paper, study, twins={name: twin.description() for name, twin in twins.items()}, file=file)
    there = told.slots - told.left
    told = replace(told, new=there - before, took_s=time.monotonic() - began)
    files = _write(asked, told, study, tell)
    if not asked.keep:
        shutil.rmtree(study.folder, ignore_errors=True)
    return replace(told, files=listed(files), folder=_kept(study.folder))


def listed(files: Sequence[Path]) -> list[str]:
    """Return the names of files by folder: `here/: a.csv, b.csv`; pictures that come in several forms once."""
    folders: dict[Path, list[str]] = {}
    for file in files:
        there = folders.setdefault(file.parent, [])
        forms = [name for name in there if name.rpartition(".")[0] == file.stem]
        if forms and file.suffix in PICTURES:
            there[there.index(forms[0])] += f" {file.suffix}"
        else:
            there.append(file.name)
    return [f"{shown(folder)}/: {', '.join(names)}" for folder, names in folders.items()]


def _kept(folder: Path) -> str:
    """Return where the runs are, and how much room they take."""
    if not folder.exists():
        return "the runs were not kept"
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{shown(folder)} ({fmt.format_bytes(taken)}; --no-keep would remove the runs)"


class Advancing:
    """Show how far a study is: a bar on a terminal, else a line now and then; and what failed."""

    def __init__(self, file: TextIO, tell: Callable[[str], None]) -> None:
        self._file, self._tell = file, tell
        self._lined = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Begin the bar."""
        if self._file.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(file=self._file), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("runs in virtual time", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, news: News) -> None:
        """Take one piece of news."""
        if news.why and news.what.startswith("failed"):
            self._tell(f"a run failed: {news.why} ({shown(news.slot)})")
        if self._bar is not None:
            self._bar.update(self._task, completed=news.finished, total=news.total)
        elif time.monotonic() - self._lined > LINE_S:
            self._lined = time.monotonic()
            self._tell(f"{news.finished} of {news.total} runs are done")


def _told(asked: Asked, paper: Paper, study: Study, *, twins: Mapping[str, Description], file: Path) -> Told:
    """Work out figures, and how often the true energy lies within the uncertainty."""
    from joulelab.papers.covered import covered
    from joulelab.papers.figure_judgement import marked
    from joulelab.papers.published import published
    from joulelab.papers.told import Told

    calibrated = {each for described in twins.values() for each in described.calibrated}
    runs = list(_trials(study))
    planned = _planned(file)
    return Told(
        paper=paper,
        figures=marked(paper.figures(study, published(paper.name)), calibrated),
        twins={name: described.title for name, described in twins.items()},
        seed=study.seed,
        slots=planned,
        left=planned - len(runs),
        ran_s=sum(run.time_s for run in runs),
        took_s=0.0,
        changes=[change.typed for change in asked.changes],
        assumed=chosen_knowing(twins),
        covered=covered([(run.cell, run.energies, run.true) for run in runs], study.data.get("scope")),
        meters=paper.meters(study),
        tables=paper.tables(study),
        then=_then(paper, file, study, shows=asked.keep and not asked.changes),
    )


def chosen_knowing(twins: Mapping[str, Description]) -> list[str]:
    """Return the twins' numbers that were chosen knowing what was published, as their files say; by twin if several."""
    return [
        key if len(twins) == 1 else f"{name}:{key}"
        for name, described in twins.items()
        for key, source in described.sources.items()
        if KNOWING in source.lower()
    ]


def shown(path: Path) -> str:
    """Return a path as it is shortest to type from here."""
    from joulelab.cli.output import shorten_path

    return str(shorten_path(path))


def node_names(paper: str) -> set[str]:
    """Return by which names the nodes of a paper can be changed: node types of its study, and twins."""
    from joulelab.papers import find

    twins = find(paper).twins
    return {*twins, *twins.values()}


def check_nodes(papers: Sequence[str], changes: Sequence[Change]) -> None:
    """Refuse a change of a node that no paper has. Raises ConfigError with the nearest."""
    if not any(change.node for change in changes):
        return
    from joulelab.core.text import suggest_name

    known = {name for paper in papers for name in node_names(paper)}
    for change in changes:
        if change.node and change.node not in known:
            raise ConfigError(f"there is no node {change.node!r}", where="--set", next=suggest_name(change.node, known))


def digest(file: Path, paper: Paper, twins: Mapping[str, Twin], seed: int | None) -> str:
    """Return what tells apart results that must not be mixed: study, twins with their changes, seed, version, code."""
    nodes = {node: [twins[name].text, twins[name].changes] for node, name in paper.twins.items()}
    plain = json.dumps([file.read_text("utf-8"), nodes, seed, __version__], sort_keys=True, default=str)
    made = hashlib.sha256(plain.encode())
    package = Path(str(resources.files("joulelab")))
    for part in CODE:
        for source in sorted((package / part).rglob("*.py")):
            made.update(source.read_bytes())
    return made.hexdigest()[:8]


def need_matplotlib() -> None:
    """Raise MissingDependency where pictures cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        install = 'pip install "joulelab[figures]"'
        raise MissingDependency("pictures need matplotlib, which is not installed", next=install)


def _twins(paper: Paper, changes: Sequence[Change]) -> dict[str, Twin]:
    from joulelab.papers.changes import changed

    nodes = resources.files("joulelab.twin") / "nodes"
    names = dict.fromkeys(paper.twins.values())
    return changed({name: (nodes / f"{name}.toml").read_text("utf-8") for name in names}, paper.twins, changes)


def _slots(folder: Path) -> Iterator[Slot]:
    """Return every repeat that a study's folder has."""
    from joulelab.study.slots import list_claimed_slots, read_slot

    for cell in sorted((folder / "cells").glob("*/")):
        yield from (read_slot(slot) for slot in list_claimed_slots(cell) if slot.name.startswith("r"))


def _done(folder: Path) -> int:
    return sum(slot.state.value == DONE for slot in _slots(folder))


def _planned(file: Path) -> int:
    from joulelab.study.study_file import read_study

    plan = read_study(file).plan
    return len(plan.cells) * plan.repeats


class _Run(NamedTuple):
    """Hold a slot's cell in words, its energies as they were found and as they are (J, by scope), and its time (s)."""

    cell: str
    energies: Mapping[str, Quantity]
    true: Mapping[str, float]
    time_s: float


def _trials(study: Study) -> Iterator[_Run]:
    """Return what each slot that is done has found, and what is true."""
    from joulelab.study.results import load_trial
    from joulelab.twin.virtual import read_truth

    points, cells = _accounted(study), study.cells()
    for slot in _slots(study.folder):
        if slot.state.value != DONE:
            continue
        trial, true = load_trial(slot), read_truth(slot.folder)["energy_j"]
        key = slot.folder.parent.name
        cell = cells.get(key)
        point = "" if cell is None else points.get(cell.workload.node_type, "")
        true |= {JOB: true[point]} if point in true else {}
        yield _Run(key if cell is None else _worded(cell), trial.energies, true, trial.time_s)


def _worded(cell: PlannedCell) -> str:
    """Return a cell in words, which no other cell of its study has: workload, kind of node, knobs."""
    of = cell.workload
    parts = [of.name, "" if of.node_type == LOCAL else of.node_type, cell.label if cell.knobs else ""]
    return ", ".join(part for part in parts if part) or cell.key


def _accounted(study: Study) -> dict[str, str]:
    """Return the point of each node type that a cluster accounts for by job, where one does."""
    from joulelab.twin.virtual import read_description

    return {
        name: mounted.point
        for name, node in study.nodes.items()
        for mounted in read_description(node).meters.values()
        if mounted.family == "slurm"
    }


def _then(paper: Paper, file: Path, study: Study, *, shows: bool) -> list[tuple[str, str]]:
    """Return what to type next; what the study's commands show, if anything is kept, is of the twin as it is."""
    twins = "".join(
        f" --twin {name}" if len(paper.twins) == 1 else f" --twin {node}={name}" for node, name in paper.twins.items()
    )
    report = f"joulelab study report {shown(file)}{twins} --studies {shown(study.folder.parent)}"
    return [
        *([("every cell", report)] if shows else []),
        ("other physics", f"joulelab reproduce {paper.name} --set {paper.example}"),
        ("real hardware", f"joulelab study run {shown(file)}"),
    ]


def _write(asked: Asked, told: Told, study: Study, tell: Callable[[str], None]) -> list[Path]:
    """Write figures as CSV and Markdown, the paper's tables, and its pictures; return what was written."""
    from joulelab.papers.comparison_tables import figures_csv, table_csv
    from joulelab.papers.reproduction_text import told_document

    folder = study.folder.parent if asked.out is None else asked.out.absolute() / told.paper.name
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {"figures.csv": figures_csv([(told.paper.name, told.figures)])}
    made |= {f"{table.name}.csv": table_csv(table) for table in told.tables}
    made["figures.md"] = told_document(told, "markdown")
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    written = [folder / name for name in made]
    if asked.figures is False:
        return written
    try:
        need_matplotlib()
        pictures = told.paper.pictures(study, folder)
    except MissingDependency as error:
        tell(str(error))
        return written
    return [*written, *pictures]
