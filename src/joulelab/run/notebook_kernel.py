"""Run a notebook's cells in a kernel of their own, one after another, and mark each as a phase.

The kernel and all that it started end with us, however we end: at the end of the notebook, when told by a signal, and
when we are killed (then the kernel itself sees that its parent has gone, within about a second).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.run.notebook import (
    BETWEEN_CELLS,
    FAILED,
    INJECTED_TAG,
    NOTEBOOK_VARIABLE,
    PARAMETERS_TAG,
    CellPhases,
    find_parameters_place,
    format_parameters,
    get_kernel_name,
    get_language,
    get_source,
    get_title,
    has_code,
    is_own_kernel,
    print_message,
    require_library,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from joulelab.run.notebook import NotebookRequest

OWN_KERNEL = "python3"


class KernelFinder(KernelSpecManager):
    """Find kernels by their names; `python3` is the Python that we run in, wherever a file of that name may point."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return how a kernel is started. Raises NoSuchKernel."""
        if kernel_name != OWN_KERNEL:
            return super().get_kernel_spec(kernel_name)
        start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=start, display_name="Python 3", language="python")

    def choose(self, asked: NotebookRequest, notebook: Mapping[str, Any]) -> str:
        """Return the name of the kernel to start. Raises ConfigError, MissingDependency where it is not installed."""
        named = asked.kernel or get_kernel_name(notebook)
        if is_own_kernel(asked, notebook):
            return OWN_KERNEL
        try:
            self.get_kernel_spec(named)
        except NoSuchKernel as error:
            if not asked.kernel and get_language(notebook) == "python":
                require_library("ipykernel", asked.file)
                return OWN_KERNEL  # the notebook asks for a kernel that only whoever wrote it has
            there = sorted({OWN_KERNEL, *self.find_kernel_specs()})
            what = f"there is no kernel {named!r} here"
            raise ConfigError(what, where=str(asked.file), next=f"install it; {suggest_name(named, there)}") from error
        return named


FORMAT: Any = nbformat  # which is not typed
START_S, OUTPUT_S = 120, 60
# A cell that is told to stop has so long for its own clearing up; the kernel then so long to end in good order.
GRACE_S, STOP_S = 3.0, 5.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Unix sockets have short names; where the folder for temporary files has a long one, the kernel listens on loopback.
MOST_SOCKET = 80
# What programs print that a cell starts goes where our own output goes: by messages it would come twice, or too late
# for its cell, and then not at all.
DIRECT = "--IPKernelApp.capture_fd_output=False"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class NotebookEnd:
    """Say how a notebook ended: an exit code, and the signal that we were told to end by."""

    exit_code: int
    signal: int | None = None


