"""Read the data of a paper: printed numbers, their tolerances and relations, findings, words.

`published.toml` holds the numbers as printed, `NAME_figures.toml` their use as figures. The module `NAME` computes
numbers from a study's folder; of the published numbers it gets those of the set-up only.
"""

from __future__ import annotations

import fnmatch
import importlib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

import joulelab
from joulelab.core.errors import ConfigError, StoreError
from joulelab.core.text import suggest_name
from joulelab.papers.judgement import (
    NO_TOLERANCE,
    SHARE,
    STEP,
    Figure,
    FigureEntry,
    Tolerance,
    group_figures,
    make_gain_tolerance,
    make_printed_tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from joulelab.report.tables import Table
    from joulelab.study.folder import Study

PAPERS = ("bnl", "horeka", "gdansk")
OPTIONAL_PART = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
FIELD = re.compile(r"\{(\w+)")
Numbers = Mapping[str, Any]


class FindingEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe a conclusion: its words (or their path in published.toml), and its meaning in numbers (`limits`)."""

    id: str
    text: str
    detail: str
    limits: dict[str, float] = {}
    reason: str = ""


class TableWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold title and note of one of the paper's own tables."""

    title: str
    note: str


class PaperEntries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a file `NAME_figures.toml`."""

    title: str
    study: str
    twins: dict[str, str]
    example: str
    figures: list[FigureEntry]
    findings: list[FindingEntry]
    setup: dict[str, str]
    reasons: dict[str, str]
    meters: dict[str, str]
    tables: dict[str, TableWords]
    labels: dict[str, str] = {}
    pictures: dict[str, str] = {}
    hardware: str = ""


class Value(NamedTuple):
    """Hold a number that a study gave, and its expanded uncertainty (k = 2) if it has one."""

    value: float
    expanded: float | None = None


class FindingResult(NamedTuple):
    """Hold whether a finding holds, with the numbers that show it."""

    holds: bool
    numbers: Numbers


class MeterCost(NamedTuple):
    """Hold numbers on what a meter costs, and the key of their sentence in [meters]."""

    key: str
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Hold one of the paper's own tables as people read it, and its records in full, in SI units, for CSV and JSON."""

    name: str
    table: Table
    records: tuple[Numbers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperNumbers:
    """Hold the numbers that a study gave, by the ids of figures and findings; those of cells that did not run lack.

    `remarks` are numbers for the reasons of figures, by their ids.
    """

    figures: Mapping[str, Value] = field(default_factory=dict)
    findings: Mapping[str, FindingResult] = field(default_factory=dict)
    remarks: Mapping[str, Numbers] = field(default_factory=dict)
    meters: Sequence[MeterCost] = ()
    tables: Sequence[PaperTable] = ()


class PaperModule(Protocol):
    """Describe the module of a paper."""

    def compute_numbers(self, study: Study, paper: Paper) -> PaperNumbers:
        """Compute every number of the paper from a study's folder."""

    def draw_pictures(self, study: Study, paper: Paper, folder: Path) -> list[Path]:
        """Draw the paper's figures into a folder, and return the files. Raises MissingDependency."""


@dataclass(frozen=True, slots=True)
class Paper:
    """Hold a paper: its name, its entries, and its table of published.toml."""

    name: str
    entries: PaperEntries
    published: Numbers

    @property
    def module(self) -> PaperModule:
        """Return the module that computes the paper's numbers."""
        module: Any = importlib.import_module(f"joulelab.papers.{self.name}")
        return module  # type: ignore[no-any-return]

    @property
    def setup(self) -> Numbers:
        """Return the numbers of the study's set-up, by path: nothing else goes into results."""
        return {path: value for path, value in list_leaves(self.published) if self.explain_setup(path)}

    @property
    def limits(self) -> Mapping[str, Mapping[str, float]]:
        """Return what the words of each finding mean in numbers."""
        return {entry.id: entry.limits for entry in self.entries.findings}

    def explain_setup(self, path: str) -> str:
        """Return why a published number is no figure; empty if it is one."""
        return next((why for pattern, why in self.entries.setup.items() if fnmatch.fnmatch(path, pattern)), "")

    def make_table(self, name: str, numbers: Numbers = MappingProxyType({})) -> dict[str, Any]:
        """Return title and notes of a table, as arguments of `report.tables.make_table`."""
        words = self.entries.tables[name]
        return {"title": words.title, "notes": (fill_words(words.note, numbers),)}

    def make_figures(
        self, found: PaperNumbers, calibrated: Collection[str] = (), chosen: Collection[str] = ()
    ) -> list[Figure]:
        """Return every figure and finding with the numbers of a study, grouped by what the twins were fitted to."""
        entries = self.entries.figures
        groups = group_figures(
            entries, *({i.removeprefix(f"{self.name}.") for i in ids} for ids in (calibrated, chosen))
        )
        made = []
        for entry in entries:
            group = groups[entry.id]
            is_fitted = group == "calibrated" and entry.kind == "predicted"
            value = found.figures.get(entry.id)
            figure = Figure(
                id=f"{self.name}.{entry.id}",
                label=entry.label,
                published=self._find_number(entry.published),
                reproduced=None if value is None else value.value,
                uncertainty=None if value is None else value.expanded,
                unit=entry.unit,
                tolerance=self._make_tolerance(entry),
                kind="calibrated" if is_fitted else entry.kind,
                group=group,
                note=entry.note,
            )
            made.append(self._explain_miss(figure, entry.reason, found.remarks.get(entry.id, {})))
        return [*made, *(self._make_finding(entry, found.findings.get(entry.id)) for entry in self.entries.findings)]

    def word_meters(self, found: PaperNumbers) -> list[str]:
        """Return the sentences on what the meters cost."""
        return [fill_words(self.entries.meters[cost.key], cost.numbers) for cost in found.meters]

    def _make_finding(self, entry: FindingEntry, result: FindingResult | None) -> Figure:
        text = str(find_leaf(self.published, entry.text) or entry.text)
        figure = Figure(
            id=f"{self.name}.finding.{entry.id}",
            label=text,
            published=text,
            reproduced=None if result is None else result.holds,
            tolerance=NO_TOLERANCE,
            kind="finding",
            detail="" if result is None else fill_words(entry.detail, result.numbers),
        )
        return self._explain_miss(figure, entry.reason, {})

    def _explain_miss(self, figure: Figure, reason: str, numbers: Numbers) -> Figure:
        if figure.verdict != "miss" or not reason:
            return figure
        return figure.add_note(fill_words(self.entries.reasons[reason], numbers))

    def _find_number(self, path: str | list[str]) -> float:
        if isinstance(path, str):
            number: float = find_leaf(self.published, path)
            return number
        return round(math.prod(float(find_leaf(self.published, each)) for each in path), 1)

    def _make_tolerance(self, entry: FigureEntry) -> Tolerance:
        if entry.kind == "outside":
            return NO_TOLERANCE
        if entry.within == "gain":
            return make_gain_tolerance(self._find_number(entry.published))
        known = {"share": SHARE, "step": STEP}
        return known.get(entry.within) or make_printed_tolerance(find_leaf(self.published, entry.within))


def find_paper(name: str) -> Paper:
    """Return a paper by its name. Raises ConfigError that lists the valid ones."""
    if name not in PAPERS:
        raise ConfigError(f"there is no paper {name!r}", where="reproduce", next=suggest_name(name, PAPERS))
    return _read_paper(name)


@cache
def _read_paper(name: str) -> Paper:
    entries = msgspec.convert(_read_toml(f"{name}_figures.toml"), PaperEntries)
    return Paper(name, entries, read_published(name))


def read_published(paper: str) -> dict[str, Any]:
    """Return the table of a paper (`bnl`, `horeka`, `gdansk`) in published.toml."""
    table: dict[str, Any] = _read_toml("published.toml")[paper]
    return table


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("joulelab.papers") / name).read_text("utf-8"))


