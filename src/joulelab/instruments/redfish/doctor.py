"""Tell why a BMC cannot be read by Redfish: name, port, certificate, account, service, chassis, each in its words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.http import Auth, HttpClient, peer_fingerprint, reach
from joulelab.instruments.redfish.kinds import is_part
from joulelab.instruments.redfish.walk import Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def diagnose(
    connect: Callable[[Mapping[str, Any]], HttpClient],
    service: Callable[[HttpClient], dict[str, Any]],
    config: Mapping[str, Any],
    error: JoulelabError,
) -> list[str]:
    """Return sentences, from the wire upwards, up to the first that explains the failure."""
    try:
        client = connect(config)
    except JoulelabError as wrong:
        return [str(wrong)]
    try:
        said = reach(client.base_url, client.timeout_s)
        if said and said[-1].endswith("."):
            return said
        try:
            root = service(client)
        except MeterError as wrong:
            return [*said, _of_service(client, wrong)]
        said.append(f"Redfish {root.get('RedfishVersion')} answers at {client.base_url}")
        try:
            walker = Walker(client.get_json, root)
            every = walker.list_members(walker.follow(walker.root, "Chassis"))
        except Denied:
            return [*said, f"The account {client.auth.user!r} or its password is wrong, or it may not read."]
        except MeterError as wrong:
            return [*said, f"The log-in or the list of chassis fails: {wrong}."]
        ids = ", ".join(f"{one.id}{' (a part)' if is_part(one) else ''}" for one in every)
        said.append(f"the account is right; chassis: {ids or 'none'}")
        if isinstance(error, ConfigError | Unavailable):
            said.append(f"{error.what}{f' ({error.why})' if error.why else ''}.")
        return said
    finally:
        client.close()


def _of_service(client: HttpClient, wrong: MeterError) -> str:
    shown = peer_fingerprint(client.base_url, client.timeout_s) if client.base_url.startswith("https") else None
    if isinstance(wrong, Denied) and "certificate" in wrong.what:
        return f'The certificate is not trusted ({wrong.why}); its fingerprint to pin is "{shown}".'
    if shown is None and client.base_url.startswith("https"):
        plain = HttpClient(client.base_url.replace("https", "http", 1), auth=Auth(), timeout_s=client.timeout_s)
        try:
            plain.ask("GET", "/")
        except MeterError:
            return "The port does not speak TLS."
        finally:
            plain.close()
        return 'The port speaks HTTP without TLS: set address = "http://HOST:PORT".'
    return f"No Redfish there: {wrong}."
