"""Make the tables of a study as papers print them, and tables that compare cells two by two."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.cell_comparison import MOST_REPEATS, UNITS, make_sample
from joulelab.analysis.cell_lines import AXES, format_knob, format_knobs
from joulelab.analysis.study_cells import list_quality_figures
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.study_tables import ESTIMATE, UNCAPPED, name_plain_cell
from joulelab.report.tables import (
    DOCUMENT_FORMATS,
    HARD_BLANK,
    Column,
    FilledColumn,
    Table,
    TableRow,
    join_columns,
    make_table,
    measure_table,
)
from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import CellPair, RepeatSample
    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary

# After ±: the standard deviation between repeats, Student's interval of their mean, or the 95 % interval (k = 2) of all
# terms, the meters' included, as in all other tables.
Spread = Literal["deviation", "interval", "expanded"]
SCHEMA = 1
ODD = "†"  # after figures with a repeat that does not look like the others
FIRST = ("phase", "node")  # these label rows before other knobs; their values need no name
WORKLOAD = "workload"  # each has a table of its own
ENOUGH = 10.0  # thousands of joules from which on a column is in kJ
KILO = 1000.0
SHORTEST = 20.0  # s below which a time is not printed as h:m:s
WORDS: dict[Spread, str] = {
    "deviation": "standard deviation",
    "interval": "half of Student's 95 % interval of the mean",
    "expanded": "95 % interval (k = 2)",
}
HEADS = {"energy": "Consumption", "power": "Mean power", "time": "Runtime"}
DAY, HOUR, MINUTE = 86400, 3600, 60
NUMBER = re.compile(r"[\d.]+( \w+)?")  # such as a cap; labels of numbers are aligned to the right
PAIR_TITLES = {"energy": "energy", "time": "time", "power": "mean power"}
MAIN_FIGURES = ("energy", "time")  # the others where every pair is asked for
VERDICTS = {"no significant difference": "not significant"}  # shorter, so that a table fits
SMALLEST = 0.001  # smaller chances are printed as below this
PAIRS_NOTE = (
    "Intervals are 95 %, each pair by itself (Welch; ratios by Fieller). p is two-sided and corrected for all "
    "comparisons of the study by Holm; the verdict is by it at 5 %. More repeats of both cells would settle it with a "
    "chance of 80 % if the difference is what it seems."
)
ASSUMED = "* one cell has a single run: its scatter is assumed to be that of the other cell."
METERS = "meters: more repeats do not settle it, because the meters' error is as large as the difference."


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Hold a row: the key of its cell, its labels, and its figures as they are printed."""

    cell: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Hold a table: its title, a caption that explains ± and the measurement, headings and rows."""

    title: str
    caption: str
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[PaperRow, ...]


def lay_out_paper(
    summary: StudySummary,
    *,
    width: int,
    spread: Spread = "deviation",
    scope: str | None = None,
    every: bool = False,
) -> list[TextBlock]:
    """Return the tables and the comparisons with the reference, for a terminal; `every` shows all pairs."""
    blocks: list[TextBlock] = []
    for paper in list_paper_tables(summary, spread=spread, scope=scope):
        table = make_paper_table(paper)
        if measure_table(table) > width:
            table = _make_one_label_table(paper)
        blocks += [BLANK_LINE, table, BLANK_LINE, TextLine(paper.caption)]
    for table in list_pair_tables(summary, every=every):
        blocks += [BLANK_LINE, table]
    return [*blocks, BLANK_LINE, list_facts([("note", note) for note in list_pair_notes(summary)])]


def write_paper_document(
    summary: StudySummary, form: str, *, spread: Spread = "deviation", scope: str | None = None, every: bool = False
) -> str:
    """Return the tables, captions and comparisons in a format of DOCUMENT_FORMATS."""
    document = DOCUMENT_FORMATS[form]
    papers = list_paper_tables(summary, spread=spread, scope=scope)
    tables = [*(make_paper_table(p, is_printed=True) for p in papers), *list_pair_tables(summary, every=every)]
    return document.write_document([*tables, *map(document.escape_text, list_pair_notes(summary))])


def describe_paper(summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None) -> dict[str, Any]:
    """Return the tables as they are printed, and the full statistics and pairs from which they are made."""
    tables = [
        {
            "title": table.title,
            "caption": table.caption,
            "columns": [*table.labels, *table.heads],
            "rows": [{"cell": row.cell, "texts": [*row.labels, *row.figures]} for row in table.rows],
        }
        for table in list_paper_tables(summary, spread=spread, scope=scope)
    ]
    plain = summary.to_json()
    return {
        "schema": SCHEMA,
        "spread": spread,
        "scope": scope,
        "tables": tables,
        "statistics": plain["statistics"],
        "pairs": plain["pairs"],
    }


def make_paper_table(paper: PaperTable, *, is_printed: bool = False) -> Table:
    """Return a table in which a repeated label is written only once.

    For print, the caption is a note, and there is a rule wherever the first of several labels changes.
    """
    last, count = len(paper.labels) - 1, len(paper.rows)
    made = []
    for k, row in enumerate(paper.rows):
        before = paper.rows[k - 1].labels if k else ()
        labels = [
            "" if n < last and row.labels[: n + 1] == before[: n + 1] else text for n, text in enumerate(row.labels)
        ]
        is_end = last > 0 and k + 1 < count and row.labels[0] != paper.rows[k + 1].labels[0]
        made.append(TableRow((*labels, *row.figures), has_rule_below=is_printed and is_end))
    left = [k for k in range(len(paper.labels)) if not all(NUMBER.fullmatch(row.labels[k]) for row in paper.rows)]
    notes = [paper.caption] if is_printed else []
    table = make_table((*paper.labels, *paper.heads), made, left=left, title=paper.title, notes=notes)
    return replace(table, label_count=len(paper.labels))


def _make_one_label_table(paper: PaperTable) -> Table:
    """Return a table whose labels are one column, which is repeated in each part of a table that is too wide."""
    rows = [(" ".join(row.labels), *row.figures) for row in paper.rows]
    return make_table((" ".join(paper.labels), *paper.heads), rows, left=(), title=paper.title)


def list_paper_tables(
    summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None
) -> list[PaperTable]:
    """Return a table per workload; `spread` is the figure after ±, `scope` that of the energy (None: everything)."""
    groups: dict[str, list[CellMetrics]] = {}
    for cell in summary.cells:
        if summary.statistics.get(cell.key):
            groups.setdefault(str(cell.knobs.get(WORKLOAD, "")), []).append(cell)
    return [_make_table_of(summary, name, of, spread, scope) for name, of in groups.items()]


def _make_table_of(
    summary: StudySummary, name: str, cells: Sequence[CellMetrics], spread: Spread, scope: str | None
) -> PaperTable:
    names = _choose_labels(cells)
    ns = sorted(_list_counts(summary, cells))
    columns = [_make_figure_column(summary, cells, figure, spread) for figure in HEADS]
    idle = [c.idle_energy.value if c.idle_energy is not None else None for c in cells]
    if any(idle):
        factor, unit = _choose_unit([v for v in idle if v], "J")
        columns.append(
            (f"Idle devices [{unit}]", tuple(fmt.NOTHING if v is None else fmt.format_number(v / factor) for v in idle))
        )
    columns += _list_quality_columns(cells, spread)
    if len({c.data for c in cells}) > 1:
        head = "Worked on" if any("data" in c.knobs for c in cells) else "Data"
        columns.append((head, tuple(fmt.format_data_name(c.data) or fmt.NOTHING for c in cells)))
    if len(ns) > 1:
        columns.insert(0, ("n", tuple(str(c.n) for c in cells)))
    columns = [(head, texts) for head, texts in columns if any(text != fmt.NOTHING for text in texts)]
    rows = [
        PaperRow(c.key, tuple(_name_label(summary, c, n) for n in names), tuple(texts[k] for _, texts in columns))
        for k, c in enumerate(cells)
    ]
    title = f"Results of {name}" if name else "Results"
    return PaperTable(
        title, write_caption(summary, cells, ns, spread, scope), names, tuple(head for head, _ in columns), tuple(rows)
    )


def _choose_labels(cells: Sequence[CellMetrics]) -> tuple[str, ...]:
    """Return the knobs that differ between the rows: phase and node type first."""
    there = dict.fromkeys(n for c in cells for n in c.knobs)
    ordered = [n for n in FIRST if n in there] + [n for n in there if n not in (*FIRST, WORKLOAD)]
    varying = tuple(n for n in ordered if len({repr(c.knobs.get(n)) for c in cells}) > 1)
    return varying or tuple(ordered[:1]) or ("",)


def _name_label(summary: StudySummary, cell: CellMetrics, name: str) -> str:
    if name in cell.knobs:
        return format_knob(name, cell.knobs[name])
    return fmt.NOTHING if name else name_plain_cell(summary, cell.key)


def _list_counts(summary: StudySummary, cells: Sequence[CellMetrics]) -> set[int]:
    """Return the numbers of repeats; a single run among repeats is left out if its missing ± shows it, as in papers."""
    samples = [(c.n, s) for c in cells for f, s in summary.statistics[c.key].items() if f != "time"]
    every = {c.n for c in cells}
    shown = all(any(f != "time" for f in summary.statistics[c.key]) for c in cells)
    has_spread = all(n == 1 or s.deviation is not None for n, s in samples)
    return every - {1} if len(every) == 2 and shown and has_spread else every


def _make_figure_column(
    summary: StudySummary, cells: Sequence[CellMetrics], figure: str, spread: Spread
) -> tuple[str, tuple[str, ...]]:
    """Return the heading of a figure and its text for each cell."""
    samples = [summary.statistics[c.key].get(figure) for c in cells]
    means = [s.mean for s in samples if s is not None]
    if figure == "time" and means and min(means) >= SHORTEST:
        return HEADS[figure], tuple(fmt.NOTHING if s is None else format_clock(s.mean) for s in samples)
    factor, unit = _choose_unit(means, UNITS[figure])
    texts = []
    for cell, sample in zip(cells, samples, strict=True):
        if sample is None:
            texts.append(fmt.NOTHING)
            continue
        half = _find_half_width(cell, figure, sample, spread)
        text = _format_mean(sample.mean / factor, half and half / factor, is_deviation=spread == "deviation")
        mark = ESTIMATE if cell.estimate and figure != "time" else ""
        flaws = f"{UNCAPPED if cell.uncapped else ''}{' ' + ODD if sample.outliers else ''}"
        texts.append(text if text in fmt.WORDS else f"{mark}{text}{flaws}")
    return f"{HEADS[figure]} [{unit}]", tuple(texts)


def _find_half_width(cell: CellMetrics, figure: str, sample: RepeatSample, spread: Spread) -> float | None:
    """Return the number after ± of a figure of a cell, None if it is unknown."""
    if spread != "expanded":
        return choose_half_width(sample, spread)
    q = {"energy": cell.energy, "power": cell.mean_w, "time": cell.time}[figure]
    return None if q is None else q.expanded


def _list_quality_columns(cells: Sequence[CellMetrics], spread: Spread) -> list[tuple[str, tuple[str, ...]]]:
    """Return the figures of quality, each with its spread over repeats."""
    reported = [list_quality_figures(c.trials) for c in cells]
    columns = []
    for name in dict.fromkeys(n for of in reported for n in of):
        texts = []
        for of in reported:
            sample = make_sample(of[name]) if name in of else None
            half = None if sample is None else choose_half_width(sample, spread)
            texts.append(fmt.NOTHING if sample is None else _format_mean(sample.mean, half, is_deviation=True))
        columns.append((name[:1].upper() + name[1:], tuple(texts)))
    return columns


def _format_mean(mean: float, half: float | None, *, is_deviation: bool) -> str:
    """Return a mean with the figure after its ±; without repeats (None) the mean alone."""
    if half is None or not math.isfinite(mean):
        return fmt.format_quality(mean)
    if not half:
        return f"{fmt.format_plain(mean, 4)} ± 0"
    return fmt.format_interval(mean, half, signed=is_deviation, unresolved=fmt.NOT_RESOLVED)


def choose_half_width(sample: RepeatSample, spread: Spread) -> float | None:
    """Return the figure after the ±."""
    return sample.deviation if spread == "deviation" else sample.half_width


def _choose_unit(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return divisor and unit of a column: kJ if most figures are at least 10 kJ, milli if most are below one."""
    middle = median(abs(v) for v in values) if values else 0.0
    if unit == "J" and middle >= ENOUGH * KILO:
        return KILO, "kJ"
    return (1 / KILO, f"m{unit}") if unit != "s" and 0 < middle < 1 else (1.0, unit)


