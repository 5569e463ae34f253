"""Read tables of TOML value by value: what `plan` uses until its files are declared as those of core/reading are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.duration import seconds
from joulelab.core.errors import ConfigError
from joulelab.core.reading import Mistakes, is_number, read_texts, show, show_table
from joulelab.core.text import suggest_name
from joulelab.run.config.files import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.reading import Place

__all__ = ["Problems", "Table", "is_number", "read_toml", "show"]

Problems = Mistakes


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
        return show_table(self.at)

    def wrong(self, key: str, what: str, *, why: str | None = None, next: str | None = None) -> None:
        """Note what is wrong with a key, or with the whole table where it is empty."""
        self.problems.add((*self.at, key) if key else self.at, what, why=why, next=next)

    def allow(self, valid: Sequence[str]) -> None:
        """Refuse all other keys."""
        for key in self.values:
            if key not in valid:
                self.problems.refuse_key(self.at, key, valid)

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
        self.wrong(key, told, next=suggest_name(value, valid))
        return None

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a text or a list of texts as several; none of them is empty."""
        if key not in self.values:
            return None
        try:
            return read_texts(self.values[key])
        except ValueError:
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
            self._refuse(key, f"write it as a table: {show_table((*self.at, key))}")
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
        self.problems.add_wrong((*self.at, key), self.values[key], then)
