"""Compare two groups of runs by the statistics of a study's cells: means, differences with 95 % intervals, verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_comparison import compare_cells, make_sample, make_samples
from joulelab.analysis.cell_lines import find_cell_lines
from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.marked_phases import DATA_FACT
from joulelab.analysis.study_cells import Cell, Note, Trial, list_quality_figures
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_unlike_scopes, rank_scope
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.comparison import (
    find_common_families,
    lay_out_notes,
    list_devices,
    name_sources,
    note_unlike_runs,
)
from joulelab.report.footprint_text import scale_co2e, word_basis, word_source
from joulelab.report.messages import COMPARISON, word_notes
from joulelab.report.paper_tables import format_bounds, format_chance, format_more_repeats
from joulelab.report.study_csv import write_records
from joulelab.report.tables import DOCUMENT_FORMATS, Column, Table, format_cell, make_table, scale_column
from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine
from joulelab.site.footprint import compute_footprint
from joulelab.study.results import MEASURED, make_trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import CellPair, RepeatSample
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.result import Result
    from joulelab.site.footprint import Site

KNOB = "group"
INTERVAL_NOTE = (
    "A and B: mean ± expanded uncertainty (k = 2) from repeats and meters. Differences: 95 % intervals (Welch; ratios "
    "by Fieller), in which errors of one meter cancel; the verdict is by p at 5 %."
)
TITLE = "A and B side by side"
DIFFER = {"more": "yes", "less": "yes", "no significant difference": "no", "not known": "?"}
ASSUMED = "* One group has a single run, which is assumed to scatter like the other group."
PAIR_FIELDS = (
    *("difference", "difference_interval", "ratio", "ratio_interval", "freedom", "p", "verdict"),
    *("more_repeats", "more_than_100", "by_meters", "assumed"),
)
# Notes on cells of a study that hold for groups of runs, too.
SHARED_NOTES = ("odd-runs", "not-capped", "estimates", "accuracy-unknown", "energy-missing", "no-meter", "unseen")


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Hold one side of a comparison: its letter, the words that chose it, its runs, and how many were left out."""

    letter: str
    words: str
    runs: tuple[Result, ...]
    left_out: int = 0

    @property
    def title(self) -> str:
        """Return the group in one line: `A  batch=256 (3 runs)`."""
        count = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"{self.letter}  {self.words} ({count})"


