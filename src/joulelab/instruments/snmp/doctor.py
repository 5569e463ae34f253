"""Tell apart why a PDU cannot be read: its name, the host, the port, the login, the tables, the outlet."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.snmp.client import Community, Session
from joulelab.instruments.snmp.device import find_table, identity, rows, speaks_without_privacy
from joulelab.instruments.snmp.settings import Settings, describe, listed, settings
from joulelab.instruments.snmp.tables import tables

if TYPE_CHECKING:
    from collections.abc import Mapping


def explain(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return what is wrong, from the name of the host to the number of the outlet, as far as the device answers."""
    try:
        wanted = settings(config)
    except ConfigError as wrong:
        return [str(wrong)]
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as unknown:
        return [f"The name {wanted.host} does not resolve ({unknown}): check address, or the name service."]
    said = [f"{wanted.host} is {found[0][4][0]}; it is asked by {describe(wanted.login)}."]
    session = wanted.session()
    try:
        return said + _ask(session, wanted, error)
    finally:
        session.close()


def _ask(session: Session, wanted: Settings, error: JoulelabError) -> list[str]:
    try:
        who = identity(session)
    except MeterError as failed:
        return _no_answer(session, wanted, failed)
    said = [f"The device answers: {who}."]
    try:
        source = find_table(session, who, wanted.vendor, wanted.kind)
        said.append(f"Its tables are those of {source.title}.")
        if "outlet" in source.levels:
            said.append(f"Its outlets are: {listed(rows(session, source.levels['outlet']))}.")
        if "unit" in source.levels:
            unit = source.levels["unit"]
            said.append(f"Its {unit.word}s are: {listed(rows(session, unit))}.")
    except Unavailable as none:
        said.append(f"It is not a PDU or UPS that joulelab knows ({none.what}); vendor can be {', '.join(tables())}.")
    except MeterError as failed:
        said.append(f"It then stopped answering: {failed}.")
    if isinstance(error, ConfigError | Unavailable):
        said.append(str(error))
    return said


def _no_answer(session: Session, wanted: Settings, failed: MeterError) -> list[str]:
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


def _silent_user(wanted: Settings) -> str:
    """Say what is wrong where an agent is alive and drops the requests of a user."""
    if speaks_without_privacy(wanted):
        return "The privacy password or protocol is wrong: the same user is answered without privacy."
    return "The device is alive but drops requests of this user: check its passwords, protocols and rights."
