"""Print a measurement as a small table of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.marked_phases import DATA_FACT, format_quality, list_figure_kinds
from joulelab.core.text import escape_unprintable
from joulelab.report.messages import word_check

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import PhaseResult, Result
    from joulelab.core.quantity import Quantity

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))
# Scopes beyond this many are summed up in their groups.
ROWS = 12
J_PER_WH = 3600.0
PHASES = 8  # those that used most are listed
MOST_OF_TEXT = 60  # letters


def describe_measurement(title: str, duration_s: float, run: Path | None, result: Result | None) -> str:
    """Return what was measured: a line per scope with energy, uncertainty and mean power, then the groups.

    Then the phases that used most, what was worked on, how well, and the energy of each unit of work.
    """
    head = f"{title}: {duration_s:.3f} s"
    if run is None or result is None:
        return f"{head}, not recorded"
    told = [*_describe_facts(result), *_describe_work(result)]
    rows: list[tuple[str, Quantity, Quantity]] = []
    if len(result.scopes) <= ROWS:
        rows += [(s.scope, s.energy, s.mean_w) for s in result.scopes]
    if len(result.scopes) != 1:
        rows += [(g.name, g.energy, g.mean_w) for g in result.groups]
    if not rows:
        return "\n".join([f"{head}, no power meter (joulelab meters says what is missing); run {run.name}", *told])
    cells = [(name, format_energy(joules), f"{watts.value:.1f} W") for name, joules, watts in rows]
    cells += _list_phases(result)
    widths = [max(len(c[i]) for c in cells) for i in range(3)]
    lines = [f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in cells]
    if (check := result.bound_check) is not None:
        bound = word_check(check)
        told = [f"  note: {bound.text} -> {bound.next}", *told]
    if (whole := result.energy) is not None:
        head += f", {format_energy(whole)} ({format_watt_hours(whole.value)})"
    return "\n".join([f"{head}, run {run.name}", *lines, *told])


def format_energy(joules: Quantity) -> str:
    """Return an energy with its expanded uncertainty (k = 2), where one is known: `1.234 kJ ± 0.012`."""
    return _scaled(joules, "J")


def format_watt_hours(joules: float) -> str:
    """Return an energy as on an electricity bill, with three digits: `7.83 Wh`, `123 kWh`."""
    factor, prefix = _scale(joules / J_PER_WH)
    return f"{joules / J_PER_WH / factor:.3g} {prefix}Wh"


def _scale(value: float) -> tuple[float, str]:
    """Return what to divide a value by, and the SI prefix that says so."""
    size = abs(value)
    scales = _PREFIXES if size >= 1 or size == 0 else _SMALL
    return next(((f, p) for f, p in scales if size >= f), (1.0, "") if size == 0 else scales[-1])


def _scaled(q: Quantity, unit: str) -> str:
    factor, prefix = _scale(q.value)
    text = f"{q.value / factor:.3f} {prefix}{unit}"
    if q.expanded is not None and 0 <= q.value < q.expanded:  # an energy is not below zero
        return f"{text} (0 to {(q.value + q.expanded) / factor:.3f})"
    return text if q.expanded is None else f"{text} ± {q.expanded / factor:.3f}"


def _list_phases(result: Result) -> list[tuple[str, str, str]]:
    """Return the phases that used most in their order, steps as the stretches that they are."""

    def used(phase: PhaseResult) -> float:
        return phase.energy["measured"].value

    there = (*(p for p in result.phases if p.last is None), *result.stretches)
    known = [p for p in there if "measured" in p.energy and p.duration_s > 0]
    kept = sorted(known, key=used, reverse=True)[:PHASES]
    kept.sort(key=lambda p: (p.start_s, p.depth))
    return [(_make_title(p), format_energy(p.energy["measured"]), f"{used(p) / p.duration_s:.1f} W") for p in kept]


def _make_title(phase: PhaseResult) -> str:
    return "  " * phase.depth + _shorten(phase.title)


def _describe_facts(result: Result) -> list[str]:
    """Return what was worked on and how well that went, a line each."""
    data, quality = result.facts.get(DATA_FACT), format_quality(result.facts)
    lines = [] if data is None else [f"  data: {_shorten(str(data))}"]
    return lines + ([f"  quality: {quality}"] if quality else [])


def _describe_work(result: Result) -> list[str]:
    """Return work done, and the energy for each unit of it."""
    per, lines = result.per_work(), []
    for kind in list_figure_kinds(result.work):
        done = result.work[kind]
        factor, prefix = next(((f, p) for f, p in _PREFIXES if kind == "FLOP" and done >= f), (1.0, ""))
        each = f", {_scaled(per[kind], 'J/' + kind.removesuffix('s'))}" if kind in per else ""
        lines.append(f"  {done / factor:.6g} {prefix}{escape_unprintable(kind)}{each}")
    return lines


def _shorten(text: str) -> str:
    return escape_unprintable(text if len(text) <= MOST_OF_TEXT else f"{text[: MOST_OF_TEXT - 1]}…")
