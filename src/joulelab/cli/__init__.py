"""Run joulelab's command line. What it needs is imported when it is known, and the recorder loads meanwhile."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from joulelab.run.child_process import ChildProcess


INTERRUPTED_CODE = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    words = sys.argv[1:] if argv is None else list(argv)
    own = words[: words.index("--")] if "--" in words else words  # what comes after is the workload's
    measures = (
        own[:1] == ["run"]
        or own[:2] == ["workload", "run"]
        or (own[:1] == ["cap"] and own != words)
        or (own[:1] == ["tune"] and "--online" in own)
    )
    if measures:
        _die_by_signals()
    asked = own[1:] if own[:1] == ["workload"] else words[1:2]
    early = _recorder() if measures and len(words) > 1 and {"-h", "--help", "--print"}.isdisjoint(asked) else []
    try:
        from joulelab.cli.group import run_commands

        sys.exit(run_commands(words, early))
    except KeyboardInterrupt:  # what takes it, and says so, was just being loaded
        sys.exit(INTERRUPTED_CODE)
    finally:
        for spawned in early:  # nobody took it: the command line was wrong
            _end(spawned)


def _die_by_signals() -> None:
    """Let Ctrl-C end us like any program, without a traceback, until the supervisor takes the signals."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _recorder() -> list[ChildProcess]:
    """Start the recorder of a run before anything else is loaded: then both load at once."""
    from joulelab.run.child_process import ChildProcess

    try:
        return [ChildProcess(os.environ, warm=True)]
    except OSError:
        return []  # the supervisor will try again, and say why


def _end(spawned: ChildProcess) -> None:
    import contextlib
    import signal

    with contextlib.suppress(OSError):  # where our parent ignored SIGCHLD, it is gone without being waited for
        os.kill(spawned.pid, signal.SIGKILL)
        os.waitpid(spawned.pid, 0)
    os.close(spawned.commands)
    os.close(spawned.said)
