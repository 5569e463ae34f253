"""Run one slot in a process of its own: `python -m joulelab.study.slot FOLDER`. Here, or in a job of a cluster.

It waits for its turn on this machine, claims the slot, cools down, runs the workload under the supervisor with its
output in files, and leaves the outcome in the folder. What it has to tell its caller is one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError, WriteFailed
from joulelab.store.folder import list_runs, write_json_atomic
from joulelab.study import cooling, devices, remains, trial
from joulelab.study.folder import Settings, Study, open_study, read_cell
from joulelab.study.recording import run_options
from joulelab.study.slots import ERR, NOTES, OUT, claimed, note_stop
from joulelab.study.turn import turn
from joulelab.supervisor.leftovers import put_back
from joulelab.supervisor.run import run_command
from joulelab.supervisor.signals import ENDING, Signal, SignalBox
from joulelab.supervisor.workload import inherited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.study.matrix import PlannedCell
    from joulelab.supervisor.run import Outcome

LOOK_S = 0.5
# What a workload leaves running is given so long to end when it is asked to.
OUTLIVED_S = 3.0
REAP_S = 5.0


class NotingBox(SignalBox):
    """Take signals as a run does, and note in the slot that it was told to end, before anybody else is."""

    def __init__(self) -> None:
        self.told: int | None = None
        self.slot: Path | None = None

    def take(self) -> list[Signal]:
        """Return the signals that have arrived."""
        arrived = super().take()
        ending = next((signal.number for signal in arrived if signal.number in ENDING), None)
        if ending is not None and self.told is None:
            self.told = ending
            if self.slot is not None:
                note_stop(self.slot, "interrupted", signal=ending)
        return arrived

    def pause(self, seconds: float) -> bool:
        """Wait so many s; return False where we are told to end."""
        until = time.monotonic() + seconds
        while self.told is None:
            left = until - time.monotonic()
            if left <= 0:
                return True
            select.select([self.fd], (), (), left)
            self.take()
        return False


class Watchdog:
    """End the workload when it has taken too long; counted from its start."""

    def __init__(self, slot: Path, timeout_s: float | None) -> None:
        self._slot, self._timeout_s = slot, timeout_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        if self._timeout_s is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        assert self._timeout_s is not None
        start = self._started_ns()
        while start is None:
            if self._over.wait(LOOK_S):
                return
            start = self._started_ns()
        left_s = (start - monotonic_ns()) / NS + self._timeout_s
        if not self._over.wait(max(left_s, 0.0)):
            note_stop(self._slot, "timeout", after_s=self._timeout_s)
            remains.end(self._slot)

    def _started_ns(self) -> int | None:
        event = _workload(self._slot)
        return None if event is None else int(event["start_ns"])


class Reaper:
    """Bury what the workload left behind and what ended since: we are its parent now, and it would be a zombie.

    Our own processes are waited for by those who started them, the workload is never touched, others have REAP_S.
    """

    def __init__(self, slot: Path) -> None:
        self._slot = slot
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reaper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        workload: int | None = None
        before: set[int] = set()
        while not self._over.wait(REAP_S):
            if workload is None:
                workload = int((_workload(self._slot) or {"pid": 0})["pid"]) or None
                continue
            dead = remains.zombies() - {workload}
            for pid in dead & before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            before = dead


def _workload(slot: Path) -> dict[str, Any] | None:
    """Return the event that tells of the workload's start, None where it has not started."""
    for file in (file for run in list_runs(slot) for file in run.glob("*/events.run.jsonl")):
        for line in file.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") == "workload":
                    return event
    return None


def main(words: list[str]) -> int:
    """Run the slot whose folder is named; return 0 unless it could not be run."""
    folder = Path(words[0]).absolute()
    said = os.dup(1)
    try:
        signals = NotingBox()
        with signals:
            told = run_slot(folder, inherited(os.environ), signals, lambda news: _say(said, news))
    except JoulelabError as error:
        told = {"is": "error", "error": describe(error)}
    except OSError as error:
        failed = StoreError("the slot cannot be run", where=str(folder), why=str(error), next="mend that, then go on")
        told = {"is": "error", "error": describe(failed)}
    _say(said, told)
    return int(told["is"] == "error")


