"""Write the list of runs: filters, a table that renews itself, and what is picked to be compared."""

from __future__ import annotations

import datetime as dt
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.dashboard.api import MOST_COMPARED
from joulelab.dashboard.frame import BADGES, WORDS, document, list_table, navigation, short, when
from joulelab.dashboard.run_search import ALL
from joulelab.report import format as fmt
from joulelab.report.footprint_text import format_co2e, format_cost, word_source
from joulelab.report.html import Html, join_html, tag
from joulelab.report.page.document import Page, Section
from joulelab.report.run_tables import format_run_end, format_run_energy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.dashboard.index import Snapshot
    from joulelab.dashboard.run_entries import Entry
    from joulelab.dashboard.run_search import Found, Query

COLUMNS = (  # by what it is sorted, its head, its class
    ("name", "run", ""),
    ("status", "status", ""),
    ("start", "started (UTC)", "number"),
    ("time", "time", "number"),
    ("energy", "energy", "number"),
    ("host", "host", "hosts"),
)
FOOTPRINT_COLUMNS = ("cost", "CO2e")  # before the host; only if a run of the page has them
KEYS = (
    ("/", "search"),
    ("j", "next run"),
    ("k", "run before"),
    ("Enter", "open it"),
    ("x", "pick it"),
    ("c", "compare what is picked"),
)


def runs_page(snapshot: Snapshot, found: Found, *, token: bool, now: dt.datetime) -> str:
    """Return the list of runs."""
    body = join_html(
        (_filters(snapshot, found.query), tag("div", run_list(snapshot, found, now), id="list"), _picked(), _keys())
    )
    page = Page("Runs", "", (Section("runs", "List", body),))
    return document(page, navigation("Runs", token=token))


def run_list(snapshot: Snapshot, found: Found, now: dt.datetime) -> Html:
    """Return the part of the list that renews itself."""
    if not found.total:
        return join_html((_count(snapshot, found), _nothing(snapshot, found)))
    has_site = any(entry.site is not None and not entry.site.is_empty for entry in found.entries)
    heads = [_head(found.query, *column) for column in COLUMNS]
    if has_site:
        heads[-1:-1] = [tag("th", text, scope="col", class_="number") for text in FOOTPRINT_COLUMNS]
    row = tag("tr", tag("td", tag("span", "picked", class_="sr-only")), *heads)
    names = ["pick", *(key for key, _, _ in COLUMNS)]
    names[-1:-1] = ["cost", "co2e"] if has_site else []
    widths = tag("colgroup", *(tag("col", class_=f"c-{name}") for name in names))
    rows = tag("tbody", *(_row(entry, now, has_site=has_site) for entry in found.entries))
    return join_html((_count(snapshot, found), list_table("Runs", widths, row, rows), _pager(found)))


def _count(snapshot: Snapshot, found: Found) -> Html:
    query, total = found.query, found.total
    first = (query.page - 1) * query.size + 1
    last = min(first + query.size - 1, total)
    many = "1 run" if total == 1 else f"{total:,} runs".replace(",", " ")
    words = many if total <= query.size else f"{first} to {last} of {many}"
    waiting = f"; {snapshot.waiting:,} are still being read".replace(",", " ") if snapshot.waiting else ""
    more = None
    if found.in_studies and query.study != ALL:
        count = f"{found.in_studies:,}".replace(",", " ")
        more = join_html((" · ", tag("a", f"{count} more in studies", href=query.address(study=ALL, page=1))))
    return tag("p", f"{words}{waiting}", more, class_="count")


def _nothing(snapshot: Snapshot, found: Found) -> Html:
    if found.query.narrowed:
        return tag("p", "Nothing matches. ", tag("a", "Show all runs", href="/"), class_="empty")
    if snapshot.entries:
        return tag("p", "No runs of their own here; those of studies are in the studies.", class_="empty")
    return tag("p", "There are no runs yet. ", tag("code", "joulelab run -- COMMAND"), " makes one.", class_="empty")


