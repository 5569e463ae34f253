"""Measure a node by its BMC: DCMI power, Lenovo XCC energy, power supplies and sensors, by IPMI over LAN or in-band."""

from __future__ import annotations

from functools import partial
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Denied, JoulelabError, MeterError, ReadFailed, Unavailable
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.ipmi import answers, sensors
from joulelab.instruments.ipmi.client import Bmc
from joulelab.instruments.ipmi.doctor import diagnose
from joulelab.instruments.ipmi.settings import (
    CONFIG,
    IpmiSettings,
    PowerSource,
    choose_interface,
    open_link,
    read_account,
    read_command,
    read_settings,
)
from joulelab.instruments.ipmi.streams import StreamFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.ipmi.answers import SensorRecord
    from joulelab.instruments.ipmi.client import BmcLink

    RowReader = Callable[[], Sequence[float]]

SUMMARY = "a node by its BMC: power (DCMI, power supplies, sensors), XCC energy, inlet temperature, fans (IPMI)"
PRIVILEGE = "a user of the BMC with IPMI over LAN; in-band: access to /dev/ipmi0 (root)"
TRIED = "the simulated node, OpenIPMI's simulator; not on hardware"
DEFAULT = False
SECRETS = ("password",)
LENOVO = (19046, 20301)  # Lenovo, and IBM before
GET_DEVICE_ID = (0x06, 0x01)
GET_READING = (0x04, 0x2D)
GET_DCMI_POWER = (0x2C, 0x02, b"\xdc\x01\x00\x00")
GET_XCC = (0x3A, 0x32, b"\x04\x02\x00\x00\x00")
# Powers (W) that a node can have. Below: kW taken for W, or a BMC that measures only itself.
NODE_W = (10.0, 1e5)
PART_W = (0.001, 1e5)  # 0 W stands for no reading
SUPPLY_W = (0.0, 1e5)  # but one of several supplies may draw nothing
# Errors of a BMC that answers, but has no such reading: now, and at opening.
NO_READING = ("read-failed.refused", "denied.privilege", "read-failed.no-reading")
ABSENT = (*NO_READING, "read-failed.malformed", "unavailable.no-supplies")
# Supplies whose sum differs by this share of DCMI's power: one of up to three is not shown, or they feed several nodes.
UNLIKE = 0.3

__all__ = ["CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "open_meter"]


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)
    if choose_interface(config) == "lan":
        read_account(config)
    else:
        read_command(config)


def open_meter(config: Mapping[str, Any], tap: Callable[[BmcLink], BmcLink] | None = None) -> Meter:
    """Log in on the BMC and find its readings. Raises ReadFailed, Denied, Unavailable, ConfigError.

    `tap` stands between the meter and the BMC, to write down the answers.
    """
    settings = read_settings(config)
    link = tap(open_link(config)) if tap else open_link(config)
    try:
        return IpmiMeter(link, settings, config)
    except JoulelabError:
        link.close()
        raise


