"""Pages as one file, and as the dashboard serves them."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from joulelab.report.html import Html, tag
from joulelab.report.page.document import (
    SCRIPTS,
    STYLES,
    Page,
    Section,
    read_script,
    read_stylesheet,
    write_offline_page,
    write_profile_figure,
    write_served_page,
)

HOSTILE = "</title><script>alert(1)</script>\u202egnp\x1b[31m"


def page(**changes: object) -> Page:
    given = {
        "title": "llama on node07",
        "subtitle": "10 min",
        "sections": (Section("power", "Power", tag("p", "4 kW")), Section("checks", "Checks", tag("p", "none"))),
        "data": {"power-data": {"w": [1, 2]}},
    }
    return Page(**{**given, **changes})  # type: ignore[arg-type]


def sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_only_our_script_and_style_run() -> None:
    text = write_offline_page(page())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    (inline,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'{sha256(inline)}'"
    assert rules["style-src"] == f"'{sha256(style)}'"
    assert "unsafe" not in policy[1]
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_one_file_asks_for_nothing() -> None:
    text = write_offline_page(page())
    assert not re.findall(r"https?:|\bsrc=|@import|url\(|<link", text)


def test_a_served_page_links_what_it_needs() -> None:
    text = write_served_page(
        page(), base="/joulelab", navigation=tag("nav", "Runs", aria_label="Dashboard"), extra=tag("link", rel="icon")
    )
    assert re.findall(r'<link rel="stylesheet" href="(/joulelab/static/page\.css)\?[0-9a-f]+">', text)
    assert re.findall(r'<script src="(/joulelab/static/profile\.js)\?[0-9a-f]+"></script>', text)
    assert "<style" not in text
    assert "<script>" not in text
    assert text.index('<link rel="icon">') < text.index("</head>") < text.index("Runs") < text.index("<h1>")


def test_headings_and_contents() -> None:
    text = write_offline_page(page())
    assert re.findall(r"<(h\d)", text) == ["h1", "h2", "h2"]
    assert re.findall(r'<li><a href="#([^"]*)">([^<]*)</a>', text) == [("power", "Power"), ("checks", "Checks")]
    assert '<section id="power" aria-labelledby="power-heading"><h2 id="power-heading">Power</h2>' in text
    assert text.index('class="skip" href="#content"') < text.index('<main id="content"')
    assert '<html lang="en">' in text


def test_one_section_needs_no_contents() -> None:
    text = write_offline_page(page(sections=(Section("a", "A", Html("")),), subtitle=""))
    assert 'aria-label="Contents"' not in text
    assert 'class="subtitle"' not in text


def test_names_do_nothing() -> None:
    text = write_offline_page(
        page(title=HOSTILE, subtitle=HOSTILE, sections=(Section("a", HOSTILE, tag("p", HOSTILE)),))
    )
    assert text.count("<script>") == 1
    assert text.count("</title>") == 1
    assert "\u202e" not in text.replace(str(tag("p", HOSTILE)), "")


def test_two_parts_of_one_name() -> None:
    with pytest.raises(ValueError, match="one name"):
        write_offline_page(page(data={"power": {}}))


@pytest.mark.parametrize("live", [True, False])
def test_what_goes_on_renews_itself_where_it_is_served(live: bool) -> None:
    assert ('data-renew="5"' in write_served_page(page(live=live))) is live
    assert 'data-renew="' not in write_offline_page(page(live=live))


def test_figure_of_a_profile() -> None:
    text = write_profile_figure("d", "<4 kW>", overlay=True, raw="/a?b", live="/c")
    assert 'class="profile" data-source="d" data-mode="overlay" data-raw="/a?b" data-live="/c"' in text
    assert '<figcaption class="summary">&lt;4 kW&gt;</figcaption>' in text
    assert "data-mode" not in write_profile_figure("d", "")


def test_assets_are_small_and_ours() -> None:
    assert len(read_script()) + len(read_stylesheet()) < 120_000
    for text in (read_script(), read_stylesheet()):
        assert "</" not in text  # it stands within <script> and <style>
        assert not re.search(r"https?:|eval\(|innerHTML|document\.write|new Function", text)
    assert len(set(STYLES)) + len(set(SCRIPTS)) == len(STYLES) + len(SCRIPTS)


def test_a_family_has_one_colour_in_all_charts() -> None:
    from joulelab.report.charts.chart_model import FAMILY_COLOURS

    found = re.search(r"const FAMILIES = \{(.*?)\};", read_script())
    assert found is not None
    pairs = re.findall(r"'?([a-z. ]+?)'?: (\d)", found[1])
    assert {name.strip(): int(number) for name, number in pairs} == FAMILY_COLOURS
