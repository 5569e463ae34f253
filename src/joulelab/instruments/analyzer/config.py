"""Read an analyzer's entry of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments.analyzer.client import FORMS
from joulelab.instruments.analyzer.setup import Wishes
from joulelab.instruments.settings import check_keys, number, seconds, text
from joulelab.instruments.wall import COMMON, refuse_login

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = COMMON | {
    "resource": "where it is, as VISA writes it: TCPIP::HOST::INSTR, TCPIP::HOST::PORT::SOCKET, ASRL/dev/ttyS0::INSTR",
    "period_s": "seconds between readings, which is its update interval: 0.1 0.25 0.5 1 2 5 10 20 (0.1)",
    "keep_rate": "true: leave its update interval as it is set",
    "voltage_v": 'voltage range in V, "keep" (default) or "auto"',
    "current_a": 'current range in A, "keep" (default) or "auto"',
    "crest_factor": "3 or 6; what is set otherwise",
    "ct_ratio": "ratio of a current transformer (100:5 A is 20), set on the instrument",
    "ct_gain": "how far the transformer may be off, as a fraction (0.002 for class 0.2)",
    "elements": '"each" (default): a stream per element, which are summed; "sum": the instrument\'s own sum',
    "integration": '"auto" (default): started if it stands at its beginning; "off": not used',
    "wait": '"instrument" (default): it holds its answer until the next update; "poll": its status is asked',
    "baud_rate": "of a serial port (9600)",
}
RATES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
INTERFACES = ("TCPIP", "ASRL", "USB", "GPIB")
BAUD_RATES = (1200, 2400, 4800, 9600, 19200, 38400, 57600)


@dataclass(frozen=True, slots=True)
class Options:
    """Hold a checked entry; `config` is the entry itself, for what all node-level meters share."""

    config: Mapping[str, Any]
    label: str
    where: str
    resource: str
    timeout_s: float
    baud_rate: int
    ct_gain: float | None
    wishes: Wishes


def parse(config: Mapping[str, Any], known: Mapping[str, str]) -> Options:
    """Return the checked entry. Raises ConfigError."""
    check_keys("analyzer", config, known)
    label = str(config.get("label") or "analyzer")
    where = f"meter {label}"
    refuse_login(config, "resource")
    resource = text(label, config, "resource")
    if not resource or not resource.strip():
        raise ConfigError("no resource is given", where=where, next=f"set resource to one of {FORMS}")
    rate_s = None if _flag(label, config, "keep_rate") else rate_for(label, config)
    wishes = Wishes(
        where,
        _range(label, config, "voltage_v"),
        _range(label, config, "current_a"),
        _crest(label, config),
        rate_s,
        number(label, config, "ct_ratio", 1.0, above=0.0) if "ct_ratio" in config else None,
        _word(label, config, "integration", ("auto", "off")) == "auto",
        _word(label, config, "elements", ("each", "sum")) == "sum",
        _word(label, config, "wait", ("instrument", "poll")) == "poll",
    )
    least_s = 1.5 * (rate_s or 0.1)
    timeout_s = seconds(label, config, "timeout_s", 2.0 + 2 * (rate_s or 0.1))
    if timeout_s < least_s:
        raise ConfigError(
            f"timeout_s is {timeout_s:g}", where=where, why="it updates more slowly", next=f"give at least {least_s:g}"
        )
    ct_gain = number(label, config, "ct_gain", 0.0, above=-1e-12) if "ct_gain" in config else None
    named = {**config, "label": label}
    return Options(named, label, where, resource.strip(), timeout_s, _baud(label, config), ct_gain, wishes)


def check_resource(options: Options) -> None:
    """Refuse what names no interface that there is; pyvisa looks closer when it is opened. Raises ConfigError."""
    given = options.resource.upper()
    if not given.startswith(INTERFACES) or (given.startswith("TCPIP") and "::" not in given):
        raise ConfigError(f"resource is {options.resource!r}", where=options.where, next=f"use one of {FORMS}")


def rate_for(label: str, config: Mapping[str, Any]) -> float:
    """Return the instrument's interval for a period: its own, or the next longer one. Raises ConfigError."""
    period_s = seconds(label, config, "period_s", 0.1)
    fitting = [rate for rate in RATES_S if rate >= period_s * (1 - 1e-9)]
    if not fitting:
        listed = " ".join(f"{rate:g}" for rate in RATES_S)
        raise ConfigError(f"period_s is {period_s:g}", where=f"meter {label}", next=f"give one of {listed}")
    return fitting[0]


def _range(label: str, config: Mapping[str, Any], key: str) -> float | str:
    value = config.get(key, "keep")
    if value in ("keep", "auto"):
        return str(value)
    if isinstance(value, str):
        advice = 'give a number, "keep" or "auto"'
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next=advice)
    return number(label, config, key, 0.0, above=0.0)


def _crest(label: str, config: Mapping[str, Any]) -> int | None:
    value = config.get("crest_factor")
    if value is not None and (isinstance(value, bool) or value not in (3, 6)):
        raise ConfigError(f"crest_factor is {value!r}", where=f"meter {label}", next="give 3 or 6")
    return value


def _baud(label: str, config: Mapping[str, Any]) -> int:
    value = config.get("baud_rate", 9600)
    if isinstance(value, bool) or value not in BAUD_RATES:
        listed = ", ".join(map(str, BAUD_RATES))
        raise ConfigError(f"baud_rate is {value!r}", where=f"meter {label}", next=f"give one of {listed}")
    return int(value)


def _word(label: str, config: Mapping[str, Any], key: str, words: tuple[str, ...]) -> str:
    value = config.get(key, words[0])
    if value not in words:
        listed = " or ".join(f'"{word}"' for word in words)
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next=f"give {listed}")
    return str(value)


def _flag(label: str, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}", where=f"meter {label}", next="give true or false")
    return value
