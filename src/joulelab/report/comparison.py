"""Compare runs: compute ratios with their uncertainty, in which common errors of meters cancel, and word a verdict."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.marked_phases import list_figure_kinds
from joulelab.analysis.result import GroupResult
from joulelab.analysis.study_cells import Note
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.footprint_text import format_cost, scale_co2e, word_basis, word_source
from joulelab.report.messages import COMPARISON, set_command_apart, word_notes
from joulelab.report.run_rows import list_phase_rows
from joulelab.report.run_summary import MOST_NOTES, SHARED, name_ending
from joulelab.report.tables import (
    DOCUMENT_FORMATS,
    GAP,
    Column,
    FilledColumn,
    MarkedCell,
    Table,
    TableCell,
    TableRow,
    make_record_table,
    make_table,
    scale_column,
    write_csv,
)
from joulelab.report.terminal import BLANK_LINE, FactLines, TextBlock, TextLine, list_facts
from joulelab.site.footprint import compute_footprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Fact, Result
    from joulelab.report.run_rows import PhaseRow
    from joulelab.site.footprint import Site

ONE_RUN_EACH = Note("one-run-each")
MOST_OF_NAME, MOST_OF_TITLE = 24, 60  # letters of the name of a fact, and of a run in a title
LEAST_OF_FACT = 24  # letters
OWN_LABELS = ("cell", "slot")  # the place of a run in its study: its knobs have the same
LIMIT = Column("", align="left", is_optional=True)  # the largest possible difference, where it is not resolved
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
METER_ERRORS = ("gain:", "offset:")  # the same in two runs on one device
COST, CO2E = "cost", "CO2e"
INTENSITY_ERROR = "intensity:"  # the same in two runs at one site
UNFINISHED = ("not-started", "interrupted", "killed", "live")  # outcomes
DERIVED = ("rest ", "supply loss", "net of idle")  # differences of energies


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """Hold one line of a comparison; `ratio` is B / A, None where it cannot be formed.

    `estimates` tells for A and for B whether it is an estimate.
    """

    name: str
    unit: str
    a: Quantity
    b: Quantity
    ratio: Quantity | None
    estimates: tuple[bool, bool] = (False, False)

    @property
    def estimate(self) -> bool:
        """Return whether A or B is an estimate, and so the ratio."""
        return any(self.estimates)

    @property
    def is_different(self) -> bool | None:
        """Return whether A and B differ by more than the uncertainty, None if the accuracy is unknown."""
        if self.ratio is None or self.ratio.expanded is None:
            return None
        return abs(self.ratio.value - 1) > self.ratio.expanded

    @property
    def is_resolved(self) -> bool:
        """Return whether A and B are larger than their intervals."""
        return self.a.is_resolved and self.b.is_resolved

    def word_limit(self) -> str:
        """Return the largest difference within the interval: `at most 1.5 %`; empty if it is unknown."""
        if self.ratio is None or self.ratio.expanded is None or not self.is_resolved:
            return ""
        largest = abs(self.ratio.value - 1) + self.ratio.expanded
        return f"at most {fmt.format_percent(largest, signed=False)}"

    def word_verdict(self) -> str:
        """Return the verdict in words."""
        if self.ratio is None:
            return "cannot be compared"
        if self.is_different is None:
            return f"{_size_change(self.ratio.value)}, accuracy unknown"
        return _size_change(self.ratio.value) if self.is_different else "no significant difference"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        ratio = None if self.ratio is None else self.ratio.to_json()
        plain = {"name": self.name, "unit": self.unit, "a": self.a.to_json(), "b": self.b.to_json(), "ratio": ratio}
        return plain | {"estimate": self.estimate, "differ": self.is_different, "verdict": self.word_verdict()}


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Hold two runs side by side; gain errors of meters cancel between the `same_devices`."""

    a: Result
    b: Result
    lines: tuple[ComparedFigure, ...]
    same_devices: bool

    def find_figure(self, name: str) -> ComparedFigure | None:
        """Return the compared figure of this name, None if the comparison does not have it."""
        return next((each for each in self.lines if each.name == name), None)

    def word_verdict(self) -> str:
        """Return the comparison in one sentence."""
        energy, time = self.find_figure("energy"), self.find_figure("time")
        took = ""
        if time is not None and time.ratio is not None and abs(time.ratio.value - 1) >= 0.0005:
            share = time.ratio.value - 1
            took = f"; it takes {fmt.format_percent(abs(share), signed=False)} {'longer' if share > 0 else 'less time'}"
        if energy is None or energy.ratio is None or not energy.is_resolved:
            return f"The energies cannot be compared: {self._explain_missing()}{took}"
        share, expanded = energy.ratio.value - 1, energy.ratio.expanded
        mark = " (an estimate)" if energy.estimate else ""
        if expanded is None:
            size = fmt.format_percent(abs(share), signed=False)
            return f"B reads {size} {_name_direction(share)}{mark}, but the accuracy is unknown, so no interval{took}"
        if not energy.is_different:
            return f"No significant difference in energy: {energy.word_limit()}{mark}{took}"
        return f"B uses {_size_interval(share, expanded)}{mark}{took}"

    @property
    def facts(self) -> dict[str, tuple[Fact | None, Fact | None]]:
        """Return the facts that the workloads reported, the data first; None if a run did not report a fact."""
        names = dict.fromkeys([*(n for n in ("data",) if n in {**self.a.facts, **self.b.facts}), *self.a.facts])
        return {name: (self.a.facts.get(name), self.b.facts.get(name)) for name in {**names, **self.b.facts}}

    @property
    def twins(self) -> dict[str, str]:
        """Return the twins that A and B ran on in virtual time, empty for runs that were measured."""
        return {"A": self.a.twin, "B": self.b.twin}

    def list_doubts(self, first: str = "A", second: str = "B") -> list[Note]:
        """List reasons why the two runs may not be comparable; `first` and `second` are the names of the runs."""
        notes, names = [], {"first": first, "second": second}
        wholes = self.a.group("measured"), self.b.group("measured")
        if (
            wholes[0]
            and wholes[1]
            and _list_families(wholes[0]) != _list_families(wholes[1])
            and find_common_families(self.a, self.b)
        ):
            families = " + ".join(find_common_families(self.a, self.b))
            notes.append(Note("points-differ", texts={**names, "families": families}))
        if self.a.twin != self.b.twin:
            sources = [_name_source(run) for run in (self.a, self.b)]
            texts = {**names, "first_source": sources[0], "second_source": sources[1]}
            notes.append(Note("simulated-differ", texts=texts))
        data = self.facts.get("data", (None, None))
        if data[0] != data[1]:
            shown = ["unknown" if d is None else fmt.format_fact(d) for d in data]
            notes.append(Note("data-differ", texts={**names, "first_data": shown[0], "second_data": shown[1]}))
        notes += note_unlike_runs((self.a, self.b))
        for label, run in ((first, self.a), (second, self.b)):
            failed = [c for c in run.checks if c.status == "failed"]
            notes += [Note("check-failed", texts={"label": label, "name": c.name, "check": c}) for c in failed[:3]]
        return notes

    def list_notes(self) -> list[Note]:
        """List the notes to be shown below the figures, the most important first."""
        notes = self.list_doubts()
        energy = self.find_figure("energy")
        if energy is not None and energy.ratio is not None and "unseen" in energy.ratio.budget():
            share = 2 * energy.ratio.with_bound().u / energy.ratio.value
            notes.append(Note("in-step", {"share": share}))
        notes.append(ONE_RUN_EACH)
        if any(line.ratio is not None and line.unit == "J" for line in self.lines):
            notes.append(Note("same-devices" if self.same_devices else "different-devices"))
        return notes

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "a": self.a.run,
            "b": self.b.run,
            "twin": {"a": self.a.twin, "b": self.b.twin},
            "same_devices": self.same_devices,
            "lines": [line.to_json() for line in self.lines],
            "verdict": self.word_verdict(),
            "notes": word_notes(self.list_notes(), COMPARISON),
            "messages": [{"code": note.code, "numbers": dict(note.numbers)} for note in self.list_notes()],
            "facts": {name: {"a": a, "b": b} for name, (a, b) in self.facts.items()},
            "site": {"a": self.a.site and self.a.site.to_json(), "b": self.b.site and self.b.site.to_json()},
        }

    def _explain_missing(self) -> str:
        without = [label for label, run in (("A", self.a), ("B", self.b)) if run.energy is None]
        if not without and not self.find_figure("energy"):
            return "nothing was measured in both"
        damaged = [label for label, run in (("A", self.a), ("B", self.b)) if run.is_damaged and label in without]
        if damaged:
            return f"files of {' and '.join(damaged)} cannot be read or are missing"
        if without:
            return f"no power meter was read in {' and '.join(without)}"
        energy = self.find_figure("energy")
        pairs = () if energy is None else (("A", energy.a), ("B", energy.b))
        unresolved = [f"{label} is {fmt.word_unresolved(q)}" for label, q in pairs if not q.is_resolved]
        return " and ".join(unresolved) or "one of them is zero"