def _say(said: int, news: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever started us may be gone
        os.write(said, json.dumps(news).encode() + b"\n")


def describe(error: JoulelabError) -> dict[str, Any]:
    """Return an error as plain data."""
    then = f"{error.next}, then type the same again" if isinstance(error, WriteFailed) and error.next else error.next
    plain = {"what": error.what, "where": error.where, "why": error.why, "next": then}
    return {"kind": type(error).__name__, **plain}


def run_slot(
    folder: Path, environ: Mapping[str, str], signals: NotingBox, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run a slot and return what to tell: it `ended`, is `taken`, was `interrupted`. Raises JoulelabError.

    `tell` hears meanwhile that it `waits`.
    """
    study = open_study(folder.parents[2])
    cell = read_cell(folder.parent)
    remains.adopt()
    own = f"{study.name}: {cell.shown} ({folder.name})"
    with turn(environ, signals.pause, command=own, tell=lambda who: tell({"is": "waits", "for": who})) as mine:
        if not mine:
            return {"is": "interrupted"}
        put_back(environ, _ignore)  # a slot that was killed with its keeper must not leave its caps to this one
        with claimed(folder, {"study": study.name, "cell": cell.key}) as got:
            if not got:
                return {"is": "taken"}
            signals.slot = folder
            if signals.told is not None:
                note_stop(folder, "interrupted", signal=signals.told)
                return {"is": "interrupted"}
            return _run(study, cell, folder, environ, signals)


def _run(
    study: Study, cell: PlannedCell, folder: Path, environ: Mapping[str, str], signals: NotingBox
) -> dict[str, Any]:
    began = monotonic_ns()
    settings = study.settings
    shown, used, caps = _devices(cell, environ)
    _redirect(folder)
    cooled = cooling.cool_down(settings, used, signals.pause)
    _note(folder, settings, used, cooled)
    labels = {"study": study.name, "cell": cell.key, "slot": folder.name}
    labels |= {name: value.text for name, value in cell.knobs.items()}
    options, _ = run_options(settings, shown, folder, name=study.name, labels=labels, caps=caps)
    with Watchdog(folder, settings.timeout_s), Reaper(folder):
        outcome = run_command(cell.argv(), options, shown, say=_ignore, signals=signals)
    told: dict[str, Any] = {"is": "ended", "problems": outcome.problems, "cooled": cooled, **_end_rest(folder)}
    _check_recorded(outcome, folder)
    if outcome.result is not None:
        trial.keep(folder, trial.from_result(outcome.result))
    took_s = (monotonic_ns() - began) / NS
    full = _note(folder, settings, used, cooled, took_s=took_s, problems=outcome.problems)
    full = full or next((problem for problem in outcome.problems if "ENOSPC" in problem or "EDQUOT" in problem), "")
    return {**told, "full": full} if full else told


def _devices(cell: PlannedCell, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str], list[Any]]:
    """Return the workload's environment, the GPUs it uses, and the caps to set. Raises ConfigError."""
    count = cell.knobs["gpus"].value if "gpus" in cell.knobs else None
    seen = devices.look(environ).first(None if count is None else int(count))
    shown = {**environ, **seen.environment(environ)} if count is not None else dict(environ)
    if not set(cell.knobs) & {"cap", "clock", "cpu_cap"}:
        return shown, list(seen.scopes), []
    return shown, list(seen.scopes), devices.wishes(cell.knobs, seen, devices.packages(cell.knobs, environ))


def _redirect(folder: Path) -> None:
    """Send what the workload will write to files; it has nothing to read."""
    for target, name in ((1, OUT), (2, ERR)):
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(fd, target)
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)


def _note(folder: Path, settings: Settings, used: list[str], cooled: Mapping[str, Any], **more: Any) -> str:
    """Note how the slot was run; return why that cannot be written, in words, empty where it was."""
    try:
        write_json_atomic(folder / NOTES, {"settings": settings.to_json(), "gpus": used, "cooled": cooled, **more})
    except StoreError as error:
        return error.why or str(error)
    return ""


def _end_rest(folder: Path) -> dict[str, int]:
    """End what outlived the workload, or it would disturb the slots that follow; return how many there were."""
    left = remains.processes(folder)
    if not left or remains.end(folder, OUTLIVED_S):
        return {"outlived": len(left)}
    return {"outlived": len(left), "unended": len(remains.processes(folder))}


def _check_recorded(outcome: Outcome, folder: Path) -> None:
    """Raise what stops the whole study: a command that cannot be started, a disk that takes nothing."""
    if outcome.error is not None:
        raise outcome.error
    if outcome.run is None or not (outcome.run / "end.json").exists():
        what = "nothing could be recorded" if outcome.run is None else "the run could not be closed"
        why = "; ".join(outcome.problems)
        raise StoreError(what, where=str(folder), why=why, next="free some space, then type the same again")


def _ignore(_: str) -> None:
    """Say nothing: what is said is among the outcome's problems."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
