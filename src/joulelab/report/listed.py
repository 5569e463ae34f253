"""Word what lists tell of a run: its energy, and how it ended. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Mapping


def format_run_energy(listed: Mapping[str, Any]) -> str:
    """Return the energy of a run with its interval: `28.2 ± 1.7 kJ`, `~` before an estimate, `no meter`."""
    energy = listed["energy"]
    if energy is None:
        return "no meter"
    value, expanded = float(energy["value"]), energy["expanded"]
    factor, unit = fmt.choose_scale([value, expanded], "J")
    text = fmt.format_interval(value / factor, None if expanded is None else expanded / factor)
    return f"{'~' if listed['estimate'] else ''}{text} {unit}"


def format_run_end(listed: Mapping[str, Any]) -> str:
    """Return how a run ended: `exit 0`, `signal 9`, or what became of it."""
    if listed["outcome"] == "exit":
        return f"exit {listed['exit_code']}"
    return f"signal {listed['signal']}" if listed["outcome"] == "signal" else str(listed["outcome"])
