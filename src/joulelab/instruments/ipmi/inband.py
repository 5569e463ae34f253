"""Send IPMI commands in-band, through ipmitool and the kernel's device, or any ipmitool command line."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MissingDependency, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = ("ipmitool", "-I", "open")
_REFUSED = re.compile(r"rsp=0x([0-9a-f]{1,2})\)", re.IGNORECASE)
_BYTES = re.compile(r"\s*(?:[0-9a-f]{2}\s+)*[0-9a-f]{2}\s*|\s*", re.IGNORECASE)


class InBand:
    """Run `ipmitool ... raw` once per command."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self.where = "BMC in-band"
        self._command = list(command)

    def raw(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied, Unavailable, MissingDependency."""
        words = [*self._command, "raw", *(f"0x{byte:02x}" for byte in (netfn, command, *data))]
        left_s = (until_ns - monotonic_ns()) / NS
        if left_s <= 0:
            raise self._late()
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=left_s,
                check=False, env=os.environ | {"LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._late() from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            advice = "install ipmitool, or set command to where it is"
            raise MissingDependency(
                f"{self._command[0]} cannot be started", where=self.where, why=why, next=advice
            ) from None
        if done.returncode == 0:
            return 0, answer_bytes(done.stdout)
        return refused_code(done.stderr, self.where), b""

    def close(self) -> None:
        """Do nothing: each command is a process of its own."""

    def _late(self) -> ReadFailed:
        return ReadFailed("ipmitool gave no answer in time", where=self.where, why="the BMC or its driver is stuck")


def answer_bytes(text: str) -> bytes:
    """Return the bytes that `ipmitool raw` prints. Raises ReadFailed."""
    if not _BYTES.fullmatch(text):
        raise ReadFailed("ipmitool's answer is malformed", why="it is not a list of two-digit hexadecimal numbers")
    return bytes.fromhex("".join(text.split()))


def refused_code(text: str, where: str) -> int:
    """Return the completion code in what ipmitool says on stderr; raise what else it complains of."""
    code = _REFUSED.search(text)
    if code and int(code[1], 16):
        return int(code[1], 16)
    low = text.lower()
    if "could not open device" in low:
        if "permission denied" in low:
            advice = "run as root, or give your group access to /dev/ipmi0 by a udev rule"
            raise Denied("the BMC's device may not be opened", where=where, why="permission denied", next=advice)
        advice = "sudo modprobe ipmi_si ipmi_devintf, or read it over the network: set address, user and password"
        why = "there is no /dev/ipmi0: no BMC, or its drivers are not loaded"
        raise Unavailable("there is no BMC to be reached in-band", where=where, why=why, next=advice)
    if "unable to establish" in low:
        raise ReadFailed("ipmitool could not log in", where=where, why="no session with the BMC")
    raise ReadFailed("ipmitool failed", where=where, why="it gave neither an answer nor a completion code")
