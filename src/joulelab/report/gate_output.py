"""Show the decision of a gate: the answer in one sentence, both groups of runs, at most three notes; or as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_comparison import make_samples
from joulelab.analysis.energy_gate import FEWEST_REPEATS, GateVerdict, judge_rise
from joulelab.analysis.study_cells import Note, compute_means
from joulelab.core.text import name_one
from joulelab.report.comparison import lay_out_notes
from joulelab.report.format import format_duration
from joulelab.report.group_comparison import find_unlike_groups, list_group_notes, make_group_cells
from joulelab.report.messages import COMPARISON, set_command_apart, word_note
from joulelab.report.tables import make_table, scale_column
from joulelab.report.terminal import BLANK_LINE, TextLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.core.quantity import Quantity
    from joulelab.report.group_comparison import RunGroup
    from joulelab.report.tables import Table
    from joulelab.report.terminal import TextBlock

EXIT_CODES = {"not above": 0, "above": 1, "undecided": 2}


@dataclass(frozen=True, slots=True)
class GateReport:
    """Hold a decision about two groups of runs; `per` is the work that energies are divided by, None for whole runs.

    `unlike` are the scopes that not all runs of the baseline, and that not all new runs measured. `commands` are the
    arguments of the commands of next steps, by the name of their field, quoted for a shell.
    """

    baseline: RunGroup
    current: RunGroup
    samples: tuple[RepeatSample | None, ...]
    means: tuple[Quantity | None, ...]
    verdict: GateVerdict
    limit: float
    per: str | None = None
    unlike: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Return 0 for not above, 1 for significantly above, 2 if it cannot be decided."""
        return EXIT_CODES[self.verdict.decision]

    @property
    def note(self) -> Note:
        """Return the answer as a code with numbers."""
        verdict = self.verdict
        numbers: dict[str, float] = {"limit": self.limit}
        if verdict.figure is not None and verdict.interval is not None:
            numbers |= {"change": verdict.figure - 1, "low": verdict.interval[0] - 1, "high": verdict.interval[1] - 1}
        texts = {**self.commands, **({"per": name_one(self.per)} if self.per else {})}
        for name, scopes in zip(("lacking_baseline", "lacking_new"), self.unlike, strict=True):
            texts |= {name: " + ".join(scopes)} if scopes else {}
        code = verdict.decision.replace(" ", "-")
        case = "scopes" if any(self.unlike) else "no-energy" if None in self.samples else str(verdict.reason)
        if verdict.decision == "above" and numbers["low"] <= self.limit:
            case = "possible"
        return Note(f"gate-{code}.{case}" if case else f"gate-{code}", numbers, texts)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; energies are in J, per unit of `per` if it is not None."""
        groups: dict[str, Mapping[str, Any]] = {}
        for name, group, sample in zip(
            ("baseline", "current"), (self.baseline, self.current), self.samples, strict=True
        ):
            groups[name] = {
                "chosen": group.words,
                "runs": [run.run for run in group.runs],
                "left_out": group.left_out,
                "energy": None if sample is None else sample.to_json(),
            }
        return {
            "decision": self.verdict.decision,
            "reason": self.verdict.reason,
            "exit_code": self.exit_code,
            "limit": self.limit,
            "ratio": self.verdict.figure,
            "ratio_interval": self.verdict.interval,
            "per": self.per,
            "not_in_baseline": self.unlike[0],
            "not_in_current": self.unlike[1],
            **groups,
            "verdict": word_note(self.note, COMPARISON),
            "notes": list_group_notes(self.baseline, self.current),
        }


def judge_groups(baseline: RunGroup, current: RunGroup, limit: float, level: float) -> GateReport:
    """Decide whether the runs of a group need more energy than those of the baseline.

    Undecided if they did not measure the same scopes: a rise may be in the part that is not compared.
    """
    cells, per = make_group_cells(baseline, current)
    first, second = samples = tuple(make_samples(cell, per).get("energy") for cell in cells)
    found = (compute_means(cell, per) for cell in cells)
    means = tuple(None if each is None else each.energy for each in found)
    verdict = GateVerdict("undecided")
    unlike = find_unlike_groups(baseline, current)
    if any(unlike):
        verdict = GateVerdict("undecided", "scopes")
    elif first is not None and second is not None:
        verdict = judge_rise(second, first, limit, level)
    return GateReport(baseline, current, samples, means, verdict, limit, per, unlike)


def word_progress(found: GateReport, at_most: int) -> str:
    """Return one line about the runs so far: `run 4 of at most 10: +1.2 % (-0.8 % to +3.2 %)`."""
    numbers = found.note.numbers if len(found.current.runs) >= FEWEST_REPEATS else {}
    note = Note("gate-progress", {"runs": len(found.current.runs), "at_most": at_most, **numbers})
    return word_note(note, COMPARISON)


def lay_out_gate(found: GateReport) -> list[TextBlock]:
    """Return the decision for a terminal: answer, groups, notes."""
    answer, _, command = set_command_apart(word_note(found.note, COMPARISON)).partition("\n")
    blocks: list[TextBlock] = [TextLine(answer, "bold")]
    blocks += [TextLine(command, is_wrapped=False)] if command else []
    blocks += [BLANK_LINE, make_gate_table(found), BLANK_LINE]
    notes = list_group_notes(found.baseline, found.current)
    return [*blocks, lay_out_notes(notes)] if notes else blocks[:-1]


def make_gate_table(found: GateReport) -> Table:
    """Return a row for each group: number of runs that have an energy, its mean with its interval, mean time."""
    unit = f"J/{name_one(found.per)}" if found.per else "J"
    rows = []
    for group, sample, mean in zip((found.baseline, found.current), found.samples, found.means, strict=True):
        seconds = sum(run.duration_s for run in group.runs) / len(group.runs)
        count = len(group.runs) if sample is None else sample.n
        rows.append((group.letter, count, mean, format_duration(seconds), group.words))
    return make_table(("", "runs", scale_column("energy", unit, found.means), "time", "chosen by"), rows, left=(0, 4))
