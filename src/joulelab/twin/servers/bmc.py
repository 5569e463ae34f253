"""Serve a BMC by IPMI 2.0 over LAN: DCMI power, sensors, Lenovo XCC energy, all from a truth file."""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.model import COOLING_S
from joulelab.twin.readings import Panel
from joulelab.twin.servers.server_process import ServiceInfo, keep_file, run_server

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from joulelab.twin.servers._bmc_session import BmcAnswers
    from joulelab.twin.truth import Truth

# Base units, sensor types and entities of the specification, that this BMC uses.
CELSIUS, WATT, RPM = 1, 6, 18
TEMPERATURE, FAN, POWER_SUPPLY, OTHER_UNITS = 0x01, 0x04, 0x08, 0x0B
BOARD, SUPPLY, ADD_IN_CARD, FANS, INLET = 7, 10, 11, 29, 64
THRESHOLD, SENSOR_SPECIFIC = 0x01, 0x6F
FULL, COMPACT = 0x01, 0x02
SDR_VERSION = 0x51


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcSensor:
    """Describe a sensor: value = (m x + b 10^b_exp) 10^r_exp for a count x of 8 bits; `read` gives the value.

    A sensor without `read` is discrete, has a compact record and reports `state`.
    """

    number: int
    name: str
    entity: tuple[int, int]
    type: int
    unit: int = 0
    m: int = 1
    b: int = 0
    b_exp: int = 0
    r_exp: int = 0
    signed: bool = False
    read: Callable[[], float] | None = None
    state: int = 0

    def encode_value(self, value: float) -> int:
        """Return the count nearest to a value, as the byte of the answer."""
        lowest, highest = (-128, 127) if self.signed else (0, 255)
        exact = (value / 10.0**self.r_exp - self.b * 10.0**self.b_exp) / self.m
        return min(max(round(exact), lowest), highest) & 0xFF

    def make_record(self, record_id: int) -> bytes:
        """Return the sensor's SDR."""
        if self.read is None:
            kind, reading_type = COMPACT, SENSOR_SPECIFIC
            units, sharing = bytes([0xC0, 0, 0]), bytes([1, 0])  # no analog reading
            details = units + sharing + bytes(6)
        else:
            kind, reading_type = FULL, THRESHOLD
            m, b, form = self.m & 0x3FF, self.b & 0x3FF, 0x80 if self.signed else 0x00
            factors = bytes([form, self.unit, 0, 0, m & 0xFF, m >> 8 << 6, b & 0xFF, b >> 8 << 6, 0])
            exponents = bytes([(self.r_exp & 0xF) << 4 | self.b_exp & 0xF])
            lowest, highest = (0x80, 0x7F) if self.signed else (0x00, 0xFF)
            limits = bytes([0, 0, 0, 0, highest, lowest])  # no nominal or normal values; maximum, minimum
            details = factors + exponents + limits + bytes(11)
        head = bytes([0x20, 0, self.number, *self.entity, 0x7F, 0x68, self.type, reading_type]) + bytes(6)
        name = self.name.encode("ascii")[:16]
        body = head + details + bytes([0xC0 | len(name)]) + name
        return struct.pack("<HBBB", record_id, SDR_VERSION, kind, len(body)) + body


class SensorRepository:
    """Hold the records and return them in pieces, as a BMC does."""

    def __init__(self, sensors: list[BmcSensor], limit: int) -> None:
        self.sensors = {sensor.number: sensor for sensor in sensors}
        self._records = [sensor.make_record(number) for number, sensor in enumerate(sensors, start=1)]
        self._limit = limit
        self._reservation = 0

    def make_info(self) -> bytes:
        """Return Get SDR Repository Info: version, records, free space, stamps, operations."""
        return struct.pack("<BHHIIB", SDR_VERSION, len(self._records), 0xFFFF, 1, 1, 0x22)

    def make_reservation(self) -> bytes:
        """Return a new reservation; older ones end."""
        self._reservation = self._reservation % 0xFFFF + 1
        return struct.pack("<H", self._reservation)

    def read_record(self, data: bytes) -> tuple[int, bytes]:
        """Return completion code and answer of Get SDR."""
        if len(data) != 6:
            return 0xC7, b""
        reservation, wanted, offset, count = struct.unpack("<HHBB", data)
        last = len(self._records)
        number = {0: 1, 0xFFFF: last}.get(wanted, wanted)
        if not 1 <= number <= last:
            return 0xCB, b""
        if offset and reservation != self._reservation:
            return 0xC5, b""
        record = self._records[number - 1]
        piece = record[offset:] if count == 0xFF else record[offset : offset + count]
        if len(piece) > self._limit:
            return 0xCA, b""
        if offset >= len(record):
            return 0xC9, b""
        return 0, struct.pack("<H", 0xFFFF if number == last else number + 1) + piece


