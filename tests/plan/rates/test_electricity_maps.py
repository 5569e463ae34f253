"""Electricity Maps: requests and answers in its documented form, from a server on loopback; and its flaws."""

from __future__ import annotations

import datetime as dt
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.plan.rates.electricity_maps import MapsAccess, MapsRate, fetch_intensity, find_access, make_label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulelab.plan.rates.rate import Steps

NOW_S = dt.datetime(2026, 11, 16, 20, 20, tzinfo=dt.UTC).timestamp()
HOUR_S, DAY_S = 3600.0, 86_400.0
HOUR_NOW_S = NOW_S // HOUR_S * HOUR_S
SECRET = "s3cr3t-of-the-test"


def iso(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def item(start_s: float, value: Any = None, **more: Any) -> dict[str, Any]:
    """Return one hour in the form of the published sample answer of the service."""
    known = round(start_s / HOUR_S) % 311 + 50 if value is None else value
    hour = {"zone": "DE", "carbonIntensity": known, "datetime": iso(start_s), "updatedAt": iso(NOW_S)}
    hour |= {"createdAt": iso(start_s), "emissionFactorType": "lifecycle", "isEstimated": False}
    return hour | {"estimationMethod": None, "temporalGranularity": "hourly"} | more


class Service:
    """Be the service on loopback: `answer(path, query)` gives a plain value, or (status, headers, bytes)."""

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.slept: list[float] = []
        self.answer: Callable[[str, dict[str, str]], Any] = answer_as_documented
        self.access = MapsAccess(url, SECRET, now=lambda: NOW_S, sleep=self.slept.append)

    def fetch(self, since_s: float | None = None, until_s: float | None = None, *, forecast: bool = False) -> Steps:
        return fetch_intensity(make_label("DE"), self.access, since_s, until_s, forecast=forecast)


def answer_as_documented(path: str, query: dict[str, str]) -> dict[str, Any]:
    what = path.removeprefix("/v3/carbon-intensity/")
    if what == "past-range":
        since, until = (dt.datetime.fromisoformat(query[key]).timestamp() for key in ("start", "end"))
        assert until - since <= 10 * DAY_S, "the service refuses more"
        hours = np.arange(since, min(until, HOUR_NOW_S + 1), HOUR_S).tolist()
        return {"zone": "DE", "data": [item(s, emissionFactorType=query["emissionFactorType"]) for s in hours]}
    if what == "history":
        hours = np.arange(HOUR_NOW_S - 23 * HOUR_S, HOUR_NOW_S + 1, HOUR_S).tolist()
        return {"zone": "DE", "history": [item(s) for s in hours]}
    assert what == "forecast"
    count = int(query.get("horizonHours", "24")) + 1
    points = [{"carbonIntensity": 100 + k, "datetime": iso(HOUR_NOW_S + k * HOUR_S)} for k in range(count)]
    return {"zone": "DE", "forecast": points, "updatedAt": iso(NOW_S - 300)}


@pytest.fixture
def service() -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            mine.seen.append((parts.path, query, {key.lower(): value for key, value in self.headers.items()}))
            answer = mine.answer(parts.path, query)
            status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        mine = Service(f"http://127.0.0.1:{running.server_address[1]}")
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield mine
        running.shutdown()
        thread.join()


@pytest.mark.system
def test_a_month_is_asked_in_pages_of_ten_days(service: Service) -> None:
    since = dt.datetime(2026, 10, 1, tzinfo=dt.UTC).timestamp()
    steps = service.fetch(since, since + 31 * DAY_S)
    assert len(service.seen) == 4
    path, query, headers = service.seen[0]
    assert (path, headers["auth-token"]) == ("/v3/carbon-intensity/past-range", SECRET)
    assert query == {
        "zone": "DE",
        "emissionFactorType": "lifecycle",
        "temporalGranularity": "hourly",
        "shouldUseFallbackCallerLookup": "false",
        "start": "2026-10-01T00:00:00Z",
        "end": "2026-10-11T00:00:00Z",
    }
    assert (steps.start_s.size, steps.since_s, steps.end_s) == (744, since, since + 31 * DAY_S)
    assert steps.values.tolist() == [round(s / HOUR_S) % 311 + 50 for s in steps.start_s]
    assert (steps.label.kind, steps.label.unit, steps.label.covers, steps.gaps()) == (
        "average",
        "g/kWh",
        "lifecycle",
        [],
    )


@pytest.mark.system
def test_the_last_day_and_a_forecast_have_their_own_requests(service: Service) -> None:
    steps = service.fetch(NOW_S - 6 * HOUR_S, NOW_S)
    assert service.seen[-1][0].endswith("/history")
    assert (steps.since_s, steps.end_s) == (HOUR_NOW_S - 6 * HOUR_S, HOUR_NOW_S + HOUR_S)
    ahead = service.fetch(None, NOW_S + 30 * HOUR_S, forecast=True)
    assert service.seen[-1][1]["horizonHours"] == "48"
    assert ahead.label.issued_utc_s == NOW_S - 300
    assert ahead.values[:3].tolist() == [100, 101, 102]


@pytest.mark.system
def test_a_rate_asks_once_when_a_time_is_needed(service: Service) -> None:
    rate = MapsRate("DE", service.access)
    assert service.seen == []
    edges = np.array([HOUR_NOW_S - 4 * HOUR_S, HOUR_NOW_S - 3 * HOUR_S, HOUR_NOW_S - 2 * HOUR_S])
    assert rate.changes(edges[0], edges[-1]).tolist() == [edges[1]]
    assert rate.means(edges).tolist() == [round(s / HOUR_S) % 311 + 50 for s in edges[:-1]]
    assert len(service.seen) == 1
    rate.means(np.array([NOW_S, NOW_S + HOUR_S]))
    assert service.seen[-1][0].endswith("/forecast")
    assert rate.label.issued_utc_s is not None


@pytest.mark.system
def test_unknown_and_contradicting_hours_are_gaps(service: Service) -> None:
    def answer(path: str, query: dict[str, str]) -> Any:
        plain = answer_as_documented(path, query)
        hours = plain["history"]
        hours[-3]["carbonIntensity"] = None
        hours += [item(HOUR_NOW_S - 4 * HOUR_S, 999), hours[3]]
        del hours[-8]  # five hours ago
        return plain

    service.answer = answer
    steps = service.fetch(HOUR_NOW_S - 6 * HOUR_S, NOW_S)
    gaps = [(a - HOUR_NOW_S) / HOUR_S for a, _ in steps.gaps()]
    assert gaps == [-5, -2]
    assert np.isnan(steps.values[1:3]).all()


@pytest.mark.system
def test_it_waits_as_asked_and_not_for_ever(service: Service) -> None:
    turns = iter([(429, {"Retry-After": "7"}, b""), (503, {}, b""), answer_as_documented("history", {})])
    service.answer = lambda *_: next(turns)
    service.fetch(NOW_S - HOUR_S, NOW_S)
    assert service.slept == [7, 2]
    service.answer = lambda *_: (429, {"Retry-After": "3600"}, b"slow down")
    with pytest.raises(ReadFailed, match=r"HTTP 429: slow down.*try again in 3600 s"):
        service.fetch()


@pytest.mark.system
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((401, {}, f"Invalid auth-token {SECRET}".encode()), Denied, r"HTTP 401: Invalid auth-token \*\*\*"),
        ((404, {}, b'{"error": "No zone"}'), ConfigError, "no answer for the zone 'DE'.*US-CAL-CISO"),
        ((400, {}, b"<!DOCTYPE html><html>page</html>"), ConfigError, r"HTTP 400\)"),
        ((200, {}, b"<html>maintenance</html>"), ReadFailed, "not JSON"),
        ({"zone": "FR", "history": []}, ReadFailed, "answers for the zone 'FR'"),
        ({"zone": "DE"}, ReadFailed, "no usable 'history'"),
        ({"zone": "DE", "history": [3]}, ReadFailed, "no usable 'datetime'"),
        ({"zone": "DE", "history": []}, ReadFailed, "no values for this time"),
        ({"zone": "DE", "history": [{"datetime": "yesterday"}]}, ReadFailed, "is not a time in UTC"),
        ({"zone": "DE", "history": [{"datetime": "2026-11-16T10:00"}]}, ReadFailed, "is not a time in UTC"),
        ({"zone": "DE", "history": [item(HOUR_NOW_S - 600)]}, ReadFailed, "is not a full hour"),
        ({"zone": "DE", "history": [item(HOUR_NOW_S, "many")]}, ReadFailed, "'many' is not an intensity"),
        ({"zone": "DE", "history": [item(HOUR_NOW_S, -4)]}, ReadFailed, "'-4' is not an intensity"),
        (
            {"zone": "DE", "history": [item(HOUR_NOW_S, emissionFactorType="direct")]},
            ReadFailed,
            "factors are 'direct'",
        ),
    ],
)
def test_other_answers_are_refused(service: Service, answer: Any, kind: type[Exception], words: str) -> None:
    service.answer = lambda *_: answer
    with pytest.raises(kind, match=words) as caught:
        service.fetch(NOW_S - HOUR_S, NOW_S)
    assert SECRET not in str(caught.value)


