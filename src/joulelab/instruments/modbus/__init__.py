"""Measure by Modbus TCP: energy meters and PDUs, by register profiles that are data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.hooks import Missing
from joulelab.instruments.modbus import doctor
from joulelab.instruments.modbus.client import FINAL, Connection, Refusal
from joulelab.instruments.modbus.profile import list_profiles
from joulelab.instruments.modbus.registers import Register, blocks, cut, decode
from joulelab.instruments.modbus.setup import CONFIG, Plan, Setup, setup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.errors import JoulelabError
    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.modbus.client import Request

SUMMARY = "Energy meters and PDUs: power, energy, phases (Modbus TCP, register profiles)"
PRIVILEGE = "none on this host; Modbus has no log-in, so the device's network decides"
TRIED = "the simulated node; not on hardware"
DEFAULT = False
SECRETS: tuple[str, ...] = ()

__all__ = [
    "CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "list_choices", "open_meter",
]  # fmt: skip


def list_choices() -> dict[str, dict[str, str]]:
    """Return the values of settings that are known, with their meaning."""
    return {"profile": list_profiles()}


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    setup(config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Connect and read everything once. Raises ConfigError, Unavailable, ReadFailed, MissingDependency."""
    return ModbusMeter(setup(config))


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return what further questions to the device tell of a failure."""
    return doctor.diagnose(config, error)


class ModbusMeter:
    """Read the registers of one device; each stream's in as few requests as there can be."""

    def __init__(self, asked: Setup) -> None:
        self._setup = asked
        self._connection = Connection(asked.label, asked.host, asked.port, asked.timeout_s)
        self._streams: list[Stream] = []
        self._missing: list[Missing] = []
        self._reads: dict[str, tuple[tuple[Register | None, ...], list[Request]]] = {}
        try:
            for plan in asked.plans:
                self._add(plan)
        except BaseException:
            self._connection.close()
            raise

    def streams(self) -> Sequence[Stream]:
        """Return one stream for the device or each of its outlets, and one per phase."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the values in SI. Raises ReadFailed."""
        registers, requests = self._reads[stream.name]
        answers = self._ask(requests)
        return [math.nan if register is None else self._value(register, answers) for register in registers]

    def missing(self) -> Sequence[Missing]:
        """Return the registers of the profile that this device does not have."""
        return self._missing

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, requests: list[Request]) -> dict[Request, tuple[int, ...]]:
        return dict(zip(requests, self._connection.read(self._setup.unit, requests), strict=True))

    def _value(self, register: Register, answers: Mapping[Request, Sequence[int]]) -> float:
        try:
            return decode(register, cut(register, answers))
        except ReadFailed as error:
            if register.kind == "state":
                return math.nan
            raise ReadFailed(error.what, where=self._setup.label, why=error.why, next=error.next) from None

    def _add(self, plan: Plan) -> None:
        """Find out which registers of a stream the device has."""
        profile = self._setup.profile
        present, errors = self._probe(plan)
        main = [r for r in plan.registers.values() if r.kind != "state"]
        scope = plan.place["scope"]
        if not present or (main and not any(r.name in present for r in main)):
            raise self._nothing(plan, errors)
        self._missing += [Missing.from_error(scope, error) for error in errors.values()]
        found = [register for name, register in plan.registers.items() if name in present]
        ordered = tuple(plan.registers[name] if name in present else None for name in plan.names)
        gap = profile.gap if not errors else 0  # what is missing is not read along
        self._reads[scope] = ordered, blocks(found, gap, profile.longest)
        self._streams.append(self._setup.stream(plan, present))

    def _probe(self, plan: Plan) -> tuple[dict[str, float], dict[str, ReadFailed]]:
        """Return first values of what can be read, and why the rest cannot."""
        registers = list(plan.registers.values())
        answers: dict[Request, tuple[int, ...]] = {}
        errors: dict[str, ReadFailed] = {}
        try:
            answers = self._ask(blocks(registers, self._setup.profile.gap, self._setup.profile.longest))
        except Refusal as error:
            if error.exception not in (2, 3):
                raise self._final(error) from None
            for register in registers:  # one by one: which of them is it
                try:
                    answers |= self._ask(blocks([register], 0))
                except Refusal as refused:
                    errors[register.name] = refused
        first: dict[str, float] = {}
        for register in registers:
            if register.name not in errors:
                try:
                    first[register.name] = decode(register, cut(register, answers))
                except ReadFailed as error:
                    if register.kind == "state":
                        first[register.name] = 0.0  # it has it, and may give it later
                    else:
                        errors[register.name] = error
        return first, errors

    def _nothing(self, plan: Plan, errors: Mapping[str, ReadFailed]) -> JoulelabError:
        """Return the error for a stream of which nothing that counts can be read."""
        first = next(iter(errors.values()))
        if isinstance(first, Refusal):
            return self._final(first)
        fits = doctor.fits(self._connection, self._setup)
        if fits:
            why = f"{first.what}: {first.why}"
            advice = f"set {fits[0]}: then all values are plausible"
            return ConfigError("the registers are read wrongly", where=self._setup.label, why=why, next=advice)
        scope = plan.place["scope"]
        return ReadFailed(f"nothing of {scope} can be read", where=self._setup.label, why=first.why, next=first.next)

    def _final(self, error: Refusal) -> JoulelabError:
        if error.exception not in FINAL:
            return error
        advice = f"run joulelab doctor {self._setup.label}: it tries other units, functions and addresses"
        return Unavailable(error.what, where=self._setup.label, why=error.why, next=advice)
