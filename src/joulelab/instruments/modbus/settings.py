"""Turn a Modbus meter's entry into a plan: device, registers of each stream, streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Spec, Stream
from joulelab.core.toml_reading import Mistakes, declare_key, describe_keys, read_table
from joulelab.instruments import wall
from joulelab.instruments.modbus.client import PORT
from joulelab.instruments.modbus.profiles import Profile, load_profile, parse_profile
from joulelab.instruments.modbus.registers import UNITS, Register, choose_from
from joulelab.instruments.settings import check_keys, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _read_outlets(value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and all(type(n) is int and 0 < n <= 1000 for n in value)
    if not good or not 0 < len(value) == len(set(value)):
        raise ValueError
    return tuple(value)


@dataclass(frozen=True, slots=True)
class ModbusEntry:
    """Hold the keys that only entries of Modbus have."""

    address: str = declare_key("", "host, or host:port (502)")
    profile: str = declare_key("", "a register profile by name (sdm630, janitza, ...) or the path of your own .toml")
    registers: Any = declare_key(
        None, "the registers themselves, instead of a profile: [{name, address, unit, ...}]", read=lambda value: value
    )
    unit_id: int | None = declare_key(None, "the Modbus unit id, 0 to 255 (the profile's, or 1)", least=0, most=255)
    outlets: tuple[int, ...] = declare_key(
        (),
        "the outlets that feed the node, by number, of a PDU",
        read=_read_outlets,
        advice="give a list of numbers: outlets = [3, 4]",
    )
    stride: int = declare_key(
        0, "registers from one outlet to the next, where the profile does not know", least=1, most=65535
    )
    word_order: str = declare_key("", "big or little, for all registers", **choose_from("big", "little"))
    shift: int = declare_key(0, "added to all addresses (-1 where a manual counts from 1)", least=-10000, most=10000)
    slow_period_s: float = declare_key(1.0, "seconds between readings of the phases (1)", above=0.0)


CONFIG = wall.COMMON | {name: key.doc for name, key in describe_keys(ModbusEntry).items()}
NODE_MOST_W = 1e5  # neither a node nor one of its cords draws more: W that are taken for kW would


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Hold one stream: where it belongs, its channels' names in order, the registers that it has."""

    table: str
    place: wall.Place
    names: tuple[str, ...]
    registers: Mapping[str, Register]


@dataclass(frozen=True, slots=True)
class ModbusSettings:
    """Hold a checked entry."""

    label: str
    host: str
    port: int
    unit: int
    timeout_s: float
    period_s: float
    slow_period_s: float
    profile: Profile
    plans: tuple[StreamPlan, ...]
    config: Mapping[str, Any]

    def make_stream(self, plan: StreamPlan, firsts: Mapping[str, float]) -> Stream:
        """Return the stream of a plan; `firsts` are the channels that can be read, with a first value (SI)."""
        period_s = self.period_s if plan.table == "power" else self.slow_period_s
        device = f"{self.host}:{self.port} unit {self.unit}"
        model = f"{self.profile.vendor} {self.profile.model}".strip() or self.profile.name
        if not self.profile.confirmed:
            model += " (registers not confirmed)"
        channels = tuple(self._make_spec(plan, name, firsts.get(name, 0.0)) for name in plan.names)
        scope = plan.place["scope"]
        return Stream(scope, plan.table, period_s=period_s, channels=channels, device=device, model=model, **plan.place)

    def _make_spec(self, plan: StreamPlan, name: str, first: float) -> Spec:
        alike = [r for p in self.plans for r in p.registers.values() if r.name == name and p.table == plan.table]
        register = plan.registers.get(name, alike[0])
        unit, update_s = UNITS[register.unit], self.profile.update_s
        stated = wall.stated(self.config, self.profile.accuracy.make_accuracy())
        accuracy = replace(stated, quantum=register.find_quantum(first), shared=self.label)
        if register.kind == "state":
            accuracy = replace(accuracy, offset=0.0)  # stated in W
            return Spec(name, unit.quantity, unit.si, update_s=update_s, accuracy=accuracy)
        modulus = None if register.modulus is None else register.modulus * unit.factor
        window_s = update_s if register.kind == "power" else None
        return Spec(name, unit.quantity, unit.si, register.kind, update_s, window_s, modulus=modulus, accuracy=accuracy)


