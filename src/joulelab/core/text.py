"""Keep texts that others wrote from breaking files, databases and terminals."""

from __future__ import annotations

# What stands for a twin's name where its meters were served and read as real ones are.
SERVED_TWIN = "node served by joulelab twin"


def storable(text: str) -> str:
    r"""Return a text that can be encoded: lone surrogates (bytes that were no UTF-8) are written as `\udc80`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""Return a text that moves no cursor and sets no colour: what is not printable is written as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
