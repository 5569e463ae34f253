"""Write the list of runs: filters, a table that renews itself, sums and comparison of the selected runs."""

from __future__ import annotations

import datetime as dt
import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable, name_one
from joulelab.dashboard.api import MOST_COMPARED, MOST_SUMMED
from joulelab.dashboard.frame import BADGES, WORDS, format_time, shorten, write_list_table, write_navigation, write_page
from joulelab.dashboard.run_search import ALL
from joulelab.report import format as fmt
from joulelab.report.footprint_text import format_co2e, format_cost, word_site, word_source
from joulelab.report.html import Html, join_html, tag
from joulelab.report.page.document import Page, Section
from joulelab.report.run_summary import format_energy
from joulelab.report.run_tables import format_run_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.dashboard.run_entries import Entry
    from joulelab.dashboard.run_search import Found, Query
    from joulelab.dashboard.run_table import Snapshot

COLUMNS = (  # name of the order, heading, class
    ("name", "run", "what"),
    ("status", "status", ""),
    ("start", "started (UTC)", "number"),
    ("time", "time", "number"),
    ("energy", "energy", "number"),
    ("work", "per work", "number"),
    ("host", "host", "hosts"),
)
FOOTPRINT = "cost, CO2e"  # before the host; only if a run of the page has them
PLACE_LABELS = ("study", "cell", "slot", "workload", "node_type")  # of runs of studies: shown elsewhere in the row
WARNING = "\N{WARNING SIGN}\N{VARIATION SELECTOR-15}"  # as text, not as a picture
KEYS = (
    ("/", "search"),
    ("j", "next run"),
    ("k", "previous run"),
    ("Enter", "open the run"),
    ("x", "select the run"),
    ("c", "compare the selected runs"),
)


def write_runs_page(snapshot: Snapshot, found: Found, *, token: bool, now: dt.datetime) -> str:
    """Return the list of runs."""
    body = join_html(
        (
            _write_filters(snapshot, found.query),
            tag("div", write_run_list(snapshot, found, now), id="list"),
            _write_selection(),
            _write_keys(),
        )
    )
    page = Page("Runs", "", (Section("runs", "List", body),))
    return write_page(page, write_navigation("Runs", token=token))


def write_run_list(snapshot: Snapshot, found: Found, now: dt.datetime) -> Html:
    """Return the part of the list that renews itself."""
    if not found.total:
        return join_html((_word_count(snapshot, found), _word_nothing(snapshot, found)))
    has_site = any(entry.site is not None and not entry.site.is_empty for entry in found.entries)
    has_work = any(entry.work is not None for entry in found.entries)
    heads = [_write_head(found.query, *column) for column in COLUMNS if has_work or column[0] != "work"]
    if has_site:
        heads.insert(-1, tag("th", FOOTPRINT, scope="col", class_="number"))
    every = tag("input", type="checkbox", id="select-all", aria_label="Select all runs of this page", hidden=True)
    row = tag("tr", tag("td", every), *heads)
    rows = tag("tbody", *(_write_current_row(entry, now, has_site, has_work) for entry in found.entries))
    parts = (
        _word_count(snapshot, found),
        write_list_table("Runs", row, rows),
        _note_sites(found.entries),
        _write_pager(found),
    )
    return join_html(parts)


def _word_count(snapshot: Snapshot, found: Found) -> Html:
    query, total = found.query, found.total
    first = (query.page - 1) * query.size + 1
    last = min(first + query.size - 1, total)
    many = "1 run" if total == 1 else f"{total:,} runs"
    words = many if total <= query.size else f"{first} to {last} of {many}"
    waiting = f"; {snapshot.waiting:,} are still being read" if snapshot.waiting else ""
    more = None
    if found.in_studies and query.study != ALL:
        count = f"{found.in_studies:,}"
        more = join_html((" · ", tag("a", f"{count} more in studies", href=query.address(study=ALL, page=1))))
    return tag("p", f"{words}{waiting}", more, class_="count")


def _word_nothing(snapshot: Snapshot, found: Found) -> Html:
    if found.query.narrowed:
        return tag("p", "Nothing matches. ", tag("a", "Show all runs", href="/"), class_="empty")
    if not snapshot.number:
        return tag("p", "The folders are being read.", class_="empty")
    if snapshot.by_id:
        return tag("p", "All runs here belong to studies.", class_="empty")
    return tag("p", "There are no runs yet. ", tag("code", "joulelab run -- COMMAND"), " makes one.", class_="empty")


