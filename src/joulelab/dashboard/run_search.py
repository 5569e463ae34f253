"""Find runs by words, filters, order and page: the query of an address, and its answer from a snapshot. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from joulelab.core.errors import ConfigError
from joulelab.dashboard.run_table import ORDERS, clean_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.dashboard.run_entries import Entry
    from joulelab.dashboard.run_table import Snapshot

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
            raise ConfigError(f"the parameter {_shorten(key)!r} is unknown", next=f"use {', '.join(sorted(known))}")
        if len(value) > MOST_LETTERS:
            raise ConfigError(f"{key} is too long", why=f"more than {MOST_LETTERS} letters")
        if key == "label" and value.strip():
            labels.append(value.strip())
        else:
            values[key] = value.strip()
    for name, count, most in (
        ("q", len(values.get("q", "").split()), MOST_WORDS),
        ("label", len(labels), MOST_LABELS),
    ):
        if count > most:
            raise ConfigError(f"{name} has too many {'words' if name == 'q' else 'values'}", why=f"more than {most}")
    return Query(
        words=values.get("q", ""),
        status=_one_of(values.get("status", ""), ("", *STATUSES), "status"),
        host=values.get("host", ""),
        workload=values.get("workload", ""),
        study=values.get("study", ""),
        simulated=_one_of(values.get("simulated", ""), ("", "yes", "no"), "simulated"),
        labels=tuple(labels),
        since=_day(values.get("from", ""), "from"),
        until=_day(values.get("to", ""), "to"),
        by=_one_of(values.get("sort") or "start", ORDERS, "sort"),
        rising=_one_of(values.get("order", ""), ("", "up", "down"), "order") == "up",
        page=_whole(values.get("page") or "1", "page", 1_000_000),
        size=_whole(values.get("size") or str(SIZE), "size", MOST),
    )


def _one_of(value: str, known: Sequence[str], name: str) -> str:
    if value not in known:
        raise ConfigError(f"{name} cannot be {_shorten(value)!r}", next=f"one of {', '.join(filter(None, known))}")
    return value


def _day(value: str, name: str) -> str:
    if not value:
        return ""
    try:
        return dt.date.fromisoformat(value).isoformat()
    except ValueError:
        raise ConfigError(f"{name} cannot be {_shorten(value)!r}", next="write it as 2026-11-16") from None


def _whole(value: str, name: str, most: int) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 10 and 1 <= int(value) <= most):
        raise ConfigError(f"{name} cannot be {_shorten(value)!r}", next=f"a whole number from 1 to {most}")
    return int(value)


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def find(snapshot: Snapshot, query: Query) -> Found:
    """Return the page of runs that a query asks for."""
    words = tuple(clean_text(word) for word in query.words.lower().split())
    study = None if query.study == ALL else clean_text(query.study)
    page = ((query.page - 1) * query.size, query.size)
    conditions, order = _list_conditions(query), (query.by, query.rising)
    is_counted = bool(words or conditions)
    ids, total, everything = snapshot.table.find_ids(words, conditions, study, order, page, is_counted=is_counted)
    if not is_counted:
        total, everything = snapshot.count_runs(study), snapshot.count_runs(None)
    entries = [snapshot.by_id[ident] for ident in ids if ident in snapshot.by_id]
    return Found(entries, total, query, everything - total)


def _list_conditions(query: Query) -> dict[str, object]:
    """Return the filters of a query as SQL with one parameter each."""
    given = {
        "status = ?": query.status,
        "workload = ?": clean_text(query.workload),
        "simulated = ?": {"": "", "yes": True, "no": False}[query.simulated],
        "start >= ?": query.since,
        "start <= ?": f"{query.until}~" if query.until else "",  # after every time of that day
    }
    tags = [f"host {query.host}"] if query.host else []
    tags += [f"label {label}" for label in query.labels]
    conditions: dict[str, object] = {test: value for test, value in given.items() if value != ""}
    for number, tag in enumerate(dict.fromkeys(map(clean_text, tags)), len(conditions) + 1):
        # A name for each, because conditions are the keys of a dict.
        conditions[f"key IN (SELECT t{number}.key FROM tags AS t{number} WHERE t{number}.tag = ?)"] = tag  # noqa: S608
    return conditions