class PrintingClient(NotebookClient):
    """Run cells, and pass on what they print as they print it."""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Take a message of the kernel."""
        if msg["msg_type"] == "stream":
            stream = sys.stderr if msg["content"].get("name") == "stderr" else sys.stdout
            with contextlib.suppress(OSError, ValueError):  # nobody reads it: the copy has it
                stream.write(msg["content"].get("text", ""))
                stream.flush()
        return super().process_message(msg, cell, cell_index)


def run_notebook(asked: NotebookRequest, notebook: Mapping[str, Any], began_ns: int) -> NotebookEnd:
    """Run a notebook from start to end. Raises ConfigError where it cannot be started."""
    phases = CellPhases(joulelab.writer(), asked.file.name)
    phases.next("kernel start", at_ns=began_ns)
    kernels = KernelFinder()
    name = kernels.choose(asked, notebook)
    node, ours = _prepare_cells(asked, notebook)
    with (
        _silence_logging(),
        tempfile.TemporaryDirectory(prefix="joulelab-kernel-", ignore_cleanup_errors=True) as folder,
    ):
        manager = AsyncKernelManager(
            kernel_name=name,
            kernel_spec_manager=kernels,
            connection_file=str(Path(folder) / "kernel.json"),
            shutdown_wait_time=STOP_S,
            # Through files nobody else can take its place or hear it.
            transport="ipc" if name == OWN_KERNEL and len(folder) < MOST_SOCKET else "tcp",
        )
        ended = asyncio.run(_NotebookRun(asked, node, ours, manager, phases).all())
    phases.end()
    return ended


def _prepare_cells(asked: NotebookRequest, notebook: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the notebook as nbformat has it, and where a cell was put in that sets its parameters (-1: nowhere)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cells without an id, which we do not need
        node = FORMAT.from_dict(dict(notebook))
    for cell in node.cells:
        cell.source = get_source(cell)
        cell.setdefault("metadata", FORMAT.from_dict({}))
        if cell.cell_type == "code":
            cell.update({"outputs": [], "execution_count": None})
    if not asked.parameters:
        return node, -1
    new = FORMAT.v4.new_code_cell(format_parameters(asked.parameters), metadata={"tags": [INJECTED_TAG]})
    if node.get("nbformat_minor", 0) < 5:
        del new["id"]
    ours = find_parameters_place(notebook)
    node.cells.insert(ours, new)
    return node, ours


@contextlib.contextmanager
def _silence_logging() -> Iterator[None]:
    """Keep what libraries log away from the notebook's own output; we say what is wrong ourselves."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _NotebookRun:
    """Hold one notebook while it runs."""

    def __init__(
        self, asked: NotebookRequest, node: Any, ours: int, manager: AsyncKernelManager, phases: CellPhases
    ) -> None:
        self.asked, self.node, self.ours, self.manager, self.phases = asked, node, ours, manager, phases
        more = [DIRECT] if manager.kernel_name == OWN_KERNEL else []
        limits = {"timeout": None, "startup_timeout": START_S, "iopub_timeout": OUTPUT_S}
        self.client = PrintingClient(node, km=manager, extra_arguments=more, **limits)
        self.told: int | None = None
        self.where = ""  # the cell that runs, in words
        self._ending: asyncio.Task[None] | None = None
        self._stopping = False

    async def all(self) -> NotebookEnd:
        """Start the kernel, run the cells, end the kernel, and write the copy; told by a signal, leave the rest."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in ENDING:
            loop.add_signal_handler(number, self._tell, number, task)
        code = FAILED
        try:
            code = await self._start_and_run()
        except asyncio.CancelledError:
            if self.told is None:
                raise
            task.uncancel()
        finally:
            await self._stop()
            self._write()
        if self.told is not None:
            print_message(f"{self.asked.file}: ended by signal {self.told}{self.where and f' in {self.where}'}")
        return NotebookEnd(code, self.told)

    async def _start_and_run(self) -> int:
        try:
            # The kernel is told that its cells are marked, so that `%load_ext joulelab` does not mark them again.
            environ = {**os.environ, NOTEBOOK_VARIABLE: self.asked.file.name}
            await self.client.async_start_new_kernel(cwd=str(self.asked.file.resolve().parent), env=environ)
            await self.client.async_start_new_kernel_client()
        except (RuntimeError, OSError) as error:
            if self.told is None:
                print_message(f"{self.asked.file}: the kernel did not start ({error})")
            return FAILED
        try:
            await self._cells()
        except CellExecutionError as error:
            if self.told is None:
                _print_failure(self.asked.file, self.where, error)
            return FAILED
        except DeadKernelError:
            if self.told is None:
                print_message(f"{self.asked.file}: the kernel died in {self.where}{await self._death()}")
            return FAILED
        return 0 if self.told is None else FAILED

    async def _cells(self) -> None:
        number, before = 0, False
        for index, cell in enumerate(self.node.cells):
            number += cell.cell_type == "code" and not self._is_ours(index)
            if cell.cell_type != "code" or not has_code(cell):
                continue
            if before and not self._is_ours(index):
                self.phases.next(BETWEEN_CELLS)
                await asyncio.sleep(self.asked.pause_s)
            if self.told is not None:
                return
            before = True
            if self._is_ours(index):
                self.where = "the cell of parameters"
                self.phases.next(PARAMETERS_TAG)
            else:
                self.where = f"cell {number}"
                self.phases.next(self.where, title=get_title(cell))
            await self.client.async_execute_cell(cell, index, execution_count=self.client.code_cells_executed + 1)
            self.where = ""

    def _is_ours(self, index: int) -> bool:
        """Return whether a cell is the one that was put in to set parameters; a copy of an earlier run has one too."""
        return index == self.ours

    def _tell(self, number: int, task: asyncio.Task[Any]) -> None:
        if self._stopping:
            pass  # we are leaving, in bounded time
        elif self.told is not None or not self.where:
            task.cancel()  # told again, or there is no cell that could clear up
        else:
            self._ending = asyncio.create_task(self._interrupt(task))
        self.told = self.told or number

    async def _interrupt(self, task: asyncio.Task[Any]) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            await self.manager.interrupt_kernel()
        await asyncio.wait({task}, timeout=GRACE_S)
        task.cancel()

    async def _death(self) -> str:
        """Return what the kernel's process ended by, in words."""
        code = await self.manager.provisioner.poll() if self.manager.provisioner is not None else None
        if code is None:
            return ""
        if code >= 0:
            return f" (exit code {code})"
        memory = "; was there enough memory?" if -code == signal.SIGKILL else ""
        return f" (signal {-code}{memory})"

    async def _stop(self) -> None:
        """End the kernel, and all that it started and left."""
        self._stopping = True
        self.phases.next("kernel stop")
        if self._ending is not None:
            self._ending.cancel()
        group = getattr(self.manager.provisioner, "pgid", None)
        with contextlib.suppress(RuntimeError, OSError):
            if self.manager.has_kernel:
                await self.manager.shutdown_kernel(now=self.told is not None)
        if self.client.kc is not None:
            self.client.kc.stop_channels()
        if group and group != os.getpgrp():
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)

    def _write(self) -> None:
        """Write the notebook with its outputs so far, whole or not at all."""
        if self.asked.out is None:
            return
        self.client.set_widgets_metadata()
        part = self.asked.out.with_name(f".{self.asked.out.name}.{os.getpid()}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                FORMAT.write(self.node, part)
            part.replace(self.asked.out)
        except (OSError, ValueError) as error:
            part.unlink(missing_ok=True)
            print_message(f"the copy cannot be written to {self.asked.out} ({error})")


def _print_failure(file: Path, where: str, error: CellExecutionError) -> None:
    trace = error.traceback if sys.stderr.isatty() else _COLOUR.sub("", error.traceback)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{trace.rstrip()}\n")
    print_message(f"{file}: {where} failed: {error.ename}: {error.evalue}")
