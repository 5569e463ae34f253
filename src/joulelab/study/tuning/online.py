"""Tune inside one run: try settings in windows between reports of work, and account for the saving at its end."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, MeterError, Refused
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.study.tuning import windows
from joulelab.study.tuning.grid import describe_setting
from joulelab.study.tuning.search import Search
from joulelab.study.tuning.tuning_result import (
    COMMON_SOURCES,
    Sample,
    SearchCost,
    TuningResult,
    average_samples,
    explain_choice,
    is_doubted_by,
    is_hopeless,
    take_effect,
)
from joulelab.study.tuning.windows import Window, WorkLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.goals import Goal
    from joulelab.control.client import HeldCap
    from joulelab.run.recording import RunRecording
    from joulelab.run.run_caps import RunCaps
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.search import Choice, Setting
    from joulelab.study.tuning.tuning_result import SettingRow

POLL_S, WATCH_S = 0.25, 1.0
JOIN_S = 10.0
COVER_NS = 3 * NS  # how long readings may take to reach the disk
LEAST_REPORTS, LEAST_LINES = 5, 2
RETAKES = 2  # of a window in which work stood still
STEADY_WINDOWS = 10
AGREE, DISAGREE = 0.02, 0.10  # windows that differ by less always agree; by more, never
DRIFT = 0.01
TRIALS = 10
STEP_NS = NS  # how finely a drift is followed
LATER = 0.01  # a smaller change after the choice does not count
LEAST_S = 2.0  # a shorter rest of the run is not looked at
Stretches = list[tuple[int, int]]
UNSEEN = "sensors that see a part of the time are taken to see the same part under all caps"
SELDOM = "other meters are read too seldom for the energy of a window, so they are not compared"
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """Hold log ratios of time and energy per work to the first window under the reference, by time (ns).

    They are interpolated between windows, and constant after the last. The change may have come at once, or go on:
    `estimate_u` covers that.
    """

    anchors: tuple[tuple[int, Pair], ...]

    @classmethod
    def from_windows(cls, measured: Sequence[Window]) -> Drift:
        """Make it from the windows under the reference, in order; at least one."""
        time, energy = measured[0].time_per.value, measured[0].energy_per.value
        return cls(
            tuple(
                (w.from_ns, (math.log(w.time_per.value / time), math.log(w.energy_per.value / energy)))
                for w in measured
            )
        )

    def interpolate(self, t_ns: int) -> Pair:
        """Return time and energy per work at a time, against those at the first."""
        (before, low), (after, high) = self._find_anchors(t_ns)
        share = min(max((t_ns - before) / (after - before), 0.0), 1.0) if after > before else 0.0
        time, energy = (math.exp(a + share * (b - a)) for a, b in zip(low, high, strict=True))
        return time, energy

    def estimate_u(self, t_ns: int) -> Pair:
        """Return the relative uncertainty of it: the change may have come at any time between the two, or go on."""
        (before, low), (after, high) = self._find_anchors(t_ns)
        if after == before or t_ns in (before, after):
            return 0.0, 0.0
        share = (t_ns - before) / (after - before)
        # Between: anything from no change to all of it, against the share that is taken. After: it may have gone on.
        reach = math.sqrt(1 / 12 + (share - 0.5) ** 2) if share < 1 else (share - 1) / math.sqrt(3)
        time, energy = (abs(b - a) * reach for a, b in zip(low, high, strict=True))
        return time, energy

    def _find_anchors(self, t_ns: int) -> tuple[tuple[int, Pair], tuple[int, Pair]]:
        """Return the anchors before and after a time; the last two if it is later."""
        k = min(max(bisect_right([t for t, _ in self.anchors], t_ns), 1), len(self.anchors) - 1)
        return self.anchors[max(k - 1, 0)], self.anchors[k]


class _WorkloadEnded(Exception):
    """The workload has ended."""


@dataclass(slots=True)
class OnlineState:
    """Hold the windows, settings and findings so far; times in monotonic ns."""

    windows: list[Window] = field(default_factory=list)
    unheld: list[Window] = field(default_factory=list)  # in which a device did not keep to its cap: used for nothing
    stays: list[tuple[Setting | None, int]] = field(default_factory=list)  # a setting, and the time it was set
    choice: Choice | None = None
    chosen_ns: int = 0
    drift: tuple[float, float] | None = None  # time and energy per work at the last reference, against the first
    revisits: int = 0
    refused: set[Setting] = field(default_factory=set)  # by the device, or hopeless
    scopes: list[str] | None = None
    everything: bool = True  # whether these scopes are all that is measured
    notes: list[str] = field(default_factory=list)
    problem: str = ""


class OnlineTuning:
    """Try settings while a workload runs, and keep the best for the rest of it. No failure here affects it."""

    def __init__(
        self,
        grid: Grid,
        goal: Goal,
        *,
        trials: int | None = None,
        window_s: float = 5.0,
        settle_s: float = 1.0,
        kind: str | None = None,
    ) -> None:
        """Take the settings, the goal, the largest number of windows, and their shortest length and wait."""
        self.grid, self.goal = grid, goal
        self.trials = trials or TRIALS
        self.window_s, self.settle_s = window_s, settle_s
        self.state = OnlineState()
        self.log: WorkLog | None = None
        self._kind = kind
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._held: list[HeldCap] = []

    def begin(self, recording: RunRecording, capping: RunCaps) -> None:
        """Begin to tune; the workload has just started."""
        self._recording, self._capping = recording, capping
        if recording.run is None:
            self.state.problem = "nothing is recorded, so nothing can be tuned"
            return
        self.log = WorkLog(recording.folder / "marks", self._kind)
        self._thread = threading.Thread(target=self._run, name="tune", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop tuning; the workload has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            self._tune()
        except _WorkloadEnded:
            return
        except Exception as error:  # noqa: BLE001 - the workload goes on, tuned or not
            self._give_up(str(error) if isinstance(error, JoulelabError) else f"{type(error).__name__}: {error}")
        with contextlib.suppress(_WorkloadEnded):
            while True:
                self._pause(WATCH_S)

    def _tune(self) -> None:
        self._wait_for_report(0)
        search = self.make_search()
        while len(self.state.windows) < 2 * self.trials:  # a bound on what is tried again and again
            setting = search.next()
            if setting is not None and self._is_hopeless(setting):
                self.state.refused.add(setting)
                search.leave_out(setting)
            elif setting is not None:
                if self._try_setting(setting, search):
                    self._add_window(search, self.state.windows[-1])
            elif self._revisit():
                search = self.make_search()
            else:
                break
        self._choose(search)

    def _try_setting(self, setting: Setting, search: Search) -> bool:
        """Measure a window; return False, and leave the setting out, if the device refuses it. Raises JoulelabError."""
        try:
            window = self._measure_setting(setting) if self.state.windows else self._find_steady_window(setting)
        except Refused as error:
            if not self.state.windows:
                raise
            self.state.notes.append(f"{self.grid.labels[setting]} is left out: {error}")
            self.state.refused.add(setting)
            search.leave_out(setting)
            return False
        self._record_window(window)
        if window.unheld:
            self._leave_out_unheld(window, search)
        return not window.unheld

    def _leave_out_unheld(self, window: Window, search: Search) -> None:
        """Search on without a cap that is not kept, and without lower ones. Raises Refused if no cap has an effect."""
        if window.setting == self.grid.reference or not self.have_caps_effect():
            raise _not_enforced(window)
        self.state.notes.append(f"{self.grid.labels[window.setting]} and below are left out: {window.unheld}")
        for setting in self.grid.settings:
            if is_doubted_by(setting, window.setting) and setting not in self.state.refused:
                self.state.refused.add(setting)
                search.leave_out(setting)

    def have_caps_effect(self) -> bool:
        """Return whether caps change the power of the GPUs, although some were not kept."""
        held = {w.setting: w.gpu_w for w in self.state.windows if w.gpu_w is not None}
        return take_effect(held, [w.gpu_w for w in self.state.unheld if w.gpu_w is not None], self.grid.reference)

    def _choose(self, search: Search) -> None:
        if self.state.unheld and not self.have_caps_effect():
            raise _not_enforced(self.state.unheld[-1])
        choice = search.choose()
        self._apply(choice.setting)
        self.state.choice, self.state.chosen_ns = choice, monotonic_ns()
        tied = [describe_setting(one) if one.clock_hz else one.cap_w for one in choice.tied]
        event = {
            **describe_setting(choice.setting),
            "tied": tied,
            "windows": len(self.state.windows),
            "why": choice.why,
        }
        self._recording.event("tune-choice", goal=self.goal.text, **event)

    def make_search(self) -> Search:
        """Return a search with all windows so far, each corrected for the drift of the workload."""
        settings = [one for one in self.grid.settings if one not in self.state.refused]
        search = Search(settings, self.goal, budget=self.trials + self.state.revisits)
        for window in self.correct_windows():
            if window.setting not in self.state.refused:
                self._add_window(search, window)
        return search

    def _is_hopeless(self, setting: Setting) -> bool:
        """Return whether a setting need not be tried (again): time under it is lost to the workload."""
        samples = [Sample(w.setting, w.energy_per, w.time_per) for w in self.correct_windows()]
        return is_hopeless(self.goal, samples, self.grid.reference, setting)

    def _add_window(self, search: Search, window: Window) -> None:
        """Add a window to a search, per device, so that power and cap can be compared."""
        energy, time = window.energy * (1 / window.work / len(self.grid.scopes)), window.time_per
        search.add_trial(window.setting, energy.value, time.value, energy.without(*COMMON_SOURCES).u, time.u)

    def correct_windows(self) -> list[Window]:
        """Return the windows without the drift of the workload, with its uncertainty."""
        if self.state.drift is None:
            return list(self.state.windows)
        drift = self.find_drift()
        several = math.sqrt(len(drift.anchors))
        corrected = []
        for window in self.state.windows:
            time, energy = drift.interpolate(window.from_ns)
            # Work and energy become those at the rate of the beginning.
            now = replace(window, work=window.work * time, energy=window.energy * (time / energy))
            # Those under the reference become equal: together they count as one.
            now = _widen(now, several) if window.setting == self.grid.reference else now
            corrected.append(replace(now, u_drift=drift.estimate_u(window.from_ns)))
        return corrected

    def find_drift(self) -> Drift:
        """Return the drift of the workload, from the windows under the reference."""
        return Drift.from_windows([w for w in self.state.windows if w.setting == self.grid.reference])

    def _revisit(self) -> bool:
        """Return to the reference once, to find a drift of the workload; return False if that is not needed."""
        measured, reference = self.state.windows, self.grid.reference
        if self.state.revisits or len(measured) < 2 or measured[0].setting != reference:
            return False
        self.state.revisits += 1
        if measured[-1].setting != reference:
            window = self._measure_setting(reference)
            self._record_window(window)
            if window.unheld:
                raise _not_enforced(window)
        if _is_same_rate(measured[0], measured[-1], DRIFT):
            return True
        time, energy = self.state.drift = self.find_drift().interpolate(measured[-1].from_ns)
        self.state.notes.append(
            f"the workload itself changed during the search: at {self.grid.labels[reference]} it took "
            f"{(time - 1) * 100:+.1f} % time and {(energy - 1) * 100:+.1f} % energy for the same work at the end; "
            "the windows between are corrected for this change; their intervals include that its time is unknown"
        )
        return True

    def _find_steady_window(self, setting: Setting) -> Window:
        """Return the first window that agrees with the one before it."""
        before = self._measure_setting(setting)
        for _ in range(STEADY_WINDOWS):
            window = self._measure_setting(setting)
            if _is_same_rate(before, window, AGREE):
                return window
            before = window
        self.state.notes.append(f"the rate of work did not become steady in {STEADY_WINDOWS} windows; try --window")
        return before

    def _measure_setting(self, setting: Setting) -> Window:
        """Return a window under a setting; a window with a pause is measured again."""
        if not self.state.stays or self.state.stays[-1][0] != setting:
            self._apply(setting)
            self._wait(monotonic_ns() + round(self.settle_s * NS))
        for k in range(RETAKES):
            window = self._measure_window(setting)
            if not window.paused and (k or not window.unheld):
                return window
        return self._measure_window(setting)

    def _measure_window(self, setting: Setting) -> Window:
        log, run = self.log, self._recording.run
        assert log is not None
        assert run is not None
        a = self._wait_for_report(monotonic_ns())
        b = self._wait_for_report(a + round(self.window_s * NS))
        while log.count_reports(a, b)[0] < LEAST_REPORTS or log.count_reports(a, b)[1] < LEAST_LINES:
            b = self._wait_for_report(b + 1)
        self._wait_for_readings(run, b)
        if self.state.scopes is None:
            self.state.scopes, self.state.everything = windows.find_scopes(run, a, b)
        found = windows.read_scopes(run, a, b)
        energy = windows.sum_energy(found, [(a, b)], self.state.scopes, least=windows.LEAST_READINGS)
        if energy is None:
            self.state.scopes = None
            raise MeterError(
                "no energy was measured in a window", where="tune", why="no power meter was read often enough",
                next="give a longer --window, or look at the meters: joulelab meters",
            )  # fmt: skip
        caps = {h.scope: h.requested or h.asked for h in self._held if h.unit == "W"}
        gpu_w, unheld = windows.measure_draw(found, a, b, caps)
        rate, paused = windows.estimate_rate_u(log, a, b), windows.has_pause(log, a, b)
        return Window(setting, a, b, log.count_work(a, b), energy, rate, paused, gpu_w, unheld)

    def _record_window(self, window: Window) -> None:
        (self.state.unheld if window.unheld else self.state.windows).append(window)
        kind = self.log.kind if self.log is not None else None
        self._recording.event("tune-window", **window.to_json(), kind=kind)

    def _apply(self, setting: Setting) -> None:
        """Set caps and clocks. Raises JoulelabError."""
        self._held = self._capping.set(self.grid.make_requests(setting))
        self.state.stays.append((setting, monotonic_ns()))
        for held in (held for held in self._held if held.unit == "W"):
            if held.enforced is not None and abs(held.enforced - held.asked) > max(2.0, 0.02 * held.asked):
                note = f"{held.scope} enforces {held.enforced:.0f} W where {held.asked:.0f} W were requested"
                if note not in self.state.notes:
                    self.state.notes.append(note)

    def _give_up(self, why: str) -> None:
        """Record a failure, and go back to the original caps; clocks that were not locked get their highest value."""
        from joulelab.control.client import CapRequest

        self.state.problem = why
        self._recording.problems.append(f"tuning failed: {why}")
        self._recording.event("tune-failed", why=why)
        original = [(held, held.default if held.found is None else held.found) for held in self._held]
        requests = [
            CapRequest(held.device, value, "Hz" if held.unit == "Hz" else "W")
            for held, value in original
            if value is not None and (held.found is not None or held.unit == "Hz")
        ]
        with contextlib.suppress(JoulelabError):
            if requests:
                self._capping.set(requests)
                self.state.stays.append((None, monotonic_ns()))

    def _wait_for_report(self, at_ns: int) -> int:
        """Wait until the work is known beyond a time; return the time up to which it is known, that of a report."""
        assert self.log is not None
        while self.log.known_ns <= at_ns:
            self._pause(POLL_S)
            self.log.read_marks()
        return self.log.known_ns

    def _wait_for_readings(self, run: Path, t_ns: int) -> None:
        from joulelab.run.live import is_covered

        until = monotonic_ns() + COVER_NS
        while not is_covered(run, t_ns) and monotonic_ns() < until:
            self._pause(POLL_S / 2)

    def _wait(self, until_ns: int) -> None:
        while (left := until_ns - monotonic_ns()) > 0:
            self._pause(min(left / NS, POLL_S))

    def _pause(self, seconds: float) -> None:
        """Wait, and serve the keeper. Raises _WorkloadEnded."""
        if self._stop.wait(seconds):
            raise _WorkloadEnded
        self._capping.serve()


def _not_enforced(window: Window) -> Refused:
    return Refused("caps are not enforced here, so none is chosen", why=window.unheld, next="joulelab cap status")


def _widen(window: Window, factor: float) -> Window:
    """Return a window with larger terms of its own."""
    terms = window.energy.terms.items()
    grown = {s: u if s.startswith(("gain:", "offset:")) else u * factor for s, u in terms}
    return replace(window, u_rate=window.u_rate * factor, energy=replace(window.energy, terms=grown))


def _is_same_rate(a: Window, b: Window, least: float) -> bool:
    """Return whether two windows under one setting differ by no more than their uncertainties allow."""
    pairs: Sequence[tuple[float, float]] = (
        (b.time_per.value / a.time_per.value, math.hypot(a.u_rate, b.u_rate)),
        (
            b.energy_per.value / a.energy_per.value,
            math.hypot(*(w.energy_per.without(*COMMON_SOURCES).u / w.energy_per.value for w in (a, b))),
        ),
    )
    return all(abs(ratio - 1) <= min(max(least, 2 * u), max(DISAGREE, least)) for ratio, u in pairs)


def summarise_online(online: OnlineTuning, run: Path | None, command: str) -> TuningResult:
    """Return the result of tuning, with the saving over the whole run; `command` is the workload as it is typed."""
    state, reference = online.state, online.grid.reference
    if online.log is not None:
        online.log.read_marks()
    corrected = online.correct_windows()
    samples = [Sample(w.setting, w.energy_per, w.time_per) for w in corrected]
    samples += [Sample(w.setting, w.energy_per, w.time_per, held=False) for w in state.unheld]
    found = average_samples(online.goal, samples, reference, online.grid.labels)
    choice = state.choice or _choose_so_far(online)
    by_setting = {row.setting: row for row in found}
    hidden = any(kind in w.energy.budget() for w in corrected for kind in ("unseen", "in-step"))
    notes = [*state.notes, *([UNSEEN] if hidden else [])]
    if state.scopes and not state.everything:
        notes.append(SELDOM)
    saved, slower = (None, None)
    if state.choice is not None and state.scopes is not None and run is not None:
        saved, slower = _compute_saving(online, run, state.scopes, by_setting, notes)
    tied = () if choice is None else _find_tied(choice, by_setting, reference)
    tried = len({w.setting for w in corrected})
    return TuningResult(
        goal=online.goal,
        mode="online",
        rows=found,
        reference=reference,
        unit=(online.log.kind if online.log is not None else None) or "",
        scopes=", ".join(state.scopes or ()),
        choice=None if choice is None else choice.setting,
        tied=tied,
        why="" if choice is None else explain_choice(online.goal, choice, tied, tried, online.grid.labels),
        complete=state.choice is not None,
        saved=saved,
        slower=slower,
        over="in this run",
        cost=_compute_cost(online, by_setting, None if choice is None else by_setting.get(choice.setting)),
        notes=tuple(notes),
        problems=tuple(_list_problems(online)),
        folder="" if run is None else str(run),
        next="" if choice is None else online.grid.write_command(choice.setting, command),
    )


def _choose_so_far(online: OnlineTuning) -> Choice | None:
    """Return the choice by the windows so far, None if they are of one setting only or tuning failed."""
    if online.state.problem or not online.have_caps_effect() or len({w.setting for w in online.state.windows}) < 2:
        return None
    return online.make_search().choose()


def _find_tied(choice: Choice, by_setting: Mapping[Setting, SettingRow], reference: Setting) -> tuple[Setting, ...]:
    """Return settings without significant difference from the choice, by the search, and the reference by the table."""
    best = by_setting[choice.setting].score if choice.setting in by_setting else None
    near = best is not None and choice.setting != reference and abs(1 - best.value) <= (best.expanded or math.inf)
    return tuple(dict.fromkeys([*choice.tied, *([reference] if near else [])]))


def _list_problems(online: OnlineTuning) -> list[str]:
    state = online.state
    if state.problem:
        return [f"tuning failed: {state.problem}"]
    if state.choice is not None:
        return []
    if online.log is None or not online.log.known_ns:
        return [
            (
                "no work was reported, so there was nothing to tune by, and no cap was touched; "
                "call joulelab.work(samples=64) after each step (or `joulelab mark --work samples=64` from a shell)"
            )
        ]
    each = online.window_s + online.settle_s + 1
    count = len(state.windows)
    left = max(online.trials - count, 1) + 1
    return [
        (
            f"the command ended after {count} window{'' if count == 1 else 's'}, before the search did; let it run "
            f"about {left * each:.0f} s longer, or take shorter windows (--window {max(online.window_s / 2, 0.5):g}s)"
        )
    ]


def _compute_cost(
    online: OnlineTuning, by_setting: Mapping[Setting, SettingRow], best: SettingRow | None
) -> SearchCost:
    """Return the cost until the choice, and how much more that is than under the choice."""
    state, log = online.state, online.log
    if log is None or not state.windows or best is None:
        return SearchCost()
    end = state.chosen_ns or log.known_ns
    stays = [(setting, max(t, state.windows[0].from_ns)) for setting, t in state.stays if t < end]
    energy = time = more_j = more_s = 0.0
    for (setting, a), (_, b) in zip(stays, [*stays[1:], (None, end)], strict=True):
        row, work = None if setting is None else by_setting.get(setting), log.count_work(a, b)
        if row is None:
            continue
        energy, time = energy + row.energy.value * work, time + (b - a) / NS
        more_j += max(row.energy.value - best.energy.value, 0.0) * work
        more_s += max(row.time.value - best.time.value, 0.0) * work
    return SearchCost(len(state.windows), energy, time, more_j, more_s)


@dataclass(frozen=True, slots=True)
class _RunPart:
    """Hold a part of a run: work, energy (J) and time (s) that it took."""

    work: float
    energy: Quantity
    seconds: float


def _compute_saving(
    online: OnlineTuning, run: Path, scopes: Sequence[str], rows: Mapping[Setting, SettingRow], notes: list[str]
) -> tuple[Quantity | None, Quantity | None]:
    """Return the saving (J) and the loss of time (s) since the first window; remarks are added to the notes.

    The workload's own drift would have come under the reference too. It is known from windows under the reference
    until the last of them, and after the choice from the rest of the run.
    """
    log, state, base = online.log, online.state, rows.get(online.grid.reference)
    best = rows.get(state.choice.setting) if state.choice is not None else None
    if log is None or base is None or best is None or log.known_ns <= state.windows[0].from_ns:
        return None, None
    start, end = state.windows[0].from_ns, log.known_ns
    middle = min(max(state.chosen_ns + round(online.settle_s * NS), start), end)
    tuning, rest = log.find_stretches(start, middle), log.find_stretches(middle, end) if middle < end else []
    try:
        found = windows.read_scopes(run, start, end)
    except JoulelabError:
        return None, None
    used = [_measure_part(log, found, part, scopes) for part in (tuning, rest) if part]
    if any(part is None for part in used) or not tuning:
        return None, None
    parts = [part for part in used if part is not None]
    later = _find_later_change(online, best, parts[1]) if rest else None
    if later is not None:
        notes.append(
            f"the workload itself changed after the choice: {(later[0] - 1) * 100:+.1f} % time and "
            f"{(later[1] - 1) * 100:+.1f} % energy for the same work"
        )
    would = [_estimate_reference(online, base, tuning)]
    if rest:
        # If the choice did not change any more, neither did the reference after its last window.
        stays = _estimate_reference(online, base, rest, latest_ns=state.windows[-1].from_ns)
        would.append(stays if later is None else _scale_to_reference(base, best, parts[1]))
    energy = add_quantities(e for e, _ in would) - add_quantities(part.energy for part in parts)
    time = Quantity(sum(part.seconds for part in parts)) - add_quantities(t for _, t in would)
    return energy, time


def _measure_part(
    log: WorkLog, found: Sequence[ScopeChannels], stretches: Stretches, scopes: Sequence[str]
) -> _RunPart | None:
    energy = windows.sum_energy(found, stretches, scopes)
    work = sum(log.count_work(a, b) for a, b in stretches)
    if energy is None or work <= 0:
        return None
    return _RunPart(work, energy.without("unseen", "in-step"), sum(b - a for a, b in stretches) / NS)


def _estimate_reference(
    online: OnlineTuning, base: SettingRow, stretches: Stretches, latest_ns: int | None = None
) -> tuple[Quantity, Quantity]:
    """Return energy and time of the work in some stretches under the reference, with the drift."""
    log = online.log
    assert log is not None
    if online.state.drift is None:
        work = sum(log.count_work(a, b) for a, b in stretches)
        return base.energy * work, base.time * work
    drift = online.find_drift()
    works, unsure = [0.0, 0.0], [0.0, 0.0]  # in units of the beginning: by time, by energy
    for a, b in stretches:
        for t0, t1 in itertools.pairwise([*range(a, b, STEP_NS), b]):
            middle, work = (t0 + t1) // 2 if latest_ns is None else latest_ns, log.count_work(t0, t1)
            for k, (ratio, u) in enumerate(zip(drift.interpolate(middle), drift.estimate_u(middle), strict=True)):
                works[k] += work * ratio
                # The time of the change is one unknown of all steps, so that this adds up.
                unsure[k] += work * ratio * u
    time, energy = base.time * works[0], base.energy * works[1]
    source = f"drift:{stretches[0][0]}"
    return (
        replace(energy, terms={**energy.terms, source: base.energy.value * unsure[1]}),
        replace(time, terms={**time.terms, source: base.time.value * unsure[0]}),
    )


def _find_later_change(online: OnlineTuning, best: SettingRow, rest: _RunPart) -> tuple[float, float] | None:
    """Return the ratios of time and energy per work after the choice; None if they did not change or are unknown."""
    if rest.seconds < LEAST_S:
        return None
    state = online.state
    last = online.find_drift().interpolate(state.windows[-1].from_ns) if state.drift is not None else (1.0, 1.0)
    time = rest.seconds / rest.work / (best.time.value * last[0])
    energy = rest.energy.value / rest.work / (best.energy.value * last[1])
    u_time = best.time.u / best.time.value
    u_energy = math.hypot(
        best.energy.without(*COMMON_SOURCES).u / best.energy.value,
        rest.energy.without(*COMMON_SOURCES).u / rest.energy.value,
    )
    same = abs(time - 1) <= max(LATER, 2 * u_time) and abs(energy - 1) <= max(LATER, 2 * u_energy)
    return None if same else (time, energy)


def _scale_to_reference(base: SettingRow, best: SettingRow, rest: _RunPart) -> tuple[Quantity, Quantity]:
    """Return energy and time of the reference if it had changed as the choice did."""
    energy, time = base.energy / best.energy, base.time / best.time
    return rest.energy * energy, time * rest.seconds
