"""Drive a study: give its slots to an executor in their order, watch them, and end in good order when told to."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.study import remains
from joulelab.study.executors import Waits
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
POLL_S = 0.5
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
        self._said_waiting = self._said_turn = False
        self.outcome = Outcome(total=len(self._slots))

    def run(self, stop: Stop) -> Outcome:
        """Run what is not done yet; return when all is, or when told to stop, or when nothing can be run."""
        try:
            self._survey()
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
        self._check_failures("all failed before")
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

    def _clear(self, slot: Slot) -> Path | None:
        """Make a slot free again that is not done: end what is left of its workload, and move its folder aside."""
        if slot.state in (State.FREE, State.LIVE, State.DONE):
            return None
        remains.end(slot.folder)
        aside = set_aside(slot, self._study.folder)
        if aside is not None:
            self._news("set aside", slot, why=aside.name + (f": {slot.why}" if slot.why else ""))
        return aside

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
            if isinstance(ended, Waits):
                self._tell_turn(ended)
                continue
            took_s = (monotonic_ns() - self._running.pop(ended.slot)) / NS
            if ended.told is not None and ended.told.get("is") == "ended":
                self._pace.add(ended.slot.parent.name, took_s)
            self._judge(ended)
        stop.heard()

    def _tell_turn(self, waits: Waits) -> None:
        """Tell once that another slot has the turn on this machine."""
        if not self._said_turn:
            self._said_turn = True
            self._news("waits for its turn", look(waits.slot), why=f"held by {waits.why}")

    def _judge(self, ended: Ended) -> None:
        told = ended.told or {}
        slot = look(ended.slot)
        if told.get("is") == "error":
            if slot.state is State.DONE:
                self._count(slot, told)
            aside = self._clear(slot)
            raise _error(told["error"], {} if aside is None else {str(slot.folder): str(aside)})
        if told.get("full"):
            self._stop_full(slot, told)
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
            f"a slot was cut off {MOST_TRIES} times",
            where=str(slot.folder),
            why=said,
            next="see what kills it, then type the same again",
        )

    def _stop_full(self, slot: Slot, told: Mapping[str, Any]) -> NoReturn:
        """End the sweep: the disk is full. What was done counts; what failed will be run again. Raises StoreError."""
        if slot.state is State.DONE:
            self._count(slot, told)
        self._clear(slot)
        what, then = "the disk is full", "free some space, then type the same again"
        raise StoreError(what, where=str(self._study.folder), why=str(told["full"]), next=then)

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
        if told is not None and slot.state is State.FAILED and not self._ran:
            self._check_failures(f"{slot.why}; see {slot.folder / ERR}")

    def _check_failures(self, why: str) -> None:
        """End a sweep that has only failed so far, and would go on to. Raises JoulelabError."""
        outcome = self.outcome
        rest = self._queue or self._waiting
        if rest and outcome.failed >= MOST_FAILURES and not outcome.done:
            what = f"the first {outcome.failed} slots failed"
            then = "mend the command, then type the same with --retry"
            raise JoulelabError(what, where=self._study.name, why=why, next=then)

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
                if isinstance(ended, Waits):
                    continue
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


def _error(data: Mapping[str, Any], moved: Mapping[str, str]) -> JoulelabError:
    """Return what a slot told as an error, with its folder where it is now."""
    where, why = data["where"], data["why"]
    for old, new in moved.items():
        where, why = (None if text is None else text.replace(old, new) for text in (where, why))
    return JoulelabError(str(data["what"]), where=where, why=why, next=data["next"])


def plan(study: Study, cells: Sequence[str], repeats: int) -> list[Slot]:
    """Return every slot in order, as it is now."""
    return [look(study.slot(key, repeat)) for key, repeat in order(cells, study.seed, repeats)]
