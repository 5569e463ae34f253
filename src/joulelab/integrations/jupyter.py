"""Measure a notebook from inside: `%load_ext joulelab`, `%%joulelab` for a cell, `%joulelab` for all so far."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic, leading_empty_lines
from IPython.core.magic import Magics, line_cell_magic, magics_class

from joulelab.core.clock import monotonic_ns
from joulelab.core.process_identity import RUN_VARIABLE
from joulelab.core.text import suggest_name
from joulelab.run import marking, notebook
from joulelab.run.measure import measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.marks import MarkWriter
    from joulelab.integrations.jupyter_output import NotebookOutput
    from joulelab.run.measure import Measurement

TABLE_PHASE = "table"  # the time that a cell spends on our tables
LOADING_PHASE = "loading"  # the rest of the cell that began the recording
SESSION_NAME = "JPY_SESSION_NAME"  # in which a Jupyter server gives the notebook's file
MAGIC_WORDS = ("start", "status", "stop")
HELP = "write %joulelab alone for the total so far, %joulelab status, stop or start; %%joulelab [NAME] measures a cell"
_FIRST_LINE = re.compile(r"%%joulelab(?:[ \t]+(?P<name>.*?))?\s*")


@dataclass(slots=True)
class RunningCell:
    """Hold a running cell: IPython's object for it, and the measurements that end with it."""

    info: Any
    measured: list[Measurement] = field(default_factory=list)


class CellStack:
    """Hold the running cells, the outermost first: a magic may run cells inside a cell.

    IPython's events do not come in pairs: the cell that registered us ends without having begun, as does an empty one,
    and a cancelled one has no result.
    """

    def __init__(self) -> None:
        self.frames: list[RunningCell] = []

    def push(self, info: Any) -> bool:
        """Add a cell that begins; return whether it is an outermost one."""
        self.frames.append(RunningCell(info))
        return len(self.frames) == 1

    def pop(self, info: Any) -> list[RunningCell]:
        """Remove a cell that ends, and those inside whose end was not reported; the innermost comes first."""
        at = self._find_place(info)
        gone = self.frames[at:]
        del self.frames[at:]
        return gone[::-1]

    def _find_place(self, info: Any) -> int:
        if info is None:
            return max(len(self.frames) - 1, 0)
        for k in reversed(range(len(self.frames))):
            if self.frames[k].info is info:
                return k
        # If a cell ends by more than an error, IPython reports it with a new object.
        last = self.frames[-1].info if self.frames else None
        is_same = last is not None and last.raw_cell == info.raw_cell
        return len(self.frames) - 1 if is_same else len(self.frames)


