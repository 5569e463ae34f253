"""Ask Electricity Maps (API v3) for the average carbon intensity of consumption, by the hour. Needs a key.

Written from its API reference and published clients; never tried against the real service:

- The key is sent in the header `auth-token`.
- GET /v3/carbon-intensity/past-range?zone&start&end: at most 10 days by the hour, `end` not included;
  {"zone": "DE", "data": [{"carbonIntensity", "datetime", "isEstimated", "emissionFactorType", ...}]}.
- GET /v3/carbon-intensity/history?zone: the last 24 hours, for free keys too; {"zone": "DE", "history": [...]}.
- GET /v3/carbon-intensity/forecast?zone: a day ahead, up to 72 hours by `horizonHours`;
  {"zone": "DE", "forecast": [{"carbonIntensity", "datetime"}], "updatedAt": ...}.
- `datetime` is taken as the begin of the hour that the value is the mean of.
- For an unknown zone it answers for the place of the caller, unless `shouldUseFallbackCallerLookup` is false: that is
  sent, and the zone of the answer is checked.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import math
import os
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import numpy as np

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.plan.rates.rate import CARBON, Label, Steps, check_edges, format_span, format_time
from joulelab.run.config.config_files import get_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.analysis.readings import Floats
    from joulelab.instruments.http import Answer, HttpClient

TITLE, WORD, ADDRESS, PATH = "Electricity Maps", "em", "https://api.electricitymaps.com", "/v3/carbon-intensity"
KEY, KEY_FILE, OWN_ADDRESS = "ELECTRICITY_MAPS_TOKEN", "ELECTRICITY_MAPS_TOKEN_FILE", "ELECTRICITY_MAPS_ADDRESS"
OLD_SETTINGS = "JOULELAB_RATES"  # named the file rates.toml of older versions
COVERS = ("lifecycle", "direct")
ZONE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ZONE_ADVICE = "write the zone as DE, FR or US-CAL-CISO"
HOUR_S, DAY_S = 3600.0, 86_400.0
PAGE_S = 10 * DAY_S
LONGEST_S = 5 * 366 * DAY_S  # a mistyped year must not become thousands of requests
HORIZONS_H = (24, 48, 72)
TRIES, PAUSE_S, LONGEST_PAUSE_S, TIMEOUT_S = 3, 2.0, 60.0, 30.0
MOST_WORDS = 160  # characters of the service's own words in a message


@dataclass(frozen=True, slots=True)
class MapsAccess:
    """Hold address and key of the service; clock and sleep are arguments of the tests."""

    address: str
    key: str = field(repr=False)
    now: Callable[[], float] = lambda: read_utc_ns() / NS
    sleep: Callable[[float], None] = time.sleep


def find_access(environ: Mapping[str, str]) -> MapsAccess:
    """Return the access by the variables of the environment. Raises ConfigError if there is no key."""
    old = Path(environ.get(OLD_SETTINGS) or get_user_file(environ).with_name("rates.toml")).expanduser()
    if environ.get(OLD_SETTINGS) or old.exists():
        end = f"unset {OLD_SETTINGS}" if environ.get(OLD_SETTINGS) else "delete it"
        then = f"export {KEY_FILE}=FILE with your key in FILE, {OWN_ADDRESS} for another address, then {end}"
        raise ConfigError("this file is no longer read", where=str(old), next=then)
    key, file = environ.get(KEY, "").strip(), environ.get(KEY_FILE, "")
    if not key and file:
        try:
            key = Path(file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError("cannot read the key", where=file, why=why, next=f"correct {KEY_FILE}") from None
    if not key:
        why = f"neither {KEY} nor {KEY_FILE} is set"
        raise ConfigError(f"{TITLE} needs a key", why=why, next=f"export {KEY_FILE}=FILE with your key in FILE")
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the key of {TITLE} has characters that no key has", next="write it again, alone in its file"
        )
    address = environ.get(OWN_ADDRESS) or ADDRESS
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ConfigError(f"{address!r} is not an address", where=OWN_ADDRESS, next=f"write it as {ADDRESS}")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ConfigError("a key is not sent without TLS", where=OWN_ADDRESS, next="use https")
    return MapsAccess(address, key)


class MapsRate:
    """Give the carbon intensity of a zone; the service is asked when a time is needed first.

    Past times are actual values, future times the newest forecast. Raises ConfigError for a wrong zone.
    """

    def __init__(self, words: str, access: MapsAccess | None = None) -> None:
        """Take `DE` or `DE:direct`; the access is found in the environment."""
        zone, _, covers = words.partition(":")
        self._label = make_label(zone, covers)
        self._access = access
        self._steps: Steps | None = None

    @property
    def label(self) -> Label:
        """Return the description of the rate."""
        return self._label if self._steps is None else self._steps.label

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change. Raises JoulelabError."""
        return self._find_steps(since_s, until_s).changes(since_s, until_s)

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times. Raises JoulelabError where it is not known."""
        edges = check_edges(edges_s)
        return self._find_steps(float(edges[0]), float(edges[-1])).means(edges)

    def _find_steps(self, since_s: float, until_s: float) -> Steps:
        known = self._steps
        if known is None or known.since_s > since_s or known.end_s < until_s:
            access = self._access or find_access(os.environ)
            forecast = until_s > access.now()
            known = fetch_intensity(self._label, access, since_s, until_s, forecast=forecast)
            self._steps = known
        return known


def make_label(zone: str, covers: str = "") -> Label:
    """Return the label of a zone's series, without asking. Raises ConfigError."""
    if not ZONE.fullmatch(zone):
        raise ConfigError(f"{zone!r} is not a zone" if zone else "no zone is given", where=TITLE, next=ZONE_ADVICE)
    if covers and covers not in COVERS:
        raise ConfigError(f"{TITLE} has no {covers!r} emissions", next=f"write {WORD}:{zone} or {WORD}:{zone}:direct")
    name = f"{WORD}:{zone}" + (f":{covers}" if covers else "")
    return Label(
        "average", CARBON, name, zone=zone, covers=cast("Any", covers or COVERS[0]), source=TITLE,
        licence="by your contract with Electricity Maps", resolution_s=HOUR_S,
    )  # fmt: skip


