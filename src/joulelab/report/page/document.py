"""Write a page as one file that works offline, or as one that the dashboard serves. Pure, but for reading our assets.

Nothing in a page is asked for from elsewhere. Offline the only script and the only style that run are ours, by their
hash; a served page has neither inline, so that the dashboard's header can forbid both.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.core.version import __version__
from joulelab.report.html import Html, joined, json_script, tag

if TYPE_CHECKING:
    from joulelab.report.page.parts import Page, Section

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


@cache
def stylesheet() -> str:
    """Return the style of every page: what the dashboard serves as `page.css`."""
    return "\n".join(_asset(name) for name in STYLES)


@cache
def script() -> str:
    """Return the script of every page: what the dashboard serves as `profile.js`."""
    return "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();\n"


def offline(page: Page) -> str:
    """Return a page as one file: it asks for nothing, and runs no script but ours.

    Raises ValueError for NaN in its data, and for two parts of one name.
    """
    policy = (
        f"default-src 'none'; script-src '{_hash(script())}'; style-src '{_hash(stylesheet())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = joined(
        (
            Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            Html(f"<style>{stylesheet()}</style>"),
            Html(f"<script>{script()}</script>"),
        ),
        "\n",
    )
    return _document(page, head, _bar(None))


def served(page: Page, *, base: str = "", navigation: Html | None = None, extra: Html | None = None) -> str:
    """Return a page for the dashboard: `BASE/static/page.css` and `BASE/static/profile.js` are linked, not inlined.

    `navigation` stands on top, before the button for light and dark; `extra` is added to the head.
    Raises ValueError as `offline`.
    """
    head = joined(
        (
            tag("link", rel="stylesheet", href=f"{base}/static/page.css?{_version(stylesheet())}"),
            tag("script", src=f"{base}/static/profile.js?{_version(script())}"),
            extra,
        ),
        "\n",
    )
    return _document(page, head, _bar(navigation), renews=page.live)


def profile_figure(
    source: str, summary: object, *, overlay: bool = False, raw: str | None = None, live: str | None = None
) -> Html:
    """Return the place where power over time is drawn from the page's data of this name.

    `summary` says in words what the picture shows; it stays for those who do not see it. `raw` is an address that gives
    finer data (`?from=..&to=..&buckets=..`, s from the workload's start), `live` one that gives the newest.
    """
    mode = "overlay" if overlay else None
    without = tag("p", "The picture is drawn by a script.", class_="waits muted")
    caption = tag("figcaption", summary, class_="summary")
    return tag(
        "figure", without, caption, class_="profile", data_source=source, data_mode=mode, data_raw=raw, data_live=live
    )


def _document(page: Page, head: Html, bar: Html, *, renews: bool = False) -> str:
    idents = [*(section.id for section in page.sections), *page.data]
    if len(set(idents)) < len(idents):
        raise ValueError(f"two parts of a page have one name: {sorted(idents)}")
    title = escape_unprintable(page.title)
    main = tag(
        "main",
        tag("header", tag("h1", title), _subtitle(page), class_="headline"),
        *(_section(section) for section in page.sections),
        id="content",
        tabindex="-1",
        data_renew="5" if renews else None,
    )
    body = joined(
        (
            tag("a", "Skip to the content", class_="skip", href="#content"),
            bar,
            tag("div", _contents(page), main, class_="layout"),
            tag("footer", f"joulelab {__version__}", class_="foot"),
            *(json_script(ident, data) for ident, data in page.data.items()),
        ),
        "\n",
    )
    meta = Html(
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="joulelab">\n'
        '<meta name="referrer" content="no-referrer">'
    )
    head = joined((meta, tag("title", title), head), "\n")
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _subtitle(page: Page) -> Html | None:
    return tag("p", escape_unprintable(page.subtitle), class_="subtitle") if page.subtitle else None


def _section(section: Section) -> Html:
    heading = tag("h2", escape_unprintable(section.title), id=f"{section.id}-heading")
    return tag("section", heading, section.body, id=section.id, aria_labelledby=f"{section.id}-heading")


def _contents(page: Page) -> Html | None:
    if len(page.sections) < 2:
        return None
    entries = (tag("li", tag("a", escape_unprintable(part.title), href=f"#{part.id}")) for part in page.sections)
    return tag(
        "nav", tag("p", "Contents", class_="nav-title"), tag("ol", *entries), class_="contents", aria_label="Contents"
    )


def _bar(navigation: Html | None) -> Html:
    button = tag("button", "Dark", type="button", class_="theme", hidden=True)
    return tag("header", navigation, button, class_="bar")


def _asset(name: str) -> str:
    return files("joulelab.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