def _head(query: Query, key: str, text: str, kind: str) -> Html:
    sorted_now = query.by == key
    rising = not query.rising if sorted_now else False
    arrow = tag("span", " ↑" if query.rising else " ↓", aria_hidden="true") if sorted_now else None
    link = tag("a", text, arrow, href=query.address(by=key, rising=rising, page=1))
    order = ("ascending" if query.rising else "descending") if sorted_now else None
    return tag("th", link, scope="col", class_=kind or None, aria_sort=order)


def _row(entry: Entry, now: dt.datetime, *, has_site: bool) -> Html:
    return _made_row(entry, _running(entry, now) if entry.status == "live" else None, has_site)


@lru_cache(maxsize=4096)
def _made_row(entry: Entry, running: str | None, has_site: bool) -> Html:
    """Return the row of a run. Entries are never changed, so it is made once; `running` is how long a live one runs."""
    title = short(entry.name or entry.workload or entry.id)
    below = short(shlex.join(entry.command)) if entry.command else short(entry.problem)
    pick = tag(
        "input", type="checkbox", name_="run", form="picked", value=entry.id, aria_label=f"Pick {title}, {entry.id}"
    )
    study = tag("a", short(entry.study, 40), href=f"/studies/{entry.study}", class_="badge") if entry.study else None
    opened = tag("a", title, href=f"/runs/{entry.id}", class_="open", title=title)
    name = (tag("span", opened, study, *_labels(entry), class_="name"), tag("span", below, class_="below", title=below))
    start = tag("time", when(entry.start_utc), datetime=entry.start_utc, title=f"{entry.start_utc[:19]} UTC")
    took = fmt.NOTHING if entry.duration_s is None else fmt.format_duration(entry.duration_s)
    return tag(
        "tr",
        tag("td", pick),
        tag("th", *name, scope="row"),
        tag("td", _status(entry)),
        tag("td", start, class_="number"),
        tag("td", running or took, class_="number"),
        tag("td", _energy(entry), class_="number"),
        *(_list_footprint_cells(entry) if has_site else ()),
        tag("td", _hosts(entry), class_="hosts"),
        data_run=entry.id,
    )


def _labels(entry: Entry) -> list[Html]:
    shown = [tag("span", short(f"{key}={value}", 30), class_="badge") for key, value in list(entry.labels.items())[:3]]
    left = len(entry.labels) - 3
    return [*shown, tag("span", f"+{left}", class_="badge")] if left > 0 else shown


def _status(entry: Entry) -> Html:
    words = WORDS.get(entry.status, entry.status)
    if entry.status == "failed":
        words = format_run_end({"outcome": entry.outcome, "exit_code": entry.exit_code, "signal": entry.signal})
    badge = tag("span", escape_unprintable(words), class_=BADGES[entry.status])
    twin = tag("span", "simulated", class_="badge warn", title=short(fmt.name_twins([entry.twin])))
    return join_html((badge, twin if entry.twin else None), " ")


def _running(entry: Entry, now: dt.datetime) -> str:
    since = (now - dt.datetime.fromisoformat(entry.start_utc)).total_seconds()
    return fmt.format_rough_duration(max(since, 0.0))


def _energy(entry: Entry) -> str:
    if entry.status == "broken" or (entry.energy is None and not entry.told):
        return fmt.NOTHING
    return format_run_energy({"energy": entry.energy, "estimate": entry.estimate})


def _list_footprint_cells(entry: Entry) -> list[Html]:
    """Return cost and CO2e; the source of the carbon intensity is shown when somebody points at it."""
    footprint = None if entry.status == "broken" else entry.footprint
    texts, source = ["", ""], None
    if footprint is not None and footprint.site is not None and footprint.kwh.is_resolved:
        mark = "~" if entry.estimate else ""
        if footprint.cost is not None:
            texts[0] = mark + format_cost(footprint.cost, footprint.site.currency)
        if footprint.co2e_kg is not None:
            texts[1], source = f"{mark}{format_co2e(footprint.co2e_kg)} CO2e", word_source(footprint.site)
    return [tag("td", texts[0], class_="number"), tag("td", texts[1], class_="number", title=source)]


