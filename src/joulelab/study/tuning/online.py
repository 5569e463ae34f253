"""Tune inside one run: try caps in windows between reports of work, while the workload goes on."""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, MeterError, Refused
from joulelab.study.tuning.worklog import WorkLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.goals import Goal
    from joulelab.control.client import HeldCap
    from joulelab.run.recording import RunRecording
    from joulelab.run.run_caps import RunCaps
    from joulelab.study.tuning.drift import Drift
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.search import Choice, Search
    from joulelab.study.tuning.window import Window

POLL_S, WATCH_S = 0.25, 1.0
JOIN_S = 10.0
COVER_NS = 3 * NS  # how long readings may take to reach the disk
LEAST_REPORTS, LEAST_LINES = 5, 2
RETAKES = 2  # of a window in which work stood still
STEADY_WINDOWS = 10
AGREE, DISAGREE = 0.02, 0.10  # windows that differ by less agree anyhow; by more, they do not
DRIFT = 0.01
TRIALS = 10


class _Ended(Exception):
    """The workload has ended."""


@dataclass(slots=True)
class State:
    """Hold what tuning has seen and done so far; times in monotonic ns, caps in W."""

    windows: list[Window] = field(default_factory=list)
    unheld: list[Window] = field(default_factory=list)  # in which a device did not keep to its cap: used for nothing
    stays: list[tuple[float, int]] = field(default_factory=list)  # a cap, and since when it is set
    choice: Choice | None = None
    chosen_ns: int = 0
    drift: tuple[float, float] | None = None  # time and energy per work at the last reference, against the first
    revisits: int = 0
    refused: set[float] = field(default_factory=set)  # by the device, or hopeless
    scopes: list[str] | None = None
    everything: bool = True  # whether these scopes are all that is measured
    notes: list[str] = field(default_factory=list)
    problem: str = ""


