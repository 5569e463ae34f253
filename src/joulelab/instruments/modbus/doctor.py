"""Find out why a Modbus device does not give what its entry asks for, by asking it other questions."""

from __future__ import annotations

import itertools
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed
from joulelab.instruments.modbus.client import MEANING, Connection, Refusal
from joulelab.instruments.modbus.registers import UNITS, Register, blocks, cut, decode
from joulelab.instruments.modbus.setup import Setup, setup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What instruments on a mains supply show; a wrong order or address falls outside somewhere.
_USUAL = {"V": (80.0, 700.0), "Hz": (45.0, 66.0), "W": (0.0, 1e6), "A": (0.0, 1e4), "J": (0.0, 1e15), "1": (-1.0, 1.0)}
_UNITS = (1, 255, 0, *range(2, 11))
_EACH_S = 0.5


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences that tell one cause from another; the device is only read."""
    try:
        asked = setup(config)
    except JoulelabError as wrong:
        return [str(wrong)]
    said = _reach(asked)
    if said:
        return said
    connection = Connection(asked.label, asked.host, asked.port, min(asked.timeout_s, _EACH_S))
    try:
        return _answers(connection, asked) or [f"The device answers now; before, it said: {error}."]
    finally:
        connection.close()


def fits(connection: Connection, asked: Setup) -> list[str]:
    """Return the settings (orders, shift by one) that make every value plausible, the smallest change first."""
    found = []
    for settings in _variants():
        try:
            if _plausible(connection, asked, settings):
                found.append(", ".join(f"{key} = {_toml(value)}" for key, value in settings.items()) or "nothing")
        except ReadFailed:
            continue
    return found


def _reach(asked: Setup) -> list[str]:
    """Return why no connection is made, nothing where one is."""
    place = f"{asked.host}:{asked.port}"
    try:
        socket.getaddrinfo(asked.host, asked.port, type=socket.SOCK_STREAM)
    except OSError:
        return [f"The name {asked.host} does not resolve: check address, or use the IP address."]
    try:
        socket.create_connection((asked.host, asked.port), asked.timeout_s).close()
    except ConnectionRefusedError:
        return [
            f"{place} refuses the connection: the host is up, but Modbus TCP is switched off there or on another port.",
            "Switch it on in the device's network services; some devices allow only one to four connections at a time.",
        ]
    except TimeoutError:
        return [f"{place} does not answer: the host is off, the address is wrong, or a firewall drops the packets."]
    except OSError as error:
        return [f"{place} cannot be reached: {error.strerror or type(error).__name__}."]
    return []


def _answers(connection: Connection, asked: Setup) -> list[str]:
    register = next(r for r in asked.plans[0].registers.values() if r.kind != "state")
    code = _code(connection, asked.unit, register)
    if code is None or code in (10, 11):
        return _other_units(connection, asked, register, code)
    if code in (1, 2, 3):
        return _other_addresses(connection, asked, register, code)
    if code:
        return [f"The device answers exception {code}: {MEANING.get(code, 'an unknown code')}. Try again later."]
    right = fits(connection, asked)
    if "nothing" in right:
        return []
    if right:
        return [f"The values cannot be right as they are read; with {right[0]} all of them are plausible."]
    tried = "in any order of words and bytes, nor one address beside"
    return [f"Unit {asked.unit} answers, but {register.name} is no plausible number {tried}: another device's profile?"]


def _other_units(connection: Connection, asked: Setup, register: Register, code: int | None) -> list[str]:
    silence = "gives no answer" if code is None else f"answers exception {code} ({MEANING[code]})"
    said = [f"{asked.host}:{asked.port} accepts connections, but unit {asked.unit} {silence}."]
    there = [u for u in _UNITS if u != asked.unit and _code(connection, u, register) not in (None, 10, 11)]
    if there:
        listed = ", ".join(str(unit) for unit in there[:5])
        return [*said, f"Of the units 0 to 10 and 255 these answer: {listed}; set unit_id = {there[0]}."]
    return [
        *said,
        "None of the units 0 to 10 and 255 answers: the gateway's serial side, or no Modbus behind the port.",
    ]


def _other_addresses(connection: Connection, asked: Setup, register: Register, code: int) -> list[str]:
    what = f"{register.name} at {register.address} by function {register.function}"
    said = [f"Unit {asked.unit} refuses {what}: exception {code}, {MEANING[code]}. Is {asked.profile.name} right?"]
    for shift, function in ((1, register.function), (-1, register.function), (0, 7 - register.function)):
        if not 0 <= register.address + shift < 65536:
            continue
        moved = replace(register, address=register.address + shift, function=function)
        if _code(connection, asked.unit, moved) == 0:
            advice = f"shift = {shift}" if shift else f"function = {function} in a profile of your own"
            said.append(f"It does answer {register.name} with {advice}.")
    return said


def _code(connection: Connection, unit: int, register: Register) -> int | None:
    """Return the exception code of a question, 0 for an answer, None for silence or nonsense."""
    try:
        connection.read(unit, blocks([register], 0))
    except Refusal as refusal:
        return refusal.exception
    except ReadFailed:
        return None
    return 0


def _variants() -> Iterator[dict[str, Any]]:
    """Yield settings to try, from none to several."""
    orders = [{"word_order": w, "byte_order": b} for w, b in itertools.product(("big", "little"), repeat=2)]
    for shift in (0, 1, -1):
        for order in orders:
            yield {k: v for k, v in order.items() if v != "big"} | ({"shift": shift} if shift else {})


def _plausible(connection: Connection, asked: Setup, settings: Mapping[str, Any]) -> bool:
    """Return whether all registers of the entry are usual with other settings, and some above 0. Raises ReadFailed."""
    config = {k: v for k, v in asked.config.items() if k not in ("word_order", "byte_order")} | dict(settings)
    if "shift" in settings:
        config["shift"] = asked.config.get("shift", 0) + settings["shift"]
    try:
        other = setup(config)
    except ConfigError:
        return False
    above = False
    for plan in other.plans:
        registers = list(plan.registers.values())
        requests = blocks(registers, other.profile.gap, other.profile.longest)
        answers = dict(zip(requests, connection.read(other.unit, requests), strict=True))
        for register in registers:
            value = decode(register, cut(register, answers))
            low, high = _USUAL.get(UNITS[register.unit].si, (-1e9, 1e9))
            if value != 0 and not (low <= value <= high and abs(value) > 1e-6):
                return False
            above = above or (register.kind != "state" and value > 0)
    return above


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
