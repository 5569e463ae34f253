"""Serve a simulated node: `joulelab twin`."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import textwrap
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from joulelab.cli.parameters import add_json_option, format_examples
from joulelab.core.errors import ConfigError, JoulelabError, MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from joulelab.twin.nodefile import Description
    from joulelab.twin.replay import Replay
    from joulelab.twin.twin_server import TwinServer
    from joulelab.twin.workload_progress import WorkloadModel

COUNTED = re.compile(r"(\d{1,2})x([A-Za-z]\w*)")
# The physical parameters of a GPU; the others are only shown by NVML.
GPU = (
    "idle_w", "active_w", "max_w", "min_cap_w", "default_cap_w", "max_cap_w", "slowdown", "cold", "warm_up_s",
    "idle_c", "max_c",
)  # fmt: skip
PARTS = ("cpu", "dram", "host", "cooling", "supply")
UNITS = {"w": "W", "s": "s", "c": "°C"}
_WIDTH = 118
_PART = 3  # letters from which on a part of a name is taken for it


def find_node(name: str) -> Description:
    """Return a node by its name, its file or as `8xh100`. Raises ConfigError with the nearest name."""
    from joulelab.twin import nodefile
    from joulelab.twin.model import Node, find_gpu_model

    counted = COUNTED.fullmatch(name)
    if counted is None:
        return nodefile.find_node(name)
    return nodefile.Description(Node(name=name, gpus=(find_gpu_model(counted[2].lower()),) * int(counted[1])))


def is_node_name(word: str) -> bool:
    """Return whether a word names one of joulelab's own nodes. Raises ConfigError if it nearly does."""
    from joulelab.core.text import suggest_name
    from joulelab.twin import nodefile

    names = nodefile.list_own_nodes()
    if word in names:
        return True
    part = len(word) >= _PART and any(word in name for name in names)
    near = "/" not in word and (part or difflib.get_close_matches(word, names, n=1, cutoff=0.6))
    if near and shutil.which(word) is None:
        raise ConfigError(f"there is no node {word!r}, and no command", where="twin", next=suggest_name(word, names))
    return False


def list_nodes() -> list[dict[str, Any]]:
    """Return name, title and workloads of joulelab's own nodes; a broken one hides no others."""
    from joulelab.twin import nodefile

    rows = []
    for name in nodefile.list_own_nodes():
        try:
            found = nodefile.find_node(name)
            rows.append({"node": name, "title": found.title, "workloads": list(found.workloads)})
        except ConfigError as error:
            rows.append({"node": name, "title": str(error), "workloads": []})
    return rows


def print_list(rows: list[dict[str, Any]]) -> None:
    """Print joulelab's own nodes, and the other ways to name one."""
    from joulelab.cli.output import print_blocks
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

    others = "NODE may also be a number and model of GPUs (8xh100, 4xa100), or a file of your own (node.toml)."
    nodes = list_facts((row["node"], f" {row['title']}") for row in rows)
    print_blocks([nodes, BLANK_LINE, TextLine(others), TextLine("-> joulelab twin --show NODE", is_wrapped=False)])


def list_parameters(found: Description) -> dict[str, Any]:
    """Return the physical parameters of a node by name; those of GPUs of several kinds by their numbers."""
    node = found.node
    kinds = [gpu for k, gpu in enumerate(node.gpus) if gpu not in node.gpus[:k]]
    values: dict[str, Any] = {}
    for gpu in kinds:
        numbers = [k for k, each in enumerate(node.gpus) if each == gpu]
        key = "gpu" if len(kinds) == 1 else "gpu:" + ",".join(map(str, numbers))
        values |= {f"{key}.model": gpu.name, f"{key}.count": len(numbers)}
        values |= {f"{key}.{name}": getattr(gpu, name) for name in GPU}
    values["packages"] = node.packages
    for part in PARTS:
        one = getattr(node, part)
        values |= {f"{part}.{each.name}": getattr(one, each.name) for each in fields(one)}
    return values | {"spread": node.spread, "seed": node.seed}


def describe_node(name: str, found: Description) -> dict[str, Any]:
    """Return all of a node as plain data."""
    data = {
        "node": name, "title": found.title, "calibrated": found.calibrated, "chosen": found.chosen,
        "sources": found.sources, "parameters": list_parameters(found), "workloads": found.workloads,
        "meters": found.meters,
    }  # fmt: skip
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(data)
    return plain