def list_leaves(table: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List every value with its path, such as `run.0.max_w`."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else None
    if inner is None:
        yield path, table
        return
    for key, value in inner:
        yield from list_leaves(value, f"{path}.{key}" if path else str(key))


def find_leaf(table: Any, path: str) -> Any:
    """Return the value at a path, or None."""
    return dict(list_leaves(table)).get(path)


def fill_words(text: str, numbers: Numbers) -> str:
    """Fill in the fields of a text; a part in square brackets is left out if it has an unknown field."""
    text = OPTIONAL_PART.sub(lambda part: part[1] if set(FIELD.findall(part[1])) <= set(numbers) else "", text)
    return re.sub(r"(?<=\d)%", " %", text.format(**numbers))


def find_study_file(name: str, folders: Sequence[Path] | None = None) -> Path:
    """Return the path of a study file (`gdansk.toml`). Raises StoreError if it is not installed."""
    tried = list_study_folders() if folders is None else folders
    for folder in tried:
        if (folder / name).is_file():
            return folder / name
    why = f"it is not in {' nor in '.join(str(folder) for folder in tried)}"
    raise StoreError(f"the study file {name} is not there", why=why, next="install joulelab again")


def list_study_folders() -> list[Path]:
    """List where study files are: within the installed package, or beside the source tree."""
    package = Path(joulelab.__file__).resolve().parent
    return [package / "studies", package.parents[1] / "studies"]
