"""Describe registers of a Modbus device and turn them into SI numbers; NaN, marks and impossible values are refused."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Kind  # noqa: TC001 - types of keys are looked up when a profile is read
from joulelab.core.toml_reading import declare_key
from joulelab.instruments.modbus.client import LONGEST, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Type -> registers that a value takes, and its format.
TYPES = {
    "int16": (1, ">h"),
    "uint16": (1, ">H"),
    "int32": (2, ">i"),
    "uint32": (2, ">I"),
    "int64": (4, ">q"),
    "uint64": (4, ">Q"),
    "float32": (2, ">f"),
    "float64": (4, ">d"),
}


class Unit(NamedTuple):
    """Describe a unit in SI: unit, factor, quantity, and the ending of its channels' names."""

    si: str
    factor: float
    quantity: str
    ending: str


UNITS = {
    "W": Unit("W", 1.0, "power", "_w"),
    "kW": Unit("W", 1e3, "power", "_w"),
    "J": Unit("J", 1.0, "energy", "_j"),
    "Wh": Unit("J", 3600.0, "energy", "_j"),
    "kWh": Unit("J", 3.6e6, "energy", "_j"),
    "MWh": Unit("J", 3.6e9, "energy", "_j"),
    "V": Unit("V", 1.0, "voltage", "_v"),
    "A": Unit("A", 1.0, "current", "_a"),
    "mA": Unit("A", 1e-3, "current", "_a"),
    "VA": Unit("VA", 1.0, "apparent power", "_va"),
    "kVA": Unit("VA", 1e3, "apparent power", "_va"),
    "Hz": Unit("Hz", 1.0, "frequency", "_hz"),
    "degC": Unit("degC", 1.0, "temperature", "_c"),
    "1": Unit("1", 1.0, "power factor", ""),
    "%": Unit("1", 0.01, "power factor", ""),
}
# The most that a rack or a feeder can have (SI); a value beyond is a wrong register, type or order.
BOUNDS = {
    "W": (-1e7, 1e7),
    "J": (-1e17, 1e17),
    "V": (-1e5, 1e5),
    "A": (-1e5, 1e5),
    "VA": (-1e7, 1e7),
    "Hz": (0.0, 1e3),
    "degC": (-100.0, 500.0),
    "1": (-1.01, 1.01),
}
LONGEST_S = 1e9  # 32 years: no counter has more than the largest power over this time
LEAST_W = -10.0  # noise of an outlet without load; below, a current transformer is turned


def choose_from(*values: object) -> dict[str, Any]:
    """Return the rule of a key that has one of some values."""

    def read_choice(value: Any) -> Any:
        if isinstance(value, bool) or value not in values:
            raise ValueError
        return value

    return {"read": read_choice, "advice": f"give one of {', '.join(map(str, values))}"}


def _read_marks(value: Any) -> tuple[int, ...]:
    marks = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(type(mark) is int and mark >= 0 for mark in marks):
        raise ValueError
    return marks


@dataclass(frozen=True, slots=True)
class Register:
    """Describe one value; its fields are the keys of a register in a profile."""

    name: str = field(metadata={"doc": "the channel, with its SI unit at the end"})
    address: int = field(metadata={"doc": "its address on the wire, from 0", "least": 0, "most": 65535})
    unit: str = field(metadata={"doc": "the unit of the device", **choose_from(*UNITS)})
    function: int = declare_key(3, "3 holding, 4 input registers", **choose_from(3, 4))
    type: str = declare_key("float32", "how it is written", **choose_from(*TYPES))
    word_order: str = declare_key("big", "little: the low register comes first", **choose_from("big", "little"))
    scale: float = declare_key(1.0, "factor of a count", above=0.0)
    kind: Kind = declare_key("state", "power, counter or state", **choose_from("power", "counter", "state"))
    sentinel: tuple[int, ...] = declare_key(
        (), "bits that stand for no value", read=_read_marks, advice="give the bits as a number from 0: 0x8000"
    )
    modulus: float | None = declare_key(None, "where the counter wraps, in `unit`", above=0.0)
    quantum: float = declare_key(0.0, "the step of the value, in `unit`", least=0.0)
    phase: int = declare_key(0, "1 to 3: the state of a phase", least=0, most=3)
    each: str = declare_key("", "outlet: the address is that of the first", **choose_from("outlet"))
    most_w: float = declare_key(1e7, "the largest power that can be right", above=0.0)

    @property
    def size(self) -> int:
        """Return the number of registers that it takes."""
        return TYPES[self.type][0]

    def find_quantum(self, value: float) -> float:
        """Return the step of the value in SI: the stated one, or the resolution of its type near the value."""
        factor = UNITS[self.unit].factor
        digits = {"float64": math.ulp(value), "float32": math.ulp(value) * 2**29}  # 24 binary digits instead of 53
        return max(self.quantum * factor, digits.get(self.type, self.scale * factor))


def decode_register(register: Register, words: Sequence[int]) -> float:
    """Return the value in SI. Raises ReadFailed for NaN, infinity, a sentinel, and values that cannot be right."""
    order = -1 if register.word_order == "little" else 1
    data = struct.pack(f">{len(words)}H", *words[::order])
    raw = struct.unpack(TYPES[register.type][1], data)[0]
    if int.from_bytes(data, "big") in register.sentinel or not math.isfinite(raw):
        why = f"the device gives 0x{data.hex()}, which is {raw:.6g} or its mark for no value"
        raise ReadFailed(f"{register.name} has no value", why=why, code="read-failed.no-value")
    unit = UNITS[register.unit]
    value = float(raw) * register.scale * unit.factor
    low, high = BOUNDS[unit.si]
    if register.kind == "counter":
        low, high = 0.0, min(high, register.most_w * LONGEST_S)
    elif register.kind == "power":
        low, high = LEAST_W, register.most_w
    # A float with its words swapped is most often huge, or far too small for anything that is measured.
    if not low <= value <= high or 0 < abs(raw) < 1e-12:
        why = f"registers 0x{data.hex()} at {register.address} read as {register.type} give {raw:.6g} {register.unit}"
        advice = "check unit, type, word_order and address; a negative power: turn the current transformer"
        raise ReadFailed(f"{register.name} cannot be right", why=why, next=advice, code="read-failed.implausible")
    return value


def group_registers(wanted: Sequence[Register], gap: int, longest: int = LONGEST) -> list[Request]:
    """Return the requests that cover the registers: neighbours in one, over at most `gap` unused ones in between."""
    found: list[Request] = []
    for register in sorted(wanted, key=lambda r: (r.function, r.address)):
        if found and found[-1].function == register.function:
            last = found[-1]
            grown = max(last.size, register.address + register.size - last.address)
            if register.address - (last.address + last.size) <= gap and grown <= longest:
                found[-1] = last._replace(size=grown)
                continue
        found.append(Request(register.function, register.address, register.size))
    return found


def find_words(register: Register, answers: Mapping[Request, Sequence[int]]) -> Sequence[int]:
    """Return the words of a register from the answers to its blocks. Raises KeyError for one that was not requested."""
    for request, words in answers.items():
        at = register.address - request.address
        if request.function == register.function and 0 <= at <= request.size - register.size:
            return words[at : at + register.size]
    raise KeyError(register.name)
