"""Read a JSON array of objects piece by piece: a file of a gigabyte needs no more memory than its longest record."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECE, MOST_BYTES = 1 << 20, 1 << 26


def records(file: Path, *, piece: int = PIECE) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Return the objects of an array, each with the bytes where it begins and ends. Raises ConfigError.

    For that, each byte is taken as a letter: texts in other alphabets are right only when read again by their place.
    """
    with file.open("rb") as opened:
        text = _Text(opened, file, piece)
        text.take("[")
        if text.letter() == "]":
            return
        while True:
            yield text.object()
            if text.take(",]") == "]":
                return


class _Text:
    """Hold the piece of a file that is being read."""

    def __init__(self, opened: IO[bytes], file: Path, piece: int) -> None:
        self._opened, self._file, self._piece = opened, file, piece
        self._text, self._place, self._before = "", 0, 0
        self._decoder = json.JSONDecoder()

    def letter(self) -> str:
        """Return the next letter that is no space, empty at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in " \t\r\n":
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def take(self, valid: str) -> str:
        """Go past the next letter, which has to be one of some. Raises ConfigError."""
        letter = self.letter()
        if not letter or letter not in valid:
            raise self._wrong(f"there should be {' or '.join(valid)}, not {letter or 'the end'}")
        self._place += 1
        return letter

    def object(self) -> tuple[int, int, dict[str, Any]]:
        """Read an object, and say where it stands. Raises ConfigError."""
        if self.letter() != "{":
            self.take("{")
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._place > MOST_BYTES or not self._more():
                    raise self._wrong(str(error)) from error
            else:
                begin, self._place = self._place, end
                return self._before + begin, self._before + end, found

    def _more(self) -> bool:
        """Read on. What is begun doubles each time, so that a long record is not tried too often."""
        rest = self._text[self._place :]
        more = self._opened.read(max(self._piece, len(rest)))
        self._text, self._before, self._place = rest + more.decode("latin-1"), self._before + self._place, 0
        return bool(more)

    def _wrong(self, why: str) -> ConfigError:
        what = "it is no array of JSON objects"
        return ConfigError(what, where=f"{self._file}, byte {self._before + self._place}", why=why, next="is it whole?")
