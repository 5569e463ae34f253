"""Ask Electricity Maps, API v3: average carbon intensity of what is consumed, imports traced, by the hour.

From its API reference and published clients of it; this code was never tried against the real service:

- The key goes into the header `auth-token`.
- GET /v3/carbon-intensity/past-range?zone&start&end: at most 10 days at once by the hour, `end` not included;
  {"zone": "DE", "data": [{"zone", "carbonIntensity", "datetime", "isEstimated", "emissionFactorType", ...}]}.
- GET /v3/carbon-intensity/history?zone: the last 24 hours, also for free keys; {"zone": "DE", "history": [...]}.
- GET /v3/carbon-intensity/forecast?zone: a day ahead, up to 72 hours by `horizonHours`;
  {"zone": "DE", "forecast": [{"carbonIntensity", "datetime"}], "updatedAt": ...}. The name `horizonHours` and that
  values are means of the hour that begins at `datetime` are from its reference as remembered, not looked up.
- Where it finds no zone it answers for the place of the caller, unless `shouldUseFallbackCallerLookup` is false: that
  is sent, and the zone of the answer is checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.plan.rates.services.asking import DAY_S, HOUR_S, About, Told, Value, iso, number, part, utc_s

if TYPE_CHECKING:
    from joulelab.plan.rates.services.asking import Door, Wanted

ABOUT = About(
    word="em",
    title="Electricity Maps",
    address="https://api.electricitymaps.com",
    kind="average",
    unit="g/kWh",
    covers="lifecycle",
    licence="by your contract with Electricity Maps",
    resolution_s=HOUR_S,
    page_s=10 * DAY_S,
    secrets={"token": "ELECTRICITY_MAPS_TOKEN"},
    choices=("lifecycle", "direct"),
    advice="zones are written as DE, FR or US-CAL-CISO",
    notes=("CO2 equivalent of what is consumed in the zone, imports traced to their origin",),
)
PATH = "/v3/carbon-intensity"
HISTORY_S = DAY_S
HORIZONS_H = (24, 48, 72)


def ask(door: Door, wanted: Wanted) -> Told:
    """Return the newest forecast, or actual values. Raises ReadFailed, Denied, ConfigError."""
    params = {
        "zone": wanted.zone,
        "emissionFactorType": wanted.covers or ABOUT.covers,
        "temporalGranularity": "hourly",
        "shouldUseFallbackCallerLookup": "false",
    }
    if wanted.forecast:
        hours = (wanted.until_s - door.now()) / HOUR_S
        horizon = next((h for h in HORIZONS_H if h >= hours), HORIZONS_H[-1])
        more = {"horizonHours": str(horizon)} if horizon > HORIZONS_H[0] else {}  # a day is what it gives unasked
        plain = _asked(door, wanted, "forecast", params | more)
        issued_s = utc_s(part(plain, "updatedAt", str, ABOUT.title), ABOUT.title)
        return Told(_values(plain, "forecast", wanted), issued_s=issued_s)
    if wanted.since_s >= math.ceil((door.now() - HISTORY_S) / HOUR_S) * HOUR_S:
        return Told(_values(_asked(door, wanted, "history", params), "history", wanted))
    span = {"start": iso(wanted.since_s), "end": iso(wanted.until_s)}
    return Told(_values(_asked(door, wanted, "past-range", params | span), "data", wanted))


def _asked(door: Door, wanted: Wanted, what: str, params: dict[str, str]) -> object:
    answer = door.ask(f"{PATH}/{what}", params, headers={"auth-token": door.secrets["token"]})
    if answer.status == 404:
        said = door.words(answer)
        raise ConfigError(
            f"it knows no zone {wanted.zone!r}", where=ABOUT.title, why=f"HTTP 404{said}", next=ABOUT.advice
        )
    plain: object = door.json(answer, wanted)
    zone = part(plain, "zone", str, ABOUT.title)
    if zone != wanted.zone:
        raise ReadFailed(
            f"it answers for zone {zone[:40]!r}", where=ABOUT.title, why=f"asked for {wanted.zone!r}", next=ABOUT.advice
        )
    return plain


def _values(plain: object, key: str, wanted: Wanted) -> list[Value]:
    title, covers = ABOUT.title, wanted.covers or ABOUT.covers
    found = []
    for item in part(plain, key, list, title):
        start_s = utc_s(part(item, "datetime", str, title), title)
        told = item.get("emissionFactorType")
        if told not in (None, covers):
            raise ReadFailed("it answers by other emission factors", where=title, why=f"{told!r}, asked for {covers!r}")
        value = number(item.get("carbonIntensity"), title)
        estimated = item.get("isEstimated")
        estimated = estimated if isinstance(estimated, bool) else None
        found.append(Value(start_s, start_s + HOUR_S, value, estimated))
    return found
