"""Write the list of studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.dashboard.frame import (
    BADGES,
    WORDS,
    format_age,
    format_time,
    shorten,
    write_list_table,
    write_navigation,
    write_page,
)
from joulelab.dashboard.studies import word_slots
from joulelab.report import format as fmt
from joulelab.report.html import Html, join_html, tag
from joulelab.report.page.document import Page, Section

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from joulelab.dashboard.run_table import Snapshot
    from joulelab.dashboard.studies import StudyEntry


def write_studies_page(snapshot: Snapshot, *, token: bool, now: dt.datetime) -> str:
    """Return the list of studies."""
    body = tag("div", write_study_list(snapshot.studies, now), id="list")
    page = Page("Studies", "", (Section("studies", "List", body),))
    return write_page(page, write_navigation("Studies", token=token))


def write_study_list(studies: Sequence[StudyEntry], now: dt.datetime) -> Html:
    """Return the table of studies."""
    if not studies:
        make = tag("code", "joulelab study run FILE"), " and ", tag("code", "joulelab sweep -- COMMAND")
        return tag("p", "There are no studies here. ", *make, " make them.", class_="empty")
    heads = ("study", "status", "slots", "", "knobs", "begun (UTC)")
    head = tag("tr", *(tag("th", h, scope="col") if h else tag("td") for h in heads))
    ordered = sorted(studies, key=lambda s: (s.status != "live", [-ord(c) for c in s.created_utc]))
    rows = tag("tbody", *(_write_row(study, now) for study in ordered))
    return write_list_table("Studies", head, rows)


def _write_row(study: StudyEntry, now: dt.datetime) -> Html:
    # Without a plan, an end cannot be told from a pause.
    word = "not running" if study.planned is None and study.status == "open" else WORDS.get(study.status, study.status)
    badge = tag("span", word, class_=BADGES[study.status])
    twin = tag("span", "simulated", class_="badge", title=shorten(f"twin {', '.join(study.twins)}"))
    knobs = ", ".join(f"{shorten(name, 40)} x {count}" for name, count in study.knobs.items())
    settled = sum(study.slots.get(state, 0) for state in ("done", "failed", "refused"))
    bar = (
        tag(
            "progress",
            max=study.planned,
            value=min(settled, study.planned),
            aria_label=f"Slots of {study.id} that have run",
        )
        if study.planned
        else None
    )
    title = join_html(
        (
            tag("a", study.id, href=f"/studies/{study.id}", class_="open"),
            tag("span", study.problem or ", ".join(map(shorten, study.goals)), class_="below"),
        )
    )
    return tag(
        "tr",
        tag("th", title, scope="row"),
        tag("td", join_html((badge, twin if study.twins else None), " ")),
        tag("td", fmt.NOTHING if study.problem else word_slots(study.slots, study.planned)),
        tag("td", bar),
        tag("td", knobs),
        tag(
            "td",
            tag(
                "time",
                format_time(study.created_utc),
                datetime=study.created_utc,
                title=format_age(study.created_utc, now),
            ),
        ),
        data_run=study.id,
    )
