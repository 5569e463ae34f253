"""Drive a study: give its slots to an executor in their order, watch them, and end in good order when told to."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from joulelab.control.state import format_utc
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.study import remains
from joulelab.study.executors import Executor, SlotWait
from joulelab.study.order import order_slots
from joulelab.study.progress import Pace
from joulelab.study.slots import ERR, Slot, State, list_claimed_slots, read_slot, remove_remnants, set_slot_aside
from joulelab.study.trial import SlotTrial, load_trial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.study.executors import SlotEnd
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import IsOver
    from joulelab.study.stopping import StopRequest

POLL_S = 0.5
# A slot whose process is killed from outside is tried so often; a sweep that begins with so many failures ends.
MOST_TRIES, MOST_FAILURES = 3, 5


@dataclass(frozen=True, slots=True)
class SlotEvent:
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
    """Say how a drive ended: how many slots are done, failed or cancelled, and what stopped it (None: nothing)."""

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0
    stopped_by: int | None = None
    error: JoulelabError | None = None


class Driver:
    """Run the slots of some cells; `tell` hears what happens. Each node type has its executor, or all have one.

    `tick` is called again and again with the slots that run, or wait in a queue to.
    """

    def __init__(
        self,
        study: Study,
        cells: Mapping[str, PlannedCell],
        repeats: int,
        executors: Executor | Mapping[str, Executor],
        tell: Callable[[SlotEvent], None],
        *,
        warmup: int = 0,
        retry: bool = False,
        tick: Callable[[Sequence[Path]], None] | None = None,
    ) -> None:
        self._study, self._cells, self._tell, self._tick = study, cells, tell, tick
        self._executors = executors
        every = executors.values() if isinstance(executors, Mapping) else [executors]
        self._places = list({id(executor): executor for executor in every}.values())
        self._warmup, self._retry = warmup, retry
        self._several = len({(cell.workload.name, cell.workload.command) for cell in cells.values()}) > 1
        self._began, self._ended = monotonic_ns(), 0
        self._slots = [study.slot(key, repeat) for key, repeat in order_slots(cells, study.seed, repeats)]
        self._queue: deque[Path] = deque()
        self._waiting: list[Path] = []
        self._running: dict[Path, tuple[int, Executor]] = {}  # since when (monotonic ns), and where
        self._tries: Counter[Path] = Counter()
        self._pace = Pace()
        self._ran = 0
        self._said: set[str] = set()
        self.outcome = Outcome(total=len(self._slots))

    def run(self, stop: StopRequest) -> Outcome:
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
        except OSError as error:
            what, then = "the study's folder cannot be used", "mend that, then type the same again"
            where = str(error.filename or self._study.folder)
            self.outcome.error = StoreError(what, where=where, why=error.strerror, next=then)
            self._end(stop)
        return self.outcome

    def _survey(self) -> None:
        """Look at every slot once: what is done stays, what was cut off is set aside, the rest is queued."""
        self._study.tidy()
        for key in self._cells:
            remove_remnants(self._study.folder / "cells" / key)
        for folder in self._slots:
            slot = self._look(folder)
            if slot.state is State.DONE:
                self.outcome.done += 1
                self._pace.add_slot(folder)
            elif not self._retry and (slot.state is State.FAILED or (self._several and slot.state is State.REFUSED)):
                self.outcome.failed += 1
                self._news(f"{slot.state.value} before", slot, why=slot.why)
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
        for folder in list_claimed_slots(cell):
            if folder.name.startswith("w"):
                slot = self._look(folder)
                if slot.state not in (State.DONE, State.LIVE, State.FAILED):
                    self._clear(slot)
        used = max((int(folder.name[1:]) for folder in list_claimed_slots(cell) if folder.name[0] == "w"), default=0)
        return [self._study.slot(cell.name, used + n, "w") for n in range(1, self._warmup + 1)]

    def _clear(self, slot: Slot) -> Path | None:
        """Make a slot free again that is not done: end what is left of its workload, and move its folder aside."""
        if slot.state in (State.FREE, State.LIVE, State.DONE):
            return None
        remains.end_processes(slot.folder)
        aside = set_slot_aside(slot, self._study.folder, self._is_over(slot.folder))
        if aside is not None:
            self._news("set aside", slot, why=aside.name + (f": {slot.why}" if slot.why else ""))
        return aside

    def _start(self) -> None:
        """Start what there is room for; slots that others have claimed are looked at again later."""
        room = {id(place): place.at_once for place in self._places}
        for _, place in self._running.values():
            room[id(place)] -= 1
        left: deque[Path] = deque()
        while any(n > 0 for n in room.values()) and (self._queue or self._waiting):
            if not self._queue and (left or not self._look_again()):
                break
            folder = self._queue.popleft()
            place = self._place(folder)
            if room[id(place)] <= 0:
                left.append(folder)
            elif self._submit(folder, place):
                room[id(place)] -= 1
        self._queue.extendleft(reversed(left))

    def _submit(self, folder: Path, place: Executor) -> bool:
        """Start a slot if it is still to be run; return whether it was."""
        slot = self._look(folder)
        if slot.state is State.LIVE:
            self._waiting.append(folder)
        elif slot.state in (State.DONE, State.FAILED):  # by somebody else
            self._count(slot)
        else:
            self._clear(slot)
            self._study.add_cells([self._cells[folder.parent.name]])
            self._running[folder] = monotonic_ns(), place
            place.submit(folder)
            return True
        return False

    def _place(self, folder: Path) -> Executor:
        """Return where a slot runs: the executor of its node type."""
        if not isinstance(self._executors, Mapping):
            return self._executors
        return self._executors[self._cells[folder.parent.name].workload.node_type]

    def _is_over(self, folder: Path) -> IsOver:
        return self._place(folder).is_over

    def _look(self, folder: Path) -> Slot:
        return read_slot(folder, self._is_over(folder))

    def _look_again(self) -> bool:
        """Move slots that others claimed, and that have ended, back to the queue; return whether there are any."""
        over = [folder for folder in self._waiting if self._look(folder).state is not State.LIVE]
        self._waiting = [folder for folder in self._waiting if folder not in over]
        self._queue.extend(over)
        if not over and "waits" not in self._said:
            self._said.add("waits")
            slot = self._look(self._waiting[0])
            self._news("waits", slot, why=f"it is run by {_who(slot.claim)}; {slot.folder}")
        return bool(over)

    def _collect(self, stop: StopRequest) -> None:
        if self._tick is not None:
            self._tick(list(self._running))
        news = self._poll(POLL_S, stop)
        over = [each for each in news if not isinstance(each, SlotWait)]
        # All of them first: where one stops the study, the others have ended all the same.
        began = [self._running.pop(ended.slot)[0] for ended in over]
        for waits in news:
            if isinstance(waits, SlotWait):
                self._tell_turn(waits)
        for ended, since in zip(over, began, strict=True):
            if ended.told is not None and ended.told.get("is") == "ended":
                self._ended += 1
                self._pace.add(ended.slot.parent.name, (monotonic_ns() - since) / NS)
            self._judge(ended)
        stop.heard()

    def _poll(self, timeout_s: float, stop: StopRequest) -> list[SlotEnd | SlotWait]:
        each_s = timeout_s / len(self._places)
        return [news for place in self._places for news in place.poll(each_s, [stop.fd])]

    def _tell_turn(self, waits: SlotWait) -> None:
        """Tell once that another slot has the turn on this machine, or what else is waited for."""
        what = waits.what or "waits for its turn"
        if what not in self._said:
            self._said.add(what)
            self._news(what, self._look(waits.slot), why=waits.why if waits.what else f"held by {waits.why}")

    def _judge(self, ended: SlotEnd) -> None:
        told = ended.told or {}
        slot = self._look(ended.slot)
        if told.get("is") == "error":
            if slot.state is State.DONE or (self._several and slot.state is State.REFUSED):
                self._count(slot, told)
                if slot.state is State.REFUSED:
                    return  # a command that cannot be started does not keep the others from it
            aside = self._clear(slot)
            raise _error(told["error"], {} if aside is None else {str(slot.folder): str(aside)})
        if told.get("full"):
            self._stop_full(slot, told)
        if slot.state in (State.DONE, State.FAILED):
            self._count(slot, told)
        elif slot.state is State.LIVE or told.get("is") == "taken":
            self._waiting.append(ended.slot)
        elif ended.fate in ("cancelled", "failed"):
            self._give_up(slot, ended)
        else:
            self._again(slot, ended.said)

    def _give_up(self, slot: Slot, ended: SlotEnd) -> None:
        """Count a slot whose job somebody cancelled, or the cluster ended before it began; the next call runs it."""
        self._clear(slot)
        failed = ended.fate == "failed"
        self.outcome.failed += failed
        self.outcome.cancelled += not failed
        self._news(ended.fate, slot, why=ended.said)

    def _again(self, slot: Slot, said: str) -> None:
        """Try a slot again whose process was ended from outside, or died before it began; but not for ever."""
        self._clear(slot)
        self._tries[slot.folder] += 1
        if self._tries[slot.folder] < MOST_TRIES:
            # Where nothing has run yet, it may be that nothing can: that is found out by one.
            (self._queue.append if self._ran else self._queue.appendleft)(slot.folder)
            self._news("interrupted", slot, why=said)
            return
        what = f"a slot was cut off {MOST_TRIES} times"
        if not self._ran and not self._running:
            then = "see what ends it, then type the same again"
            raise JoulelabError(what, where=str(slot.folder), why=said, next=then)
        self.outcome.failed += 1  # others run: it may be its node, or its cell
        self._news("failed", slot, why=f"{what}: {said}")

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
                found = load_trial(slot)
        else:
            self.outcome.failed += not warm
        self._ran += slot.state is State.DONE
        what = f"warm-up {slot.state.value}" if warm else slot.state.value
        self._news(what, slot, why=slot.why, trial=found, details=told or {})
        if told is not None and slot.state is not State.DONE and not self._ran:
            self._check_failures(f"{slot.why}; see {slot.folder / ERR}")

    def _check_failures(self, why: str) -> None:
        """End a sweep that has only failed so far, and would go on to. Raises JoulelabError."""
        outcome = self.outcome
        rest = self._queue or self._waiting
        if rest and outcome.failed >= MOST_FAILURES and not outcome.done:
            what = f"the first {outcome.failed} slots failed"
            then = "mend the command, then type the same with --retry"
            raise JoulelabError(what, where=self._study.name, why=why, next=then)

    def _close(self, slot: Slot) -> None:
        """Count a slot that ended in time, or make it free again."""
        if slot.state in (State.DONE, State.FAILED):
            self._count(slot)
        else:
            self._clear(slot)

    def _news(self, what: str, slot: Slot, **more: Any) -> None:
        cell = self._cells[slot.folder.parent.name]
        rest = [folder.parent.name for folder in (*self._running, *self._queue, *self._waiting)]
        done, total = self.outcome.done + self.outcome.failed + self.outcome.cancelled, self.outcome.total
        self._tell(SlotEvent(what, cell, slot.folder, finished=done, total=total, left_s=self._left_s(rest), **more))

    def _left_s(self, rest: Sequence[str]) -> float | None:
        """Return how long slots of these cells will take: one after another, or as fast as several at once were."""
        if all(place.at_once == 1 for place in self._places):
            return self._pace.left_s(rest)
        return (monotonic_ns() - self._began) / NS / self._ended * len(rest) if self._ended else None

    def _end(self, stop: StopRequest) -> None:
        """Cancel what runs and wait for its end; told again, hurry."""
        self.outcome.stopped_by = stop.number
        times = 0
        for folder, (_, place) in self._running.items():
            place.cancel(folder)
        while self._running:
            for ended in self._poll(0.2, stop):
                if isinstance(ended, SlotWait):
                    continue
                self._running.pop(ended.slot, None)
                with contextlib.suppress(
                    JoulelabError, OSError
                ):  # what cannot be told or moved now is at the next call
                    self._close(self._look(ended.slot))
            stop.heard()
            if stop.times > max(times, 1):
                times = stop.times
                for folder, (_, place) in self._running.items():
                    place.cancel(folder)


def _who(claim: Mapping[str, Any]) -> str:
    """Return who runs a slot, since when, and what to do where that is not so any more."""
    job = claim.get("task") or claim.get("job")
    who = f"job {job}" if job else f"process {claim.get('pid')}"
    since = format_utc(int(claim["utc_ns"])) if "utc_ns" in claim else "an unknown time"
    where = claim.get("node") or claim.get("host")
    return f"{who} on {where} since {since}; if that is gone for good, move its folder away"


def _error(data: Mapping[str, Any], moved: Mapping[str, str]) -> JoulelabError:
    """Return what a slot told as an error, with its folder where it is now."""
    where, why = data["where"], data["why"]
    for old, new in moved.items():
        where, why = (None if text is None else text.replace(old, new) for text in (where, why))
    return JoulelabError(str(data["what"]), where=where, why=why, next=data["next"])


def list_planned_slots(study: Study, cells: Sequence[str], repeats: int, is_over: IsOver | None = None) -> list[Slot]:
    """Return every slot in order, as it is now."""
    return [read_slot(study.slot(key, repeat), is_over) for key, repeat in order_slots(cells, study.seed, repeats)]
