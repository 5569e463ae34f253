"""Read the description of a node (TOML): one of joulelab's own by name, or a user's file; and flaws given as text.

Numbers of a node have to be finite, not too large, and negative only where that has a meaning.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import Mistakes, convert_value, describe_keys, parse_toml, read_table
from joulelab.run.config.config_files import read_toml
from joulelab.study.program import find_program
from joulelab.twin import power_curves
from joulelab.twin.flaws import Flaws, MountedMeter
from joulelab.twin.model import Cooling, Cpu, Dram, Gpu, Host, Node, Supply, find_gpu_model
from joulelab.twin.profile import Profile, parse_profile
from joulelab.twin.servers.powercap import PowercapFlaws
from joulelab.twin.workload_progress import MOST, MOST_S, WorkloadModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.resources.abc import Traversable

    from joulelab.core.toml_reading import Place

T = TypeVar("T")
MOST_W: Final = 1e6
MOST_GPUS: Final = 64
_LIMITS: Final = {
    "packages": 64.0,
    "slowdown": 100.0,
    "spread": 1.0,
    "flutter": 1.0,
    "gain_sd": 1.0,
    "time_scatter": 1.0,
    "power_scatter": 1.0,
}
_ABOVE_ZERO: Final = ("ask_s", "rated_w", "flutter_s", "warm_up_s", "packages")
_SIGNED: Final = ("gain_error", "offset_w", "seed")
_ENDLESS: Final = "_for_s"  # a flaw that lasts for ever
_ABOUT = ("title", "calibrated", "chosen", "sources")
# Tables of a node file beside those of the node itself.
_BESIDE = ("gpu", "profiles", "powercap", "workloads", "meters", *_ABOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """Declare the tables of a node file; missing ones have the defaults of `Node`."""

    name: str | None = None
    packages: int | None = None
    psys: bool | None = None
    rated_w: float | None = None
    spread: float | None = None
    seed: int | None = None
    title: str = ""
    calibrated: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    cpu: Cpu | None = None
    dram: Dram | None = None
    host: Host | None = None
    cooling: Cooling | None = None
    supply: Supply | None = None
    gpu: list[dict[str, Any]] | None = None
    profiles: dict[str, str] = field(default_factory=dict)
    powercap: PowercapFlaws = field(default_factory=PowercapFlaws)
    workloads: dict[str, WorkloadModel] = field(default_factory=dict)
    meters: dict[str, MountedMeter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Description:
    """Hold the content of a node file: the node, its loads, models of workloads, and the meters mounted on it.

    `calibrated` are the published figures that numbers were fitted to, `chosen` those that assumed numbers were chosen
    knowing (the numbers decide them), both by id; `sources` names the origin of numbers.
    """

    node: Node = field(default_factory=Node)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    powercap: PowercapFlaws = field(default_factory=PowercapFlaws)
    workloads: Mapping[str, WorkloadModel] = field(default_factory=dict)
    meters: Mapping[str, MountedMeter] = field(default_factory=dict)
    title: str = ""
    calibrated: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


def list_own_nodes() -> list[str]:
    """Return the nodes that come with joulelab."""
    return sorted(entry.name[:-5] for entry in _find_folder().iterdir() if entry.name.endswith(".toml"))


def find_node(name: str) -> Description:
    """Return one of joulelab's own nodes by its name, or that of a file (`mine.toml`). Raises ConfigError."""
    if name.endswith(".toml"):
        return _describe(*read_toml(Path(name), "node file"), name)
    if name not in list_own_nodes():
        raise ConfigError(f"there is no node {name!r}", where="twin", next=suggest_name(name, list_own_nodes()))
    return parse_node((_find_folder() / f"{name}.toml").read_text("utf-8"), f"node {name}")


def _find_folder() -> Traversable:
    return resources.files("joulelab.twin") / "nodes"


def parse_node(text: str, where: str, changes: Mapping[str, Any] | None = None) -> Description:
    """Read the text of a node file, with some of its tables changed first. Raises ConfigError with all mistakes."""
    _, table = parse_toml(text.encode(), where)
    return _describe("" if changes else text, merge_tables(table, changes or {}), where)  # a change has no line


