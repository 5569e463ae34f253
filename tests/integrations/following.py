"""Stand in for a framework, so that a callback's own logic is tried without it, and read the marks it leaves."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.run import marking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Marked:
    """Read the marks of a run that nobody records, phase by phase with the work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lines(self) -> list[dict[str, Any]]:
        writer = marking.writer()
        if writer is not None:
            writer.flush()
        return [json.loads(line) for file in self.folder.iterdir() for line in file.read_text().splitlines()]

    def work(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for line in self.lines():
            for name, amount in line["amounts"].items() if line["mark"] == "work" else ():
                sums[name] = sums.get(name, 0) + amount
        return sums

    def titles(self) -> list[str]:
        begun = sorted((m for m in self.lines() if m["mark"] == "begin" and m["name"] != "step"), key=lambda m: m["t"])
        return [m["name"] if m["n"] is None else f"{m['name']} {m['n']}" for m in begun]

    def open(self) -> int:
        lines = self.lines()
        return sum(m["mark"] == "begin" for m in lines) - sum(m["mark"] == "end" for m in lines)


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Marked]:
    """Let this process mark a run, as if `joulelab run` had started it."""
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "marks"
    folder.mkdir()
    marking.attach_writer(folder, 0)
    yield Marked(folder)
    marking.detach_writer()


def load(monkeypatch: pytest.MonkeyPatch, name: str, **stubs: dict[str, Any] | None) -> Any:
    """Import a callback's module anew, with modules in place of the framework's; None is one that is not installed."""
    for place, content in stubs.items():
        module = None
        if content is not None:
            module = ModuleType(place)
            module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, place.replace("__", "."), module)
    full = f"joulelab.integrations.{name}"
    monkeypatch.delitem(sys.modules, full, raising=False)
    loaded = importlib.import_module(full)
    monkeypatch.delitem(sys.modules, full)
    return loaded


def tensor(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape)
