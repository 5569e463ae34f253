"""Load register profiles: TOML files that are shipped, of the user by path, or registers in the entry itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.core.text import suggest_name
from joulelab.core.toml_reading import Mistakes, declare_key, parse_toml, read_table
from joulelab.instruments.modbus.client import LONGEST
from joulelab.instruments.modbus.registers import TYPES, UNITS, Register, choose_from
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(__file__).parent / "profiles"
SOURCES = ("datasheet", "calibrated", "assumed", "unknown")


@dataclass(frozen=True, slots=True)
class ProfileAccuracy:
    """Describe the accuracy of a device."""

    gain: float = declare_key(0.0, "the largest relative error", least=0.0)
    offset_w: float = declare_key(0.0, "the largest error at any load", least=0.0)
    source: str = declare_key("", "how it is known", **choose_from(*SOURCES))
    reference: str = declare_key("the profile states no accuracy", "where it is known from")

    def make_accuracy(self) -> Accuracy:
        """Return the accuracy of the channels; it is unknown without a gain."""
        source: Any = self.source or ("assumed" if self.gain else "unknown")
        return Accuracy(source, self.gain if source != "unknown" else 0.0, self.offset_w, reference=self.reference)


@dataclass(frozen=True, slots=True)
class Profile:
    """Describe a family of devices; its fields are the keys of the file."""

    name: str = declare_key("registers of the entry", "its name in messages; the name of the file")
    vendor: str = declare_key("", "the maker")
    model: str = declare_key("", "the devices that it is for")
    source: str = declare_key("", "where the registers are known from")
    confirmed: bool = declare_key(True, "false if that is not the maker's own text")
    feeds: str = declare_key("node.ac", "the scope of such a device unless the entry states another")
    unit_id: int = declare_key(1, "its Modbus unit id", least=0, most=255)
    update_s: float = declare_key(1.0, "seconds between the device's own updates", above=0.0)
    gap: int = declare_key(0, "unused registers that may be read along", least=0, most=LONGEST)
    longest: int = declare_key(LONGEST, "most registers of one answer", least=1, most=LONGEST)
    stride: int = declare_key(0, "registers from one outlet to the next", least=1, most=65535)
    function: int = declare_key(3, "for registers that state none", **choose_from(3, 4))
    type: str = declare_key("float32", "for registers that state none", **choose_from(*TYPES))
    word_order: str = declare_key("big", "for registers that state none", **choose_from("big", "little"))
    accuracy: ProfileAccuracy = declare_key(ProfileAccuracy, "accuracy of power and energy")
    registers: tuple[Register, ...] = declare_key((), "the values")


def list_profiles() -> dict[str, str]:
    """Return the shipped profiles with the devices that they are for."""
    found = [load_profile(path.stem, "modbus") for path in sorted(FOLDER.glob("*.toml"))]
    doubt = {True: "", False: " (not confirmed)"}
    return {profile.name: f"{profile.vendor} {profile.model}{doubt[profile.confirmed]}" for profile in found}


def load_profile(given: str, where: str) -> Profile:
    """Return a profile by name or path. Raises ConfigError with all its mistakes."""
    is_path = given.endswith(".toml") or "/" in given
    path = Path(given).expanduser() if is_path else FOLDER / f"{given}.toml"
    if not is_path and not path.exists():
        advice = f'{suggest_name(given, sorted(p.stem for p in FOLDER.glob("*.toml")))}; or profile = "./mine.toml"'
        raise ConfigError(f"there is no profile {given!r}", where=where, next=advice, code="config.unknown-profile")
    try:
        text, data = parse_toml(read_regular(path), path)
    except OSError as error:
        what, why = f"the profile {path} cannot be read", error.strerror or str(error)
        code = "config.unreadable-profile"
        raise ConfigError(what, where=where, why=why, next="check the path", code=code) from None
    return parse_profile({"name": path.stem, **data}, Mistakes(path, text, Profile))


def parse_profile(data: Mapping[str, Any], mistakes: Mistakes) -> Profile:
    """Return the profile that plain data describes. Raises ConfigError with all its mistakes."""
    plain = {key: value for key, value in data.items() if key != "registers"}
    profile = read_table(Profile, plain, mistakes) or Profile()
    rows = data.get("registers")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        mistakes.add_wrong(("registers",), rows, "give a list of tables: [{name, address, unit}]")
        rows = []
    defaults = {"function": profile.function, "type": profile.type, "word_order": profile.word_order}
    found = [_parse_register({**defaults, **row}, mistakes, n) for n, row in enumerate(rows)]
    registers = [register for register in found if register is not None]
    for (name, _, _), count in Counter((r.name, r.phase, r.each) for r in registers).items():
        if count > 1:
            mistakes.add(("registers",), f"{name} is there twice", next="give each channel a name", code="config.twice")
    if not mistakes.errors and all(register.kind == "state" for register in registers):
        what, advice = "no register is a power or an energy", "name one power_w or energy_j"
        mistakes.add(("registers",), what, next=advice, code="config.no-power")
    mistakes.check()
    return replace(profile, registers=tuple(registers))


def _parse_register(row: Mapping[str, Any], mistakes: Mistakes, number: int) -> Register | None:
    place, name, phase = ("registers", number), row.get("name"), row.get("phase")
    # A phase is a state: the whole device's value counts, and its phases would count it again.
    kind = "state" if phase else {"power_w": "power", "energy_j": "counter"}.get(str(name), "state")
    register = read_table(Register, {"kind": kind, **row}, mistakes, place)
    if register is None:
        return None
    unit = UNITS[register.unit]
    if not register.name.isidentifier() or not register.name.endswith(unit.ending):
        what = f"name is {name!r} for {register.unit}"
        advice = f"channel names end in their SI unit: {unit.quantity.replace(' ', '_')}{unit.ending}"
        mistakes.add((*place, "name"), what, next=advice, code="config.wrong-name")
    needs = {"power": "W", "counter": "J", "state": unit.si}[register.kind]
    if needs != unit.si or (phase and register.kind != "state"):
        what = f"a {register.kind} of a phase" if phase else f"a {register.kind} in {register.unit}"
        advice = 'a power needs W, a counter J; of a phase set kind = "state"'
        mistakes.add((*place, "kind"), what, next=advice, code="config.wrong-kind")
    return register
