"""Write a page as one file that works offline, or as one that the dashboard serves. Pure, but for reading our assets.

A page loads nothing from elsewhere. Offline, only our own script and style are allowed, by their hashes. A served page
has neither inline, so that the dashboard's header can forbid both.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from joulelab.core.text import escape_unprintable
from joulelab.core.version import __version__
from joulelab.report.html import Html, embed_json, join_html, tag

STYLES = ("page.css", "tables.css", "charts.css", "profile.css")
SCRIPTS = (
    "page.js",
    "profile_data.js",
    "profile_scene.js",
    "profile_raster.js",
    "profile_paint.js",
    "profile_view.js",
    "profile_input.js",
    "profile.js",
)
META = Html(
    '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="joulelab">\n'
    '<meta name="referrer" content="no-referrer">'
)
RENEW_S = "5"


@dataclass(frozen=True, slots=True)
class Section:
    """Hold one section of a page; `id` is its anchor."""

    id: str
    title: str
    body: Html


@dataclass(frozen=True, slots=True)
class Page:
    """Hold a page: title, subtitle, sections, and the data (by id) of charts that the browser draws.

    A served page that is `live` reloads itself.
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    data: dict[str, Any] = field(default_factory=dict)
    live: bool = False


@cache
def read_stylesheet() -> str:
    """Return the style sheet of every page, which the dashboard serves as `page.css`."""
    return "\n".join(_read_asset(name) for name in STYLES)


@cache
def read_script() -> str:
    """Return the script of every page, which the dashboard serves as `profile.js`."""
    return "(() => {\n'use strict';\n" + "\n".join(_read_asset(name) for name in SCRIPTS) + "\n})();\n"


def _read_asset(name: str) -> str:
    return files("joulelab.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def write_offline_page(page: Page) -> str:
    """Write a page as one file that loads nothing and runs no script but ours.

    Raises ValueError for NaN in its data, and if two sections have the same id.
    """
    script, style = read_script(), read_stylesheet()
    policy = (
        f"default-src 'none'; script-src '{_hash_asset(script)}'; style-src '{_hash_asset(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html(f"<style>{style}</style>"),
        Html(f"<script>{script}</script>"),
    )
    return _write_document(page, join_html(head, "\n"), None)


def _hash_asset(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_served_page(page: Page, *, base: str = "", navigation: Html | None = None, extra: Html | None = None) -> str:
    """Write a page for the dashboard, which links `BASE/static/page.css` and `BASE/static/profile.js`.

    `navigation` stands at the top, `extra` is added to the head. Raises ValueError as `write_offline_page`.
    """
    head = (
        tag("link", rel="stylesheet", href=f"{base}/static/page.css?{_make_version(read_stylesheet())}"),
        tag("script", src=f"{base}/static/profile.js?{_make_version(read_script())}"),
        extra,
    )
    return _write_document(page, join_html(head, "\n"), navigation, renews=page.live)


@cache
def _make_version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_profile_figure(
    source: str, summary: object, *, overlay: bool = False, raw: str | None = None, live: str | None = None
) -> Html:
    """Write the element in which the script draws power over time, from the data with this id.

    `summary` is its caption. `raw` is an address of finer data (`?from=..&to=..&buckets=..`, in s after the start of
    the workload), `live` an address of the newest data.
    """
    return tag(
        "figure",
        tag("p", "The picture is drawn by a script.", class_="waits muted"),
        tag("figcaption", summary, class_="summary"),
        class_="profile",
        data_source=source,
        data_mode="overlay" if overlay else None,
        data_raw=raw,
        data_live=live,
    )


def _write_document(page: Page, head: Html, navigation: Html | None, *, renews: bool = False) -> str:
    ids = [*(section.id for section in page.sections), *page.data]
    if len(set(ids)) < len(ids):
        raise ValueError(f"two parts of a page have one name: {sorted(ids)}")
    title = escape_unprintable(page.title)
    subtitle = tag("p", escape_unprintable(page.subtitle), class_="subtitle") if page.subtitle else None
    main = tag(
        "main",
        tag("header", tag("h1", title), subtitle, class_="headline"),
        *(_write_section(section) for section in page.sections),
        id="content",
        tabindex="-1",
        data_renew=RENEW_S if renews else None,
    )
    theme_button = tag("button", "Dark", type="button", class_="theme", hidden=True)
    body = join_html(
        (
            tag("a", "Skip to the content", class_="skip", href="#content"),
            tag("header", navigation, theme_button, class_="bar"),
            tag("div", _write_contents(page), main, class_="layout"),
            tag("footer", f"joulelab {__version__}", class_="foot"),
            *(embed_json(ident, data) for ident, data in page.data.items()),
        ),
        "\n",
    )
    head = join_html((META, tag("title", title), head), "\n")
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _write_section(section: Section) -> Html:
    heading = tag("h2", escape_unprintable(section.title), id=f"{section.id}-heading")
    return tag("section", heading, section.body, id=section.id, aria_labelledby=f"{section.id}-heading")


def _write_contents(page: Page) -> Html | None:
    if len(page.sections) < 2:
        return None
    title = tag("p", "Contents", class_="nav-title")
    entries = (tag("li", tag("a", escape_unprintable(part.title), href=f"#{part.id}")) for part in page.sections)
    return tag("nav", title, tag("ol", *entries), class_="contents", aria_label="Contents")
