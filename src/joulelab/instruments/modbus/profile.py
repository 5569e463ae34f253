"""Load register profiles: small TOML files, shipped ones by name, the user's own by path, or registers in the entry."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.core.text import suggest_name
from joulelab.instruments.modbus.client import LONGEST
from joulelab.instruments.modbus.registers import TYPES, UNITS, Register
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = Path(__file__).parent / "profiles"
PIECES = ("outlet", "inlet")

# Every key of a profile; those that are also a register's are the default for all its registers.
KEYS = {
    "name": "what it is called in errors and streams",
    "vendor": "who makes the device",
    "model": "which devices it is for",
    "source": "where the registers are known from",
    "confirmed": "false where that is not the maker's own text",
    "feeds": "the scope that such a device covers unless the entry says otherwise (node.ac)",
    "unit_id": "the device's Modbus unit id (1)",
    "update_s": "how often the device renews its values, in s (1)",
    "gap": "how many registers in between may be read along to get two values at once (0)",
    "longest": "most registers that the device gives at once (125)",
    "stride": "registers from one outlet or inlet to the next: {outlet = 64}",
    "accuracy": "{gain, offset_w, source, reference}",
    "registers": "the values",
}
DEFAULTS = ("function", "type", "word_order", "byte_order")
_CHOICES: dict[str, tuple[object, ...]] = {
    "function": (3, 4),
    "type": tuple(TYPES),
    "word_order": ("big", "little"),
    "byte_order": ("big", "little"),
    "unit": tuple(UNITS),
    "kind": ("power", "counter", "state"),
    "each": ("", *PIECES),
}
_WHOLE = {"address": (0, 65535), "phase": (0, 3)}
_NUMBERS = ("scale", "modulus", "quantum")


@dataclass(frozen=True, slots=True)
class Profile:
    """Hold what is known of a family of devices."""

    name: str
    registers: tuple[Register, ...]
    vendor: str = ""
    model: str = ""
    source: str = ""
    confirmed: bool = True
    feeds: str = "node.ac"
    unit_id: int = 1
    update_s: float = 1.0
    gap: int = 0
    longest: int = LONGEST
    stride: Mapping[str, int] = field(default_factory=dict)
    accuracy: Accuracy = field(default_factory=Accuracy)


def shipped() -> list[str]:
    """Return the names of the profiles that come along."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def list_profiles() -> dict[str, str]:
    """Return the shipped profiles with the devices that they are for."""
    found = {name: load(name, "modbus") for name in shipped()}
    doubt = {True: "", False: " (not confirmed)"}
    return {name: f"{profile.vendor} {profile.model}{doubt[profile.confirmed]}" for name, profile in found.items()}


def load(given: str, where: str) -> Profile:
    """Return a profile by name or path. Raises ConfigError."""
    path = FOLDER / f"{given}.toml"
    if given.endswith(".toml") or "/" in given:
        path = Path(given).expanduser()
    elif given not in shipped():
        advice = f'{suggest_name(given, shipped())}; or the path of your own: profile = "./mine.toml"'
        raise ConfigError(f"there is no profile {given!r}", where=where, next=advice)
    try:
        data = tomllib.loads(read_regular(path).decode())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the profile {path} cannot be read", where=where, why=why, next="check the path") from None
    return parse({"name": path.stem} | data, f"profile {path}")


def parse(data: Mapping[str, Any], where: str) -> Profile:
    """Return the profile that plain data describes. Raises ConfigError for any wrong key or value."""
    for key in data:
        if key not in KEYS and key not in DEFAULTS:
            raise ConfigError(f"unknown key {key!r}", where=where, next=suggest_name(str(key), [*KEYS, *DEFAULTS]))
    common = {key: data[key] for key in DEFAULTS if key in data}
    rows = data.get("registers")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError("registers are missing", where=where, next="give a list of tables, [[registers]]")
    registers = tuple(_register(common | row, f"{where}, register {n}") for n, row in enumerate(rows, 1))
    _check_names(registers, where)
    plain = {k: _text(data, k, where) for k in ("name", "vendor", "model", "source", "feeds") if k in data}
    return Profile(
        **({"name": "registers of the entry"} | plain),
        registers=registers,
        confirmed=data.get("confirmed", True) is True,
        unit_id=_whole(data, "unit_id", (0, 255), 1, where),
        update_s=_number(data, "update_s", where, 1.0),
        gap=_whole(data, "gap", (0, LONGEST), 0, where),
        longest=_whole(data, "longest", (1, LONGEST), LONGEST, where),
        stride=_stride(data.get("stride", {}), where),
        accuracy=_accuracy(data.get("accuracy", {}), where),
    )


def altered(profile: Profile, changes: Mapping[str, Any], shift: int) -> Profile:
    """Return the profile with other orders for every register, and addresses shifted (off-by-one manuals)."""
    plain = {key: value for key, value in changes.items() if value is not None}
    moved = tuple(replace(r, address=r.address + shift, **plain) for r in profile.registers)
    return replace(profile, registers=moved)


