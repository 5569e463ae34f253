from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.plan.rates.kept import list_kept, read_kept

pytestmark = pytest.mark.system

NOW_S = dt.datetime(2026, 11, 16, 20, 20, tzinfo=dt.UTC).timestamp()
HOUR_S, DAY_S = 3600.0, 86_400.0
SECRET = "s3cr3t-of-the-test"


def at(s):
    return dt.datetime.fromtimestamp(s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def told(start_s, zone="DE", factors="lifecycle"):
    return {
        "zone": zone,
        "carbonIntensity": round(start_s / HOUR_S) % 311 + 50,
        "datetime": at(start_s),
        "updatedAt": at(NOW_S),
        "createdAt": at(start_s),
        "emissionFactorType": factors,
        "isEstimated": bool(start_s > NOW_S - 5 * HOUR_S),
        "estimationMethod": None,
    }


def maps(request, zone=None):
    query = request.query
    zone = zone or query["zone"]
    what = request.path.removeprefix("/v3/carbon-intensity/")
    now = NOW_S // HOUR_S * HOUR_S
    if what == "past-range":
        since, until = (dt.datetime.fromisoformat(query[key]).timestamp() for key in ("start", "end"))
        assert until - since <= 10 * DAY_S, "the service refuses more"
        starts = np.arange(since, min(until, now + 1), HOUR_S)
        return {"zone": zone, "data": [told(s, zone, query["emissionFactorType"]) for s in starts]}
    if what == "history":
        return {"zone": zone, "history": [told(s, zone) for s in np.arange(now - 23 * HOUR_S, now + 1, HOUR_S)]}
    assert what == "forecast"
    hours = int(query.get("horizonHours", "24"))
    points = [{"carbonIntensity": 100 + k, "datetime": at(now + k * HOUR_S)} for k in range(hours + 1)]
    return {"zone": zone, "forecast": points, "updatedAt": at(NOW_S - 300)}


@pytest.fixture
def em(service):
    service.answer = maps
    return lambda *words, **options: service.fetch("em", *words, now=lambda: NOW_S, **options)


def test_a_month_in_pages_of_ten_days(em, service):
    since = dt.datetime(2026, 10, 1, tzinfo=dt.UTC).timestamp()
    steps = em("DE", since, since + 31 * DAY_S)
    assert len(service.seen) == 4
    first = service.seen[0]
    assert first.headers["auth-token"] == SECRET
    assert SECRET not in str(first.query)
    assert first.query == {
        "zone": "DE",
        "emissionFactorType": "lifecycle",
        "temporalGranularity": "hourly",
        "shouldUseFallbackCallerLookup": "false",
        "start": "2026-10-01T00:00:00Z",
        "end": "2026-10-11T00:00:00Z",
    }
    assert (steps.start_s.size, steps.since_s, steps.end_s) == (744, since, since + 31 * DAY_S)
    assert steps.values.tolist() == [round(s / HOUR_S) % 311 + 50 for s in steps.start_s]
    assert steps.gaps() == []
    assert steps.label.kind == "average"
    assert (steps.label.unit, steps.label.covers, steps.label.issued_utc_s) == ("g/kWh", "lifecycle", None)
    assert steps.label.source == f"Electricity Maps ({service.url})"  # who really answered
    assert service.warned == []
    assert read_kept("em-DE", service.folder).values.tolist() == steps.values.tolist()
    (kept,) = list_kept(service.folder)
    assert steps.label.name == f"kept:{kept.name}"
    assert (kept.name, kept.estimated_s) == ("em-DE/actual-20261001T000000Z", 0.0)
    assert SECRET not in kept.path.read_text()


def test_the_last_day_is_asked_of_what_free_keys_may_read(em, service):
    steps = em("DE", NOW_S - 6 * HOUR_S, NOW_S)
    assert [request.path for request in service.seen] == ["/v3/carbon-intensity/history"]
    assert steps.since_s == (NOW_S - 6 * HOUR_S) // HOUR_S * HOUR_S
    assert steps.end_s == NOW_S // HOUR_S * HOUR_S + HOUR_S
    (kept,) = list_kept(service.folder)
    assert kept.until_s - kept.since_s == 24 * HOUR_S  # all that came is kept
    assert kept.estimated_s == 5 * HOUR_S


def test_a_forecast_is_kept_by_the_services_own_time(em, service):
    steps = em("DE", None, NOW_S + 30 * HOUR_S, forecast=True)
    assert service.seen[0].query["horizonHours"] == "48"
    assert steps.label.issued_utc_s == NOW_S - 300
    assert list_kept(service.folder)[0].name == "em-DE/forecast-20261116T201500Z"
    assert steps.values[:3].tolist() == [100, 101, 102]
    again = em("DE", None, NOW_S + 30 * HOUR_S, forecast=True)
    assert len(list_kept(service.folder)) == 1  # the same forecast is kept once
    assert again.label.name == steps.label.name
    em("DE", None, NOW_S + 3 * HOUR_S, forecast=True)
    assert "horizonHours" not in service.seen[-1].query
    assert len(list_kept(service.folder)) == 2  # shorter: another answer, beside the first


def test_direct_emissions_are_another_series(em, service):
    steps = em("DE", NOW_S - 3 * DAY_S, NOW_S - 2 * DAY_S, covers="direct")
    assert service.seen[0].query["emissionFactorType"] == "direct"
    assert steps.label.covers == "direct"
    assert list_kept(service.folder)[0].series == "em-DE-direct"


def test_another_zone_than_asked_for_is_refused(em, service):
    service.answer = lambda request: maps(request, zone="FR")
    with pytest.raises(ReadFailed, match=r"answers for zone 'FR' \(asked for 'DE'\)"):
        em("DE")
    service.answer = lambda request: (404, {}, {"error": "No zone XX"})
    with pytest.raises(ConfigError, match=r"knows no zone 'XX'.*US-CAL-CISO"):
        em("XX")


def test_other_factors_than_asked_for_are_refused(em, service):
    service.answer = lambda request: {"zone": "DE", "data": [told(NOW_S - 3 * DAY_S, factors="direct")]}
    with pytest.raises(ReadFailed, match="'direct', asked for 'lifecycle'"):
        em("DE", NOW_S - 3 * DAY_S, NOW_S)


def test_a_key_that_is_refused_is_not_shown(em, service):
    service.answer = lambda request: (401, {}, {"message": f"Invalid auth-token {request.headers['auth-token']}"})
    with pytest.raises(Denied, match="ELECTRICITY_MAPS_TOKEN") as caught:
        em("DE")
    assert "HTTP 401" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "***" in str(caught.value)


def test_what_came_before_a_failure_is_kept(em, service):
    def answer(request):
        return maps(request) if len(service.seen) < 3 else (403, {}, b"Access denied")

    service.answer = answer
    since = NOW_S - 40 * DAY_S
    with pytest.raises(Denied, match=r"Access denied.*kept as em-DE/actual-"):
        em("DE", since, NOW_S)
    (kept,) = list_kept(service.folder)
    assert kept.until_s - kept.since_s == 20 * DAY_S


def test_corrected_values_are_kept_beside_the_old_ones(em, service):
    em("DE", NOW_S - 3 * DAY_S, NOW_S - 2 * DAY_S)

    def corrected(request):
        plain = maps(request)
        plain["data"][3]["carbonIntensity"] = 7
        return plain

    service.answer = corrected
    em("DE", NOW_S - 3 * DAY_S, NOW_S - 2 * DAY_S)
    names = [kept.name for kept in list_kept(service.folder)]
    assert names == ["em-DE/actual-20261113T200000Z", "em-DE/actual-20261113T200000Z-2"]


def test_a_forecast_that_does_not_reach_the_time_asked_for(em, service):
    with pytest.raises(ReadFailed, match=r"nothing of the time that is asked for .*2026-11-19 21:00 UTC"):
        em("DE", NOW_S + 100 * HOUR_S, NOW_S + 110 * HOUR_S, forecast=True)
    assert len(list_kept(service.folder)) == 1  # what came is kept all the same


def test_a_key_that_others_may_read_is_told(em, service):
    (service.file.parent / "key").chmod(0o644)
    em("DE")
    assert any("can be read by others" in word for word in service.warned)


HOUR_NOW_S = NOW_S // HOUR_S * HOUR_S
SOME_HOURS = ("DE", HOUR_NOW_S - 6 * HOUR_S, NOW_S)


def changed(change):
    """Answer with the last day after a change of its list of values."""

    def answer(request):
        plain = maps(request)
        change(plain["history"])
        return plain

    return answer


def test_values_that_are_not_known_yet_end_the_series(em, service):
    def forget(values):
        for item in values[-2:]:
            item["carbonIntensity"] = None

    service.answer = changed(forget)
    steps = em(*SOME_HOURS)
    assert steps.end_s == HOUR_NOW_S - HOUR_S
    assert service.warned == ["Electricity Maps tells nothing after 2026-11-16 19:00 UTC"]
    with pytest.raises(ConfigError, match="is known from"):
        steps.means(np.array([NOW_S - 2 * HOUR_S, NOW_S]))


def test_nobody_is_asked_for_actual_values_of_the_future(em, service):
    steps = em("DE", NOW_S - 3 * DAY_S, NOW_S + 40 * DAY_S)
    assert [request.query["end"] for request in service.seen] == ["2026-11-16T21:00:00Z"]
    assert steps.end_s == HOUR_NOW_S + HOUR_S
    assert service.warned == ["Electricity Maps tells nothing after 2026-11-16 21:00 UTC"]


def test_a_hole_inside_is_a_gap_and_told(em, service):
    def hole(values):
        values[-3]["carbonIntensity"] = None
        del values[-5]

    service.answer = changed(hole)
    steps = em(*SOME_HOURS)
    assert len(steps.gaps()) == 2
    assert [word.split(":")[0] for word in service.warned] == ["Electricity Maps has a gap"] * 2
    assert list_kept(service.folder)[0].unknown_s == 2 * HOUR_S


def test_an_hour_told_twice_differently_is_a_gap(em, service):
    hour_s = HOUR_NOW_S - 2 * HOUR_S
    service.answer = changed(lambda values: values.extend([told(hour_s) | {"carbonIntensity": 999}, values[3]]))
    steps = em(*SOME_HOURS)
    assert steps.gaps() == [(hour_s, hour_s + HOUR_S)]
    assert any("told twice" in note for note in steps.label.notes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "no usable 'history'"),
        ({"history": 3}, "no usable 'history'"),
        ({"history": [{"datetime": "yesterday"}]}, "'yesterday' is no time"),
        ({"history": [{"datetime": "2026-11-16T10:00"}]}, "is no time in UTC"),
        ({"history": [3]}, "no usable 'datetime'"),
        ({"history": [told(HOUR_NOW_S) | {"carbonIntensity": "many"}]}, "'many' is no number"),
        ({"history": [told(HOUR_NOW_S) | {"carbonIntensity": True}]}, "'True' is no number"),
        ({"history": [told(HOUR_NOW_S) | {"carbonIntensity": -4}]}, "negative carbon"),
        ({"history": [told(HOUR_NOW_S) | {"carbonIntensity": None}]}, "no values"),
        ({"history": []}, "no values"),
        ({"history": [told(HOUR_NOW_S), told(HOUR_NOW_S - 600)]}, "overlap"),
    ],
)
def test_an_answer_that_is_not_as_documented(em, service, data, words):
    service.answer = lambda request: {"zone": "DE"} | data
    with pytest.raises(ReadFailed, match=words):
        em(*SOME_HOURS)
    assert list_kept(service.folder) == []


def test_what_is_no_question(em, service):
    for words, options, said in [
        (("",), {}, "no zone is given"),
        (("DE", NOW_S, NOW_S - 60), {}, "no time between"),
        (("DE", NOW_S + 60, NOW_S + HOUR_S), {}, "add --forecast"),
        (("DE", NOW_S - 2 * HOUR_S, NOW_S - HOUR_S), {"forecast": True}, "no forecast of the past"),
        (("DE", NOW_S - 1e9, NOW_S), {}, "too many"),
        (("DE",), {"covers": "all"}, "does not tell all"),
    ]:
        with pytest.raises(ConfigError, match=said):
            em(*words, **options)
    assert service.seen == []
