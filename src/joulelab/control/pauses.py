"""Pause a job: stop all its processes, and continue them however this program, its keeper or both of them end.

The keeper stops and continues the job. It continues it when its client ends. A guard, a shell of a few lines, continues
it when the keeper is killed: it reads a pipe whose only other end the keeper has. So the job is continued as long as
one of the three is alive: client, keeper or guard.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Self

from joulelab.control.link import KeeperLink, ProcessWatch, start_keeper, wait_readable
from joulelab.control.protocol import rebuild_error
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.process_identity import PROC, is_stopped, read_start_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Collects pids; `done` dismisses it, the end of the keeper lets it act: continue the job, then become its arguments.
GUARD_SCRIPT = """trap '' HUP INT QUIT TERM
while read -r pid; do [ "$pid" = done ] && exit; pids="$pids $pid"; done
[ -n "$pids" ] && kill -CONT $pids
[ $# -gt 0 ] && exec "$@"
"""
STOP_TIMEOUT_S = 5.0  # a process that waits for a disk stops late
GUARD_WAIT_S = 2.0
ANSWER_TIMEOUT_S = 20.0
MOST_KEEPERS = 10  # started for one pause, if somebody kills them again and again

Process = tuple[int, int]  # pid and start ticks


class KeeperGuard:
    """Own a shell that acts when this keeper is killed: it continues paused processes, then runs a command."""

    def __init__(self, environ: Mapping[str, str], command: Sequence[str] = ()) -> None:
        """Start it. Raises OSError."""
        reader, self._pipe = os.pipe()
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((reader, null, null))]
        words = ["/bin/sh", "-c", GUARD_SCRIPT, "joulelab-guard", *command]
        try:
            self.pid = os.posix_spawn(words[0], words, environ, file_actions=actions, setsid=True, setsigmask=[])
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(reader)
            os.close(null)

    def add_process(self, pid: int) -> None:
        """Name a process that has to be continued. Raises OSError if the guard is gone: then nothing may be stopped."""
        os.write(self._pipe, f"{pid}\n".encode())

    def dismiss(self) -> None:
        """Let it end without doing anything."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def list_descendants(root: int, proc: Path = PROC) -> list[int]:
    """Return a process and the processes that it started, directly or not, parents first."""
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (folder / "stat").read_text(errors="replace")
            parent = int(text[text.rfind(")") + 1 :].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def continue_processes(processes: Sequence[Process]) -> None:
    """Continue processes, the last one first; those that have ended are left out."""
    for pid, ticks in reversed(processes):
        if read_start_ticks(pid) == ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGCONT)


class PausedJob:
    """Hold the processes of a job stopped, on the side of the keeper. A process that was stopped before stays so."""

    def __init__(self, root: Process, environ: Mapping[str, str]) -> None:
        """Stop the job. Raises JoulelabError, then nothing stays stopped."""
        self._root = root
        self.processes: list[Process] = []
        self._seen: set[int] = set()
        self._is_over = False
        try:
            self.guard = KeeperGuard(environ)
        except OSError as error:
            what, code = "the job is not paused: its guard cannot be started", "error.no-guard"
            raise JoulelabError(what, where="pause", why=str(error), code=code) from error
        try:
            self._stop_tree()
        except BaseException:
            self.resume()
            raise

    def _stop_tree(self) -> None:
        """Stop parents before their children, until no process is left that a fork made meanwhile."""
        if read_start_ticks(self._root[0]) != self._root[1]:
            raise JoulelabError("the job has ended", where="pause", why=f"pid {self._root[0]}", code="error.job-ended")
        until = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < until:
            fresh = [pid for pid in list_descendants(self._root[0]) if pid not in self._seen]
            if not fresh and all(self._is_settled(one) for one in self.processes):
                return
            for pid in fresh:
                self._stop_process(pid)
            time.sleep(0.005)

    def _stop_process(self, pid: int) -> None:
        self._seen.add(pid)
        ticks = read_start_ticks(pid)
        if ticks is None or is_stopped(pid):
            return
        try:
            self.guard.add_process(pid)
        except OSError as error:
            what, code = "the job is not paused: its guard has ended", "error.no-guard"
            raise JoulelabError(what, where="pause", why=str(error), code=code) from error
        self.processes.append((pid, ticks))
        with contextlib.suppress(ProcessLookupError, PermissionError):  # of another user: it runs on
            os.kill(pid, signal.SIGSTOP)

    @staticmethod
    def _is_settled(process: Process) -> bool:
        return is_stopped(process[0]) or read_start_ticks(process[0]) != process[1]

    def resume(self) -> None:
        """Continue the job; calling it twice is harmless."""
        continue_processes(self.processes)
        if not self._is_over:
            self._is_over = True
            self.guard.dismiss()


class JobPauses:
    """Pause a job through a keeper of our own, which continues it when this process ends. For one thread.

    Call `serve()` several times a second in a pause: it replaces a keeper that died.
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        self._environ = dict(environ)
        self._root = pid, read_start_ticks(pid) or 0
        self._link: KeeperLink | None = None
        self._processes: list[Process] = []
        self._guard: ProcessWatch | None = None
        self._last_id = 0
        self._started = 0
        self.is_paused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Start the keeper before it is needed, so that a pause begins on time. Raises JoulelabError."""
        if self._link is None:
            self._link = KeeperLink(*start_keeper(self._environ))

    def pause(self) -> list[int]:
        """Stop the job and return the pids of its processes. Raises JoulelabError; then it runs."""
        self._started = 0
        self._request_pause()
        return [pid for pid, _ in self._processes]

    def resume(self) -> None:
        """Continue the job. Raises nothing: a keeper that does not answer is not needed for it."""
        self.is_paused = False
        if self._link is not None:
            try:
                self._request_answer({"do": "resume"})
            except JoulelabError:
                self._drop_link()
        self._wait_for_guard()
        continue_processes(self._processes)
        self._processes = []

    def serve(self) -> list[dict[str, Any]]:
        """Pause the job again if its keeper died; return events. Raises JoulelabError if that fails; the job runs then.

        `pause-keeper-died` {keeper, why}.
        """
        link = self._link
        if not self.is_paused or link is None:
            return []
        link.receive_messages(0.0)
        if not link.broken:
            return []
        self._link = None
        event = {"event": "pause-keeper-died", "keeper": link.name, "why": link.close()}
        self._request_pause()
        return [event]

    def close(self) -> None:
        """Continue the job and let the keeper end."""
        if self.is_paused:
            self.resume()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _request_pause(self) -> None:
        self.is_paused = False
        while self._started < MOST_KEEPERS:
            self._wait_for_guard()
            continue_processes(self._processes)  # else they would count as stopped by somebody else
            self._processes = []
            answer = self._request_answer({"do": "pause", "pid": self._root[0], "ticks": self._root[1]})
            if answer is not None and answer["is"] == "refused":
                raise rebuild_error(answer["error"])
            if answer is not None:
                self._processes = [(pid, ticks) for pid, ticks in answer["processes"]]
                self._guard = ProcessWatch(answer["guard"])
                self.is_paused = True
                return
        what, why = "the job runs on: it cannot be paused", f"the keeper of the pause died {self._started} times"
        raise JoulelabError(what, where="pause", why=why, code="error.keeper-died")

    def _request_answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, None if the keeper died; a keeper is started if needed. Raises JoulelabError."""
        if self._link is None:
            self._started += 1
            self.prepare()
        assert self._link is not None
        self._last_id += 1
        try:
            answer = self._link.request_answer({**request, "id": self._last_id}, ANSWER_TIMEOUT_S, lambda _: None)
        except JoulelabError:
            self._drop_link()
            raise
        if answer is None:
            self._link.close()
            self._link = None
        return answer

    def _drop_link(self) -> None:
        """Leave a keeper that hangs: it is killed, so that its guard continues the job."""
        link, self._link = self._link, None
        if link is not None and link.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(link.pid, signal.SIGKILL)
            link.close()

    def _wait_for_guard(self) -> None:
        """Wait until the guard of the last pause has ended: a late signal of it would end the next pause."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        until = time.monotonic() + GUARD_WAIT_S
        while not guard.has_ended() and time.monotonic() < until:
            wait_readable(guard.fds, 0.05)
        guard.close()


def refuse_pause() -> ConfigError:
    """Return the refusal of a keeper that serves several users: it signals no processes."""
    what, advice = "capd pauses no jobs", "joulelab starts a keeper of its own for a pause"
    return ConfigError(what, where="pause", next=advice, code="config.no-pause")
