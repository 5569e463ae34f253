"""Choose what of a comparison is shown and in which words: figures, phases side by side, facts. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.comparison import compare_quantities
from joulelab.report.run_rows import list_phase_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.report.comparison import ComparedFigure, RunComparison
    from joulelab.report.run_rows import PhaseRow

MOST_OF_NAME, MOST_OF_TITLE = 24, 60  # letters of a fact's name, and of a run's in a title
OWN_LABELS = ("cell", "slot")  # where a run stands in its study: what its knobs say too


@dataclass(frozen=True, slots=True)
class FigureRow:
    """Hold one line of a comparison as it is printed; `verdict` where A and B cannot be told apart."""

    name: str
    a: str
    b: str
    change: str
    verdict: str


@dataclass(frozen=True, slots=True)
class PhasePair:
    """Hold a phase of both runs as it is printed; what only one of them has is `-` in the other."""

    label: str
    depth: int
    time: tuple[str, str]
    energy: tuple[str, str]
    change: str
    verdict: str


def list_figure_rows(found: RunComparison) -> list[FigureRow]:
    """Return the figures of a comparison in order."""
    return [
        FigureRow(line.name, *format_figure_values(line), format_figure_change(line), word_figure_verdict(line))
        for line in found.lines
    ]


def format_figure_change(line: ComparedFigure) -> str:
    """Return B / A - 1 with its interval."""
    return fmt.NOTHING if line.ratio is None else fmt.format_change(line.ratio.value - 1, line.ratio.expanded)


def word_figure_verdict(line: ComparedFigure) -> str:
    """Return what has to be said of a difference: only that there is none to be seen."""
    return "" if line.difference is not False or line.unit in ("s", "") else line.verdict()


def format_figure_values(line: ComparedFigure) -> tuple[str, str]:
    """Return A and B with their intervals, in one unit."""
    if line.unit == "s":
        return fmt.format_duration(line.a.value), fmt.format_duration(line.b.value)
    if not line.unit:
        return fmt.format_rate(line.a.value), fmt.format_rate(line.b.value)
    largest = [v for q in (line.a, line.b) for v in (q.value, q.expanded)]
    factor, unit = fmt.choose_scale(largest, line.unit)
    mark = "~" if line.estimate else ""
    a, b = (
        f"{mark}{fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor)} {unit}"
        for q in (line.a, line.b)
    )
    return a, b


def list_compared_facts(found: RunComparison, most: int = fmt.MOST_OF_FACT) -> list[tuple[str, str, str]]:
    """Return what the workloads told of themselves: name, A, B; longer texts are cut in their middle."""
    rows = []
    for name, told in found.facts.items():
        write = fmt.format_data_name if name == "data" else fmt.format_fact
        a, b = (fmt.NOTHING if v is None else write(v, most) for v in told)
        rows.append((fmt.shorten_middle(name, MOST_OF_NAME), a, b))
    return rows


def title_run(run: Result) -> str:
    """Return a run by its name and command."""
    return f"{run.name}: {shlex.join(run.command)}" if run.name else shlex.join(run.command)


def list_differing_labels(runs: Sequence[Result]) -> list[str]:
    """Return the labels of each run that not all of them have alike: `cap=120 gpus=1`."""
    names = dict.fromkeys(name for run in runs for name in run.labels if name not in OWN_LABELS)
    apart = [name for name in names if len({run.labels.get(name) for run in runs}) > 1]
    return [" ".join(f"{n}={run.labels[n]}" for n in apart if n in run.labels) for run in runs]


def title_runs(runs: Sequence[Result]) -> str:
    """Return several runs by their names, or by their ids where names do not tell them apart."""
    names = [fmt.shorten_end(run.name or run.run, MOST_OF_TITLE) for run in runs]
    if len(set(names)) < len(names):
        return f"{names[0]}: {' and '.join(run.run for run in runs)}"
    return " and ".join(names)


def pair_phases(found: RunComparison) -> list[PhasePair]:
    """Return the phases of both runs, those of one label together, in the order of A; then what only B has."""
    keep = ("gain:",) if found.same_devices else ()
    of_b: dict[tuple[int, str], list[PhaseRow]] = {}
    for row in list_phase_rows(found.b):
        of_b.setdefault((row.depth, row.label), []).append(row)
    pairs = []
    for row in list_phase_rows(found.a):
        same = of_b.get((row.depth, row.label), [])
        pairs.append(_pair(row, same.pop(0) if same else None, keep))
    return pairs + [_pair(None, row, keep) for rows in of_b.values() for row in rows]


def _pair(a: PhaseRow | None, b: PhaseRow | None, keep: tuple[str, ...]) -> PhasePair:
    row = a or b
    assert row is not None
    times = (
        fmt.NOTHING if a is None else fmt.format_duration(a.duration_s),
        (fmt.NOTHING if b is None else fmt.format_duration(b.duration_s)),
    )
    first, second = (None if each is None else each.energy for each in (a, b))
    if first is not None and second is not None:
        line = compare_quantities(row.label, "J", first, second, keep)
        return PhasePair(
            row.label,
            row.depth,
            times,
            format_figure_values(line),
            format_figure_change(line),
            word_figure_verdict(line),
        )
    return PhasePair(row.label, row.depth, times, (_alone(first), _alone(second)), fmt.NOTHING, "")


def _alone(energy: Quantity | None) -> str:
    return fmt.NOTHING if energy is None else fmt.format_quantity(energy.value, energy.expanded, "J")
