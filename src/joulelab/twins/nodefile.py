"""Read a description of one's own node (TOML), and flaws given as text."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from joulelab.core.errors import ConfigError
from joulelab.twins.flaws import Flaws
from joulelab.twins.model import Cpu, Dram, Gpu, Host, Node, Supply, preset
from joulelab.twins.names import nearest
from joulelab.twins.profile import Profile, parse
from joulelab.twins.servers.powercap import PowercapFlaws

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

T = TypeVar("T")
_PARTS: Mapping[str, type] = {"cpu": Cpu, "dram": Dram, "host": Host, "supply": Supply}
_PLAIN = ("name", "packages", "psys", "spread", "seed")


@dataclass(frozen=True, slots=True)
class Description:
    """Hold what a node file says."""

    node: Node = field(default_factory=Node)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    powercap: PowercapFlaws = field(default_factory=PowercapFlaws)


def read(path: Path) -> Description:
    """Read a node file; raise ConfigError that names the wrong key and the nearest valid one."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError("cannot read the node file", where=str(path), why=error.strerror) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("not a TOML file", where=str(path), why=str(error)) from None
    where = str(path)
    _only(table, (*_PLAIN, *_PARTS, "gpu", "profiles", "powercap"), where)
    changes: dict[str, Any] = {key: table[key] for key in _PLAIN if key in table}
    for name, kind in _PARTS.items():
        if name in table:
            changes[name] = build(kind(), _table(table[name], f"{where} [{name}]"), f"{where} [{name}]")
    if "gpu" in table:
        changes["gpus"] = tuple(_gpus(table["gpu"], where))
    node = build(Node(), changes, where)
    profiles = _table(table.get("profiles", {}), f"{where} [profiles]")
    return Description(
        node,
        {leaf: parse(_text(value, f"{where} [profiles] {leaf}")) for leaf, value in profiles.items()},
        build(PowercapFlaws(), _table(table.get("powercap", {}), f"{where} [powercap]"), f"{where} [powercap]"),
    )


def _gpus(entries: Any, where: str) -> Iterable[Gpu]:
    if not isinstance(entries, list):
        raise ConfigError("GPUs are given as [[gpu]]", where=where)
    for number, entry in enumerate(entries):
        here = f"{where} [[gpu]] {number}"
        options = dict(_table(entry, here))
        _only(options, ("model", "count", *Gpu.__dataclass_fields__), here)
        model, count = options.pop("model", "h100"), options.pop("count", 1)
        if type(count) is not int or count < 0:
            raise ConfigError(f"count is {count!r}, not a whole number", where=here)
        base = preset(_text(model, here))
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


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} is not a text", where=where)
    return value
