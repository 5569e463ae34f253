"""Set up the tables of a study as papers print them: a table per workload, a row per phase and node type. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from joulelab.analysis.cell_comparison import UNITS, make_sample
from joulelab.analysis.cell_lines import format_knob
from joulelab.analysis.quality import list_quality_figures
from joulelab.report import format as fmt
from joulelab.report.study_tables import name_plain_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary

Spread = Literal["deviation", "interval"]
ODD = "†"  # after figures with a repeat that does not look like the others
ESTIMATE, UNCAPPED = "~", "!"
FIRST = ("phase", "node")  # these tell rows apart before other knobs
TABLE = "workload"  # each has a table of its own
ENOUGH = 10.0  # figures from this on have one decimal
KILO = 1000.0
DIGITS = 2  # of the median deviation, and of a figure that is much smaller than the others
MOST_DIGITS = 4  # of the largest deviation
MOST_DECIMALS = 4
SHORTEST = 20.0  # s below which a time is not printed as h:m:s
HEADS = {"energy": "Consumption", "power": "Mean power", "time": "Runtime"}
DAY, HOUR, MINUTE = 86400, 3600, 60


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Hold a row: the key of its cell, what tells it apart, and its figures as they are printed."""

    cell: str
    labels: tuple[str, ...]
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Hold a table: its title, a caption that says what ± is and what was measured, headings and rows."""

    title: str
    caption: str
    labels: tuple[str, ...]
    heads: tuple[str, ...]
    rows: tuple[PaperRow, ...]


def list_paper_tables(
    summary: StudySummary, *, spread: Spread = "deviation", scope: str | None = None
) -> list[PaperTable]:
    """Return a table per workload. `spread` is what ± is; `scope` whose energy it is (everything measured)."""
    groups: dict[str, list[CellMetrics]] = {}
    for cell in summary.cells:
        if summary.statistics.get(cell.key):
            groups.setdefault(str(cell.knobs.get(TABLE, "")), []).append(cell)
    return [_table(summary, name, of, spread, scope) for name, of in groups.items()]


def _table(
    summary: StudySummary, name: str, cells: Sequence[CellMetrics], spread: Spread, scope: str | None
) -> PaperTable:
    names = _labels(cells)
    ns = sorted(_counts(summary, cells))
    columns = [_figure(summary, cells, figure, spread) for figure in HEADS]
    idle = [c.idle_energy.value if c.idle_energy is not None else None for c in cells]
    if any(idle):
        factor, unit = _unit([v for v in idle if v], "J")
        columns.append((f"Idle devices [{unit}]", tuple(_number(v, factor, 1) for v in idle)))
    columns += _quality(cells, spread)
    if len({c.data for c in cells}) > 1:
        head = "Worked on" if any("data" in c.knobs for c in cells) else "Data"
        columns.append((head, tuple(fmt.format_data_name(c.data) or fmt.NOTHING for c in cells)))
    if len(ns) > 1:
        columns.insert(0, ("n", tuple(str(c.n) for c in cells)))
    columns = [(head, texts) for head, texts in columns if any(text != fmt.NOTHING for text in texts)]
    rows = [
        PaperRow(c.key, tuple(_label(summary, c, n) for n in names), tuple(texts[k] for _, texts in columns))
        for k, c in enumerate(cells)
    ]
    title = f"Results of {name}" if name else "Results"
    return PaperTable(
        title, write_caption(summary, cells, ns, spread, scope), names, tuple(head for head, _ in columns), tuple(rows)
    )


def _labels(cells: Sequence[CellMetrics]) -> tuple[str, ...]:
    """Return the knobs that tell the rows apart: phase and node type first."""
    there = dict.fromkeys(n for c in cells for n in c.knobs)
    ordered = [n for n in FIRST if n in there] + [n for n in there if n not in (*FIRST, TABLE)]
    varying = tuple(n for n in ordered if len({repr(c.knobs.get(n)) for c in cells}) > 1)
    return varying or tuple(ordered[:1]) or ("",)


def _label(summary: StudySummary, cell: CellMetrics, name: str) -> str:
    if name in cell.knobs:
        return format_knob(name, cell.knobs[name])
    return fmt.NOTHING if name else name_plain_cell(summary, cell.key)


def _counts(summary: StudySummary, cells: Sequence[CellMetrics]) -> set[int]:
    """Return the numbers of repeats; one run beside repeats is left out where it shows by having no ±, as in papers."""
    samples = [(c.n, s) for c in cells for f, s in summary.statistics[c.key].items() if f != "time"]
    every = {c.n for c in cells}
    shown = all(any(f != "time" for f in summary.statistics[c.key]) for c in cells)
    told = all(n == 1 or s.deviation is not None for n, s in samples)
    return every - {1} if len(every) == 2 and shown and told else every


def _figure(
    summary: StudySummary, cells: Sequence[CellMetrics], figure: str, spread: Spread
) -> tuple[str, tuple[str, ...]]:
    """Return the heading of a figure and its text for each cell."""
    samples = [summary.statistics[c.key].get(figure) for c in cells]
    means = [s.mean for s in samples if s is not None]
    if figure == "time" and means and min(means) >= SHORTEST:
        return HEADS[figure], tuple(fmt.NOTHING if s is None else format_clock(s.mean) for s in samples)
    factor, unit = _unit(means, UNITS[figure])
    spreads = [choose_half_width(s, spread) for s in samples if s is not None]
    decimals = _decimals([m / factor for m in means], [s / factor for s in spreads if s is not None])
    texts = []
    for cell, sample in zip(cells, samples, strict=True):
        if sample is None:
            texts.append(fmt.NOTHING)
            continue
        text = _number(sample.mean, factor, decimals)
        half = choose_half_width(sample, spread)
        text += "" if half is None else f" ± {_behind(half, factor, decimals)}"
        text = f"{ESTIMATE if cell.estimate and figure != 'time' else ''}{text}"
        texts.append(f"{text}{UNCAPPED if cell.uncapped else ''}{' ' + ODD if sample.outliers else ''}")
    return f"{HEADS[figure]} [{unit}]", tuple(texts)


def _quality(cells: Sequence[CellMetrics], spread: Spread) -> list[tuple[str, tuple[str, ...]]]:
    """Return the figures that workloads are to be judged by, each with its spread over repeats."""
    told = [list_quality_figures(c.trials) for c in cells]
    columns = []
    for name in dict.fromkeys(n for of in told for n in of):
        texts = []
        for of in told:
            sample = make_sample(of[name]) if name in of else None
            half = None if sample is None else choose_half_width(sample, spread)
            texts.append(fmt.NOTHING if sample is None else _told(sample.mean, half))
        columns.append((name[:1].upper() + name[1:], tuple(texts)))
    return columns


def _told(mean: float, half: float | None) -> str:
    return fmt.format_interval(mean, half, signed=True) if half and math.isfinite(mean) else fmt.format_quality(mean)


def choose_half_width(sample: RepeatSample, spread: Spread) -> float | None:
    """Return what stands behind the ±."""
    return sample.deviation if spread == "deviation" else sample.half_width


def _unit(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return what to divide a column by, and its unit: kilo from ten on, milli below one, by most of its figures."""
    middle = median(abs(v) for v in values) if values else 0.0
    if unit == "J" and middle >= ENOUGH * KILO:
        return KILO, "kJ"
    return (1 / KILO, f"m{unit}") if unit != "s" and 0 < middle < 1 else (1.0, unit)