def print_node(name: str, found: Description) -> None:
    """Print a node: its parameters with their sources, what it was calibrated on, its workloads and meters."""
    click.echo(f"{name}: {found.title}" if found.title else name)
    click.echo("\nParameters")
    values, sources = list_parameters(found), dict(found.sources)
    shown = {key: _format_value(key, value) for key, value in values.items()}
    wide, wider = max(map(len, shown)), 12
    for key, value in shown.items():
        plain = re.sub(r"^gpu:[\d,]+", "gpu", key)
        _print_row(f"  {key:{wide}}  {value:{wider}}  ", found.sources.get(key, found.sources.get(plain, "")))
        sources = {other: text for other, text in sources.items() if other not in (key, plain)}
    click.echo("\nCalibrated on")
    for text in found.calibrated or ("nothing: data sheets and assumptions",):
        click.echo(f"  {text}")
    if found.chosen:
        click.echo("\nAssumptions were chosen knowing")
    for text in found.chosen:
        click.echo(f"  {text}")
    if found.workloads:
        click.echo("\nWorkloads")
    for each, model in found.workloads.items():
        _print_row(f"  {each}: ", _word_stages(model))
    if found.meters:
        click.echo("\nMeters")
    for line in _word_meters(found):
        click.echo(f"  {line}")
    if sources:
        click.echo("\nOther sources")
    for key, text in sources.items():
        _print_row(f"  {key}: ", text)
    _print_next(name, found)


def _print_row(head: str, text: str) -> None:
    """Print a text beside its head, wrapped."""
    indent = " " * min(len(head), 38)
    click.echo("\n".join(textwrap.wrap(head + text, _WIDTH, subsequent_indent=indent, drop_whitespace=True)).rstrip())


def _format_value(key: str, value: Any) -> str:
    if value is None:
        return "-"
    unit = UNITS.get(key.rpartition("_")[2], "") if "_" in key else ""
    values = value if isinstance(value, tuple) else (value,)
    text = " ".join(f"{each:g}" if isinstance(each, float | int) else str(each) for each in values)
    return f"{text} {unit}".rstrip()


def _word_stages(model: WorkloadModel) -> str:
    """Return the stages of a workload in order, those of an epoch in brackets, and its parameters."""
    parts: list[str] = []
    before = "run"
    for stage in model.stages:
        name = (stage.name or "(no phase)") + (f": {stage.part}" if stage.part else "")
        name += f" on {stage.on}" if stage.on else ""
        if stage.each != before:
            name = f"[{name}" if stage.each == "epoch" else name
            parts[-1:] = [f"{parts[-1]}]"] if before == "epoch" else parts[-1:]
        parts.append(name)
        before = stage.each
    text = ", ".join(parts) + ("]" if before == "epoch" else "")
    given = ", ".join(f"{key}={value:g}" for key, value in model.parameters.items())
    scatter = f"scatter {model.time_scatter:.1%} of the time, {model.power_scatter:.1%} of the power"
    return "; ".join(filter(None, [text, given, scatter]))


def _word_meters(found: Description) -> Iterator[str]:
    from joulelab.twin.flaws import PanelFlaws

    for name, meter in found.meters.items():
        flaws = meter.flaws
        window = f"means of {flaws.window_s:g} s" if flaws.window_s else "points"
        updates = f"{window} each {flaws.period_s:g} s" if flaws.period_s else window
        gain = f", gains differ by {meter.gain_sd:.2%}" if meter.gain_sd else ""
        own = meter.family == "nvml" or flaws == PanelFlaws()  # what a GPU's own meter gets wrong stands with the GPU
        what = "with the flaws of its kind" if own else f"shows {updates} in steps of {flaws.quantum_w:g} W"
        yield f"{name}: {meter.family} at {meter.point}, read every {meter.ask_s:g} s, {what}{gain}"


def _print_next(name: str, found: Description) -> None:
    click.echo("\nNext")
    click.echo(f"  joulelab twin {name} -- joulelab run -- sleep 10")
    if found.workloads:
        job = f"python -m joulelab.twin.job --workload {next(iter(found.workloads))} --scale 0.01"
        click.echo(f"  joulelab twin {name} --idle -- joulelab run -- {job}")


class _CommandFailure(click.ClickException):
    """Show what, where, why and next, and exit as a usage error does."""

    exit_code = 2


