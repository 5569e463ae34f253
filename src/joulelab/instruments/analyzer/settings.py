"""Read an analyzer's entry of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.instruments.analyzer.client import RESOURCE_FORMS, Address, parse_resource
from joulelab.instruments.settings import check_keys, number, read_choice, seconds, text
from joulelab.instruments.wall import COMMON, refuse_login

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = COMMON | {
    "resource": "where it is, as VISA writes it: TCPIP::HOST::INSTR, TCPIP::HOST::PORT::SOCKET, ASRL/dev/ttyS0::INSTR",
    "period_s": "seconds between readings, which is its update interval: 0.1 0.25 0.5 1 2 5 10 20 (0.1)",
    "voltage_v": 'voltage range in V, "keep" (default) or "auto"',
    "current_a": 'current range in A, "keep" (default) or "auto"',
    "crest_factor": "3 or 6 (as it is set)",
    "ct_ratio": "ratio of a current transformer (100:5 A is 20), set on the instrument",
    "ct_gain": "how far the transformer may be off, as a fraction (0.002 for class 0.2)",
    "integration": '"auto" (default): started if it is reset; "off": not used',
    "baud_rate": "of a serial port (9600)",
}
UPDATE_INTERVALS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
BAUD_RATES = (1200, 2400, 4800, 9600, 19200, 38400, 57600)


@dataclass(frozen=True, slots=True)
class AnalyzerSettings:
    """Hold a checked entry; a range is a number (V, A), "keep" or "auto"; None leaves a setting as it is.

    `config` is the entry itself, for the keys that all node-level meters share.
    """

    config: Mapping[str, Any]
    label: str
    where: str
    address: Address
    timeout_s: float
    baud_rate: int
    update_s: float
    volts: float | str
    amperes: float | str
    crest: int | None
    ct_ratio: float | None
    ct_gain: float | None
    integrate: bool


def read_settings(config: Mapping[str, Any]) -> AnalyzerSettings:
    """Return the checked entry. Raises ConfigError."""
    check_keys("analyzer", config, CONFIG)
    label = str(config.get("label") or "analyzer")
    where = f"meter {label}"
    refuse_login(config, "resource")
    resource = (text(label, config, "resource") or "").strip()
    if not resource:
        advice = f"set resource to one of {RESOURCE_FORMS}"
        raise ConfigError("no resource is given", where=where, next=advice, code="config.no-resource")
    period_s = seconds(label, config, "period_s", 0.1)
    longer = [interval for interval in UPDATE_INTERVALS_S if interval >= period_s * (1 - 1e-9)]
    if not longer:
        read_choice(label, config, "period_s", UPDATE_INTERVALS_S)
    timeout_s = seconds(label, config, "timeout_s", 2.0 + 2 * longer[0])
    if timeout_s < 1.5 * longer[0]:
        why, advice = "it updates more slowly", f"give at least {1.5 * longer[0]:g}"
        raise ConfigError(f"timeout_s is {timeout_s:g}", where=where, why=why, next=advice, code="config.wrong-value")
    return AnalyzerSettings(
        config={**config, "label": label},
        label=label,
        where=where,
        address=parse_resource(resource, where),
        timeout_s=timeout_s,
        baud_rate=int(read_choice(label, config, "baud_rate", BAUD_RATES, 9600)),
        update_s=longer[0],
        volts=_read_range(label, config, "voltage_v"),
        amperes=_read_range(label, config, "current_a"),
        crest=read_choice(label, config, "crest_factor", (None, 3, 6)),
        ct_ratio=number(label, config, "ct_ratio", 1.0, above=0.0) if "ct_ratio" in config else None,
        ct_gain=number(label, config, "ct_gain", 0.0, above=-1e-12) if "ct_gain" in config else None,
        integrate=read_choice(label, config, "integration", ("auto", "off"), "auto") == "auto",
    )


def _read_range(label: str, config: Mapping[str, Any], key: str) -> float | str:
    value = config.get(key, "keep")
    return value if value in ("keep", "auto") else number(label, config, key, 0.0, above=0.0)
