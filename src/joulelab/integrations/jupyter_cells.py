"""Follow the cells of a kernel while they run, and mark them as phases of the run that records the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.run import marking, notebook
from joulelab.run.measure import measure
from joulelab.run.run_options import RUN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.marks import MarkWriter
    from joulelab.run.measure import Measurement

# What is left of the cell that began the recording.
LOADING = "loading"
# Where the notebook's server tells its file to the kernel.
SESSION_NAME = "JPY_SESSION_NAME"


@dataclass(slots=True)
class RunningCell:
    """Hold a cell that runs, by what IPython tells of it, and the measurements that end with it."""

    info: Any
    measured: list[Measurement] = field(default_factory=list)


class CellStack:
    """Hold the cells that run, the outermost first: a magic may run cells inside a cell.

    What IPython tells does not come in pairs: the cell that registered us ends without having begun, as does an empty
    one, and one that was cancelled has no result.
    """

    def __init__(self) -> None:
        self.frames: list[RunningCell] = []

    def push(self, info: Any) -> bool:
        """Take in a cell that begins; return whether it is an outermost one."""
        self.frames.append(RunningCell(info))
        return len(self.frames) == 1

    def pop(self, info: Any) -> list[RunningCell]:
        """Take out a cell that ends, and those inside that never told their end; the innermost comes first."""
        at = self._place(info)
        gone = self.frames[at:]
        del self.frames[at:]
        return gone[::-1]

    def _place(self, info: Any) -> int:
        if info is None:
            return max(len(self.frames) - 1, 0)
        for k in reversed(range(len(self.frames))):
            if self.frames[k].info is info:
                return k
        # Where a cell ends by more than an error, IPython tells of it by a new object.
        last = self.frames[-1].info if self.frames else None
        same = last is not None and last.raw_cell == info.raw_cell
        return len(self.frames) - 1 if same else len(self.frames)


class KernelRecording:
    """Record a kernel from now on, or join the run that it is in, and mark its cells where nobody else does."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.since_ns = 0
        self.end_ns: int | None = None
        self.count = 0
        # Whoever runs the notebook without a browser marks its cells already.
        self.is_marked = notebook.NOTEBOOK_VARIABLE in environ and marking.writer() is not None
        self.name = (
            environ[notebook.NOTEBOOK_VARIABLE] if self.is_marked else f"{_find_notebook_name(environ)} {os.getpid()}"
        )
        self._own: Measurement | None = None
        if marking.writer() is None:
            self._own = measure(_find_notebook_name(environ))
            self._own.__enter__()
        self._writer: MarkWriter | None = marking.writer()
        told = self._writer is not None and not self._writer.rank and RUN_VARIABLE in os.environ
        self.run = Path(os.environ[RUN_VARIABLE]) if told else None
        self._phases = notebook.CellPhases(None if self.is_marked else self._writer, self.name)
        if not self.is_marked:
            self.since_ns = monotonic_ns()
            self._phases.next(LOADING, at_ns=self.since_ns)

    @property
    def is_on(self) -> bool:
        """Return whether the run that we mark in goes on."""
        return self.end_ns is None and self._writer is not None and marking.writer() is self._writer

    @property
    def is_own(self) -> bool:
        """Return whether the run was started by us, and ends with us."""
        return self._own is not None

    def begin(self, source: str) -> None:
        """Begin the next cell."""
        if self.is_on:
            self.count += 1
            self._phases.next(f"cell {self.count}", title=notebook.get_title({"source": source}))

    def end(self) -> None:
        """End the cell that runs; what follows lies between cells."""
        if self.is_on:
            self._phases.next(notebook.BETWEEN_CELLS)

    def stop(self) -> None:
        """End the recording, or leave a run that is not ours."""
        if self.end_ns is not None:
            return
        self.end_ns = monotonic_ns()
        if marking.writer() is self._writer:
            self._phases.end(self.end_ns)
        if self._own is not None:
            self._own.__exit__(None, None, None)


def _find_notebook_name(environ: Mapping[str, str]) -> str:
    return Path(environ.get(SESSION_NAME) or "notebook").stem