@dataclass(frozen=True, slots=True)
class GroupFigure:
    """Hold one figure of both groups: means, and B against A. `per` is the work that it is divided by."""

    name: str
    unit: str
    a: Quantity | None
    b: Quantity | None
    pair: CellPair
    per: str | None = None

    @property
    def column(self) -> Column:
        """Return how the figure is written: its unit with a prefix, its digits."""
        if self.unit.startswith(("J", "W")):
            return scale_column(self.name, self.unit, [self.a, self.b])
        if self.unit == "kg":
            factor, unit = scale_co2e([self.a, self.b])
            return Column(self.name, unit, factor=factor)
        return Column(self.name, self.unit, signed=not self.unit, factor=0.01 if self.unit == "%" else 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        sides = {"a": self.a and self.a.to_json(), "b": self.b and self.b.to_json()}
        compared = {name: getattr(self.pair, name) for name in PAIR_FIELDS}
        return {"name": self.name, "unit": self.unit, "per": self.per, **sides, **compared}


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Hold two groups of runs side by side; the verdict is `per` unit of this work if amounts of work differ."""

    a: RunGroup
    b: RunGroup
    figures: tuple[GroupFigure, ...]
    notes: tuple[Note, ...]
    per: str | None = None

    def find_figure(self, name: str) -> GroupFigure | None:
        """Return the figure of this name for the verdict: per unit of work if amounts of work differ."""
        return next((f for f in self.figures if f.pair.figure == name and f.per == self.per), None)

    @property
    def site(self) -> Site | None:
        """Return the site of all runs, None if it is not known or they have different ones."""
        return _find_site((*self.a.runs, *self.b.runs))

    def word_verdict(self) -> str:
        """Return the comparison in one sentence."""
        energy, time = self.find_figure("energy"), self.find_figure("rate" if self.per else "time")
        what = f"energy per {name_one(self.per)}" if self.per else "energy"
        text = "the energies cannot be compared" if energy is None else _word_pair(energy.pair, what, "B uses")
        if time is not None:
            text += "; " + _word_pair(
                time.pair, f"{self.per}/s" if self.per else "time", "it does" if self.per else "it takes"
            )
        return f"{text[0].upper()}{text[1:]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        groups = {
            key: {"chosen": group.words, "runs": [run.run for run in group.runs], "left_out": group.left_out}
            for key, group in (("a", self.a), ("b", self.b))
        }
        twins = {key: sorted({run.twin for run in group.runs}) for key, group in (("a", self.a), ("b", self.b))}
        return {
            **groups,
            "twins": twins,
            "per": self.per,
            "lines": [figure.to_json() for figure in self.figures],
            "verdict": self.word_verdict(),
            "notes": _word_group_notes(self.notes),
            "messages": [{"code": note.code, "numbers": dict(note.numbers)} for note in self.notes],
            "site": None if self.site is None else self.site.to_json(),
        }


def compare_groups(a: RunGroup, b: RunGroup) -> GroupComparison:
    """Compare two groups, one of which has several runs, as two cells of a study."""
    runs = (*a.runs, *b.runs)
    families, cells = _make_cells(a, b)
    summary = summarise_cells(cells, reference={KNOB: a.letter}, ks=())
    kinds = [k for k in summary.cell(b.letter).per_work if k in summary.cell(a.letter).per_work]
    figures = _list_figures(summary, cells, kinds)
    figures[1:1] = _list_footprints(figures[0], _find_site(runs)) if figures and figures[0].name == "energy" else []
    notes = [*_note_groups(a, b, families), *(note for note in summary.notes if note.code in SHARED_NOTES)]
    return GroupComparison(a, b, tuple(figures), tuple(notes), summary.lines[0].per)


def make_group_cells(a: RunGroup, b: RunGroup) -> tuple[list[Cell], str | None]:
    """Return a cell for each group, and the work to compare them per unit of, if amounts of work differ."""
    _, cells = _make_cells(a, b)
    return cells, find_cell_lines(cells, {KNOB: a.letter})[0].per


def list_group_notes(a: RunGroup, b: RunGroup) -> list[str]:
    """List the doubts about comparing two groups, in words."""
    return _word_group_notes(_note_groups(a, b, _make_cells(a, b)[0]))


def find_unlike_groups(a: RunGroup, b: RunGroup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the scopes that some runs measured, and that not all runs of a, or not all of b, measured.

    Both are empty if all runs measured equally many scopes of each family. Runs without an energy do not count.
    """
    sides = [{whole.scopes for run in g.runs if (whole := run.group(MEASURED)) is not None} for g in (a, b)]
    lacking_a, lacking_b = (
        {scope for own in side for other in sides[0] | sides[1] for scope in find_unlike_scopes(own, other)[1]}
        for side in sides
    )
    return tuple(sorted(lacking_a, key=rank_scope)), tuple(sorted(lacking_b, key=rank_scope))


def _make_cells(a: RunGroup, b: RunGroup) -> tuple[tuple[str, ...] | None, list[Cell]]:
    """Return the families that are compared (None: everything measured), and a cell for each group."""
    families = _choose_families((*a.runs, *b.runs))
    return families, [
        Cell(g.letter, {KNOB: g.letter}, tuple(_make_trial(run, families) for run in g.runs)) for g in (a, b)
    ]


def _choose_families(runs: Sequence[Result]) -> tuple[str, ...] | None:
    """Return the families of scopes that all runs have, None if all runs measure the same families."""
    wholes = [run.group(MEASURED) for run in runs]
    measured = {frozenset(map(find_family, whole.scopes)) for whole in wholes if whole is not None}
    if len(measured) < 2:
        return None
    common = [find_common_families(runs[0], run) for run in runs if run.energy is not None]
    return tuple(name for name in common[0] if all(name in names for names in common))


def _make_trial(run: Result, families: Sequence[str] | None) -> Trial:
    found = make_trial(run)
    names = (MEASURED,) if families is None else families
    parts = [found.energies[name] for name in names if name in found.energies]
    return Trial(
        energy=add_quantities(parts) if parts and len(parts) == len(names) else None,
        time_s=found.time_s,
        work=found.work,
        run=run.run,
        meter="; ".join(found.meters.get(name, "") for name in names),
        estimate=found.estimate,
        doubts=found.doubts,
        uncapped=found.uncapped,
        facts=found.facts,
        gpu_load=found.gpu_load,
    )


def _list_figures(summary: StudySummary, cells: Sequence[Cell], kinds: Sequence[str]) -> list[GroupFigure]:
    """List the figures that both groups have: whole runs, per unit of work, rates, load and quality."""
    a, b = (summary.cell(cell.key) for cell in cells)
    whole = [make_samples(cell) for cell in cells]
    found = [
        _make_figure("energy", "J", "energy", (a.energy, b.energy), whole),
        _make_figure("mean power", "W", "power", (a.mean_w, b.mean_w), whole),
        _make_figure("time", "s", "time", (a.time, b.time), whole),
    ]
    for kind in kinds:
        one = name_one(kind)
        divided = [make_samples(cell, kind) for cell in cells]
        sides = a.per_work[kind], b.per_work[kind]
        found.append(_make_figure(f"per {one}", f"J/{one}", "energy", sides, divided, kind))
        if kind in a.rate and kind in b.rate:
            rates = [{"rate": make_sample([t.work[kind] / t.time_s for t in cell.trials], 0.0)} for cell in cells]
            found.append(_make_figure(f"{kind}/s", "", "rate", (a.rate[kind], b.rate[kind]), rates, kind))
    if a.gpu_load is not None and b.gpu_load is not None:
        loads = [[t.gpu_load for t in cell.trials if t.gpu_load is not None] for cell in cells]
        shares = [{"load": make_sample(values, 0.0)} for values in loads]
        found.append(_make_figure("GPU load", "%", "load", (a.gpu_load, b.gpu_load), shares))
    quality = [list_quality_figures(cell.trials) for cell in cells]
    for name in (n for n in quality[0] if n in quality[1]):
        samples = [{name: make_sample(each[name], 0.0)} for each in quality]
        found.append(_make_figure(name, "", name, (a.quality[name], b.quality[name]), samples))
    return [figure for figure in found if figure is not None]


def _find_site(runs: Sequence[Result]) -> Site | None:
    """Return the site of all runs, None if it is not known or they have different ones."""
    sites = {run.site and replace(run.site, is_recorded=False) for run in runs}
    return sites.pop() if len(sites) == 1 else None


def _list_footprints(energy: GroupFigure, site: Site | None) -> list[GroupFigure]:
    """Return cost and CO2e: the figures of the energy in other units."""
    if site is None or energy.a is None or energy.b is None:
        return []
    one = compute_footprint(Quantity(1.0), site)
    sides = [compute_footprint(q, site) for q in (energy.a, energy.b)]
    found = []
    for name, unit, amount, (a, b) in (
        ("cost", site.currency, one.cost, (sides[0].cost, sides[1].cost)),
        ("CO2e", "kg", one.co2e_kg, (sides[0].co2e_kg, sides[1].co2e_kg)),
    ):
        if amount is not None:
            pair, factor = energy.pair, amount.value
            ends = pair.difference_interval and (
                pair.difference_interval[0] * factor,
                pair.difference_interval[1] * factor,
            )
            difference = None if pair.difference is None else pair.difference * factor
            scaled = replace(pair, figure=name, unit=unit, difference=difference, difference_interval=ends)
            found.append(GroupFigure(name, unit, a, b, scaled))
    return found


def _make_figure(
    name: str,
    unit: str,
    figure: str,
    sides: tuple[Quantity | None, Quantity | None],
    samples: Sequence[Mapping[str, RepeatSample]],
    per: str | None = None,
) -> GroupFigure | None:
    """Return a figure with B compared with A, None if one of the groups does not have it."""
    first, second = (each.get(figure) for each in samples)
    if first is None or second is None:
        return None
    (pair,) = compare_cells({"A": first, "B": second}, [("B", "A")], figure)
    return GroupFigure(name, unit, *sides, pair, per)


def _note_groups(a: RunGroup, b: RunGroup, families: Sequence[str] | None) -> list[Note]:
    notes = []
    if families:
        names = {"first": a.letter, "second": b.letter, "families": " + ".join(families)}
        notes.append(Note("points-differ", texts=names))
    sources = [name_sources(group.runs) or "measured" for group in (a, b)]
    if sources[0] != sources[1]:
        texts = {"first": a.letter, "second": b.letter, "first_source": sources[0], "second_source": sources[1]}
        notes.append(Note("simulated-differ", texts=texts))
    data = [" / ".join(sorted({str(run.facts.get(DATA_FACT, "")) for run in g.runs})) for g in (a, b)]
    if data[0] != data[1]:
        texts = {"first": a.letter, "second": b.letter, "first_data": data[0] or "-", "second_data": data[1] or "-"}
        notes.append(Note("data-differ", texts=texts))
    notes += note_unlike_runs((*a.runs, *b.runs))
    left_out = a.left_out + b.left_out
    notes += [Note("runs-left-out", {"runs": left_out})] if left_out else []
    measured = [g for g in (a, b) if any(run.energy is not None for run in g.runs)]
    lacking = [run.run for g in measured for run in g.runs if run.energy is None]
    notes += [Note("runs-without-energy", {"runs": len(lacking)}, {"run": lacking[0]})] if lacking else []
    alone = [g.letter for g in (a, b) if len(g.runs) == 1]
    notes += [Note("one-run-group", texts={"name": letter}) for letter in alone]
    devices = {list_devices(run) for run in (*a.runs, *b.runs)}
    if all(devices):
        notes.append(Note("same-devices.groups") if len(devices) == 1 else Note("different-devices"))
    return notes


def _word_pair(pair: CellPair, name: str, does: str) -> str:
    """Return a verdict in words: `B uses 12.3 % less energy than A (95 %: 11.1 to 13.5 %)`."""
    if pair.ratio is None or pair.verdict == "not known":
        return f"whether the {name} differs is not known"
    ends = [bound - 1 for bound in pair.ratio_interval or ()]
    if pair.verdict == "no significant difference":
        between = f" (95 %: {' to '.join(map(fmt.format_percent, ends))})" if ends else ""
        return f"no significant difference in {name}{between}"
    widths = [fmt.format_percent(end, signed=False) for end in sorted(map(abs, ends))]
    between = f" (95 %: {' to '.join(widths)})" if widths else ""
    size = fmt.format_percent(abs(pair.ratio - 1), signed=False)
    amount = "fewer" if pair.verdict == "less" and name.endswith("/s") else pair.verdict
    return f"{does} {size} {amount} {name}{between}, a significant difference"


def _word_group_notes(notes: Sequence[Note]) -> list[str]:
    own = [note for note in notes if note.code not in SHARED_NOTES]
    return [*word_notes(own, COMPARISON), *word_notes([note for note in notes if note.code in SHARED_NOTES])]


def make_group_table(found: GroupComparison, *, is_printed: bool = False) -> Table:
    """Return the figures of both groups, and B against A; columns that do not fit into a terminal are left out.

    For print, the column of repeats that would settle a difference and p are left out.
    """
    rows = []
    for figure in found.figures:
        column, pair = figure.column, figure.pair
        unit = column.unit.partition("/")[0]  # the work is in the name of the row
        sides = [fmt.mark_figure(format_cell(q, column), unit) for q in (figure.a, figure.b)]
        differ = DIFFER[pair.verdict] + ("*" if pair.assumed else "")
        advice = () if is_printed else (format_more_repeats(pair), format_chance(pair.p))
        rows.append((figure.name, *sides, _format_change(pair), differ, _format_difference(figure, column), *advice))
    heads = ("B - A", *(() if is_printed else ("more\nrepeats", "p")))
    optional = (Column(name, is_optional=True) for name in heads)
    notes = [word_basis(found.site)] if found.site is not None and not found.site.is_empty else []
    notes += [ASSUMED] if any(figure.pair.assumed for figure in found.figures) else []
    return make_table(("", "A", "B", "B / A - 1, %", "differ", *optional), rows, title=TITLE, notes=notes)


def _format_change(pair: CellPair) -> str:
    """Return B / A - 1 in percent with its interval: `-12.3 (-13.5 to -11.1)`."""
    if pair.ratio is None:
        return fmt.NOTHING
    values = (pair.ratio, *(pair.ratio_interval or ()))
    change, *ends = (fmt.format_percent(value - 1).removesuffix(" %") for value in values)
    return f"{change} ({' to '.join(ends)})" if ends else f"{change} ± ?"


def _format_difference(figure: GroupFigure, column: Column) -> str:
    difference, interval = figure.pair.difference, figure.pair.difference_interval
    if difference is None:
        return fmt.NOTHING
    scaled = interval and (interval[0] / column.factor, interval[1] / column.factor)
    return f"{format_bounds(difference / column.factor, scaled)} {column.unit}".rstrip()


def lay_out_groups(found: GroupComparison, *, width: int) -> list[TextBlock]:
    """Return a comparison of two groups for a terminal: verdict, groups, figures, at most three notes."""
    blocks: list[TextBlock] = [TextLine(f"{found.word_verdict()}.", "bold")]
    for group in (found.a, found.b):
        blocks.append(TextLine(fmt.shorten_end(group.title, width)))
        if simulated := name_sources(group.runs):
            blocks.append(TextLine(f"   {simulated}"))
    table = make_group_table(found)
    blocks += [BLANK_LINE, replace(table, title="", notes=()), *map(TextLine, (*table.notes, INTERVAL_NOTE))]
    return [*blocks, BLANK_LINE, lay_out_notes(_word_group_notes(found.notes))]


def write_groups(found: GroupComparison, form: str) -> str:
    """Return a comparison of two groups in a format of DOCUMENT_FORMATS, or as CSV."""
    if form == "csv":
        return _write_group_csv(found)
    document = DOCUMENT_FORMATS[form]
    groups = [f"{group.title}: {', '.join(run.run for run in group.runs)}" for group in (found.a, found.b)]
    simulated = name_sources((*found.a.runs, *found.b.runs))
    notes = [text for text in (simulated, INTERVAL_NOTE.removesuffix(".")) if text]
    table = make_group_table(found, is_printed=True)
    table = replace(table, notes=(*notes, *(note.removesuffix(".") for note in table.notes)))
    verdict = document.escape_text(f"{found.word_verdict()}.")
    return document.write_document(
        [document.write_list(groups), table, verdict, document.write_list(_word_group_notes(found.notes))]
    )


def _write_group_csv(found: GroupComparison) -> str:
    """Return a row per figure: means with expanded uncertainties, difference, ratio, p, verdict; in SI units."""
    rows = []
    for figure in found.figures:
        row: dict[str, Any] = {"figure": figure.name, "unit": "1" if figure.unit == "%" else figure.unit}
        for side, q, group in (("a", figure.a, found.a), ("b", figure.b, found.b)):
            row |= {f"{side}_n": len(group.runs), side: q and q.value, f"{side}_expanded": q and q.expanded}
        for name, value in figure.to_json().items():
            if name.endswith("_interval"):
                row |= {
                    f"{name.removesuffix('_interval')}_{end}": value and value[k]
                    for k, end in enumerate(("low", "high"))
                }
            elif name not in ("name", "unit", "a", "b"):
                row[name] = int(value) if isinstance(value, bool) else value
        if figure.name == "CO2e" and found.site is not None:
            row["intensity"] = word_source(found.site)
        rows.append(row)
    return write_records(rows)
