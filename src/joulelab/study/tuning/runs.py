"""Tune by whole runs: each trial is a slot of a study, so that what was run before counts and a break costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, JoulelabError, MeterError, Refused
from joulelab.study import matrix
from joulelab.study.drive import Driver, Outcome
from joulelab.study.folder import Plan, Settings, Study, join_study, open_study
from joulelab.study.knobs import Knob
from joulelab.study.results import WorkPattern, gather_results, load_trial
from joulelab.study.slots import State, list_claimed_slots, read_slot
from joulelab.study.tuning.judged import judge
from joulelab.study.tuning.search import Choice, Search
from joulelab.study.tuning.tuned import Price, Sample, Tuned, is_hopeless, take_effect, why_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import Cell, Trial
    from joulelab.study.drive import SlotEvent, StopRequest
    from joulelab.study.executors import Executor
    from joulelab.study.matrix import PlannedCell, Workload
    from joulelab.study.results import SlotTrial
    from joulelab.study.tuning.grid import Grid

COMMON = ("gain", "offset", "unseen", "in-step")
REPEAT_MAX = 5
# Caps change the energy of a run by 5 to 30 % (published sweeps): an interval of one run that is wider hides that.
WIDEST_SHARE = 0.05
SHORTEST_S = 5.0  # what is recommended at least: a start-up of a second is then no large part of a run


@dataclass(slots=True)
class _Used:
    """Count what this tuning ran itself: energy (J) and time (s) by cap."""

    runs: int = 0
    energy: dict[float, float] = field(default_factory=dict)
    time: dict[float, float] = field(default_factory=dict)

    def add(self, cap: float, trial: Trial) -> None:
        self.runs += 1
        self.energy[cap] = self.energy.get(cap, 0.0) + (0.0 if trial.energy is None else trial.energy.value)
        self.time[cap] = self.time.get(cap, 0.0) + trial.time_s


def open_plan(
    folder: Path,
    name: str,
    workload: Workload,
    grid: Grid,
    given: Mapping[str, object],
    goal: Goal,
    work: Sequence[WorkPattern] = (),
) -> tuple[Study, dict[float, PlannedCell]]:
    """Make a study with a cell for each cap, or go on with one of the same command, a sweep's too.

    `given` are settings that were asked for; others stay as they are. Raises ConfigError, StoreError.
    """
    planned = matrix.make_cells(workload, [Knob("cap", tuple(grid.values.values()))])
    cells = dict(zip(grid.values, planned, strict=True))
    before = open_study(folder).data if (folder / "study.json").is_file() else {}
    settings = Settings.from_json({**before.get("settings", {}), **given})
    plan = Plan(
        list({**_there(folder, before), **{c.key: c for c in cells.values()}}.values()),
        repeats=int(before.get("repeats", 1)),
        warmup=int(before.get("warmup", 0)),
        settings=settings,
        goals=tuple(dict.fromkeys([*before.get("goals", ()), goal.text])),
        reference=before.get("reference", {}),
        work=tuple(w.to_json() for w in work) or tuple(before.get("work", ())),
        scope=before.get("scope"),
    )
    return join_study(folder, name, plan, None), cells


def _there(folder: Path, before: Mapping[str, object]) -> dict[str, PlannedCell]:
    return Study(folder, before).read_cells() if before else {}


def _check_length(trial: Trial, folder: Path) -> None:
    """Refuse a run whose own interval is wider than what caps change. Raises Refused."""
    assert trial.energy is not None
    value, expanded = trial.energy.value, 2 * trial.energy.without(*COMMON).u
    if expanded <= WIDEST_SHARE * value:
        return
    share = expanded / value if value > 0 else 1.0
    needed_s = math.ceil(max(2 * trial.time_s * share / WIDEST_SHARE, SHORTEST_S))
    then = f"let the command run for at least {needed_s} s (more steps or epochs)"
    raise Refused(
        f"a run of {trial.time_s:.3g} s is too short to tune by",
        where="tune",
        why=f"its energy is known to ± {share:.0%} only, caps change it by about {WIDEST_SHARE:.0%} or more",
        next=f"{then}; this run is kept, so give another --name or remove {folder}",
    )


class Tuning:
    """Search the best cap by whole runs; `tell` hears of slots, `say` what is tried next."""

    def __init__(
        self,
        study: Study,
        cells: Mapping[float, PlannedCell],
        grid: Grid,
        goal: Goal,
        *,
        executor: Executor,
        tell: Callable[[SlotEvent], None],
        say: Callable[[str], None],
        trials: int | None = None,
        repeat_max: int = REPEAT_MAX,
        work: Sequence[WorkPattern] = (),
        scope: str | None = None,
        retry: bool = False,
    ) -> None:
        self._retry = retry
        self._study, self._cells, self._grid, self._goal = study, dict(cells), grid, goal
        self._executor, self._tell, self._say = executor, tell, say
        self._repeat_max, self._scope = repeat_max, scope
        self._work = list(work) or [WorkPattern.from_json(each) for each in study.data["work"]]
        self._caps = {cell.key: cap for cap, cell in cells.items()}
        self._search = Search(grid.watts, goal, budget=trials)
        self._told: dict[float, list[Trial]] = {}
        self._unheld: dict[float, list[Trial]] = {}
        self._problem = ""
        self._used = _Used()
        self._per: str | None = None
        self._notes: list[str] = []
        self.stopped_by: int | None = None

    def run(self, stop: StopRequest) -> None:
        """Try caps until the search has enough, or a signal says so. Raises JoulelabError where nothing can be run.

        What was run before is taken in the order in which the search asks for it, so that it goes on as it went; what
        is left of it (a sweep has more) counts in the choice.
        """
        self._search_on(stop)
        if self.stopped_by is None and not self._problem:
            for cap in self._cells:
                self._take(cap, [trial for trial in self._fresh(cap) if not trial.uncapped])
            if self._unheld and not self._caps_work():
                self._not_enforced()

    def _search_on(self, stop: StopRequest) -> None:
        while self.stopped_by is None and not self._problem and (cap := self._search.next()) is not None:
            if len(self._told.get(cap, ())) >= self._repeat_max:
                self._notes.append(f"{self._grid.shown[cap]} would be tried more often than --repeat-max allows")
                return
            if is_hopeless(self._goal, self._samples(), self._grid.reference, cap):
                self._drop(cap)
                continue
            fresh = self._fresh(cap)[:1]
            if not fresh:
                self._say(self._trying(cap))
                fresh = self._run_one(cap, stop)
            if fresh and fresh[0].uncapped:
                self._doubt(cap, fresh)
            elif fresh:
                self._take(cap, fresh)
            elif self.stopped_by is None:
                self._leave_out(cap)

    def _trying(self, cap: float) -> str:
        known = sum(map(len, self._told.values()))
        again = f", again ({len(self._told[cap]) + 1})" if cap in self._told else ""
        return f"trial {known + 1}: {self._grid.shown[cap]}{again}"

    def _trials(self, cap: float) -> list[Trial]:
        """Return the trials that the study has of a cap."""
        key = self._cells[cap].key
        return next((list(c.trials) for c in self._gathered() if c.key == key), [])

    def _fresh(self, cap: float) -> list[Trial]:
        """Return trials of a cap that the search has not been told of."""
        known = {trial.run for trial in (*self._told.get(cap, ()), *self._unheld.get(cap, ()))}
        return [trial for trial in self._trials(cap) if trial.run not in known]

    def _run_one(self, cap: float, stop: StopRequest) -> list[Trial]:
        """Run the next slot of a cap; none where it failed. Raises JoulelabError."""
        cell = self._cells[cap]
        repeat = 1
        while read_slot(self._study.get_slot_folder(cell.key, repeat)).state is State.DONE:
            repeat += 1
        outcome = Driver(self._study, {cell.key: cell}, repeat, self._executor, self._tell, retry=self._retry).run(stop)
        self._check(outcome)
        fresh = self._fresh(cap) if self.stopped_by is None else []
        for trial in fresh:
            self._used.add(cap, trial)
        return fresh

    def _check(self, outcome: Outcome) -> None:
        if outcome.stopped_by is not None:
            self.stopped_by = outcome.stopped_by
        elif outcome.error is not None:
            raise outcome.error

    def _leave_out(self, cap: float) -> None:
        if cap == self._grid.reference:
            raise JoulelabError(
                f"the command failed under {self._grid.shown[cap]}, which all is compared with",
                where="tune",
                next=f"see {self._study.folder / 'cells' / self._cells[cap].key}",
            )
        self._notes.append(f"the command failed under {self._grid.shown[cap]}: it is left out")
        self._drop(cap)

    def _doubt(self, cap: float, fresh: Sequence[Trial]) -> None:
        """Search on without a cap that the GPUs did not keep to, nor any below it."""
        self._unheld.setdefault(cap, []).extend(fresh)
        self._say(f"  not used: {fresh[0].uncapped[0]}")
        if cap == self._grid.reference or (sum(map(len, self._unheld.values())) > 1 and not self._caps_work()):
            self._not_enforced()
            return
        self._notes.append(f"{self._grid.shown[cap]} and below are left out: {fresh[0].uncapped[0]}")
        for lower in [w for w in self._cells if w <= cap]:
            self._drop(lower)

    def _not_enforced(self) -> None:
        last = next(reversed(self._unheld.values()))[-1]
        self._problem = f"caps are not enforced here, so none is chosen ({last.uncapped[0]}); joulelab cap status"

    def _caps_work(self) -> bool:
        """Return whether caps change the power of the GPUs, although some were not kept to."""
        held, unheld = ({cap: self._gpu_w(of) for cap, of in by.items()} for by in (self._told, self._unheld))
        known = {cap: w for cap, w in held.items() if w > 0}
        return take_effect(known, [w for w in unheld.values() if w > 0], self._grid.reference)

    def _gpu_w(self, trials: Sequence[Trial]) -> float:
        """Return the mean power of the capped GPUs in some runs, 0 where it is not known."""
        runs = {trial.run for trial in trials}
        found = [t for t in self._slots() if t.run in runs and set(self._grid.scopes) <= set(t.energies)]
        energy = sum(t.energies[scope].value for t in found for scope in self._grid.scopes)
        return energy / sum(t.time_s for t in found) if found else 0.0

    def _slots(self) -> list[SlotTrial]:
        folders = [folder for key in self._caps for folder in list_claimed_slots(self._study.folder / "cells" / key)]
        return [load_trial(slot) for slot in map(read_slot, folders) if slot.state is State.DONE]

    def _drop(self, cap: float) -> None:
        """Search on without a cap; what is known of it is shown."""
        self._search.leave_out(cap)
        self._cells.pop(cap)

    def _take(self, cap: float, fresh: Sequence[Trial]) -> None:
        if any(trial.energy is None for trial in fresh):
            raise MeterError(
                "no energy was measured", where="tune", why="there is no power meter", next="joulelab meters"
            )
        for trial in fresh:
            _check_length(trial, self._study.folder)
        if fresh:
            self._told.setdefault(cap, []).extend(fresh)
        if self._per is None and fresh and len(self._told) == 1:
            kinds = [*(pattern.name for pattern in self._work), *fresh[0].work]
            self._per = next((kind for kind in kinds if fresh[0].work.get(kind, 0.0) > 0), None)
        for sample in map(self._sample, [cap] * len(fresh), fresh):
            devices = len(self._grid.scopes)
            u_energy = sample.energy.without(*COMMON).u
            self._search.tell(cap, sample.energy.value / devices, sample.time.value, u_energy / devices)

    def _samples(self) -> list[Sample]:
        return [self._sample(cap, trial) for cap, trials in self._told.items() for trial in trials]

    def _sample(self, cap: float, trial: Trial) -> Sample:
        """Return a trial per unit of work. Raises ConfigError where it reported none, unlike those before."""
        from joulelab.core.quantity import Quantity

        assert trial.energy is not None
        done = 1.0 if self._per is None else trial.work.get(self._per, 0.0)
        if done <= 0:
            raise ConfigError(f"run {trial.run} reported no {self._per}, but others did", where="tune")
        return Sample(cap, trial.energy * (1 / done), Quantity(trial.time_s / done))

    def choice(self) -> Choice | None:
        """Return the best cap so far, None where none was tried or none is to be recommended."""
        return self._search.choice() if self._told and not self._problem else None

    def tuned(self, command: str) -> Tuned:
        """Return what was found; `command` is how the workload is typed."""
        found = judge(self._gathered(), self._goal, self._caps, self._grid, [pattern.name for pattern in self._work])
        choice = self.choice()
        cap = None if choice is None else choice.cap
        best, base = found.row(cap), found.row(self._grid.reference)
        saved = slower = None
        if best is not None and base is not None and best.gain is not None and best.loss is not None:
            per_run = 1.0 if found.per is None else self._work_per_run(found.per)
            saved, slower = (base.energy - best.energy) * per_run, (best.time - base.time) * per_run
            saved, slower = replace(saved, known=best.gain.known), replace(slower, known=best.loss.known)
        tied = () if choice is None else found.tied(choice)
        interrupted = () if self.stopped_by is None else ("interrupted; type the same command to go on",)
        return Tuned(
            goal=self._goal,
            mode="runs",
            rows=found.rows,
            reference=self._grid.reference,
            unit=found.per or "",
            scopes=self._scope or "",
            choice=cap,
            tied=tied,
            why="" if choice is None else why_of(self._goal, choice, tied, len(self._told), self._grid.shown),
            complete=self.stopped_by is None,
            saved=saved,
            slower=slower,
            price=self._price(cap),
            notes=(*self._notes, *found.notes),
            problems=(*([self._problem] if self._problem else []), *interrupted),
            folder=str(self._study.folder),
            next=f"joulelab cap {self._grid.values[choice.cap].text} -- {command}" if choice else "",
        )

    def _gathered(self) -> list[Cell]:
        return gather_results(self._study, scope=self._scope, work=self._work, planned=[*self._caps]).cells

    def _work_per_run(self, kind: str) -> float:
        """Return the work of one run under the reference: energies and times are of a unit of it."""
        done = [trial.work[kind] for trial in self._told[self._grid.reference]]
        return sum(done) / len(done)

    def _price(self, best: float | None) -> Price:
        """Return what the trials that were run here cost, and how much more than if all had run under the choice."""
        used = self._used
        energy, time = sum(used.energy.values()), sum(used.time.values())
        if best is None or best not in self._told:
            return Price(used.runs, energy, time)
        ran = [t for t in self._told[best] if t.energy is not None]
        mean_j = sum(t.energy.value for t in ran if t.energy is not None) / len(ran)
        mean_s = sum(t.time_s for t in ran) / len(ran)
        return Price(used.runs, energy, time, energy - used.runs * mean_j, time - used.runs * mean_s)
