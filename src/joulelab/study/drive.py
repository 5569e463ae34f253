"""Drive a study: give its slots to executors in their order, watch them, and stop in good order."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn, Self

from joulelab.control.state import format_utc
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError
from joulelab.store.documents import read_json
from joulelab.study.executors import Executor, SlotWait
from joulelab.study.matrix import order_block, order_slots
from joulelab.study.precision import CellPrecision, read_precision
from joulelab.study.results import SlotTrial, load_trial
from joulelab.study.slot_processes import end_processes
from joulelab.study.slots import ERR, NOTES, Slot, State, list_claimed_slots, read_slot, remove_remnants, set_slot_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import FrameType

    from joulelab.study.executors import SlotEnd
    from joulelab.study.folder import PrecisionTarget, Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import IsOver

POLL_S = 0.5
MOST_TRIES = 3  # of a slot whose process is killed from outside
MOST_FAILURES = 5  # a study that begins with so many failures stops
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class SlotEvent:
    """Hold news of a slot. `trial` is set if it is done; `left_s` is how long the rest will take, if known."""

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
    """Hold how a drive ended: numbers of slots, what stopped it (None: nothing), and the precision of the cells.

    There is a `precision` only where one was wanted.
    """

    done: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0
    stopped_by: int | None = None
    error: JoulelabError | None = None
    precision: Sequence[CellPrecision] = ()


class StopRequest:
    """Note signals that stop the driver, instead of ending at once; restore their handlers at the end."""

    def __enter__(self) -> Self:
        """Take the signals that are not ignored."""
        self.number: int | None = None
        self.times = 0
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell, False)
        self._before = {n: signal.getsignal(n) for n in STOP_SIGNALS}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._bell)

    def drain_pipe(self) -> None:
        """Empty the pipe that wakes the driver."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 64)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number if self.number is None else self.number
        self.times += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"!")


class Pace:
    """Hold how long slots took by cell, in s, with everything around the workload."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {}

    def add(self, key: str, took_s: float) -> None:
        """Add the time of a slot of a cell."""
        self._took.setdefault(key, []).append(took_s)

    def add_slot(self, folder: Path) -> None:
        """Add the time of a slot that ended earlier, if it is stored."""
        try:
            took_s = read_json(folder / NOTES).get("took_s")
        except StoreError:
            return
        if isinstance(took_s, int | float):
            self.add(folder.parent.name, float(took_s))

    def left_s(self, keys: Iterable[str]) -> float | None:
        """Return how long slots of these cells will take: by the cell's own mean where known, else by that of all."""
        if not self._took:
            return None
        every = fmean(fmean(times) for times in self._took.values())
        return sum(fmean(self._took[key]) if key in self._took else every for key in keys)


