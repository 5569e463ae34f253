"""Explain why a BMC cannot be read by Redfish: name, port, certificate, account, service, chassis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Denied, MeterError
from joulelab.instruments.http import Auth, HttpClient, reach, read_peer_fingerprint
from joulelab.instruments.redfish.kinds import is_part
from joulelab.instruments.redfish.walk import Walker

if TYPE_CHECKING:
    from collections.abc import Callable


def explain_failure(client: HttpClient, read_root: Callable[[HttpClient], dict[str, Any]]) -> list[str]:
    """Return sentences, from the wire upwards, up to the first that explains the failure."""
    lines = reach(client.base_url, client.timeout_s)
    if lines[-1].endswith("."):
        return lines
    try:
        root = read_root(client)
    except MeterError as wrong:
        return [*lines, _explain_service(client, wrong)]
    lines.append(f"Redfish {root.get('RedfishVersion')} answers at {client.base_url}")
    try:
        walker = Walker(client.get_json, root)
        every = walker.list_members(walker.follow_link(walker.root, "Chassis"))
    except Denied:
        return [*lines, f"The account {client.auth.user!r} or its password is wrong, or it may not read."]
    except MeterError as wrong:
        return [*lines, f"The log-in or the list of chassis fails: {wrong}."]
    ids = ", ".join(f"{one.id}{' (a part)' if is_part(one) else ''}" for one in every)
    lines.append(f"the account is right; chassis: {ids or 'none'}")
    return lines


def _explain_service(client: HttpClient, wrong: MeterError) -> str:
    is_tls = client.base_url.startswith("https")
    shown = read_peer_fingerprint(client.base_url, client.timeout_s) if is_tls else None
    if wrong.code == "denied.certificate":
        return f'The certificate is not trusted ({wrong.why}); its fingerprint to pin is "{shown}".'
    if is_tls and shown is None:
        plain = client.base_url.replace("https", "http", 1)
        with HttpClient(plain, auth=Auth(), timeout_s=client.timeout_s) as probe:
            try:
                probe.ask("GET", "/")
            except MeterError:
                return "The port does not speak TLS."
        return 'The port speaks HTTP without TLS: set address = "http://HOST:PORT".'
    return f"No Redfish there: {wrong}."
