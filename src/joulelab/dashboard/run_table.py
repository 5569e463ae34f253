"""Hold the runs that the dashboard knows, so that 100 000 of them are searched, filtered and sorted at once.

`RunTable` changes as runs are read. It keeps their entries in a dict, and the columns of lists in a SQLite database in
memory, whose indexes stay sorted when a run changes. `Snapshot` is the state at one time, which requests read.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.dashboard.run_entries import NOT_YET
from joulelab.store.run_folder import RUN_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.dashboard.run_entries import Entry
    from joulelab.dashboard.studies import StudyEntry

FACETS = ("status", "study", "host", "workload", "label")
MOST_VALUES = 200  # of a facet
WRITTEN_AT_ONCE = 500  # entries
SEARCH_S = 2.0  # of one search; the slowest of 100,000 runs takes 0.1 s on a quiet machine
STEPS_AT_ONCE = 1000  # of the database, between two looks at the clock
ORDERS = ("start", "energy", "work", "time", "name", "status", "host")
SCHEMA = """
CREATE TABLE runs (
    key INTEGER PRIMARY KEY, id TEXT, study TEXT, workload TEXT, simulated INTEGER,
    start TEXT, energy REAL, work TEXT, work_j REAL, time REAL, name TEXT, status TEXT, host TEXT
);
CREATE TABLE texts (key INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE tags (tag TEXT, key INTEGER, PRIMARY KEY (tag, key)) WITHOUT ROWID;
CREATE INDEX tags_of_run ON tags (key);
CREATE TEMP TABLE hits (key INTEGER PRIMARY KEY);
"""


class RunTable:
    """Hold the entries of an index by id, count the values of their facets, and find the runs of a query.

    Changes reach the database when a snapshot is made.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        self.unsettled: set[str] = set()  # ids of runs that are to be read or analysed
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in FACETS}
        self._keys: dict[str, int] = {}  # rows of the database
        self._last_key = 0
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._words: tuple[str, ...] = ()  # whose runs are in `hits`
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(SCHEMA)
        for order in ORDERS:
            self._database.execute(f"CREATE INDEX by_{order} ON runs (study, {_list_columns(order)})")
        for entry in entries:
            self.put(entry)

    def put(self, entry: Entry) -> None:
        """Add an entry, or replace the one with its id."""
        if (known := self.entries.get(entry.id)) is not None:
            self._count(known, -1)
        self.entries[entry.id] = entry
        self._changed.add(entry.id)
        self._count(entry, 1)
        if entry.is_complete and entry.status != NOT_YET:
            self.unsettled.discard(entry.id)
        else:
            self.unsettled.add(entry.id)

    def drop(self, key: str) -> None:
        """Forget the entry with an id, if there is one."""
        self.unsettled.discard(key)
        if (known := self.entries.pop(key, None)) is not None:
            self._count(known, -1)
            self._changed.add(key)

    def _count(self, entry: Entry, change: int) -> None:
        for name, value in _list_facet_values(entry):
            counts = self.counts[name]
            counts[value] += change
            if not counts[value]:
                del counts[value]

    def write_changes(self) -> None:
        """Write changed entries to the database, a few at a time: requests wait for one part only."""
        changed, self._changed = list(self._changed), set()
        for first in range(0, len(changed), WRITTEN_AT_ONCE):
            with self._lock:
                self._write_entries(changed[first : first + WRITTEN_AT_ONCE])

    def _write_entries(self, changed: Sequence[str]) -> None:
        old = [(self._keys.pop(key),) for key in changed if key in self._keys]
        entries = [self.entries[key] for key in changed if key in self.entries]
        numbered = list(enumerate(entries, self._last_key + 1))
        self._last_key += len(entries)
        self._keys |= {entry.id: key for key, entry in numbered}
        database = self._database
        database.execute("BEGIN")
        for table in ("runs", "texts", "tags", "hits"):
            database.executemany(f"DELETE FROM {table} WHERE key = ?", old)  # noqa: S608 names of ours
        rows = (_make_row(key, entry) for key, entry in numbered)
        database.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        texts = [(key, clean_text(entry.text)) for key, entry in numbered]
        database.executemany("INSERT INTO texts VALUES (?, ?)", texts)
        hits = [(key,) for key, text in texts if self._words and all(word in text for word in self._words)]
        database.executemany("INSERT INTO hits VALUES (?)", hits)
        tags = ((tag, key) for key, entry in numbered for tag in dict.fromkeys(_list_tags(entry)))
        database.executemany("INSERT INTO tags VALUES (?, ?)", tags)
        database.execute("COMMIT")

    def find_ids(
        self,
        words: tuple[str, ...],
        conditions: Mapping[str, object],
        study: str | None,
        order: tuple[str, bool],
        page: tuple[int, int],
        *,
        is_counted: bool = True,
    ) -> tuple[list[str], int, int]:
        """Return a page of ids and, if it `is_counted`, the numbers of runs that match in the study, and in all.

        All `words` must be in the text of a run; `conditions` are SQL with one parameter each; `study` is None for all
        runs; `order` is one of ORDERS and whether it rises; `page` is its first run and its size. Raises ConfigError if
        it takes too long.
        """
        where = " AND ".join([*conditions, *(["key IN (SELECT key FROM hits)"] if words else [])]) or "TRUE"
        own, values = "TRUE" if study is None else "study = ?", list(conditions.values())
        of_study = [] if study is None else [study]
        by, rising = order
        # Runs without a figure are last in both directions.
        direction = "ASC NULLS LAST" if rising else "DESC"
        ordered = ", ".join(f"{name} {direction}" for name in _list_columns(by).split(", "))
        # Conditions, names and orders are texts of ours; texts of others are parameters.
        count = f"SELECT count(*), coalesce(sum({own}), 0) FROM runs WHERE {where}"  # noqa: S608
        select = f"SELECT id FROM runs WHERE {own} AND {where} ORDER BY {ordered} LIMIT ? OFFSET ?"  # noqa: S608
        with self._lock, self._limit_time():
            if words:
                self._find_words(words)
            everything, total = self._database.execute(count, [*of_study, *values]).fetchone() if is_counted else (0, 0)
            found = self._database.execute(select, [*of_study, *values, page[1], page[0]]).fetchall()
        return [ident for (ident,) in found], total, everything

    @contextlib.contextmanager
    def _limit_time(self) -> Iterator[None]:
        until = time.monotonic() + SEARCH_S
        self._database.set_progress_handler(lambda: time.monotonic() > until, STEPS_AT_ONCE)
        try:
            yield
        except sqlite3.OperationalError as error:
            if str(error) != "interrupted":
                raise
            then = "use fewer words, or filter by day, host or label"
            raise ConfigError("the search takes too long", why=f"more than {SEARCH_S:g} s", next=then) from None
        finally:
            self._database.set_progress_handler(None, 0)

    def _find_words(self, words: tuple[str, ...]) -> None:
        if words != self._words:
            self._words = ()  # until they are found
            tests = " AND ".join("instr(text, ?)" for _ in words)
            self._database.execute("DELETE FROM hits")
            self._database.execute(f"INSERT INTO hits SELECT key FROM texts WHERE {tests}", words)  # noqa: S608
            self._words = words


