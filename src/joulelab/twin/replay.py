"""Serve a captured device by its real protocol on loopback: `joulelab twin --replay FILE`.

The servers are those of the twin, with answers from the file. Requests that are not in the file get the protocol's
own "not there". Families of files become a folder.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.errors import ConfigError
from joulelab.instruments.capture import parse_capture, refuse_capture
from joulelab.instruments.capture.families import (
    STAND_INS,
    answer_questions,
    check_family,
    normalise_path,
    split_status,
    write_tree,
)
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.servers._http import FlawedHandler, serve_handler
from joulelab.twin.twin_server import CONFIG, write_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from joulelab.instruments.capture import Capture
    from joulelab.twin.twin_driver import Driver

NO_ADDRESS = 2  # Modbus: no such registers
UNKNOWN_COMMAND = 0xC1  # IPMI


class Replay:
    """Serve one capture within a `with` block; `entry` reads it, `environment` is to be exported.

    Raises ConfigError for a file that is not a capture, Refused for a family without a server, MissingDependency.
    """

    driver: Driver | None = None  # nothing changes it

    def __init__(self, path: Path) -> None:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"{path} cannot be read", why=why, next="give a capture", code="config.no-file") from None
        self.capture = parse_capture(text, str(path))
        check_family(self.capture.family, self.capture.settings)
        self.entry: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joulelab-replay-")))
            family = self.capture.family
            try:
                place = stack.enter_context(SERVERS.get(family, _write_files)(self.capture, folder))
            except ValueError as error:
                raise refuse_capture(family, "an answer cannot be read", str(error)) from None
            stand_ins = STAND_INS.get(family, {}) | place
            self.entry = {"meter": family, **stand_ins, **self.capture.settings}
            if "password" in self.entry:
                secret = folder / "password"
                secret.touch(mode=0o600)
                secret.write_text(self.entry["password"])
                self.entry["password"] = {"file": str(secret)}
            config = folder / "joulelab.toml"
            write_entries(config, {self.capture.meter_name: self.entry})
            self.environment = {CONFIG: str(config)}
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@contextlib.contextmanager
def _write_files(capture: Capture, folder: Path) -> Iterator[dict[str, Any]]:
    write_tree(capture, folder / capture.family)
    yield {"root": str(folder / capture.family)}


# ---- HTTP: Redfish, plugs


class _StillPanel:
    """Act as the panel of an instrument without flaws."""

    flaws = PanelFlaws()

    def is_silent(self, _: int) -> bool:
        return False

    is_garbled = is_silent


class _HttpHandler(FlawedHandler):
    bodies: Mapping[str, str]

    def make_response(self, method: str, body: bytes) -> tuple[int, Any, dict[str, str]]:  # noqa: ARG002 it is only read
        if method != "GET":
            return 405, None, {}
        text = self.bodies.get(normalise_path(self.path))
        if text is None:
            return 404, None, {}
        status, content = split_status(text)
        try:
            return status, json.loads(content) if content else None, {}
        except ValueError:
            return status, content, {}


@contextlib.contextmanager
def _serve_http(capture: Capture, _: Path) -> Iterator[dict[str, Any]]:
    bodies = {normalise_path(request): answer for request, answer in capture.exchanges.items()}
    with serve_handler(type("ReplayHandler", (_HttpHandler,), {"panel": _StillPanel(), "bodies": bodies}), 0) as port:
        scheme = "http://" if capture.family == "redfish" else ""
        yield {"address": f"{scheme}127.0.0.1:{port}"}


# ---- SNMP: net-snmp's snmpd


@contextlib.contextmanager
def _serve_snmp(capture: Capture, folder: Path) -> Iterator[dict[str, Any]]:
    from joulelab.twin.servers.pdu import make_credentials, serve_tree

    system = "1.3.6.1.2.1.1"
    tree: dict[tuple[int, ...], Callable[[], tuple[str, int | str]]] = {}
    for oid, answer in capture.exchanges.items():
        if not oid.startswith(f"{system}."):
            tree[tuple(map(int, oid.split(".")))] = _make_constant(_type_value(answer))
    described = [capture.exchanges.get(f"{system}.{n}.0", "").partition(" ")[2] for n in (2, 1)]
    known = make_credentials(folder) | {"community": STAND_INS["snmp"]["community"]}
    with serve_tree(tree, (described[0] or "0.0", described[1]), folder, known) as port:
        yield {"address": f"127.0.0.1:{port}"}


def _make_constant(value: tuple[str, int | str]) -> Callable[[], tuple[str, int | str]]:
    return lambda: value


def _type_value(answer: str) -> tuple[str, int | str]:
    """Return type and value for snmpd; a number has the smallest type that holds it."""
    kind, _, value = answer.partition(" ")
    if kind == "number":
        number = int(value)
        small = -(2**31) <= number < 2**31
        return ("integer" if small else "gauge" if 0 <= number < 2**32 else "counter64"), number
    if kind == "hex":
        return "octet", " ".join(value[k : k + 2] for k in range(0, len(value), 2))
    return ("objectid", f".{value}") if kind == "oid" else ("string", value)


# ---- Modbus


class _CapturedModbus:
    """Answer captured blocks of registers, and parts of them; others do not exist."""

    def __init__(self, exchanges: Mapping[str, str]) -> None:
        self._words: dict[tuple[int, int, int], int] = {}
        self._refused: dict[tuple[int, int, int], int] = {}
        for request, answer in exchanges.items():
            _, unit, _, function, _, first, size = request.split()
            places = [(int(unit), int(function), int(first) + k) for k in range(int(size))]
            if answer.startswith("exception"):
                self._refused[places[0]] = int(answer.split()[1])
            else:
                self._words |= dict(zip(places, (int(word, 16) for word in answer.split()), strict=True))
        self.units = sorted({unit for unit, _, _ in (*self._words, *self._refused)})

    def list_units(self) -> list[Any]:
        """Return the units for pymodbus' server."""
        from pymodbus.simulator import DataType, SimData, SimDevice

        data = [SimData(0, count=65536, values=0, datatype=DataType.REGISTERS)]
        return [SimDevice(unit, simdata=data, action=self._make_action(unit)) for unit in self.units]

    def _make_action(self, unit: int) -> Callable[..., Any]:
        async def answer_request(
            function: int, start: int, address: int, count: int, registers: list[int], new: list[Any] | None
        ) -> Any:
            from pymodbus.constants import ExcCodes

            places = [(unit, function, address + k) for k in range(count)]
            if new or any(place not in self._words for place in places):
                return ExcCodes(self._refused.get(places[0], NO_ADDRESS))
            registers[address - start : address - start + count] = [self._words[place] for place in places]
            return None

        return answer_request

    def pass_frame(self, _sending: bool, data: bytes) -> bytes:
        """Return every frame unchanged."""
        return data