class Driver:
    """Run the slots of some cells; `report` gets every event. Each node type has its executor, or all share one.

    `tick` is called repeatedly with the slots that run or are queued. With a `target`, cells that are not precise
    enough after `repeats` get more, block after block: in each block every such cell once, in random order.
    """

    def __init__(
        self,
        study: Study,
        cells: Mapping[str, PlannedCell],
        repeats: int,
        executors: Executor | Mapping[str, Executor],
        report: Callable[[SlotEvent], None],
        *,
        warmup: int = 0,
        retry: bool = False,
        tick: Callable[[Sequence[Path]], None] | None = None,
        target: PrecisionTarget | None = None,
    ) -> None:
        self._study, self._cells, self._report, self._tick = study, cells, report, tick
        self._executors = executors
        every = executors.values() if isinstance(executors, Mapping) else [executors]
        self._places = list({id(executor): executor for executor in every}.values())
        self._warmup, self._retry = warmup, retry
        self._several = len({(cell.workload.name, cell.workload.command) for cell in cells.values()}) > 1
        self._began, self._ended = monotonic_ns(), 0
        self._slots = [study.get_slot_folder(key, repeat) for key, repeat in order_slots(cells, study.seed, repeats)]
        self._target, self._block = target, repeats
        self._precision: dict[str, CellPrecision] = {}
        self._trials: dict[Path, SlotTrial] = {}
        self._queue: deque[Path] = deque()
        self._waiting: list[Path] = []
        self._running: dict[Path, tuple[int, Executor]] = {}  # since when (monotonic ns), and where
        self._tries: Counter[Path] = Counter()
        self._pace = Pace()
        self._ran = 0
        self._announced: set[str] = set()
        self.outcome = Outcome(total=len(self._slots))

    def run(self, stop: StopRequest) -> Outcome:
        """Run all slots that are not done; return when they are, at a stop signal, or when nothing can be run."""
        try:
            self._survey_study()
            while self._queue or self._waiting or self._running or self._add_block():
                if stop.number is not None:
                    self._cancel_all(stop)
                    break
                self._start_slots()
                self._collect_ended(stop)
        except JoulelabError as error:
            self.outcome.error = error
            self._cancel_all(stop)
        except OSError as error:
            what, then = "the study's folder cannot be used", "mend that, then type the same again"
            where = str(error.filename or self._study.folder)
            self.outcome.error = StoreError(what, where=where, why=error.strerror, next=then)
            self._cancel_all(stop)
        return self.outcome

    def _survey_study(self) -> None:
        """Look at every slot once: done ones stay, cut-off ones are set aside, the rest is queued."""
        self._study.remove_leftovers()
        for key in self._cells:
            remove_remnants(self._study.folder / "cells" / key)
        self._queue_slots(self._slots)
        self._check_failures("all failed before")
        if self._queue:
            self._queue.extendleft(reversed(self._make_warmups(self._queue[0])))

    def _add_block(self) -> bool:
        """Queue the next repeat of every cell that is not precise enough; return whether there is anything to run."""
        target, judged = self._target, self._precision
        while target is not None:
            open_cells = {
                key: cell
                for key, cell in self._cells.items()
                if key not in judged or judged[key].verdict == "unfinished"
            }
            found = read_precision(self._study, open_cells, target, read=self._read_slot, trials=self._trials)
            judged |= {one.cell: one for one in found}
            self.outcome.precision = tuple(judged.values())
            rest = [one.cell for one in found if one.verdict == "unfinished"]
            if not rest or self._block >= target.max_repeats:
                return False
            self._block += 1
            keys = order_block(rest, self._study.seed, self._block)
            self.outcome.total += len(keys)
            self._queue_slots(self._study.get_slot_folder(key, self._block) for key in keys)
            if self._queue or self._waiting:
                return True
        return False

    def _queue_slots(self, folders: Iterable[Path]) -> None:
        """Queue the slots that are to be run; count those that are done, or failed before."""
        for folder in folders:
            slot = self._read_slot(folder)
            if slot.state is State.DONE:
                self.outcome.done += 1
                self._pace.add_slot(folder)
            elif not self._retry and (slot.state is State.FAILED or (self._several and slot.state is State.REFUSED)):
                self.outcome.failed += 1
                self._report_event(f"{slot.state.value} before", slot, why=slot.why)
            elif slot.state is State.LIVE:
                self._waiting.append(folder)
            else:
                self._free_slot(slot)
                self._queue.append(folder)

    def _make_warmups(self, first: Path) -> list[Path]:
        """Return slots of the first cell that will not be counted; each call has its own."""
        cell = first.parent
        for folder in list_claimed_slots(cell):
            if folder.name.startswith("w"):
                slot = self._read_slot(folder)
                if slot.state not in (State.DONE, State.LIVE, State.FAILED):
                    self._free_slot(slot)
        used = max((int(folder.name[1:]) for folder in list_claimed_slots(cell) if folder.name[0] == "w"), default=0)
        return [self._study.get_slot_folder(cell.name, used + n, "w") for n in range(1, self._warmup + 1)]

    def _free_slot(self, slot: Slot) -> Path | None:
        """Free a slot that is not done: end the rest of its workload, and move its folder aside."""
        if slot.state in (State.FREE, State.LIVE, State.DONE):
            return None
        end_processes(slot.folder)
        aside = set_slot_aside(slot, self._study.folder, self._is_over(slot.folder))
        if aside is not None:
            self._report_event("set aside", slot, why=aside.name + (f": {slot.why}" if slot.why else ""))
        return aside

    def _start_slots(self) -> None:
        """Start the slots that there is room for; slots that others have claimed are looked at again later."""
        room = {id(place): place.at_once for place in self._places}
        for _, place in self._running.values():
            room[id(place)] -= 1
        left: deque[Path] = deque()
        while any(n > 0 for n in room.values()) and (self._queue or self._waiting):
            if not self._queue and (left or not self._requeue_ended()):
                break
            folder = self._queue.popleft()
            place = self._find_executor(folder)
            if room[id(place)] <= 0:
                left.append(folder)
            elif self._submit_slot(folder, place):
                room[id(place)] -= 1
        self._queue.extendleft(reversed(left))

    def _submit_slot(self, folder: Path, place: Executor) -> bool:
        """Start a slot if it is still to be run; return whether it was."""
        slot = self._read_slot(folder)
        if slot.state is State.LIVE:
            self._waiting.append(folder)
        elif slot.state in (State.DONE, State.FAILED):  # by somebody else
            self._count_slot(slot)
        else:
            self._free_slot(slot)
            self._study.add_cells([self._cells[folder.parent.name]])
            self._running[folder] = monotonic_ns(), place
            place.submit(folder)
            return True
        return False

    def _find_executor(self, folder: Path) -> Executor:
        """Return the executor of a slot's node type."""
        if not isinstance(self._executors, Mapping):
            return self._executors
        return self._executors[self._cells[folder.parent.name].workload.node_type]

    def _is_over(self, folder: Path) -> IsOver:
        return self._find_executor(folder).is_over

    def _read_slot(self, folder: Path) -> Slot:
        return read_slot(folder, self._is_over(folder))

    def _requeue_ended(self) -> bool:
        """Move slots that others claimed, and that have ended, back to the queue; return whether there are any."""
        over = [folder for folder in self._waiting if self._read_slot(folder).state is not State.LIVE]
        self._waiting = [folder for folder in self._waiting if folder not in over]
        self._queue.extend(over)
        if not over and "waits" not in self._announced:
            self._announced.add("waits")
            slot = self._read_slot(self._waiting[0])
            self._report_event("waits", slot, why=f"it is run by {_describe_claim(slot.claim)}; {slot.folder}")
        return bool(over)

    def _collect_ended(self, stop: StopRequest) -> None:
        if self._tick is not None:
            self._tick(list(self._running))
        news = self._poll_executors(POLL_S, stop)
        over = [each for each in news if not isinstance(each, SlotWait)]
        # All of them first: where one stops the study, the others have ended all the same.
        began = [self._running.pop(ended.slot)[0] for ended in over]
        for waits in news:
            if isinstance(waits, SlotWait):
                self._announce_wait(waits)
        for ended, since in zip(over, began, strict=True):
            if ended.answer is not None and ended.answer.get("is") == "ended":
                self._ended += 1
                self._pace.add(ended.slot.parent.name, (monotonic_ns() - since) / NS)
            self._judge_end(ended)
        stop.drain_pipe()

    def _poll_executors(self, timeout_s: float, stop: StopRequest) -> list[SlotEnd | SlotWait]:
        each_s = timeout_s / len(self._places)
        return [news for place in self._places for news in place.poll(each_s, [stop.fd])]

    def _announce_wait(self, waits: SlotWait) -> None:
        """Report once that another slot has the turn on this machine, or what else a slot waits for."""
        what = waits.what or "waits for its turn"
        if what not in self._announced:
            self._announced.add(what)
            self._report_event(
                what, self._read_slot(waits.slot), why=waits.why if waits.what else f"held by {waits.why}"
            )

    def _judge_end(self, ended: SlotEnd) -> None:
        answer = ended.answer or {}
        slot = self._read_slot(ended.slot)
        if answer.get("is") == "error":
            if slot.state is State.DONE or (self._several and slot.state is State.REFUSED):
                self._count_slot(slot, answer)
                if slot.state is State.REFUSED:
                    return  # a command that cannot be started does not keep the others from it
            aside = self._free_slot(slot)
            raise _make_error(answer["error"], {} if aside is None else {str(slot.folder): str(aside)})
        if answer.get("full"):
            self._raise_full(slot, answer)
        if slot.state in (State.DONE, State.FAILED):
            self._count_slot(slot, answer)
        elif slot.state is State.LIVE or answer.get("is") == "taken":
            self._waiting.append(ended.slot)
        elif ended.fate in ("cancelled", "failed"):
            self._give_up_slot(slot, ended)
        else:
            self._retry_slot(slot, ended.ending)

    def _give_up_slot(self, slot: Slot, ended: SlotEnd) -> None:
        """Count a slot whose job somebody cancelled, or the cluster ended before it began; the next call runs it."""
        self._free_slot(slot)
        failed = ended.fate == "failed"
        self.outcome.failed += failed
        self.outcome.cancelled += not failed
        self._report_event(ended.fate, slot, why=ended.ending)

    def _retry_slot(self, slot: Slot, ending: str) -> None:
        """Try a slot again whose process was ended from outside, or died before it began; but not for ever."""
        self._free_slot(slot)
        self._tries[slot.folder] += 1
        if self._tries[slot.folder] < MOST_TRIES:
            # Where nothing has run yet, it may be that nothing can: that is found out by one.
            (self._queue.append if self._ran else self._queue.appendleft)(slot.folder)
            self._report_event("interrupted", slot, why=ending)
            return
        what = f"a slot was cut off {MOST_TRIES} times"
        if not self._ran and not self._running:
            then = "see what ends it, then type the same again"
            raise JoulelabError(what, where=str(slot.folder), why=ending, next=then)
        self.outcome.failed += 1  # others run: it may be its node, or its cell
        self._report_event("failed", slot, why=f"{what}: {ending}")

    def _raise_full(self, slot: Slot, answer: Mapping[str, Any]) -> NoReturn:
        """End the sweep: the disk is full. What was done counts; what failed will be run again. Raises StoreError."""
        if slot.state is State.DONE:
            self._count_slot(slot, answer)
        self._free_slot(slot)
        what, then = "the disk is full", "free some space, then type the same again"
        raise StoreError(what, where=str(self._study.folder), why=str(answer["full"]), next=then)

    def _count_slot(self, slot: Slot, answer: Mapping[str, Any] | None = None) -> None:
        """Count a slot that has ended, and report it."""
        warm = slot.folder.name.startswith("w")
        found = None
        if answer is None:  # somebody else ran it
            self._pace.add_slot(slot.folder)
        if slot.state is State.DONE:
            self.outcome.done += not warm
            with contextlib.suppress(JoulelabError):
                found = load_trial(slot)
        else:
            self.outcome.failed += not warm
        self._ran += slot.state is State.DONE
        what = f"warm-up {slot.state.value}" if warm else slot.state.value
        self._report_event(what, slot, why=slot.why, trial=found, details=answer or {})
        if answer is not None and slot.state is not State.DONE and not self._ran:
            self._check_failures(f"{slot.why}; see {slot.folder / ERR}")

    def _check_failures(self, why: str) -> None:
        """End a sweep that has only failed so far, and would go on to. Raises JoulelabError."""
        outcome = self.outcome
        rest = self._queue or self._waiting
        if rest and outcome.failed >= MOST_FAILURES and not outcome.done:
            what = f"the first {outcome.failed} slots failed"
            then = "mend the command, then type the same with --retry"
            raise JoulelabError(what, where=self._study.name, why=why, next=then)

    def _settle_slot(self, slot: Slot) -> None:
        """Count a slot that ended in time, or make it free again."""
        if slot.state in (State.DONE, State.FAILED):
            self._count_slot(slot)
        else:
            self._free_slot(slot)

    def _report_event(self, what: str, slot: Slot, **more: Any) -> None:
        cell = self._cells[slot.folder.parent.name]
        rest = [folder.parent.name for folder in (*self._running, *self._queue, *self._waiting)]
        done, total = self.outcome.done + self.outcome.failed + self.outcome.cancelled, self.outcome.total
        self._report(
            SlotEvent(what, cell, slot.folder, finished=done, total=total, left_s=self._estimate_left_s(rest), **more)
        )

    def _estimate_left_s(self, rest: Sequence[str]) -> float | None:
        """Return how long slots of these cells will take: one after another, or as fast as several at once were."""
        if all(place.at_once == 1 for place in self._places):
            return self._pace.left_s(rest)
        return (monotonic_ns() - self._began) / NS / self._ended * len(rest) if self._ended else None

    def _cancel_all(self, stop: StopRequest) -> None:
        """Cancel all running slots and wait for their end; hurry at every further signal."""
        self.outcome.stopped_by = stop.number
        times = 0
        for folder, (_, place) in self._running.items():
            place.cancel(folder)
        while self._running:
            for ended in self._poll_executors(0.2, stop):
                if isinstance(ended, SlotWait):
                    continue
                self._running.pop(ended.slot, None)
                with contextlib.suppress(JoulelabError, OSError):  # the next call looks at it again
                    self._settle_slot(self._read_slot(ended.slot))
            stop.drain_pipe()
            if stop.times > max(times, 1):
                times = stop.times
                for folder, (_, place) in self._running.items():
                    place.cancel(folder)


