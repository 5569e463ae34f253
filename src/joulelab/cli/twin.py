"""Serve a simulated node: `joulelab twin`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from joulelab.core.errors import JoulelabError

if TYPE_CHECKING:
    from types import FrameType

    from joulelab.twins.nodefile import Description
    from joulelab.twins.serve import TwinServer


class _Failure(click.ClickException):
    """Show what, where, why and next, and exit as a usage error does."""

    exit_code = 2


def _described(
    gpus: int | None, model: str | None, profiles: tuple[str, ...], flaws: tuple[str, ...], file: Path | None
) -> Description:
    from joulelab.twins import nodefile, profile
    from joulelab.twins.model import preset

    found = nodefile.read(file) if file else nodefile.Description()
    node = found.node
    if gpus is not None or model is not None:
        known = node.gpus or (preset("h100"),)
        count = len(known) if gpus is None else gpus
        one = preset(model) if model else None
        node = replace(node, gpus=tuple(one or known[i % len(known)] for i in range(count)))
    loads = dict(found.profiles)
    for text in profiles:
        named = re.match(r"([a-z]+(?::\d+)?)=", text)
        loads[named[1] if named else "gpu"] = profile.parse(text[named.end() :] if named else text)
    return nodefile.Description(nodefile.with_flaws(node, flaws), loads, found.powercap)


def _announce(server: TwinServer, as_json: bool) -> None:
    if as_json:
        missing = str(server.missing) if server.missing else None
        facts = {
            "directory": str(server.directory),
            "environment": server.environment,
            "pid": os.getpid(),
            "missing": missing,
        }
        click.echo(json.dumps(facts))
        return
    names = [gpu.name for gpu in server.truth.node.gpus]
    groups = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    packages = server.truth.node.packages
    click.echo(f"# a simulated node: {groups}; {packages} CPU packages (pid {os.getpid()}, Ctrl-C ends it)")
    if server.missing:
        click.echo(f"# without NVML: {server.missing}", err=True)
    for key, value in server.environment.items():
        click.echo(f"export {key}={shlex.quote(value)}")


class _Signals:
    """Note signals that end the twin, and pass those on that a command would not get from the terminal."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._found = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._found.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.ended.set()
        if self.child is not None and number != signal.SIGINT:
            self.child.send_signal(number)


def _run(server: TwinServer, words: tuple[str, ...], signals: _Signals) -> int:
    """Run a command that sees the twin; return its exit code as a shell would."""
    try:
        signals.child = subprocess.Popen(words, env=os.environ | server.environment)
    except OSError as error:
        click.echo(f"joulelab: twin: cannot run {words[0]!r} ({error.strerror}); check the words after `--`", err=True)
        return 127 if isinstance(error, FileNotFoundError) else 126
    code = signals.child.wait()
    if server.driver is not None and server.driver.error is not None:
        click.echo(f"joulelab: twin: it stopped following the load ({server.driver.error})", err=True)
    return code if code >= 0 else 128 - code


def _wait(server: TwinServer, seconds: float | None, signals: _Signals) -> None:
    """Serve until a signal, the end of the time, or a failure of what moves the twin."""
    end = None if seconds is None else time.monotonic() + seconds
    while not signals.ended.wait(0.5 if end is None else max(min(0.5, end - time.monotonic()), 0.0)):
        if server.driver is not None and server.driver.error is not None:
            raise server.driver.error
        if end is not None and time.monotonic() >= end:
            return


@click.command("twin", context_settings={"ignore_unknown_options": False})
@click.option("--gpus", type=click.IntRange(0, 64), help="Number of GPUs.  [default: 8]")
@click.option("--gpu-model", metavar="NAME", help="h100, a100, v100, rtx6000 or rtx3090.  [default: h100]")
@click.option("--load", is_flag=True, help="Follow this machine's CPU load. This is the default without --profile.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="SPEC",
    help="Script the load: [LEAF=]KIND:key=value,... such as gpu:0=square:period_s=0.35,duty=0.3 "
    "or ramp:over_s=10,low=100,high=600,unit=W.",
)
@click.option(
    "--flaw", "flaws", multiple=True, metavar="KEY=VALUE", help="Give the GPUs' meters a flaw; gpu:2.KEY=VALUE for one."
)
@click.option("--node", "file", type=click.Path(path_type=Path), metavar="FILE.toml", help="Describe your own node.")
@click.option("--for", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after this time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@click.pass_context
def command(
    context: click.Context,
    gpus: int | None,
    gpu_model: str | None,
    load: bool,
    profiles: tuple[str, ...],
    flaws: tuple[str, ...],
    file: Path | None,
    seconds: float | None,
    as_json: bool,
    words: tuple[str, ...],
) -> None:
    """Serve a simulated node that NVML and RAPL tools take for a real one.

    Without CMD it prints what to export and serves until Ctrl-C; with CMD it runs that with the node in sight and
    returns its exit code.
    """
    from joulelab.twins.serve import TwinServer

    if load and profiles:
        raise _Failure("twin: --load and --profile exclude each other; drop one of the two")
    if words and seconds is not None:
        raise _Failure("twin: --for and a command exclude each other; the twin ends with its command")
    try:
        described = _described(gpus, gpu_model, profiles, flaws, file)
        scripted = {} if load else described.profiles
        server = TwinServer(described.node, profiles=scripted, follow=not scripted, powercap=described.powercap)
        with _Signals() as signals, server:
            if as_json or not words:
                _announce(server, as_json)
            elif server.missing:
                click.echo(f"twin: without NVML: {server.missing}", err=True)
            if words:
                context.exit(_run(server, words, signals))
            _wait(server, seconds, signals)
    except JoulelabError as error:
        raise _Failure(str(error)) from error
