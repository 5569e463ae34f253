"""Markup that no text breaks out of."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.report.html import Html, embed_json, escape_html, join_html, tag
from joulelab.report.page.document import Page, Section

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)> & \u2028 </script x <!--<script "


class Seen(HTMLParser):
    """Keep what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@given(st.text())
def test_any_text_stays_text(text: str) -> None:
    seen = Seen(tag("p", text, title=text))
    said = text.replace("\r\n", "\n").replace("\r", "\n")
    assert [name for name, _ in seen.tags] == ["p"]
    assert "".join(seen.text).replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "") == said.replace("\x00", "")


def test_markup_of_ours_is_kept() -> None:
    assert tag("p", tag("b", "x"), None, 3) == "<p><b>x</b>3</p>"
    assert join_html(["<", Html("<br>")], "&") == "&lt;&amp;<br>"
    assert escape_html(Html("<br>")) == "<br>"


def test_attributes() -> None:
    assert tag("input", type="checkbox", checked=True, disabled=False, value=None) == '<input type="checkbox" checked>'
    assert tag("p", class_="a", aria_label='"', data_x=1) == '<p class="a" aria-label="&quot;" data-x="1"></p>'


def test_data_ends_no_script() -> None:
    text = embed_json("data", {"name": HOSTILE})
    inner = text.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")
    assert not {*"<>&\u2028\u2029"} & {*inner}
    seen = Seen(text)
    assert seen.tags == [("script", {"type": "application/json", "id": "data"})]
    assert json.loads("".join(seen.text)) == {"name": HOSTILE}


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embed_json("data", [float("nan")])


def test_a_page_begins_without_data() -> None:
    assert Page("a", "b", (Section("s", "S", Html("")),)).data == {}