def read_settings(config: Mapping[str, Any]) -> ModbusSettings:
    """Check an entry. Raises ConfigError with the values that fit."""
    check_keys("modbus", config, CONFIG)
    label = wall.label_of(config)
    host, port = wall.address(config, PORT)
    mistakes = Mistakes(f"meter {label}")
    entry = read_table(ModbusEntry, {k: v for k, v in config.items() if k not in wall.COMMON}, mistakes)
    mistakes.check()
    assert entry is not None
    profile = _choose_profile(entry, f"meter {label}")
    plan = _plan_outlets if entry.outlets else _plan_device
    return ModbusSettings(
        label,
        host,
        port,
        profile.unit_id if entry.unit_id is None else entry.unit_id,
        seconds(label, config, "timeout_s", 2.0),
        seconds(label, config, "period_s", profile.update_s),
        max(profile.update_s, entry.slow_period_s),
        profile,
        tuple(plan(config, entry, profile, label)),
        config,
    )


def _choose_profile(entry: ModbusEntry, where: str) -> Profile:
    if bool(entry.profile) == (entry.registers is not None):
        what = "both profile and registers are given" if entry.profile else "neither profile nor registers are given"
        advice = 'set profile = "sdm630" (or another, or the path of your own), or registers = [...]'
        raise ConfigError(what, where=where, next=advice, code="config.no-profile")
    if entry.profile:
        profile = load_profile(entry.profile, where)
    else:
        profile = parse_profile({"registers": entry.registers}, Mistakes(where))
    moved = [replace(r, address=r.address + entry.shift) for r in profile.registers]
    if entry.word_order:
        moved = [replace(r, word_order=entry.word_order) for r in moved]
    return replace(profile, registers=tuple(moved))


def _plan_device(config: Mapping[str, Any], _: ModbusEntry, profile: Profile, label: str) -> list[StreamPlan]:
    main = [r for r in profile.registers if not r.phase and not r.each]
    phases = [r for r in profile.registers if r.phase and not r.each]
    if all(r.kind == "state" for r in main):
        what, advice = f"the profile {profile.name} has outlets only", "name them: outlets = [1, 2]"
        raise ConfigError(what, where=f"meter {label}", next=advice, code="config.no-outlets")
    plans = [_make_plan("power", wall.place(config, profile.feeds), main, main)]
    parent = wall.feeds_of(config, profile.feeds)
    for number in sorted({r.phase for r in phases}):
        place: wall.Place = {"scope": f"phase:{label}.{number}", "parent": parent, "sums": "", "parts": 0}
        plans.append(_make_plan("phases", place, [r for r in phases if r.phase == number], phases))
    return plans


def _plan_outlets(config: Mapping[str, Any], entry: ModbusEntry, profile: Profile, label: str) -> list[StreamPlan]:
    rows, step, last = [r for r in profile.registers if r.each], entry.stride or profile.stride, max(entry.outlets)
    if not rows:
        what, advice = f"the profile {profile.name} has no outlets", "leave outlets out: the device is one meter"
        raise ConfigError(what, where=f"meter {label}", next=advice, code="config.no-outlets")
    if last > 1 and not step:
        why = f"the profile {profile.name} does not know the distance from one outlet to the next"
        what, advice = f"outlet {last} cannot be found", "set stride = N from the maker's register layout"
        raise ConfigError(what, where=f"meter {label}", why=why, next=advice, code="config.no-stride")
    plans = []
    for number in entry.outlets:
        moved = [replace(r, address=r.address + (number - 1) * step) for r in rows]
        plans.append(_make_plan("power", wall.place(config, "node.ac", str(number), len(entry.outlets)), moved, rows))
    return plans


def _make_plan(table: str, place: wall.Place, rows: Sequence[Register], alike: Sequence[Register]) -> StreamPlan:
    """Return the plan of a stream; `alike` are the registers of all streams of its table."""
    for row in rows:
        if not 0 <= row.address <= 65536 - row.size:
            what, why = "an address lies outside 0 to 65535", f"{row.name} would be at {row.address}"
            raise ConfigError(what, why=why, next="check shift, stride and outlets", code="config.wrong-value")
    if (place["sums"] or place["scope"]).startswith("node"):
        rows = [replace(row, most_w=min(row.most_w, NODE_MOST_W)) for row in rows]
    names = tuple(dict.fromkeys(row.name for row in alike))
    return StreamPlan(table, place, names, {row.name: row for row in rows})