def is_success(run: Result) -> bool:
    """Return whether a run has ended as it should."""
    return run.state != "live" and run.outcome not in UNFINISHED and run.signal is None and not run.exit_code


def note_unlike_runs(runs: Sequence[Result]) -> list[Note]:
    """Note runs that did not succeed or shared their node, and kinds of work that not all runs report."""
    failed = tuple(f"{run.run} ({name_ending(run)})" for run in runs if not is_success(run))
    notes = [Note("runs-not-succeeded", texts={"names": failed})] if failed else []
    shared = tuple(run.run for run in runs if any(check.code.startswith(SHARED) for check in run.checks))
    notes += [Note("runs-shared", texts={"names": shared, "run": shared[0]})] if shared else []
    kinds = [list_figure_kinds(run.work) for run in runs]
    lacking = dict.fromkeys(kind for own in kinds for kind in own if not all(kind in each for each in kinds))
    return [*notes, Note("work-lacking", texts={"kinds": " and ".join(lacking)})] if lacking else notes


def compare_runs(a: Result, b: Result) -> RunComparison:
    """Compare the figures that two results have in common."""
    same = list_devices(a) == list_devices(b) and bool(list_devices(a))
    keep = METER_ERRORS if same else ()
    lines = []
    whole_a, whole_b = _choose_wholes(a, b)
    estimates = bool(whole_a and whole_a.estimate), bool(whole_b and whole_b.estimate)
    if whole_a and whole_b:
        lines.append(compare_quantities("energy", "J", whole_a.energy, whole_b.energy, keep, estimates))
    for group in a.groups:
        other = b.group(group.name)
        if group.name != "measured" and other is not None:
            sides = group.estimate, other.estimate
            lines.append(compare_quantities(f"  {group.name}", "J", group.energy, other.energy, keep, sides))
    if whole_a and whole_b and a.site and b.site:
        lines += _compare_footprints((whole_a, whole_b), (a.site, b.site), keep)
    if whole_a and whole_b and whole_a.net and whole_b.net:
        lines.append(compare_quantities("net of idle", "J", whole_a.net, whole_b.net, keep, estimates))
    lines.append(compare_quantities("time", "s", Quantity(a.duration_s), Quantity(b.duration_s), ()))
    if whole_a and whole_b:
        lines.append(compare_quantities("mean power", "W", whole_a.mean_w, whole_b.mean_w, keep, estimates))
    per_a, per_b = (_divide_by_work(r, whole) for r, whole in ((a, whole_a), (b, whole_b)))
    lines += [
        compare_quantities(f"per {name_one(n)}", "J", per_a[n], per_b[n], keep, estimates)
        for n in _list_common_kinds(a, b)
        if n in per_a and n in per_b
    ]
    timed = a.duration_s > 0 and b.duration_s > 0
    for name in (n for n in _list_common_kinds(a, b) if timed and b.work.get(n)):
        per_s = Quantity(a.work[name] / a.duration_s), Quantity(b.work[name] / b.duration_s)
        lines.append(compare_quantities(f"{name}/s", "", *per_s, ()))
    return RunComparison(a, b, tuple(lines), same)