def _write_head(query: Query, key: str, text: str, kind: str) -> Html:
    sorted_now = query.by == key
    rising = not query.rising if sorted_now else False
    arrow = tag("span", " ↑" if query.rising else " ↓", aria_hidden="true") if sorted_now else None
    link = tag("a", text, arrow, href=query.address(by=key, rising=rising, page=1))
    order = ("ascending" if query.rising else "descending") if sorted_now else None
    return tag("th", link, scope="col", class_=kind or None, aria_sort=order)


def _write_current_row(entry: Entry, now: dt.datetime, has_site: bool, has_work: bool) -> Html:
    return _write_row(entry, _word_running(entry, now) if entry.status == "live" else None, has_site, has_work)


@lru_cache(maxsize=4096)
def _write_row(entry: Entry, running: str | None, has_site: bool, has_work: bool) -> Html:
    """Write the row of a run. Entries never change, so it is written once; `running` is the time of a live run."""
    title = shorten(entry.name or entry.workload or entry.id)
    command = shorten(shlex.join(entry.command)) if entry.command else shorten(entry.problem)
    box = tag(
        "input",
        type="checkbox",
        name_="run",
        form="selection",
        value=entry.id,
        aria_label=f"Select {title}, {entry.id}",
    )
    study = tag("a", shorten(entry.study, 40), href=f"/studies/{entry.study}", class_="badge") if entry.study else None
    opened = tag("a", title, href=f"/runs/{entry.id}", class_="open", title=title)
    name = tag("span", opened, study, *_list_labels(entry), class_="name")
    day, _, clock = format_time(entry.start_utc).partition(" ")
    hour = tag("span", clock, class_="below")
    start = tag("time", day, " ", hour, datetime=entry.start_utc, title=f"{entry.start_utc[:19]} UTC")
    took = fmt.NOTHING if entry.duration_s is None else fmt.format_duration(entry.duration_s)
    return tag(
        "tr",
        tag("td", box),
        tag("th", name, tag("span", command, class_="below code", title=command), scope="row", class_="what"),
        tag("td", _write_status(entry)),
        tag("td", start, class_="number"),
        tag("td", running or took, class_="number"),
        tag("td", *_write_energy(entry), class_="number"),
        tag("td", *_write_work(entry), class_="number") if has_work else None,
        tag("td", *_write_footprint(entry), class_="number") if has_site else None,
        tag("td", _name_hosts(entry), class_="hosts"),
        data_run=entry.id,
    )


def _list_labels(entry: Entry) -> list[Html]:
    labels = [f"{key}={value}" for key, value in entry.labels.items() if key not in PLACE_LABELS]
    shown = [tag("span", shorten(label, 30), class_="badge", title=shorten(label)) for label in labels[:3]]
    return [*shown, tag("span", f"+{len(labels) - 3}", class_="badge")] if len(labels) > 3 else shown


def _write_status(entry: Entry) -> Html:
    words = WORDS.get(entry.status, entry.status)
    if entry.status == "failed":
        words = format_run_end({"outcome": entry.outcome, "exit_code": entry.exit_code, "signal": entry.signal})
    badge, flags = tag("span", escape_unprintable(words), class_=BADGES[entry.status]), []
    if entry.twin:
        flags.append(tag("span", "simulated", class_="badge", title=shorten(fmt.name_twins([entry.twin]))))
    if entry.warnings:
        count = "1 warning" if len(entry.warnings) == 1 else f"{len(entry.warnings)} warnings"
        names = shorten(", ".join(entry.warnings))
        flags.append(tag("span", f"{WARNING} {count}", class_="badge warn", title=names))
    return join_html((badge, tag("span", join_html(flags, " "), class_="flags") if flags else None), " ")


def _word_running(entry: Entry, now: dt.datetime) -> str:
    since = (now - dt.datetime.fromisoformat(entry.start_utc)).total_seconds()
    return fmt.format_rough_duration(max(since, 0.0))


