"""Keep on disk what was found on an instrument: a recorder that is killed cannot put it back, the next one can."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulelab.core.process_identity import read_start_ticks
from joulelab.store.safe_files import replace_file

_HEADER = re.compile(r":[A-Z0-9:]{3,40}\Z")
_VALUE = re.compile(r"[ -:<-~]{0,80}\Z")  # printable, and no second command behind it
_held: set[Path] = set()  # what meters of this process keep now
_lock = threading.Lock()


def folder() -> Path:
    """Return where joulelab keeps state of this user, after the XDG rules."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "joulelab"


@dataclass(slots=True)
class Left:
    """Hold what a process that is gone left behind: settings as they were found, whether it started the integration."""

    found: dict[str, str]
    started: bool


class Kept:
    """Hold what was found and has to be put back; from `begin` on it is on disk before anything is changed."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.started = False
        self.integrates = False  # an integration that a process which is gone has started
        self.problem = ""
        self._path: Path | None = None

    def begin(self, name: str) -> None:
        """Take over what was left for the instrument of this name, unless a process that lives keeps it."""
        if self._path is not None:
            return
        with _lock:
            try:
                path = folder() / f"analyzer-{re.sub(r'[^A-Za-z0-9_-]+', '-', name)[:60]}.json"
                left = None if path in _held else _read(path)
            except (OSError, RuntimeError) as error:
                self.problem = str(error)
                return
            if path in _held or left is _ALIVE:
                return
            self._path = path
            _held.add(path)
        if left is not None:
            self.found.update(left.found)
            self.integrates = self.started = left.started
        self.save()

    def save(self) -> None:
        """Write what was found so far; where that fails `problem` says why."""
        if self._path is None or not (self.found or self.started):
            return
        data = {"pid": os.getpid(), "start_ticks": read_start_ticks(), "started": self.started, "found": self.found}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(data).encode(), sync=False)
        except OSError as error:
            self.problem = str(error)

    def clear(self) -> None:
        """Forget what was put back."""
        self.found.clear()
        self.started = self.integrates = False
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                self.problem = str(error)
        self.release()

    def release(self) -> None:
        """Let go of it; what was not put back stays on disk for who comes next."""
        with _lock:
            if self._path is not None:
                _held.discard(self._path)
            self._path = None


_ALIVE = Left({}, started=False)


def _read(path: Path) -> Left | None:
    """Return what was left, `_ALIVE` where another process still keeps it, None for nothing. Raises OSError."""
    try:
        data: Any = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(data, dict) or not isinstance(found := data.get("found"), dict):
        return None
    pid = data.get("pid")
    if isinstance(pid, int) and pid != os.getpid() and read_start_ticks(pid) == data.get("start_ticks"):
        return _ALIVE
    plain = all(isinstance(v, str) and _HEADER.match(k) and _VALUE.match(v) for k, v in found.items())
    return Left(dict(found), started=data.get("started") is True) if plain else None
