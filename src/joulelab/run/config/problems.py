"""Read files of TOML that people write: tell all that is wrong at once, and give values by their kinds."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, TypeGuard

from joulelab.core.duration import seconds
from joulelab.core.errors import ConfigError
from joulelab.instruments import nearest
from joulelab.run.config.places import find_lines, line_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.run.config.places import Place

LONGEST = 60
LARGEST = 1e300  # a whole number of TOML may be too large for a float


class Problems:
    """Collect problems of a file, each with its line."""

    def __init__(self, shown: str, text: str) -> None:
        self._shown = shown
        self._lines = find_lines(text)
        self._found: list[tuple[int, ConfigError]] = []
        # Where each key belongs, for those that stand elsewhere.
        self.homes: dict[str, str] = {}

    def add(self, at: Place, what: str, *, why: str | None = None, next: str | None = None) -> None:
        """Note what is wrong at a place, why, and what to do."""
        line = line_of(self._lines, at)
        where = f"{self._shown}:{line}" if line else self._shown
        self._found.append((line or 0, ConfigError(what, where=where, why=why, next=next)))

    def add_error(self, at: Place, error: ConfigError, before: str = "") -> None:
        """Note what somebody else says is wrong."""
        self.add(at, f"{before}{error.what}", why=error.why, next=error.next)

    def check(self) -> None:
        """Raise ConfigError with a line for each problem, if there are any."""
        if self._found:
            ordered = sorted(self._found, key=lambda one: one[0])
            raise ConfigError("\n".join(dict.fromkeys(_one_line(str(error)) for _, error in ordered)))


class Table:
    """Hold a table of the file and its place, and give its values by their kinds; what is wrong is noted.

    A value that is wrong is given as if it were not there.
    """

    def __init__(self, values: Mapping[str, Any], at: Place, problems: Problems) -> None:
        self.values = values
        self.at = at
        self.problems = problems

    def __contains__(self, key: str) -> bool:
        return key in self.values

    @property
    def shown(self) -> str:
        """Return the table as it is named in the file."""
        return f"[{'.'.join(str(part) for part in self.at)}]" if self.at else "the file"

    def wrong(self, key: str, what: str, *, why: str | None = None, next: str | None = None) -> None:
        """Note what is wrong with a key, or with the whole table where it is empty."""
        self.problems.add((*self.at, key) if key else self.at, what, why=why, next=next)

    def allow(self, valid: Sequence[str]) -> None:
        """Refuse all other keys."""
        for key in self.values:
            if key not in valid:
                home = self.problems.homes.get(key)
                then = f"it belongs to {home}" if home else nearest(key, list(valid))
                self.wrong(key, f"unknown key {key!r} in {self.shown}", next=then)

    def text(self, key: str) -> str | None:
        """Return a text that is not empty."""
        value = self.values.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if key in self.values:
            self._refuse(key, "give a text that is not empty" if value == "" else "give a text, in quotes")
        return None

    def one_of(self, key: str, valid: Sequence[str], what: str = "") -> str | None:
        """Return a text that is one of these names, of what is called `what`."""
        value = self.text(key)
        if value is None or value in valid:
            return value
        told = f"there is no {what} {value!r}" if what else f"{key} is {value!r}"
        self.wrong(key, told, next=nearest(value, list(valid)))
        return None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a text or a list of texts as several; none of them is empty."""
        value = self.values.get(key)
        listed = [value] if isinstance(value, str) else value
        if isinstance(listed, list) and all(isinstance(item, str) and item.strip() for item in listed):
            return tuple(listed)
        if key in self.values:
            self._refuse(key, "give a text, or a list of texts, none of them empty")
        return None

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value = self.values.get(key)
        if isinstance(value, bool):
            return value
        if key in self.values:
            self._refuse(key, "give true or false")
        return None

    def whole(self, key: str, least: int | None = None) -> int | None:
        """Return a whole number of at least so much."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least):
            return value
        if key in self.values:
            self._refuse(key, "give a whole number" + ("" if least is None else f" of at least {least}"))
        return None

    def positive(self, key: str) -> float | None:
        """Return a number above 0."""
        value = self.values.get(key)
        if is_number(value) and value > 0:
            return float(value)
        if key in self.values:
            self._refuse(key, "give a number above 0")
        return None

    def time(self, key: str, least: float = 0.0) -> float | None:
        """Return a time in s, as on the command line."""
        value = self.values.get(key)
        if key not in self.values:
            return None
        if not isinstance(value, str) and not is_number(value):
            self._refuse(key, "write it as 10, 10s, 500ms or 2m")
            return None
        try:
            return seconds(value, least)
        except ConfigError as error:
            self.problems.add_error((*self.at, key), error, f"{key}: ")
        return None

    def table(self, key: str) -> Table:
        """Return a table inside this one, empty where there is none."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            self._refuse(key, f"write it as a table: [{'.'.join(str(part) for part in (*self.at, key))}]")
            value = {}
        return Table(value, (*self.at, key), self.problems)

    def tables(self, key: str) -> list[Table]:
        """Return the tables of a list: `[[skip]]`."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self._refuse(key, f"write each as a table of its own: [[{key}]]")
            return []
        return [Table(item, (*self.at, key, n), self.problems) for n, item in enumerate(value)]

    def _refuse(self, key: str, then: str) -> None:
        self.wrong(key, f"{key} is {show(self.values[key])}", next=then)


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a file and what it says; `what` is how the file is called. Raises ConfigError."""
    text = _text(path, what)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, why = locate_toml_error(error, text)
        raise ConfigError("not TOML", where=f"{path}:{line}", why=why, next="correct that line") from None
    except RecursionError:
        why = "it has lists or tables in each other by the hundreds"
        raise ConfigError(f"too deep to be a {what}", where=str(path), why=why, next="name a file of TOML") from None


def locate_toml_error(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """Return the line on which a text stops being TOML, and the reason with the character."""
    said = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
    line = int(said[2]) if said and said[2] else text.count("\n") + 1
    column = f", at character {said[3]}" if said and said[3] else ""
    return line, (said[1] if said else str(error)) + column


def _text(path: Path, what: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        near = ", ".join(sorted(file.name for file in path.parent.glob("*.toml"))[:10])
        why = f"{what}s there: {near}" if near else None
        raise ConfigError(f"there is no such {what}", where=str(path), why=why, next="name another") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read the {what}", where=str(path), why=error.strerror, next="name a file of TOML"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            "not a TOML file", where=f"{path}:{line}", why="it is not UTF-8", next="save it as UTF-8"
        ) from None


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a number that can be reckoned with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _one_line(text: str) -> str:
    """Return a message without signs that end its line or steer a terminal."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def show(value: Any) -> str:
    """Return a value for a message, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