def _describe_claim(claim: Mapping[str, Any]) -> str:
    """Return who runs a slot, since when, and what to do where that is not so any more."""
    job = claim.get("task") or claim.get("job")
    who = f"job {job}" if job else f"process {claim.get('pid')}"
    since = format_utc(int(claim["utc_ns"])) if "utc_ns" in claim else "an unknown time"
    where = claim.get("node") or claim.get("host")
    return f"{who} on {where} since {since}; if that is gone for good, move its folder away"


def _make_error(data: Mapping[str, Any], moved: Mapping[str, str]) -> JoulelabError:
    """Return the error that a slot answered, with the slot's folder where it is now."""
    where, why = data["where"], data["why"]
    for old, new in moved.items():
        where, why = (None if text is None else text.replace(old, new) for text in (where, why))
    return JoulelabError(str(data["what"]), where=where, why=why, next=data["next"])


def list_planned_slots(
    study: Study, cells: Sequence[str], repeats: int, is_over: IsOver | None = None, *, max_repeats: int = 0
) -> list[Slot]:
    """Return every planned slot in order, as it is now; of repeats beyond the first, only those that have begun."""
    wanted = order_slots(cells, study.seed, max(repeats, max_repeats))
    slots = [(study.get_slot_folder(key, repeat), repeat) for key, repeat in wanted]
    return [read_slot(folder, is_over) for folder, repeat in slots if repeat <= repeats or folder.exists()]