def _write_energy(entry: Entry) -> Sequence[object]:
    """Return the energy, and below it its interval in percent, marked if it is wide."""
    if entry.status == "broken" or (entry.energy is None and not entry.is_complete):
        return (fmt.NOTHING,)
    if entry.energy is None:
        return ("no meter",)
    figure, _, share = format_energy(entry.energy, estimate=entry.estimate).partition(" (")
    share = share.removesuffix(")").removesuffix(", estimate")  # it has `~`
    if share and fmt.is_wide(entry.energy.value, entry.energy.expanded):
        return figure, tag("span", f"{WARNING} wide: {share}", class_="below warn")
    return figure, tag("span", share, class_="below") if share else None


def _write_work(entry: Entry) -> Sequence[object]:
    energy = entry.energy_per_work
    if entry.work is None or energy is None or entry.status == "broken" or not energy.is_resolved:
        return ("",)
    kind, amount = entry.work
    text = fmt.format_quantity(energy, f"J/{name_one(kind)}", estimate=entry.estimate, why="")
    return text.partition(" (")[0], tag("span", fmt.format_work(amount, kind), class_="below")


def _write_footprint(entry: Entry) -> Sequence[object]:
    """Return the cost, and below it CO2e; `_note_sites` says where the figures are from."""
    footprint, site = entry.footprint, entry.site
    if entry.status == "broken" or footprint is None or site is None or not footprint.kwh.is_resolved:
        return ("",)
    mark = "~" if entry.estimate else ""
    cost = None if footprint.cost is None else mark + format_cost(footprint.cost, site.currency)
    if footprint.co2e_kg is None:
        return (cost,)
    mass = f"{mark}{format_co2e(footprint.co2e_kg)} CO2e"
    return cost, tag("span", mass, class_="below", title=word_source(site))


def _note_sites(entries: Sequence[Entry]) -> Html | None:
    """Name the prices and carbon intensities of a page, with source and year."""
    sites = [entry.site for entry in entries if entry.site is not None and not entry.site.is_empty]
    words = dict.fromkeys(word_site(site, has_price=True) for site in sites)
    return tag("p", f"Cost and CO2e: {' / '.join(map(escape_unprintable, words))}", class_="count") if words else None


def _name_hosts(entry: Entry) -> str:
    first = shorten(entry.hosts[0], 40) if entry.hosts else fmt.NOTHING
    return first if len(entry.hosts) < 2 else f"{first} +{len(entry.hosts) - 1}"


def _write_pager(found: Found) -> Html | None:
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


def _write_filters(snapshot: Snapshot, query: Query) -> Html:
    facets = snapshot.list_facets()
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
    studies = [(ALL, len(snapshot.by_id)), *facets["study"]]
    words = {ALL: "any or none"}
    fields = [
        tag("label", "Search", search, class_="wide"),
        _write_select("status", "Status", query.status, facets["status"], WORDS),
        _write_select("workload", "Workload", query.workload, facets["workload"]),
        _write_select("host", "Host", query.host, facets["host"]),
        _write_select("label", "Label", query.labels[0] if query.labels else "", facets["label"]),
        _write_select("study", "Study", query.study, studies, words, none="of none") if facets["study"] else None,
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


def _write_select(
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
        options.append(tag("option", shorten(value, 40), value=value, selected=True))
    for choice, count in choices:
        shown = (words or {}).get(choice, shorten(choice, 40))
        options.append(tag("option", f"{shown} ({count})", value=choice, selected=choice == value))
    return tag("label", label, tag("select", *options, name_=name, id=f"filter-{name}"))


def _write_selection() -> Html:
    """Write the bar of the selected runs; without scripts its buttons open pages."""
    return tag(
        "form",
        tag("span", "Select runs to add them up or to compare them.", id="selected-count", role="status"),
        tag("button", "Compare", type="submit", class_="primary"),
        tag("button", "Add up", type="submit", class_="sums", formaction="/sums"),
        tag("button", "Clear", type="button", class_="clear-selection", hidden=True),
        tag("dl", id="sums", class_="facts", aria_live="polite"),
        method="get",
        action="/compare",
        class_="selection",
        id="selection",
        data_compared=MOST_COMPARED,
        data_summed=MOST_SUMMED,
    )


def _write_keys() -> Html:
    parts = [join_html((tag("kbd", key), f" {what}")) for key, what in KEYS]
    return tag("p", join_html(parts, "  "), class_="keyboard muted", id="keys")
