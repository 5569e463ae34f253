"""Choose, list and show the nodes that `joulelab twin` serves: joulelab's own, one's own files, numbers of GPUs."""

from __future__ import annotations

import difflib
import re
import shutil
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
import msgspec

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulelab.twin.nodefile import Description
    from joulelab.twin.workload_progress import Model

COUNTED = re.compile(r"(\d{1,2})x([A-Za-z]\w*)")
# What of a GPU is physical; the rest is what NVML tells of it.
GPU = (
    "idle_w", "active_w", "max_w", "min_cap_w", "default_cap_w", "max_cap_w", "slowdown", "cold", "warm_up_s",
    "idle_c", "max_c",
)  # fmt: skip
PARTS = ("cpu", "dram", "host", "cooling", "supply")
UNITS = {"w": "W", "s": "s", "c": "°C"}
_WIDTH = 118
_PART = 3  # letters from which on a part of a name is taken for it


def described(name: str) -> Description:
    """Return a node by its name, its file or as `8xh100`. Raises ConfigError with the nearest name."""
    from joulelab.twin import nodefile
    from joulelab.twin.model import Node, preset

    counted = COUNTED.fullmatch(name)
    if counted is None:
        return nodefile.find(name)
    return nodefile.Description(Node(name=name, gpus=(preset(counted[2].lower()),) * int(counted[1])))


def is_own(word: str) -> bool:
    """Return whether a word names one of joulelab's own nodes. Raises ConfigError if it nearly does."""
    from joulelab.core.text import suggest_name
    from joulelab.twin import nodefile

    names = nodefile.own_names()
    if word in names:
        return True
    part = len(word) >= _PART and any(word in name for name in names)
    near = "/" not in word and (part or difflib.get_close_matches(word, names, n=1, cutoff=0.6))
    if near and shutil.which(word) is None:
        raise ConfigError(f"there is no node {word!r}, and no command", where="twin", next=suggest_name(word, names))
    return False


def listed() -> list[dict[str, Any]]:
    """Return what there is to say of each of joulelab's own nodes in a line; one that is broken hides no others."""
    from joulelab.twin import nodefile

    rows = []
    for name in nodefile.own_names():
        try:
            found = nodefile.find(name)
            rows.append({"node": name, "title": found.title, "workloads": list(found.workloads)})
        except ConfigError as error:
            rows.append({"node": name, "title": str(error), "workloads": []})
    return rows


def print_list(rows: list[dict[str, Any]]) -> None:
    """Print joulelab's own nodes, and what else there is."""
    wide = max((len(row["node"]) for row in rows), default=0)
    for row in rows:
        click.echo(f"{row['node']:{wide}}  {row['title']}")
    click.echo(
        "# or 8xh100, 4xa100, ... or a file of your own: node.toml; joulelab twin --show NODE tells what is in it"
    )


def parameters(found: Description) -> dict[str, Any]:
    """Return the physical parameters of a node by name; those of GPUs of several kinds by their numbers."""
    node = found.node
    kinds = [gpu for k, gpu in enumerate(node.gpus) if gpu not in node.gpus[:k]]
    told: dict[str, Any] = {}
    for gpu in kinds:
        numbers = [k for k, each in enumerate(node.gpus) if each == gpu]
        key = "gpu" if len(kinds) == 1 else "gpu:" + ",".join(map(str, numbers))
        told |= {f"{key}.model": gpu.name, f"{key}.count": len(numbers)}
        told |= {f"{key}.{name}": getattr(gpu, name) for name in GPU}
    told["packages"] = node.packages
    for part in PARTS:
        one = getattr(node, part)
        told |= {f"{part}.{each.name}": getattr(one, each.name) for each in fields(one)}
    return told | {"spread": node.spread, "seed": node.seed}


def as_data(name: str, found: Description) -> dict[str, Any]:
    """Return all of a node as plain data."""
    told = {
        "node": name, "title": found.title, "calibrated": found.calibrated, "sources": found.sources,
        "parameters": parameters(found), "workloads": found.workloads, "meters": found.meters,
    }  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(told)
    return plain


