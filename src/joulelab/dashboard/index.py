"""Keep a list of all runs and studies in memory, and keep it fresh: a run that has not changed is not read again.

One thread looks at the folders, another analyses the runs that have no head yet; requests read the latest `Snapshot`
only. Both threads begin with the runs that somebody looks at, then take the newest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.dashboard.run_entries import (
    NOT_YET,
    Entry,
    Place,
    add_live_figures,
    describe_files,
    load_entry,
    make_stub,
    read_entry,
    read_live_entry,
)
from joulelab.dashboard.run_table import RunTable, Snapshot
from joulelab.dashboard.studies import StudyEntry, StudyLooker
from joulelab.report.watch.watched_run import RunWatch
from joulelab.store.run_folder import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from joulelab.site.footprint import Site

_log = logging.getLogger("joulelab.dashboard")
LOOK_S = 1.0  # between two looks at new and live runs
WHOLE_S = 15.0  # between two looks at every run
SHOW_S = 0.2  # between two snapshots while many runs are read, and more for more than 10 000 runs
LIVE_S = 3.0  # between two analyses of a live run
SHARE = 20.0  # looks at every run and analyses of live runs take at most one part in so many of the time
FRESH_S = 5.0  # a folder without run.json that is younger is being made
MOST_FAILURES = 3  # in a row, of a run that may still be written, before the list says so


class Index:
    """Look at a store of runs and one of studies until closed. Both folders must not be links themselves."""

    def __init__(
        self,
        runs: Path,
        studies: Path | None,
        *,
        site: Site | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs = runs.resolve()
        self.site = site  # of runs that recorded none
        self.studies = None if studies is None else studies.resolve()
        self._looker = None if self.studies is None else StudyLooker(self.studies)
        self._table = RunTable()
        self._stamps: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self._found_studies: list[StudyEntry] = []
        self._due: dict[str, float] = {}
        self._watches: dict[str, RunWatch] = {}  # live runs
        self._failures: dict[str, tuple[int, str | None]] = {}  # how often in a row, and the files at the last time
        self._clock = clock
        self._store_stamp = -1
        self._store_names: set[str] = set()
        self._whole_due = clock()
        self._studies_at = clock() - WHOLE_S
        self._asked: tuple[str, ...] = ()
        self._waiting = 0
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._over = threading.Event()
        self._work = threading.Event()
        self._ready = threading.Event()
        self._snapshot = Snapshot(self._table)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Index:
        """Begin to look."""
        for act, woken in ((self._look_on, self._over), (self._work_on, self._work)):
            self._threads.append(
                threading.Thread(target=self._go_on, args=(act, woken), name="joulelab-index", daemon=True)
            )
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._over.set()
        self._work.set()
        for thread in self._threads:
            thread.join(timeout=5)
        for key in list(self._watches):
            self._stop_watch(key)

    def snapshot(self) -> Snapshot:
        """Return the latest state; the first one is waited for, shortly."""
        self._ready.wait(timeout=2)
        return self._snapshot

    def ask_for(self, entries: Iterable[Entry]) -> None:
        """Note the runs that somebody looks at: they are read before others."""
        if wanted := tuple(entry.id for entry in entries if not entry.is_complete):
            self._asked = wanted

    def settled(self, timeout_s: float = 120.0) -> Snapshot:
        """Wait until every run is read and analysed, and return the state: for tests and benchmarks."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = self.snapshot()
            if found.number and not found.waiting and found.is_settled:
                return found
            time.sleep(0.02)
        raise TimeoutError("the index is not settled")

    def look(self) -> None:
        """Look at the folders once; new and changed runs are read, the newest first."""
        begin = self._clock()
        whole = begin >= self._whole_due
        changed = self._find_places(whole=whole)
        with self._lock:
            keys = list(self._places if whole else self._table.unsettled)
        todo = [self._places[key] for key in keys if key in self._places and self._has_changed(key)]
        if whole:
            now = self._clock()
            self._whole_due = begin + max(WHOLE_S, SHARE * (now - begin))
        if changed or todo or not self._snapshot.number:
            self._publish(len(todo))
        shown, pause_s = self._clock(), max(SHOW_S, len(self._places) / 50_000)
        for k, place in enumerate(self._in_turn(todo)):
            if self._over.is_set():
                return
            self._stamps[place.id] = _read_stamp(place.path)
            self._take(place, read_entry(place, self.site))
            if self._clock() - shown > pause_s:
                self._publish(len(todo) - k - 1)
                shown = self._clock()
        if todo:
            self._publish(0)
        self._ready.set()
        self._work.set()

    def work(self) -> bool:
        """Analyse runs without a head, and live ones from time to time, for a moment; return whether there were any.

        It returns soon, so that new runs have their turn before the many that are older.
        """
        until, changed = self._clock() + SHOW_S, False
        for key in list(self._watches):
            entry = self._table.entries.get(key)
            if entry is None or entry.status not in ("live", "broken"):
                self._stop_watch(key)
        for place in self._in_turn(self._unread()):
            begin = self._clock()
            entry = self._read(place)
            now = self._clock()
            self._take(place, entry, due=now + max(LIVE_S, SHARE * (now - begin)))
            changed = True
            if self._over.is_set() or now > until:
                break
        if changed:
            self._publish()
        return changed

    def _read(self, place: Place) -> Entry:
        """Return a run, analysed; one that is live is followed, and not analysed again before its end."""
        known, watch = self._table.entries.get(place.id), self._watches.get(place.id)
        if known is not None and known.status == "live" and watch is not None:
            entry = read_live_entry(place, known, watch)
        else:
            entry = load_entry(place, self.site)
            if entry.status == "live":
                with contextlib.suppress(JoulelabError, OSError):  # the figures of the analysis stay
                    # The time between two reads bounds what it costs.
                    watch = self._watches[place.id] = RunWatch(place.path, 1.0, share=1.0, with_phases=False)
                    entry = add_live_figures(entry, watch.read())
        if entry.status not in ("live", "broken"):
            self._stop_watch(place.id)
        return entry

    def _stop_watch(self, key: str) -> None:
        if (watch := self._watches.pop(key, None)) is not None:
            watch.close()

    def _in_turn(self, places: Iterable[Place]) -> Iterator[Place]:
        """Yield places: first the runs that somebody looks at now, then the newest."""
        left = {place.id: place for place in sorted(places, key=lambda place: place.path.name)}
        asked: tuple[str, ...] = ()
        first: list[str] = []
        while left:
            if asked is not self._asked:
                asked = self._asked
                first = [key for key in reversed(asked) if key in left]
            yield left.pop(first.pop()) if first else left.popitem()[1]

    def _find_places(self, *, whole: bool) -> bool:
        """Find out which runs there are; return whether the list or a study has changed."""
        stamp, changed = _read_stamp(self.runs), False
        looks_in_store = stamp != self._store_stamp or whole
        looks_at_studies = self._looker is not None and (whole or self._is_study_due())
        if not looks_in_store and not looks_at_studies:
            return False
        if looks_at_studies and self._looker is not None:
            found = self._looker.look()
            changed = found != self._found_studies
            self._found_studies = found
        if looks_in_store:
            self._store_stamp = stamp
            self._store_names = self._list_store()
        inside = {place.id: place for study in self._found_studies for place in study.places}
        gone = [key for key in self._places if key not in inside and key not in self._store_names]
        new = [Place(key, self.runs / key, self.runs) for key in self._store_names if key not in self._places]
        new += [place for key, place in inside.items() if self._places.get(key) != place]
        with self._lock:
            for key in gone:
                self._table.drop(key)
                for known in (self._places, self._stamps, self._due, self._failures):
                    known.pop(key, None)
            for place in new:
                if place.id not in self._places:
                    self._table.put(make_stub(place))
                self._places[place.id] = place
        return changed or bool(gone) or bool(new)

    def _is_study_due(self) -> bool:
        """Return whether studies are to be looked at again: often while one is running."""
        now = self._clock()
        every = LOOK_S * 2 if any(study.status == "live" for study in self._found_studies) else LOOK_S * 5
        if now - self._studies_at < every:
            return False
        self._studies_at = now
        return True

    def _list_store(self) -> set[str]:
        try:
            return {entry.name for entry in os.scandir(self.runs) if RUN_ID.fullmatch(entry.name)}
        except OSError:
            return set()

    def _has_changed(self, key: str) -> bool:
        entry, place = self._table.entries[key], self._places[key]
        stamp = _read_stamp(place.path)
        if stamp == self._stamps.get(key) and entry.problem and entry.is_complete:
            # A file below a folder may be mended without a trace in the folder.
            return describe_files(place) != self._failures.get(key, (0, None))[1]
        if stamp == self._stamps.get(key) and entry.status != NOT_YET:
            # The owner of a run may be killed without a trace in the folder.
            return entry.status == "live" and read_entry(place).status != "live"
        return True

    def _take(self, place: Place, entry: Entry, due: float | None = None) -> None:
        """Keep an entry; the energy so far of a live run stays until it is analysed again, when it is due."""
        files = describe_files(place) if entry.problem else None
        with self._lock:
            known = self._table.entries.get(entry.id)
            if known is None:
                return
            if entry.problem:
                self._take_failure(entry, files, due)
                return
            if due is not None or entry.is_complete:
                self._failures.pop(entry.id, None)
            if not entry.status == known.status == "live":
                self._due.pop(entry.id, None)  # one that has ended does not wait as long as a live one
            elif due is not None:
                self._due[entry.id] = due
            if entry.status == "live" == known.status and entry.energy is None:
                entry = replace(
                    entry,
                    energy=known.energy,
                    power_w=known.power_w,
                    duration_s=known.duration_s,
                    start_utc=known.start_utc,
                )
            self._table.put(entry)

    def _take_failure(self, entry: Entry, files: str | None, due: float | None) -> None:
        """Call a run broken once it cannot be read twice with the same files; until then it may be half written.

        One that goes on failing while it is live, or changes, is shown as broken too, and read again and again.
        """
        failures, before = self._failures.get(entry.id, (0, None))
        self._failures[entry.id] = failures + 1, files
        self._due[entry.id] = self._clock() + LIVE_S if due is None else due
        is_being_made = not _is_old(entry.path) and not (entry.path / "run.json").exists()
        if not is_being_made and failures and files is not None and files == before:
            self._table.put(entry)
        elif not is_being_made and failures + 1 >= MOST_FAILURES:
            self._table.put(replace(entry, is_complete=False))
        else:
            self._stamps.pop(entry.id, None)
            self._table.put(replace(self._table.entries[entry.id], is_complete=False))

    def _publish(self, waiting: int | None = None) -> None:
        """Show the entries as they are; `waiting` runs are still to be read, None: as many as before."""
        with self._publishing:  # else a thread could replace the newer snapshot of the other one
            self._waiting = self._waiting if waiting is None else waiting
            with self._lock:
                self._snapshot = Snapshot(self._table, self._found_studies, self._snapshot.number + 1, self._waiting)
        self._ready.set()

    def _look_on(self) -> bool:
        self.look()
        return False

    def _work_on(self) -> bool:
        self._work.clear()
        return self.work()

    def _go_on(self, act: Callable[[], bool], woken: threading.Event) -> None:
        """Act until closed, with a pause if there is no work; an error is logged once, and the act is tried again."""
        told = ""
        while not self._over.is_set():
            try:
                more = act()
                told = ""
            except Exception as error:  # noqa: BLE001 whatever it is, the list must not stop for good
                more = False
                if told != repr(error):
                    _log.exception("the list of runs could not be renewed; it is tried again")
                told = repr(error)
            if not more:
                woken.wait(LOOK_S)

    def _unread(self) -> list[Place]:
        now = self._clock()
        with self._lock:
            entries = [self._table.entries[key] for key in self._table.unsettled]
            keys = [e.id for e in entries if e.status != NOT_YET and self._due.get(e.id, 0.0) <= now]
            return [self._places[key] for key in keys if key in self._places]


def _read_stamp(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def _is_old(path: Path) -> bool:
    try:
        return time.clock_gettime(time.CLOCK_REALTIME) - path.lstat().st_mtime > FRESH_S
    except OSError:
        return False
