"""Serve a simulated node: `joulelab twin`."""

from __future__ import annotations

import importlib
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
from typing import TYPE_CHECKING, Any, Self

import click

from joulelab.cli.parameters import add_json_option, format_examples
from joulelab.core.errors import ConfigError, JoulelabError, MissingDependency

if TYPE_CHECKING:
    from types import FrameType

    from joulelab.twin.nodefile import Description
    from joulelab.twin.replay import Replay
    from joulelab.twin.twin_server import TwinServer


class _Failure(click.ClickException):
    """Show what, where, why and next, and exit as a usage error does."""

    exit_code = 2


def _described(
    gpus: int | None, model: str | None, profiles: tuple[str, ...], flaws: tuple[str, ...], node: str | None
) -> Description:
    from joulelab.twin import nodefile, profile
    from joulelab.twin.model import preset
    from joulelab.twin.node_commands import described

    found = described(node) if node else nodefile.Description()
    changed = found.node
    if gpus is not None or model is not None:
        known = changed.gpus or (preset("h100"),)
        count = len(known) if gpus is None else gpus
        one = preset(model) if model else None
        changed = replace(changed, gpus=tuple(one or known[i % len(known)] for i in range(count)))
    loads = dict(found.profiles)
    for text in profiles:
        named = re.match(r"([a-z]+(?::\d+)?)=", text)
        loads[named[1] if named else "gpu"] = profile.parse(text[named.end() :] if named else text)
    return replace(found, node=nodefile.with_flaws(changed, flaws), profiles=loads)


def _node(words: tuple[str, ...], given: str | None) -> tuple[tuple[str, ...], str | None]:
    """Take a node off the words: return what is left of them, and its name or file. Raises ConfigError."""
    from joulelab.twin.node_commands import COUNTED, is_own

    first = words[0] if words else ""
    if not (COUNTED.fullmatch(first) or first.endswith(".toml") or (given is None and first and is_own(first))):
        return words, given
    if given is not None:
        raise _Failure(f"twin: the node is given twice; drop {first} or --node")
    return words[1:], first


