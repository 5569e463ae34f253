"""Say in words why a login on a BMC failed, from what pyghmi says, and probe a BMC without logging in."""

from __future__ import annotations

import socket

from joulelab.core.errors import Denied, MeterError, ReadFailed, Unavailable

# Get Channel Authentication Capabilities in an RMCP packet: any BMC answers it, to anybody.
_ASK = bytes.fromhex("0600ff07 00 00000000 00000000 09 2018c8 8100 38 8e04 b5".replace(" ", ""))


def login_error(where: str, said: str, context: str | None, user: str, *, again: bool = False) -> MeterError:
    """Return the error that stands for what pyghmi says of a failed login."""
    low = said.lower()
    if "incorrect password" in low or "invalid integrity check" in low or "rakp4 integrity" in low:
        return Denied(
            "the BMC refused the password",
            where=where,
            why=f"the password of user {user!r} is another one (or the BMC has a Kg key, which is not supported)",
            next="correct the password; some BMCs lock a user after several wrong ones",
        )
    if "unauthorized name" in low or "username" in low:
        return Denied(
            "the BMC does not know the user",
            where=where,
            why=f"there is no user {user!r}, or it may not use IPMI over LAN",
            next="correct the user, or enable IPMI over LAN for it on the BMC",
        )
    if "role" in low or "privelege" in low or "privilege" in low:
        return Denied(
            "the BMC does not grant the privilege",
            where=where,
            why=f"user {user!r} may not log in with the privilege that is asked for",
            next='set privilege = "user" (enough for power and sensors), or give the user more rights on the BMC',
        )
    if "cipher" in low or "algorithm" in low:
        return Unavailable(
            "the BMC does not offer the cipher suite",
            where=where,
            why="it refused the suites that were proposed",
            next="set cipher = 3 or cipher = 17 as the BMC has it, or leave it out to try both",
        )
    if "insufficient resources" in low:
        return ReadFailed(
            "the BMC has no free session", where=where, why="all are in use; idle ones end after a minute"
        )
    if low in ("timeout", "session failed to initialize", "none"):
        return no_answer(where, context, again=again)
    return ReadFailed("the login on the BMC failed", where=where, why="it broke off the login")


def no_answer(where: str, context: str | None, *, again: bool = False) -> ReadFailed:
    """Return the error for a login that got no answer (yet), by its step; `again`: the same login worked before."""
    advice = "run joulelab doctor with the name of the meter"
    if again and context in ("OPENSESSION", "EXPECTINGRAKP2", "EXPECTINGRAKP4", "ESTABLISHED"):
        why = "it answers slowly or is restarting; logging in goes on"
        return ReadFailed("the BMC is not logged in on again yet", where=where, why=why, next=advice)
    if context == "EXPECTINGRAKP2":
        why = "it answers, but not to the user's name: an unknown user, or it is restarting"
        return ReadFailed("the BMC did not finish the login", where=where, why=why, next=advice)
    if context in ("OPENSESSION", "EXPECTINGRAKP4", "ESTABLISHED"):
        why = "it answered the first steps of the login only: it is slow or restarting"
        return ReadFailed("the BMC did not finish the login", where=where, why=why, next=advice)
    why = "nothing came back: it is off, restarting, not reachable, or IPMI over LAN is disabled"
    return ReadFailed("the BMC does not answer", where=where, why=why, next=advice)


def probe(host: str, port: int, timeout_s: float) -> str:
    """Return what answers at an address without a login: `name`, `closed`, `silent`, `other`, `ipmi` or `ipmi15`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, 0, socket.SOCK_DGRAM)[0]
    except OSError:
        return "name"
    with socket.socket(family, kind, protocol) as there:
        there.settimeout(timeout_s)
        try:
            there.connect(address)
            there.send(_ASK)
            answer = there.recv(1024)
        except ConnectionRefusedError:
            return "closed"
        except OSError:
            return "silent"
    if len(answer) < 29 or answer[:4] != b"\x06\x00\xff\x07" or answer[19] != 0x38:
        return "other"
    return "ipmi" if answer[20] == 0 and answer[22] & 0x80 and answer[24] & 0x02 else "ipmi15"
