"""Run a notebook's cells in a kernel of their own, one after another, and mark each as a phase.

The kernel and all that it started end with this process: at the end of the notebook, by a signal, and when it is killed
(then the kernel itself notices the end of its parent, within about a second).
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

    def choose(self, request: NotebookRequest, notebook: Mapping[str, Any]) -> str:
        """Return the name of the kernel to start. Raises ConfigError, MissingDependency where it is not installed."""
        named = request.kernel or get_kernel_name(notebook)
        if is_own_kernel(request, notebook):
            return OWN_KERNEL
        try:
            self.get_kernel_spec(named)
        except NoSuchKernel as error:
            if not request.kernel and get_language(notebook) == "python":
                require_library("ipykernel", request.file)
                return OWN_KERNEL  # the notebook names a kernel that only its author has
            there = sorted({OWN_KERNEL, *self.find_kernel_specs()})
            what = f"there is no kernel {named!r} here"
            raise ConfigError(
                what, where=str(request.file), next=f"install it; {suggest_name(named, there)}", code="config.no-kernel"
            ) from error
        return named


FORMAT: Any = nbformat  # which is not typed
START_S, OUTPUT_S = 120, 60
# Time for a cell to clean up after an interrupt, and for the kernel to end by itself after that.
GRACE_S, STOP_S = 3.0, 5.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Unix sockets have short names; where the folder for temporary files has a long one, the kernel listens on loopback.
MOST_SOCKET = 80
# Output of programs that a cell starts goes directly to our own output: by messages it would come twice, or too late
# for its cell, and then not at all.
DIRECT = "--IPKernelApp.capture_fd_output=False"
# A kernel that ends closes sockets that another of its threads may still use, and logs that with a traceback: after the
# last cell, where nobody can do anything about it.
QUIET_END = (
    "--IPKernelApp.exec_lines=__import__('logging').getLogger('tornado.general').addFilter("
    "lambda record: not (record.exc_info and 'on non-socket' in str(record.exc_info[1])))"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class NotebookEnd:
    """Hold how a notebook ended: an exit code, and the signal that ended it."""

    exit_code: int
    signal: int | None = None


class PrintingClient(NotebookClient):
    """Run cells, and print their output at once."""

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Take a message of the kernel."""
        if msg["msg_type"] == "stream":
            stream = sys.stderr if msg["content"].get("name") == "stderr" else sys.stdout
            with contextlib.suppress(OSError, ValueError):  # closed; the copy has it
                stream.write(msg["content"].get("text", ""))
                stream.flush()
        return super().process_message(msg, cell, cell_index)


def run_notebook(request: NotebookRequest, notebook: Mapping[str, Any], began_ns: int) -> NotebookEnd:
    """Run a notebook from start to end. Raises ConfigError where it cannot be started."""
    phases = CellPhases(joulelab.writer(), request.file.name)
    phases.next("kernel start", at_ns=began_ns)
    kernels = KernelFinder()
    name = kernels.choose(request, notebook)
    node, added_index = _prepare_cells(request, notebook)
    with (
        _silence_logging(),
        tempfile.TemporaryDirectory(prefix="joulelab-kernel-", ignore_cleanup_errors=True) as folder,
    ):
        manager = AsyncKernelManager(
            kernel_name=name,
            kernel_spec_manager=kernels,
            connection_file=str(Path(folder) / "kernel.json"),
            shutdown_wait_time=STOP_S,
            # By socket files, no other user can listen or take its place.
            transport="ipc" if name == OWN_KERNEL and len(folder) < MOST_SOCKET else "tcp",
        )
        ended = asyncio.run(_NotebookRun(request, node, added_index, manager, phases).run_all())
    phases.end()
    return ended


