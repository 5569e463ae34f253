"""Run joulelab's command line. A command is imported when it is called."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


INTERRUPTED_CODE = 130


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    words = sys.argv[1:] if argv is None else list(argv)
    own = words[: words.index("--")] if "--" in words else words  # the words after it are the workload's
    if (
        own[:1] == ["run"]
        or own[:2] == ["workload", "run"]
        or (own[:1] == ["cap"] and own != words)
        or (own[:1] == ["tune"] and "--online" in own)
    ):
        _end_by_interrupt()
    try:
        from joulelab.cli.group import run_commands

        sys.exit(run_commands(words))
    except KeyboardInterrupt:  # the code that handles it was just being loaded
        sys.exit(INTERRUPTED_CODE)


def _end_by_interrupt() -> None:
    """Let Ctrl-C end this process without a traceback until the supervisor handles signals."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
