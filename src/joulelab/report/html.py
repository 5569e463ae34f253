"""Write HTML safely: every text that is not marked as `Html` is escaped. Pure."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
# Characters that JSON in a <script> must not contain: they could end the script or begin a comment.
_IN_SCRIPT = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class Html(str):
    """Mark text as our own markup, which is not escaped again."""

    __slots__ = ()


def escape_html(text: object) -> Html:
    """Escape a text; markup stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """Write an element. Children that are not Html are escaped; None is left out.

    Attributes: `class_` is `class`, other underscores become hyphens. True has no value, False and None are left out.
    """
    given = []
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is True:
            given.append(f" {word}")
        elif value is not False and value is not None:
            given.append(f' {word}="{escape_html(value)}"')
    opened = f"<{name}{''.join(given)}>"
    if name in VOID:
        return Html(opened)
    return Html(f"{opened}{join_html(children)}</{name}>")


def join_html(parts: Iterable[object], between: str = "") -> Html:
    """Join pieces of text and markup; None is left out."""
    return Html(escape_html(between).join(escape_html(part) for part in parts if part is not None))


def embed_json(ident: str, data: Any) -> Html:
    """Embed data as JSON in an element that the browser does not run. Raises ValueError for NaN."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)
    return Html(f'<script type="application/json" id="{escape_html(ident)}">{text}</script>')
