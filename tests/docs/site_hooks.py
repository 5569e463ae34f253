"""Hooks of mkdocs (mkdocs.yml): links to files outside of docs/ become plain text, as the site lacks these files."""

from __future__ import annotations

import os
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?!\w+:)[^)#\s]+)(#[^)]*)?\)")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)


def unlink_outside(text: str, page: str) -> str:
    """Return Markdown in which links that leave docs/ are text with the path in the source tree."""

    def replace_link(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page), match[2]))  # noqa: PTH118, PTH120 - not a file here
        if path.startswith("docs/"):
            return match[0]
        return match[1] if match[1].strip("`") == path else f"{match[1]} (`{path}` in the source tree)"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(replace_link, part) for part in parts)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change a page before mkdocs reads it."""
    return unlink_outside(markdown, page.file.src_uri)
