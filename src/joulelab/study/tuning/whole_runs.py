"""Tune by whole runs: each trial is a slot of a study, so that earlier runs count and an interruption costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import REACHED
from joulelab.analysis.study_cells import (
    Cell,
    compute_means,
    divide_energies,
    divide_times,
    list_numbers,
    list_quality_figures,
)
from joulelab.core.errors import ConfigError, JoulelabError, MeterError, Refused
from joulelab.core.quantity import Quantity
from joulelab.study.drive import Driver
from joulelab.study.folder import (
    MAX_REPEATS,
    Plan,
    Settings,
    Study,
    check_same_study,
    describe_plan,
    join_study,
    open_study,
)
from joulelab.study.matrix import make_cells
from joulelab.study.results import WorkPattern, gather_results, load_trial
from joulelab.study.slots import State, list_claimed_slots, read_slot
from joulelab.study.tuning.search import Search, name_settings
from joulelab.study.tuning.tuning_result import (
    COMMON_SOURCES,
    MISSED,
    NOT_ENFORCED,
    Sample,
    SearchCost,
    SettingRow,
    TuningResult,
    explain_choice,
    find_row,
    is_doubted_by,
    is_hopeless,
    take_effect,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import CellMeans, Note, Trial
    from joulelab.study.drive import SlotEvent, StopRequest
    from joulelab.study.executors import Executor
    from joulelab.study.matrix import PlannedCell, Workload
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.search import Choice, Setting

REPEAT_MAX = 5
# Caps change the energy of a run by 5 to 30 % (published sweeps): an interval of one run that is wider hides that.
WIDEST_SHARE = 0.05
SHORTEST_S = 1.0  # a cap takes some 0.1 s to act, a sensor's mean up to 1 s: a shorter run says nothing about a cap
RECOMMENDED_S = 5.0  # a start-up of a second is then no large part of a run
# Notes of a summary on all its cells, of which some may not be shown.
NOTES_ON_ALL = ("one-run-each", "one-run.unknown", "one-run.pooled", "cells-missing", "reference-missing")
FEW_SETTINGS = 7  # below it, the usual budget is the reference and one more


def open_tuning_study(
    folder: Path,
    name: str,
    workload: Workload,
    grid: Grid,
    given: Mapping[str, object],
    goal: Goal,
    work: Sequence[WorkPattern] = (),
) -> tuple[Study, dict[Setting, PlannedCell], Plan]:
    """Plan a study with a cell for each setting, or more cells of one of the same command, a sweep's too.

    `given` are settings that were typed; all else stays as it is. Nothing is written: a tuning that is refused leaves
    a study alone. Raises ConfigError, StoreError.
    """
    cells = dict(zip(grid.values, make_cells(workload, grid.knobs), strict=True))
    before = open_study(folder).data if (folder / "study.json").is_file() else {}
    settings = Settings.from_json({**before.get("settings", {}), **given})
    study = Study(folder, before)
    there = study.read_cells() if before else {}
    plan = Plan(
        list({**there, **{c.key: c for c in cells.values()}}.values()),
        repeats=int(before.get("repeats", 1)),
        warmup=int(before.get("warmup", 0)),
        settings=settings,
        goals=tuple(dict.fromkeys([*before.get("goals", ()), goal.text])),
        reference=before.get("reference", {}),
        work=tuple(w.to_json() for w in work) or tuple(before.get("work", ())),
        scope=before.get("scope"),
        per=before.get("per"),
        nodes=study.nodes,
        timeouts=before.get("timeouts", {}),
        until=before.get("until"),
        repeat_max=before.get("repeat_max", MAX_REPEATS),
    )
    check_same_study(folder, before or None, plan, None)
    return Study(folder, describe_plan(name, plan, None, before or None)), cells, plan


def check_length(trial: Trial, folder: Path) -> None:
    """Refuse a run that is too short to show the effect of a cap. Raises Refused.

    Its interval alone does not show it: under a steady load the energy of 2 ms may be known well, and of a meter of
    unknown accuracy there is no interval at all. Errors that a longer run would not reduce do not count: gain and
    offset cancel between caps, and a load in step with its sensor stays so.
    """
    assert trial.energy is not None
    value, expanded = trial.energy.value, 2 * trial.energy.without(*COMMON_SOURCES).u
    if expanded <= WIDEST_SHARE * value and trial.time_s >= SHORTEST_S:
        return
    share = expanded / value if value > 0 else 1.0
    needed_s = math.ceil(max(2 * trial.time_s * share / WIDEST_SHARE, RECOMMENDED_S))
    known = f"apart from errors of the meter that caps share, its energy is known to ± {100 * share:.2g} % only"
    why = f"{known}, caps change it by about {100 * WIDEST_SHARE:g} % or more"
    if share <= WIDEST_SHARE:
        why = f"a cap acts on it only after some 0.1 s, and sensors average over up to {SHORTEST_S:g} s"
    raise Refused(
        f"a run of {trial.time_s:.3g} s is too short to tune by",
        where="tune",
        why=why,
        next=f"let the command run for at least {needed_s} s (more steps or epochs); "
        f"this run stays stored, so give another --name or remove {folder}",
        code="refused.run-too-short",
    )


class RunTuning:
    """Search the best setting by whole runs; `on_event` gets events of slots, `notify` a line for each new trial."""

    def __init__(
        self,
        study: Study,
        cells: Mapping[Setting, PlannedCell],
        plan: Plan,
        grid: Grid,
        goal: Goal,
        *,
        executor: Executor,
        on_event: Callable[[SlotEvent], None],
        notify: Callable[[str], None],
        trials: int | None = None,
        repeat_max: int = REPEAT_MAX,
        work: Sequence[WorkPattern] = (),
        scope: str | None = None,
        retry: bool = False,
    ) -> None:
        self._retry = retry
        self._plan: Plan | None = plan  # None once it is written
        self._usual_budget = trials is None
        self._study, self._cells, self._grid, self._goal = study, dict(cells), grid, goal
        self._executor, self._on_event, self._notify = executor, on_event, notify
        self._repeat_max, self._scope = repeat_max, scope
        self._work = list(work) or [WorkPattern.from_json(each) for each in study.data["work"]]
        self._settings = {cell.key: setting for setting, cell in cells.items()}
        self._search = Search(grid.settings, goal, budget=trials)
        self._trials: dict[Setting, list[Trial]] = {}
        self._unheld: dict[Setting, list[Trial]] = {}
        self._missed: list[Setting] = []  # the quality of the goal
        self._problem = ""
        self._spent: list[Trial] = []  # by this tuning itself
        self._per: str | None = None
        self._notes: list[str] = []
        self.stopped_by: int | None = None

    def run(self, stop: StopRequest) -> None:
        """Try settings until the search is done, or a signal stops it. Raises JoulelabError if nothing can be run.

        Earlier runs are used in the order in which the search asks for them, so that it continues as it was; all
        others of the same settings (a sweep has more) count in the choice.
        """
        self._try_settings(stop)
        if self.stopped_by is None and not self._problem:
            for setting in self._cells:
                self._add_trials(setting, [trial for trial in self._find_new_trials(setting) if not trial.uncapped])
            if self._unheld and not self._have_caps_effect():
                self._report_unenforced()
            self._write_plan()

    def _write_plan(self) -> None:
        """Write the study, at the first new run at the latest."""
        if self._plan is not None:
            self._study = join_study(self._study.folder, self._study.name, self._plan, None)
            self._plan = None

    def _try_settings(self, stop: StopRequest) -> None:
        while self.stopped_by is None and not self._problem and (setting := self._search.next()) is not None:
            if len(self._trials.get(setting, ())) >= self._repeat_max:
                self._notes.append(f"{self._grid.labels[setting]} would be tried more often than --repeat-max allows")
                return
            if is_hopeless(self._goal, self._list_samples(), self._grid.reference, setting):
                self._drop(setting)
                continue
            new = self._find_new_trials(setting)[:1]
            if not new:
                again = f", again ({len(self._trials[setting]) + 1})" if setting in self._trials else ""
                self._notify(f"trial {self._search.trials + 1}: {self._grid.labels[setting]}{again}")
                new = self._run_slot(setting, stop)
            if new and not new[0].uncapped and self._reaches_quality(new[0]):
                self._add_trials(setting, new)
                continue
            if self.stopped_by is None:
                self._search.count_trial()
            if new and new[0].uncapped:
                self._doubt(setting, new)
            elif new:
                self._miss_quality(setting, new[0])
            elif self.stopped_by is None:
                self._leave_out(setting)

    def _find_new_trials(self, setting: Setting) -> list[Trial]:
        """Return the trials that the study has of a setting and the search has not."""
        known = {trial.run for trial in (*self._trials.get(setting, ()), *self._unheld.get(setting, ()))}
        key = self._cells[setting].key
        every: list[Trial] = next((list(c.trials) for c in self._gather_cells() if c.key == key), [])
        return [trial for trial in every if trial.run not in known]

    def _run_slot(self, setting: Setting, stop: StopRequest) -> list[Trial]:
        """Run the next slot of a setting; return no trial if it failed. Raises JoulelabError."""
        self._write_plan()
        cell = self._cells[setting]
        repeat = 1
        while read_slot(self._study.get_slot_folder(cell.key, repeat)).state is State.DONE:
            repeat += 1
        driver = Driver(self._study, {cell.key: cell}, repeat, self._executor, self._on_event, retry=self._retry)
        outcome = driver.run(stop)
        if outcome.stopped_by is not None:
            self.stopped_by = outcome.stopped_by
            return []
        if outcome.error is not None:
            raise outcome.error
        new = self._find_new_trials(setting)
        self._spent += new
        return new

    def _leave_out(self, setting: Setting) -> None:
        if setting == self._grid.reference:
            raise JoulelabError(
                f"the command failed under {self._grid.labels[setting]}, the reference of all settings",
                where="tune",
                next=f"see {self._study.folder / 'cells' / self._cells[setting].key}",
            )
        self._notes.append(f"the command failed under {self._grid.labels[setting]}: it is left out")
        self._drop(setting)

    def _reaches_quality(self, trial: Trial) -> bool:
        """Return whether a run reaches the qualities of the goal. Raises Refused if it does not report one."""
        limits = [limit.name for limit in self._goal.quality]
        figures = list_quality_figures([trial], limits)
        lacking = [name for name in limits if name not in figures]
        if lacking:
            reported = ", ".join(sorted({*figures, *list_numbers(trial.facts)})) or "no quality"
            raise Refused(
                f"run {trial.run} reports no {', '.join(lacking)}",
                where="tune",
                why=f"it reports {reported}",
                next="name a quality that it reports, or leave the limit out",
                code="refused.no-quality",
            )
        verdict = self._goal.judge_quality({name: Quantity(own[0]) for name, own in figures.items()})
        return not limits or verdict in REACHED

    def _miss_quality(self, setting: Setting, trial: Trial) -> None:
        """Search on without a setting whose run misses a quality of the goal. Raises Refused for the reference."""
        limits = " and ".join(limit.text for limit in self._goal.quality)
        label = self._grid.labels[setting]
        if setting == self._grid.reference:
            what = f"run {trial.run} under {label} misses {limits}"
            raise Refused(
                what, where="tune", why="it is the reference of all settings", next="train longer, or lower the limit"
            )
        self._missed.append(setting)
        self._drop(setting)

    def _doubt(self, setting: Setting, new: Sequence[Trial]) -> None:
        """Search on without a cap that the GPUs did not keep to, and without lower ones."""
        self._unheld.setdefault(setting, []).extend(new)
        self._notify(f"  not used: {new[0].uncapped[0]}")
        several = sum(map(len, self._unheld.values())) > 1
        if setting == self._grid.reference or (several and not self._have_caps_effect()):
            self._report_unenforced()
            return
        self._notes.append(f"{self._grid.labels[setting]} and below are left out: {new[0].uncapped[0]}")
        for lower in [one for one in self._cells if is_doubted_by(one, setting)]:
            self._drop(lower)

    def _report_unenforced(self) -> None:
        last = next(reversed(self._unheld.values()))[-1]
        self._problem = f"caps are not enforced here, so none is chosen ({last.uncapped[0]}); joulelab cap status"

    def _have_caps_effect(self) -> bool:
        """Return whether caps change the power of the GPUs, although some were not kept."""
        held, unheld = ({s: self._compute_gpu_w(own) for s, own in by.items()} for by in (self._trials, self._unheld))
        known = {setting: w for setting, w in held.items() if w > 0}
        return take_effect(known, [w for w in unheld.values() if w > 0], self._grid.reference)

    def _compute_gpu_w(self, trials: Sequence[Trial]) -> float:
        """Return the mean power of the capped GPUs in some runs, 0 if it is not known."""
        runs = {trial.run for trial in trials}
        folders = [f for key in self._settings for f in list_claimed_slots(self._study.folder / "cells" / key)]
        every = [load_trial(slot) for slot in map(read_slot, folders) if slot.state is State.DONE]
        found = [t for t in every if t.run in runs and set(self._grid.scopes) <= set(t.energies)]
        energy = sum(t.energies[scope].value for t in found for scope in self._grid.scopes)
        return energy / sum(t.time_s for t in found) if found else 0.0

    def _drop(self, setting: Setting) -> None:
        """Search on without a setting; its figures are shown."""
        self._search.leave_out(setting)
        self._cells.pop(setting)

    def _add_trials(self, setting: Setting, new: Sequence[Trial]) -> None:
        if any(trial.energy is None for trial in new):
            raise MeterError(
                "no energy was measured", where="tune", why="there is no power meter", next="joulelab meters"
            )
        for trial in new:
            check_length(trial, self._study.folder)
        if new:
            self._trials.setdefault(setting, []).extend(new)
        if self._per is None and new and len(self._trials) == 1:
            kinds = [*(pattern.name for pattern in self._work), *new[0].work]
            self._per = next((kind for kind in kinds if new[0].work.get(kind, 0.0) > 0), None)
        devices = len(self._grid.scopes)
        for sample in (self._make_sample(setting, trial) for trial in new):
            u_energy = sample.energy.without(*COMMON_SOURCES).u
            self._search.add_trial(setting, sample.energy.value / devices, sample.time.value, u_energy / devices)

    def _list_samples(self) -> list[Sample]:
        return [self._make_sample(setting, trial) for setting, trials in self._trials.items() for trial in trials]

    def _make_sample(self, setting: Setting, trial: Trial) -> Sample:
        """Return a trial per unit of work. Raises ConfigError if it reported none, unlike earlier ones."""
        assert trial.energy is not None
        amount = 1.0 if self._per is None else trial.work.get(self._per, 0.0)
        if amount <= 0:
            raise ConfigError(f"run {trial.run} reported no {self._per}, but others did", where="tune")
        return Sample(setting, trial.energy * (1 / amount), Quantity(trial.time_s / amount))

    def choose(self) -> Choice | None:
        """Return the best setting so far, None if none was tried or none can be recommended."""
        return self._search.choose() if self._trials and not self._problem else None

    def make_result(self, command: str) -> TuningResult:
        """Return the result; `command` is the workload as it is typed."""
        per = [pattern.name for pattern in self._work]
        found = compare_cells(self._gather_cells(), self._goal, self._settings, self._grid, per)
        choice = self.choose()
        setting = None if choice is None else choice.setting
        best, base = find_row(found.rows, setting), find_row(found.rows, self._grid.reference)
        saved = slower = None
        if best is not None and base is not None and best.gain is not None and best.loss is not None:
            done = [trial.work[found.per] for trial in self._trials[self._grid.reference]] if found.per else [1.0]
            per_run = sum(done) / len(done)
            saved, slower = (base.energy - best.energy) * per_run, (best.time - base.time) * per_run
            saved, slower = replace(saved, known=best.gain.known), replace(slower, known=best.loss.known)
        tied = () if choice is None else found.find_tied(choice)
        interrupted = () if self.stopped_by is None else ("interrupted; type the same command to continue",)
        tried, is_equal = len(self._trials.keys() - self._missed), self._grid.reference in tied
        rows = [replace(row, doubt=MISSED) if row.setting in self._missed else row for row in found.rows]
        return TuningResult(
            goal=self._goal,
            mode="runs",
            rows=tuple(rows),
            reference=self._grid.reference,
            unit=found.per or "",
            scopes=self._scope or "",
            choice=setting,
            tied=tied,
            why="" if choice is None else explain_choice(self._goal, choice, tied, tried, self._grid.labels),
            complete=self.stopped_by is None,
            saved=saved,
            slower=slower,
            cost=self._compute_cost(setting),
            notes=(*self._notes, *self._note_search(is_equal=is_equal), *found.notes),
            problems=(*([self._problem] if self._problem else []), *interrupted),
            folder=str(self._study.folder),
            next="" if setting is None or is_equal or tried < 2 else self._grid.write_command(setting, command),
        )

    def _note_search(self, *, is_equal: bool) -> list[str]:
        """Return what the search left out, and whether its choice is a guess."""
        labels, noun, notes = self._grid.labels, name_settings(self._grid.settings), []
        if self._missed:
            limits = " and ".join(limit.text for limit in self._goal.quality)
            missed = ", ".join(labels[setting] for setting in self._missed)
            notes.append(f"left out, because the run misses {limits}: {missed}")
        if is_equal:
            like = f"no significant difference from {labels[self._grid.reference]}"
            notes.append(f"no {noun[:-1]} is proposed: {like}; repeat with more --trials or longer runs")
        count = len(self._settings)
        if self._usual_budget and count < FEW_SETTINGS and self._search.budget <= self._search.trials < count:
            notes.append(f"{self._search.trials} trials for {count} {noun}: --trials {count} tries more of them")
        return notes

    def _gather_cells(self) -> list[Cell]:
        planned = [*self._settings]
        return gather_results(self._study, scope=self._scope, work=self._work, planned=planned).cells

    def _compute_cost(self, best: Setting | None) -> SearchCost:
        """Return the cost of the trials of this tuning, and how much more it is than under the choice."""
        runs = len(self._spent)
        energy = sum(0.0 if trial.energy is None else trial.energy.value for trial in self._spent)
        time = sum(trial.time_s for trial in self._spent)
        if best is None or best not in self._trials:
            return SearchCost(runs, energy, time)
        ran = [t for t in self._trials[best] if t.energy is not None]
        mean_j = sum(t.energy.value for t in ran if t.energy is not None) / len(ran)
        mean_s = sum(t.time_s for t in ran) / len(ran)
        return SearchCost(runs, energy, time, energy - runs * mean_j, time - runs * mean_s)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Hold the rows of the settings tried, the work that they are per, and notes, by the statistics of studies.

    `like_best` are the best setting by these figures and those without significant difference from it.
    """

    rows: tuple[SettingRow, ...] = ()
    per: str | None = None
    notes: tuple[str | Note, ...] = ()
    like_best: tuple[Setting, ...] = ()

    def find_tied(self, choice: Choice) -> tuple[Setting, ...]:
        """Return settings without significant difference from the choice: by the search, or by these figures."""
        like = self.like_best if choice.setting in self.like_best else ()
        return tuple(one for one in dict.fromkeys([*choice.tied, *like]) if one != choice.setting)


