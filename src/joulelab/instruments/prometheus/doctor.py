"""Find out why a Prometheus entry gives nothing, by asking its server other questions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, Denied, JoulelabError, MeterError, Unavailable
from joulelab.instruments.prometheus.api import nothing_found
from joulelab.instruments.prometheus.setup import api_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.prometheus.api import Api
    from joulelab.instruments.prometheus.setup import Settings

_DAY_NS = 86_400 * NS


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences that tell one cause from another."""
    try:
        asked = settings_of(config)
        api = api_of(asked)
    except JoulelabError as wrong:
        return [str(wrong)]
    with contextlib.closing(api):
        return _asked(api, asked, error)


def _asked(api: Api, asked: Settings, error: JoulelabError) -> list[str]:
    try:
        names = api.names()
        said = [sentence for query in asked.queries for sentence in _query(api, asked, query.query, plain=query.plain)]
    except Denied as denied:
        return [f"The server is there but does not let us in: {denied}."]
    except Unavailable:
        hint = "check port and path (a VictoriaMetrics cluster: /select/0/prometheus)"
        return [f"{asked.config['address']} answers, but not as Prometheus does: {hint}."]
    except MeterError as failed:
        return [f"The server cannot be asked: {failed}."]
    if not names:
        said.append("The server has no metrics at all: nothing is scraped, or it has just started.")
    return said or [f"The server answers now; before, it said: {error}."]


def _query(api: Api, asked: Settings, query: str, *, plain: bool) -> list[str]:
    now = read_utc_ns()
    since = now - _DAY_NS
    if not plain:
        try:
            api.stepped(query, now - 60 * NS, now, 15_000)
        except ConfigError as wrong:
            return [str(wrong) + "."]
        return []
    try:
        recent = api.raw(query, now - round(asked.lookback_s * NS), now)
    except ConfigError as wrong:
        return [str(wrong) + "."]
    times = [sample.t1 for samples in recent.values() for sample in samples]
    if not times:
        rows = api.labels(query, since, now)
        if not rows:
            missing = nothing_found(api, query, since, now)
            return [f"{missing.what[0].upper()}{missing.what[1:]}: {missing.why}."]
        found = f"{query} had {len(rows)} series within a day but no sample in the last {asked.lookback_s:g} s"
        return [f"{found}: its target is down (see the metric up), or scraped less often: raise lookback_s."]
    age_s = (now - max(times)) / NS
    if age_s > 25:
        hidden = "VictoriaMetrics hides the newest 30 s of evaluated queries unless started with "
        hidden += "-search.latencyOffset=0s; its /api/v1/export has raw samples. Else it is scraped that seldom."
        return [f"The newest sample of {query} is {age_s:.0f} s old. {hidden}"]
    return []