LENOVO = 19046
USER = "USERID"
DCMI, XCC = 0x2C, 0x3A
XCC_REQUEST = b"\x04\x02"
XCC_SAMPLES = 100  # summed by the newer form
FORMS = ("energy", "power", "none")
# Lengths that no answer of this BMC has, so that no garbled answer looks like a reading.
_NONSENSE = (1, *range(5, 14), *range(20, 36))


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcFlaws(PanelFlaws):
    """Describe a BMC: DCMI and XCC show `quantum_w` and `quantum_j`, sensors 8 bits of their own steps (W).

    Steps of None are the smallest multiple of 2 W that reaches above the rated power. `xcc` is the form of Lenovo's
    answer: `energy` (SD650), `power` (SD650 V2) or `none`. Sensors are named as in their records.
    """

    quantum_j: float = 0.001
    modulus_j: float | None = 2.0**32
    system_step_w: int | None = None
    supply_step_w: int | None = None
    dcmi_active: bool = True
    dcmi: bool = True
    xcc: str = "energy"
    manufacturer: int = LENOVO
    privilege: int = 4  # highest of the user: 2 user, 3 operator, 4 administrator
    xcc_privilege: int = 2  # lowest for the XCC command
    suites: tuple[int, ...] = (3, 17)
    sdr_limit: int = 255  # most bytes of a record per answer
    unavailable: tuple[str, ...] = ()  # sensors without a reading
    off: tuple[str, ...] = ()  # sensors that are not scanned

    def __post_init__(self) -> None:
        PanelFlaws.__post_init__(self)
        if self.xcc not in FORMS:
            raise ConfigError(f"xcc is {self.xcc!r}", where="bmc", next=f"one of {', '.join(FORMS)}")
        if self.modulus_j is None or self.modulus_j > 2.0**32:
            raise ConfigError("the XCC counter has 32 bits of joules", where="bmc", next="modulus_j up to 2**32")


FLAWS = BmcFlaws()


