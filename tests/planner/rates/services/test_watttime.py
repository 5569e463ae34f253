from __future__ import annotations

import base64
import datetime as dt

import numpy as np
import pytest

from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.planner.rates.kept import list_kept

pytestmark = pytest.mark.system

NOW_S = dt.datetime(2026, 11, 16, 20, 2, tzinfo=dt.UTC).timestamp()
STEP_S, DAY_S = 300.0, 86_400.0
SECRET = "s3cr3t-of-the-test"


def at(s):
    return dt.datetime.fromtimestamp(s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


class WattTime:
    """Answer as documented; tokens are good for `uses` requests."""

    def __init__(self, uses=1000, step_s=300):
        self.step_s = step_s
        self.uses = uses
        self.logins = 0
        self.left = 0
        self.meta = {}

    def __call__(self, request):
        if request.path == "/login":
            given = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
            if given != f"reader:{SECRET}":
                return 403, {}, b"Forbidden"
            self.logins, self.left = self.logins + 1, self.uses
            return {"token": f"token-{self.logins}"}
        if request.headers.get("authorization") != f"Bearer token-{self.logins}" or not self.left:
            return 401, {}, {"error": "token expired"}
        self.left -= 1
        query = request.query
        if query["region"] == "PJM_DC":
            return 403, {}, {"error": "You do not have access to this region"}
        meta = {
            "data_point_period_seconds": self.step_s, "region": query["region"], "signal_type": query["signal_type"],
            "units": "lbs_co2_per_mwh", "model": {"date": "2026-03-01"}, "warnings": [],
        }  # fmt: skip
        if request.path == "/v3/forecast":
            first = NOW_S // STEP_S * STEP_S
            times = first + np.arange(int(query["horizon_hours"]) * 12 + 1) * STEP_S
            meta["generated_at"] = at(first)
        else:
            assert request.path == "/v3/historical"
            since, until = (dt.datetime.fromisoformat(query[key]).timestamp() for key in ("start", "end"))
            assert until - since <= 32 * DAY_S
            times = np.arange(since, until + 1, self.step_s)  # both ends included
        points = [{"point_time": at(s), "value": 800 + s / STEP_S % 7} for s in times]
        return {"data": points, "meta": meta | self.meta}


@pytest.fixture
def watttime(service):
    service.answer = WattTime()
    environ = {"WT_USER": "reader"}

    def ask(*words, **options):
        return service.fetch("watttime", *words, now=lambda: NOW_S, environ=environ, **options)

    return ask


def test_history_in_pages_each_value_once(watttime, service):
    since = dt.datetime(2026, 9, 1, tzinfo=dt.UTC).timestamp()
    steps = watttime("CAISO_NORTH", since, since + 40 * DAY_S)
    assert [request.path for request in service.seen] == ["/login", "/v3/historical", "/v3/historical"]
    assert steps.start_s.size == 40 * 288
    assert steps.end_s == since + 40 * DAY_S
    assert (steps.label.kind, steps.label.unit, steps.label.covers) == ("marginal", "g/kWh", "direct")
    # lb/MWh to g/kWh: 1 lb is 453.59237 g.
    np.testing.assert_allclose(steps.values, (800 + steps.start_s / STEP_S % 7) * 0.45359237, rtol=1e-12)
    assert "model of 2026-03-01" in steps.label.notes
    (kept,) = list_kept(service.folder)
    assert kept.until_s == since + 40 * DAY_S
    assert SECRET not in kept.path.read_text()


def test_a_forecast(watttime, service):
    steps = watttime("CAISO_NORTH", None, NOW_S + 10 * 3600, forecast=True)
    assert service.seen[-1].query["horizon_hours"] == "11"
    assert steps.label.issued_utc_s == NOW_S // STEP_S * STEP_S
    assert list_kept(service.folder)[0].name == "watttime-CAISO_NORTH/forecast-20261116T200000Z"
    watttime("CAISO_NORTH", None, NOW_S + 100 * 3600, forecast=True)
    assert service.seen[-1].query["horizon_hours"] == "72"


def test_an_expired_token_is_renewed_once(watttime, service):
    service.answer = WattTime(uses=1, step_s=3600)
    watttime("CAISO_NORTH", NOW_S - 70 * DAY_S, NOW_S)
    assert service.answer.logins == 3  # for each of three pages
    service.answer = WattTime(uses=0)
    with pytest.raises(Denied, match=r"token expired.*WATTTIME_USER, WATTTIME_PASSWORD"):
        watttime("CAISO_NORTH")
    assert service.answer.logins == 1


def test_a_wrong_password_and_a_region_that_is_not_ours(watttime, service):
    with pytest.raises(Denied, match="do not have access"):
        watttime("PJM_DC")
    with pytest.raises(Denied, match="log-in: HTTP 403") as caught:
        service.fetch("watttime", "CAISO_NORTH", now=lambda: NOW_S, environ={"WT_USER": "somebody"})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match="WT_USER is not set"):
        service.fetch("watttime", "CAISO_NORTH", now=lambda: NOW_S)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"units": "percentile"}, "units is 'percentile'"),
        ({"signal_type": "co2_aoer"}, "signal_type is 'co2_aoer'"),
        ({"region": "ERCOT"}, "region is 'ERCOT'"),
        ({"data_point_period_seconds": 0}, "values of 0.0 s"),
        ({"data_point_period_seconds": None}, "values of None s"),
    ],
)
def test_another_signal_is_never_taken_for_this_one(watttime, service, meta, words):
    service.answer.meta = meta
    with pytest.raises(ReadFailed, match=words):
        watttime("CAISO_NORTH")


def test_its_warnings_are_noted(watttime, service):
    service.answer.meta = {"warnings": [{"type": "X", "message": "data is late"}, 3]}
    assert "WattTime warns: data is late" in watttime("CAISO_NORTH").label.notes
