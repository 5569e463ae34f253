"""Mark phases, steps, work and facts of this process in the run that records it; without a run, do nothing.

Wrong values never raise, inside a run or outside: no training fails because of its marks. Inside a run a name that is
no text is stored as text, and an amount that is no number or below zero is not counted, with one warning. Outside
nothing is checked.

The run is found once: from the environment at import, or by `measure()`, which starts runs itself.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from joulelab.core.marks import MarkWriter, current_phase, read_global_rank, read_local_rank
from joulelab.run.run_options import find_marks_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _open_writer(environ: Mapping[str, str]) -> MarkWriter | None:
    folder = find_marks_folder(environ)
    if folder is None or not folder.is_dir() or (folder.parent.parent / "end.json").exists():
        return None
    writer = MarkWriter(folder, rank=read_local_rank(environ), first=not read_global_rank(environ))
    # Work is summed for up to half a second: the rest is written when this module goes, at the interpreter's end.
    weakref.finalize(sys.modules[__name__], writer.flush)
    return writer


_writer = _open_writer(os.environ)


def writer() -> MarkWriter | None:
    """Return the writer of this process's marks, None where nothing is recorded."""
    return _writer


def attach_writer(folder: Path, rank: int) -> MarkWriter:
    """Write marks to a run that this process records itself, until `detach_writer()`."""
    global _writer
    _writer = MarkWriter(folder, rank=rank, first=not read_global_rank(os.environ))
    return _writer


def detach_writer() -> None:
    """Write the marks that are left, and then no more."""
    global _writer
    ended, _writer = _writer, None
    if ended is not None:
        ended.close()


class PhaseBlock:
    """Mark a `with` block as a phase."""

    __slots__ = ("_id", "_parent", "_writer", "labels", "n", "name")

    def __init__(self, name: str, n: int | None, labels: Mapping[str, Any]) -> None:
        self.name = name
        self.n = n
        self.labels = labels
        self._id: str | None = None

    def __enter__(self) -> PhaseBlock:
        """Begin the phase."""
        self._writer = _writer
        if _writer is not None:
            self._parent = current_phase()
            self._id = _writer.begin(self.name, self.n, self.labels)
        return self

    def __exit__(self, *_: object) -> None:
        """End the phase, also when its body raised."""
        if self._id is not None and self._writer is not None:
            identity, self._id = self._id, None
            self._writer.end(identity, self._parent)


def phase(name: str, n: int | None = None, **labels: Any) -> PhaseBlock:
    """Mark a phase: `with joulelab.phase("epoch", n=3):`. Phases nest; without a recording nothing is done."""
    return PhaseBlock(name, n, labels)


def work(**amounts: float) -> None:
    """Report work done since the last report, as often as you like: `joulelab.work(samples=64)`."""
    if _writer is not None:
        _writer.work(amounts)


def step(**amounts: float) -> None:
    """End a step of a training: `joulelab.step(samples=64)`. It counts as work, and steps are phases of their own."""
    if _writer is not None:
        _writer.step(amounts)


def fact(**facts: str | float | bool | None) -> None:
    """Store facts of the run, the last value of each name: `joulelab.fact(data="cifar-10", accuracy=0.91)`."""
    if _writer is not None:
        _writer.fact(facts)


def mark(name: str | None, n: int | None = None) -> None:
    """Begin a phase that lasts until the next mark of this process; None only ends the last one."""
    if _writer is not None:
        _writer.switch(name, n)
