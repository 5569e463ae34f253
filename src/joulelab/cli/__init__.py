"""Run joulelab's command line. A command is imported when it is called, and the recorder loads meanwhile."""

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
    own = words[: words.index("--")] if "--" in words else words  # the words after it are the workload's
    measures = (
        own[:1] == ["run"]
        or own[:2] == ["workload", "run"]
        or (own[:1] == ["cap"] and own != words)
        or (own[:1] == ["tune"] and "--online" in own)
    )
    if measures:
        _die_by_signals()
    options = own[1:] if own[:1] == ["workload"] else words[1:2]
    is_early = measures and len(words) > 1 and {"-h", "--help", "--print"}.isdisjoint(options)
    early = _start_early_recorder() if is_early else []
    try:
        from joulelab.cli.group import run_commands

        sys.exit(run_commands(words, early))
    except KeyboardInterrupt:  # the code that handles it was just being loaded
        sys.exit(INTERRUPTED_CODE)
    finally:
        for recorder in early:  # not taken: the command line was wrong
            recorder.kill()
            recorder.close()


def _die_by_signals() -> None:
    """Let Ctrl-C end this process without a traceback until the supervisor takes the signals."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _start_early_recorder() -> list[ChildProcess]:
    """Start the recorder of a run before anything else is loaded, so that both load at the same time."""
    from joulelab.run.child_process import start_recorder

    try:
        return [start_recorder(os.environ, warm=True)]
    except OSError:
        return []  # the supervisor will try again, and report the reason