def _compare_footprints(
    wholes: tuple[GroupResult, GroupResult], sites: tuple[Site, Site], keep: tuple[str, ...]
) -> list[ComparedFigure]:
    """Compare cost and CO2e, as far as both sites know them; costs in one currency."""
    first, second = (compute_footprint(whole.energy, site) for whole, site in zip(wholes, sites, strict=True))
    estimates, lines = (wholes[0].estimate, wholes[1].estimate), []
    if first.cost is not None and second.cost is not None and sites[0].currency == sites[1].currency:
        line = compare_quantities(COST, sites[0].currency, first.cost, second.cost, keep, estimates)
        lines.append(line)
    if first.co2e_kg is not None and second.co2e_kg is not None:
        common = (*keep, INTENSITY_ERROR)
        lines.append(compare_quantities(CO2E, "kg", first.co2e_kg, second.co2e_kg, common, estimates))
    return lines


def _choose_wholes(a: Result, b: Result) -> tuple[GroupResult | None, GroupResult | None]:
    """Return the groups to compare: everything measured, or the families that were measured in both runs."""
    wholes = a.group("measured"), b.group("measured")
    if wholes[0] is None or wholes[1] is None or _list_families(wholes[0]) == _list_families(wholes[1]):
        return wholes
    names = find_common_families(a, b)
    return (_sum_groups(a, names), _sum_groups(b, names)) if names else (None, None)


