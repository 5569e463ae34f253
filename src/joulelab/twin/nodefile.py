"""Read the description of a node (TOML): one of joulelab's own by its name, or anybody's; and flaws given as text."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from joulelab.core.errors import ConfigError
from joulelab.twin import bounds, points
from joulelab.twin.flaws import Flaws
from joulelab.twin.model import Cooling, Cpu, Dram, Gpu, Host, Node, Supply, preset
from joulelab.twin.mounted import Mounted
from joulelab.twin.names import nearest
from joulelab.twin.panel import PanelFlaws
from joulelab.twin.profile import Profile, parse
from joulelab.twin.progress import Model, Stage
from joulelab.twin.servers.powercap import PowercapFlaws

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.resources.abc import Traversable

T = TypeVar("T")
_PARTS: Mapping[str, type] = {"cpu": Cpu, "dram": Dram, "host": Host, "cooling": Cooling, "supply": Supply}
_PLAIN = ("name", "packages", "psys", "rated_w", "spread", "seed")
_ABOUT = ("title", "calibrated", "sources")


@dataclass(frozen=True, slots=True)
class Description:
    """Hold what a node file says: the node, its loads, how workloads get on there, and the meters mounted on it.

    `calibrated` are the published figures that its numbers were fitted to, `sources` says where others are from.
    """

    node: Node = field(default_factory=Node)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    powercap: PowercapFlaws = field(default_factory=PowercapFlaws)
    workloads: Mapping[str, Model] = field(default_factory=dict)
    meters: Mapping[str, Mounted] = field(default_factory=dict)
    title: str = ""
    calibrated: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


def own_names() -> list[str]:
    """Return the nodes that come with joulelab."""
    return sorted(entry.name[:-5] for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def find(name: str) -> Description:
    """Return one of joulelab's own nodes by its name, or that of a file (`mine.toml`). Raises ConfigError."""
    if name.endswith(".toml"):
        return read(Path(name))
    if name not in own_names():
        raise ConfigError(f"there is no node {name!r}", where="twin", next=nearest(name, own_names()))
    return parsed((_folder() / f"{name}.toml").read_text("utf-8"), f"node {name}")


def _folder() -> Traversable:
    return resources.files("joulelab.twin") / "nodes"


def read(path: Path) -> Description:
    """Read a node file; raise ConfigError that names the wrong key and the nearest valid one."""
    try:
        return parsed(path.read_text(), str(path))
    except OSError as error:
        raise ConfigError("cannot read the node file", where=str(path), why=error.strerror) from None
    except UnicodeDecodeError as error:
        raise ConfigError("not a TOML file", where=str(path), why=str(error)) from None


