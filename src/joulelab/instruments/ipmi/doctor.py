"""Find out why a BMC cannot be opened: the name, the network, IPMI over LAN, the user, the password."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Denied
from joulelab.instruments import wall
from joulelab.instruments.ipmi.settings import PORT, choose_interface, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

# Get Channel Authentication Capabilities in an RMCP packet: any BMC answers it, to anybody.
CAPABILITIES = bytes.fromhex("0600ff07 00 00000000 00000000 09 2018c8 8100 38 8e04 b5")
FINDINGS = {
    "name": "The name {host} does not resolve: check the address.",
    "closed": "{host} is there, but {place} is closed: enable IPMI over LAN on the BMC, or correct the port.",
    "silent": "Nothing answers on {place}: BMC off or restarting, a firewall that drops UDP, or a wrong address.",
    "other": "Something answers on {place}, but it does not speak IPMI.",
    "ipmi15": "A BMC answers on {place}, but it speaks IPMI 1.5 only: 2.0 has to be enabled.",
    "ipmi": "A BMC answers on {place} and speaks IPMI 2.0.",
}


def diagnose(config: Mapping[str, Any], error: Exception) -> list[str]:
    """Return sentences about the cause."""
    if choose_interface(config) != "lan":
        return ["It is read in-band, through ipmitool. Over LAN no root is needed: set address, user and password."]
    host, port = wall.address(config, PORT)
    found = probe_address(host, port, min(read_settings(config).timeout_s, 3.0))
    lines = [FINDINGS[found].format(host=host, place=f"UDP port {port} of {host}")]
    if found == "ipmi":
        lines.append("The login is wrong." if isinstance(error, Denied) else "The network is not the cause.")
    return lines


def probe_address(host: str, port: int, timeout_s: float) -> str:
    """Return the kind of answer at an address without a login: a key of FINDINGS."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, 0, socket.SOCK_DGRAM)[0]
    except OSError:
        return "name"
    with socket.socket(family, kind, protocol) as link:
        link.settimeout(timeout_s)
        try:
            link.connect(address)
            link.send(CAPABILITIES)
            answer = link.recv(1024)
        except ConnectionRefusedError:
            return "closed"
        except OSError:
            return "silent"
    if len(answer) < 29 or answer[:4] != b"\x06\x00\xff\x07" or answer[19] != 0x38:
        return "other"
    return "ipmi" if answer[20] == 0 and answer[22] & 0x80 and answer[24] & 0x02 else "ipmi15"