def format_clock(seconds: float) -> str:
    """Return a time as Slurm and the papers print it: `00:17:02`, `1-22:39:43`."""
    days, rest = divmod(round(seconds), DAY)
    text = f"{rest // HOUR:02d}:{rest % HOUR // MINUTE:02d}:{rest % MINUTE:02d}"
    return f"{days}-{text}" if days else text


def write_caption(
    summary: StudySummary, cells: Sequence[CellMetrics], ns: Sequence[int], spread: Spread, scope: str | None
) -> str:
    """Explain ±, the number of repeats, the scope and the meters of a table."""
    single = "; one run where there is no ±" if ns[0] > 1 and any(c.n == 1 for c in cells) else ""
    what = WORDS[spread]
    many = f"{ns[0]}" if len(ns) == 1 else f"{ns[0]} to {ns[-1]}"
    once = many == "1"
    parts = [
        "One run of each; how much runs differ is not known." if once else f"Mean ± {what} of {many} repeats{single}."
    ]
    samples = [s for c in cells for s in [summary.statistics[c.key].get("energy")] if s is not None]
    meters = sorted({part.split()[0] for s in samples for d in s.devices for part in d.split("; ") if part.split()})
    if samples:
        of = f" of {scope}" if scope else " of everything measured"
        by = f", by {', '.join(meters)}" if meters else ""
        parts.append(f"Energy{of}{by}{_describe_meters(cells, samples, spread, is_once=once)}.")
    data = {c.data for c in cells}
    if len(data) > 1:
        parts.append("Rows worked on different data, from which differences may come.")
    elif data != {""}:
        parts.append(f"Data: {fmt.format_data_name(data.pop())}.")
    parts += _describe_comparison(summary, cells)
    if any(s.outliers for c in cells for s in summary.statistics[c.key].values()):
        parts.append(f"{ODD} a repeat differs from the others; it is used.")
    if any(c.estimate for c in cells):
        parts.append(f"{ESTIMATE} is an estimate, not measured.")
    if any(c.uncapped for c in cells):
        parts.append(f"{UNCAPPED} the cap was not in force.")
    return " ".join(parts)