def parsed(text: str, where: str, changes: Mapping[str, Any] | None = None) -> Description:
    """Read the text of a node file, with some of its tables changed first. Raises ConfigError."""
    try:
        table = merged(tomllib.loads(text), changes or {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("not a TOML file", where=where, why=str(error)) from None
    _only(table, (*_PLAIN, *_ABOUT, *_PARTS, "gpu", "profiles", "powercap", "workloads", "meters"), where)
    bounds.check(table, where)
    changed: dict[str, Any] = {key: table[key] for key in _PLAIN if key in table}
    for name, kind in _PARTS.items():
        if name in table:
            changed[name] = build(kind(), _table(table[name], f"{where} [{name}]"), f"{where} [{name}]")
    if "gpu" in table:
        changed["gpus"] = tuple(_gpus(table["gpu"], where))
        if len(changed["gpus"]) > bounds.MOST_GPUS:
            what = f"count is {len(changed['gpus'])} in all, more than {bounds.MOST_GPUS} GPUs"
            raise ConfigError(what, where=f"{where} [[gpu]]")
    node = build(Node(), changed, where)
    profiles = _table(table.get("profiles", {}), f"{where} [profiles]")
    return Description(
        node,
        {leaf: parse(_text(value, f"{where} [profiles] {leaf}")) for leaf, value in profiles.items()},
        build(PowercapFlaws(), _table(table.get("powercap", {}), f"{where} [powercap]"), f"{where} [powercap]"),
        {name: _model(name, entry, where) for name, entry in _table(table.get("workloads", {}), where).items()},
        {name: _meter(node, name, entry, where) for name, entry in _table(table.get("meters", {}), where).items()},
        _text(table.get("title", ""), where),
        tuple(_text(each, f"{where} calibrated") for each in _list(table.get("calibrated", []), f"{where} calibrated")),
        {key: _text(value, f"{where} [sources]") for key, value in _table(table.get("sources", {}), where).items()},
    )


def merged(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with some values changed, tables inside it key by key, lists of tables in each of them."""
    result = dict(table)
    for key, value in changes.items():
        there = result.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            result[key] = merged(there, value)
        elif isinstance(there, list) and isinstance(value, dict):
            result[key] = [merged(each, value) for each in there]
        else:
            result[key] = value
    return result


def _model(name: str, entry: Any, where: str) -> Model:
    here = f"{where} [workloads.{name}]"
    options = dict(_table(entry, here))
    stages = options.pop("stages", [])
    _only(options, ("stages", *Model.__dataclass_fields__), here)
    if not isinstance(stages, list) or not stages:
        raise ConfigError("stages are given as [[workloads.NAME.stages]]", where=here)
    _only_stages(stages, here)
    made = tuple(build(Stage(), _table(each, here), f"{here} stage {k + 1}") for k, each in enumerate(stages))
    return build(Model(stages=made, parameters={}), options, here)


def _only_stages(stages: list[Any], here: str) -> None:
    """Refuse a change of a stage that there is not: it comes as a table inside each of them. Raises ConfigError."""
    names = [str(each.get("name", "")) for each in stages if isinstance(each, dict)]
    for each in (each for each in stages if isinstance(each, dict)):
        wrong = next((key for key, value in each.items() if isinstance(value, dict)), None)
        if wrong is not None:
            then = nearest(wrong, {name for name in names if name})
            raise ConfigError(f"there is no stage {wrong!r}", where=here, next=then)


def _meter(node: Node, name: str, entry: Any, where: str) -> Mounted:
    here = f"{where} [meters.{name}]"
    options = dict(_table(entry, here))
    if "flaws" in options:
        options["flaws"] = build(PanelFlaws(), _table(options["flaws"], f"{here} flaws"), f"{here} flaws")
    made = build(Mounted(), options, here)
    if not made.family:
        raise ConfigError("a meter needs its family", where=here, next='family = "nvml"; joulelab meters lists them')
    known = {*points.names(node), *(leaf.partition(":")[0] for leaf in node.leaves())}
    if made.point not in known:
        raise ConfigError(f"the node has no point {made.point!r}", where=here, next=nearest(made.point, known))
    return made


def _gpus(entries: Any, where: str) -> Iterable[Gpu]:
    if not isinstance(entries, list):
        raise ConfigError("GPUs are given as [[gpu]]", where=where)
    for number, entry in enumerate(entries):
        here = f"{where} [[gpu]] {number}"
        options = dict(_table(entry, here))
        _only(options, ("model", "count", *Gpu.__dataclass_fields__), here)
        model, count = options.pop("model", "h100"), options.pop("count", 1)
        if type(count) is not int or not 1 <= count <= bounds.MOST_GPUS:
            what = f"count is {count!r}, not a whole number from 1 to {bounds.MOST_GPUS}"
            raise ConfigError(what, where=here, next="gpu = [] for a node without GPUs")
        try:
            base = preset(_text(model, here))
        except ConfigError as error:
            raise ConfigError(error.what, where=here, next=error.next) from None
        if "flaws" in options:
            options["flaws"] = build(base.flaws, _table(options["flaws"], f"{here} flaws"), f"{here} flaws")
        yield from [build(base, options, here)] * count


def build(base: T, changes: Mapping[str, Any], where: str, *, strict: bool = True) -> T:
    """Return a description with some fields changed, keys and types checked; text becomes numbers unless `strict`."""
    names = [f.name for f in dataclasses.fields(base)]  # type: ignore[arg-type]
    _only(changes, names, where)
    values = {name: getattr(base, name) for name in names} | dict(changes)
    try:
        return msgspec.convert(msgspec.to_builtins(values), type=type(base), strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError("a value is of the wrong kind", where=where, why=str(error)) from None
    except ConfigError as error:  # of the description itself, which knows no file
        raise ConfigError(error.what, where=where, why=error.why, next=error.next) from None


def with_flaws(node: Node, texts: Iterable[str]) -> Node:
    """Return a node with flaws given as `key=value` for all GPUs or `gpu:2.key=value` for one; raise ConfigError."""
    for text in texts:
        target, _, value = text.partition("=")
        leaf, _, key = target.rpartition(".")
        where = f"flaw {text!r}"
        number = leaf.removeprefix("gpu:")
        if not value or (leaf and (not leaf.startswith("gpu:") or not number.isdecimal())):
            raise ConfigError("not key=value or gpu:N.key=value", where=where)
        _only({key: value}, Flaws.__dataclass_fields__, where)
        change = getattr(
            build(Flaws(), {key: None if value == "none" and key != "counter" else value}, where, strict=False), key
        )
        node = node.with_flaws(int(number) if leaf else None, **{key: change})
    return node


def _only(table: Mapping[str, Any], valid: Iterable[str], where: str) -> None:
    known = list(valid)
    for key in table:
        if key not in known:
            raise ConfigError(f"there is no key {key!r}", where=where, next=nearest(key, known))


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError("a table is needed here", where=where)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{value!r} is not a list", where=where)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text", where=where)
    return value
