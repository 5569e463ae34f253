"""Ask WattTime, API v3: marginal carbon intensity (signal co2_moer), in steps of five minutes.

From its documentation (docs.watttime.org) and its own Python client; this code was never tried on the real service:

- GET /login with user and password (basic) gives {"token": ...}, good for 30 minutes, sent as a bearer token then.
- GET /v3/historical?region&signal_type&start&end: both ends included, about a month at once;
  {"data": [{"point_time", "value"}], "meta": {"data_point_period_seconds", "region", "signal_type", "units",
  "warnings", "model"}}; units are lbs_co2_per_mwh.
- GET /v3/forecast?region&signal_type&horizon_hours: the newest forecast, up to 72 hours; `meta` has `generated_at`.
- 3,000 requests in 5 minutes, log-ins 100; more is answered by 429. Accounts without a plan may read CAISO_NORTH only.

Forecasts of the past (/v3/forecast/historical) and other signals (co2_aoer, health_damage) are not asked for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ReadFailed
from joulelab.planner.rates.services.asking import DAY_S, HOUR_S, About, Told, Value, iso, number, part, utc_s
from joulelab.planner.rates.units import G_PER_LB
from joulelab.transports.http import Auth, parse_json

if TYPE_CHECKING:
    from joulelab.planner.rates.services.asking import Door, Wanted

ABOUT = About(
    word="watttime",
    title="WattTime",
    address="https://api.watttime.org",
    kind="marginal",
    unit="g/kWh",
    covers="direct",
    licence="by your contract with WattTime",
    resolution_s=300.0,
    page_s=30 * DAY_S,
    secrets={"user": "WATTTIME_USER", "password": "WATTTIME_PASSWORD"},
    advice="regions are written as CAISO_NORTH; /v3/my-access lists those of your account",
    notes=("WattTime's co2_moer: a model's estimate of what one kWh more causes in the region",),
)
SIGNAL, UNITS = "co2_moer", "lbs_co2_per_mwh"
G_PER_KWH = G_PER_LB / 1e3  # of lb per MWh
MOST_HOURS = 72
LEAST_STEP_S, MOST_STEP_S = 60.0, HOUR_S


def ask(door: Door, wanted: Wanted) -> Told:
    """Return the newest forecast, or actual values. Raises ReadFailed, Denied, ConfigError."""
    params = {"region": wanted.zone, "signal_type": SIGNAL}
    if wanted.forecast:
        hours = min(max(math.ceil((wanted.until_s - door.now()) / HOUR_S), 1), MOST_HOURS)
        plain = _asked(door, "/v3/forecast", params | {"horizon_hours": str(hours)}, wanted)
        issued_s = utc_s(part(plain["meta"], "generated_at", str, ABOUT.title), ABOUT.title)
        return Told(_values(plain), issued_s=issued_s, notes=_notes(plain))
    span = {"start": iso(wanted.since_s), "end": iso(wanted.until_s)}
    plain = _asked(door, "/v3/historical", params | span, wanted)
    # Both ends are included: what begins at the end belongs to the next page.
    return Told([value for value in _values(plain) if value.start_s < wanted.until_s], notes=_notes(plain))


def _asked(door: Door, path: str, params: dict[str, str], wanted: Wanted) -> dict[str, Any]:
    """Return the answer, logged in, once more where the token has expired; it is checked to be what was asked for."""
    fresh = door.session is None
    answer = door.ask(path, params, auth=door.session or _logged_in(door))
    if answer.status == 401 and not fresh:
        answer = door.ask(path, params, auth=_logged_in(door))
    plain: dict[str, Any] = door.json(answer, wanted)
    meta = part(plain, "meta", dict, ABOUT.title)
    for key, right in (("region", wanted.zone), ("signal_type", SIGNAL), ("units", UNITS)):
        if meta.get(key) != right:
            why = f"{key} is {str(meta.get(key))[:40]!r} where it should be {right!r}"
            raise ReadFailed("it answers for something else", where=ABOUT.title, why=why, next=ABOUT.advice)
    return plain


def _logged_in(door: Door) -> Auth:
    answer = door.ask("/login", auth=Auth("basic", door.secrets["user"], door.secrets["password"]))
    if answer.status != 200:
        raise door.refused(f"log-in: HTTP {answer.status}{door.words(answer)}")
    token: str = part(parse_json(answer.body, ABOUT.title), "token", str, ABOUT.title)
    door.hidden.append(token)
    door.session = Auth("bearer", password=token)
    return door.session


def _values(plain: dict[str, Any]) -> list[Value]:
    title = ABOUT.title
    step_s = number(plain["meta"].get("data_point_period_seconds"), title)
    if step_s is None or not LEAST_STEP_S <= step_s <= MOST_STEP_S:
        raise ReadFailed("its answer is not as documented", where=title, why=f"values of {step_s} s each")
    found = []
    for item in part(plain, "data", list, title):
        start_s = utc_s(part(item, "point_time", str, title), title)
        value = number(item.get("value"), title)
        imputed = item.get("imputed_data_used")
        estimated = imputed if isinstance(imputed, bool) else None
        found.append(Value(start_s, start_s + step_s, None if value is None else value * G_PER_KWH, estimated))
    return found


def _notes(plain: dict[str, Any]) -> tuple[str, ...]:
    """Return which model told it, and its warnings."""
    meta = plain["meta"]
    model = meta.get("model")
    date = model.get("date") if isinstance(model, dict) else None
    told = meta.get("warnings")
    said = (
        [str(one.get("message", ""))[:120] for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    )
    return (*((f"model of {str(date)[:20]}",) if date else ()), *(f"WattTime warns: {text}" for text in said if text))