def test_wrong_times_are_refused_before_anything_is_asked() -> None:
    access = MapsAccess("http://127.0.0.1:9", SECRET, now=lambda: NOW_S)
    for since, until, forecast, words in [
        (NOW_S, NOW_S - 60, False, "there is no time"),
        (NOW_S + 60, NOW_S + HOUR_S, False, "add --forecast"),
        (NOW_S - 2 * HOUR_S, NOW_S - HOUR_S, True, "no forecast of the past"),
        (NOW_S - 1e9, NOW_S, False, "too many"),
    ]:
        with pytest.raises(ConfigError, match=words):
            fetch_intensity(make_label("DE"), access, since, until, forecast=forecast)


def test_the_key_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    for environ in ({"ELECTRICITY_MAPS_TOKEN": SECRET}, {"ELECTRICITY_MAPS_TOKEN_FILE": str(tmp_path / "key")}):
        access = find_access(environ)
        assert (access.key, access.address) == (SECRET, "https://api.electricitymaps.com")
        assert SECRET not in repr(access)
    named = {"ELECTRICITY_MAPS_TOKEN": SECRET, "ELECTRICITY_MAPS_ADDRESS": "http://127.0.0.1:81"}
    assert find_access(named).address == "http://127.0.0.1:81"


@every_row(
    ("environ", "words"),
    [
        ({}, "needs a key.*ELECTRICITY_MAPS_TOKEN_FILE=FILE"),
        ({"ELECTRICITY_MAPS_TOKEN_FILE": "nowhere"}, "cannot read the key"),
        ({"ELECTRICITY_MAPS_TOKEN": "abcd\r\nX-Evil: 1"}, "characters that no key has"),
        ({"ELECTRICITY_MAPS_TOKEN": SECRET, "ELECTRICITY_MAPS_ADDRESS": "api.example.org"}, "is not an address"),
        ({"ELECTRICITY_MAPS_TOKEN": SECRET, "ELECTRICITY_MAPS_ADDRESS": "http://example.org"}, "without TLS"),
    ],
)
def test_a_missing_or_unsafe_access_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        find_access(environ)
    assert "Evil" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_file_of_older_versions_is_not_ignored_in_silence(tmp_path: Path) -> None:
    key = {"ELECTRICITY_MAPS_TOKEN": "mine", "XDG_CONFIG_HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"old\.toml: this file is no longer read; .* then unset JOULELAB_RATES"):
        find_access(key | {"JOULELAB_RATES": "old.toml"})
    (tmp_path / "joulelab").mkdir()
    (tmp_path / "joulelab" / "rates.toml").write_text('[em]\naddress = "https://gateway"\n')
    with pytest.raises(ConfigError, match=r"rates\.toml: this file is no longer read; .* then delete it"):
        find_access(key)
