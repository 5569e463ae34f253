"""Drive a study: give its slots to an executor in their order, watch them, and end in good order when told to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError
from joulelab.study import remains
from joulelab.study.order import order
from joulelab.study.progress import Pace
from joulelab.study.slots import ERR, Slot, State, look, set_aside, slots_of, tidy
from joulelab.study.trial import SlotTrial, trial_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from joulelab.study.executors import Ended, Executor
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 1.0
# A slot whose process is killed from outside is tried so often; a sweep that begins with so many failures ends.
MOST_TRIES, MOST_FAILURES = 3, 5


class Stop:
    """Note that the driver is told to end, instead of ending at once; put the handlers back at the end."""

    def __enter__(self) -> Self:
        """Take the signals that are not ignored."""
        self.number: int | None = None
        self.times = 0
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell, False)
        self._before = {n: signal.getsignal(n) for n in STOPPING}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._bell)

    def heard(self) -> None:
        """Empty the pipe that wakes the driver."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 64)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number if self.number is None else self.number
        self.times += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"!")


@dataclass(frozen=True, slots=True)
class Told:
    """Hold news of a slot. `trial` is there where it is done; `left_s` is how long the rest will take, if known."""

    what: str
    cell: PlannedCell
    slot: Path
    why: str = ""
    trial: SlotTrial | None = None
    finished: int = 0
    total: int = 0
    left_s: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """Say how a drive ended: how many slots are done or failed, and what stopped it (None: nothing)."""

    done: int = 0
    failed: int = 0
    total: int = 0
    stopped_by: int | None = None
    error: JoulelabError | None = None


