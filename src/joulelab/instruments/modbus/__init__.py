"""Measure by Modbus TCP: energy meters and PDUs, by register profiles that are data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.hooks import Missing
from joulelab.instruments.modbus.client import FINAL, Connection, Refusal
from joulelab.instruments.modbus.contradictions import CODES, check_agreement, check_reading, check_zeros
from joulelab.instruments.modbus.doctor import diagnose, find_fitting_settings
from joulelab.instruments.modbus.profiles import list_profiles
from joulelab.instruments.modbus.registers import Register, decode_register, find_words, group_registers
from joulelab.instruments.modbus.settings import CONFIG, ModbusSettings, StreamPlan, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.errors import JoulelabError
    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.modbus.client import Request

SUMMARY = "Energy meters and PDUs: power, energy, phases (Modbus TCP, register profiles)"
PRIVILEGE = "none on this host; Modbus has no log-in, so the device's network decides"
TRIED = "the simulated node, which is served by pymodbus; not on hardware"
DEFAULT = False
SECRETS: tuple[str, ...] = ()
OPENING_TRIES = 3  # a load that steps between two requests contradicts itself once

__all__ = [
    "CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "list_choices", "open_meter",
]  # fmt: skip


def list_choices() -> dict[str, dict[str, str]]:
    """Return the values of settings that are known, with their meaning."""
    return {"profile": list_profiles()}


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)


def open_meter(config: Mapping[str, Any], tap: Callable[[Connection], Connection] | None = None) -> Meter:
    """Connect and read everything once. Raises ConfigError, Unavailable, ReadFailed.

    `tap` stands between the meter and the device, to write down the answers.
    """
    settings = read_settings(config)
    connection = Connection(settings.label, settings.host, settings.port, settings.timeout_s)
    return ModbusMeter(settings, tap(connection) if tap else connection)


class ModbusMeter:
    """Read the registers of one device, each stream's in as few requests as possible."""

    def __init__(self, settings: ModbusSettings, connection: Connection) -> None:
        self._settings, self._connection = settings, connection
        self._streams: list[Stream] = []
        self._missing: list[Missing] = []
        self._reads: dict[str, tuple[list[Register | None], list[Request]]] = {}
        self._phases: dict[str, dict[str, float]] = {}  # the last values of each phase
        try:
            for plan in settings.plans:
                self._add_stream(plan)
            for left in reversed(range(OPENING_TRIES)):
                try:
                    self._compare_values()
                    break
                except ReadFailed as error:
                    error.where = settings.label
                    if not left or error.code not in CODES:
                        raise
        except BaseException:
            self._connection.close()
            raise

    def streams(self) -> Sequence[Stream]:
        """Return one stream for the device or each of its outlets, and one per phase."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the values in SI. Raises ReadFailed."""
        registers, requests = self._reads[stream.name]
        self._phases.pop(stream.name, None)
        answers = self._read_requests(requests)
        row = [math.nan if r is None else self._decode_value(r, answers) for r in registers]
        values = dict(zip((c.name for c in stream.channels), row, strict=True))
        if stream.table == "phases":
            self._phases[stream.name] = values
            return row
        try:
            check_reading(values, self._phases, is_outlet=any(r is not None and r.each for r in registers))
        except ReadFailed as error:
            error.where = self._settings.label
            raise
        return row

    def missing(self) -> Sequence[Missing]:
        """Return the registers of the profile that this device does not have."""
        return self._missing

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read_requests(self, requests: list[Request]) -> dict[Request, tuple[int, ...]]:
        return dict(zip(requests, self._connection.read_blocks(self._settings.unit, requests), strict=True))

    def _decode_value(self, register: Register, answers: Mapping[Request, Sequence[int]]) -> float:
        try:
            return decode_register(register, find_words(register, answers))
        except ReadFailed as error:
            if register.kind == "state":
                return math.nan
            error.where = self._settings.label
            raise

    def _compare_values(self) -> None:
        """Read all streams, phases first, and compare their values. Raises ReadFailed."""
        wholes = []
        for stream in reversed(self._streams):
            row = self.read(stream)
            if stream.table != "phases":
                wholes.append(dict(zip((c.name for c in stream.channels), row, strict=True)))
        for values in wholes:
            check_agreement(values, self._phases)
        check_zeros(wholes)

    def _add_stream(self, plan: StreamPlan) -> None:
        """Add a stream with the registers that the device has. Raises JoulelabError if it has no power or energy."""
        settings, scope = self._settings, plan.place["scope"]
        firsts: dict[str, float] = {}
        errors: list[ReadFailed] = []
        for register in plan.registers.values():
            try:
                answers = self._read_requests(group_registers([register], 0))
                firsts[register.name] = decode_register(register, find_words(register, answers))
            except Refusal as error:
                if error.exception not in (2, 3):  # of the device, not of this register
                    raise self._explain_refusal(error) from None
                errors.append(error)
            except ReadFailed as error:
                if error.code not in ("read-failed.no-value", "read-failed.implausible"):
                    raise
                if register.kind == "state":
                    firsts[register.name] = 0.0  # the device has it, and may give it later
                elif error.code == "read-failed.implausible":  # then the others are read wrongly, too
                    raise self._explain_nothing(scope, error) from None
                else:
                    errors.append(error)
        main = [r.name for r in plan.registers.values() if r.kind != "state"]
        if main and not set(main) & set(firsts):
            raise self._explain_nothing(scope, errors[0])
        self._missing += [Missing.from_error(scope, error) for error in errors]
        if not firsts:  # a phase that the device does not have
            return
        found = [register for name, register in plan.registers.items() if name in firsts]
        requests = group_registers(found, settings.profile.gap, settings.profile.longest)
        try:
            self._read_requests(requests)
        except Refusal:  # registers in between that the device lacks
            requests = group_registers(found, 0, settings.profile.longest)
        self._reads[scope] = [plan.registers[n] if n in firsts else None for n in plan.names], requests
        self._streams.append(settings.make_stream(plan, firsts))

    def _explain_nothing(self, scope: str, first: ReadFailed) -> JoulelabError:
        """Return the error for a stream without any power or energy, from the error of its first register."""
        if isinstance(first, Refusal):
            return self._explain_refusal(first)
        label = self._settings.label
        fitting = find_fitting_settings(self._connection, self._settings)
        if fitting and "" not in fitting:
            why, advice = (
                f"{first.what}: {first.why}",
                f"set {' or '.join(fitting)}: then all values are plausible; compare them with its display",
            )
            what = "the registers are read wrongly"
            return ConfigError(what, where=label, why=why, next=advice, code="config.wrong-order")
        advice = first.next or f"joulelab doctor {label}"
        return ReadFailed(f"nothing of {scope} can be read", where=label, why=first.why, next=advice, code=first.code)

    def _explain_refusal(self, error: Refusal) -> JoulelabError:
        if error.exception not in FINAL:
            return error
        advice = f"try other units, functions and addresses: joulelab doctor {self._settings.label}"
        return Unavailable(
            error.what, where=self._settings.label, why=error.why, next=advice, code="unavailable.exception"
        )
