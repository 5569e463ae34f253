"""Read SCPI program messages as an instrument does: mnemonics, shortened or not, in any case; headers that inherit."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

_NODE = re.compile(r"(\[?):?([A-Za-z]+)(<x>)?(\]?)")
_TOKEN = re.compile(r"([A-Z]+)(\d*)\Z")


@dataclass(frozen=True, slots=True)
class Unit:
    """Hold one unit of a message: its header's words in capitals, whether it asks, and its data."""

    words: tuple[str, ...]
    asks: bool
    data: str


@dataclass(frozen=True, slots=True)
class Found:
    """Hold what a header means: the pattern that it matches, and the number at its end (1 where none is given)."""

    pattern: str
    number: int


def units(message: str) -> list[Unit]:
    """Return the units of a message; a header without a colon goes on where the one before it stood."""
    found: list[Unit] = []
    path: tuple[str, ...] = ()
    for part in message.split(";"):
        header, _, data = part.strip().partition(" ")
        if not header:
            continue
        asks = header.endswith("?")
        header = header.removesuffix("?").upper()
        if header.startswith("*"):
            found.append(Unit((header,), asks, data.strip()))
            continue
        words = tuple(header.removeprefix(":").split(":"))
        if not header.startswith(":"):
            words = path + words
        path = words[:-1]
        found.append(Unit(words, asks, data.strip()))
    return found


class Dictionary:
    """Find which of the known headers is meant; `[:NORMal]` may be left out, `<x>` takes a number."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._forms = [(form, pattern) for pattern in patterns for form in _forms(pattern)]

    def find(self, words: tuple[str, ...]) -> Found | None:
        """Return what a header means, None for one that is not known."""
        for form, pattern in self._forms:
            if len(form) == len(words) and (number := _match(form, words)) is not None:
                return Found(pattern, number)
        return None


def is_word(token: str, mnemonic: str) -> bool:
    """Tell whether a token is a mnemonic: its capitals, and as much of the rest as was written."""
    short = "".join(itertools.takewhile(lambda c: c.isupper() or c.isdigit(), mnemonic))
    return token.startswith(short) and mnemonic.upper().startswith(token)


def full_header(pattern: str, number: int) -> str:
    """Return a header as it stands in answers."""
    return ":" + pattern.replace("[:", ":").replace("[", "").replace("]", "").replace("<x>", str(number)).upper()


def _forms(pattern: str) -> list[tuple[tuple[str, bool], ...]]:
    nodes = [(name, bool(x), bool(optional)) for optional, name, x, _ in _NODE.findall(pattern)]
    choices = [((), ((name, x),)) if optional else (((name, x),),) for name, x, optional in nodes]
    return [tuple(itertools.chain.from_iterable(pick)) for pick in itertools.product(*choices)]


def _match(form: tuple[tuple[str, bool], ...], words: tuple[str, ...]) -> int | None:
    number = 1
    for (mnemonic, numbered), word in zip(form, words, strict=True):
        token = _TOKEN.match(word)
        if token is None or not is_word(token[1], mnemonic) or (token[2] and not numbered):
            return None
        number = int(token[2]) if token[2] else number
    return number
