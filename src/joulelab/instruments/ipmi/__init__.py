"""Measure a node by its BMC: DCMI power, Lenovo XCC energy, power supplies and sensors, by IPMI over LAN or in-band."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Denied, JoulelabError, MeterError, ReadFailed, Unavailable
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.ipmi import client as ipmi
from joulelab.instruments.ipmi import parse as ipmi_parse
from joulelab.instruments.ipmi import sensors as ipmi_sensors
from joulelab.instruments.ipmi import settings as ipmi_settings
from joulelab.instruments.ipmi.cooling import READING, Cooling
from joulelab.instruments.ipmi.lan import PORT
from joulelab.instruments.ipmi.login import probe
from joulelab.instruments.ipmi.streams import Streams
from joulelab.instruments.ipmi.watched import Watched
from joulelab.instruments.settings import check_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.ipmi.parse import Sensor
    from joulelab.instruments.ipmi.settings import Settings, Source

SUMMARY = "a node by its BMC: power (DCMI, power supplies, sensors), XCC energy, inlet temperature, fans (IPMI)"
PRIVILEGE = "a user of the BMC with IPMI over LAN; in-band: access to /dev/ipmi0 (root)"
TRIED = "the simulated node; not on hardware"
DEFAULT = False
SECRETS = ("password",)
CONFIG = wall.COMMON | {
    "address": "the BMC's host or host:port (port 623)",
    "user": "the BMC's user",
    "password": "its password, from environment, file or keyring",
    "interface": "lan or in-band (lan where an address is given)",
    "command": 'the command in front of raw, in-band (["ipmitool", "-I", "open"])',
    "privilege": "user, operator or administrator (operator)",
    "cipher": "cipher suite 3 or 17 (17, or 3 where the BMC has no 17)",
    "sources": 'what to read: "auto" or a list of dcmi, xcc, psu, psu.dc, sensor:NAME',
    "psu": "pattern of the names of the supplies' input power sensors (by their entity)",
    "psu_dc": "pattern of the names of the supplies' output power sensors (by their entity)",
    "temperatures": "patterns of temperature sensors (the inlet)",
    "fans": "patterns of fan sensors (all)",
    "cooling_period_s": "seconds between readings of temperatures and fans (5.0)",
    "update_s": "seconds between the BMC's own updates (1.0)",
}
LENOVO = (19046, 20301)  # Lenovo, and IBM before
_DCMI = (0x2C, 0x02, b"\xdc\x01\x00\x00")
_XCC = (0x3A, 0x32, b"\x04\x02\x00\x00\x00")
_OPENING = 5  # timeouts that opening may take for a login


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_keys("ipmi", config, CONFIG)
    ipmi_settings.check(config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Log in on the BMC and find its readings. Raises ReadFailed, Denied, Unavailable, ConfigError."""
    check_keys("ipmi", config, CONFIG)
    chosen = ipmi_settings.settings(config)
    link = ipmi_settings.link(config)
    try:
        return IpmiMeter(link, chosen, config)
    except JoulelabError:
        link.close()
        raise


