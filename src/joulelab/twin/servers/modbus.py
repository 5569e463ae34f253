"""Serve a twin's energy meter, or its PDU's outlets, by Modbus TCP: with the register layouts of several makers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, MissingDependency, Unavailable
from joulelab.core.text import suggest_name
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel
from joulelab.twin.servers.server_process import ServiceInfo, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.twin.truth import Truth

START_LIMIT_S = 60.0
MAINS_V, MAINS_HZ, POWER_FACTOR = 230.0, 50.0, 0.98
STRIDE = 64  # from one outlet to the next on this PDU


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """Describe registers: function codes, spans of defined registers, and (address, format, value, count per unit).

    Values are watts, joules, volts, amperes, hertz, va and factor; a number at the end is the phase.
    """

    functions: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    cells: tuple[tuple[int, str, str, float], ...]
    outlets: bool = False


LAYOUTS = {
    "sdm630": RegisterLayout(
        (4,),
        ((0, 100), (342, 42)),
        (
            *((2 * n, "f", f"volts{n + 1}", 1.0) for n in range(3)),
            *((6 + 2 * n, "f", f"amperes{n + 1}", 1.0) for n in range(3)),
            *((12 + 2 * n, "f", f"watts{n + 1}", 1.0) for n in range(3)),
            (52, "f", "watts", 1.0),
            (70, "f", "hertz", 1.0),
            (72, "f", "joules", 3.6e6),
            (342, "f", "joules", 3.6e6),
        ),
    ),
    "janitza": RegisterLayout(
        (3, 4),
        ((19000, 122),),
        (
            *((19000 + 2 * n, "f", f"volts{n + 1}", 1.0) for n in range(3)),
            *((19012 + 2 * n, "f", f"amperes{n + 1}", 1.0) for n in range(3)),
            *((19020 + 2 * n, "f", f"watts{n + 1}", 1.0) for n in range(3)),
            (19026, "f", "watts", 1.0),
            (19060, "f", "joules", 3600.0),
            (19068, "f", "joules", 3600.0),
        ),
    ),
    "iem3000": RegisterLayout(
        (3,), ((3053, 20), (3203, 8)), ((3059, "f", "watts", 1000.0), (3203, "q", "joules", 3600.0))
    ),
    "pac2200": RegisterLayout((4,), ((1, 80), (801, 40)), ((65, "f", "watts", 1.0), (801, "d", "joules", 3600.0))),
    "xerus": RegisterLayout(
        (3,),
        (),
        ((8, "f", "volts", 1.0), (10, "f", "amperes", 1.0), (18, "f", "watts", 1.0), (20, "f", "va", 1.0),
         (22, "f", "factor", 1.0)),
        outlets=True,
    ),
}  # fmt: skip
INLETS_AT, OUTLETS_AT = 0x3000, 0x8000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModbusFlaws(PanelFlaws):
    """Describe the device: its layout and its flaws. `refuse` makes it answer exception 1."""

    quantum_w: float = 0.1
    layout: str = "janitza"
    unit_id: int = 1
    word_order: str = "big"
    byte_order: str = "big"
    shift: int = 0  # offset of all addresses
    gateway: bool = True  # other units get exception 11; else silence
    exception: int = 0  # the code that answers every request
    nan: bool = False  # every value is NaN, or the integer that stands for it
    garble: str = "noise"  # garbled answers are noise, or the right frame with a wrong byte


FLAWS = ModbusFlaws()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: ModbusFlaws, port: int = 0) -> Iterator[ServiceInfo]:
    """Serve until the block ends."""
    if flaws.layout not in LAYOUTS:
        raise ConfigError(
            f"there is no layout {flaws.layout!r}", where="twin modbus", next=suggest_name(flaws.layout, LAYOUTS)
        )
    del directory  # stores nothing
    device = ModbusRegisters(truth, flaws)
    with serve_device(device, port) as at:
        entry: dict[str, Any] = {
            "meter": "modbus",
            "address": f"127.0.0.1:{at}",
            "profile": flaws.layout,
            "feeds": "node.ac",
        }
        entry |= {"unit_id": flaws.unit_id, "period_s": 1.0}
        if device.layout.outlets:
            entry |= {"outlets": list(range(1, len(truth.node.supply.cords) + 1)), "stride": STRIDE}
        yield ServiceInfo({"modbus1": entry}, {"modbus": at})


@contextlib.contextmanager
def serve_device(device: Any, port: int) -> Iterator[int]:
    """Serve an object with `list_units()` and `pass_frame(sending, data)` by pymodbus; yield the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="modbus")
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(_start_server(device, port), loop).result(START_LIMIT_S)
        try:
            yield server.transport.sockets[0].getsockname()[1]
        finally:
            asyncio.run_coroutine_threadsafe(server.shutdown(), loop).result(START_LIMIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start_server(device: Any, port: int) -> Any:
    import logging

    try:
        from pymodbus.server import ModbusTcpServer
    except ModuleNotFoundError:
        raise MissingDependency(
            "Modbus needs a library", why="pymodbus is not installed", next="pip install 'joulelab[modbus]'"
        ) from None
    logging.getLogger("pymodbus.logging").addHandler(logging.NullHandler())
    server = ModbusTcpServer(device.list_units(), address=("127.0.0.1", port), trace_packet=device.pass_frame)
    try:
        await server.serve_forever(background=True)
    except RuntimeError as error:
        raise Unavailable("the port cannot be opened", why=str(error), next="choose another port") from None
    return server


class ModbusRegisters:
    """Fill registers at each request with the current readings, with flaws."""

    def __init__(self, truth: Truth, flaws: ModbusFlaws) -> None:
        self.flaws, self.layout = flaws, LAYOUTS[flaws.layout]
        self._whole = Panel(truth, "node.ac", flaws, number=40)
        cords = range(1, len(truth.node.supply.cords) + 1)
        self._outlets = [Panel(truth, f"outlet:{n}", flaws, number=40 + n) for n in cords]
        self._random = random.Random(truth.node.seed)  # noqa: S311 noise

    def list_units(self) -> list[Any]:
        """Return the unit of this device, and one for all other numbers."""
        from pymodbus.simulator import DataType, SimData, SimDevice

        spans = self.layout.spans
        if self.layout.outlets:
            spans = (
                (0, 8),
                (INLETS_AT, STRIDE),
                *((OUTLETS_AT + n * STRIDE, STRIDE) for n in range(len(self._outlets))),
            )
        moved = [(at + self.flaws.shift, size) for at, size in spans]
        data = [SimData(max(at, 0), count=size, values=0, datatype=DataType.REGISTERS) for at, size in moved]
        other = SimData(0, count=65535, values=0, datatype=DataType.REGISTERS)
        return [
            SimDevice(self.flaws.unit_id, simdata=data, action=self.answer_request),
            *([SimDevice(0, simdata=[other], action=self.refuse_unit)] if self.flaws.unit_id else []),
        ]

    async def refuse_unit(self, *_: Any) -> Any:
        """Answer for a missing unit, as a gateway does."""
        from pymodbus.constants import ExcCodes

        return ExcCodes.GATEWAY_NO_RESPONSE

    async def answer_request(
        self, function: int, start: int, _address: int, _count: int, registers: list[int], new: list[Any] | None
    ) -> Any:
        """Write the current readings into the registers, or return an exception code."""
        from pymodbus.constants import ExcCodes

        if self.flaws.latency_s:
            await asyncio.sleep(self.flaws.latency_s)
        if self.flaws.exception:
            return ExcCodes(self.flaws.exception)
        if self.flaws.refuse or function not in self.layout.functions or new:
            return ExcCodes.ILLEGAL_FUNCTION
        now = monotonic_ns()
        if self.layout.outlets:
            self._fill_registers(registers, start, INLETS_AT, self._whole, now)
            for number, outlet in enumerate(self._outlets):
                self._fill_registers(registers, start, OUTLETS_AT + number * STRIDE, outlet, now)
        else:
            self._fill_registers(registers, start, 0, self._whole, now)
        return None

    def pass_frame(self, sending: bool, data: bytes) -> bytes:
        """Return a frame unchanged, dropped (empty) or garbled."""
        if not sending:
            return data
        silent_unit = not self.flaws.gateway and data[6] != self.flaws.unit_id
        if silent_unit or self._whole.is_silent():
            return b""
        if not self._whole.is_garbled():
            return data
        if self.flaws.garble == "noise":
            return self._random.randbytes(self._random.randrange(1, 60))
        at = self._random.randrange(len(data))
        return data[:at] + self._random.randbytes(1) + data[at + 1 :]

    def _fill_registers(self, registers: list[int], start: int, base: int, panel: Panel, now: int) -> None:
        watts, joules = panel.power_w(now), panel.energy_j(now)
        values = {"watts": watts, "joules": joules, "volts": MAINS_V, "hertz": MAINS_HZ, "factor": POWER_FACTOR}
        values |= {"va": watts / POWER_FACTOR, "amperes": watts / POWER_FACTOR / MAINS_V}
        for phase in (1, 2, 3):
            values |= {f"volts{phase}": MAINS_V, f"watts{phase}": watts / 3}
            values[f"amperes{phase}"] = watts / 3 / POWER_FACTOR / MAINS_V
        for at, form, name, per in self.layout.cells:
            words = self._encode_value(form, values[name] / per)
            first = base + at + self.flaws.shift - start
            registers[first : first + len(words)] = words

    def _encode_value(self, form: str, value: float) -> list[int]:
        """Return a value as registers, in the device's order."""
        if self.flaws.nan:
            data = struct.pack(">q", -(1 << 63)) if form == "q" else struct.pack(f">{form}", math.nan)
        else:
            data = struct.pack(f">{form}", round(value) if form == "q" else value)
        words = [data[i : i + 2] for i in range(0, len(data), 2)]
        if self.flaws.word_order == "little":
            words.reverse()
        return [int.from_bytes(word, "little" if self.flaws.byte_order == "little" else "big") for word in words]


if __name__ == "__main__":
    run_server(serve, FLAWS)