def _list_families(group: GroupResult) -> set[str]:
    return {find_family(scope) for scope in group.scopes}


def find_common_families(a: Result, b: Result) -> tuple[str, ...]:
    """Return the families to compare if the two runs did not measure the same scopes."""
    both = [g.name for g in a.groups if b.group(g.name) is not None]
    for node in ("rack", "node.ac", "node.dc"):
        if node in both:
            return (node,)
    return tuple(name for name in both if name in ("gpu", "cpu", "dram"))


def _sum_groups(result: Result, names: tuple[str, ...]) -> GroupResult:
    groups = [g for g in result.groups if g.name in names]
    energy = add_quantities(g.energy for g in groups)
    nets = [g.net for g in groups]
    net = add_quantities(n for n in nets if n is not None) if all(n is not None for n in nets) else None
    scopes = tuple(scope for g in groups for scope in g.scopes)
    mean = energy * (1 / max(result.duration_s, 1e-9))
    return GroupResult("compared", scopes, energy, mean, net, any(g.estimate for g in groups))


def _list_common_kinds(a: Result, b: Result) -> list[str]:
    """Return the kinds of work that both runs report and can be compared by."""
    other = list_figure_kinds(b.work)
    return [kind for kind in list_figure_kinds(a.work) if kind in other]


def _divide_by_work(result: Result, whole: GroupResult | None) -> dict[str, Quantity]:
    return {} if whole is None else {n: whole.energy * (1 / done) for n, done in result.work.items() if done > 0}


def list_devices(result: Result) -> frozenset[tuple[str, ...]]:
    """List the devices that count for the total: host, scope, hardware, meter and channel."""
    whole = result.group("measured")
    counted = set(whole.scopes) if whole else set()
    return frozenset(
        (s.host, s.scope, s.device, s.model, s.reading.meter, s.reading.channel)
        for s in result.scopes
        if s.scope in counted
    )


