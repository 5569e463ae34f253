"""Write the parts of every page of the dashboard, and the pages of the login, of sums and of errors."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.html import Html, join_html, tag
from joulelab.report.page.document import Page, Section, write_served_page
from joulelab.report.page.page_blocks import FactList, write_blocks_html

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.dashboard.selection import SelectionSum

MOST_SHOWN = 160  # letters of a name or command that are sent; the rest is cut
# A normal state is no badge.
BADGES = {"ok": "muted", "reading": "muted", "open": "muted", "done": "badge good", "live": "badge live"}
BADGES |= {"failed": "badge bad", "killed": "badge warn", "broken": "badge bad"}
WORDS = {"ok": "ended", "open": "not finished"}


def shorten(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text of others as one short line that is safe to show."""
    return fmt.shorten_end(text, most)


def format_time(utc: str) -> str:
    """Return a time as people read it: `2026-11-16 10:50`."""
    return utc[:16].replace("T", " ") if utc else fmt.NOTHING


def format_age(utc: str, now: dt.datetime) -> str:
    """Return how long ago a time was, roughly: `5 min ago`."""
    try:
        seconds = (now - dt.datetime.fromisoformat(utc)).total_seconds()
    except ValueError:
        return ""
    for length, unit in ((365.25 * 86400, "y"), (86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def write_navigation(current: str, *, token: bool = False, more: Sequence[tuple[str, str]] = ()) -> Html:
    """Return the links on top of every page."""
    links = [("/", "Runs"), ("/studies", "Studies"), *more]
    made = [tag("a", text, href=href, aria_current="page" if text == current else None) for href, text in links]
    out = tag("form", tag("button", "Log out", type="submit"), method="post", action="/logout", class_="logout")
    return join_html(
        (tag("nav", tag("span", "joulelab", class_="brand"), *made, aria_label="Dashboard"), out if token else None)
    )


def write_list_table(caption: str, heads: Html, rows: Html) -> Html:
    """Return the table of a list of runs or studies, which scrolls by itself."""
    title = tag("caption", caption, class_="sr-only")
    table = tag("table", title, tag("thead", heads), rows, class_=f"runs list-of-{caption.lower()}")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def write_page(page: Page, nav: Html) -> str:
    """Return a page of the dashboard with its style and script."""
    extra = join_html(
        (
            tag("link", rel="icon", type="image/svg+xml", href="/static/icon.svg"),
            tag("link", rel="stylesheet", href="/static/dashboard.css"),
            tag("script", src="/static/dashboard.js", defer=True),
        ),
        "\n",
    )
    return write_served_page(page, navigation=nav, extra=extra)


def write_login_page(*, wrong: str = "") -> str:
    """Return the page that asks for the token."""
    said = tag("p", wrong, class_="note bad", role="alert") if wrong else None
    field = tag(
        "label",
        "Token",
        tag(
            "input",
            type="password",
            name_="token",
            required=True,
            autocomplete="current-password",
            autofocus=True,
            maxlength="400",
        ),
    )
    form = tag(
        "form",
        field,
        tag("button", "Log in", type="submit", class_="primary"),
        method="post",
        action="/login",
        class_="filters",
    )
    where = tag("p", "It was printed where ", tag("code", "joulelab dashboard"), " was started.", class_="muted")
    page = Page("Log in", "", (Section("login", "It needs a token", join_html((said, form, where))),))
    return write_page(page, Html(""))


def write_sums_page(found: SelectionSum, *, token: bool = False) -> str:
    """Return the page of the sums of selected runs."""
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs"
    section = Section("sums", f"Sum of {runs}", write_blocks_html([FactList(tuple(found.list_facts()))]))
    return write_page(Page("Sums", "", (section,)), write_navigation("", token=token))


def write_message_page(title: str, text: str, *, token: bool = False, links: Sequence[tuple[str, str]] = ()) -> str:
    """Return a page with a message and links."""
    listed = tag("ul", *(tag("li", tag("a", shorten(word), href=href)) for href, word in links)) if links else None
    sentence = f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", ":")) else ".")
    body = join_html((tag("p", escape_unprintable(sentence)), listed, tag("p", tag("a", "All runs", href="/"))))
    return write_page(Page(title, "", (Section("what", "What happened", body),)), write_navigation("", token=token))
