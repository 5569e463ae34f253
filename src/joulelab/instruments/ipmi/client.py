"""Send IPMI commands to a BMC over LAN or in-band, and read its sensor records."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from typing import TYPE_CHECKING, Protocol

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MissingDependency, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMAND = ("ipmitool", "-I", "open")
# Completion codes in words; others are printed as numbers.
CODES = {
    0xC0: "it is busy",
    0xC1: "it does not know the command",
    0xC3: "it ran out of time",
    0xC7: "the request has a wrong length",
    0xC9: "a parameter is out of range",
    0xCB: "there is no such sensor or record",
    0xCC: "a field of the request is not valid",
    0xCD: "the sensor or record does not support it",
    0xCE: "it could not answer",
    0xD0: "its sensor records are being updated",
    0xD2: "it is starting, or updating its firmware",
    0xD5: "not in its present state",
    0xFF: "unspecified error",
}
PRIVILEGE, RESERVATION_LOST = 0xD4, 0xC5
TOO_MANY = (0xCA, 0xC8, 0xC7, 0xFF)  # answers of BMCs to a request for more bytes than they give at once
PIECE = 16
RESERVATIONS = 5
GET_SDR_INFO, GET_SDR = (0x0A, 0x20), (0x0A, 0x23)
LAST = 0xFFFF


class BmcLink(Protocol):
    """Carry commands to one BMC."""

    where: str

    def carry_command(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data; raise ReadFailed, Denied, Unavailable by `until_ns` (monotonic)."""
        ...

    def close(self) -> None:
        """Let go of the BMC; closing twice is harmless."""
        ...


class Bmc:
    """Send commands to one BMC, each within the time limit."""

    def __init__(self, link: BmcLink, timeout_s: float) -> None:
        self.where, self.close = link.where, link.close
        self._link, self._timeout_ns = link, round(timeout_s * NS)

    def send_request(self, netfn: int, command: int, data: bytes = b"", until_ns: int = 0) -> tuple[int, bytes]:
        """Return completion code and data. Every request passes through here. Raises ReadFailed, Denied, Unavailable.

        `until_ns` (monotonic) is the time limit of a group of requests; 0 for that of a single one.
        """
        return self._link.carry_command(netfn, command, data, until_ns or self.find_deadline())

    def find_deadline(self, timeouts: int = 1) -> int:
        """Return the time (monotonic, ns) at which requests that begin now have to be answered."""
        return monotonic_ns() + timeouts * self._timeout_ns

    def request_data(self, netfn: int, command: int, data: bytes = b"", until_ns: int = 0) -> bytes:
        """Return the data of an answer; raise Denied or ReadFailed for any completion code but 0."""
        code, answer = self.send_request(netfn, command, data, until_ns)
        self._check_code(netfn, command, code)
        return answer

    def _check_code(self, netfn: int, command: int, code: int) -> None:
        if code == PRIVILEGE:
            raise Denied(
                "the BMC's user may not send this command",
                where=self.where,
                why=f"insufficient privilege for command {command:02x}h of {netfn:02x}h",
                next='set privilege = "administrator", or give the user more rights on the BMC',
                code="denied.privilege",
            )
        if code:
            what = f"the BMC refused command {command:02x}h of {netfn:02x}h"
            why = f"completion code {code:02x}h: {CODES.get(code, 'see the manual of the BMC')}"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.refused")

    def read_records(self) -> Iterator[bytes]:
        """Yield each record of the BMC's SDR repository, whole. Raises ReadFailed, Denied."""
        number, seen, gives_whole = 0, set[int](), True
        while number not in seen:
            seen.add(number)
            if gives_whole:
                code, answer = self.send_request(*GET_SDR, struct.pack("<HHBB", 0, number, 0, 0xFF))
                if code not in TOO_MANY:
                    self._check_code(*GET_SDR, code)
                gives_whole = not code and len(answer) > 6 and len(answer) == 7 + answer[6]
            if not gives_whole:
                answer = self._read_pieces(number)
            if len(answer) < 3:
                raise self._fail_records(f"{len(answer)} bytes instead of a record")
            number = int.from_bytes(answer[:2], "little")
            yield answer[2:]
            if number == LAST:
                return
        raise self._fail_records(f"they run in a circle: record {number} again")

    def count_records(self) -> int:
        """Return how many records the repository has, 0 if the BMC does not say. Raises ReadFailed, Denied."""
        code, answer = self.send_request(*GET_SDR_INFO)
        return 0 if code or len(answer) < 3 else int.from_bytes(answer[1:3], "little")

    def _read_pieces(self, number: int) -> bytes:
        """Return a record with the next record's id before it, for a BMC that gives only pieces.

        A record of which the BMC has less than its header states is returned as it is.
        """
        for _ in range(RESERVATIONS):
            reserved = self.request_data(0x0A, 0x22)
            if len(reserved) != 2:
                raise self._fail_records(f"a reservation has {len(reserved)} bytes")
            record = self.request_data(*GET_SDR, reserved + struct.pack("<HBB", number, 0, 5))
            if len(record) != 7:
                raise self._fail_records(f"a header has {len(record)} bytes")
            size, code, piece = 7 + record[6], 0, bytes(3)
            while len(record) < size and not code and len(piece) > 2:
                want = struct.pack("<HBB", number, len(record) - 2, min(PIECE, size - len(record)))
                code, piece = self.send_request(*GET_SDR, reserved + want)
                record += piece[2:]
            if code != RESERVATION_LOST:
                return record
        raise self._fail_records("other programs read them, too: the reservation was lost again and again")

    def _fail_records(self, why: str) -> ReadFailed:
        return ReadFailed(
            "the BMC's sensor records cannot be read", where=self.where, why=why, code="read-failed.records"
        )