def fetch_intensity(
    label: Label, access: MapsAccess, since_s: float | None = None, until_s: float | None = None, *, forecast: bool
) -> Steps:
    """Ask for the hours between two times (s since 1970): actual values, or the newest forecast.

    Without times: the last day, or three days of forecast. An hour without a value is a gap. Raises ConfigError,
    Denied, ReadFailed.
    """
    from joulelab.instruments.http import HttpClient

    now_s = access.now()
    if until_s is None:
        until_s = now_s + 3 * DAY_S if forecast else now_s
    if since_s is None:
        since_s = now_s if forecast else min(until_s, now_s) - DAY_S
    _check_times(since_s, until_s, now_s, forecast=forecast)
    first_s, last_s = math.floor(since_s / HOUR_S) * HOUR_S, math.ceil(until_s / HOUR_S) * HOUR_S
    values: dict[float, float | None] = {}
    secure = access.address.startswith("https")
    headers = {"auth-token": access.key}
    with HttpClient(access.address, headers=headers, timeout_s=TIMEOUT_S, label=TITLE, verify=secure) as client:
        if forecast:
            hours = next((h for h in HORIZONS_H if h >= (last_s - now_s) / HOUR_S), HORIZONS_H[-1])
            answer = _ask(client, access, label, "forecast", {"horizonHours": str(hours)} if hours > 24 else {})
            label = replace(label, issued_utc_s=_read_utc(_take(answer, "updatedAt", str)))
            _add_values(values, _take(answer, "forecast", list), label)
        elif first_s >= math.ceil((now_s - DAY_S) / HOUR_S) * HOUR_S:
            _add_values(values, _take(_ask(client, access, label, "history", {}), "history", list), label)
        else:
            last_s = min(last_s, math.ceil(now_s / HOUR_S) * HOUR_S)
            for begin in np.arange(first_s, last_s, PAGE_S).tolist():
                span = {"start": _format_utc(begin), "end": _format_utc(min(begin + PAGE_S, last_s))}
                _add_values(values, _take(_ask(client, access, label, "past-range", span), "data", list), label)
    return _make_steps(values, label, first_s, last_s)


def _check_times(since_s: float, until_s: float, now_s: float, *, forecast: bool) -> None:
    if not 0 <= since_s < until_s < math.inf:
        raise ConfigError(f"there is no time from {format_span(since_s, until_s)}", next="give --since before --until")
    if until_s - since_s > LONGEST_S:
        raise ConfigError(f"{(until_s - since_s) / DAY_S:.0f} days are too many at once", next="ask for a part of it")
    if forecast and until_s <= now_s:
        what = f"{TITLE} has no forecast of the past ({format_time(until_s)})"
        raise ConfigError(what, next="leave out --forecast for actual values")
    if not forecast and since_s >= now_s:
        raise ConfigError(f"there are no actual values of {format_time(since_s)} yet", next="add --forecast")