class Online:
    """Try caps while a workload runs, and keep the best for the rest of it. Nothing that fails here reaches it."""

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
        """Take the caps, the goal, how many windows at most, how long they and the wait before them are at least."""
        self.grid, self.goal = grid, goal
        self.trials = trials or TRIALS
        self.window_s, self.settle_s = window_s, settle_s
        self.state = State()
        self.log: WorkLog | None = None
        self._kind = kind
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._held: list[HeldCap] = []

    def begin(self, recording: RunRecording, capping: RunCaps) -> None:
        """Begin: the workload has just started."""
        self._recording, self._capping = recording, capping
        if recording.run is None:
            self.state.problem = "nothing is recorded, so nothing can be tuned"
            return
        self.log = WorkLog(recording.folder / "marks", self._kind)
        self._thread = threading.Thread(target=self._run, name="tune", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End: the workload has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            self._tune()
        except _Ended:
            return
        except Exception as error:  # noqa: BLE001 - the workload goes on, tuned or not
            self._fail(str(error) if isinstance(error, JoulelabError) else f"{type(error).__name__}: {error}")
        with contextlib.suppress(_Ended):
            while True:
                self._pause(WATCH_S)

    def _tune(self) -> None:
        self._until_report(0)
        search = self.search()
        while len(self.state.windows) < 2 * self.trials:  # a bound on what is tried again and again
            cap = search.next()
            if cap is not None and self._is_hopeless(cap):
                self.state.refused.add(cap)
                search.leave_out(cap)
            elif cap is not None:
                if self._measure(cap, search):
                    self._tell(search, self.state.windows[-1])
            elif self._revisit():
                search = self.search()
            else:
                break
        self._choose(search)

    def _measure(self, cap: float, search: Search) -> bool:
        """Take a window under a cap; False where the device refuses it, and it is left out. Raises JoulelabError."""
        try:
            window = self._try(cap) if self.state.windows else self._steady(cap)
        except Refused as error:
            if not self.state.windows:
                raise
            self.state.notes.append(f"{self.grid.shown[cap]} is left out: {error}")
            self.state.refused.add(cap)
            search.leave_out(cap)
            return False
        self._note(window)
        if window.unheld:
            self._leave_out_unheld(window, search)
        return not window.unheld

    def _leave_out_unheld(self, window: Window, search: Search) -> None:
        """Search on without a cap that is not kept to, nor any below it. Raises Refused where none seems to be."""
        if window.cap == self.grid.reference or not self.caps_work():
            raise _not_enforced(window)
        self.state.notes.append(f"{self.grid.shown[window.cap]} and below are left out: {window.unheld}")
        for cap in self.grid.watts:
            if cap <= window.cap and cap not in self.state.refused:
                self.state.refused.add(cap)
                search.leave_out(cap)

    def caps_work(self) -> bool:
        """Return whether caps change the power of the GPUs, although some were not kept to."""
        from joulelab.study.tuning.tuned import take_effect

        held = {w.cap: w.gpu_w for w in self.state.windows if w.gpu_w is not None}
        return take_effect(held, [w.gpu_w for w in self.state.unheld if w.gpu_w is not None], self.grid.reference)

    def _choose(self, search: Search) -> None:
        if self.state.unheld and not self.caps_work():
            raise _not_enforced(self.state.unheld[-1])
        choice = search.choice()
        self._set(choice.cap)
        self.state.choice, self.state.chosen_ns = choice, monotonic_ns()
        told = {"cap": choice.cap, "tied": list(choice.tied), "windows": len(self.state.windows), "why": choice.why}
        self._recording.event("tune-choice", goal=self.goal.text, **told)

    def search(self) -> Search:
        """Return a search that was told all windows so far, each without what the workload drifted by itself."""
        from joulelab.study.tuning.search import Search

        caps = [cap for cap in self.grid.watts if cap not in self.state.refused]
        search = Search(caps, self.goal, budget=self.trials + self.state.revisits)
        for window in self.corrected():
            if window.cap not in self.state.refused:
                self._tell(search, window)
        return search

    def _is_hopeless(self, cap: float) -> bool:
        """Return whether a cap need not be tried (again): time under it is lost to the workload."""
        from joulelab.study.tuning.tuned import Sample, is_hopeless

        samples = [Sample(w.cap, w.energy_per, w.time_per) for w in self.corrected()]
        return is_hopeless(self.goal, samples, self.grid.reference, cap)

    def _tell(self, search: Search, window: Window) -> None:
        """Tell a search of a window, by one device: so it knows how near the power is to the cap."""
        from joulelab.study.tuning.window import COMMON

        energy, time = window.energy * (1 / window.work / len(self.grid.scopes)), window.time_per
        search.tell(window.cap, energy.value, time.value, energy.without(*COMMON).u, time.u)

    def corrected(self) -> list[Window]:
        """Return the windows as they would be had the workload not changed by itself, as unsure as that is."""
        if self.state.drift is None:
            return list(self.state.windows)
        drift = self.drifted()
        several = math.sqrt(len(drift.anchors))
        made = []
        for window in self.state.windows:
            time, energy = drift.at(window.from_ns)
            # The work of a window is what it would have been at the rate of the beginning, its energy likewise.
            now = replace(window, work=window.work * time, energy=window.energy * (time / energy))
            # Those under the reference are made equal by this: together they say no more than one of them.
            now = _less_sure(now, several) if window.cap == self.grid.reference else now
            made.append(replace(now, u_drift=drift.u_at(window.from_ns)))
        return made

    def drifted(self) -> Drift:
        """Return what the workload changed by itself, as the windows under the reference tell."""
        from joulelab.study.tuning.drift import Drift

        return Drift.of([w for w in self.state.windows if w.cap == self.grid.reference])

    def _revisit(self) -> bool:
        """Come back to the reference once, to see whether the workload changed by itself; False: no need to."""
        windows, reference = self.state.windows, self.grid.reference
        if self.state.revisits or len(windows) < 2 or windows[0].cap != reference:
            return False
        self.state.revisits += 1
        if windows[-1].cap != reference:
            window = self._try(reference)
            self._note(window)
            if window.unheld:
                raise _not_enforced(window)
        if _agree(windows[0], windows[-1], DRIFT):
            return True
        time, energy = self.state.drift = self.drifted().at(windows[-1].from_ns)
        self.state.notes.append(
            f"the workload changed by itself meanwhile: at {self.grid.shown[reference]} it took "
            f"{(time - 1) * 100:+.1f} % time and {(energy - 1) * 100:+.1f} % energy for the same work at the end; "
            "the windows between are corrected for it, and their intervals hold that nobody knows when it happened"
        )
        return True

    def _steady(self, cap: float) -> Window:
        """Return the first window that agrees with the one before it."""
        before = self._try(cap)
        for _ in range(STEADY_WINDOWS):
            window = self._try(cap)
            if _agree(before, window, AGREE):
                return window
            before = window
        self.state.notes.append(f"the rate of work did not become steady in {STEADY_WINDOWS} windows; try --window")
        return before

    def _try(self, cap: float) -> Window:
        """Return a window under a cap; one in which work stood still is taken again."""
        if not self.state.stays or self.state.stays[-1][0] != cap:
            self._set(cap)
            self._wait(monotonic_ns() + round(self.settle_s * NS))
        for k in range(RETAKES):
            window = self._window(cap)
            if not window.paused and (k or not window.unheld):
                return window
        return self._window(cap)

    def _window(self, cap: float) -> Window:
        from joulelab.study.tuning import window as windows

        log, run = self.log, self._recording.run
        assert log is not None
        assert run is not None
        a = self._until_report(monotonic_ns())
        b = self._until_report(a + round(self.window_s * NS))
        while log.reports(a, b)[0] < LEAST_REPORTS or log.reports(a, b)[1] < LEAST_LINES:
            b = self._until_report(b + 1)
        self._until_covered(run, b)
        if self.state.scopes is None:
            self.state.scopes, self.state.everything = windows.find_scopes(run, a, b)
        found = windows.read_scopes(run, a, b)
        energy = windows.energy_of(found, [(a, b)], self.state.scopes, least=windows.LEAST_READINGS)
        if energy is None:
            self.state.scopes = None
            raise MeterError(
                "no energy can be told of a window", where="tune", why="no power meter was read often enough",
                next="joulelab meters, or a longer --window",
            )  # fmt: skip
        gpu_w, unheld = windows.drawn(found, a, b, {h.scope: h.requested or h.asked for h in self._held})
        rate, paused = windows.u_rate(log, a, b), windows.has_pause(log, a, b)
        return windows.Window(cap, a, b, log.done(a, b), energy, rate, paused, gpu_w, unheld)

    def _note(self, window: Window) -> None:
        (self.state.unheld if window.unheld else self.state.windows).append(window)
        kind = self.log.kind if self.log is not None else None
        self._recording.event("tune-window", **window.to_json(), kind=kind)

    def _set(self, cap: float) -> None:
        """Set a cap. Raises JoulelabError."""
        self._held = self._capping.set(self.grid.wishes(cap))
        self.state.stays.append((cap, monotonic_ns()))
        for held in self._held:
            if held.enforced is not None and abs(held.enforced - held.asked) > max(2.0, 0.02 * held.asked):
                said = f"{held.scope} enforces {held.enforced:.0f} W where {held.asked:.0f} W are asked for"
                if said not in self.state.notes:
                    self.state.notes.append(said)

    def _fail(self, why: str) -> None:
        """Tell what failed, and go back to what was found."""
        from joulelab.control.client import CapRequest

        self.state.problem = why
        self._recording.problems.append(f"tuning failed: {why}")
        self._recording.event("tune-failed", why=why)
        found = [CapRequest(held.device, held.found, "W") for held in self._held if held.found is not None]
        with contextlib.suppress(JoulelabError):
            if found:
                self._capping.set(found)
                self.state.stays.append((0.0, monotonic_ns()))

    def _until_report(self, at_ns: int) -> int:
        """Wait for work that is known up to a time or longer; return up to when it is: the time of a report."""
        assert self.log is not None
        while self.log.known_ns <= at_ns:
            self._pause(POLL_S)
            self.log.read()
        return self.log.known_ns

    def _until_covered(self, run: Path, t_ns: int) -> None:
        from joulelab.run.live import is_covered

        until = monotonic_ns() + COVER_NS
        while not is_covered(run, t_ns) and monotonic_ns() < until:
            self._pause(POLL_S / 2)

    def _wait(self, until_ns: int) -> None:
        while (left := until_ns - monotonic_ns()) > 0:
            self._pause(min(left / NS, POLL_S))

    def _pause(self, seconds: float) -> None:
        """Wait, and hear of the keeper; raises _Ended with the workload's end."""
        if self._stop.wait(seconds):
            raise _Ended
        self._capping.serve()


def _not_enforced(window: Window) -> Refused:
    return Refused("caps are not enforced here, so none is chosen", why=window.unheld, next="joulelab cap status")


def _less_sure(window: Window, factor: float) -> Window:
    """Let a window's own terms grow."""
    terms = window.energy.terms.items()
    grown = {s: u if s.startswith(("gain:", "offset:")) else u * factor for s, u in terms}
    return replace(window, u_rate=window.u_rate * factor, energy=replace(window.energy, terms=grown))


def _agree(a: Window, b: Window, least: float) -> bool:
    """Return whether two windows under one cap differ by no more than they may."""
    from joulelab.study.tuning.window import COMMON

    pairs: Sequence[tuple[float, float]] = (
        (b.time_per.value / a.time_per.value, math.hypot(a.u_rate, b.u_rate)),
        (
            b.energy_per.value / a.energy_per.value,
            math.hypot(*(w.energy_per.without(*COMMON).u / w.energy_per.value for w in (a, b))),
        ),
    )
    return all(abs(ratio - 1) <= min(max(least, 2 * u), max(DISAGREE, least)) for ratio, u in pairs)
