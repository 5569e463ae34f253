"""Describe registers of a Modbus device and turn them into SI numbers; what is no number is refused with its reason."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from joulelab.core.errors import ReadFailed
from joulelab.instruments.modbus.client import LONGEST, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Kind

Order = Literal["big", "little"]

# Registers that a value takes, and its format once bytes and words are in the usual order.
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
    """Say what a unit is in SI: unit, factor, quantity, what names of its channels end in."""

    si: str
    factor: float
    quantity: str
    ending: str


UNITS = {
    "W": Unit("W", 1.0, "power", "_w"),
    "kW": Unit("W", 1e3, "power", "_w"),
    "MW": Unit("W", 1e6, "power", "_w"),
    "J": Unit("J", 1.0, "energy", "_j"),
    "kJ": Unit("J", 1e3, "energy", "_j"),
    "Wh": Unit("J", 3600.0, "energy", "_j"),
    "kWh": Unit("J", 3.6e6, "energy", "_j"),
    "MWh": Unit("J", 3.6e9, "energy", "_j"),
    "V": Unit("V", 1.0, "voltage", "_v"),
    "kV": Unit("V", 1e3, "voltage", "_v"),
    "A": Unit("A", 1.0, "current", "_a"),
    "mA": Unit("A", 1e-3, "current", "_a"),
    "VA": Unit("VA", 1.0, "apparent power", "_va"),
    "kVA": Unit("VA", 1e3, "apparent power", "_va"),
    "Hz": Unit("Hz", 1.0, "frequency", "_hz"),
    "degC": Unit("degC", 1.0, "temperature", "_c"),
    "1": Unit("1", 1.0, "power factor", ""),
    "%": Unit("1", 0.01, "power factor", ""),
}
# What a node, a rack or a feeder can have at most; what lies beyond is a wrong register, type or order.
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


@dataclass(frozen=True, slots=True)
class Register:
    """Describe one value: where it is on the wire, how it is written, what it means.

    `modulus` and `quantum` are in `unit`. `each` names what there are several of (outlet, inlet): the address is that
    of the first. `phase` above 0 puts it among the phases.
    """

    name: str
    address: int
    unit: str
    function: int = 3
    type: str = "float32"
    word_order: Order = "big"
    byte_order: Order = "big"
    scale: float = 1.0
    kind: Kind = "state"
    sentinel: tuple[int, ...] = ()
    modulus: float | None = None
    quantum: float | None = None
    phase: int = 0
    each: str = ""

    @property
    def size(self) -> int:
        """Return how many registers it takes."""
        return TYPES[self.type][0]

    @property
    def factor(self) -> float:
        """Return what one count is in SI."""
        return self.scale * UNITS[self.unit].factor

    def quantum_at(self, value: float) -> float:
        """Return the step of the value in SI: what is stated, or what its type can tell apart near the value."""
        stated = (self.quantum or 0.0) * UNITS[self.unit].factor
        if self.type == "float64":
            return max(stated, math.ulp(value))
        if self.type == "float32":
            return max(stated, math.ulp(value) * 2**29)  # 24 binary digits instead of 53
        return max(stated, abs(self.factor))


def decode(register: Register, words: Sequence[int]) -> float:
    """Return the value in SI. Raises ReadFailed for what is no number: NaN, infinite, a sentinel, out of all bounds."""
    data = b"".join(word.to_bytes(2, register.byte_order) for word in words)
    if register.word_order == "little":
        data = b"".join(data[i : i + 2] for i in range(len(data) - 2, -1, -2))
    if int.from_bytes(data, "big") in register.sentinel:
        raise ReadFailed(f"{register.name} is not there", why=f"the device gives its mark for no value, 0x{data.hex()}")
    raw = struct.unpack(TYPES[register.type][1], data)[0]
    if not math.isfinite(raw):
        raise ReadFailed(f"{register.name} is not there", why=f"the device gives {raw}")
    value = float(raw) * register.factor
    low, high = BOUNDS[UNITS[register.unit].si]
    low = 0.0 if register.kind == "counter" else low
    # A float with its words swapped is most often huge, or far too small for anything that is measured.
    if not low <= value <= high or 0 < abs(raw) < 1e-12:
        why = f"registers 0x{data.hex()} at {register.address} read as {register.type} give {raw:.6g} {register.unit}"
        raise ReadFailed(f"{register.name} cannot be right", why=why, next="check type, word_order and address")
    return value


def blocks(wanted: Sequence[Register], gap: int, longest: int = LONGEST) -> list[Request]:
    """Return the requests that cover the registers: neighbours in one, over at most `gap` unused ones in between."""
    found: list[Request] = []
    for register in sorted(wanted, key=lambda r: (r.function, r.address)):
        end = register.address + register.size
        if found and found[-1].function == register.function:
            last = found[-1]
            grown = max(last.size, end - last.address)
            if register.address - (last.address + last.size) <= gap and grown <= longest:
                found[-1] = last._replace(size=grown)
                continue
        found.append(Request(register.function, register.address, register.size))
    return found


def cut(register: Register, answers: Mapping[Request, Sequence[int]]) -> Sequence[int]:
    """Return the words of a register from the answers to its blocks."""
    for request, words in answers.items():
        at = register.address - request.address
        if request.function == register.function and 0 <= at <= request.size - register.size:
            return words[at : at + register.size]
    raise ReadFailed(f"{register.name} was not asked for")
