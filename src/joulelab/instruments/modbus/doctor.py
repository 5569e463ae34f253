"""Find out why a Modbus device does not give the values of its entry, by other requests; the device is only read."""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed
from joulelab.instruments.modbus.client import MEANING, Connection, Refusal
from joulelab.instruments.modbus.contradictions import CODES
from joulelab.instruments.modbus.registers import UNITS, Register, decode_register, find_words, group_registers
from joulelab.instruments.modbus.settings import ModbusSettings, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

# Values on a mains supply (SI); with a wrong order or address some value falls outside.
USUAL = {"V": (80.0, 700.0), "Hz": (45.0, 66.0), "W": (0.0, 1e6), "A": (0.0, 1e4), "J": (0.0, 1e15), "1": (-1.0, 1.0)}
UNIT_IDS = (1, 255, 0, *range(2, 11))
REQUEST_S = 0.5  # for each request
REACH = {
    "read-failed.unknown-name": "The name {host} does not resolve: check address, or use the IP address.",
    "read-failed.refused": "{host}:{port} refuses the connection: the host is up, but Modbus TCP is switched off there"
    " or on another port. Switch it on in its network services; some devices allow only one to four connections.",
    "read-failed.unreachable": "{host}:{port} does not answer: the host is off, the address is wrong, or a firewall"
    " drops the packets.",
}


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences about the cause."""
    try:
        settings = read_settings(config)
    except JoulelabError as wrong:
        return [str(wrong)]
    if error.code in CODES:
        return [f"The device answers, and its values contradict each other: {error}."]
    connection = Connection(settings.label, settings.host, settings.port, min(settings.timeout_s, REQUEST_S))
    with contextlib.closing(connection):
        found = explain_answers(connection, settings)
    return found or [f"The device answers now. The error was: {error}."]


def explain_answers(connection: Connection, settings: ModbusSettings) -> list[str]:
    """Compare the answer to the entry's first register with those of other units, addresses and orders."""
    register = next(r for r in settings.plans[0].registers.values() if r.kind != "state")
    place, unit = f"{settings.host}:{settings.port}", settings.unit
    answer = _request_register(connection, unit, register)
    if answer in REACH:
        return [REACH[str(answer)].format(host=settings.host, port=settings.port)]
    if isinstance(answer, str) or answer in (10, 11):
        silence = "gives no answer" if isinstance(answer, str) else f"answers exception {answer} ({MEANING[answer]})"
        others = {other: _request_register(connection, other, register) for other in UNIT_IDS if other != unit}
        there = [other for other, code in others.items() if isinstance(code, int) and code not in (10, 11)]
        last = "None of the units 0 to 10 and 255 answers: the gateway's serial side, or no Modbus there."
        if there:
            listed = ", ".join(str(other) for other in there[:5])
            last = f"Of the units 0 to 10 and 255 these answer: {listed}; set unit_id = {there[0]}."
        return [f"{place} accepts connections, but unit {unit} {silence}.", last]
    if answer in (1, 2, 3):
        what = f"{register.name} at {register.address} by function {register.function}"
        why = f"exception {answer}, {MEANING[answer]}"
        found = [f"Unit {unit} refuses {what}: {why}. Is {settings.profile.name} right?"]
        for shift, function in ((1, register.function), (-1, register.function), (0, 7 - register.function)):
            moved = replace(register, address=(register.address + shift) % 65536, function=function)
            if _request_register(connection, unit, moved) == 0:
                advice = f"shift = {shift}" if shift else f"function = {function} in a profile of your own"
                found.append(f"It does answer {register.name} with {advice}.")
        return found
    if answer:
        return [f"The device answers exception {answer}: {MEANING.get(answer, 'an unknown code')}. Try again later."]
    fitting = find_fitting_settings(connection, settings)
    if "" in fitting:
        return []
    if fitting:
        return [f"The values cannot be right as they are read; with {' or '.join(fitting)} all of them are plausible."]
    tried = "in any order of words, nor one address beside"
    return [f"Unit {unit} answers, but {register.name} is no plausible number {tried}: another device's profile?"]


def find_fitting_settings(connection: Connection, settings: ModbusSettings) -> list[str]:
    """Return settings (order, shift by one) that make every value plausible, the smallest change first ("": none)."""
    found = []
    others = sorted({"big", "little"} - {register.word_order for register in settings.profile.registers})
    for further, order in itertools.product((0, 1, -1), ("", *others)):
        changes: dict[str, Any] = {"word_order": order} if order else {}
        changes |= {"shift": settings.config.get("shift", 0) + further} if further else {}
        with contextlib.suppress(ReadFailed, ConfigError):
            if _is_plausible(connection, read_settings({**settings.config, **changes})):
                found.append(", ".join(f"{key} = {json.dumps(value)}" for key, value in changes.items()))
    return found


def _is_plausible(connection: Connection, settings: ModbusSettings) -> bool:
    """Return whether all values are usual, and a power (of counters only: a counter) is above 0. Raises ReadFailed."""
    above, kinds = set(), {register.kind for plan in settings.plans for register in plan.registers.values()}
    for plan in settings.plans:
        registers = list(plan.registers.values())
        requests = group_registers(registers, settings.profile.gap, settings.profile.longest)
        answers = dict(zip(requests, connection.read_blocks(settings.unit, requests), strict=True))
        for register in registers:
            value = decode_register(register, find_words(register, answers))
            low, high = USUAL.get(UNITS[register.unit].si, (-1e9, 1e9))
            if value != 0 and not (low <= value <= high and abs(value) > 1e-6):
                return False
            above |= {register.kind} if value > 0 else set()
    return ("power" if "power" in kinds else "counter") in above


def _request_register(connection: Connection, unit: int, register: Register) -> int | str:
    """Return 0 for an answer, the number of an exception, or the code of an error."""
    try:
        connection.read_blocks(unit, group_registers([register], 0))
    except Refusal as refusal:
        return refusal.exception
    except ReadFailed as error:
        return error.code
    return 0
