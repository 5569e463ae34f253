"""Run daemons in the foreground as children: found again by pid, stopped in the reverse order of their start."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def program(name: str) -> str | None:
    """Return where a program is, also among those of the administrator."""
    return shutil.which(name, path=PATH)


def free_ports(count: int) -> list[int]:
    """Return ports that are free now, all different, and none that the system gives to whoever asks for any port."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(range(10_000, 32_768))
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


class Daemons:
    """Hold daemons that end with this object, or with this process however it ends."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start a daemon that stays in the foreground."""
        guarded = ["setpriv", "--pdeathsig", "KILL", *words]
        with (self._logs / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": PATH, **(environment or {})},
                start_new_session=True,
            )
        self._running.append((name, process))

    def pid(self, name: str) -> int:
        """Return the process of a daemon."""
        return next(process.pid for other, process in self._running if other == name)

    def dead(self) -> list[str]:
        """Return the daemons that ended by themselves, with the end of what they said."""
        return [
            f"{name} ended with {process.returncode}: {self._tail(name)}"
            for name, process in self._running
            if process.poll() is not None
        ]

    def stop(self, names: Sequence[str] | None = None) -> None:
        """Stop daemons, those of the kind that was started last first; kill the one that does not heed it."""
        chosen = [item for item in self._running if names is None or item[0] in names]
        for kind in reversed(dict.fromkeys(name.partition("-")[0] for name, _ in chosen)):
            alike = [item for item in chosen if item[0].partition("-")[0] == kind]
            for _, process in alike:
                process.send_signal(signal.SIGTERM)
            for item in alike:
                try:
                    item[1].wait(60)
                except subprocess.TimeoutExpired:
                    item[1].kill()
                    item[1].wait()
                self._running.remove(item)

    def _tail(self, name: str) -> str:
        return (self._logs / f"{name}.out").read_text(errors="replace")[-800:]
