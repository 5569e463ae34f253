"""Load register profiles: TOML files that are shipped, of the user by path, or registers in the entry itself."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.core.text import suggest_name
from joulelab.instruments.modbus.client import LONGEST
from joulelab.instruments.modbus.registers import TYPES, UNITS, Register
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent / "profiles"

# Key -> a range of whole numbers, a tuple of values, `float` for a number, or another type.
# Keys of a register that a profile may set for all its registers:
COMMON_RULES: dict[str, Any] = {"function": (3, 4), "type": tuple(TYPES), "word_order": ("big", "little")}
REGISTER_RULES: dict[str, Any] = COMMON_RULES | {
    "name": str,
    "address": range(65536),
    "unit": tuple(UNITS),
    "scale": float,
    "kind": ("power", "counter", "state"),
    "sentinel": int | list,
    "modulus": float,
    "quantum": float,
    "phase": range(1, 4),
    "each": ("outlet",),
}
PROFILE_RULES: dict[str, Any] = COMMON_RULES | {
    "vendor": str,
    "model": str,
    "source": str,
    "confirmed": bool,
    "feeds": str,
    "unit_id": range(256),
    "update_s": float,
    "gap": range(LONGEST + 1),
    "longest": range(1, LONGEST + 1),
    "stride": range(1, 65536),
    "accuracy": dict,
    "registers": list,
}
ACCURACY_RULES: dict[str, Any] = {
    "gain": float,
    "offset_w": float,
    "source": ("datasheet", "calibrated", "assumed", "unknown"),
    "reference": str,
}
_MAY_BE_0 = ("gain", "offset_w", "quantum")
_WORDS = {str: "a string", bool: "true or false", dict: "a table", list: "a list of tables: [{name, address, unit}]"}


@dataclass(frozen=True, slots=True)
class Profile:
    """Describe a family of devices; README.md explains the keys of its file."""

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
    stride: int = 0
    accuracy: Accuracy = field(default_factory=Accuracy)


def list_profiles() -> dict[str, str]:
    """Return the shipped profiles with the devices that they are for."""
    found = [load_profile(path.stem, "modbus") for path in sorted(FOLDER.glob("*.toml"))]
    doubt = {True: "", False: " (not confirmed)"}
    return {profile.name: f"{profile.vendor} {profile.model}{doubt[profile.confirmed]}" for profile in found}


def load_profile(given: str, where: str) -> Profile:
    """Return a profile by name or path. Raises ConfigError."""
    is_path = given.endswith(".toml") or "/" in given
    path = Path(given).expanduser() if is_path else FOLDER / f"{given}.toml"
    if not is_path and not path.exists():
        advice = f'{suggest_name(given, sorted(p.stem for p in FOLDER.glob("*.toml")))}; or profile = "./mine.toml"'
        raise ConfigError(f"there is no profile {given!r}", where=where, next=advice, code="config.unknown-profile")
    try:
        data = tomllib.loads(read_regular(path).decode())
    except (OSError, ValueError) as error:
        what, why = f"the profile {path} cannot be read", getattr(error, "strerror", None) or str(error)
        code = "config.unreadable-profile"
        raise ConfigError(what, where=where, why=why, next="check the path", code=code) from None
    return parse_profile(data, path.stem, f"profile {path}")


def parse_profile(data: Mapping[str, Any], name: str, where: str) -> Profile:
    """Return the profile that plain data describes. Raises ConfigError for any wrong key or value."""
    check_table(data, PROFILE_RULES, where)
    common = {key: data[key] for key in COMMON_RULES if key in data}
    rows = data.get("registers", [])
    registers = tuple(_parse_register(row, common, f"{where}, register {n}") for n, row in enumerate(rows, 1))
    if all(r.kind == "state" for r in registers):
        what, advice = "no register is a power or an energy", "name one power_w or energy_j"
        raise ConfigError(what, where=where, next=advice, code="config.no-power")
    (twice, _, _), count = Counter((r.name, r.phase, r.each) for r in registers).most_common(1)[0]
    if count > 1:
        advice = "give each channel its own name"
        raise ConfigError(f"{twice} is there twice", where=where, next=advice, code="config.wrong-value")
    stated = data.get("accuracy", {})
    check_table(stated, ACCURACY_RULES, f"{where}, accuracy")
    source = stated.get("source", "assumed" if "gain" in stated else "unknown")
    gain = float(stated.get("gain", 0.0)) if source != "unknown" else 0.0
    reference = stated.get("reference", "the profile states no accuracy")
    accuracy = Accuracy(source, gain, float(stated.get("offset_w", 0.0)), reference=reference)
    plain = {k: v for k, v in data.items() if k not in (*COMMON_RULES, "registers", "accuracy")}
    return Profile(name, registers, accuracy=accuracy, **plain)


def check_table(table: Mapping[str, Any], rules: Mapping[str, Any], where: str) -> None:
    """Refuse unknown keys and values that do not fit their rule. Raises ConfigError."""
    for key, value in table.items():
        if key not in rules:
            advice = suggest_name(str(key), rules)
            raise ConfigError(f"unknown key {key!r}", where=where, next=advice, code="config.unknown-key")
        rule = rules[key]
        if isinstance(rule, range):
            fits, advice = type(value) is int and value in rule, f"a whole number, {rule[0]} to {rule[-1]}"
        elif isinstance(rule, tuple):
            fits, advice = type(value) is not bool and value in rule, f"one of {', '.join(map(str, rule))}"
        elif rule is float:
            fits = type(value) in (int, float) and 0 <= value < math.inf and (value > 0 or key in _MAY_BE_0)
            advice = "a number above 0"
        else:
            fits, advice = isinstance(value, rule), _WORDS.get(rule, "a number, or a list of numbers")
        if not fits:
            raise ConfigError(f"{key} is {value!r}", where=where, next=f"give {advice}", code="config.wrong-value")


def _parse_register(row: Any, common: Mapping[str, Any], where: str) -> Register:
    if not isinstance(row, dict) or not {"name", "address", "unit"} <= set(row):
        what, advice = f"a register is {row!r}", "give each register name, address and unit"
        raise ConfigError(what, where=where, next=advice, code="config.wrong-value")
    check_table(row, REGISTER_RULES, where)
    name, unit, phase = row["name"], UNITS[row["unit"]], row.get("phase", 0)
    # A phase is a state: the whole device's value counts, and its phases would count it again.
    usual = "state" if phase else {"power_w": "power", "energy_j": "counter"}.get(name, "state")
    kind = row.get("kind", usual)
    if not name.isidentifier() or not name.endswith(unit.ending):
        what = f"name is {name!r} for {row['unit']}"
        advice = f"channel names end in their SI unit: {unit.quantity.replace(' ', '_')}{unit.ending}"
        raise ConfigError(what, where=where, next=advice, code="config.wrong-name")
    if kind != "state" and (phase or unit.si != {"power": "W", "counter": "J"}[kind]):
        what = f"a {kind} of a phase" if phase else f"a {kind} in {row['unit']}"
        advice = 'a power needs W, a counter J; of a phase set kind = "state"'
        raise ConfigError(what, where=where, next=advice, code="config.wrong-kind")
    marks = row.get("sentinel", [])
    sentinel = tuple(marks) if isinstance(marks, list) else (marks,)
    return Register(**{**common, **row, "kind": kind, "sentinel": sentinel})