class IpmiMeter:
    """Read one BMC."""

    def __init__(self, link: BmcLink, settings: IpmiSettings, config: Mapping[str, Any]) -> None:
        """Find the readings. Raises MeterError if one that the entry names is not there."""
        self._bmc, self._settings = Bmc(link, settings.timeout_s), settings
        self._missing: list[Missing] = []
        self._streams: list[Stream] = []
        self._rows: dict[str, RowReader] = {}
        self._first_cooling, self._dcmi_w = 0, nan
        # Opening may take several timeouts for a login.
        device_id = self._bmc.request_data(*GET_DEVICE_ID, until_ns=self._bmc.find_deadline(timeouts=5))
        self._maker = answers.parse_manufacturer(device_id)
        self._factory = StreamFactory(config, settings, link.where, self._maker)
        self._sensors: list[SensorRecord] = []
        self._broken: list[ReadFailed] = []
        named = settings.sources or ()
        needs_sensors = any(source.kind not in ("dcmi", "xcc") for source in named)
        # Reading the sensor records takes some BMCs many seconds.
        if needs_sensors or not named or settings.temperatures != () or settings.fans != ():
            self._allow_absence("node", self._read_sensors, absent=() if needs_sensors else NO_READING)
        for source in named:
            self._add_source(source)
        if not named:
            self._add_usual_sources(wall.feeds_of(config, "node.ac"))
        self._add_cooling()

    def streams(self) -> Sequence[Stream]:
        """Return one stream per reading, power supply and sensor, and one for cooling."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return a row within the timeout. Raises ReadFailed, Denied."""
        try:
            return self._rows[stream.name]()
        except MeterError as error:
            error.where = error.where or self._bmc.where
            raise

    def missing(self) -> Sequence[Missing]:
        """Return the readings that the BMC lacks, or does not give."""
        return self._missing

    def close(self) -> None:
        """Log out."""
        self._bmc.close()

    # Opening.

    def _read_sensors(self) -> None:
        found: list[SensorRecord] = []
        records = list(self._bmc.read_records())
        for record in records:
            try:
                sensor = answers.parse_record(record)
            except ReadFailed as error:  # makers get single records wrong
                self._broken.append(error)
            else:
                found += [sensor] if sensor is not None else []
        if self._broken and not found:
            raise self._broken[0]
        if (count := self._bmc.count_records()) > len(records):
            what, why = "some sensors are not shown", f"the BMC has {count} sensor records and gives {len(records)}"
            self._broken.append(ReadFailed(what, where=self._bmc.where, why=why, code="read-failed.records"))
        self._sensors = found  # all or none: a part of the supplies would make a sum that is too small
        self._missing += [Missing.from_error("node", error) for error in self._broken]

    def _add_usual_sources(self, feeds: str) -> None:
        """Add the readings that there are: DCMI, XCC on Lenovo, supplies, else a sensor of the whole node."""
        usual = [PowerSource("dcmi", feeds)]
        if self._maker in LENOVO:  # the same command may mean anything to another maker's BMC
            usual.append(PowerSource("xcc", "node.dc"))
        usual.append(PowerSource("psu", "node.ac"))
        for source in usual:
            self._allow_absence(source.feeds, partial(self._add_source, source))
        whole = sensors.choose_whole_node(self._sensors)
        if not self._streams and whole is not None:
            self._add_sensor(PowerSource("sensor", feeds, whole.name), whole)
        if not self._streams:
            names = ", ".join(s.name for s in sensors.list_powers(self._sensors) if sensors.is_readable(s))
            raise Unavailable(
                "the BMC measures no power that is known here",
                where=self._bmc.where,
                why="no active DCMI reading, no supply and no system sensor in W",
                next=f'choose one of the whole node: sources = ["sensor:NAME"] of {names}'
                if names
                else "measure at the PDU",
                code="unavailable.no-power",
            )

    def _allow_absence(self, scope: str, action: Callable[[], Any], absent: Sequence[str] = ABSENT) -> None:
        """Run an action; errors of a BMC that lacks a reading are listed as missing."""
        try:
            action()
        except MeterError as error:
            if error.code not in absent:
                raise
            advice = error.next or "" if isinstance(error, Denied) else ""
            self._missing.append(Missing(scope, error.what, error.why or "", advice, error.code))

    def _add_source(self, source: PowerSource) -> None:
        if source.kind == "dcmi":
            (self._dcmi_w,) = self._read_dcmi()
            self._add_stream(self._factory.make_power("dcmi", source, 1.0), self._read_dcmi)
        elif source.kind == "xcc":
            kind, _ = answers.parse_xcc(self._bmc.request_data(*GET_XCC))
            stream = self._factory.make_energy("xcc", source)
            if kind == "power":
                stream = self._factory.make_power("xcc", source, 0.01)
            self._add_stream(stream, partial(self._read_xcc, kind))
        elif source.kind == "sensor":
            sensor = sensors.find_power_sensor(self._sensors, source.sensor, self._bmc.where)
            self._add_sensor(source, sensor)
        else:
            self._add_supplies(source)

    def _add_sensor(self, source: PowerSource, sensor: SensorRecord) -> None:
        limits_w = NODE_W if source.feeds.startswith("node") else PART_W
        stream = self._factory.make_power(f"sensor:{sensor.name}", source, sensor.step)
        self._add_stream(stream, partial(self._read_sensor, sensor, limits_w))

    def _add_supplies(self, source: PowerSource) -> None:
        pattern = self._settings.psu_dc if source.kind == "psu.dc" else self._settings.psu
        found = sensors.choose_supplies(self._sensors, pattern, output=source.kind == "psu.dc")
        # One without a reading still counts: a sum without it would be wrong.
        latest_w = {sensor.number: self._read_first_value(sensor) for sensor in found}
        total_w = sum(latest_w.values())
        why = ""
        if not found or self._broken:  # a record that cannot be read may be a supply's: the sum would be too small
            named = f" by the name {pattern!r}" if pattern else ""
            why = f"not each supply has one sensor in W that can be read{named}"
        elif total_w < NODE_W[0]:
            why = f"their sum is {total_w:g} W"
        elif self._settings.sources is None and abs(total_w - self._dcmi_w) > max(
            UNLIKE * self._dcmi_w, sum(sensor.step for sensor in found)
        ):
            why = f"their sum is {total_w:.0f} W, DCMI shows {self._dcmi_w:.0f} W: not all, or those of several nodes"
        if why:
            what, advice = "the BMC gives no power of each supply", "leave it out of sources"
            raise Unavailable(what, where=self._bmc.where, why=why, next=advice, code="unavailable.no-supplies")
        for number, sensor in enumerate(found, start=1):
            stream = self._factory.make_supply(source, number, len(found), sensor)
            self._add_stream(stream, partial(self._read_supply, sensor, latest_w))

    def _add_cooling(self) -> None:
        wanted = sensors.choose_temperatures(self._sensors, self._settings.temperatures)
        wanted += sensors.choose_fans(self._sensors, self._settings.fans)
        found = [sensor for sensor in wanted if not isnan(self._read_first_value(sensor))]
        if found:
            self._add_stream(self._factory.make_cooling(found), partial(self._read_cooling, found))

    def _read_first_value(self, sensor: SensorRecord) -> float:
        """Return a sensor's value, NaN for one without a reading (not plugged in), which is listed as missing."""
        values: list[float] = []
        self._allow_absence("node", lambda: values.append(self._read_value(sensor)))
        return values[0] if values else nan

    def _add_stream(self, stream: Stream, row: RowReader) -> None:
        if stream.name not in self._rows:
            self._rows[stream.name] = row
            self._streams.append(stream)

    # Reading.

    def _read_dcmi(self) -> Sequence[float]:
        return (self._check_power(answers.parse_dcmi_power(self._bmc.request_data(*GET_DCMI_POWER)), NODE_W, "DCMI"),)

    def _read_xcc(self, kind: str) -> Sequence[float]:
        found, value = answers.parse_xcc(self._bmc.request_data(*GET_XCC))
        if found != kind:
            raise ReadFailed(
                f"XCC gave {found}, not {kind}", why="its answer has changed", code="read-failed.malformed"
            )
        return (self._check_power(value, NODE_W, "XCC") if kind == "power" else value,)

    def _read_sensor(self, sensor: SensorRecord, limits_w: tuple[float, float]) -> Sequence[float]:
        return (self._check_power(self._read_value(sensor), limits_w, sensor.name),)

    def _read_supply(self, sensor: SensorRecord, latest_w: dict[int, float]) -> Sequence[float]:
        """Return the power of a supply; 0 W counts if the latest powers of all supplies are that of a node."""
        latest_w[sensor.number] = self._check_power(self._read_value(sensor), SUPPLY_W, sensor.name)
        if sum(latest_w.values()) < NODE_W[0]:
            self._check_power(sum(latest_w.values()), NODE_W, "the sum of the supplies")
        return (latest_w[sensor.number],)

    def _read_value(self, sensor: SensorRecord, until_ns: int = 0) -> float:
        data = self._bmc.request_data(*GET_READING, bytes([sensor.number]), until_ns)
        return answers.parse_reading(sensor, data)

    def _check_power(self, power_w: float, limits_w: tuple[float, float], what: str) -> float:
        if limits_w[0] <= power_w <= limits_w[1]:
            return power_w
        why = f"{power_w:g} W is not the power of a node; 0 W stands for no reading"
        raise ReadFailed(
            f"{what} has no power that can be right", where=self._bmc.where, why=why, code="read-failed.no-reading"
        )

    def _read_cooling(self, wanted: Sequence[SensorRecord]) -> Sequence[float]:
        """Return temperatures (degC) and fans (rpm, or a share), NaN for those not read this time or without a reading.

        It takes half of the time limit: power is worth more. A BMC too slow for all gives the others the next time.
        Raises ReadFailed if none has a reading.
        """
        begin_ns, until_ns = monotonic_ns(), self._bmc.find_deadline()
        row = [nan] * len(wanted)
        first = self._first_cooling
        for k in range(len(wanted)):
            number = (first + k) % len(wanted)
            self._first_cooling = number
            if k and monotonic_ns() - begin_ns > (until_ns - begin_ns) / 2:
                break
            try:
                value = self._read_value(wanted[number], until_ns)
            except MeterError as error:
                if error.code not in NO_READING:
                    raise
            else:
                row[number] = value / 100.0 if wanted[number].percent else value
        if all(map(isnan, row)):
            what, why = "the BMC gives no reading of cooling now", "neither a temperature nor a fan has a reading"
            raise ReadFailed(what, where=self._bmc.where, why=why, code="read-failed.no-reading")
        return row