def _hosts(entry: Entry) -> str:
    first = short(entry.hosts[0], 40) if entry.hosts else fmt.NOTHING
    return first if len(entry.hosts) < 2 else f"{first} +{len(entry.hosts) - 1}"


def _pager(found: Found) -> Html | None:
    query = found.query
    if found.pages == 1:
        return None
    back = tag(
        "a",
        "← Newer" if query.by == "start" and not query.rising else "← Before",
        href=query.address(page=query.page - 1),
        rel="prev",
    )
    on = tag(
        "a",
        "Older →" if query.by == "start" and not query.rising else "After →",
        href=query.address(page=query.page + 1),
        rel="next",
    )
    where = tag("span", f"page {query.page} of {found.pages}")
    parts = (back if query.page > 1 else None, where, on if query.page < found.pages else None)
    return tag("nav", *parts, class_="pager", aria_label="Pages")


def _filters(snapshot: Snapshot, query: Query) -> Html:
    facets = snapshot.facets()
    search = tag(
        "input",
        type="search",
        name_="q",
        value=query.words,
        placeholder="name, command, label, id",
        autocomplete="off",
        maxlength="400",
        accesskey="s",
    )
    studies = [(ALL, len(snapshot.entries)), *facets["study"]]
    words = {ALL: "all, of studies too"}
    fields = [
        tag("label", "Search", search, class_="wide"),
        _select("status", "Status", query.status, facets["status"], WORDS),
        _select("workload", "Workload", query.workload, facets["workload"]),
        _select("host", "Host", query.host, facets["host"]),
        _select("label", "Label", query.labels[0] if query.labels else "", facets["label"]),
        _select("study", "Study", query.study, studies, words, none="of none") if facets["study"] else None,
        tag(
            "span",
            tag("label", "From", tag("input", type="date", name_="from", value=query.since)),
            tag("label", "To", tag("input", type="date", name_="to", value=query.until)),
            class_="days",
        ),
    ]
    kept = [("sort", query.by, "start"), ("order", "up" if query.rising else "", "")]
    hidden = [tag("input", type="hidden", name_=name, value=value) for name, value, usual in kept if value != usual]
    buttons = (
        tag("button", "Show", type="submit", class_="go"),
        tag("a", "Clear", href="/", class_="clear", hidden=not query.narrowed),
    )
    return tag(
        "form", *fields, *hidden, *buttons, class_="filters", method="get", action="/", role="search", id="filters"
    )


def _select(
    name: str,
    label: str,
    value: str,
    choices: Sequence[tuple[str, int]],
    words: dict[str, str] | None = None,
    none: str = "any",
) -> Html | None:
    if len(choices) < 2 and not value and none == "any":
        return None
    known = [choice for choice, _ in choices]
    options = [tag("option", none, value="")]
    if value and value not in known:
        options.append(tag("option", short(value, 40), value=value, selected=True))
    for choice, count in choices:
        shown = (words or {}).get(choice, short(choice, 40))
        options.append(tag("option", f"{shown} ({count})", value=choice, selected=choice == value))
    return tag("label", label, tag("select", *options, name_=name, id=f"filter-{name}"))


def _picked() -> Html:
    """Return the bar for runs that are picked; it is there without scripts, too."""
    return tag(
        "form",
        tag("span", f"Pick 2 to {MOST_COMPARED} runs to compare them.", id="picked-count", role="status"),
        tag("button", "Compare", type="submit", class_="primary"),
        tag("button", "Clear", type="button", class_="unpick", hidden=True),
        method="get",
        action="/compare",
        class_="picked",
        id="picked",
        data_most=MOST_COMPARED,
    )


def _keys() -> Html:
    parts = [join_html((tag("kbd", key), f" {what}")) for key, what in KEYS]
    return tag("p", join_html(parts, "  "), class_="keyboard muted", id="keys")
