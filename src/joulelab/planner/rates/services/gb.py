"""Ask the Carbon Intensity API of Great Britain (NESO): average, direct, half-hourly; forecast two days ahead, no key.

From its documentation (api-definitions of carbon-intensity, API without a version in its path) and what others report
of it; this code was never tried against the real service:

- GET /intensity/{from}/{to} and /intensity/{from}/fw48h, times as 2026-11-16T19:00Z, at most 14 days at once. The
  first value may be that of the half hour that ends at `from`: it is cut off here.
- {"data": [{"from": ..., "to": ..., "intensity": {"forecast": 266, "actual": 263, "index": "moderate"}}]}, in g/kWh;
  `actual` is null until it is known, and an estimate of the operator's afterwards.
- Half hours are known to appear twice with different values: such a half hour becomes a gap.
- An answer does not say when its forecast was made: the time of asking is kept as that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.planner.rates.services.asking import DAY_S, HOUR_S, About, Told, Value, iso, number, part, utc_s

if TYPE_CHECKING:
    from joulelab.planner.rates.services.asking import Door, Wanted

ABOUT = About(
    word="gb",
    title="GB Carbon Intensity API",
    address="https://api.carbonintensity.org.uk",
    kind="average",
    unit="g/kWh",
    covers="direct",
    licence="CC BY 4.0, National Energy System Operator",
    resolution_s=HOUR_S / 2,
    page_s=13 * DAY_S,
    only_zone="GB",
    notes=("the operator's estimate for all of Great Britain, imports and grid losses included",),
)
FORM = "%Y-%m-%dT%H:%MZ"
ISSUED = "the service does not say when the forecast was made; it was asked for at the time given"


def ask(door: Door, wanted: Wanted) -> Told:
    """Return the forecast of the next two days, or actual values. Raises ReadFailed, ConfigError."""
    if wanted.forecast:
        answer = door.ask(f"/intensity/{iso(wanted.since_s, FORM)}/fw48h")
        return Told(_values(door.json(answer, wanted), "forecast"), issued_s=door.now(), notes=(ISSUED,))
    answer = door.ask(f"/intensity/{iso(wanted.since_s, FORM)}/{iso(wanted.until_s, FORM)}")
    values = _values(door.json(answer, wanted), "actual")
    return Told([value for value in values if value.end_s > wanted.since_s])


def _values(plain: object, key: str) -> list[Value]:
    title = ABOUT.title
    found = []
    for item in part(plain, "data", list, title):
        start_s, end_s = utc_s(part(item, "from", str, title), title), utc_s(part(item, "to", str, title), title)
        found.append(Value(start_s, end_s, number(part(item, "intensity", dict, title).get(key), title)))
    return found