class SimulatedBmc:
    """Answer commands from a truth file, with flaws."""

    def __init__(self, truth: Truth, flaws: BmcFlaws, password: bytes) -> None:
        self._truth, self._flaws, self._password = truth, flaws, password
        self._ac = Panel(truth, "node.ac", flaws)
        self._dc = Panel(truth, "node.dc", flaws, number=1)
        self._repository = SensorRepository(self._list_sensors(), flaws.sdr_limit)
        self._extremes = (math.inf, 0.0)
        self._commands: dict[tuple[int, int], Callable[[bytes], tuple[int, bytes]]] = {
            (0x00, 0x01): lambda _: (0, b"\x01\x00\x00"),
            (0x04, 0x27): lambda _: (0, bytes(7)),
            (0x04, 0x2D): self._read_sensor,
            (0x06, 0x01): lambda _: (0, self._make_device_id()),
            (0x0A, 0x20): lambda _: (0, self._repository.make_info()),
            (0x0A, 0x22): lambda _: (0, self._repository.make_reservation()),
            (0x0A, 0x23): self._repository.read_record,
            (DCMI, 0x01): self._read_capabilities,
            (DCMI, 0x02): self._read_dcmi_power,
            (XCC, 0x32): self._read_xcc,
        }

    def is_listening(self) -> bool:
        """Return whether a packet that arrives now is answered, after the BMC's latency."""
        if self._ac.is_silent():
            return False
        if self._flaws.latency_s:
            time.sleep(self._flaws.latency_s)
        return True

    def find_password(self, user: str) -> tuple[bytes, int] | None:
        """Return the password and the highest privilege of a user."""
        if user != USER:
            return None
        return (secrets.token_bytes(16) if self._flaws.refuse else self._password), self._flaws.privilege

    def answer_command(self, netfn: int, command: int, data: bytes, privilege: int) -> tuple[int, bytes]:
        """Return completion code and data of a command."""
        run_command = self._commands.get((netfn, command))
        if run_command is None:
            return 0xC1, b""
        if netfn == XCC and privilege < self._flaws.xcc_privilege:
            return 0xD4, b""
        code, answer = run_command(data)
        if self._ac.is_garbled():
            draw = random.Random(monotonic_ns())  # noqa: S311 nonsense, not a secret
            return code, draw.randbytes(draw.choice(_NONSENSE))
        return code, answer

    # Power and energy.

    def _make_device_id(self) -> bytes:
        maker = struct.pack("<I", self._flaws.manufacturer)[:3]
        return bytes([0x20, 0x01, 0x01, 0x00, 0x02, 0x03]) + maker + struct.pack("<H", 1)

    def _read_capabilities(self, data: bytes) -> tuple[int, bytes]:
        if not self._flaws.dcmi or data[:1] != b"\xdc":
            return 0xC1, b""
        if data[1:] != b"\x01":
            return 0xCC, b""
        return 0, b"\xdc\x01\x05\x02\x00\x01\x07"  # DCMI 1.5: power management, by system interface and LAN

    def _read_dcmi_power(self, data: bytes) -> tuple[int, bytes]:
        if not self._flaws.dcmi or data[:1] != b"\xdc":
            return 0xC1, b""
        if len(data) != 4 or data[1] != 1:
            return 0xCC, b""
        now, begin = monotonic_ns(), self._truth.start_ns
        watts = self._ac.power_w(now)
        self._extremes = (min(self._extremes[0], watts), max(self._extremes[1], watts))
        elapsed = max(now - begin, NS)
        mean = self._truth.energy("node.ac", begin, now) / (elapsed / NS)
        shown = [min(round(w), 0xFFFF) for w in (watts, *self._extremes, mean)]
        state = 0x40 if self._flaws.dcmi_active else 0x00
        if not self._flaws.dcmi_active:
            shown = [0, 0, 0, 0]
        stamps = (time.time_ns() // NS & 0xFFFFFFFF, elapsed // 1_000_000 & 0xFFFFFFFF)
        return 0, b"\xdc" + struct.pack("<4HIIB", *shown, *stamps, state)

    def _read_xcc(self, data: bytes) -> tuple[int, bytes]:
        if self._flaws.xcc == "none":
            return 0xC1, b""
        if data[:2] != XCC_REQUEST:
            return 0xCC, b""
        seconds, rest = divmod(time.time_ns(), NS)
        stamp = struct.pack("<IH", seconds & 0xFFFFFFFF, rest // 1_000_000)
        if self._flaws.xcc == "energy":
            joules, milli = divmod(round(self._dc.energy_j() * 1000), 1000)
            return 0, struct.pack("<HIH", 0, joules & 0xFFFFFFFF, milli) + stamp
        total, milli = divmod(round(self._dc.power_w() * XCC_SAMPLES * 1000), 1000)
        return 0, struct.pack("<HIH", XCC_SAMPLES, total, milli) + bytes(24) + stamp

    # Sensors.

    def _read_sensor(self, data: bytes) -> tuple[int, bytes]:
        sensor = self._repository.sensors.get(data[0]) if len(data) == 1 else None
        if sensor is None:
            return 0xCB, b""
        flags = 0x80 if sensor.name in self._flaws.off else 0xC0
        if sensor.name in self._flaws.unavailable:
            flags |= 0x20
        if sensor.read is None:
            return 0, bytes([0, flags]) + struct.pack("<H", sensor.state)
        count = sensor.encode_value(sensor.read()) if flags == 0xC0 else 0
        return 0, bytes([count, flags, 0xC0])

    def _list_sensors(self) -> list[BmcSensor]:
        supply, cords = self._truth.node.supply, self._truth.node.supply.cords
        reach = 1.1 * float(supply.list_knots()[1][-1])
        system = self._flaws.system_step_w or _choose_step(reach)
        each = self._flaws.supply_step_w or _choose_step(reach * max(cords))
        draws = [
            BmcSensor(number=1, name="Sys Power", entity=(BOARD, 1), type=OTHER_UNITS, unit=WATT,
                       m=system, read=self._make_power_reader("node.ac", system, 2)),
        ]  # fmt: skip
        for n in range(1, len(cords) + 1):
            draws += [
                BmcSensor(number=0x10 + n, name=f"PSU{n} Input Power", entity=(SUPPLY, n), type=OTHER_UNITS,
                           unit=WATT, m=each, read=self._make_power_reader(f"psu:{n}", each, 2 + n)),
                BmcSensor(number=0x20 + n, name=f"PSU{n} Status", entity=(SUPPLY, n), type=POWER_SUPPLY,
                           state=0x0001),
            ]  # fmt: skip
        return [*draws, *self._list_cooling_sensors()]

    def _list_cooling_sensors(self) -> list[BmcSensor]:
        inlet = BmcSensor(number=0x40, name="Inlet Temp", entity=(INLET, 1), type=TEMPERATURE,
                           unit=CELSIUS, m=5, r_exp=-1, signed=True,
                           read=lambda: self._truth.node.cooling.inlet_c)  # fmt: skip
        fans = [
            BmcSensor(number=0x50 + n, name=f"Fan {n}", entity=(FANS, n), type=FAN, unit=RPM, m=60, b=12,
                       b_exp=2, read=self._make_fan_reader(n))
            for n in range(1, 7)
        ]  # fmt: skip
        cards = [
            BmcSensor(number=0x60 + i, name=f"GPU{i + 1} Temp", entity=(ADD_IN_CARD, i + 1), type=TEMPERATURE,
                       unit=CELSIUS, signed=True, read=self._make_gpu_reader(i))
            for i in range(len(self._truth.node.gpus))
        ]  # fmt: skip
        return [inlet, *fans, *cards]

    def _make_power_reader(self, point: str, step_w: int, number: int) -> Callable[[], float]:
        return Panel(self._truth, point, replace(self._flaws, quantum_w=float(step_w)), number=number).power_w

    def _average_power(self, point: str) -> float:
        now = monotonic_ns()
        return self._truth.energy(point, now - round(COOLING_S * NS), now) / COOLING_S

    def _make_fan_reader(self, number: int) -> Callable[[], float]:
        cooling = self._truth.node.cooling
        return lambda: cooling.compute_rpm(self._average_power("fans")) + 60.0 * (number % 3)

    def _make_gpu_reader(self, index: int) -> Callable[[], float]:
        board = self._truth.node.get_board(index)
        return lambda: float(board.compute_celsius(self._average_power(f"gpu:{index}")))


def _choose_step(reach_w: float) -> int:
    return max(2 * math.ceil(reach_w / 255 / 2), 2)


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: BmcFlaws, port: int) -> Iterator[ServiceInfo]:
    """Serve on a UDP port of loopback (0: a free one); the password is in a file of the directory, made once."""
    path = directory / "password"
    answers = SimulatedBmc(truth, flaws, keep_file(path, lambda: secrets.token_hex(8).encode()).strip())
    with serve_answers(answers, port, flaws.suites) as at:
        entry: dict[str, Any] = {"meter": "ipmi", "address": f"127.0.0.1:{at}", "user": USER}
        entry |= {"password": {"file": str(path.absolute())}, "period_s": 1.0}
        yield ServiceInfo({"bmc": entry}, ports={"ipmi": at})


@contextlib.contextmanager
def serve_answers(answers: BmcAnswers, port: int, suites: Collection[int]) -> Iterator[int]:
    """Serve answers on a UDP port of loopback; yield the port. Raises MissingDependency."""
    try:
        from joulelab.twin.servers._bmc_session import BmcServer
    except ImportError as error:
        raise MissingDependency(
            "the simulated BMC needs pyghmi", where="bmc", why=str(error), next="pip install 'joulelab[ipmi]'"
        ) from None
    server = BmcServer(answers, port, tuple(suites))
    ended = threading.Event()

    def answer_until_end() -> None:
        while not ended.is_set():
            server.answer_packets(0.1)

    thread = threading.Thread(target=answer_until_end, name="bmc", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        ended.set()
        thread.join(2.0)


if __name__ == "__main__":
    run_server(serve, FLAWS)
