"""Read pages as a reader would: tables as rows of text, elements by name."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collect the rows of every table, texts by class, every tag and every attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.by_class: dict[str, list[str]] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        name = dict(attrs).get("class") or ""
        if name:
            self.by_class.setdefault(name, []).append("")
        if tag not in ("br", "hr", "meta", "link", "input"):
            self._open.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag, name in self._open:
            if tag in ("td", "th"):
                self.tables[-1][-1][-1] += data
            if name:
                self.by_class[name][-1] += data

    @property
    def rows(self) -> list[list[str]]:
        return [row for table in self.tables for row in table]

    def row(self, label: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == label)
