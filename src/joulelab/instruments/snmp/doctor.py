"""Find out why a PDU cannot be read: the host, the login, the tables, the outlet.

In a device that no table knows, list what might be power, for the writer of its table; no meter reads them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.snmp.client import Session, User
from joulelab.instruments.snmp.device import decode_text, find_table, list_rows, read_identity
from joulelab.instruments.snmp.settings import SnmpSettings, describe_login, read_settings
from joulelab.instruments.snmp.tables import PIECES, TRIED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.snmp.client import Value
    from joulelab.instruments.snmp.device import Identity

ENTERPRISES = "1.3.6.1.4.1"
# Limits of the search in an unknown device.
_OBJECTS, _SECONDS, _LISTED = 3_000, 20, 12
_POWER_TEXT = re.compile(r"-?\d+([.,]\d+)?\s?k?(W|Wh|VA)")
_POWER_LABEL = re.compile(r"\b(?i:power|watts?|leistung)\b(?!\W+(?i:factor|supply|on|off|state|status))|\bk?W\b")
_NUMBER_TEXT = re.compile(r"-?\d+([.,]\d+)?")
_MAINS_V = ((95, 130), (195, 255), (340, 425))


def explain_failure(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return what the device answers beyond the error of opening it: its name, tables, outlets, possible powers."""
    try:
        settings = read_settings(config)
    except ConfigError as wrong:
        return [str(wrong)]
    lines = [f"{settings.host} is read with {describe_login(settings.login)}."]
    session = settings.open_session()
    try:
        who = read_identity(session)
        lines.append(f"The device answers: {who}.")
        source = find_table(session, who, settings.vendor, settings.kind)
        lines.append(f"Its tables are those of {source.title} ({TRIED[source.tried]}).")
        for level in (source.levels[name] for name in PIECES if name in source.levels):
            rows = ", ".join(map(str, list_rows(session, level))) or "none"
            lines.append(f"Its {level.word}s are: {rows}.")
    except Unavailable:
        lines += list_suspects(session, who)
    except MeterError as failed:
        if failed.code == "read-failed.no-answer" and error.code == failed.code:
            causes = "an address list on the device, a firewall, the wrong address, or no power"
            silent = "neither to the login nor to a discovery of SNMPv3"
            if session.has_answered:
                lines.append("It is alive, but drops requests of this user: check passwords, protocols and rights.")
            else:
                lines.append(f"Nothing came back, {silent}: {causes}. Without SNMPv3, so does a wrong community.")
        elif failed.code != error.code:
            lines.append(str(failed))
    finally:
        session.close()
    return lines


def find_login_error(session: Session, settings: SnmpSettings) -> Denied | None:
    """Return the error of the login where the agent is alive but silent to it; None where it is just silent.

    Agents that cannot decrypt a request often do not answer: the same user then asks once without privacy what the
    agent is.
    """
    user = settings.login
    if isinstance(user, User):
        if not (user.priv and session.has_answered):
            return None
        plain = replace(settings, login=replace(user, priv="", priv_password="")).open_session()
        try:
            read_identity(plain)
        except MeterError as error:
            if error.code != "denied.level":  # then the password was right, the level was not
                return None
        finally:
            plain.close()
        return Denied(
            "the privacy password or protocol is wrong",
            where=settings.where,
            why="the agent drops the encrypted request and answers the same user without privacy",
            next="compare privacy and privacy_password with the device's SNMPv3 settings",
            code="denied.privacy",
        )
    try:
        is_alive = not session.has_answered and bool(session.discover())
    except MeterError:
        is_alive = False
    if not is_alive:
        return None
    return Denied(
        "the device is alive but does not accept the community",
        where=settings.where,
        why="it answers a discovery of SNMPv3, which needs no login, and is silent to this community",
        next="compare the community, and the hosts that may read, with the device's SNMP settings",
        code="denied.community",
    )


def list_suspects(session: Session, who: Identity) -> list[str]:
    """Return what in an unknown device might be power: guesses for a person, which no meter reads."""
    parts = who.object_id.split(".")
    root = ".".join(parts[:7]) if who.object_id.startswith(f"{ENTERPRISES}.") else ENTERPRISES
    objects: dict[str, Value] = {}
    end_ns = monotonic_ns() + _SECONDS * NS
    try:
        for oid, value in session.walk_subtree(root):
            objects[oid] = value
            if len(objects) >= _OBJECTS or monotonic_ns() > end_ns:
                break
    except MeterError as failed:
        return [f"Its objects cannot be listed: {failed}."]
    texts = {oid: decode_text(value) for oid, value in objects.items()}
    found = {oid: f"shows {shown!r}" for oid, shown in texts.items() if _POWER_TEXT.fullmatch(shown)}
    found |= _find_labelled(objects) | _find_products(objects)
    looked = f"Of {len(objects)} objects below {root}"
    if not found:
        reason = "no text in W, no number behind such a text, none that fits a voltage and a current beside it"
        return [f"{looked} none looks like power: {reason}."]
    listed = [f"  {oid} {why}" for oid, why in sorted(found.items())[:_LISTED]]
    more = [f"  and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    advice = (
        "None of these is read. A table for this device is one TOML file: see README.md of joulelab.instruments.snmp."
    )
    return [f"{looked} these might be power:", *listed, *more, advice]


def _find_labelled(objects: Mapping[str, Value]) -> dict[str, str]:
    """Return numbers behind a text that names power: the next object, or the next number of its row in a table."""
    listed = list(objects)
    found: dict[str, str] = {}
    for place, label in enumerate(listed):
        text = decode_text(objects[label])
        if not _POWER_LABEL.search(text) or _POWER_TEXT.fullmatch(text):
            continue
        *above, column, row = label.split(".")
        beside = (".".join((*above, str(int(column) + step), row)) for step in range(1, 9))
        for oid in (*listed[place + 1 : place + 2], *beside):
            value = objects.get(oid)
            if isinstance(value, int) or _NUMBER_TEXT.fullmatch(decode_text(value)):
                found[oid] = f"is {value if isinstance(value, int) else decode_text(value)}, behind {text!r} ({label})"
                break
    return found


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
        volts = {oid: v for oid, count in row.items() if len(row) <= 40 and (v := _match_mains(count))}
        for voltage, (power, current) in ((one, pair) for one in volts for pair in permutations(row, 2)):
            if voltage not in (power, current) and power not in found:
                amps = next((a for a in (row[current] * 10.0**-k for k in range(4)) if 0.1 <= a <= 100), 0.0)
                if any(0.5 < row[power] * step / (volts[voltage] * amps or 1e9) < 1.01 for step in (1, 10)):
                    why = f"is {row[power]}, beside what may be a voltage ({voltage}) and a current ({current})"
                    found[power] = why
    return found


def _match_mains(count: int) -> float:
    """Return a count as a mains voltage, in V to mV, 0 where it does not fit."""
    scaled = (count * 10.0**-k for k in range(4))
    return next((volts for volts in scaled if any(low <= volts <= high for low, high in _MAINS_V)), 0.0)