def clean_text(text: str) -> str:
    """Return a text that SQLite can store: it has no lone surrogates and no zero bytes."""
    return text if text.isascii() and "\0" not in text else text.encode(errors="replace").decode().replace("\0", " ")


def _list_columns(order: str) -> str:
    """Return the columns of an order; of equal runs, the newest comes first in falling order."""
    columns = {"start": "start, id", "work": "work, work_j, start, id"}
    return columns.get(order, f"{order}, start, id")


def _make_row(key: int, entry: Entry) -> tuple[object, ...]:
    kind, per_work = (None, None) if entry.work is None else (clean_text(entry.work[0]), entry.energy_per_work)
    return (
        key,
        entry.id,
        entry.study,
        clean_text(entry.workload),
        bool(entry.twin),
        entry.start_utc,
        None if entry.energy is None else entry.energy.value,
        kind,
        None if per_work is None else per_work.value,
        entry.duration_s,
        clean_text((entry.name or entry.workload).lower()),
        entry.status,
        clean_text(entry.hosts[0]) if entry.hosts else None,
    )


def _list_tags(entry: Entry) -> Iterator[str]:
    for host in entry.hosts:
        yield clean_text(f"host {host}")
    for key, value in entry.labels.items():
        yield clean_text(f"label {key}")
        yield clean_text(f"label {key}={value}")


def _list_facet_values(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "status", entry.status
    yield "study", entry.study
    yield "workload", entry.workload
    for host in entry.hosts:
        yield "host", host
    for key, value in entry.labels.items():
        yield "label", f"{key}={value}"


class Snapshot:
    """Hold the runs and studies as they were at one time; `waiting` runs are still to be read."""

    def __init__(self, table: RunTable, studies: Sequence[StudyEntry] = (), number: int = 0, waiting: int = 0) -> None:
        table.write_changes()
        self.table = table
        self.by_id = dict(table.entries)
        self.studies = tuple(studies)
        self.study_by_id = {study.id: study for study in self.studies}
        self.number = number
        self.waiting = waiting
        self.is_settled = all(table.entries[key].status == "live" for key in table.unsettled)
        self._counts = {name: Counter(counts) for name, counts in table.counts.items()}
        self._facets: dict[str, list[tuple[str, int]]] | None = None

    def count_runs(self, study: str | None) -> int:
        """Return the number of runs of a study, None for all runs."""
        return len(self.by_id) if study is None else self._counts["study"][study]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return the runs, the newest first."""
        return tuple(sorted(self.by_id.values(), key=lambda entry: (entry.start_utc, entry.id), reverse=True))

    def find(self, name: str) -> list[Entry]:
        """Return the runs of an id: one, several slots of studies whose runs have the same, or none."""
        exact = self.by_id.get(name)
        if exact is not None:
            return [exact]
        return [e for e in self.by_id.values() if e.path.name == name] if RUN_ID.fullmatch(name) else []

    def list_facets(self) -> Mapping[str, list[tuple[str, int]]]:
        """Return the values that the list can be narrowed to with their counts, the most frequent first."""
        if self._facets is None:
            self._facets = {
                name: [(value, count) for value, count in counts.most_common(MOST_VALUES) if value]
                for name, counts in self._counts.items()
            }
        return self._facets