def _prepare_cells(request: NotebookRequest, notebook: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the notebook for nbformat, and the index of the cell that was added to set parameters (-1: none)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cells without an id, which we do not need
        node = FORMAT.from_dict(dict(notebook))
    for cell in node.cells:
        cell.source = get_source(cell)
        cell.setdefault("metadata", FORMAT.from_dict({}))
        if cell.cell_type == "code":
            cell.update({"outputs": [], "execution_count": None})
    if not request.parameters:
        return node, -1
    new = FORMAT.v4.new_code_cell(format_parameters(request.parameters), metadata={"tags": [INJECTED_TAG]})
    if node.get("nbformat_minor", 0) < 5:
        del new["id"]
    added_index = find_parameters_place(notebook)
    node.cells.insert(added_index, new)
    return node, added_index


@contextlib.contextmanager
def _silence_logging() -> Iterator[None]:
    """Keep logs of libraries out of the notebook's own output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _NotebookRun:
    """Hold one notebook while it runs."""

    def __init__(
        self, request: NotebookRequest, node: Any, added_index: int, manager: AsyncKernelManager, phases: CellPhases
    ) -> None:
        self.request, self.node, self.added_index, self.manager, self.phases = (
            request,
            node,
            added_index,
            manager,
            phases,
        )
        more = [DIRECT, QUIET_END] if manager.kernel_name == OWN_KERNEL else []
        limits = {"timeout": None, "startup_timeout": START_S, "iopub_timeout": OUTPUT_S}
        self.client = PrintingClient(node, km=manager, extra_arguments=more, **limits)
        self.ended_by: int | None = None
        self.where = ""  # the cell that runs, in words
        self._ending: asyncio.Task[None] | None = None
        self._stopping = False

    async def run_all(self) -> NotebookEnd:
        """Start the kernel, run the cells, end the kernel, and write the copy; a signal skips the remaining cells."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in ENDING:
            loop.add_signal_handler(number, self._handle_signal, number, task)
        code = FAILED
        try:
            code = await self._start_and_run()
        except asyncio.CancelledError:
            if self.ended_by is None:
                raise
            task.uncancel()
        finally:
            await self._stop_kernel()
            self._write_copy()
        if self.ended_by is not None:
            print_message(f"{self.request.file}: ended by signal {self.ended_by}{self.where and f' in {self.where}'}")
        return NotebookEnd(code, self.ended_by)

    async def _start_and_run(self) -> int:
        try:
            # The kernel knows by this that its cells are marked: `%load_ext joulelab` does not mark them again.
            environ = {**os.environ, NOTEBOOK_VARIABLE: self.request.file.name}
            await self.client.async_start_new_kernel(cwd=str(self.request.file.resolve().parent), env=environ)
            await self.client.async_start_new_kernel_client()
        except (RuntimeError, OSError) as error:
            if self.ended_by is None:
                print_message(f"{self.request.file}: the kernel did not start ({error})")
            return FAILED
        try:
            await self._run_cells()
        except CellExecutionError as error:
            if self.ended_by is None:
                _print_failure(self.request.file, self.where, error)
            return FAILED
        except DeadKernelError:
            if self.ended_by is None:
                print_message(f"{self.request.file}: the kernel died in {self.where}{await self._describe_death()}")
            return FAILED
        return 0 if self.ended_by is None else FAILED

    async def _run_cells(self) -> None:
        number, before = 0, False
        for index, cell in enumerate(self.node.cells):
            number += cell.cell_type == "code" and not self._is_added(index)
            if cell.cell_type != "code" or not has_code(cell):
                continue
            if before and not self._is_added(index):
                self.phases.next(BETWEEN_CELLS)
                await asyncio.sleep(self.request.pause_s)
            if self.ended_by is not None:
                return
            before = True
            if self._is_added(index):
                self.where = "the cell of parameters"
                self.phases.next(PARAMETERS_TAG)
            else:
                self.where = f"cell {number}"
                self.phases.next(self.where, title=get_title(cell))
            await self.client.async_execute_cell(cell, index, execution_count=self.client.code_cells_executed + 1)
            self.where = ""

    def _is_added(self, index: int) -> bool:
        """Return whether a cell is the one that was added to set parameters; a copy of an earlier run has one, too."""
        return index == self.added_index

    def _handle_signal(self, number: int, task: asyncio.Task[Any]) -> None:
        if self._stopping:
            pass  # ending already, in bounded time
        elif self.ended_by is not None or not self.where:
            task.cancel()  # the second signal, or no cell that could clean up
        else:
            self._ending = asyncio.create_task(self._interrupt(task))
        self.ended_by = self.ended_by or number

    async def _interrupt(self, task: asyncio.Task[Any]) -> None:
        with contextlib.suppress(RuntimeError, OSError):
            await self.manager.interrupt_kernel()
        await asyncio.wait({task}, timeout=GRACE_S)
        task.cancel()

    async def _describe_death(self) -> str:
        """Return how the kernel's process ended, as text."""
        code = await self.manager.provisioner.poll() if self.manager.provisioner is not None else None
        if code is None:
            return ""
        if code >= 0:
            return f" (exit code {code})"
        memory = "; was there enough memory?" if -code == signal.SIGKILL else ""
        return f" (signal {-code}{memory})"

    async def _stop_kernel(self) -> None:
        """End the kernel, and all processes that it left behind."""
        self._stopping = True
        self.phases.next("kernel stop")
        if self._ending is not None:
            self._ending.cancel()
        group = getattr(self.manager.provisioner, "pgid", None)
        with contextlib.suppress(RuntimeError, OSError):
            if self.manager.has_kernel:
                await self.manager.shutdown_kernel(now=self.ended_by is not None)
        if self.client.kc is not None:
            self.client.kc.stop_channels()
        if group and group != os.getpgrp():
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)

    def _write_copy(self) -> None:
        """Write the notebook with its outputs so far, whole or not at all."""
        if self.request.out is None:
            return
        self.client.set_widgets_metadata()
        part = self.request.out.with_name(f".{self.request.out.name}.{os.getpid()}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                FORMAT.write(self.node, part)
            part.replace(self.request.out)
        except (OSError, ValueError) as error:
            part.unlink(missing_ok=True)
            print_message(f"the copy cannot be written to {self.request.out} ({error})")


def _print_failure(file: Path, where: str, error: CellExecutionError) -> None:
    trace = error.traceback if sys.stderr.isatty() else _COLOUR.sub("", error.traceback)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{trace.rstrip()}\n")
    print_message(f"{file}: {where} failed: {error.ename}: {error.evalue}")
