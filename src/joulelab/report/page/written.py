"""Hold a report before it is a page or Markdown: title, what is below it, parts, data of its pictures. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.report.page.blocks import html_of, markdown_of
from joulelab.report.page.parts import Page, Section
from joulelab.report.page.tables import in_markdown

if TYPE_CHECKING:
    from joulelab.report.page.blocks import Part


@dataclass(frozen=True, slots=True)
class Report:
    """Hold a report; `live` says that it is of something that goes on."""

    title: str
    subtitle: str
    parts: tuple[Part, ...]
    data: dict[str, Any] = field(default_factory=dict)
    live: bool = False

    def page(self) -> Page:
        """Return it as a page."""
        sections = tuple(Section(part.id, part.title, html_of(part.blocks)) for part in self.parts)
        return Page(self.title, self.subtitle, sections, self.data, self.live)

    def markdown(self) -> str:
        """Return it as Markdown, without what only a page can show."""
        texts = [f"# {in_markdown(self.title)}\n", f"{in_markdown(self.subtitle)}\n"]
        for part in self.parts:
            said = markdown_of(part.blocks)
            if said:
                texts.append(f"## {in_markdown(part.title)}\n\n{said}")
        return "\n".join(texts)
