"""Write HTML that no text can break out of: what is not `Html` is escaped. Pure."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
# What JSON must not hold within a <script>: an end tag or a comment would be taken for the page's own.
_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Html(str):
    """Mark text as markup of ours: it is not escaped again."""

    __slots__ = ()


def escaped(text: object) -> Html:
    """Return a text as markup that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Return an element. Children that are not Html are shown as text; None is left out.

    Attributes: `class_` is `class`, other underscores are hyphens; True stands alone, False and None are left out.
    """
    given = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            given.append(f" {word}")
        elif value is not False and value is not None:
            given.append(f' {word}="{escaped(value)}"')
    opened = f"<{name}{''.join(given)}>"
    if name in VOID:
        return Html(opened)
    return Html(f"{opened}{joined(children)}</{name}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Return several pieces one after the other; None is left out."""
    return Html(escaped(between).join(escaped(part) for part in parts if part is not None))


def json_script(ident: str, data: Any) -> Html:
    """Return data for scripts, as JSON in an element that is never run. Raises ValueError for NaN."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)
    return Html(f'<script type="application/json" id="{escaped(ident)}">{text}</script>')
