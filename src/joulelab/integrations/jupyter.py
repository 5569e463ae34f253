"""Measure a notebook from inside: `%load_ext joulelab`, `%%joulelab` for a cell, `%joulelab` for all so far."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic, leading_empty_lines
from IPython.core.magic import Magics, line_cell_magic, magics_class

from joulelab.core.text import suggest_name
from joulelab.integrations.jupyter_cells import CellStack, KernelRecording
from joulelab.run.marking import phase
from joulelab.run.measure import measure

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.integrations.jupyter_output import NotebookOutput
    from joulelab.run.measure import Measurement

# What our tables take of a cell's time.
TABLE_PHASE = "table"
MAGIC_WORDS = ("start", "status", "stop")
HELP = "write %joulelab alone for the total so far, %joulelab status, stop or start; %%joulelab [NAME] measures a cell"
_FIRST_LINE = re.compile(r"%%joulelab(?:[ \t]+(?P<name>.*?))?\s*")


def load_ipython_extension(shell: Any) -> None:
    """Record this kernel from now on, mark its cells, and add the magics."""
    JoulelabMagics(shell).load()


def unload_ipython_extension(shell: Any) -> None:
    """End the recording, and take away the magics."""
    loaded = shell.magics_manager.registry.get(JoulelabMagics.__name__)
    if loaded is not None:
        loaded.unload()


@magics_class
class JoulelabMagics(Magics):
    """Hold what one shell has of joulelab: its recording, the cells that run, the magics."""

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
        """Record this kernel, unless it is recorded; where its process ends in good order, the run does as well."""
        if self.recording is not None and self.recording.is_on:
            self._say("this kernel is recorded already")
            return
        recording = self.recording = KernelRecording(os.environ)
        self._at_exit = weakref.finalize(self.shell, _stop_in_process, os.getpid(), recording)
        self._say(_describe_recording(recording))

    def stop(self) -> None:
        """End the recording, and say where the run is."""
        recording = self.recording
        if recording is None or recording.end_ns is not None or recording.is_marked:
            self._say(_describe_recording(recording))
            return
        recording.stop()
        if self._at_exit is not None:
            self._at_exit.detach()
        if recording.run is not None:
            ended = "the recording has ended" if recording.is_own else "cells are not marked any more; the run goes on"
            self._say(f"{ended}: {_name_run_folder(recording.run)}; joulelab show {recording.run.name} has all of it")

    @line_cell_magic
    def joulelab(self, line: str = "", cell: str | None = None) -> None:
        """Show what this notebook used, or measure a cell.

        `%joulelab`         cells, the time between them, and their sum, up to now
        `%joulelab status`  whether and where it is recorded
        `%joulelab stop`    end the recording; `%joulelab start` begins another
        `%%joulelab [NAME]` as a cell's first line: its energy, phases, work and power below it
        """
        if cell is not None:
            # Not typed as a cell but called: what is typed is measured where it stands (`measured_lines`).
            self.begin(line.strip())
            self.shell.run_cell(cell).raise_error()
            return
        word = line.strip()
        if not word:
            self._show_total()
        elif word == "status":
            self._say(_describe_recording(self.recording))
        elif word in MAGIC_WORDS:
            getattr(self, word)()
        else:
            raise UsageError(f"there is no `%joulelab {word}`: {suggest_name(word, MAGIC_WORDS)}; {HELP}")

    def begin(self, name: str) -> None:
        """Measure the cell that runs until it ends."""
        if name.startswith("-"):
            raise UsageError(f"%%joulelab takes no options, only a name: {HELP}")
        if not self.stack.frames:
            self._say("this cell is not measured: it was not run as a cell", error=True)
            return
        measurement = measure(name or None)
        measurement.__enter__()
        self.stack.frames[-1].measured.append(measurement)

    def pre_run_cell(self, info: Any) -> None:
        """Take note of a cell that begins."""
        if self.stack.push(info) and self.recording is not None:
            self.recording.begin(info.raw_cell)

    def post_run_cell(self, result: Any) -> None:
        """Take note of a cell that ended, and show what was measured in it."""
        info = getattr(result, "info", None)
        if info is not None and not info.raw_cell.strip():
            return  # an empty one never began
        gone = self.stack.pop(info)
        measured = [m for frame in gone for m in reversed(frame.measured)]
        error = getattr(result, "error_in_exec", None)
        try:
            for measurement in measured:
                measurement.__exit__(type(error), error, None)
        finally:
            if not self.stack.frames and self.recording is not None:
                self.recording.end()
        # Where others mark the cells, or a cell around goes on, our time is taken for the cell's: we say what is ours.
        is_inside = bool(self.stack.frames) or (self.recording is not None and self.recording.is_marked)
        for measurement in measured:
            with phase(TABLE_PHASE) if is_inside else contextlib.nullcontext():
                self._show_cell(measurement)

    def _show_cell(self, measurement: Measurement) -> None:
        try:
            from joulelab.integrations.jupyter_figures import read_cell
            from joulelab.integrations.jupyter_output import describe_cell

            self._publish(describe_cell(read_cell(measurement)))
        except KeyboardInterrupt:
            self._say("the table is left out; joulelab show has it", error=True)
        except Exception as error:  # noqa: BLE001 - what was run has run, shown or not
            self._say(f"what was measured cannot be shown ({type(error).__name__}: {error})", error=True)

    def _show_total(self) -> None:
        from joulelab.integrations.jupyter_figures import read_notebook
        from joulelab.integrations.jupyter_output import describe_notebook

        recording = self.recording
        if recording is None or recording.run is None:
            raise UsageError("nothing is recorded: %joulelab start begins a recording")
        with phase(TABLE_PHASE):
            found = read_notebook(recording.run, recording.name, recording.since_ns, recording.end_ns)
            if found is None:
                raise UsageError(f"no cell has been recorded yet in {recording.run}")
            self._publish(describe_notebook(found, is_over=recording.end_ns is not None))

    def _publish(self, shown: NotebookOutput) -> None:
        self.shell.display_pub.publish(shown.bundle())

    @staticmethod
    def _say(text: str, *, error: bool = False) -> None:
        (sys.stderr if error else sys.stdout).write(f"joulelab: {text}\n")


def replace_first_line(lines: list[str]) -> list[str]:
    """Turn the first line of a measured cell into a call, so that the others run as in any cell.

    What they print, show, raise and await is IPython's business, their numbers stay, and the measurement ends with the
    cell. A magic for the whole cell may follow.
    """
    match = _FIRST_LINE.fullmatch(lines[0]) if lines else None
    if match is None:
        return lines
    rest = leading_empty_lines(lines[1:])
    rest = cell_magic(rest) if rest and rest[0].startswith("%%") else lines[1:]
    found = f"get_ipython().magics_manager.registry[{JoulelabMagics.__name__!r}]"
    return [f"{found}.begin({match['name'] or ''!r})\n", *rest]


def _stop_in_process(pid: int, recording: KernelRecording) -> None:
    if os.getpid() == pid:  # a forked child has our objects, not our recording
        recording.stop()


def _describe_recording(recording: KernelRecording | None) -> str:
    """Return whether a kernel is recorded, and where."""
    if recording is None or recording.end_ns is not None:
        return "nothing is recorded; %joulelab start begins a recording"
    if recording.run is None:
        return "nothing is recorded: the warning above says why"
    where = _name_run_folder(recording.run)
    if recording.is_marked:
        return f"this notebook is recorded by joulelab run, cell by cell and to its end: {where}"
    cells = f", {recording.count} cells so far" if recording.count else ""
    whose = "" if recording.is_own else ", which goes on without us"
    return f"this kernel is recorded{cells}: {where}{whose}; %joulelab shows the total"


def _name_run_folder(run: Path) -> str:
    return f"run {run.name} in {run.parent}"