class KernelRecording:
    """Record a kernel from now on, or join the run that it is part of, and mark its cells as phases."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.since_ns = 0
        self.end_ns: int | None = None
        self.count = 0
        # `joulelab run notebook.ipynb` marks the cells itself.
        self.is_marked = notebook.NOTEBOOK_VARIABLE in environ and marking.writer() is not None
        self.name = (
            environ[notebook.NOTEBOOK_VARIABLE] if self.is_marked else f"{_find_notebook_name(environ)} {os.getpid()}"
        )
        self._own: Measurement | None = None
        if marking.writer() is None:
            self._own = measure(_find_notebook_name(environ))
            self._own.__enter__()
        self._writer: MarkWriter | None = marking.writer()
        is_first = self._writer is not None and not self._writer.rank and RUN_VARIABLE in os.environ
        self.run = Path(os.environ[RUN_VARIABLE]) if is_first else None
        self._phases = notebook.CellPhases(None if self.is_marked else self._writer, self.name)
        if not self.is_marked:
            self.since_ns = monotonic_ns()
            self._phases.next(LOADING_PHASE, at_ns=self.since_ns)

    @property
    def is_on(self) -> bool:
        """Return whether the run that holds the marks goes on."""
        return self.end_ns is None and self._writer is not None and marking.writer() is self._writer

    @property
    def is_own(self) -> bool:
        """Return whether this extension started the run, and ends it."""
        return self._own is not None

    def begin(self, source: str) -> None:
        """Begin the next cell."""
        if self.is_on:
            self.count += 1
            self._phases.next(f"cell {self.count}", title=notebook.get_title({"source": source}))

    def end(self) -> None:
        """End the running cell; the time that follows lies between cells."""
        if self.is_on:
            self._phases.next(notebook.BETWEEN_CELLS)

    def stop(self) -> None:
        """End the recording, or leave a run that another program started."""
        if self.end_ns is not None:
            return
        self.end_ns = monotonic_ns()
        if marking.writer() is self._writer:
            self._phases.end(self.end_ns)
        if self._own is not None:
            self._own.__exit__(None, None, None)


def _find_notebook_name(environ: Mapping[str, str]) -> str:
    return Path(environ.get(SESSION_NAME) or "notebook").stem


def load_ipython_extension(shell: Any) -> None:
    """Record this kernel from now on, mark its cells, and add the magics."""
    JoulelabMagics(shell).load()


def unload_ipython_extension(shell: Any) -> None:
    """End the recording, and remove the magics."""
    loaded = shell.magics_manager.registry.get(JoulelabMagics.__name__)
    if loaded is not None:
        loaded.unload()


@magics_class
class JoulelabMagics(Magics):
    """Hold the recording of one shell, its running cells, and the magics."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.recording: KernelRecording | None = None
        self.stack = CellStack()
        self._at_exit: weakref.finalize[Any, Any] | None = None

    def load(self) -> None:
        """Begin to record, and to follow the cells of the shell."""
        self.start()
        self.shell.register_magics(self)
        self.shell.input_transformer_manager.line_transforms.insert(0, replace_first_line)
        self.shell.events.register("pre_run_cell", self.pre_run_cell)
        self.shell.events.register("post_run_cell", self.post_run_cell)

    def unload(self) -> None:
        """Undo `load`."""
        self.shell.events.unregister("pre_run_cell", self.pre_run_cell)
        self.shell.events.unregister("post_run_cell", self.post_run_cell)
        self.shell.input_transformer_manager.line_transforms.remove(replace_first_line)
        manager = self.shell.magics_manager
        manager.registry.pop(type(self).__name__, None)
        for kind in ("line", "cell"):
            manager.magics[kind].pop("joulelab", None)
        self.stop()

    def start(self) -> None:
        """Record this kernel unless it is recorded already; the run ends with the kernel."""
        if self.recording is not None and self.recording.is_on:
            self._print("this kernel is recorded already")
            return
        recording = self.recording = KernelRecording(os.environ)
        self._at_exit = weakref.finalize(self.shell, _stop_in_process, os.getpid(), recording)
        self._print(_describe_recording(recording))

    def stop(self) -> None:
        """End the recording, and print where the run is."""
        recording = self.recording
        if recording is None or recording.end_ns is not None or recording.is_marked:
            self._print(_describe_recording(recording))
            return
        recording.stop()
        if self._at_exit is not None:
            self._at_exit.detach()
        if recording.run is not None:
            ended = "the recording has ended" if recording.is_own else "cells are not marked any more; the run goes on"
            self._print(f"{ended}: {_name_run_folder(recording.run)}; joulelab show {recording.run.name} has all of it")

    @line_cell_magic
    def joulelab(self, line: str = "", cell: str | None = None) -> None:
        """Show the energy of this notebook, or measure a cell.

        `%joulelab`         cells, the time between them, and their sum, up to now
        `%joulelab status`  whether and where it is recorded
        `%joulelab stop`    end the recording; `%joulelab start` begins another
        `%%joulelab [NAME]` as a cell's first line: its energy, phases, work and power below it
        """
        if cell is not None:
            # Called, not typed: the first line of a typed cell is replaced (`replace_first_line`).
            self.begin(line.strip())
            self.shell.run_cell(cell).raise_error()
            return
        word = line.strip()
        if not word:
            self._show_total()
        elif word == "status":
            self._print(_describe_recording(self.recording))
        elif word in MAGIC_WORDS:
            getattr(self, word)()
        else:
            raise UsageError(f"there is no `%joulelab {word}`: {suggest_name(word, MAGIC_WORDS)}; {HELP}")

    def begin(self, name: str) -> None:
        """Measure the cell that runs until it ends."""
        if name.startswith("-"):
            raise UsageError(f"%%joulelab takes no options, only a name: {HELP}")
        if not self.stack.frames:
            self._print("this cell is not measured: it was not run as a cell", error=True)
            return
        measurement = measure(name or None)
        measurement.__enter__()
        self.stack.frames[-1].measured.append(measurement)

    def pre_run_cell(self, info: Any) -> None:
        """Mark a cell that begins."""
        if self.stack.push(info) and self.recording is not None:
            self.recording.begin(info.raw_cell)

    def post_run_cell(self, result: Any) -> None:
        """Mark a cell that ended, and show its measurements."""
        info = getattr(result, "info", None)
        if info is not None and not info.raw_cell.strip():
            return  # an empty cell never began
        gone = self.stack.pop(info)
        measured = [m for frame in gone for m in reversed(frame.measured)]
        error = getattr(result, "error_in_exec", None)
        try:
            for measurement in measured:
                measurement.__exit__(type(error), error, None)
        finally:
            if not self.stack.frames and self.recording is not None:
                self.recording.end()
        # If another program marks the cells, or an outer cell goes on, the table's time is in a cell: mark it.
        is_inside = bool(self.stack.frames) or (self.recording is not None and self.recording.is_marked)
        for measurement in measured:
            with marking.phase(TABLE_PHASE) if is_inside else contextlib.nullcontext():
                self._show_cell(measurement)

    def _show_cell(self, measurement: Measurement) -> None:
        try:
            from joulelab.integrations.jupyter_figures import read_cell
            from joulelab.integrations.jupyter_output import describe_cell

            self._publish(describe_cell(read_cell(measurement)))
        except KeyboardInterrupt:
            self._print("the table is left out; joulelab show has it", error=True)
        except Exception as error:  # noqa: BLE001 - the cell has run in any case
            self._print(f"the table cannot be shown ({type(error).__name__}: {error})", error=True)

    def _show_total(self) -> None:
        from joulelab.integrations.jupyter_figures import read_notebook
        from joulelab.integrations.jupyter_output import describe_notebook

        recording = self.recording
        if recording is None or recording.run is None:
            raise UsageError("nothing is recorded: %joulelab start begins a recording")
        with marking.phase(TABLE_PHASE):
            found = read_notebook(recording.run, recording.name, recording.since_ns, recording.end_ns)
            if found is None:
                raise UsageError(f"no cell has been recorded yet in {recording.run}")
            self._publish(describe_notebook(found, is_over=recording.end_ns is not None))

    def _publish(self, output: NotebookOutput) -> None:
        self.shell.display_pub.publish(output.to_bundle())

    @staticmethod
    def _print(text: str, *, error: bool = False) -> None:
        (sys.stderr if error else sys.stdout).write(f"joulelab: {text}\n")