def _decimals(means: Sequence[float], spreads: Sequence[float]) -> int:
    """Return one decimal as in the papers, more where most figures or most of what is behind the ± are small."""
    middle = median(abs(m) for m in means) if means else ENOUGH
    wanted = 1 if middle >= ENOUGH or middle == 0 else _places(middle, DIGITS + 1)
    usual, largest = (median(spreads), max(spreads)) if spreads else (0.0, 0.0)
    if usual > 0:
        wanted = max(wanted, min(_places(usual, DIGITS), _places(largest, MOST_DIGITS)))
    return min(max(wanted, 1), MOST_DECIMALS)


def _places(value: float, digits: int) -> int:
    """Return how many decimals show so many digits of a value."""
    return digits - 1 - math.floor(math.log10(value))


def _number(value: float | None, factor: float, decimals: int) -> str:
    """Return a number with its thousands apart: `109 477.1`; one that is nothing but small has two digits."""
    if value is None:
        return fmt.NOTHING
    shown = abs(value) / factor
    if 0 < shown < 0.5 * 10.0**-decimals:
        return fmt.format_number(value / factor, DIGITS)
    return f"{value / factor:,.{decimals}f}".replace(",", " ")


def _behind(half: float, factor: float, decimals: int) -> str:
    """Return what stands behind the ±; what is too small for the column's decimals is below the last of them."""
    least = 10.0**-decimals
    return f"< {least:.{decimals}f}" if half / factor < least / 2 else _number(half, factor, decimals)


