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
from joulelab.twin.servers.server_process import Served, run

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from joulelab.twin.servers._bmc_session import BmcAnswers
    from joulelab.twin.truth import Truth

# Base units, sensor types and entities of the specification, as far as this BMC uses them.
CELSIUS, WATT, RPM = 1, 6, 18
TEMPERATURE, FAN, POWER_SUPPLY, OTHER_UNITS = 0x01, 0x04, 0x08, 0x0B
BOARD, SUPPLY, ADD_IN_CARD, FANS, INLET = 7, 10, 11, 29, 64
THRESHOLD, SENSOR_SPECIFIC = 0x01, 0x6F
FULL, COMPACT = 0x01, 0x02
SDR_VERSION = 0x51


@dataclass(frozen=True, slots=True, kw_only=True)
class BmcSensor:
    """Describe a sensor: value = (m x + b 10^b_exp) 10^r_exp for a count x of 8 bits; `read` gives the value.

    A sensor without `read` is discrete and has a compact record; `state` is what it reports.
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

    def count(self, value: float) -> int:
        """Return the count that shows a value best, as the byte that goes over the wire."""
        lowest, highest = (-128, 127) if self.signed else (0, 255)
        exact = (value / 10.0**self.r_exp - self.b * 10.0**self.b_exp) / self.m
        return min(max(round(exact), lowest), highest) & 0xFF

    def record(self, record_id: int) -> bytes:
        """Return the sensor's SDR."""
        kind = COMPACT if self.read is None else FULL
        body = self._compact() if self.read is None else self._full()
        return struct.pack("<HBBB", record_id, SDR_VERSION, kind, len(body)) + body

    def _head(self, reading_type: int) -> bytes:
        key = bytes([0x20, 0, self.number, *self.entity])
        return key + bytes([0x7F, 0x68, self.type, reading_type]) + bytes(6)

    def _name(self) -> bytes:
        text = self.name.encode("ascii")[:16]
        return bytes([0xC0 | len(text)]) + text

    def _full(self) -> bytes:
        m, b = self.m & 0x3FF, self.b & 0x3FF
        form = 0x80 if self.signed else 0x00
        factors = bytes([form, self.unit, 0, 0, m & 0xFF, m >> 8 << 6, b & 0xFF, b >> 8 << 6, 0])
        exponents = bytes([(self.r_exp & 0xF) << 4 | self.b_exp & 0xF])
        lowest, highest = (0x80, 0x7F) if self.signed else (0x00, 0xFF)
        limits = bytes([0, 0, 0, 0, highest, lowest])  # no nominal or normal values; maximum, minimum
        return self._head(THRESHOLD) + factors + exponents + limits + bytes(11) + self._name()

    def _compact(self) -> bytes:
        units = bytes([0xC0, 0, 0])  # no analog reading
        sharing = bytes([1, 0])
        return self._head(SENSOR_SPECIFIC) + units + sharing + bytes(6) + self._name()


class SensorRepository:
    """Hold the records and give them out in pieces, as a BMC does."""

    def __init__(self, sensors: list[BmcSensor], limit: int) -> None:
        self.sensors = {sensor.number: sensor for sensor in sensors}
        self._records = [sensor.record(number) for number, sensor in enumerate(sensors, start=1)]
        self._limit = limit
        self._reservation = 0

    def info(self) -> bytes:
        """Return Get SDR Repository Info: version, records, free space, stamps, operations."""
        return struct.pack("<BHHIIB", SDR_VERSION, len(self._records), 0xFFFF, 1, 1, 0x22)

    def reserve(self) -> bytes:
        """Return a new reservation; older ones end."""
        self._reservation = self._reservation % 0xFFFF + 1
        return struct.pack("<H", self._reservation)

    def get(self, data: bytes) -> tuple[int, bytes]:
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
XCC_SAMPLES = 100  # that the newer form sums
FORMS = ("energy", "power", "none")
# Lengths that no answer of this BMC has: what is garbled can be told from a reading.
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
    privilege: int = 4  # the most that the user may have: 2 user, 3 operator, 4 administrator
    xcc_privilege: int = 2  # the least that the XCC command asks for
    suites: tuple[int, ...] = (3, 17)
    sdr_limit: int = 255  # the most bytes of a record per answer
    unavailable: tuple[str, ...] = ()  # sensors that have no reading
    off: tuple[str, ...] = ()  # sensors that are not scanned

    def __post_init__(self) -> None:
        PanelFlaws.__post_init__(self)
        if self.xcc not in FORMS:
            raise ConfigError(f"xcc is {self.xcc!r}", where="bmc", next=f"one of {', '.join(FORMS)}")
        if self.modulus_j is None or self.modulus_j > 2.0**32:
            raise ConfigError("the XCC counter has 32 bits of joules", where="bmc", next="modulus_j up to 2**32")


