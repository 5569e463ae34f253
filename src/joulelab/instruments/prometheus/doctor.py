"""Find out why a Prometheus entry gives no readings, by other questions to its server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.prometheus.settings import open_client, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD_S = 25.0


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences that distinguish causes of a failure."""
    found: list[str] = []
    try:
        settings = read_settings(config)
        client = open_client(settings)
    except JoulelabError as wrong:
        return [str(wrong)]
    with contextlib.closing(client):
        try:
            if not client.list_metrics():
                found.append("The server has no metrics: nothing is scraped, or it has just started.")
            for query in settings.queries:
                now = read_utc_ns()
                since = now - round(settings.lookback_s * NS)
                recent = client.fetch_raw(query.query, since, now)
                times = [sample.t_ns for samples in recent.values() for sample in samples]
                if not times:
                    found.append(f"{client.explain_missing(query.query, since, now, live=True)}.")
                elif (age_s := (now - max(times)) / NS) > OLD_S:
                    found.append(f"The newest sample of {query.query} is {age_s:.0f} s old: it is scraped that rarely.")
        except ConfigError as wrong:
            return [f"{wrong}."]
        except Denied as denied:
            return [f"The server is there and refuses the login: {denied}."]
        except Unavailable:
            hint = "check port and path (a VictoriaMetrics cluster: /select/0/prometheus)"
            return [f"{config['address']} answers, but not as Prometheus does: {hint}."]
        except MeterError as failed:
            return [f"The server cannot be queried: {failed}."]
    return found or [f"The server answers now; the error was: {error}."]