def format_clock(seconds: float) -> str:
    """Return a time as Slurm and the papers print it: `00:17:02`, `1-22:39:43`."""
    days, rest = divmod(round(seconds), DAY)
    text = f"{rest // HOUR:02d}:{rest % HOUR // MINUTE:02d}:{rest % MINUTE:02d}"
    return f"{days}-{text}" if days else text


def write_caption(
    summary: StudySummary, cells: Sequence[CellMetrics], ns: Sequence[int], spread: Spread, scope: str | None
) -> str:
    """Return what ± is, of how many repeats, what was measured and by what."""
    single = "; one run where there is no ±" if ns[0] > 1 and any(c.n == 1 for c in cells) else ""
    what = "standard deviation" if spread == "deviation" else "half of Student's 95 % interval of the mean"
    many = f"{ns[0]}" if len(ns) == 1 else f"{ns[0]} to {ns[-1]}"
    once = many == "1"
    said = [
        "One run of each; how much runs differ is not known." if once else f"Mean ± {what} of {many} repeats{single}."
    ]
    samples = [s for c in cells for s in [summary.statistics[c.key].get("energy")] if s is not None]
    meters = sorted({part.split()[0] for s in samples for d in s.devices for part in d.split("; ") if part.split()})
    if samples:
        of = f" of {scope}" if scope else " of everything measured"
        by = f", by {', '.join(meters)}" if meters else ""
        said.append(f"Energy{of}{by}{_known_to(cells) if once else _accuracy(samples)}.")
    data = {c.data for c in cells}
    if len(data) > 1:
        said.append("Rows worked on different data, from which differences may come.")
    elif data != {""}:
        said.append(f"Data: {fmt.format_data_name(data.pop())}.")
    said += _compared(summary, cells)
    told = [summary.statistics[c.key].values() for c in cells]
    if any(s.outliers for of in told for s in of):
        said.append(f"{ODD} a repeat does not look like the others; it is kept.")
    if any(c.estimate for c in cells):
        said.append(f"{ESTIMATE} is an estimate, not measured.")
    if any(c.uncapped for c in cells):
        said.append(f"{UNCAPPED} the cap was not in force.")
    return " ".join(said)


def _compared(summary: StudySummary, cells: Sequence[CellMetrics]) -> list[str]:
    """Say per what cells are compared, and which phases where not all are: figures are as they were measured."""
    keys = {c.key for c in cells}
    lines = [line for line in summary.lines if line.cells[0] in keys]
    kinds = {line.key: line.per.removesuffix("s") for line in lines if line.per}
    if not kinds:
        return []
    phases = {line.key: str(summary.cell(line.cells[0]).knobs.get("phase", "")) for line in lines}
    whole = f"Figures are those of whole {'phases' if any(phases.values()) else 'runs'}"
    if any(phases.values()) and (len(kinds) < len(lines) or len(set(kinds.values())) > 1):
        each = dict.fromkeys(f"{phases[key]} per {kind}" for key, kind in kinds.items())
        return [f"{whole}; compared are {', '.join(each)}."]
    return [f"{whole}; they are compared per {', '.join(dict.fromkeys(kinds.values()))}."]


def _accuracy(samples: Sequence[RepeatSample]) -> str:
    known = [s.meter * 100 for s in samples if s.meter is not None]
    if len(known) < len(samples):
        return "; the meters' own accuracy is not known, and not in ±"
    return f"; the meters' own {_percents(known)} % (k = 2) comes on top of ±"


def _known_to(cells: Sequence[CellMetrics]) -> str:
    """Return how well energies of single runs are known: by all terms of their intervals, not by the gain alone."""
    energies = [c.energy for c in cells if c.energy is not None]
    known = [100 * e.expanded / e.value for e in energies if e.expanded is not None and e.value > 0]
    if not known or len(known) < len(energies):
        return "; the meters' own accuracy is not known"
    return f"; each is known to {_percents(known)} % (k = 2)"


def _percents(values: Sequence[float]) -> str:
    low, high = (f"{v:.0f}" if v >= 99.5 else f"{v:.2g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
