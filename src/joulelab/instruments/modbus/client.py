"""Read registers by Modbus TCP on the shared loop: strict about answers, bounded in time, reconnecting by itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.errors import MissingDependency, ReadFailed
from joulelab.instruments.loop import shared_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 502
LONGEST = 125  # registers that one answer can hold

# What the protocol's exception codes mean here.
MEANING = {
    1: "it does not know this function code",
    2: "it has no such registers",
    3: "it refuses so many registers at once, or the values asked for",
    4: "it failed while it looked the value up",
    5: "it needs longer for the answer than it has",
    6: "it is busy with another request",
    8: "its memory is damaged",
    10: "the gateway has no way to this unit id",
    11: "the gateway got no answer from this unit id",
}
# Those that asking again does not mend.
FINAL = (1, 2, 3, 10)


class Request(NamedTuple):
    """Name a block of registers: function 3 (holding) or 4 (input), first address on the wire, how many."""

    function: int
    address: int
    size: int


class Refusal(ReadFailed):
    """Report an exception answer; `exception` is its number."""

    def __init__(self, where: str, unit: int, request: Request, code: int) -> None:
        last = request.address + request.size - 1
        asked = f"registers {request.address} to {last} by function {request.function} of unit {unit}"
        why = f"exception {code}: {MEANING.get(code, 'a code that the protocol does not define')}"
        super().__init__(f"the device refuses {asked}", where=where, why=why, next="run joulelab doctor with its name")
        self.exception = code


def check_answer(request: bytes, answer: bytes) -> bool:
    """Tell whether an answer is whole, False for the beginning of one. Raises ValueError for what answers no request.

    Both are frames as on the wire: transaction, protocol 0, length, unit, function, and then count and registers.
    """
    head = answer[:8]
    if head[2:4] != b"\0\0"[: len(head[2:4])]:
        raise ValueError("its protocol id is not 0: this is not Modbus TCP")
    if len(head) >= 2 and head[:2] not in (request[:2], b"\0\0"):
        raise ValueError("it answers another request")
    if len(head) < 8:
        return False
    length, function = int.from_bytes(head[4:6], "big"), head[7]
    if head[6] != request[6]:
        raise ValueError(f"unit {head[6]} answers in place of unit {request[6]}")
    wanted = 2 * int.from_bytes(request[10:12], "big")
    if function not in (request[7], request[7] | 0x80):
        raise ValueError(f"it is of function {function}, asked was {request[7]}")
    if length != (3 if function & 0x80 else 3 + wanted):
        raise ValueError(f"it announces {length} bytes, which is not what was asked for")
    if len(answer) > 6 + length:
        raise ValueError(f"{len(answer) - 6 - length} bytes follow it")
    if not function & 0x80 and len(answer) > 8 and answer[8] != wanted:
        raise ValueError(f"it counts {answer[8]} bytes of registers, asked were {wanted}")
    return len(answer) == 6 + length


class Connection:
    """Talk to one address; called from one thread.

    It connects when first used and again after the connection was lost. What comes late belongs to a connection
    that is closed by then, so that no answer is ever taken for another's.
    """

    def __init__(self, where: str, host: str, port: int, timeout_s: float) -> None:
        self._library = _library()
        self._where, self._host, self._port, self._timeout_s = where, host, port, timeout_s
        self._client: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._asked = b""
        self._wrong = ""

    def read(self, unit: int, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the registers of each block. Raises Refusal, ReadFailed; takes at most the time limit."""
        try:
            return shared_loop().run(self._read(unit, requests), self._timeout_s)
        except TimeoutError:
            self.close()
            why = f"no answer from {self._host}:{self._port}, unit {unit}, within {self._timeout_s:g} s"
            raise ReadFailed("the device does not answer", where=self._where, why=why, next=_DOCTOR) from None

    def close(self) -> None:
        """Close the connection; it opens again when next used."""
        client, self._client = self._client, None
        if client is not None:
            shared_loop().loop.call_soon_threadsafe(client.close)

    async def _read(self, unit: int, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        reused = self._client is not None and self._client.connected
        try:
            return await self._blocks(unit, requests)
        except _LostError:
            if not reused:  # else: it was closed while idle, or the device has restarted
                raise
        return await self._blocks(unit, requests)

    async def _blocks(self, unit: int, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        if self._client is None or not self._client.connected:
            self._client = await self._connect()
        return [await self._block(unit, request) for request in requests]

    async def _connect(self) -> Any:
        loop = asyncio.get_running_loop()
        where = f"{self._host}:{self._port}"
        try:
            await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            why = f"the name {self._host} does not resolve: {error.strerror}"
            raise ReadFailed("it cannot be reached", where=self._where, why=why, next="check address") from None
        client = self._library.client(  # its time limit is longer than ours: two equal ones would race
            self._host, port=self._port, timeout=2 * self._timeout_s + 1, retries=0, reconnect_delay=0,
            trace_packet=self._seen, trace_connect=self._connected,
        )  # fmt: skip
        if not await client.connect():
            client.close()
            why = await _why_not(self._host, self._port, where)
            raise ReadFailed("it cannot be reached", where=self._where, why=why, next=_DOCTOR)
        return client

    async def _block(self, unit: int, request: Request) -> tuple[int, ...]:
        client, self._wrong = self._client, ""
        ask = client.read_input_registers if request.function == 4 else client.read_holding_registers
        self._task = asyncio.ensure_future(ask(request.address, count=request.size, device_id=unit))
        try:
            answer = await self._task
        except asyncio.CancelledError:
            self._drop(client)
            if not self._wrong:
                raise  # our own time limit
            if self._wrong == _CLOSED:
                raise _LostError("the connection was closed", where=self._where, why=f"by {self._host}") from None
            raise ReadFailed("the answer is malformed", where=self._where, why=self._wrong, next=_DOCTOR) from None
        except self._library.error as error:
            self._drop(client)
            raise _LostError("the connection failed", where=self._where, why=str(error), next=_DOCTOR) from None
        finally:
            self._task = None
        if answer.isError():
            raise Refusal(self._where, unit, request, answer.exception_code)
        found = tuple(answer.registers)
        if len(found) != request.size:
            self._drop(client)
            why = f"{len(found)} registers instead of {request.size}"
            raise ReadFailed("the answer is malformed", where=self._where, why=why, next=_DOCTOR)
        return found

    def _drop(self, client: Any) -> None:
        self._client = None
        client.close()

    def _seen(self, sending: bool, data: bytes) -> bytes:
        """Look at a frame before the library does: it would wait on for what is no answer, or stumble."""
        if sending:
            self._asked = data
            return data
        try:
            return data if check_answer(self._asked, data) else b""
        except ValueError as error:
            self._stop(str(error))
            return b""

    def _connected(self, connected: bool) -> None:
        if not connected:
            self._stop(_CLOSED)

    def _stop(self, reason: str) -> None:
        if self._task is not None and not self._wrong:
            self._wrong = reason
            self._task.cancel()


_CLOSED = "closed"
_DOCTOR = "run joulelab doctor with its name"


class _LostError(ReadFailed):
    """Report a connection that ended while an answer was due."""


async def _why_not(host: str, port: int, where: str) -> str:
    """Return why a connection cannot be made: the library does not tell."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 0.5)
    except ConnectionRefusedError:
        return f"{where} refuses connections: the host is up, nothing serves Modbus there"
    except TimeoutError:
        return f"{where} does not answer: the host is down, or a firewall drops it"
    except OSError as error:
        return f"{where}: {error.strerror or type(error).__name__}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return f"{where} was slow to accept a connection"


class _Library(NamedTuple):
    client: Any
    error: type[Exception]


def _library() -> _Library:
    """Import the client library when first needed."""
    import logging

    try:
        from pymodbus.client import AsyncModbusTcpClient
        from pymodbus.exceptions import ModbusException
    except ModuleNotFoundError:
        why = "pymodbus is not installed"
        raise MissingDependency(
            "Modbus needs a library", where="modbus", why=why, next="pip install 'joulelab[modbus]'"
        ) from None
    # What it logs is in our errors; without a handler Python would print it.
    logging.getLogger("pymodbus.logging").addHandler(logging.NullHandler())
    return _Library(AsyncModbusTcpClient, ModbusException)