def _register(row: Mapping[str, Any], where: str) -> Register:
    known = [f.name for f in fields(Register)]
    for key in row:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}", where=where, next=suggest_name(str(key), known))
    for key in ("name", "address", "unit"):
        if key not in row:
            raise ConfigError(f"{key} is missing", where=where, next="each register has name, address and unit")
    name = _text(row, "name", where)
    values: dict[str, Any] = {"name": name, "kind": {"power_w": "power", "energy_j": "counter"}.get(name, "state")}
    for key, value in row.items():
        if key in _CHOICES:
            if value not in _CHOICES[key] or isinstance(value, bool):
                choices = [str(choice) for choice in _CHOICES[key] if choice != ""]
                raise ConfigError(f"{key} is {value!r}", where=where, next=suggest_name(str(value), choices))
            values[key] = value
        elif key in _WHOLE:
            values[key] = _whole(row, key, _WHOLE[key], 0, where)
        elif key in _NUMBERS:
            values[key] = _number(row, key, where, 1.0)
        elif key == "sentinel":
            values[key] = _sentinels(value, where)
    return _checked(Register(**values), where)


def _checked(register: Register, where: str) -> Register:
    unit = UNITS[register.unit]
    if not register.name.isidentifier() or not register.name.endswith(unit.ending):
        advice = f"channel names end in their SI unit: {unit.quantity.replace(' ', '_')}{unit.ending}"
        raise ConfigError(f"name is {register.name!r} for {register.unit}", where=where, next=advice)
    fits = {"power": "W", "counter": "J"}.get(register.kind, unit.si)
    if fits != unit.si:
        raise ConfigError(f"a {register.kind} in {register.unit}", where=where, next=f"it needs a unit of {fits}")
    if register.phase and register.kind != "state":
        advice = 'set kind = "state": the whole device\'s value counts, its phases would count it again'
        if register.name not in ("power_w", "energy_j"):
            raise ConfigError(f"{register.kind} of a phase", where=where, next=advice)
        return replace(register, kind="state")
    return register


def _check_names(registers: Sequence[Register], where: str) -> None:
    seen: set[tuple[str, int, str]] = set()
    for register in registers:
        key = (register.name, register.phase, register.each)
        if key in seen:
            raise ConfigError(f"{register.name} is there twice", where=where, next="give each channel its own name")
        seen.add(key)
    if not any(r.kind in ("power", "counter") for r in registers):
        raise ConfigError("no register is a power or an energy", where=where, next="name one power_w or energy_j")


def _sentinels(value: Any, where: str) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 64 for v in listed):
        raise ConfigError(f"sentinel is {value!r}", where=where, next="give the bits as a number from 0: 0x8000")
    return tuple(listed)


def _stride(value: Any, where: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ConfigError(f"stride is {value!r}", where=where, next="give a table: stride = {outlet = 64}")
    for key in value:
        if key not in PIECES:
            raise ConfigError(
                f"unknown key {key!r}", where=f"{where}, stride", next=suggest_name(str(key), list(PIECES))
            )
    return {key: _whole(value, key, (1, 65535), 1, where) for key in value}


def _accuracy(value: Any, where: str) -> Accuracy:
    known = ("gain", "offset_w", "source", "reference")
    if not isinstance(value, dict):
        raise ConfigError(f"accuracy is {value!r}", where=where, next="give a table: accuracy = {gain = 0.01, ...}")
    for key in value:
        if key not in known:
            raise ConfigError(
                f"unknown key {key!r}", where=f"{where}, accuracy", next=suggest_name(str(key), list(known))
            )
    source = value.get("source", "assumed" if "gain" in value else "unknown")
    if source not in ("datasheet", "calibrated", "assumed", "unknown"):
        raise ConfigError(f"source is {source!r}", where=where, next="give datasheet, calibrated, assumed or unknown")
    reference = _text(value, "reference", where) if "reference" in value else "the profile states no accuracy"
    gain = _number(value, "gain", where, 0.0)
    return Accuracy(
        source, gain if source != "unknown" else 0.0, _number(value, "offset_w", where, 0.0), 0.0, "", reference
    )


def _whole(row: Mapping[str, Any], key: str, within: tuple[int, int], default: int, where: str) -> int:
    value = row.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not within[0] <= value <= within[1]:
        raise ConfigError(f"{key} is {value!r}", where=where, next=f"give a whole number, {within[0]} to {within[1]}")
    return value


def _number(row: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = row.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or (value == 0 and key in row and key in ("scale", "modulus")) or (value < 0 and key != "scale"):
        raise ConfigError(f"{key} is {value!r}", where=where, next="give a number above 0")
    return float(cast("float", value))


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}", where=where, next="give a string")
    return value