def compare_quantities(
    name: str,
    unit: str,
    a: Quantity,
    b: Quantity,
    keep: tuple[str, ...],
    estimates: tuple[bool, bool] = (False, False),
) -> ComparedFigure:
    """Return the comparison of two quantities; terms whose sources begin with one of `keep` are common and cancel."""
    ratio = None
    if a.value > 0 and b.value > 0:
        # Errors of two runs are their own, but for the gain of a meter that measured both.
        ratio = b.tagged("b", keep=keep) / a.tagged("a", keep=keep)
    return ComparedFigure(name, unit, a, b, ratio, estimates)


def _name_direction(share: float) -> str:
    return "more" if share > 0 else "less"


def _size_change(ratio: float) -> str:
    share = ratio - 1
    return f"{fmt.format_percent(abs(share), signed=False)} {_name_direction(share)}" if share else "equal"


def _size_interval(share: float, expanded: float) -> str:
    """Return a change in words: `12.3 ± 1.1 % less`."""
    return f"{fmt.format_change(abs(share), expanded).removeprefix('+')} {_name_direction(share)}"


def make_figure_table(found: RunComparison) -> Table:
    """Return the figures of a comparison."""
    rows = []
    for line in found.lines:
        name = line.name.lstrip(" ")
        cells = (name, *format_figure_values(line), format_figure_change(line), limit_difference(line))
        rows.append(TableRow(cells, depth=(len(line.name) - len(name)) // 2))
    return make_table(("", "A", "B", "B / A - 1", LIMIT), rows, title="A and B side by side")


def format_figure_change(line: ComparedFigure) -> str:
    """Return B / A - 1 with its interval."""
    return fmt.NOTHING if line.ratio is None else fmt.format_change(line.ratio.value - 1, line.ratio.expanded)


def limit_difference(line: ComparedFigure) -> str:
    """Return the largest possible difference if it is not significant; empty for other differences."""
    return "" if line.is_different is not False or line.unit in ("s", "") else line.word_limit()


def format_figure_values(line: ComparedFigure) -> tuple[str, str]:
    """Return A and B with their intervals, in one unit."""
    if line.unit == "s":
        return fmt.format_duration(line.a.value), fmt.format_duration(line.b.value)
    if not line.unit:
        return fmt.format_rate(line.a.value), fmt.format_rate(line.b.value)
    sides = tuple(zip((line.a, line.b), line.estimates, strict=True))
    if line.name == COST:
        first, second = (
            f"{'~' if is_guess else ''}{format_cost(q, line.unit, has_interval=True)}" for q, is_guess in sides
        )
        return first, second
    largest = [v for q in (line.a, line.b) for v in (q.value, q.expanded)]
    factor, unit = scale_co2e((line.a, line.b)) if line.name == CO2E else fmt.choose_scale(largest, line.unit)
    is_derived = line.name.strip().startswith(DERIVED)
    a, b = (fmt.format_scaled(q, factor, unit, estimate=is_guess, is_derived=is_derived) for q, is_guess in sides)
    return a, b


def make_fact_table(found: RunComparison, most: int = fmt.MOST_OF_FACT) -> Table | None:
    """Return the facts that the workloads reported, None without facts; longer texts are cut in their middle."""
    rows = []
    for name, values in found.facts.items():
        write = fmt.format_data_name if name == "data" else fmt.format_fact
        texts = (None if v is None else write(v, most) for v in values)
        rows.append((fmt.shorten_middle(name, MOST_OF_NAME), *texts))
    return make_table(("fact", "A", "B"), rows, left=range(3), title="Facts of A and B") if rows else None


def title_run(run: Result) -> str:
    """Return the title of a run: its name and command."""
    return f"{run.name}: {shlex.join(run.command)}" if run.name else shlex.join(run.command)


def list_differing_labels(runs: Sequence[Result]) -> list[str]:
    """Return the labels of each run that differ between the runs: `cap=120 gpus=1`."""
    names = dict.fromkeys(name for run in runs for name in run.labels if name not in OWN_LABELS)
    apart = [name for name in names if len({run.labels.get(name) for run in runs}) > 1]
    return [" ".join(f"{n}={run.labels[n]}" for n in apart if n in run.labels) for run in runs]


def title_runs(runs: Sequence[Result]) -> str:
    """Return titles of several runs: their names, or their ids if names are equal."""
    names = [fmt.shorten_end(run.name or run.run, MOST_OF_TITLE) for run in runs]
    if len(set(names)) < len(names):
        return f"{names[0]}: {' and '.join(run.run for run in runs)}"
    return " and ".join(names)


def make_phase_pair_table(found: RunComparison) -> Table | None:
    """Return the phases of both runs in the order of A, then those that only B has; None without phases."""
    of_b: dict[tuple[int, str], list[PhaseRow]] = {}
    for row in list_phase_rows(found.b):
        of_b.setdefault((row.depth, row.label), []).append(row)
    pairs: list[tuple[PhaseRow | None, PhaseRow | None]] = []
    for row in list_phase_rows(found.a):
        same = of_b.get((row.depth, row.label), [])
        pairs.append((row, same.pop(0) if same else None))
    pairs += [(None, row) for rows in of_b.values() for row in rows]
    heads = ("phase", "time A", "time B", "energy A", "energy B", "B / A - 1", LIMIT)
    rows = [_make_phase_row(found, a, b) for a, b in pairs]
    return make_table(heads, rows, title="Phases of A and B side by side") if rows else None


def _make_phase_row(found: RunComparison, a: PhaseRow | None, b: PhaseRow | None) -> TableRow:
    row = a or b
    assert row is not None
    times = [None if each is None else fmt.format_duration(each.duration_s) for each in (a, b)]
    energies = [None if each is None else each.energy for each in (a, b)]
    first, second = energies
    if first is None or second is None:
        texts = [None if q is None else fmt.format_quantity(q, "J") for q in energies]
        return TableRow((row.label, *times, *texts, None, ""), depth=row.depth)
    line = compare_quantities(row.label, "J", first, second, METER_ERRORS if found.same_devices else ())
    change, limit = format_figure_change(line), limit_difference(line)
    return TableRow((row.label, *times, *format_figure_values(line), change, limit), depth=row.depth)


def label_runs(results: Sequence[Result]) -> tuple[str, ...]:
    """Return a label for each run: letters, and numbers after the 26th run."""
    return tuple(LETTERS[k] if k < len(LETTERS) else str(k + 1) for k in range(len(results)))


def compare_with_first(results: Sequence[Result]) -> list[FilledColumn]:
    """Return energy, time and mean power of each run, and their ratios to those of the first run."""
    pairs = [compare_runs(results[0], other) for other in results[1:]]
    energies, times = ([None, *(pair.find_figure(name) for pair in pairs)] for name in ("energy", "time"))
    groups = [r.group("measured") for r in results]
    columns: list[FilledColumn] = [
        _fill_measured("energy", "J", [r.energy for r in results], groups),
        (Column("time"), tuple(fmt.format_duration(r.duration_s) for r in results)),
        _fill_measured("mean power", "W", [None if g is None else g.mean_w for g in groups], groups),
        (Column("energy against A"), _list_changes(energies)),
        (Column("time against A"), _list_changes(times)),
    ]
    limits = tuple("" if line is None else limit_difference(line) for line in energies)
    return [*columns, (LIMIT, limits)] if any(limits) else columns


def _fill_measured(
    name: str, unit: str, values: Sequence[Quantity | None], groups: Sequence[GroupResult | None]
) -> FilledColumn:
    cells: list[TableCell] = [
        MarkedCell(q, "~") if g is not None and g.estimate else q for q, g in zip(values, groups, strict=True)
    ]
    return scale_column(name, unit, values), tuple(cells)


def _list_changes(lines: Sequence[ComparedFigure | None]) -> tuple[str, ...]:
    return ("", *(fmt.NOTHING if line is None else format_figure_change(line) for line in lines[1:]))


def lay_out_comparison(found: RunComparison, *, width: int) -> list[TextBlock]:
    """Return a comparison of two runs for a terminal: verdict, runs, figures, facts, at most three notes."""
    blocks: list[TextBlock] = [TextLine(f"{found.word_verdict()}.", "bold")]
    runs = []
    for label, run in (("A", found.a), ("B", found.b)):
        twin = f"\n{fmt.name_twins([run.twin])}" if run.twin else ""
        runs.append((label, f"{run.run}  {title_run(run)}{twin}"))
    blocks += [list_facts(runs, label_width=1), BLANK_LINE, replace(make_figure_table(found), title="")]
    if facts := make_fact_table(found, max((width - MOST_OF_NAME - 2 * GAP) // 2, LEAST_OF_FACT)):
        blocks += [BLANK_LINE, replace(facts, title="")]
    blocks += [TextLine(text) for text in word_sites((found.a, found.b), found)]
    return [*blocks, BLANK_LINE, lay_out_notes(word_notes(found.list_notes(), COMPARISON))]


def lay_out_notes(notes: Sequence[str]) -> FactLines:
    """Return at most three notes for a terminal; where there are more, the way to all of them."""
    lines = [("note", set_command_apart(note)) for note in notes[:MOST_NOTES]]
    if left := len(notes) - len(lines):
        noun = "note" if left == 1 else "notes"
        lines.append(("more", f"the same command with --format markdown has {left} more {noun}"))
    return list_facts(lines)


def write_comparison(found: RunComparison, form: str) -> str:
    """Return a comparison of two runs in a format of DOCUMENT_FORMATS, or as CSV in SI units."""
    if form == "csv":
        sites = {f"{side}_intensity": run.site for side, run in (("a", found.a), ("b", found.b))}
        sources = {name: word_source(site) for name, site in sites.items() if site is not None}
        rows = [_describe_line(line) | (sources if line.name == CO2E else {}) for line in found.lines]
        return write_csv(make_record_table(rows))
    document = DOCUMENT_FORMATS[form]
    runs = [f"{label}: {run.run} {title_run(run)}" for label, run in (("A", found.a), ("B", found.b))]
    simulated = name_sources((found.a, found.b))
    notes = (*([simulated] if simulated else []), "Intervals are expanded uncertainties (k = 2)")
    notes += tuple(word_sites((found.a, found.b), found))
    tables = [replace(make_figure_table(found), notes=notes), make_fact_table(found), make_phase_pair_table(found)]
    verdict = document.escape_text(f"{found.word_verdict()}.")
    remarks = document.write_list(word_notes(found.list_notes(), COMPARISON))
    return document.write_document([document.write_list(runs), *(t for t in tables if t is not None), verdict, remarks])


def word_sites(runs: Sequence[Result], found: RunComparison) -> list[str]:
    """Return price, carbon intensity and source, if the comparison has cost or CO2e; of each run if they differ."""
    if not found.find_figure(COST) and not found.find_figure(CO2E):
        return []
    texts = {label: word_basis(run.site) for label, run in zip("AB", runs, strict=True) if run.site is not None}
    if len(set(texts.values())) == 1:
        return [*texts.values()][:1]
    return [f"{label}: {text}" for label, text in texts.items()]


def _name_source(run: Result) -> str:
    if run.outcome == "imported":
        return f"imported from {run.labels.get('origin', 'another program')}"
    return fmt.name_twins([run.twin]) if run.twin else "measured"


def name_sources(runs: Sequence[Result]) -> str:
    """Name the twins that simulated runs come from; empty if all were measured."""
    twins = sorted({run.twin for run in runs if run.twin})
    return fmt.name_twins(twins) if twins else ""


def _describe_line(line: ComparedFigure) -> dict[str, Any]:
    row: dict[str, Any] = {"figure": line.name.strip(), "unit": line.unit}
    for name, q in (("a", line.a), ("b", line.b), ("ratio", line.ratio)):
        row |= {name: q and q.value, f"{name}_expanded": q and q.expanded}
    return row | {"verdict": line.word_verdict()}
