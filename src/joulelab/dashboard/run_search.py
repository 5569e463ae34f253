"""Find runs: words, filters, order, pages. Pure: a query is made of what an address says, and asked of a snapshot."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.dashboard.index import Snapshot
    from joulelab.dashboard.run_entries import Entry

ORDERS = ("start", "energy", "time", "name", "status", "host")
STATUSES = ("live", "ok", "failed", "killed", "broken", "reading")
SIZE, MOST = 50, 500
MOST_LETTERS, MOST_WORDS, MOST_LABELS = 400, 16, 16
ALL = "*"


@dataclass(frozen=True, slots=True)
class Query:
    """Say which runs are wanted. `study` is a name, `*` for runs of studies too, empty for those of none.

    `since` and `until` are days (UTC, both included); `labels` are `key=value` or `key`; pages count from 1.
    """

    words: str = ""
    status: str = ""
    host: str = ""
    workload: str = ""
    study: str = ""
    simulated: str = ""
    labels: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    by: str = "start"
    rising: bool = False
    page: int = 1
    size: int = SIZE

    def address(self, **changes: object) -> str:
        """Return the query as it stands in an address, with changes; what is usual is left out."""
        changed = replace(self, **changes)  # type: ignore[arg-type]
        usual = Query()
        pairs: list[tuple[str, object]] = []
        for each in fields(self):
            value = getattr(changed, each.name)
            if each.name == "labels":
                pairs += [("label", label) for label in value]
            elif value != getattr(usual, each.name):
                pairs.append((NAMES.get(each.name, each.name), "up" if value is True else value))
        return f"?{urlencode(pairs)}" if pairs else "?"

    @property
    def narrowed(self) -> bool:
        """Return whether anything is asked for."""
        return replace(self, by="start", rising=False, page=1, size=SIZE, study="") != Query()


# Names in addresses, where they differ.
NAMES = {"words": "q", "since": "from", "until": "to", "by": "sort", "rising": "order"}


@dataclass(frozen=True, slots=True)
class Found:
    """Hold one page of what was found, how many there are in all, and how many more are in studies."""

    entries: Sequence[Entry]
    total: int
    query: Query
    in_studies: int = 0

    @property
    def pages(self) -> int:
        """Return how many pages there are, at least one."""
        return max(-(-self.total // self.query.size), 1)


def parse(given: Sequence[tuple[str, str]]) -> Query:
    """Return the query that an address asks for. Raises ConfigError; keys that nobody knows are refused, too."""
    known = {"label", *(NAMES.get(f.name, f.name) for f in fields(Query) if f.name != "labels")}
    values: dict[str, str] = {}
    labels = []
    for key, value in given:
        if key not in known:
            raise ConfigError(f"there is no {_short(key)!r} to ask for", next=f"there are {', '.join(sorted(known))}")
        if len(value) > MOST_LETTERS:
            raise ConfigError(f"{key} is too long", why=f"more than {MOST_LETTERS} letters")
        if key == "label" and value.strip():
            labels.append(value.strip())
        else:
            values[key] = value.strip()
    return Query(
        words=values.get("q", ""),
        status=_one_of(values.get("status", ""), ("", *STATUSES), "status"),
        host=values.get("host", ""),
        workload=values.get("workload", ""),
        study=values.get("study", ""),
        simulated=_one_of(values.get("simulated", ""), ("", "yes", "no"), "simulated"),
        labels=tuple(labels[:MOST_LABELS]),
        since=_day(values.get("from", ""), "from"),
        until=_day(values.get("to", ""), "to"),
        by=_one_of(values.get("sort") or "start", ORDERS, "sort"),
        rising=_one_of(values.get("order", ""), ("", "up", "down"), "order") == "up",
        page=_whole(values.get("page") or "1", "page", 1_000_000),
        size=_whole(values.get("size") or str(SIZE), "size", MOST),
    )


def _one_of(value: str, known: Sequence[str], name: str) -> str:
    if value not in known:
        raise ConfigError(f"{name} cannot be {_short(value)!r}", next=f"one of {', '.join(filter(None, known))}")
    return value


def _day(value: str, name: str) -> str:
    if not value:
        return ""
    try:
        return dt.date.fromisoformat(value).isoformat()
    except ValueError:
        raise ConfigError(f"{name} cannot be {_short(value)!r}", next="write it as 2026-11-16") from None


def _whole(value: str, name: str, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= most):
        raise ConfigError(f"{name} cannot be {_short(value)!r}", next=f"a whole number from 1 to {most}")
    return int(value)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def find(snapshot: Snapshot, query: Query) -> Found:
    """Return the page of runs that a query asks for."""
    kept = list(snapshot.ordered(query.by))
    for test in _tests(query):
        kept = [entry for entry in kept if test(entry)]
    within = _of_study(kept, query.study)
    if query.rising:
        within.reverse()
    first = (query.page - 1) * query.size
    return Found(within[first : first + query.size], len(within), query, len(kept) - len(within))


def _of_study(entries: list[Entry], study: str) -> list[Entry]:
    return entries if study == ALL else [entry for entry in entries if entry.study == study]


def _tests(query: Query) -> list[Callable[[Entry], bool]]:
    tests: list[Callable[[Entry], bool]] = [_has(word) for word in query.words.lower().split()[:MOST_WORDS]]
    if query.status:
        tests.append(lambda e: e.status == query.status)
    if query.host:
        tests.append(lambda e: query.host in e.hosts)
    if query.workload:
        tests.append(lambda e: e.workload == query.workload)
    if query.simulated:
        tests.append(lambda e: bool(e.twin) == (query.simulated == "yes"))
    if query.since:
        tests.append(lambda e: e.start_utc[:10] >= query.since)
    if query.until:
        tests.append(lambda e: e.start_utc[:10] <= query.until)
    return tests + [_labelled(label) for label in query.labels]


def _has(word: str) -> Callable[[Entry], bool]:
    return lambda e: word in e.text


def _labelled(label: str) -> Callable[[Entry], bool]:
    key, equals, value = label.partition("=")
    return (lambda e: e.labels.get(key) == value) if equals else (lambda e: key in e.labels)