def _describe_comparison(summary: StudySummary, cells: Sequence[CellMetrics]) -> list[str]:
    """Explain the unit of work by which cells are compared; the figures themselves are of whole runs or phases."""
    keys = {c.key for c in cells}
    lines = [line for line in summary.lines if line.cells[0] in keys]
    kinds = {line.key: name_one(line.per) for line in lines if line.per}
    if not kinds:
        return []
    phases = {line.key: str(summary.cell(line.cells[0]).knobs.get("phase", "")) for line in lines}
    whole = f"Figures are those of whole {'phases' if any(phases.values()) else 'runs'}"
    if any(phases.values()) and (len(kinds) < len(lines) or len(set(kinds.values())) > 1):
        each = dict.fromkeys(f"{phases[key]} per {kind}" for key, kind in kinds.items())
        return [f"{whole}; compared are {', '.join(each)}."]
    return [f"{whole}; they are compared per {', '.join(dict.fromkeys(kinds.values()))}."]


def _describe_accuracy(samples: Sequence[RepeatSample]) -> str:
    known = [s.meter * 100 for s in samples if s.meter is not None]
    if len(known) < len(samples):
        return "; the meters' own accuracy is not known, and not in ±"
    return f"; the meters' own {_format_percents(known)} % (k = 2) comes on top of ±"