def _ask(client: HttpClient, access: MapsAccess, label: Label, what: str, more: Mapping[str, str]) -> Any:
    """Return the JSON of an answer for the right zone; wait and try again as the service asks."""
    from joulelab.instruments.http import parse_json

    params = {
        "zone": label.zone,
        "emissionFactorType": label.covers,
        "temporalGranularity": "hourly",
        "shouldUseFallbackCallerLookup": "false",
        **more,
    }
    for attempt in range(1, TRIES + 1):
        answer = client.ask("GET", f"{PATH}/{what}", params)
        if answer.status != 429 and answer.status < 500:
            break
        wait = answer.headers.get("retry-after", "").strip()
        pause_s = float(wait) if wait.isdecimal() else PAUSE_S
        if attempt == TRIES or pause_s > LONGEST_PAUSE_S:
            why = f"HTTP {answer.status}{_quote_words(answer, access)}"
            raise ReadFailed(
                "it does not answer now", where=TITLE, why=why, next=f"try again in {pause_s:.0f} s or later"
            )
        access.sleep(pause_s)
    why = f"HTTP {answer.status}{_quote_words(answer, access)}"
    if answer.status in (401, 402, 403):
        raise Denied("it refuses the key", where=TITLE, why=why, next=f"check {KEY}, and the zones of your account")
    if answer.status != 200:
        raise ConfigError(f"it has no answer for the zone {label.zone!r}", where=TITLE, why=why, next=ZONE_ADVICE)
    plain = parse_json(answer.body, TITLE)
    zone = _take(plain, "zone", str)
    if zone != label.zone:
        why = f"{label.zone!r} was requested"
        raise ReadFailed(f"it answers for the zone {zone[:40]!r}", where=TITLE, why=why, next=ZONE_ADVICE)
    return plain


def _quote_words(answer: Answer, access: MapsAccess) -> str:
    """Return the service's own words, short and without the key; nothing of a web page."""
    text = " ".join(answer.body[: 10 * MOST_WORDS].decode("utf-8", "replace").split()).replace(access.key, "***")
    plain = "".join(sign if sign.isprintable() else "?" for sign in text)
    return "" if not plain or plain.lower().startswith(("<!doctype", "<html")) else f": {plain[:MOST_WORDS]}"


def _add_values(values: dict[float, float | None], items: list[Any], label: Label) -> None:
    """Add the values of hours; an hour with two different values is a gap."""
    for item in items:
        start_s = _read_utc(_take(item, "datetime", str))
        covers = item.get("emissionFactorType")
        if covers not in (None, label.covers):
            raise _make_answer_error(f"emission factors are {covers!r}, not {label.covers!r} as requested")
        value = item.get("carbonIntensity")
        if start_s % HOUR_S:
            raise _make_answer_error(f"{format_time(start_s)} is not a full hour")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise _make_answer_error(f"{str(value)[:40]!r} is not an intensity")
        number = None if value is None else float(value)
        if values.get(start_s) is None or number is None:
            values[start_s] = values.get(start_s, number) if number is None else number
        elif values[start_s] != number:
            values[start_s] = math.nan


def _make_steps(values: Mapping[float, float | None], label: Label, first_s: float, last_s: float) -> Steps:
    known = {hour: math.nan if value is None else value for hour, value in values.items()}
    hours = [hour for hour, value in known.items() if first_s <= hour < last_s and not math.isnan(value)]
    if not hours:
        why = f"{label.zone}, {format_span(first_s, last_s)}"
        raise ReadFailed("it has no values for this time", where=TITLE, why=why, next="ask for another time")
    starts = np.arange(min(hours), max(hours) + HOUR_S, HOUR_S)
    return Steps(label, starts, np.array([known.get(s, math.nan) for s in starts.tolist()]), max(hours) + HOUR_S)


def _take(plain: Any, key: str, kind: type) -> Any:
    found = plain.get(key) if isinstance(plain, dict) else None
    if not isinstance(found, kind):
        raise _make_answer_error(f"it has no usable {key!r}")
    return found


def _read_utc(text: str) -> float:
    try:
        time_of = dt.datetime.fromisoformat(text)
    except ValueError:
        time_of = None
    if time_of is None or time_of.tzinfo is None:
        raise _make_answer_error(f"{text[:40]!r} is not a time in UTC")
    return time_of.timestamp()


def _make_answer_error(why: str) -> ReadFailed:
    return ReadFailed("its answer is not as documented", where=TITLE, why=why, next="use a CSV file of its values")


def _format_utc(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