def print_node(name: str, found: Description) -> None:
    """Print a node: its parameters with their sources, what it was calibrated on, its workloads and meters."""
    click.echo(f"{name}: {found.title}" if found.title else name)
    click.echo("\nParameters")
    values, sources = parameters(found), dict(found.sources)
    shown = {key: _shown(key, value) for key, value in values.items()}
    wide, wider = max(map(len, shown)), 12
    for key, value in shown.items():
        plain = re.sub(r"^gpu:[\d,]+", "gpu", key)
        _row(f"  {key:{wide}}  {value:{wider}}  ", found.sources.get(key, found.sources.get(plain, "")))
        sources = {other: text for other, text in sources.items() if other not in (key, plain)}
    click.echo("\nCalibrated on")
    for text in found.calibrated or ("nothing: data sheets and assumptions",):
        click.echo(f"  {text}")
    if found.workloads:
        click.echo("\nWorkloads")
    for each, model in found.workloads.items():
        _row(f"  {each}: ", _stages(model))
    if found.meters:
        click.echo("\nMeters")
    for line in _meters(found):
        click.echo(f"  {line}")
    if sources:
        click.echo("\nOther sources")
    for key, text in sources.items():
        _row(f"  {key}: ", text)
    _next(name, found)


def _row(head: str, text: str) -> None:
    """Print a text beside its head, wrapped."""
    indent = " " * min(len(head), 38)
    click.echo("\n".join(textwrap.wrap(head + text, _WIDTH, subsequent_indent=indent, drop_whitespace=True)).rstrip())


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "-"
    unit = UNITS.get(key.rpartition("_")[2], "") if "_" in key else ""
    values = value if isinstance(value, tuple) else (value,)
    text = " ".join(f"{each:g}" if isinstance(each, float | int) else str(each) for each in values)
    return f"{text} {unit}".rstrip()


def _stages(model: Model) -> str:
    """Return the stages of a workload in order, those of an epoch in brackets, and its parameters."""
    parts: list[str] = []
    before = "run"
    for stage in model.stages:
        name = (stage.name or "(no phase)") + (f" on {stage.on}" if stage.on else "")
        if stage.each != before:
            name = f"[{name}" if stage.each == "epoch" else name
            parts[-1:] = [f"{parts[-1]}]"] if before == "epoch" else parts[-1:]
        parts.append(name)
        before = stage.each
    text = ", ".join(parts) + ("]" if before == "epoch" else "")
    given = ", ".join(f"{key}={value:g}" for key, value in model.parameters.items())
    scatter = f"scatter {model.time_scatter:.1%} of the time, {model.power_scatter:.1%} of the power"
    return "; ".join(filter(None, [text, given, scatter]))


def _meters(found: Description) -> Iterator[str]:
    from joulelab.twin.panel import PanelFlaws

    for name, meter in found.meters.items():
        flaws = meter.flaws
        window = f"means of {flaws.window_s:g} s" if flaws.window_s else "points"
        told = f"{window} each {flaws.period_s:g} s" if flaws.period_s else window
        gain = f", gains differ by {meter.gain_sd:.2%}" if meter.gain_sd else ""
        own = meter.family == "nvml" or flaws == PanelFlaws()  # what a GPU's own meter gets wrong stands with the GPU
        what = "with the flaws of its kind" if own else f"shows {told} in steps of {flaws.quantum_w:g} W"
        yield f"{name}: {meter.family} at {meter.point}, asked each {meter.ask_s:g} s, {what}{gain}"


def _next(name: str, found: Description) -> None:
    click.echo("\nNext")
    click.echo(f"  joulelab twin {name} -- joulelab run -- sleep 10")
    if found.workloads:
        job = f"python -m joulelab.twin.job --workload {next(iter(found.workloads))} --scale 0.01"
        click.echo(f"  joulelab twin {name} --idle -- joulelab run -- {job}")
