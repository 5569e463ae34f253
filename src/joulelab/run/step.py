"""Own one step of a Slurm job: a srun whose tasks, one on each of some nodes, record for the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any

from joulelab.core.spawn import add_import_path, move_above_standard
from joulelab.store.safe_files import open_append

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MODULE = "joulelab.run.node_task"
# Of Slurm's variables a step of ours needs these; the others would change it, as they were made for the workload's.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JWT", "SLURM_WORKING_CLUSTER")
CHANGING = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_")


class Step:
    """Start a step over `count` nodes, of which `nodes` are named or all. What it says goes to a log."""

    def __init__(self, environ: Mapping[str, str], log: Path, count: int, nodes: Sequence[str] = ()) -> None:
        """Start it; raise OSError where that fails."""
        self.nodes = tuple(nodes)
        self.number = ""  # Slurm's, known when the first node has said hello
        self.silent = False  # its output has ended, so its own end is near
        self._output, self._input = b"", b""
        srun = shutil.which("srun", path=environ.get("PATH"))
        if srun is None:
            raise FileNotFoundError("there is no such command")
        command = [srun, *_options(count, nodes), sys.executable, "-P", "-W", "ignore", "-m", MODULE]
        self._spawn(srun, command, step_environ(environ), log)

    @property
    def fds(self) -> list[int]:
        """Return what to poll."""
        return [] if self.silent else [self._said]

    @property
    def is_behind(self) -> bool:
        """Return whether there is something to do that no file tells of: a plan that did not fit, an end that nears."""
        return bool(self._output) or self.silent

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line to all its nodes."""
        self._output += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what has not been sent yet, as far as srun takes it."""
        try:
            while self._output and self._commands >= 0:
                self._output = self._output[os.write(self._commands, self._output) :]
        except BlockingIOError:
            return  # srun reads when the step runs
        except OSError:
            self._output = b""  # it is gone, which is noticed elsewhere

    def messages(self) -> list[dict[str, Any]]:
        """Return what its nodes have said since the last call; what is no message is left out."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._said, 65536):
                self._input += data
            self.silent = True
        *lines, self._input = self._input.split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "node" in message:
                    found.append(message)
        return found

    def has_ended(self) -> bool:
        """Return whether its srun has ended."""
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def signal(self, number: int) -> None:
        """Send its srun a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def end_input(self) -> None:
        """Tell its nodes by the end of their input that they are not needed any more."""
        self.flush()
        self._close("_commands")

    def close(self) -> None:
        """Close the pipes of a step that has ended."""
        self._close("_commands")
        self._close("_said")
        self.silent = True

    def _close(self, name: str) -> None:
        fd = getattr(self, name)
        setattr(self, name, -1)
        if fd >= 0:
            os.close(fd)

    def _spawn(self, srun: str, command: list[str], environ: Mapping[str, str], log: Path) -> None:
        opened: list[int] = []
        try:
            opened += (*os.pipe(), *os.pipe())
            opened.append(open_append(log))
            opened = [move_above_standard(fd) for fd in opened]
            commands, self._commands, self._said, told, errors = opened
            actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((commands, told, errors))]
            # In a session of its own: what the terminal sends to the workload's group must not end the step.
            self._pid = os.posix_spawn(
                srun,
                command,
                environ,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        for fd in (commands, told, errors):
            os.close(fd)
        os.set_blocking(self._commands, False)
        os.set_blocking(self._said, False)


def step_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for our step: without what changes steps, and such that joulelab is found."""
    return add_import_path({k: v for k, v in environ.items() if k in KEPT or not k.startswith(CHANGING)})


def _options(count: int, nodes: Sequence[str]) -> Sequence[str]:
    # No --cpus-per-task: it implies --exact, and the recorder would be held on one CPU.
    wide = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    named = [f"--nodelist={','.join(nodes)}"] if nodes else []
    plain = ["--mpi=none", "--cpu-bind=none", "--export=ALL", "--input=all", "--kill-on-bad-exit=0", "--wait=0"]
    return ["--overlap", *wide, *named, *plain, "--no-kill", "--quiet", "--job-name=joulelab"]
