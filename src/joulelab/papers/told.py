"""Gather what a reproduction has to tell: figures, what follows from them in sentences, and where results are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.papers.comparison_tables import allowed, deviation, number, records, reproduced
from joulelab.papers.covered import ENOUGH, Covered
from joulelab.papers.figure_judgement import count, misses, of_kind
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.papers import Paper, PublishedTable
    from joulelab.papers.figure_judgement import Figure, Kind

SCHEMA = 1
WITHIN = "the paper's own ± where it prints one, else 5 %, 2 points of a gain, or one step of the caps"
KINDS: tuple[Kind, ...] = ("calibrated", "predicted", "identity", "finding")
UNEXPLAINED = "no reason is known"
FOLLOWS = "it follows from figures above"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Hold one paper's reproduction: its figures, the twins it ran on, times (s), and files.

    `twins` are titles by name, `changes` what was set by hand; `ran_s` is the time that the runs took in virtual time,
    `took_s` that of this call; `left` are slots without a result. `assumed` names the twins' numbers that were chosen
    knowing what was published.
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
    covered: Covered = field(default_factory=Covered)
    meters: Sequence[str] = ()
    tables: Sequence[PublishedTable] = ()
    folder: str = ""
    files: Sequence[str] = ()
    then: Sequence[tuple[str, str]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data: every figure in full, and what was counted."""
        counts = {kind: count(self.figures, kind) for kind in KINDS}
        return {
            "paper": self.paper.name,
            "title": self.paper.title,
            "twins": dict(self.twins),
            "changes": list(self.changes),
            "assumed": list(self.assumed),
            "seed": self.seed,
            "slots": self.slots,
            "slots_left": self.left,
            "slots_run_now": self.new,
            "virtual_s": self.ran_s,
            "took_s": self.took_s,
            "counts": {k: {"hits": c.hits, "misses": c.misses, "unjudged": c.unjudged} for k, c in counts.items()},
            "within": WITHIN,
            "figures": records(self.paper.name, self.figures),
            "covered": self.covered.to_json(),
            "meters": list(self.meters),
            "tables": [{"name": t.name, "title": t.title, "note": t.note, "records": _plain(t)} for t in self.tables],
            "folder": self.folder,
            "files": list(self.files),
            "next": [command for _, command in self.then],
        }


def ran(told: Told) -> str:
    """Return what ran and how long it took, in virtual and in real time."""
    took = fmt.format_rough_duration(told.took_s)
    runs = f"{told.slots - told.left} of {told.slots} runs" if told.left else f"{told.slots} runs"
    there = told.slots - told.left - told.new
    before = "" if not there else "; all were there already" if not told.new else f"; {there} were there already"
    return f"{runs} of together {fmt.format_duration(told.ran_s)}, in virtual time: {took}, seed {told.seed}{before}"


def assumed(told: Told) -> str:
    """Return which of the twins' numbers were chosen knowing a published figure; empty where none was."""
    many = len(told.assumed)
    if not many:
        return ""
    node = next(iter(told.twins)) if len(told.twins) == 1 else "NODE"
    of = f"{many} number{'' if many == 1 else 's'} of the twin{'' if len(told.twins) == 1 else 's'}"
    chosen = f"{of} {'was' if many == 1 else 'were'} chosen knowing what was published: {', '.join(told.assumed)}"
    return f"{chosen}; joulelab twin --show {node} tells where {'it' if many == 1 else 'each'} is from"


def counted(figures: Sequence[Figure]) -> str:
    """Return how many predictions lie within their tolerance, and what that is."""
    found = count(figures, "predicted")
    if not found.total:
        return "no figure was predicted"
    lacking = f"; {found.unjudged} have no result" if found.unjudged else ""
    share = fmt.format_percent(found.share, signed=False)
    return f"{found.hits} of {found.total} predictions ({share}) lie within {WITHIN}{lacking}"


def findings(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """Return each finding with its numbers, behind yes, NO or -."""
    said = {"hit": "yes", "miss": "NO", "": fmt.NOTHING}
    return [
        (said[f.verdict], f"{f.published or f.label}" + (f": {f.detail}" if f.detail else ""))
        for f in of_kind(figures, "finding")
    ]


def missed(figures: Sequence[Figure]) -> list[str]:
    """Return what misses in sentences, with the reason that the paper's module gives."""
    told = []
    for figure in misses(figures):
        why = figure.note or (FOLLOWS if figure.kind == "identity" else UNEXPLAINED)
        if figure.kind == "finding":
            told.append(f"{figure.published or figure.label}: does not hold. {_sentence(why)}")
            continue
        numbers = f"{reproduced(figure)} instead of {number(figure.published)} {figure.unit}".rstrip()
        off = f"{deviation(figure)}, allowed {allowed(figure.tolerance, figure.unit)}"
        counts = ", not counted" if figure.kind == "identity" else ""
        told.append(f"{figure.label}: {numbers} ({off}{counts}). {_sentence(why)}")
    return told


def notes(figures: Sequence[Figure]) -> list[str]:
    """Return what the paper's module says of figures that do not miss."""
    return [f"{f.label}: {f.note}" for f in figures if f.note and f.verdict != "miss"]


def coverage(found: Covered) -> str:
    """Return in how many slots, and in how many cells, the true energy lies within the stated uncertainty."""
    if not found.slots:
        return "no run tells its true energy"
    width = f"the widest is ± {fmt.format_percent(found.widest, signed=False)}"
    text = f"the true energy lies within the stated uncertainty in {found.inside} of {found.slots} runs"
    farthest = f"the largest error {fmt.format_percent(found.farthest, signed=False)}"
    more = f"; of every scope that was read, in {found.scopes_inside} of {found.scopes}"
    return f"{text} ({width}, {farthest}){_by_cell(found)}{more if found.scopes > found.slots else ''}"


def _by_cell(found: Covered) -> str:
    """Return the coverage by cell; empty where each has one run, which is counted already."""
    if found.cells == found.slots:
        return ""
    text = f"; in at least {100 * ENOUGH:g} % of the runs of {found.cells_inside} of {found.cells} cells"
    name, inside, slots = found.worst
    return text if inside == slots else f"{text}, in {inside} of {slots} of the worst ({name})"


def together(all_told: Sequence[Told]) -> str:
    """Return the count over several papers."""
    return counted([figure for told in all_told for figure in told.figures])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _plain(table: PublishedTable) -> list[dict[str, Any]]:
    return [dict(r) for r in table.records] or [dict(zip(table.heads, row, strict=True)) for row in table.rows]
