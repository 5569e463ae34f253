"""Collect what a machine refuses of a plan, each with where it stands: a line of the study file, an option of sweep."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import JoulelabError, join_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from joulelab.core.toml_reading import Place

OF_KNOB = "how many GPUs a workload sees is the knob gpus"


class Refusals:
    """Collect refusals, to tell all of them at once, each once."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self._found: list[tuple[int, JoulelabError]] = []
        self._lines: Mapping[Place, int] = {}
        self._content: Mapping[str, Any] = {}
        if file is not None:
            self._lines, self._content = _look_into(file)

    def add(self, error: JoulelabError, place: Place = (), label: str = "", option: str = "") -> None:
        """Note a refusal: of a study file with its place and what it is of, of a sweep with its option."""
        line = self._line(place)
        if self.file is None:
            error.where = option or error.where
        elif place:
            shown = self.file.relative_to(Path.cwd()) if self.file.is_relative_to(Path.cwd()) else self.file
            error.where = f"{shown}:{line}" if line else str(shown)
            error.what = f"{label}: {error.what}" if label else error.what
        self._found.append((line, error))

    @contextlib.contextmanager
    def taken(self, place: Place = (), label: str = "", option: str = "") -> Iterator[None]:
        """Note what is refused inside the block, and go on after it."""
        try:
            yield
        except JoulelabError as error:
            self.add(error, place, label, option)

    def check(self) -> None:
        """Raise what was refused; several become one ConfigError with a line for each."""
        if self._found:
            raise join_errors([error for _, error in sorted(self._found, key=lambda one: one[0])])

    def _line(self, place: Place) -> int:
        """Return the line of a place, 0 where nobody knows."""
        if not self._lines:
            return 0
        from joulelab.core.toml_reading import find_line

        return find_line(self._lines, place) or 0

    def knob(self, name: str, workload: str) -> Place:
        """Return where a knob of a workload stands: among its own, or among those of all."""
        own = self.table("workloads", workload, "knobs")
        return ("workloads", workload, "knobs", name) if name in own else ("knobs", name)

    def table(self, *keys: str) -> Mapping[str, Any]:
        """Return a table of the file as it is written, empty where there is none."""
        found: Any = self._content
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _look_into(file: Path) -> tuple[Mapping[Place, int], Mapping[str, Any]]:
    """Return the lines and the content of a study file; none where it cannot be read any more."""
    import tomllib

    from joulelab.core.toml_reading import find_lines
    from joulelab.store.safe_files import read_regular

    try:
        text = read_regular(file).decode("utf-8-sig")
        return find_lines(text), tomllib.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}, {}