FLAWS = BmcFlaws()


class Bmc:
    """Answer commands from a truth file, with flaws."""

    def __init__(self, truth: Truth, flaws: BmcFlaws, password: bytes) -> None:
        self._truth, self._flaws, self._password = truth, flaws, password
        self._ac = Panel(truth, "node.ac", flaws)
        self._dc = Panel(truth, "node.dc", flaws, number=1)
        self._repository = SensorRepository(self._sensors(), flaws.sdr_limit)
        self._extremes = (math.inf, 0.0)
        self._commands: dict[tuple[int, int], Callable[[bytes], tuple[int, bytes]]] = {
            (0x00, 0x01): lambda _: (0, b"\x01\x00\x00"),
            (0x04, 0x27): lambda _: (0, bytes(7)),
            (0x04, 0x2D): self._reading,
            (0x06, 0x01): lambda _: (0, self._device_id()),
            (0x0A, 0x20): lambda _: (0, self._repository.info()),
            (0x0A, 0x22): lambda _: (0, self._repository.reserve()),
            (0x0A, 0x23): self._repository.get,
            (DCMI, 0x01): self._capabilities,
            (DCMI, 0x02): self._dcmi_power,
            (XCC, 0x32): self._xcc,
        }

    def hears(self) -> bool:
        """Tell whether a packet that arrives now is answered, after the BMC's latency."""
        if self._ac.is_silent():
            return False
        if self._flaws.latency_s:
            time.sleep(self._flaws.latency_s)
        return True

    def password(self, user: str) -> tuple[bytes, int] | None:
        """Return the password and the highest privilege of a user."""
        if user != USER:
            return None
        return (secrets.token_bytes(16) if self._flaws.refuse else self._password), self._flaws.privilege

    def answer(self, netfn: int, command: int, data: bytes, privilege: int) -> tuple[int, bytes]:
        """Return completion code and data of a command."""
        known = self._commands.get((netfn, command))
        if known is None:
            return 0xC1, b""
        if netfn == XCC and privilege < self._flaws.xcc_privilege:
            return 0xD4, b""
        code, answer = known(data)
        if self._ac.is_garbled():
            draw = random.Random(monotonic_ns())  # noqa: S311 nonsense, not a secret
            return code, draw.randbytes(draw.choice(_NONSENSE))
        return code, answer

    # Power and energy.

    def _device_id(self) -> bytes:
        maker = struct.pack("<I", self._flaws.manufacturer)[:3]
        return bytes([0x20, 0x01, 0x01, 0x00, 0x02, 0x03]) + maker + struct.pack("<H", 1)

    def _capabilities(self, data: bytes) -> tuple[int, bytes]:
        if not self._flaws.dcmi or data[:1] != b"\xdc":
            return 0xC1, b""
        if data[1:] != b"\x01":
            return 0xCC, b""
        return 0, b"\xdc\x01\x05\x02\x00\x01\x07"  # DCMI 1.5: power management, by system interface and LAN

    def _dcmi_power(self, data: bytes) -> tuple[int, bytes]:
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

    def _xcc(self, data: bytes) -> tuple[int, bytes]:
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

    def _reading(self, data: bytes) -> tuple[int, bytes]:
        sensor = self._repository.sensors.get(data[0]) if len(data) == 1 else None
        if sensor is None:
            return 0xCB, b""
        flags = 0x80 if sensor.name in self._flaws.off else 0xC0
        if sensor.name in self._flaws.unavailable:
            flags |= 0x20
        if sensor.read is None:
            return 0, bytes([0, flags]) + struct.pack("<H", sensor.state)
        count = sensor.count(sensor.read()) if flags == 0xC0 else 0
        return 0, bytes([count, flags, 0xC0])

    def _sensors(self) -> list[BmcSensor]:
        supply, cords = self._truth.node.supply, self._truth.node.supply.cords
        reach = 1.1 * float(supply.list_knots()[1][-1])
        system = self._flaws.system_step_w or _choose_step(reach)
        each = self._flaws.supply_step_w or _choose_step(reach * max(cords))
        draws = [
            BmcSensor(number=1, name="Sys Power", entity=(BOARD, 1), type=OTHER_UNITS, unit=WATT,
                       m=system, read=self._power("node.ac", system, 2)),
        ]  # fmt: skip
        for n in range(1, len(cords) + 1):
            draws += [
                BmcSensor(number=0x10 + n, name=f"PSU{n} Input Power", entity=(SUPPLY, n), type=OTHER_UNITS,
                           unit=WATT, m=each, read=self._power(f"psu:{n}", each, 2 + n)),
                BmcSensor(number=0x20 + n, name=f"PSU{n} Status", entity=(SUPPLY, n), type=POWER_SUPPLY,
                           state=0x0001),
            ]  # fmt: skip
        return [*draws, *self._cooling()]

    def _cooling(self) -> list[BmcSensor]:
        inlet = BmcSensor(number=0x40, name="Inlet Temp", entity=(INLET, 1), type=TEMPERATURE,
                           unit=CELSIUS, m=5, r_exp=-1, signed=True,
                           read=lambda: self._truth.node.cooling.inlet_c)  # fmt: skip
        fans = [
            BmcSensor(number=0x50 + n, name=f"Fan {n}", entity=(FANS, n), type=FAN, unit=RPM, m=60, b=12,
                       b_exp=2, read=self._fan(n))
            for n in range(1, 7)
        ]  # fmt: skip
        cards = [
            BmcSensor(number=0x60 + i, name=f"GPU{i + 1} Temp", entity=(ADD_IN_CARD, i + 1), type=TEMPERATURE,
                       unit=CELSIUS, signed=True, read=self._card(i))
            for i in range(len(self._truth.node.gpus))
        ]  # fmt: skip
        return [inlet, *fans, *cards]

    def _power(self, point: str, step_w: int, number: int) -> Callable[[], float]:
        return Panel(self._truth, point, replace(self._flaws, quantum_w=float(step_w)), number=number).power_w

    def _mean_w(self, point: str) -> float:
        now = monotonic_ns()
        return self._truth.energy(point, now - round(COOLING_S * NS), now) / COOLING_S

    def _fan(self, number: int) -> Callable[[], float]:
        cooling = self._truth.node.cooling
        return lambda: cooling.compute_rpm(self._mean_w("fans")) + 60.0 * (number % 3)

    def _card(self, index: int) -> Callable[[], float]:
        board = self._truth.node.get_board(index)
        return lambda: float(board.compute_celsius(self._mean_w(f"gpu:{index}")))


