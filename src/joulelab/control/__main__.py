"""Run a keeper for one client: `python -m joulelab.control PID TICKS`, with its socket as standard input."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.frames import Lines, encode, id_of, parse, plain, refused
from joulelab.control.keeper import Keeper
from joulelab.control.spawn import ENDING, Watched
from joulelab.control.state import State, user_name
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.control.setters import Found
    from joulelab.control.told import Released

PATIENCE_MS = 500  # only where a kernel has no pidfd


class Process:
    """Serve one client until it ends, closes, or a signal asks to put back."""

    def __init__(self, link: socket.socket, owner: Watched, environ: Mapping[str, str]) -> None:
        self._link = link
        self._owner = owner
        self._environ = environ
        self._found: Found | None = None
        self._lines = Lines()
        self._signal = 0
        self._wakeup, wake = os.pipe()
        for fd in (self._wakeup, wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in ENDING:
            signal.signal(number, self._note)
        sudo = environ.get("SUDO_USER")
        user = f"{plain(sudo)} as root" if sudo and os.getuid() == 0 else user_name(os.getuid())
        who = {"user": user, "pid": owner.pid, "keeper": os.getpid()}
        self.keeper = Keeper(State(environ), self._setters, who)

    def run(self) -> None:
        """Answer until there is a reason to end, then put back and tell."""
        poll = select.poll()
        for fd in (self._link.fileno(), self._wakeup, *self._owner.fds):
            poll.register(fd, select.POLLIN)
        why = ""
        try:
            while not why:
                # Signals come in here only: they interrupt no call of a driver.
                signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
                ready = dict(poll.poll(None if self._owner.fds else PATIENCE_MS))
                signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
                why = self._turn(ready)
        finally:
            self._end(why or "it failed")

    def _turn(self, ready: Mapping[int, int]) -> str:
        if self._signal:
            return signal.Signals(self._signal).name
        if self._owner.ended():
            return "the client ended"
        return self._serve() if self._link.fileno() in ready else ""

    def _note(self, number: int, _: object) -> None:
        self._signal = self._signal or number

    def _serve(self) -> str:
        """Answer what has arrived; return why it is over, empty where it goes on."""
        try:
            data = self._link.recv(65536)
        except OSError:
            data = b""
        if not data:
            return "the client closed"
        self._lines.feed(data)
        try:
            while (line := self._lines.next()) is not None:
                if not self._say(self._answer(line)):
                    return "the client closed"
        except ConfigError as error:
            self._say(refused(0, error))
            return "the client sent no frames"
        return ""

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return self.keeper.answer(parse(line))
        except ConfigError as error:
            return refused(id_of(line), error)
        except Exception as error:  # noqa: BLE001 - a driver's surprise is an answer, not the end of a keeper
            return refused(id_of(line), JoulelabError("the keeper failed", where="caps", why=repr(error)))

    def _say(self, frame: dict[str, Any]) -> bool:
        try:
            self._link.sendall(encode(frame))
        except OSError:
            return False
        return True

    def _end(self, why: str) -> None:
        outcomes = self.keeper.release()
        told = self._say({"id": 0, "is": "ended", "why": why, "devices": [o.to_json() for o in outcomes]})
        if why in ("the client ended", "the client closed") or not told:
            log(self.keeper.state, outcomes, why)
        if self._found is not None:
            self._found.close()

    def _setters(self) -> Found:
        """Open the setters when they are first needed; they stay open, or a driver might forget the caps."""
        if self._found is None:
            from joulelab.control.setters import find

            self._found = find(self._environ)
        return self._found


def log(state: State, outcomes: list[Released], why: str) -> None:
    """Write down what nobody was there to hear."""
    for outcome in outcomes:
        state.log(f"{why}: {outcome.said}")


def main() -> None:
    """Serve the client that the arguments name; leave by os._exit, which no stuck vendor library can hold up."""
    code = 1
    try:
        link = _private_link()
        with contextlib.suppress(OSError):  # a session of its own: the terminal's signals are not for us
            os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        Process(link, Watched(int(sys.argv[1]), int(sys.argv[2])), os.environ).run()
        code = 0
    finally:
        os._exit(code)


def _private_link() -> socket.socket:
    """Take the socket away from standard input, and close what was inherited by chance."""
    for path in list(Path("/proc/self/fd").iterdir()):
        if int(path.name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(path.name))
    link = socket.socket(fileno=os.dup(0))  # not inherited
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return link


if __name__ == "__main__":
    main()