def _wall(everything: bool, some: str | None, texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the node-level meters to serve, each with its flaws. Raises ConfigError with the nearest name."""
    from joulelab.core.text import suggest_name
    from joulelab.twin import wall

    known = wall.names()
    chosen = known if everything else []
    if some is not None:
        chosen = [name.strip() for name in some.split(",") if name.strip()]
    flaws: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for text in texts:
        name, key, value = _flaw(text)
        if name not in known:
            raise ConfigError(f"there is no server {name!r}", where="twin", next=suggest_name(name, known))
        flaws.setdefault(name, {})[key] = _converted(name, key, value, text)
    return flaws


def _flaw(text: str) -> tuple[str, str, str]:
    target, equals, value = text.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and name and key and value):
        raise ConfigError("not SERVER.KEY=VALUE", where=f"flaw {text!r}", next="write it as pdu.period_s=60")
    return name, key, value


def _converted(name: str, key: str, value: str, text: str) -> Any:
    """Return a flaw's value of the kind that its server takes. Raises ConfigError."""
    from joulelab.twin.nodefile import change_flaw

    try:
        base = importlib.import_module(f"joulelab.twin.servers.{name}").FLAWS
    except ImportError as error:
        raise MissingDependency(f"the server {name} cannot be loaded", why=str(error)) from error
    wanted = None if value == "none" else value
    if value.startswith("["):
        wanted = json.loads(value)
    return getattr(change_flaw(base, key, wanted, f"flaw {text!r}"), key)


def _without(server: TwinServer) -> dict[str, str]:
    """Return what could not be served, and why."""
    missing = {"nvml": str(server.missing)} if server.missing else {}
    return missing | {name: str(error) for name, error in (server.wall.missing if server.wall else {}).items()}


def _announce(server: TwinServer, as_json: bool) -> None:
    running = {} if server.wall is None else server.wall.servers
    if as_json:
        facts = {
            "directory": str(server.directory),
            "environment": server.environment,
            "pid": os.getpid(),
            "missing": str(server.missing) if server.missing else None,
            "not_served": _without(server),
            "entries": {name: entry for one in running.values() for name, entry in one.served.entries.items()},
            "ports": {name: dict(one.served.ports) for name, one in running.items()},
        }
        click.echo(json.dumps(facts))
        return
    names = [gpu.name for gpu in server.truth.node.gpus]
    groups = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    packages = server.truth.node.packages
    click.echo(f"# a simulated node: {groups}; {packages} CPU packages (pid {os.getpid()}, Ctrl-C ends it)")
    for name, why in _without(server).items():
        click.echo(f"# without {name}: {why}", err=True)
    for name, one in running.items():
        entries = ", ".join(f"{entry} ({given.get('meter')})" for entry, given in one.served.entries.items())
        if entries:
            click.echo(f"# {name}: {entries}")
    for key, value in server.environment.items():
        click.echo(f"export {key}={shlex.quote(value)}")


class _Signals:
    """Note signals that end the twin, and pass those on that a command would not get from the terminal."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._number = 0

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._found = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._found.items():
            signal.signal(number, handler)

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to a command, also one that came while it was started."""
        self._child = child
        self._pass_on()

    def _note(self, number: int, _: FrameType | None) -> None:
        self._number = number
        self.ended.set()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._child is not None and self._number not in (0, signal.SIGINT):
            self._child.send_signal(self._number)


def _run(server: TwinServer | Replay, words: tuple[str, ...], signals: _Signals) -> int:
    """Run a command that sees the twin; return its exit code as a shell would."""
    try:
        child = subprocess.Popen(words, env=os.environ | server.environment)
    except OSError as error:
        click.echo(f"joulelab: twin: cannot run {words[0]!r} ({error.strerror}); check the words after `--`", err=True)
        return 127 if isinstance(error, FileNotFoundError) else 126
    signals.follow(child)
    code = child.wait()
    if server.driver is not None and server.driver.error is not None:
        click.echo(f"joulelab: twin: it stopped following the load ({server.driver.error})", err=True)
    return code if code >= 0 else 128 - code


def _wait(server: TwinServer | Replay, seconds: float | None, signals: _Signals) -> None:
    """Serve until a signal, the end of the time, or a failure of what moves the twin."""
    end = None if seconds is None else time.monotonic() + seconds
    while not signals.ended.wait(0.5 if end is None else max(min(0.5, end - time.monotonic()), 0.0)):
        if server.driver is not None and server.driver.error is not None:
            raise server.driver.error
        if end is not None and time.monotonic() >= end:
            return


EXAMPLES = format_examples(
    "joulelab twin --list", "joulelab twin -- joulelab meters", "joulelab twin bnl-h100 -- nvidia-smi"
)


@click.command("twin", epilog=EXAMPLES, context_settings={"ignore_unknown_options": False})
@click.option("--gpus", type=click.IntRange(0, 64), metavar="N", help="Number of GPUs.  [default: 8]")
@click.option(
    "--gpu-model", metavar="NAME", help="Model of the GPUs: h100, a100, v100, rtx6000, rtx3090.  [default: h100]"
)
@click.option("--load", is_flag=True, help="Follow the CPU load of this machine; the default without --profile.")
@click.option("--idle", is_flag=True, help="Stay idle, for simulated jobs: python -m joulelab.twin.job.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="SPEC",
    help="Script the load: [LEAF=]KIND:key=value,... such as gpu:0=square:period_s=0.35,duty=0.3 "
    "or ramp:over_s=10,low=100,high=600,unit=W.",
)
@click.option(
    "--flaw",
    "flaws",
    multiple=True,
    metavar="KEY=VALUE",
    help="Give the meters of the GPUs a flaw; gpu:2.KEY=VALUE for one GPU; repeatable.",
)
@click.option(
    "--wall", "everything", is_flag=True, help="Also serve all other meters of the node: BMC, PDU, analyzer ..."
)
@click.option(
    "--serve",
    "some",
    metavar="NAME,...",
    help="Serve only these: analyzer, bmc, modbus, pdu, plug, prometheus, redfish.",
)
@click.option(
    "--wall-flaw",
    "wall_flaws",
    multiple=True,
    metavar="NAME.KEY=VALUE",
    help="Give one of these meters a flaw: pdu.period_s=60; repeatable.",
)
@click.option("--node", metavar="NODE", help="The same as NODE.")
@click.option("--list", "listing", is_flag=True, help="List the nodes that come with joulelab.")
@click.option("--show", metavar="NODE", help="Show parameters, sources, workloads and meters of a node.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Serve a captured device instead (joulelab doctor --capture).",
)
@click.option("--for", "seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop after this time.")
@add_json_option("Print one JSON object.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[NODE] [-- CMD...]")
@click.pass_context
def command(
    context: click.Context,
    /,
    seconds: float | None,
    as_json: bool,
    words: tuple[str, ...],
    listing: bool,
    show: str | None,
    replay: Path | None,
    **given: Any,
) -> None:
    """Simulate a node whose GPUs and CPUs other tools can read.

    NODE is a name of --list, a file (node.toml), or a number and model of GPUs (8xh100); then all meters of the node
    are served.

    Without CMD it prints the variables to export and serves until Ctrl-C; with CMD it runs this command on the
    simulated node and returns its exit code.
    """
    try:
        if listing or show is not None:
            _tell(show, as_json)
            return
        if replay is not None:
            context.exit(_replay(replay, words, seconds, as_json))
        rest, given["node"] = _node(words, given["node"])
        given["everything"] = given["everything"] or (rest != words and given["some"] is None)
        if sum(map(bool, (given["load"], given["idle"], given["profiles"]))) > 1:
            raise _Failure("twin: --load, --idle and --profile exclude each other; keep one of them")
        if rest and seconds is not None:
            raise _Failure("twin: --for and a command exclude each other; the twin ends with its command")
        with _Signals() as signals, _server(**given) as server:
            if as_json or not rest:
                _announce(server, as_json)
            else:
                for name, why in _without(server).items():
                    click.echo(f"twin: without {name}: {why}", err=True)
            if rest:
                context.exit(_run(server, rest, signals))
            _wait(server, seconds, signals)
    except JoulelabError as error:
        raise _Failure(str(error)) from error


def _replay(path: Path, words: tuple[str, ...], seconds: float | None, as_json: bool) -> int:
    """Serve a capture for a command, or until a signal; return the exit code. Raises ConfigError, MissingDependency."""
    from joulelab.twin.replay import Replay

    with _Signals() as signals, Replay(path) as device:
        if words:
            return _run(device, words, signals)
        if as_json:
            click.echo(json.dumps({"environment": device.environment, "entry": device.entry, "pid": os.getpid()}))
        else:
            about = device.capture.about
            captured = " ".join(filter(None, (about.get("device"), "as captured", about.get("date"))))
            click.echo(f"# {device.capture.family}: {captured} (pid {os.getpid()}, Ctrl-C ends it)")
            click.echo(f"# read it: joulelab doctor {device.capture.meter_name}")
            for key, value in device.environment.items():
                click.echo(f"export {key}={shlex.quote(value)}")
        _wait(device, seconds, signals)
    return 0


def _tell(name: str | None, as_json: bool) -> None:
    """List the nodes there are, or show one. Raises ConfigError."""
    from joulelab.twin import node_commands as twin_nodes

    if name is None:
        rows = twin_nodes.listed()
        click.echo(json.dumps(rows)) if as_json else twin_nodes.print_list(rows)
        return
    found = twin_nodes.described(name)
    click.echo(json.dumps(twin_nodes.as_data(name, found))) if as_json else twin_nodes.print_node(name, found)


def _server(
    *,
    gpus: int | None,
    gpu_model: str | None,
    load: bool,
    idle: bool,
    profiles: tuple[str, ...],
    flaws: tuple[str, ...],
    everything: bool,
    some: str | None,
    wall_flaws: tuple[str, ...],
    node: str | None,
) -> TwinServer:
    """Return the twin that the options describe. Raises ConfigError."""
    from joulelab.twin.twin_server import TwinServer

    found = _described(gpus, gpu_model, profiles, flaws, node)
    scripted = {} if load or idle else found.profiles
    return TwinServer(
        found.node,
        profiles=scripted,
        follow=not (scripted or idle),
        powercap=found.powercap,
        workloads=found.workloads,
        wall=_wall(everything, some, wall_flaws),
    )