def _describe(text: str, table: Mapping[str, Any], where: str) -> Description:
    mistakes = Mistakes(where, text, NodeFile)
    for place, wrong in find_wrong_numbers(table):
        mistakes.add(place, wrong, code="config.wrong-value")
    workloads = table.get("workloads")
    if isinstance(workloads, dict):
        right = {name: one for name, one in workloads.items() if _check_stages(name, one, mistakes)}
        table = {**table, "workloads": {name: fill_stages(name, one, mistakes) for name, one in right.items()}}
    found = read_table(NodeFile, table, mistakes) or NodeFile()
    given = {one.name: getattr(found, one.name) for one in dataclasses.fields(NodeFile) if one.name not in _BESIDE}
    node = Node(**{key: value for key, value in given.items() if value is not None})
    if found.gpu is not None:
        node = dataclasses.replace(node, gpus=_read_gpus(found.gpu, mistakes))
    for name, meter in found.meters.items():
        _check_meter(meter, node, mistakes, ("meters", name))
    profiles = {}
    for leaf, words in found.profiles.items():
        try:
            profiles[leaf] = parse_profile(words)
        except ConfigError as error:
            mistakes.add_error(("profiles", leaf), error)
    mistakes.check()
    same = {key: getattr(found, key) for key in ("powercap", "workloads", "meters", *_ABOUT)}
    return Description(node, profiles, **same)


