"""Find the work done in a workload's output, by a regular expression."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.store.safe_files import open_regular
from joulelab.study.slots import ERR, OUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_ESCAPED = re.compile(r"\\.|\(\?(?:P?<\w+>|[a-zA-Z]+\)|[a-zA-Z]*:|<?[=!])|\[[^\]]*\]")
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")


@dataclass(frozen=True, slots=True)
class WorkPattern:
    """Hold how work is found: the last match is the total, or with `add` all matches are added.

    With a `workload` it is only for the slots of that.
    """

    pattern: str
    name: str
    add: bool = False
    workload: str | None = None

    @classmethod
    def parse(
        cls, pattern: str, *, add: bool = False, workload: str | None = None, where: str = "--work"
    ) -> WorkPattern:
        """Read a pattern; its name is that of its group, or its first word. Raises ConfigError."""
        try:
            compiled = re.compile(pattern.encode(), re.MULTILINE)
        except re.error as error:
            raise ConfigError(f"{pattern!r} is no regular expression", where=where, why=str(error)) from None
        named = list(compiled.groupindex)
        if len(named) > 1 or (not named and compiled.groups != 1):
            why = f"it has {compiled.groups} groups" if compiled.groups else "it has no group"
            advice = r"put the number in one group: 'tokens: (\d+)', or name it: '(?P<tokens>\d+) done'"
            raise ConfigError(f"{pattern!r} does not say which number", where=where, why=why, next=advice)
        word = _WORD.search(_ESCAPED.sub(" ", pattern))
        return cls(pattern, named[0] if named else word[0].rstrip("_") if word else "work", add, workload)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        own = {} if self.workload is None else {"workload": self.workload}
        return {"pattern": self.pattern, "name": self.name, "add": self.add, **own}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkPattern:
        """Take what `to_json` gave."""
        return cls(data["pattern"], data["name"], bool(data["add"]), data.get("workload"))

    def find(self, slot: Path) -> float | None:
        """Return the work that a slot's output tells, None where it tells none.

        The last match counts, of standard output if it has one there; with `add`, all of both.
        """
        found = [list(self._matches(slot / name)) for name in (OUT, ERR)]
        if self.add:
            every = [number for numbers in found for number in numbers]
            return sum(every) if every else None
        return next((numbers[-1] for numbers in found if numbers), None)

    def _matches(self, file: Path) -> Iterator[float]:
        compiled = re.compile(self.pattern.encode(), re.MULTILINE)
        group = next(iter(compiled.groupindex), 1)
        with contextlib.suppress(OSError), open_regular(file) as opened:
            if not os.fstat(opened.fileno()).st_size:
                return  # what is empty cannot be mapped
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
                for match in compiled.finditer(text):
                    number = _number(match[group] or b"")
                    if number is not None:
                        yield number


def _number(text: bytes) -> float | None:
    try:
        number = float(text.replace(b",", b""))
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def find_work(patterns: Sequence[WorkPattern], slot: Path) -> tuple[dict[str, float], list[str]]:
    """Return the work found in a slot's output by name, and the names that were not found."""
    found = {pattern.name: pattern.find(slot) for pattern in patterns}
    return {name: n for name, n in found.items() if n is not None}, [name for name, n in found.items() if n is None]
