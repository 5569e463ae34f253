"""Keep caps for users without root: `joulelab capd`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from joulelab.cli.parameters import json_option
from joulelab.control.link import CAPD, SOCKET
from joulelab.control.policy import CONFIG, read_policy


@click.command("capd")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=CONFIG,
    show_default=True,
    help="Who may cap what.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    envvar=CAPD,
    default=SOCKET,
    show_default=True,
    help="Where clients ask; also from JOULELAB_CAPD.",
)
@json_option
def command(config: Path, socket: Path, as_json: bool) -> None:
    """Set caps for the users and groups that a configuration names.

    Runs as root until SIGTERM; SIGHUP reads the configuration again. What a client has set is put back when it ends.
    """
    from joulelab.control.daemon import CapDaemon

    with CapDaemon(
        socket.absolute(), lambda: read_policy(config), os.environ, _say_json if as_json else _say
    ) as daemon:
        daemon.run()


def _say_json(event: str, facts: dict[str, Any]) -> None:
    _print(json.dumps({"event": event, **facts}))


def _say(event: str, facts: dict[str, Any]) -> None:
    _print(f"{event}: " + ", ".join(f"{key} {value}" for key, value in facts.items()))


def _print(text: str) -> None:
    # Who reads the log may be gone: that is no reason to let go of caps.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