def _read_description(
    gpus: int | None, model: str | None, profiles: tuple[str, ...], flaws: tuple[str, ...], node: str | None
) -> Description:
    from joulelab.twin import nodefile, profile
    from joulelab.twin.model import find_gpu_model

    found = find_node(node) if node else nodefile.Description()
    changed = found.node
    if gpus is not None or model is not None:
        known = changed.gpus or (find_gpu_model("h100"),)
        count = len(known) if gpus is None else gpus
        one = find_gpu_model(model) if model else None
        changed = replace(changed, gpus=tuple(one or known[i % len(known)] for i in range(count)))
    loads = dict(found.profiles)
    for text in profiles:
        named = re.match(r"([a-z]+(?::\d+)?)=", text)
        loads[named[1] if named else "gpu"] = profile.parse_profile(text[named.end() :] if named else text)
    return replace(found, node=nodefile.change_flaws(changed, flaws), profiles=loads)


def _split_words(words: tuple[str, ...], given: str | None) -> tuple[tuple[str, ...], str | None]:
    """Split a node off the words: return the other words, and its name or file. Raises ConfigError."""
    first = words[0] if words else ""
    if not (COUNTED.fullmatch(first) or first.endswith(".toml") or (given is None and first and is_node_name(first))):
        return words, given
    if given is not None:
        raise _CommandFailure(f"twin: the node is given twice; drop {first} or --node")
    return words[1:], first


