"""Count what a campaign saw: counts of several campaigns add up, and one table shows them."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any

CAPS = ("by themselves", "at the next start", "never")
MOST_PROBLEMS = 20  # that are printed


@dataclass
class CampaignCounts:
    """Hold the counts of one campaign, or of several; times are in seconds.

    `lost_s` has one figure for each kill of a recorder: how long before the kill the last sample on the disk was
    taken, less one period. `waits_s` are the waits of a listed user of capd under a flood, `idle_waits_s` those for a
    server that does nothing, in the same seconds; `answers_s` those of a reader of the dashboard or the agent.
    `problems` are broken promises in words, each with its trial.
    """

    seconds: float = 0.0
    seeds: list[str] = field(default_factory=list)
    trials: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    lost_s: list[float] = field(default_factory=list)
    caps: Counter[str] = field(default_factory=Counter)
    processes_left: int = 0
    energies: int = 0
    energies_outside: int = 0
    outside: list[str] = field(default_factory=list)
    damaged: int = 0
    noticed: int = 0
    faults: int = 0
    faults_silent: int = 0
    fuzzed: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    waits_s: list[float] = field(default_factory=list)
    idle_waits_s: list[float] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, other: CampaignCounts) -> None:
        """Add the counts of another campaign."""
        for each in fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(ours, Counter):
                ours.update(theirs)
            elif isinstance(ours, dict):
                ours |= theirs
            else:
                setattr(self, each.name, ours + theirs)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CampaignCounts:
        """Return the counts that `to_json` gave."""
        counters = ("trials", "kills", "caps", "fuzzed")
        return cls(**{key: Counter(value) if key in counters else value for key, value in data.items()})

    @property
    def is_promise_broken(self) -> bool:
        """Return whether a cap or a process was left, damage or a fault not noticed, or anything crashed."""
        unnoticed = self.damaged - self.noticed
        left = self.processes_left + self.caps["never"]
        return bool(left + unnoticed + self.crashes + self.faults_silent or self.problems)

    def to_rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table."""
        return [
            ("time", f"{self.seconds / 60:.1f} min"),
            ("trials", f"{self.trials.total()} ({_list_counts(self.trials)})"),
            ("kills", str(self.kills.total())),
            ("samples lost at a kill", _format_times(self.lost_s)),
            ("caps restored by themselves", str(self.caps["by themselves"])),
            ("caps restored at the next start", str(self.caps["at the next start"])),
            ("caps never restored", str(self.caps["never"])),
            ("processes left", str(self.processes_left)),
            ("energies outside their interval", f"{self.energies_outside} of {self.energies}"),
            ("damaged folders noticed", f"{self.noticed} of {self.damaged}"),
            ("disk and clock faults not stated", f"{self.faults_silent} of {self.faults}"),
            ("fuzzed inputs", f"{self.fuzzed.total():,} ({len(self.fuzzed)} parsers)"),
            ("crashes", str(self.crashes)),
            ("wait of a listed user of capd", _format_times(self.waits_s)),
            ("wait for a server that does nothing", _format_times(self.idle_waits_s)),
            ("wait of a reader of dashboard or agent", _format_times(self.answers_s)),
            *((f"skipped: {part}", why) for part, why in self.skipped.items()),
        ]

    def to_table(self) -> str:
        """Return the table, and the broken promises below it."""
        width = max(len(name) for name, _ in self.to_rows())
        lines = [f"{name:<{width}}  {value}" for name, value in self.to_rows()]
        lines += [f"outside  {figure}" for figure in self.outside[:MOST_PROBLEMS]]
        more = len(self.problems) - MOST_PROBLEMS
        lines += [f"BROKEN  {problem}" for problem in self.problems[:MOST_PROBLEMS]]
        return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _format_times(times: list[float]) -> str:
    if not times:
        return "none"
    return f"median {statistics.median(times):.2f} s, worst {max(times):.2f} s, of {len(times)}"
