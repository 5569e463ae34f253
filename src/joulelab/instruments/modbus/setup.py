"""Turn a Modbus meter's entry into what is to be read: device, registers of each stream, streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.modbus.client import PORT
from joulelab.instruments.modbus.profile import PIECES, Profile, altered, load, parse
from joulelab.instruments.modbus.registers import UNITS, Register
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = wall.COMMON | {
    "address": "host, or host:port (502)",
    "profile": "a register profile by name (sdm630, janitza, ...) or the path of your own .toml",
    "registers": "the registers themselves, instead of a profile: [{name, address, unit, ...}]",
    "unit_id": "the device's Modbus unit id, 0 to 255 (the profile's, or 1)",
    "outlets": "the outlets that feed the node, by number, of a PDU",
    "inlets": "the inlets, by number, of a PDU",
    "stride": "registers from one outlet or inlet to the next, where the profile does not know",
    "word_order": "big or little, for all registers",
    "byte_order": "big or little, for all registers",
    "shift": "added to all addresses (-1 where a manual counts from 1)",
    "slow_period_s": "seconds between readings of the phases (1)",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold one stream: where it belongs, its channels' names in order, the registers that it has."""

    table: str
    place: wall.Place
    names: tuple[str, ...]
    registers: Mapping[str, Register]


@dataclass(frozen=True, slots=True)
class Setup:
    """Hold what an entry asks for."""

    label: str
    host: str
    port: int
    unit: int
    timeout_s: float
    period_s: float
    slow_period_s: float
    profile: Profile
    plans: tuple[Plan, ...]
    config: Mapping[str, Any]

    def stream(self, plan: Plan, firsts: Mapping[str, float]) -> Stream:
        """Return the stream of a plan; `firsts` are the channels that can be read, with a first value."""
        period_s = self.period_s if plan.table == "power" else self.slow_period_s
        device = f"{self.host}:{self.port} unit {self.unit}"
        model = f"{self.profile.vendor} {self.profile.model}".strip() or self.profile.name
        if not self.profile.confirmed:
            model += " (registers not confirmed)"
        channels = tuple(self._spec(plan, name, firsts.get(name)) for name in plan.names)
        name = plan.place["scope"]
        return Stream(name, plan.table, period_s=period_s, channels=channels, device=device, model=model, **plan.place)

    def _spec(self, plan: Plan, name: str, first: float | None) -> Spec:
        shared = [r for p in self.plans for r in p.registers.values() if r.name == name and p.table == plan.table]
        register = plan.registers.get(name, shared[0])
        unit = UNITS[register.unit]
        update_s = self.profile.update_s
        accuracy = replace(
            wall.stated(self.config, self.profile.accuracy),
            quantum=register.quantum_at(first or 0.0),
            shared=self.label,
        )
        if register.kind == "state":
            accuracy = replace(accuracy, offset=0.0)  # stated in W
            return Spec(name, unit.quantity, unit.si, update_s=update_s, accuracy=accuracy)
        modulus = None if register.modulus is None else register.modulus * unit.factor
        window_s = update_s if register.kind == "power" else None
        return Spec(name, unit.quantity, unit.si, register.kind, update_s, window_s, modulus=modulus, accuracy=accuracy)


def setup(config: Mapping[str, Any]) -> Setup:
    """Check an entry. Raises ConfigError that says what fits."""
    check_keys("modbus", config, CONFIG)
    label = wall.label_of(config)
    host, port = wall.address(config, PORT)
    profile = _profile(config, f"meter {label}")
    return Setup(
        label,
        host,
        port,
        _whole(config, "unit_id", profile.unit_id, (0, 255)),
        seconds(label, config, "timeout_s", 2.0),
        seconds(label, config, "period_s", profile.update_s),
        seconds(label, config, "slow_period_s", max(profile.update_s, 1.0)),
        profile,
        tuple(_plans(config, profile, label)),
        config,
    )