def find_wrong_numbers(table: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the place of every wrong number of a node file, and the reason."""
    for place, number in _find_numbers({name: part for name, part in table.items() if name not in _ABOUT}, ()):
        key = next(part for part in reversed(place) if isinstance(part, str))
        wrong = _check_number(key, number, free="options" in place[:-1] or "parameters" in place[:-1])
        if wrong:
            shown = "".join(f" {part + 1}" if isinstance(part, int) else f".{part}" for part in place)
            yield place, f"{shown[1:]} is {number:g}, {wrong}"


def _find_numbers(value: Any, place: Place) -> Iterator[tuple[Place, float]]:
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_numbers(part, (*place, name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, _make_float(value)


def _make_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # whole numbers of TOML have any length
        return math.inf


def _check_number(key: str, number: float, *, free: bool) -> str:
    """Return why a number is wrong, empty where it is right."""
    if number == math.inf and key.endswith(_ENDLESS):
        return ""
    if not math.isfinite(number):
        return "not a finite number"
    most = find_limit(key)
    if abs(number) > most:
        return f"more than {most:g}{find_unit(key)}"
    if number <= 0 and key in _ABOVE_ZERO:
        return "not above 0"
    signed = free or key in _SIGNED or key.endswith(("_c", "phase_s"))
    return "negative" if number < 0 and not signed else ""


def find_limit(key: str) -> float:
    """Return the most that a number may be, by its key."""
    by_unit = {" W": MOST_W, " s": MOST_S}.get(find_unit(key), MOST)
    return _LIMITS.get(key, by_unit)


def find_unit(key: str) -> str:
    """Return the unit of a key behind a blank: s, W, or nothing."""
    return " W" if key.endswith("_w") else " s" if key.endswith("_s") or key == "seconds" else ""


def merge_tables(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some values changed, tables inside it key by key, lists of tables in each of them."""
    result = dict(table)
    for key, value in changes.items():
        there = result.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            result[key] = merge_tables(there, value)
        elif isinstance(there, list) and isinstance(value, dict):
            result[key] = [merge_tables(each, value) for each in there]
        else:
            result[key] = value
    return result


def _check_stages(name: str, workload: Any, mistakes: Mistakes) -> bool:
    """Refuse an empty list of stages, and a change of a stage that there is not: it is a table inside each of them."""
    stages = workload.get("stages") if isinstance(workload, dict) else None
    tables = [one for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []
    wrong = list(dict.fromkeys(key for one in tables for key, value in one.items() if isinstance(value, dict)))
    place = ("workloads", name, "stages")
    if stages == []:
        mistakes.add_wrong(place, stages, f"write each as a table of its own: [[workloads.{name}.stages]]")
    for key in wrong:
        names = [str(one["name"]) for one in tables if one.get("name")]
        mistakes.add(place, f"there is no stage {key!r}", next=suggest_name(key, names))
    return not wrong


def fill_stages(name: str, workload: Any, mistakes: Mistakes) -> Any:
    """Return the table of a workload, completed by its program: conditions, samples and batches of stages.

    Keys of the table take precedence. A stage that has `each` is the node's own and stays as it is; others are
    stages of the program, by `name` and `part`. A workload without a program stays as it is.
    """
    stages = workload.get("stages") if isinstance(workload, dict) else None
    found = find_program(name)
    if found is None or not isinstance(stages, list):
        return workload
    program, usual = found
    known, filled = {(stage.name, stage.part): stage.list_given() for stage in program.stages}, []
    for number, stage in enumerate(stages):
        given: Mapping[str, Any] = {}
        if isinstance(stage, dict) and "each" not in stage:
            key = (str(stage.get("name", "")), str(stage.get("part", "")))
            if key not in known:
                listed = ", ".join(" ".join(filter(None, each)) for each in known)
                then = f"its stages are {listed}; a stage of the node's own has each"
                what = f"the program of {name} has no stage {' '.join(filter(None, key))!r}"
                mistakes.add(("workloads", name, "stages", number), what, next=then, code="config.wrong-value")
            given = known.get(key, {})
        filled.append({**given, **stage} if given else stage)
    parameters = workload.get("parameters", {})
    merged_parameters = {**usual, **parameters} if isinstance(parameters, dict) else parameters
    return {"epochs": program.epochs, **workload, "parameters": merged_parameters, "stages": filled}


def _check_meter(meter: MountedMeter, node: Node, mistakes: Mistakes, place: tuple[str, str]) -> None:
    known = {*power_curves.list_points(node), *(leaf.partition(":")[0] for leaf in node.list_leaves())}
    if not meter.family:
        then = 'write family = "nvml"; joulelab meters lists them'
        mistakes.add(place, "a meter needs its family", next=then, code="config.missing-key")
    if meter.point not in known and not mistakes.has("gpu"):
        what, then = f"the node has no point {meter.point!r}", suggest_name(meter.point, sorted(known))
        mistakes.add((*place, "point"), what, next=then, code="config.wrong-value")


def _read_gpus(tables: list[dict[str, Any]], mistakes: Mistakes) -> tuple[Gpu, ...]:
    """Return the GPUs: each table has a model, a count, and changed parameters."""
    found: list[Gpu] = []
    for n, table in enumerate(tables):
        count = table.get("count", 1)
        if type(count) is not int or not 1 <= count <= MOST_GPUS:
            then = f"give a whole number from 1 to {MOST_GPUS}; gpu = [] for a node without GPUs"
            mistakes.add_wrong(("gpu", n, "count"), count, then)
            count = 1
        try:
            base = find_gpu_model(str(table.get("model", "h100")))
        except ConfigError as error:
            mistakes.add_error(("gpu", n, "model"), error)
            continue
        gpu = read_table(Gpu, table, mistakes, ("gpu", n), base=base, also=("model", "count"))
        found += [gpu or base] * count
    if len(found) > MOST_GPUS:
        mistakes.add(("gpu",), f"there are {len(found)} GPUs in all", next=f"take at most {MOST_GPUS}")
    return tuple(found)


def change_flaw(base: T, key: str, value: Any, where: str) -> T:
    """Return flaws with one of them changed; text becomes a number. Raises ConfigError."""
    kind: Any = type(base)
    if key not in describe_keys(kind):
        raise ConfigError(f"there is no key {key!r}", where=where, next=suggest_name(key, describe_keys(kind)))
    try:
        changed = convert_value(value, typing.get_type_hints(kind)[key], strict=False)
        return typing.cast("T", dataclasses.replace(typing.cast("Any", base), **{key: changed}))
    except ConfigError as error:  # of the flaws themselves, which do not know where they come from
        raise ConfigError(error.what, where=where, why=error.why, next=error.next, code=error.code) from None
    except ValueError as error:
        raise ConfigError("a value is of the wrong kind", where=where, why=str(error)) from None


def change_flaws(node: Node, texts: Iterable[str]) -> Node:
    """Return a node with flaws given as `key=value` for all GPUs or `gpu:2.key=value` for one; raise ConfigError."""
    for text in texts:
        target, _, value = text.partition("=")
        leaf, _, key = target.rpartition(".")
        where = f"flaw {text!r}"
        number = leaf.removeprefix("gpu:")
        if not value or (leaf and (not leaf.startswith("gpu:") or not number.isdecimal())):
            raise ConfigError("not key=value or gpu:N.key=value", where=where)
        wanted = None if value == "none" and key != "counter" else value
        change = getattr(change_flaw(Flaws(), key, wanted, where), key)
        node = node.with_flaws(int(number) if leaf else None, **{key: change})
    return node
