"""Keep a list of all runs and studies in memory, and keep it fresh: what has not changed is not read again.

One thread looks at the folders, another works out what has no cache yet; requests read the latest `Snapshot` only.
Both take what a page is being asked for first, then the newest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.dashboard.run_entries import (
    NOT_YET,
    Entry,
    Place,
    add_live_figures,
    describe_files,
    full_entry,
    live_entry,
    quick_entry,
    stub,
)
from joulelab.dashboard.studies import StudyEntry, StudyLooker
from joulelab.report.watch.watched_run import RunWatch
from joulelab.store.run_folder import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.site.footprint import Site

_log = logging.getLogger("joulelab.dashboard")
LOOK_S = 1.0  # so often new and live runs are looked for
WHOLE_S = 15.0  # so often every run is looked at
SHOW_S = 0.2  # while many are read, the list is renewed so often
LIVE_S = 3.0  # a live run is worked out so often, and at most for a twentieth of the time
SHARE = 20.0
FRESH_S = 5.0  # a folder without run.json is being made for so long
MOST_FAILURES = 3  # so often in a row a run that may still be written may be unreadable before the list says so
FACETS = ("status", "study", "host", "workload", "label")
MOST_VALUES = 200


class Snapshot:
    """Hold the runs and studies as they were at one time. Everything of it is worked out once, when first asked for."""

    def __init__(self, entries: Sequence[Entry], studies: Sequence[StudyEntry], number: int, waiting: int) -> None:
        self.entries = tuple(sorted(entries, key=lambda e: (e.start_utc, e.id), reverse=True))
        self.studies = tuple(studies)
        self.number = number
        self.waiting = waiting
        self.by_id = {entry.id: entry for entry in self.entries}
        self.study_by_id = {study.id: study for study in self.studies}
        self._orders: dict[str, tuple[Entry, ...]] = {"start": self.entries}
        self._facets: dict[str, list[tuple[str, int]]] | None = None

    def find(self, name: str) -> list[Entry]:
        """Return the runs of an id: one, several slots of studies whose runs have the same, or none."""
        exact = self.by_id.get(name)
        if exact is not None:
            return [exact]
        return [e for e in self.entries if e.path.name == name] if RUN_ID.fullmatch(name) else []

    def ordered(self, by: str) -> tuple[Entry, ...]:
        """Return the runs in falling order of start, energy, time, name or status; those without it come last."""
        if by not in self._orders:
            keys = {
                "energy": lambda e: -1.0 if e.energy is None else e.energy["value"],
                "time": lambda e: -1.0 if e.duration_s is None else e.duration_s,
                "name": lambda e: (e.name or e.workload).lower(),
                "status": lambda e: e.status,
                "host": lambda e: e.hosts[:1],
            }
            self._orders[by] = tuple(sorted(self.entries, key=keys[by], reverse=True))
        return self._orders[by]

    def facets(self) -> Mapping[str, list[tuple[str, int]]]:
        """Return what the list can be narrowed to: values with their counts, the most frequent first."""
        if self._facets is None:
            counts: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
            for entry in self.entries:
                counts["status"][entry.status] += 1
                counts["study"][entry.study] += 1
                counts["workload"][entry.workload] += 1
                counts["host"].update(entry.hosts)
                counts["label"].update(f"{key}={value}" for key, value in entry.labels.items())
            self._facets = {
                name: [(value, n) for value, n in of.most_common(MOST_VALUES) if value] for name, of in counts.items()
            }
        return self._facets


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
        self._entries: dict[str, Entry] = {}
        self._stamps: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self._found_studies: list[StudyEntry] = []
        self._due: dict[str, float] = {}
        self._watches: dict[str, RunWatch] = {}  # live runs
        self._failures: dict[str, tuple[int, str | None]] = {}  # how often in a row, and the files at the last time
        self._clock = clock
        self._store_stamp = -1
        self._whole_at = self._studies_at = clock() - WHOLE_S
        self._asked: tuple[str, ...] = ()
        self._waiting = 0
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._over = threading.Event()
        self._work = threading.Event()
        self._ready = threading.Event()
        self._snapshot = Snapshot((), (), 0, 0)
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
        """Say which runs somebody looks at: what is not known of them yet is read before that of others."""
        if wanted := tuple(entry.id for entry in entries if not entry.told):
            self._asked = wanted

    def settled(self, timeout_s: float = 120.0) -> Snapshot:
        """Wait until every run is read and worked out, and return the state: for tests and benchmarks."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = self.snapshot()
            if found.number and not found.waiting and all(e.told or e.status == "live" for e in found.entries):
                return found
            time.sleep(0.02)
        raise TimeoutError("the index is not settled")

    def look(self) -> None:
        """Look at the folders once; what is new or has changed is read, the newest first."""
        now = self._clock()
        whole = now - self._whole_at >= WHOLE_S
        changed = self._find_places(whole=whole)
        if whole:
            self._whole_at = now
        todo = [place for key, place in self._places.items() if self._has_changed(key, place, whole=whole)]
        if changed or todo:
            self._publish(len(todo))
        shown = self._clock()
        for k, place in enumerate(self._in_turn(todo)):
            if self._over.is_set():
                return
            self._stamps[place.id] = _stamp(place.path)
            self._take(place, quick_entry(place, self.site))
            if self._clock() - shown > SHOW_S:
                self._publish(len(todo) - k - 1)
                shown = self._clock()
        if todo:
            self._publish(0)
        self._ready.set()
        self._work.set()

    def work(self) -> bool:
        """Work out runs without a cache, and live ones from time to time, for a moment; return whether there were any.

        It comes back soon, so that what has come meanwhile has its turn before the many that are older.
        """
        until, changed = self._clock() + SHOW_S, False
        for key in list(self._watches):
            entry = self._entries.get(key)
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
        """Return a run, worked out; one that is live is followed, and not worked out again before its end."""
        known, watch = self._entries.get(place.id), self._watches.get(place.id)
        if known is not None and known.status == "live" and watch is not None:
            entry = live_entry(place, known, watch)
        else:
            entry = full_entry(place, self.site)
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
        """Give places one after the other: what is asked for first, also if that is asked for only now; the newest."""
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
        stamp, changed = _stamp(self.runs), False
        places = {key: place for key, place in self._places.items() if not place.study}
        if stamp != self._store_stamp or whole:
            self._store_stamp = stamp
            places = {place.id: place for place in self._in_store()}
        if self._looker is not None and (whole or self._active()):
            found = self._looker.look()
            changed = found != self._found_studies
            self._found_studies = found
        places |= {place.id: place for study in self._found_studies for place in study.places}
        gone = self._places.keys() - places.keys()
        with self._lock:
            for key in gone:
                self._entries.pop(key, None)
                self._stamps.pop(key, None)
                self._due.pop(key, None)
                self._failures.pop(key, None)
            for key in places.keys() - self._places.keys():
                self._entries[key] = stub(places[key])
                changed = True
            self._places = places
        return changed or bool(gone)

    def _active(self) -> bool:
        """Return whether studies are to be looked at again: often while one goes on."""
        now = self._clock()
        every = LOOK_S * 2 if any(study.status == "live" for study in self._found_studies) else LOOK_S * 5
        if now - self._studies_at < every:
            return False
        self._studies_at = now
        return True

    def _in_store(self) -> list[Place]:
        try:
            names = [entry.name for entry in os.scandir(self.runs) if RUN_ID.fullmatch(entry.name)]
        except OSError:
            return []
        return [Place(name, self.runs / name, self.runs) for name in names]

    def _has_changed(self, key: str, place: Place, *, whole: bool) -> bool:
        entry = self._entries[key]
        if not whole and entry.status != NOT_YET and entry.told:
            return False
        stamp = _stamp(place.path)
        if stamp == self._stamps.get(key) and entry.problem and entry.told:
            # A file below a folder may be mended without a trace in the folder.
            return describe_files(place) != self._failures.get(key, (0, None))[1]
        if stamp == self._stamps.get(key) and entry.status != NOT_YET:
            # The owner of a run may be killed without a trace in the folder.
            return entry.status == "live" and quick_entry(place).status != "live"
        return True

    def _take(self, place: Place, entry: Entry, due: float | None = None) -> None:
        """Keep what was read; what a live run has used so far stays until it is worked out again, when it is due."""
        files = describe_files(place) if entry.problem else None
        with self._lock:
            known = self._entries.get(entry.id)
            if known is None:
                return
            if entry.problem:
                self._take_failure(entry, files, due)
                return
            if due is not None or entry.told:
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
            self._entries[entry.id] = entry

    def _take_failure(self, entry: Entry, files: str | None, due: float | None) -> None:
        """Call a run broken once it cannot be read twice with the same files; until then it may be half written.

        One that goes on failing while it is live, or changes, is shown as broken too, and read again and again.
        """
        failures, before = self._failures.get(entry.id, (0, None))
        self._failures[entry.id] = failures + 1, files
        self._due[entry.id] = self._clock() + LIVE_S if due is None else due
        is_being_made = not _is_old(entry.path) and not (entry.path / "run.json").exists()
        if not is_being_made and failures and files is not None and files == before:
            self._entries[entry.id] = entry
        elif not is_being_made and failures + 1 >= MOST_FAILURES:
            self._entries[entry.id] = replace(entry, told=False)
        else:
            self._stamps.pop(entry.id, None)
            self._entries[entry.id] = replace(self._entries[entry.id], told=False)

    def _publish(self, waiting: int | None = None) -> None:
        """Show what is known; `waiting` are still to be read, as many as before unless told."""
        with self._publishing:  # or a thread could show what it saw before the other did
            self._waiting = self._waiting if waiting is None else waiting
            with self._lock:
                entries = list(self._entries.values())
            self._snapshot = Snapshot(entries, self._found_studies, self._snapshot.number + 1, self._waiting)
        self._ready.set()

    def _look_on(self) -> bool:
        self.look()
        return False

    def _work_on(self) -> bool:
        self._work.clear()
        return self.work()

    def _go_on(self, act: Callable[[], bool], woken: threading.Event) -> None:
        """Act until closed, with a rest where there is nothing more to do; what fails is told once and tried again."""
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
            keys = [
                key
                for key, entry in self._entries.items()
                if not entry.told and entry.status != NOT_YET and self._due.get(key, 0.0) <= now
            ]
            return [self._places[key] for key in keys if key in self._places]


def _stamp(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return -1


def _is_old(path: Path) -> bool:
    try:
        return time.clock_gettime(time.CLOCK_REALTIME) - path.lstat().st_mtime > FRESH_S
    except OSError:
        return False
