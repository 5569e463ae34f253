"""Print a measurement as a small table of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.analysis.terms import Quantity

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
# Scopes beyond this many are summed up in their groups.
ROWS = 12


def table(title: str, duration_s: float, run: Path | None, result: Result | None) -> str:
    """Return what was measured: a line per scope with energy, uncertainty and mean power, then the groups."""
    head = f"{title}: {duration_s:.3f} s"
    if run is None or result is None:
        return f"{head}, not recorded"
    rows: list[tuple[str, Quantity, Quantity]] = []
    if len(result.scopes) <= ROWS:
        rows += [(s.scope, s.energy, s.mean_w) for s in result.scopes]
    if len(result.scopes) != 1:
        rows += [(g.name, g.energy, g.mean_w) for g in result.groups]
    if not rows:
        return f"{head}, no power meter (joulelab meters says what is missing); run {run.name}"
    cells = [(name, energy(joules), f"{watts.value:.1f} W") for name, joules, watts in rows]
    widths = [max(len(c[i]) for c in cells) for i in range(3)]
    lines = [f"  {a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in cells]
    return "\n".join([f"{head}, run {run.name}", *lines])


def energy(joules: Quantity) -> str:
    """Return an energy with its expanded uncertainty (k = 2), where one is known: `1.234 kJ ± 0.012`."""
    factor, prefix = next(((f, p) for f, p in _PREFIXES if abs(joules.value) >= f), (1.0, ""))
    text = f"{joules.value / factor:.3f} {prefix}J"
    return text if joules.expanded is None else f"{text} ± {joules.expanded / factor:.3f}"
