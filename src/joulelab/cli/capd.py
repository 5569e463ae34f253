"""Set caps for users without root: `joulelab capd`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import click

from joulelab.cli.parameters import add_json_option, format_examples
from joulelab.control.link import CAPD, SOCKET
from joulelab.control.policy import CONFIG, read_policy


@click.command("capd", epilog=format_examples("joulelab capd", "joulelab capd --config capd.toml --json"))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=CONFIG,
    show_default=True,
    help="File with users, groups and the caps they may set.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar=CAPD,
    default=SOCKET,
    show_default=True,
    help="Socket for clients; also set by JOULELAB_CAPD.",
)
@add_json_option("Print each event as a line of JSON.")
def command(config: Path, socket: Path, as_json: bool) -> None:
    """Set power caps for users without root, as a daemon.

    It runs as root. Only users and groups in its configuration may set caps. When a client ends, its caps are restored.
    SIGHUP reads the configuration again, SIGTERM ends the daemon.
    """
    from joulelab.control.daemon import CapDaemon

    with CapDaemon(
        socket.absolute(), lambda: read_policy(config), os.environ, _print_json_event if as_json else _print_event
    ) as daemon:
        daemon.run()


def _print_json_event(event: str, facts: dict[str, Any]) -> None:
    _print_line(json.dumps({"event": event, **facts}))


def _print_event(event: str, facts: dict[str, Any]) -> None:
    _print_line(f"{event}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))


def _print_line(text: str) -> None:
    # The reader of the log may be gone, or hang: the line is lost then, and nobody waits.
    with contextlib.suppress(OSError, ValueError):
        if _is_writable(sys.stdout.fileno()):
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))