def _profile(config: Mapping[str, Any], where: str) -> Profile:
    given, inline = text(where, config, "profile"), config.get("registers")
    if (given is None) == (inline is None):
        advice = 'set profile = "sdm630" (or another, or the path of your own), or registers = [...]'
        what = "both profile and registers are given" if given else "neither profile nor registers are given"
        raise ConfigError(what, where=where, next=advice)
    if given is not None:
        profile = load(given, where)
    else:
        rows = inline if isinstance(inline, list) else [inline]
        profile = parse({"registers": rows}, where)
    orders: dict[str, Any] = {}
    for key in ("word_order", "byte_order"):
        if key in config and config[key] not in ("big", "little"):
            raise ConfigError(f"{key} is {config[key]!r}", where=where, next="give big or little")
        orders[key] = config.get(key)
    return altered(profile, orders, _whole(config, "shift", 0, (-10000, 10000)))


def _plans(config: Mapping[str, Any], profile: Profile, label: str) -> list[Plan]:
    piece, numbers = _pieces(config, profile, f"meter {label}")
    if not piece:
        main = [r for r in profile.registers if not r.phase and not r.each]
        place = wall.place(config, profile.feeds)
        return [_plan("power", place, main, _names(main)), *_phases(config, profile, label)]
    rows = [r for r in profile.registers if r.each == piece]
    feeds = "node.ac" if piece == "outlet" else profile.feeds
    step = _whole(config, "stride", profile.stride.get(piece, 0), (0, 65535))
    if max(numbers) > 1 and not step:
        why = f"the profile {profile.name} does not say how far it is from one {piece} to the next"
        raise ConfigError(
            f"{piece} {max(numbers)} cannot be found", where=f"meter {label}", why=why, next="set stride = N"
        )
    found = []
    for number in numbers:
        named = str(number) if piece == "outlet" else f"inlet{number}" if len(numbers) > 1 else ""
        moved = [replace(r, address=r.address + (number - 1) * step) for r in rows]
        found.append(_plan("power", wall.place(config, feeds, named, len(numbers)), moved, _names(rows)))
    return found


def _pieces(config: Mapping[str, Any], profile: Profile, where: str) -> tuple[str, list[int]]:
    """Return what of the device is read: all of it (""), or some outlets or inlets."""
    has = [piece for piece in PIECES if any(r.each == piece for r in profile.registers)]
    asked = [piece for piece in PIECES if f"{piece}s" in config]
    if len(asked) > 1:
        raise ConfigError("both outlets and inlets are given", where=where, next="make an entry for each")
    if not asked:
        whole = any(not r.each and not r.phase and r.kind != "state" for r in profile.registers)
        return ("", []) if whole else ("inlet" if "inlet" in has else has[0], [1])
    piece, numbers = asked[0], config[f"{asked[0]}s"]
    if piece not in has:
        advice = "leave it out: the device is one meter"
        raise ConfigError(f"the profile {profile.name} has no {piece}s", where=where, next=advice)
    good = isinstance(numbers, list) and numbers and all(_is_number(n) for n in numbers)
    if not good or len(set(numbers)) != len(numbers):
        raise ConfigError(f"{piece}s is {numbers!r}", where=where, next=f"give a list of numbers: {piece}s = [3, 4]")
    return piece, list(numbers)


def _phases(config: Mapping[str, Any], profile: Profile, label: str) -> list[Plan]:
    rows = [r for r in profile.registers if r.phase and not r.each]
    whole = wall.feeds_of(config, profile.feeds)
    found = []
    for number in sorted({r.phase for r in rows}):
        place: wall.Place = {"scope": f"phase:{label}.{number}", "parent": whole, "sums": "", "parts": 0}
        found.append(_plan("phases", place, [r for r in rows if r.phase == number], _names(rows)))
    return found


def _plan(table: str, place: wall.Place, rows: Sequence[Register], names: tuple[str, ...]) -> Plan:
    for row in rows:
        if not 0 <= row.address <= 65536 - row.size:
            why = f"{row.name} would be at {row.address}"
            raise ConfigError("an address lies outside 0 to 65535", why=why, next="check shift, stride and outlets")
    return Plan(table, place, names, {row.name: row for row in rows})


def _names(rows: Sequence[Register]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.name for row in rows))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000


def _whole(config: Mapping[str, Any], key: str, default: int, within: tuple[int, int]) -> int:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not within[0] <= value <= within[1]:
        advice = f"give a whole number, {within[0]} to {within[1]}"
        raise ConfigError(f"{key} is {value!r}", where=f"meter {wall.label_of(config)}", next=advice)
    return value