def _describe_meters(
    cells: Sequence[CellMetrics], samples: Sequence[RepeatSample], spread: Spread, *, is_once: bool
) -> str:
    """Describe the accuracy of the meters, and whether it is part of ±."""
    if spread == "expanded" and all(c.energy is None or c.energy.known for c in cells):
        return ""
    return _describe_intervals(cells) if is_once else _describe_accuracy(samples)


def _describe_intervals(cells: Sequence[CellMetrics]) -> str:
    """Describe the uncertainty of the energies of single runs: of all terms, not of the gain alone."""
    energies = [c.energy for c in cells if c.energy is not None]
    known = [100 * e.expanded / e.value for e in energies if e.expanded is not None and e.value > 0]
    if not known or len(known) < len(energies):
        return "; the meters' own accuracy is not known"
    return f"; each is known to {_format_percents(known)} % (k = 2)"


def _format_percents(values: Sequence[float]) -> str:
    low, high = (fmt.format_plain(round(v) if v >= 9.95 else v, 2) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def list_pair_tables(summary: StudySummary, *, every: bool = False) -> list[Table]:
    """Return a table per workload and figure, the difference in the last column.

    Energy and time of each cell against the reference of its line; `every` pair, and mean power too.
    """
    tables_of: dict[tuple[str, str, str], list[CellLine]] = {}
    for line in summary.lines:
        of = str(summary.cell(line.cells[0]).knobs.get(WORKLOAD, ""))
        for figure in PAIR_TITLES:
            if every or figure in MAIN_FIGURES:
                per = f" per {name_one(line.per)}" if line.per and figure != "power" else ""
                tables_of.setdefault((of, figure, per), []).append(line)
    pairs = _group_pairs(summary)
    knobs = {c.key: c.knobs for c in summary.cells}
    tables = []
    for (of, figure, per), lines in tables_of.items():
        title = f"{_name_group(summary, of, lines)}{PAIR_TITLES[figure]}{per}"
        rows = [p for line in lines for p in pairs.get((line.key, figure), ()) if every or p.against == line.reference]
        if rows:
            tables.append(_make_pair_table(title, rows, knobs))
    return tables


def _name_group(summary: StudySummary, workload: str, lines: Sequence[CellLine]) -> str:
    """Return the workload of a table, and the phase if all rows have the same; names in the rows then omit it."""
    phases = {str(summary.cell(line.cells[0]).knobs.get("phase", "")) for line in lines}
    parts = [workload, *(phases if len(phases) == 1 else ())]
    name = ", ".join(part for part in parts if part)
    return f"{name}: " if name else ""


def _group_pairs(summary: StudySummary) -> dict[tuple[str, str], list[CellPair]]:
    of = {key: line.key for line in summary.lines for key in line.cells}
    found: dict[tuple[str, str], list[CellPair]] = {}
    for pair in summary.pairs:
        found.setdefault((of[pair.cell], pair.figure), []).append(pair)
    return found


def list_pair_notes(summary: StudySummary) -> list[str]:
    """Explain how to read the tables of pairs; empty without pairs."""
    if not summary.pairs:
        return []
    further = [(ASSUMED, any(p.assumed for p in summary.pairs)), (METERS, any(p.by_meters for p in summary.pairs))]
    return [PAIRS_NOTE, *(text for text, holds in further if holds)]


def _make_pair_table(title: str, pairs: Sequence[CellPair], knobs: Mapping[str, Mapping[str, Any]]) -> Table:
    # A name is wrapped after its colon only.
    names = [name.replace(" ", HARD_BLANK).replace(f":{HARD_BLANK}", ": ") for name in name_pairs(pairs, knobs)]
    columns: list[FilledColumn] = [
        (Column("", align="left"), tuple(names)),
        (Column("ratio"), tuple(_format_ratio(p) for p in pairs)),
        (Column("p"), tuple(format_chance(p.p_corrected) for p in pairs)),
        (Column("verdict"), tuple(VERDICTS.get(p.verdict, p.verdict) + ("*" if p.assumed else "") for p in pairs)),
    ]
    more = tuple(format_more_repeats(p) for p in pairs)
    columns += [(Column("more\nrepeats"), more)] if any(more) else []
    columns.append((Column("difference", is_optional=True), tuple(_format_difference(p) for p in pairs)))
    return join_columns(columns, title=title)


def name_pairs(pairs: Sequence[CellPair], knobs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the pairs by the knobs in which they differ: `batch=2 cpu-mix : gpu`.

    Knobs that are the same in all rows are left out; knobs that both cells share are written once, before the pair.
    """
    cells = [knobs[key] for p in pairs for key in (p.cell, p.against)]
    names = dict.fromkeys(n for own in cells for n in own)
    ordered = [*(n for n in FIRST if n in names), *(n for n in names if n not in (*FIRST, WORKLOAD))]
    varying = [n for n in ordered if len({repr(own.get(n)) for own in cells}) > 1]
    return tuple(_name_pair(p, knobs[p.cell], knobs[p.against], varying) for p in pairs)


def _name_pair(pair: CellPair, own: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> str:
    both = [n for n in names if n in own and n in other and own[n] == other[n]]
    apart = [n for n in names if n not in both]
    # That a cell has no cap is left unsaid where it differs in something else.
    apart = [n for n in apart if n not in AXES or None not in (own.get(n), other.get(n))] or apart
    first, second = _format_values(own, apart), _format_values(other, apart)
    if len(apart) == 1 and first and second:
        second = format_knob(apart[0], other[apart[0]])  # its name stands before the colon
    lacks = f"without {' '.join(apart)}"  # a knob that only the other cell has
    first, second = (first or lacks, second or lacks) if apart else (pair.cell, pair.against)
    return f"{_format_values(own, both)} {first} : {second}".strip()


def _format_values(knobs: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return some knobs of a cell, without the names of knobs whose values are clear: `gpu 300 W batch=2`."""
    there = [n for n in names if n in knobs]
    return " ".join(format_knob(n, knobs[n]) if n in (*FIRST, *AXES) else format_knobs({n: knobs[n]}) for n in there)


def format_more_repeats(pair: CellPair) -> str:
    """Return how many more repeats would decide a pair; empty if it is decided, or the number is unknown."""
    if pair.more_than_100:
        return "meters" if pair.by_meters else f"> {MOST_REPEATS}"
    return "" if pair.more_repeats is None else f"{pair.more_repeats}"


def _format_ratio(pair: CellPair) -> str:
    bounds = pair.ratio_interval
    return fmt.NOT_RESOLVED if bounds is not None and bounds[0] <= 0 else format_bounds(pair.ratio, bounds)


def _format_difference(pair: CellPair) -> str:
    bounds = pair.difference_interval
    if bounds is not None and bounds[0] < 0 < bounds[1]:
        return fmt.NOT_RESOLVED
    value, unit = pair.difference or 0.0, UNITS[pair.figure]
    factor, prefixed = fmt.choose_scale([value, *(bounds or ())], unit)
    if unit == "s" and factor > 1:  # no kiloseconds
        factor, prefixed = 1.0, unit
    return f"{format_bounds(value / factor, bounds and (bounds[0] / factor, bounds[1] / factor))} {prefixed}"


def format_bounds(value: float | None, bounds: tuple[float, float] | None) -> str:
    """Return a value with the ends of its interval: `0.877 (0.861 to 0.893)`."""
    if value is None:
        return fmt.NOTHING
    return fmt.format_number(value, 3) + (
        f" ({fmt.format_number(bounds[0], 3)} to {fmt.format_number(bounds[1], 3)})" if bounds else ""
    )


def format_chance(p: float | None) -> str:
    """Return the p value of a test."""
    return fmt.NOTHING if p is None else f"< {SMALLEST}" if p < SMALLEST else f"{p:.3f}"
