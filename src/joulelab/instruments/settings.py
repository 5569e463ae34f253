"""Check a meter's configuration: wrong keys are refused with the nearest right one, wrong values with what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

# Settings of the first edition, and what to do instead; docs/limits.md has the reasons.
REMOVED_KEYS = {
    "byte_order": "meters that swap the bytes of a register are not read",
    "comment": "remove the comments from the file",
    "elements": "remove it; each element is read, and the analysis adds them",
    "encoding": "store the file as UTF-8",
    "format": "remove it; the file itself shows whether it is CSV or Parquet",
    "inlets": "read a PDU of several inlets by SNMP",
    "keep_rate": "set period_s to the analyzer's rate",
    "limits": "remove it; values are checked against the limits of their scope",
    "modulus": "map a column of power instead of a counter that wraps",
    "parent": "remove it; joulelab knows it from the scope",
    "step_s": "remove it; samples are read with their own times",
    "timestamps": "remove it; readings have the time of their answer",
    "trap_port": "remove it; traps are received by joulelab agent --traps",
    "wait": "remove it; the meter waits for an update if the analyzer can report one",
}


def check_keys(meter: str, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Refuse keys that the meter does not know. Raises ConfigError."""
    for key in config:
        if key not in known:
            if key in REMOVED_KEYS:
                what = f"{key!r} is not a setting any more"
                raise ConfigError(what, where=f"meter {meter}", next=REMOVED_KEYS[key], code="config.removed-key")
            then = suggest_name(str(key), list(known))
            raise ConfigError(f"unknown key {key!r}", where=f"meter {meter}", next=then, code="config.unknown-key")


def seconds(meter: str, config: Mapping[str, Any], key: str, default: float) -> float:
    """Return a positive number of seconds. Raises ConfigError."""
    return number(meter, config, key, default, above=0.0)


def number(meter: str, config: Mapping[str, Any], key: str, default: float, *, above: float) -> float:
    """Return a finite number greater than `above`. Raises ConfigError."""
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
        then = f"give a number above {above:g}" if above >= 0 else "give a number, 0 or more"
        then = "give a number" if above == float("-inf") else then
        raise ConfigError(f"{key} is {value!r}", where=f"meter {meter}", next=then, code="config.wrong-value")
    return float(value)


def text(meter: str, config: Mapping[str, Any], key: str, default: str | None = None) -> str | None:
    """Return a string, or the default where none is given. Raises ConfigError."""
    value = config.get(key, default)
    if value is not None and not isinstance(value, str):
        raise ConfigError(
            f"{key} is {value!r}", where=f"meter {meter}", next="give a string", code="config.wrong-value"
        )
    return value


def read_choice(meter: str, config: Mapping[str, Any], key: str, choices: Sequence[Any], default: Any = None) -> Any:
    """Return one of the choices; None among them means that none has to be given. Raises ConfigError."""
    value = config.get(key, default)
    if isinstance(value, bool) or value not in choices:
        listed = ", ".join(str(choice) for choice in choices if choice is not None)
        what, advice = f"no {key} is given" if value is None else f"{key} is {value!r}", f"give one of {listed}"
        raise ConfigError(what, where=f"meter {meter}", next=advice, code="config.wrong-value")
    return value


def devices(meter: str, config: Mapping[str, Any]) -> tuple[int | str, ...] | None:
    """Return the devices to measure, as indices or UUIDs, None for all. Raises ConfigError."""
    value = config.get("devices")
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(_is_device(v) for v in value):
        then = "give a list of indices or UUIDs"
        raise ConfigError(f"devices is {value!r}", where=f"meter {meter}", next=then, code="config.wrong-value")
    return tuple(value)


def _is_device(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def choose_devices(meter: str, found: Sequence[Any], wanted: Sequence[int | str] | None) -> list[Any]:
    """Return the devices with a wanted `index` or `uuid`, all for None. Raises ConfigError with the valid ones."""
    if wanted is None:
        return list(found)
    chosen: list[Any] = []
    for name in wanted:
        named = [device for device in found if name in (device.index, device.uuid, str(device.index))]
        if not named:
            listed, code = ", ".join(f"{device.index} ({device.uuid})" for device in found), "config.unknown-gpu"
            raise ConfigError(f"there is no GPU {name!r}", where=f"meter {meter}", next=f"valid: {listed}", code=code)
        chosen += [device for device in named if device not in chosen]
    return chosen