class Driver:
    """Run the slots of some cells; `tell` hears what happens."""

    def __init__(
        self,
        study: Study,
        cells: Mapping[str, PlannedCell],
        repeats: int,
        executor: Executor,
        tell: Callable[[Told], None],
        *,
        warmup: int = 0,
        retry: bool = False,
    ) -> None:
        self._study, self._cells, self._executor, self._tell = study, cells, executor, tell
        self._warmup, self._retry = warmup, retry
        self._slots = [study.slot(key, repeat) for key, repeat in order(cells, study.seed, repeats)]
        self._queue: deque[Path] = deque()
        self._waiting: list[Path] = []
        self._running: dict[Path, int] = {}  # since when, monotonic ns
        self._tries: Counter[Path] = Counter()
        self._pace = Pace()
        self._ran = 0
        self._said_waiting = False
        self.outcome = Outcome(total=len(self._slots))

    def run(self, stop: Stop) -> Outcome:
        """Run what is not done yet; return when all is, or when told to stop, or when nothing can be run."""
        self._survey()
        try:
            while self._queue or self._waiting or self._running:
                if stop.number is not None:
                    self._end(stop)
                    break
                self._start()
                self._collect(stop)
        except JoulelabError as error:
            self.outcome.error = error
            self._end(stop)
        return self.outcome

    def _survey(self) -> None:
        """Look at every slot once: what is done stays, what was cut off is set aside, the rest is queued."""
        for key in self._cells:
            tidy(self._study.folder / "cells" / key)
        for folder in self._slots:
            slot = look(folder)
            if slot.state is State.DONE:
                self.outcome.done += 1
                self._pace.add_slot(folder)
            elif slot.state is State.FAILED and not self._retry:
                self.outcome.failed += 1
                self._news("failed before", slot, why=slot.why)
            elif slot.state is State.LIVE:
                self._waiting.append(folder)
            else:
                self._clear(slot)
                self._queue.append(folder)
        if self._queue:
            self._queue.extendleft(reversed(self._warmups(self._queue[0])))

    def _warmups(self, first: Path) -> list[Path]:
        """Return slots of the first cell that will not be counted; each call has its own."""
        cell = first.parent
        for folder in slots_of(cell):
            if folder.name.startswith("w"):
                slot = look(folder)
                if slot.state not in (State.DONE, State.LIVE, State.FAILED):
                    self._clear(slot)
        used = max((int(folder.name[1:]) for folder in slots_of(cell) if folder.name[0] == "w"), default=0)
        return [self._study.slot(cell.name, used + n, "w") for n in range(1, self._warmup + 1)]

    def _clear(self, slot: Slot) -> None:
        """Make a slot free again: end what is left of its workload, and move its folder aside."""
        if slot.state is State.FREE:
            return
        remains.end(slot.folder)
        aside = set_aside(slot, self._study.folder)
        if aside is not None:
            self._news("set aside", slot, why=aside.name)

    def _start(self) -> None:
        """Start what there is room for; slots that others have claimed are looked at again later."""
        while len(self._running) < self._executor.at_once and (self._queue or self._waiting):
            if not self._queue and not self._look_again():
                return
            folder = self._queue.popleft()
            slot = look(folder)
            if slot.state is State.LIVE:
                self._waiting.append(folder)
            elif slot.state in (State.DONE, State.FAILED):  # by somebody else
                self._count(slot)
            else:
                self._clear(slot)
                self._running[folder] = monotonic_ns()
                self._executor.submit(folder)

    def _look_again(self) -> bool:
        """Move slots that others claimed, and that have ended, back to the queue; return whether there are any."""
        over = [folder for folder in self._waiting if look(folder).state is not State.LIVE]
        self._waiting = [folder for folder in self._waiting if folder not in over]
        self._queue.extend(over)
        if not over and not self._said_waiting:
            self._said_waiting = True
            slot = look(self._waiting[0])
            told = f"process {slot.claim.get('pid')} on {slot.claim.get('host')}"
            self._news("waits", slot, why=f"it is run by {told}; {slot.folder}")
        return bool(over)

    def _collect(self, stop: Stop) -> None:
        for ended in self._executor.poll(POLL_S, [stop.fd]):
            took_s = (monotonic_ns() - self._running.pop(ended.slot)) / NS
            if ended.told is not None and ended.told.get("is") == "ended":
                self._pace.add(ended.slot.parent.name, took_s)
            self._judge(ended)
        stop.heard()

    def _judge(self, ended: Ended) -> None:
        told = ended.told or {}
        slot = look(ended.slot)
        if told.get("is") == "error":
            self._clear(slot)
            raise _error(told["error"])
        if slot.state in (State.DONE, State.FAILED):
            self._count(slot, told)
        elif slot.state is State.LIVE or told.get("is") == "taken":
            self._waiting.append(ended.slot)
        elif not told and slot.state is State.FREE:
            raise JoulelabError("a slot's process failed", where=str(ended.slot), why=ended.said)
        else:
            self._again(slot, ended.said)

    def _again(self, slot: Slot, said: str) -> None:
        """Try a slot again whose process was ended from outside, but not for ever."""
        self._clear(slot)
        self._tries[slot.folder] += 1
        if self._tries[slot.folder] < MOST_TRIES:
            self._queue.append(slot.folder)
            self._news("interrupted", slot, why=said)
            return
        raise JoulelabError(
            f"a slot was cut off {MOST_TRIES} times", where=str(slot.folder), why=said, next="see what kills it"
        )

    def _count(self, slot: Slot, told: Mapping[str, Any] | None = None) -> None:
        """Count a slot that has ended, and tell of it."""
        warm = slot.folder.name.startswith("w")
        found = None
        if told is None:  # somebody else ran it
            self._pace.add_slot(slot.folder)
        if slot.state is State.DONE:
            self.outcome.done += not warm
            with contextlib.suppress(JoulelabError):
                found = trial_of(slot)
        else:
            self.outcome.failed += not warm
        self._ran += slot.state is State.DONE
        what = f"warm-up {slot.state.value}" if warm else slot.state.value
        self._news(what, slot, why=slot.why, trial=found, details=told or {})
        if told is not None and self.outcome.failed >= MOST_FAILURES and not self._ran and not self.outcome.done:
            raise JoulelabError(
                f"the first {self.outcome.failed} slots failed",
                where=self._study.name,
                why=f"{slot.why}; see {slot.folder / ERR}",
                next="mend the command; type the same with --retry to go on",
            )

    def _news(self, what: str, slot: Slot, **more: Any) -> None:
        cell = self._cells[slot.folder.parent.name]
        rest = [folder.parent.name for folder in (*self._running, *self._queue, *self._waiting)]
        done, total = self.outcome.done + self.outcome.failed, self.outcome.total
        self._tell(Told(what, cell, slot.folder, finished=done, total=total, left_s=self._pace.left_s(rest), **more))

    def _end(self, stop: Stop) -> None:
        """Cancel what runs and wait for its end; told again, hurry."""
        self.outcome.stopped_by = stop.number
        times = 0
        for folder in self._running:
            self._executor.cancel(folder)
        while self._running:
            for ended in self._executor.poll(0.2, [stop.fd]):
                self._running.pop(ended.slot, None)
                slot = look(ended.slot)
                if slot.state in (State.DONE, State.FAILED):
                    self._count(slot)
                else:
                    self._clear(slot)
            stop.heard()
            if stop.times > max(times, 1):
                times = stop.times
                for folder in self._running:
                    self._executor.cancel(folder)


def _error(data: Mapping[str, Any]) -> JoulelabError:
    return JoulelabError(str(data["what"]), where=data["where"], why=data["why"], next=data["next"])


def plan(study: Study, cells: Sequence[str], repeats: int) -> list[Slot]:
    """Return every slot in order, as it is now."""
    return [look(study.slot(key, repeat)) for key, repeat in order(cells, study.seed, repeats)]