@contextlib.contextmanager
def _serve_modbus(capture: Capture, _: Path) -> Iterator[dict[str, Any]]:
    from joulelab.twin.servers.modbus import serve_device

    with serve_device(_CapturedModbus(capture.exchanges), 0) as port:
        yield {"address": f"127.0.0.1:{port}"}


# ---- IPMI


class _CapturedBmc:
    def __init__(self, exchanges: Mapping[str, str], password: str) -> None:
        self._exchanges, self._password = exchanges, password.encode()

    def answer_command(self, netfn: int, command: int, data: bytes, _privilege: int) -> tuple[int, bytes]:
        text = self._exchanges.get(f"{netfn:02x} {command:02x} {data.hex()}".strip(), f"{UNKNOWN_COMMAND:02x}")
        code, _, answer = text.partition(" ")
        return int(code, 16), bytes.fromhex(answer)

    def is_listening(self) -> bool:
        return True

    def find_password(self, _user: str) -> tuple[bytes, int]:
        return self._password, 4  # an administrator


@contextlib.contextmanager
def _serve_ipmi(capture: Capture, _: Path) -> Iterator[dict[str, Any]]:
    from joulelab.twin.servers.bmc import serve_answers

    with serve_answers(_CapturedBmc(capture.exchanges, STAND_INS["ipmi"]["password"]), 0, (3, 17)) as port:
        yield {"address": f"127.0.0.1:{port}"}


# ---- analyzer


class _CapturedAnalyzer:
    """Answer questions from the capture; settings get no answer."""

    instrument = SimpleNamespace(flaws=SimpleNamespace(refuse=False))

    def __init__(self, exchanges: Mapping[str, str]) -> None:
        self._exchanges = exchanges

    def answer_message(self, message: bytes, _timeout_s: float) -> bytes:
        text = message.decode("ascii", "replace").strip()
        return answer_questions(self._exchanges, text).encode() + b"\n" if "?" in text else b""


@contextlib.contextmanager
def _serve_analyzer(capture: Capture, _: Path) -> Iterator[dict[str, Any]]:
    from joulelab.twin.servers.analyzer import TextServer, serve_in_thread

    server = TextServer(0, _CapturedAnalyzer(capture.exchanges))  # type: ignore[arg-type]
    with serve_in_thread(server):
        yield {"resource": f"TCPIP::127.0.0.1::{server.server_address[1]}::SOCKET"}


SERVERS: dict[str, Callable[[Capture, Path], AbstractContextManager[dict[str, Any]]]] = {
    "redfish": _serve_http,
    "plug": _serve_http,
    "snmp": _serve_snmp,
    "modbus": _serve_modbus,
    "ipmi": _serve_ipmi,
    "analyzer": _serve_analyzer,
}
