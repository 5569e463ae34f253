"""Write the page of a run as Markdown: the same sections, tables and lines, without pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report.page.blocks import Text, markdown_of
from joulelab.report.page.run import power_in_words, run_parts, subtitle_of, title_of
from joulelab.report.page.tables import in_markdown

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.page.blocks import Block


def run_markdown(
    result: Result, folder: Path, profile: PowerProfile | None = None, *, handle: str | None = None
) -> str:
    """Return the page of a run as Markdown. `handle` is how commands name the run."""
    said: tuple[Block, ...] = (Text(power_in_words(result)),) if result.scopes else ()
    parts = run_parts(result, folder, profile, said, handle=handle)
    head = f"# {in_markdown(title_of(result))}\n\n{in_markdown(subtitle_of(result))}\n"
    return "\n".join([head, *(f"## {in_markdown(p.title)}\n\n{markdown_of(p.blocks)}" for p in parts)])