class IpmiMeter:
    """Read one BMC; what it has not is told by `missing`."""

    def __init__(self, link: ipmi.Link, chosen: Settings, config: Mapping[str, Any]) -> None:
        """Find what is to be read. Raises MeterError where it is not there."""
        self._link, self._set = Watched(link, chosen.period_s), chosen
        self._missing: list[Missing] = []
        self._rows: dict[str, Callable[[int], Sequence[float]]] = {}
        self._streams: list[Stream] = []
        device = ipmi.ask(self._link, 0x06, 0x01, b"", ipmi.deadline(_OPENING * chosen.timeout_s))
        self._maker = ipmi_parse.manufacturer(device)
        self._make = Streams(config, chosen, link.where, self._maker)
        self._sensors = self._find_sensors() if _needs_sensors(chosen) else []
        sources = chosen.sources or self._usual(config)
        for source in sources:
            self._add(source)
        self._add_cooling()

    def streams(self) -> Sequence[Stream]:
        """Return one stream per reading, power supply and sensor, and one for cooling."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return a row within the timeout. Raises ReadFailed, Denied."""
        self._link.begin(stream.name)
        try:
            return self._rows[stream.name](ipmi.deadline(self._set.timeout_s))
        except MeterError:
            self._link.end(stream.name)
            raise

    def missing(self) -> Sequence[Missing]:
        """Return what the BMC has not, or does not give."""
        return self._missing

    def close(self) -> None:
        """Log out."""
        self._link.close()

    # Opening.

    def _find_sensors(self) -> list[Sensor]:
        found: list[Sensor] = []
        broken: list[ReadFailed] = []
        for record in ipmi.records(self._link, self._set.timeout_s):
            try:
                sensor = ipmi_parse.sensor(record)
            except ReadFailed as error:  # makers get single records wrong
                broken.append(error)
            else:
                found += [sensor] if sensor is not None else []
        if broken and not found:
            raise broken[0]
        self._missing += [Missing.from_error("node", error) for error in broken]
        return ipmi_sensors.readable(found)

    def _usual(self, config: Mapping[str, Any]) -> list[Source]:
        """Return the readings that there are: DCMI, XCC on Lenovo, supplies, else a sensor of the whole node."""
        feeds = wall.feeds_of(config, "node.ac")
        found: list[Source] = []
        if self._has_dcmi():
            found.append(ipmi_settings.Source("dcmi", feeds))
        else:
            self._missing.append(Missing(feeds, "DCMI gives no power", "the BMC has none, or does not measure now"))
        if self._maker in LENOVO and self._has_xcc():  # the same command may mean anything to another maker's BMC
            found.append(ipmi_settings.Source("xcc", "node.dc"))
        if ipmi_sensors.supplies(self._sensors, self._set.psu, output=False):
            found.append(ipmi_settings.Source("psu", "node.ac"))
        else:
            self._missing.append(Missing("psu", "no power of the supplies", "they have no sensor each in W"))
        whole = None if found else ipmi_sensors.whole_node(self._sensors)
        if whole is not None:
            found.append(ipmi_settings.Source("sensor", feeds, whole.name))
        if not found:
            named = ", ".join(s.name for s in self._sensors if s.unit == ipmi_parse.WATT)
            raise Unavailable(
                "the BMC measures no power that is known here",
                where=self._link.where,
                why="no active DCMI reading, no supply and no system sensor in W",
                next=f'choose one: sources = ["sensor:NAME"] of {named}' if named else "measure at the PDU",
            )
        return found

    def _has_dcmi(self) -> bool:
        code, data = self._link.raw(*_DCMI, ipmi.deadline(self._set.timeout_s))
        return code == 0 and ipmi_parse.dcmi_power(data) is not None

    def _has_xcc(self) -> bool:
        code, data = self._link.raw(*_XCC, ipmi.deadline(self._set.timeout_s))
        if code:
            error = ipmi.refused(self._link.where, _XCC[0], _XCC[1], code)
            self._missing.append(Missing("node.dc", "XCC gives no energy", error.why or "", error.next or ""))
            return False
        ipmi_parse.xcc(data)
        return True

    def _add(self, source: Source) -> None:
        match source.kind:
            case "dcmi":
                if not self._has_dcmi():
                    raise _none(self._link.where, "power by DCMI", "it has no DCMI, or does not measure now")
                self._put(self._make.power("dcmi", "dcmi", source, 1.0), self._dcmi)
            case "xcc":
                self._add_xcc(source)
            case "sensor":
                sensor = ipmi_sensors.named(self._sensors, source.sensor, self._link.where)
                stream = self._make.power(f"sensor:{sensor.name}", "sensor", source, sensor.step)
                self._put(stream, self._one(sensor, above_w=0.0))
            case kind:
                self._add_supplies(source, output=kind == "psu.dc")

    def _add_xcc(self, source: Source) -> None:
        first = ipmi_parse.xcc(ipmi.ask(self._link, *_XCC, ipmi.deadline(self._set.timeout_s)))
        if first.energy_j is not None:
            self._put(self._make.energy("xcc", source, ipmi_parse.XCC_MODULUS_J), self._xcc_energy)
        else:
            self._put(self._make.power("xcc", "xcc", source, 0.01), self._xcc_power)

    def _add_supplies(self, source: Source, *, output: bool) -> None:
        pattern = self._set.psu_dc if output else self._set.psu
        found = ipmi_sensors.supplies(self._sensors, pattern, output=output)
        if not found:
            why = "no sensor in W has that name" if pattern else "no supply has one sensor in W of its own"
            raise _none(self._link.where, "power of its supplies", why)
        for number, sensor in enumerate(found, start=1):
            self._answers(sensor)  # one without a reading still counts: a sum without it would be wrong
            stream = self._make.supply(source, number, len(found), sensor, output=output)
            self._put(stream, self._one(sensor, above_w=-1e-9))  # a spare supply may draw nothing

    def _add_cooling(self) -> None:
        wanted = [
            *ipmi_sensors.temperatures(self._sensors, self._set.temperatures),
            *ipmi_sensors.fans(self._sensors, self._set.fans),
        ]
        found = [sensor for sensor in wanted if self._answers(sensor)]
        if found:
            self._put(self._make.cooling(found), Cooling(self._link, found, self._make.state).row)

    def _answers(self, sensor: Sensor) -> bool:
        """Tell whether a sensor has a reading now, and note where it has none: not plugged in, or not measured."""
        code, data = self._link.raw(*READING, bytes([sensor.number]), ipmi.deadline(self._set.timeout_s))
        try:
            if code:
                raise ipmi.refused(self._link.where, *READING, code)
            ipmi_parse.reading(sensor, data)
        except MeterError as error:
            if not code and not ipmi_parse.is_reading(data):
                raise
            self._missing.append(Missing("node", f"{sensor.name} is not read", error.why or error.what))
            return False
        return True

    def _put(self, stream: Stream, row: Callable[[int], Sequence[float]]) -> None:
        if stream.name not in self._rows:
            self._rows[stream.name] = row
            self._streams.append(stream)

    # Reading.

    def _dcmi(self, until_ns: int) -> Sequence[float]:
        power_w = ipmi_parse.dcmi_power(ipmi.ask(self._link, *_DCMI, until_ns))
        if power_w is None:
            why = "its DCMI reading is not active, or 0 W"
            raise ReadFailed("the BMC does not measure power now", where=self._link.where, why=why)
        return (power_w,)

    def _xcc_energy(self, until_ns: int) -> Sequence[float]:
        energy_j = ipmi_parse.xcc(ipmi.ask(self._link, *_XCC, until_ns)).energy_j
        if energy_j is None:
            raise ReadFailed("the BMC gave power, no energy", where=self._link.where, why="its XCC answer has changed")
        return (energy_j,)

    def _xcc_power(self, until_ns: int) -> Sequence[float]:
        power_w = ipmi_parse.xcc(ipmi.ask(self._link, *_XCC, until_ns)).power_w
        if power_w is None:
            raise ReadFailed("the BMC gave energy, no power", where=self._link.where, why="its XCC answer has changed")
        return (power_w,)

    def _one(self, sensor: Sensor, *, above_w: float) -> Callable[[int], Sequence[float]]:
        def row(until_ns: int) -> Sequence[float]:
            value = self._value(sensor, until_ns)
            if value <= above_w:
                why = f"{value:g} W is what a sensor without a reading says"
                raise ReadFailed(f"{sensor.name} has no reading now", where=self._link.where, why=why)
            return (value,)

        return row

    def _value(self, sensor: Sensor, until_ns: int) -> float:
        return ipmi_parse.reading(sensor, ipmi.ask(self._link, *READING, bytes([sensor.number]), until_ns))


