"""Tell apart why a PDU cannot be read: its name, the host, the port, the login, the tables, the outlet.

Of a device that no table knows it lists what might be power, for whoever writes its table; none of it is read.
"""

from __future__ import annotations

import re
import socket
from itertools import permutations
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.snmp.client import MISSING, Community, Session
from joulelab.instruments.snmp.device import decode_text, find_table, list_rows, read_identity, speaks_without_privacy
from joulelab.instruments.snmp.settings import SnmpSettings, describe_login, join_rows, read_settings
from joulelab.instruments.snmp.tables import load_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.snmp.client import Value
    from joulelab.instruments.snmp.device import Identity

ENTERPRISES = "1.3.6.1.4.1"
# So much of an unknown device is looked at.
_OBJECTS, _SECONDS, _LISTED = 3_000, 20, 12
_POWER_TEXT = re.compile(r"-?\d+([.,]\d+)?\s?k?(W|Wh|VA)")
_MAINS_V = ((95, 130), (195, 255), (340, 425))


def explain(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return what is wrong, from the name of the host to the number of the outlet, as far as the device answers."""
    try:
        wanted = read_settings(config)
    except ConfigError as wrong:
        return [str(wrong)]
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as unknown:
        return [f"The name {wanted.host} does not resolve ({unknown}): check address, or the name service."]
    said = [f"{wanted.host} is {found[0][4][0]}; it is asked by {describe_login(wanted.login)}."]
    session = wanted.session()
    try:
        return said + _ask(session, wanted, error)
    finally:
        session.close()


def _ask(session: Session, wanted: SnmpSettings, error: JoulelabError) -> list[str]:
    try:
        who = read_identity(session)
    except MeterError as failed:
        return _no_answer(session, wanted, failed)
    said = [f"The device answers: {who}."]
    try:
        source = find_table(session, who, wanted.vendor, wanted.kind)
        said.append(f"Its tables are those of {source.title}.")
        if "outlet" in source.levels:
            said.append(f"Its outlets are: {join_rows(list_rows(session, source.levels['outlet']))}.")
        if "unit" in source.levels:
            unit = source.levels["unit"]
            said.append(f"Its {unit.word}s are: {join_rows(list_rows(session, unit))}.")
    except Unavailable as none:
        said.append(
            f"It is not a PDU or UPS that joulelab knows ({none.what}); vendor can be {', '.join(load_tables())}."
        )
        said += list_suspects(session, who)
    except MeterError as failed:
        said.append(f"It then stopped answering: {failed}.")
    if isinstance(error, ConfigError | Unavailable):
        said.append(str(error))
    return said


def list_suspects(session: Session, who: Identity) -> list[str]:
    """Return what in an unknown device might be power: guesses for a person, which no meter reads."""
    parts = who.object_id.split(".")
    root = ".".join(parts[:7]) if who.object_id.startswith(f"{ENTERPRISES}.") else ENTERPRISES
    try:
        objects = _walk_some(session, root)
    except MeterError as failed:
        return [f"Its objects cannot be listed: {failed}."]
    found = {
        oid: f"shows {decode_text(value)!r}"
        for oid, value in objects.items()
        if _POWER_TEXT.fullmatch(decode_text(value))
    }
    found |= _find_products(objects)
    looked = f"Of {len(objects)} objects below {root}"
    if not found:
        return [f"{looked} none looks like power: no text in W, no number that fits a voltage and a current beside it."]
    listed = [f"  {oid} {why}" for oid, why in sorted(found.items())[:_LISTED]]
    more = f"  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    advice = "None of it is read. A table for this device is one TOML file: see README.md of joulelab.instruments.snmp."
    return [f"{looked} these might be power:", *listed, *filter(None, [more]), advice]


def _walk_some(session: Session, root: str) -> dict[str, Value]:
    """Return the first objects below a name, as many as the time allows. Raises ReadFailed, Denied."""
    objects: dict[str, Value] = {}
    at, end_ns = root, monotonic_ns() + _SECONDS * NS
    while len(objects) < _OBJECTS and monotonic_ns() < end_ns:
        ((name, value),) = session.next([at])
        if value is MISSING or not name.startswith(f"{root}.") or name in objects:
            break
        objects[name] = value
        at = name
    return objects


def _find_products(objects: Mapping[str, Value]) -> dict[str, str]:
    """Return numbers that are the product of a mains voltage and a current in the same row of a table."""
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for oid, value in objects.items():
        if isinstance(value, int) and value > 0:
            parts = oid.split(".")
            for size in (1, 2):  # the row's index has one number, or two
                key = ".".join(parts[: -size - 1]), ".".join(parts[-size:])
                groups.setdefault(key, {})[oid] = value
    found: dict[str, str] = {}
    for row in groups.values():
        volts = {oid: v for oid, count in row.items() if len(row) <= 40 and (v := _as_mains(count))}
        for voltage, (power, current) in ((one, pair) for one in volts for pair in permutations(row, 2)):
            if voltage not in (power, current) and power not in found:
                amps = next((a for a in (row[current] * 10.0**-k for k in range(4)) if 0.1 <= a <= 100), 0.0)
                if any(0.5 < row[power] * step / (volts[voltage] * amps or 1e9) < 1.01 for step in (1, 10)):
                    why = f"is {row[power]}, beside what may be a voltage ({voltage}) and a current ({current})"
                    found[power] = why
    return found


def _as_mains(count: int) -> float:
    """Return a count as a mains voltage, in V to mV, 0 where it is none."""
    scaled = (count * 10.0**-k for k in range(4))
    return next((volts for volts in scaled if any(low <= volts <= high for low, high in _MAINS_V)), 0.0)


def _no_answer(session: Session, wanted: SnmpSettings, failed: MeterError) -> list[str]:
    if isinstance(failed, Denied):
        return [f"The device is alive and refuses the login: {failed.what} ({failed.why})."]
    if failed.what == "the port is closed":
        why = "SNMP is off on the device, or uses another port"
        return [f"The host answers that UDP port {wanted.port} is closed: {why}."]
    if failed.what == "the host cannot be reached":
        return [f"There is no way to the host: {failed.why}."]
    if failed.what == "the answer is malformed":
        return [f"Something answers, but not as SNMP does: {failed.why}."]
    try:
        session.discover()
    except MeterError:
        silent = (
            f"Nothing came back from {wanted.host}:{wanted.port}, neither to the login nor to a discovery of SNMPv3"
        )
        causes = "an address list on the device, a firewall, the wrong address, or no power"
        return [f"{silent}: {causes}; with SNMPv3 switched off, a wrong community looks the same."]
    if isinstance(wanted.login, Community):
        return ["The device is alive (it answers a discovery of SNMPv3) but is silent to this community: it is wrong."]
    return [_silent_user(wanted)]


def _silent_user(wanted: SnmpSettings) -> str:
    """Say what is wrong where an agent is alive and drops the requests of a user."""
    if speaks_without_privacy(wanted):
        return "The privacy password or protocol is wrong: the same user is answered without privacy."
    return "The device is alive but drops requests of this user: check its passwords, protocols and rights."
