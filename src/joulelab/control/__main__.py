"""Run a keeper for one client: `python -m joulelab.control PID TICKS`, with its socket as standard input.

A third word `guarded` lets it have a guard. The guard of a killed keeper runs this program with the third word
`restore`: it waits for the end of the client, and restores the caps that are left then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.keeper import Keeper
from joulelab.control.leftovers import has_leftovers
from joulelab.control.link import END_SIGNALS, ProcessWatch, make_keeper_command, wait_readable
from joulelab.control.pauses import KeeperGuard, PausedJob
from joulelab.control.protocol import (
    LineBuffer,
    clean_text,
    encode_message,
    make_refusal,
    parse_request,
    read_request_id,
)
from joulelab.control.state import StateFolder, get_user_name
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.control.protocol import KeeperRequest
    from joulelab.control.setters import SetterInventory

POLL_MS = 500  # only on kernels without pidfd
# The reasons to end that no client is there to receive: they are logged with their outcome.
CLIENT_ENDED, CLIENT_CLOSED = "the client ended", "the client closed"


class KeeperProcess:
    """Serve one client until it ends or closes, or a signal asks to restore."""

    def __init__(
        self, sock: socket.socket, client: ProcessWatch, environ: Mapping[str, str], *, guarded: bool = False
    ) -> None:
        self._needs_guard = guarded
        self._guard: KeeperGuard | None = None
        self._job: PausedJob | None = None
        self._sock = sock
        self._client = client
        self._environ = environ
        self._setters: SetterInventory | None = None
        self._buffer = LineBuffer()
        self._signal = 0
        self._wakeup, wake = os.pipe()
        for fd in (self._wakeup, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in END_SIGNALS:
            signal.signal(number, self._note_signal)
        sudo = environ.get("SUDO_USER")
        user = f"{clean_text(sudo)} as root" if sudo and os.getuid() == 0 else get_user_name(os.getuid())
        who = {"user": user, "pid": client.pid, "keeper": os.getpid()}
        self.keeper = Keeper(StateFolder(environ), self._open_setters, who)

    def run(self) -> None:
        """Answer requests until there is a reason to end; then restore caps, and report the reason to client or log."""
        poll = select.poll()
        for fd in (self._sock.fileno(), self._wakeup, *self._client.fds):
            poll.register(fd, select.POLLIN)
        reason = ""
        try:
            while not reason:
                # Signals are delivered only here: they interrupt no call of a driver.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
                ready = dict(poll.poll(None if self._client.fds else POLL_MS))
                signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
                if self._signal:
                    reason = signal.Signals(self._signal).name
                elif self._client.has_ended():
                    reason = CLIENT_ENDED
                else:
                    reason = self._serve_client() if self._sock.fileno() in ready else ""
        finally:
            self._restore_caps(reason or "it failed")

    def _note_signal(self, number: int, _: object) -> None:
        self._signal = self._signal or number

    def _serve_client(self) -> str:
        """Answer the requests that have arrived; return the reason to end, empty to continue."""
        try:
            data = self._sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            return CLIENT_CLOSED
        self._buffer.add_bytes(data)
        try:
            while (line := self._buffer.pop_line()) is not None:
                if not self._send_message(self._answer_line(line)):
                    return CLIENT_CLOSED
        except ConfigError as error:
            self._send_message(make_refusal(0, error))
            return "the client sent no frames"
        return ""

    def _answer_line(self, line: bytes) -> dict[str, Any]:
        try:
            request = parse_request(line)
            if request.do in ("pause", "resume"):
                return self._answer_pause(request)
            if request.do == "set" and self._needs_guard:
                self._start_guard()
            return self.keeper.answer_request(request)
        except JoulelabError as error:
            return make_refusal(read_request_id(line), error)
        except Exception as error:  # noqa: BLE001 - an unexpected error of a driver must not end the keeper
            failure = JoulelabError("the keeper failed", where="caps", why=repr(error), code="error.keeper-failed")
            return make_refusal(read_request_id(line), failure)

    def _answer_pause(self, request: KeeperRequest) -> dict[str, Any]:
        """Pause the client's job, or continue it. Raises JoulelabError."""
        self._continue_job()
        if request.do == "resume":
            return {"id": request.id, "is": "resumed"}
        job = self._job = PausedJob((request.pid, request.ticks), self._environ)
        return {"id": request.id, "is": "paused", "processes": job.processes, "guard": job.guard.pid}

    def _continue_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.resume()

    def _start_guard(self) -> None:
        self._needs_guard = False
        restore = make_keeper_command(self._client.pid, self._client.ticks, "restore")
        with contextlib.suppress(OSError):  # without it, the next start of joulelab restores the caps
            self._guard = KeeperGuard(self._environ, restore)

    def _send_message(self, message: dict[str, Any]) -> bool:
        try:
            self._sock.sendall(encode_message(message))
        except OSError:
            return False
        return True

    def _restore_caps(self, reason: str) -> None:
        self._continue_job()
        outcomes = self.keeper.release_caps()
        devices = [outcome.to_json() for outcome in outcomes]
        sent = self._send_message({"id": 0, "is": "ended", "why": reason, "devices": devices})
        if reason in (CLIENT_ENDED, CLIENT_CLOSED) or not sent:
            for outcome in outcomes:
                self.keeper.state.append_log(f"{reason}: {outcome.message}")
        if self._guard is not None:
            self._guard.dismiss()
        if self._setters is not None:
            self._setters.close()

    def _open_setters(self) -> SetterInventory:
        """Open the setters when they are first needed; they stay open, or a driver might forget the caps."""
        if self._setters is None:
            from joulelab.control.setters import open_all_setters

            self._setters = open_all_setters(self._environ)
        return self._setters


def main() -> None:
    """Serve the client that the arguments name; end by os._exit, so that no stuck vendor library delays the end."""
    code = 1
    try:
        words = sys.argv[3:]
        sock = None if "restore" in words else _take_socket()
        with contextlib.suppress(OSError):  # a session of its own: signals of the terminal are not for the keeper
            os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        client = ProcessWatch(int(sys.argv[1]), int(sys.argv[2]))
        if sock is None:
            restore_after(client, os.environ)
        else:
            KeeperProcess(sock, client, os.environ, guarded="guarded" in words).run()
        code = 0
    finally:
        os._exit(code)


def restore_after(client: ProcessWatch, environ: Mapping[str, str]) -> None:
    """Wait for the end of a client whose keeper was killed; then restore the caps that no other keeper holds."""
    from joulelab.control.setters import open_all_setters

    while not client.has_ended():  # it has started another keeper, or will
        wait_readable(client.fds, POLL_MS / 1000)
    if not has_leftovers(environ):
        return
    setters = open_all_setters(environ)
    who = {"user": get_user_name(os.getuid()), "pid": os.getpid()}
    keeper = Keeper(StateFolder(environ), lambda: setters, who)
    for outcome in keeper.restore_leftovers():
        keeper.state.append_log(f"the keeper was killed: {outcome.message}")
    setters.close()


def _take_socket() -> socket.socket:
    """Move the socket away from standard input, and close all files that were inherited by accident."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(path.name))
    sock = socket.socket(fileno=os.dup(0))  # not inherited
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return sock


if __name__ == "__main__":
    main()