def _choose_step(reach_w: float) -> int:
    return max(2 * math.ceil(reach_w / 255 / 2), 2)


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: BmcFlaws, port: int) -> Iterator[Served]:
    """Serve on a UDP port of loopback (0: a free one); the password is in a file of the directory."""
    answers = Bmc(truth, flaws, _make_password(directory / "password").encode())
    with serve_answers(answers, port, flaws.suites) as at:
        yield Served({"bmc": _make_entry(at, directory)}, ports={"ipmi": at})


@contextlib.contextmanager
def serve_answers(answers: BmcAnswers, port: int, suites: Collection[int]) -> Iterator[int]:
    """Serve what gives answers on a UDP port of loopback; give the port. Raises MissingDependency."""
    try:
        from joulelab.twin.servers._bmc_session import BmcServer
    except ImportError as error:
        raise MissingDependency(
            "the simulated BMC needs pyghmi", where="bmc", why=str(error), next="pip install 'joulelab[ipmi]'"
        ) from None
    server = BmcServer(answers, port, tuple(suites))
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            server.work(0.1)

    thread = threading.Thread(target=work, name="bmc", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        ended.set()
        thread.join(2.0)


def _make_entry(port: int, directory: Path) -> dict[str, Any]:
    return {
        "meter": "ipmi",
        "address": f"127.0.0.1:{port}",
        "user": USER,
        "password": {"file": str((directory / "password").absolute())},
        "period_s": 1.0,
    }


def _make_password(path: Path) -> str:
    """Return the password that was given out here before, or a new one."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(8))
    return path.read_text().strip()


if __name__ == "__main__":
    run(serve, FLAWS)