def _needs_sensors(chosen: Settings) -> bool:
    """Tell whether the sensor records are needed: reading them takes some BMCs many seconds."""
    powers = chosen.sources is None or any(source.kind not in ("dcmi", "xcc") for source in chosen.sources)
    return powers or chosen.temperatures != () or chosen.fans != ()


def _none(where: str, what: str, why: str) -> Unavailable:
    return Unavailable(f"the BMC gives no {what}", where=where, why=why, next="leave it out of sources")


def diagnose(config: Mapping[str, Any], error: Exception) -> list[str]:
    """Tell why a BMC could not be opened: the name, the network, IPMI over LAN, the user, the password."""
    if ipmi_settings.interface(config) != "lan":
        return _in_band_advice(error)
    host, port = wall.address(config, PORT)
    found = probe(host, port, min(ipmi_settings.settings(config).timeout_s, 3.0))
    place = f"UDP port {port} of {host}"
    said = {
        "name": f"The name {host} does not resolve: check the address.",
        "closed": f"{host} is there, but {place} is closed: enable IPMI over LAN on the BMC, or correct the port.",
        "silent": f"Nothing answers on {place}: BMC off or restarting, a firewall that drops UDP, or a wrong address.",
        "other": f"Something answers on {place}, but it does not speak IPMI.",
        "ipmi15": f"A BMC answers on {place}, but it speaks IPMI 1.5 only: 2.0 has to be enabled.",
        "ipmi": f"A BMC answers on {place} and speaks IPMI 2.0.",
    }[found]
    lines = [said]
    if found == "ipmi" and isinstance(error, Denied):
        lines.append(f"The login is wrong: {error}")
    elif found == "ipmi" and isinstance(error, MeterError):
        lines.append(f"It can be reached, so the network is not the cause: {error}")
    return lines


def _in_band_advice(error: Exception) -> list[str]:
    lines = [f"In-band, through ipmitool: {error}"]
    if isinstance(error, (Unavailable, Denied)):
        lines.append("Over LAN no root is needed: set address, user and password of the BMC.")
    return lines