class InBandLink:
    """Run `ipmitool ... raw` once per command: the kernel's device, or any ipmitool command line."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.where = "BMC in-band"
        self._command = list(command)

    def carry_command(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied, Unavailable, MissingDependency."""
        words = [*self._command, "raw", *(f"0x{byte:02x}" for byte in (netfn, command, *data))]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
                timeout=max((until_ns - monotonic_ns()) / NS, 0.001), env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            what, why = "ipmitool gave no answer in time", "the BMC or its driver is stuck"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.no-answer") from None
        except OSError as error:
            what, why = f"{self._command[0]} cannot be started", error.strerror or type(error).__name__
            advice = "install ipmitool, or set command to where it is"
            raise MissingDependency(
                what, where=self.where, why=why, next=advice, code="missing-dependency.ipmitool"
            ) from None
        if done.returncode == 0:
            return 0, parse_output(done.stdout)
        return parse_complaint(done.stderr, self.where), b""

    def close(self) -> None:
        """Do nothing: each command is a process of its own."""


def parse_output(text: str) -> bytes:
    """Return the bytes that `ipmitool raw` prints. Raises ReadFailed."""
    if not all(re.fullmatch("[0-9a-fA-F]{2}", word) for word in text.split()):
        why = "it is not a list of two-digit hexadecimal numbers"
        raise ReadFailed("ipmitool's answer is malformed", why=why, code="read-failed.malformed")
    return bytes.fromhex("".join(text.split()))


def parse_complaint(text: str, where: str) -> int:
    """Return the completion code that ipmitool prints on stderr. Raises MeterError for other complaints."""
    code = re.search(r"rsp=0x([0-9a-f]{1,2})\)", text, re.IGNORECASE)
    if code and int(code[1], 16):
        return int(code[1], 16)
    low = text.lower()
    if "could not open device" in low and "permission denied" in low:
        what, advice = "the BMC's device may not be opened", "run as root, or give your group access to /dev/ipmi0"
        raise Denied(what, where=where, why="permission denied", next=advice, code="denied.device")
    if "could not open device" in low:
        what, why = "no BMC can be reached in-band", "there is no /dev/ipmi0: no BMC, or its drivers are not loaded"
        advice = "sudo modprobe ipmi_si ipmi_devintf, or read it over the network: set address, user and password"
        raise Unavailable(what, where=where, why=why, next=advice, code="unavailable.no-device")
    why = "no session" if "unable to establish" in low else "it gave neither an answer nor a completion code"
    raise ReadFailed("ipmitool failed", where=where, why=why, code="read-failed.ipmitool")
