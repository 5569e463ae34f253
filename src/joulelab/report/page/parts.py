"""Hold what a page is made of, before it is written as one file or served by the dashboard. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulelab.report.html import Html


@dataclass(frozen=True, slots=True)
class Section:
    """Hold one part of a page, with a heading and a place in its contents."""

    id: str
    title: str
    body: Html


@dataclass(frozen=True, slots=True)
class Page:
    """Hold a page: headline, a line below it, sections, and data for charts that are drawn in the browser, by id.

    `live` says that it is of something that goes on: where it is served, it renews itself.
    """

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    data: dict[str, Any] = field(default_factory=dict)
    live: bool = False