def compare_cells(
    cells: Sequence[Cell], goal: Goal, settings: Mapping[str, Setting], grid: Grid, per: Sequence[str] = ()
) -> Comparison:
    """Compare the settings (by key of the cell) as a sweep of the same slots would; `per` is work that was asked for.

    Runs that were not capped are left out.
    """
    held = [Cell(c.key, c.knobs, tuple(t for t in c.trials if not t.uncapped)) for c in cells]
    there = {c.key for c in held if c.trials}
    reference = next((c for c in held if settings.get(c.key) == grid.reference), None)
    doubtful = [
        _make_doubtful_row(c, settings[c.key], grid)
        for c in cells
        if c.key in settings and c.trials and c.key not in there
    ]
    if not there or reference is None:
        return Comparison(tuple(doubtful))
    used = [c for c in held if c.key in there or c is reference]
    summary = summarise_cells(used, goals=[goal], reference=dict(reference.knobs), ks=(), per=per)
    # Cells with another clock are lines of their own; all of them are compared with the one reference.
    line = next(line for line in summary.lines if reference.key in line.cells)
    means = {key: own for c in used if (key := c.key) in settings and (own := summary.cell(key).compared) is not None}
    base = means.get(reference.key)
    rows = [_make_row(goal, summary, key, (own, base), settings[key], grid) for key, own in means.items()]
    is_pair = grid.reference.cap_w is not None and grid.reference.clock_hz is not None
    best = summary.best_for(goal, None if is_pair else line.key)
    like = () if best is None else tuple(settings[key] for key in (best.cell, *best.tied) if key in settings)
    ordered = sorted([*rows, *doubtful], key=lambda row: row.setting.rank, reverse=True)
    notes = [
        replace(note, code="warnings.tuned") if note.code == "warnings" else note
        for note in summary.notes
        if note.code not in NOTES_ON_ALL and not note.code.startswith("quality-")
    ]
    return Comparison(tuple(ordered), line.per, (*_note_single_runs(rows), *notes), like)