def _choose_meters(everything: bool, some: str | None, texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the node-level meters to serve, each with its flaws. Raises ConfigError with the nearest name."""
    from joulelab.core.text import suggest_name
    from joulelab.twin import twin_server

    known = twin_server.list_servers()
    chosen = known if everything else []
    if some is not None:
        chosen = [name.strip() for name in some.split(",") if name.strip()]
    flaws: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    for text in texts:
        name, key, value = _split_flaw(text)
        if name not in known:
            raise ConfigError(f"there is no server {name!r}", where="twin", next=suggest_name(name, known))
        flaws.setdefault(name, {})[key] = _convert_flaw(name, key, value, text)
    return flaws


def _split_flaw(text: str) -> tuple[str, str, str]:
    target, equals, value = text.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and name and key and value):
        raise ConfigError("not SERVER.KEY=VALUE", where=f"flaw {text!r}", next="write it as pdu.period_s=60")
    return name, key, value


def _convert_flaw(name: str, key: str, value: str, text: str) -> Any:
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


def _read_llm_settings(found: Description, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of the language model that differ from the defaults. Raises ConfigError."""
    from joulelab.twin.llm_model import EnginePlace
    from joulelab.twin.nodefile import change_flaw
    from joulelab.twin.servers.llm import FLAWS

    settings, changed = FLAWS, {}
    for word in (word.strip() for text in texts for word in text.split(",") if word.strip()):
        key, equals, value = word.partition("=")
        if not (equals and key and value):
            raise ConfigError("not KEY=VALUE", where=f"--llm-set {word!r}", next="write it as --llm-set gpus=2")
        settings = change_flaw(settings, key, None if value == "none" else value, f"--llm-set {word!r}")
        changed[key] = getattr(settings, key)
    EnginePlace(found.node, settings.gpus)
    return changed


def _list_missing(server: TwinServer) -> dict[str, str]:
    """Return what could not be served, and why."""
    missing = {"nvml": str(server.missing)} if server.missing else {}
    return missing | {name: str(error) for name, error in (server.wall.missing if server.wall else {}).items()}


def _print_exports(server: TwinServer, as_json: bool) -> None:
    running = {} if server.wall is None else server.wall.servers
    if as_json:
        facts = {
            "directory": str(server.directory),
            "environment": server.environment,
            "pid": os.getpid(),
            "missing": str(server.missing) if server.missing else None,
            "not_served": _list_missing(server),
            "entries": {name: entry for one in running.values() for name, entry in one.served.entries.items()},
            "ports": {name: dict(one.served.ports) for name, one in running.items()},
            "llm": None if server.llm is None else dict(server.llm.served.facts),
        }
        click.echo(json.dumps(facts))
        return
    names = [gpu.name for gpu in server.truth.node.gpus]
    groups = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"
    packages = server.truth.node.packages
    click.echo(f"# a simulated node: {groups}; {packages} CPU packages (pid {os.getpid()}, Ctrl-C ends it)")
    for name, why in _list_missing(server).items():
        click.echo(f"# without {name}: {why}", err=True)
    for name, one in running.items():
        entries = ", ".join(f"{entry} ({given.get('meter')})" for entry, given in one.served.entries.items())
        if entries:
            click.echo(f"# {name}: {entries}")
    if server.llm is not None:
        url = server.llm.served.facts["url"]
        click.echo(f"# a language model: {url}/v1; the true energy of its requests: {url}/twin/truth")
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
        self._found = {number: signal.signal(number, self._note_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._found.items():
            signal.signal(number, handler)

    def follow_command(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to a command, also one that came while it was started."""
        self._child = child
        self._pass_on()

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._number = number
        self.ended.set()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._child is not None and self._number not in (0, signal.SIGINT):
            self._child.send_signal(self._number)


def _run_command(server: TwinServer | Replay, words: tuple[str, ...], signals: _Signals) -> int:
    """Run a command that sees the twin; return its exit code as a shell would."""
    try:
        child = subprocess.Popen(words, env=os.environ | server.environment)
    except OSError as error:
        click.echo(f"joulelab: twin: cannot run {words[0]!r} ({error.strerror}); check the words after `--`", err=True)
        return 127 if isinstance(error, FileNotFoundError) else 126
    signals.follow_command(child)
    code = child.wait()
    if server.driver is not None and server.driver.error is not None:
        click.echo(f"joulelab: twin: it stopped following the load ({server.driver.error})", err=True)
    return code if code >= 0 else 128 - code


def _wait_for_end(server: TwinServer | Replay, seconds: float | None, signals: _Signals) -> None:
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
@click.option("--llm", is_flag=True, help="Serve a simulated language model on the node, by OpenAI's protocol.")
@click.option(
    "--llm-set",
    "llm_settings",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Give it a parameter or a flaw: gpus=2,decode_j=0.2 or fail_share=0.1; repeatable.",
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
            _print_nodes(show, as_json)
            return
        if replay is not None:
            context.exit(_serve_replay(replay, words, seconds, as_json))
        rest, given["node"] = _split_words(words, given["node"])
        given["everything"] = given["everything"] or (rest != words and given["some"] is None)
        given["llm"] = given["llm"] or bool(given["llm_settings"])
        if sum(map(bool, (given["load"], given["idle"], given["profiles"], given["llm"]))) > 1:
            raise _CommandFailure("twin: --load, --idle, --profile and --llm exclude each other; keep one of them")
        if rest and seconds is not None:
            raise _CommandFailure("twin: --for and a command exclude each other; the twin ends with its command")
        with _Signals() as signals, _make_server(**given) as server:
            if as_json or not rest:
                _print_exports(server, as_json)
            else:
                for name, why in _list_missing(server).items():
                    click.echo(f"twin: without {name}: {why}", err=True)
                if server.llm is not None:
                    click.echo(f"twin: a language model is served at {server.llm.served.facts['url']}", err=True)
            if rest:
                context.exit(_run_command(server, rest, signals))
            _wait_for_end(server, seconds, signals)
    except JoulelabError as error:
        raise _CommandFailure(str(error)) from error


def _serve_replay(path: Path, words: tuple[str, ...], seconds: float | None, as_json: bool) -> int:
    """Serve a capture for a command, or until a signal; return the exit code. Raises ConfigError, MissingDependency."""
    from joulelab.twin.replay import Replay

    with _Signals() as signals, Replay(path) as device:
        if words:
            return _run_command(device, words, signals)
        if as_json:
            click.echo(json.dumps({"environment": device.environment, "entry": device.entry, "pid": os.getpid()}))
        else:
            about = device.capture.about
            captured = " ".join(filter(None, (about.get("device"), "as captured", about.get("date"))))
            click.echo(f"# {device.capture.family}: {captured} (pid {os.getpid()}, Ctrl-C ends it)")
            click.echo(f"# read it: joulelab doctor {device.capture.meter_name}")
            for key, value in device.environment.items():
                click.echo(f"export {key}={shlex.quote(value)}")
        _wait_for_end(device, seconds, signals)
    return 0


def _print_nodes(name: str | None, as_json: bool) -> None:
    """List the nodes there are, or show one. Raises ConfigError."""
    if name is None:
        rows = list_nodes()
        click.echo(json.dumps(rows)) if as_json else print_list(rows)
        return
    found = find_node(name)
    click.echo(json.dumps(describe_node(name, found))) if as_json else print_node(name, found)


def _make_server(
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
    llm: bool,
    llm_settings: tuple[str, ...],
    node: str | None,
) -> TwinServer:
    """Return the twin that the options describe. Raises ConfigError."""
    from joulelab.twin.twin_server import TwinServer

    found = _read_description(gpus, gpu_model, profiles, flaws, node)
    scripted = {} if load or idle or llm else found.profiles
    return TwinServer(
        found.node,
        profiles=scripted,
        follow=not (scripted or idle or llm),
        powercap=found.powercap,
        workloads=found.workloads,
        wall=_choose_meters(everything, some, wall_flaws),
        llm=_read_llm_settings(found, llm_settings) if llm else None,
    )