def replace_first_line(lines: list[str]) -> list[str]:
    """Replace the first line of a measured cell by a call, so that the other lines run as in any cell.

    IPython handles their output, errors and `await`; line numbers stay, and the measurement ends with the cell. A magic
    for the whole cell may follow.
    """
    match = _FIRST_LINE.fullmatch(lines[0]) if lines else None
    if match is None:
        return lines
    rest = leading_empty_lines(lines[1:])
    rest = cell_magic(rest) if rest and rest[0].startswith("%%") else lines[1:]
    found = f"get_ipython().magics_manager.registry[{JoulelabMagics.__name__!r}]"
    return [f"{found}.begin({match['name'] or ''!r})\n", *rest]


def _stop_in_process(pid: int, recording: KernelRecording) -> None:
    if os.getpid() == pid:  # not in a forked child
        recording.stop()


def _describe_recording(recording: KernelRecording | None) -> str:
    """Return in words whether a kernel is recorded, and where."""
    if recording is None or recording.end_ns is not None:
        return "nothing is recorded; %joulelab start begins a recording"
    if recording.run is None:
        return "nothing is recorded: see the warning above"
    where = _name_run_folder(recording.run)
    if recording.is_marked:
        return f"this notebook is recorded by joulelab run, cell by cell and to its end: {where}"
    cells = f", {recording.count} cells so far" if recording.count else ""
    whose = "" if recording.is_own else ", which another program started"
    return f"this kernel is recorded{cells}: {where}{whose}; %joulelab shows the total"


def _name_run_folder(run: Path) -> str:
    return f"run {run.name} in {run.parent}"