def _make_row(
    goal: Goal,
    summary: StudySummary,
    key: str,
    means: tuple[CellMeans, CellMeans | None],
    setting: Setting,
    grid: Grid,
) -> SettingRow:
    cell, (own, base) = summary.cell(key), means
    assert own.energy is not None
    energy, time = (None, None) if base is None else (divide_energies(own, base), divide_times(own, base))
    score = goal.score(energy, time) if energy is not None and time is not None else None
    return SettingRow(setting, grid.labels[setting], cell.n, own.energy, own.time, cell.gain, cell.loss, score)


def _make_doubtful_row(cell: Cell, setting: Setting, grid: Grid) -> SettingRow:
    mean = compute_means(cell)
    assert mean is not None
    assert mean.energy is not None
    label, n = grid.labels[setting], len(cell.trials)
    return SettingRow(setting, label, n, mean.energy, mean.time, doubt=NOT_ENFORCED)


def _note_single_runs(rows: Sequence[SettingRow]) -> list[str]:
    """Name the settings with one run, whose spread is not known."""
    single = [row for row in rows if row.n == 1 and not row.time.known]
    if not single:
        return []
    noun = name_settings([row.setting for row in rows])
    which, where = f"one run of {', '.join(row.label for row in single)}", "the intervals there"
    if len(single) == len(rows):
        which, where = "one run each", "these intervals, which hold the meter only"
    elif len(single) > 3:
        which = f"one run of {len(single)} {noun}"
    return [f"{which}: the spread between runs is not included in {where}; use more --trials"]
