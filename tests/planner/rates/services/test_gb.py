from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.planner.rates.kept import list_kept, read_kept

pytestmark = pytest.mark.system

NOW_S = dt.datetime(2026, 11, 16, 20, 0, tzinfo=dt.UTC).timestamp()
HALF_S = 1800.0


def at(s):
    return dt.datetime.fromtimestamp(s, dt.UTC).strftime("%Y-%m-%dT%H:%MZ")


def time_of(text):
    return dt.datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=dt.UTC).timestamp()


def told(start_s, forecast, actual):
    values = {"forecast": forecast, "actual": actual, "index": "low"}
    return {"from": at(start_s), "to": at(start_s + HALF_S), "intensity": values}


def grid(request, known_until=NOW_S):
    """Answer as the documentation says: also with the half hour that ends at `from`; no actual values of the future."""
    _, word, begin, end = request.path.split("/")
    assert word == "intensity"
    first = time_of(begin)
    last = first + 48 * 3600 if end == "fw48h" else time_of(end)
    starts = np.arange(first - HALF_S, last, HALF_S)
    return {"data": [told(s, value(s) + 5, value(s) if s < known_until else None) for s in starts]}


def value(start_s):
    return int(start_s / HALF_S) % 97 + 100


@pytest.fixture
def gb(service):
    service.answer = grid
    return lambda *words, **options: service.fetch("gb", *words, now=lambda: NOW_S, **options)


def test_actual_values_of_a_month_in_pages(gb, service):
    since = NOW_S - 30 * 86_400
    steps = gb("", since, NOW_S)
    assert len(service.seen) == 3  # 14 days at most
    assert (steps.since_s, steps.end_s, steps.start_s.size) == (since, NOW_S, 1440)
    assert steps.values.tolist() == [value(s) for s in steps.start_s]
    assert steps.label.kind == "average"
    assert (steps.label.unit, steps.label.covers, steps.label.issued_utc_s) == ("g/kWh", "direct", None)
    assert steps.label.resolution_s == HALF_S
    assert steps.label.source == f"GB Carbon Intensity API ({service.url})"  # who really answered
    assert service.warned == []
    (kept,) = list_kept(service.folder)
    assert steps.label.name == f"kept:{kept.name}"
    assert read_kept("gb-GB", service.folder).values.tolist() == steps.values.tolist()


def test_a_forecast_is_kept_by_when_it_was_asked_for(gb, service):
    steps = gb(forecast=True)
    assert service.seen[0].path == f"/intensity/{at(NOW_S)}/fw48h"
    assert steps.label.issued_utc_s == NOW_S
    assert any("does not say when" in note for note in steps.label.notes)
    assert steps.since_s == NOW_S
    assert steps.values[0] == value(NOW_S) + 5
    assert service.warned == [f"GB Carbon Intensity API tells nothing after {at(NOW_S + 48 * 3600)[:10]} 20:00 UTC"]
    (kept,) = list_kept(service.folder)
    assert kept.name == "gb-GB/forecast-20261116T200000Z"
    assert kept.until_s == NOW_S + 48 * 3600


def test_values_that_are_not_known_yet_end_the_series(gb, service):
    service.answer = lambda request: grid(request, known_until=NOW_S - 3600)
    steps = gb("", NOW_S - 6 * 3600, NOW_S)
    assert steps.end_s == NOW_S - 3600
    assert service.warned == ["GB Carbon Intensity API tells nothing after 2026-11-16 19:00 UTC"]
    with pytest.raises(ConfigError, match="is known from"):
        steps.means(np.array([NOW_S - 7200, NOW_S]))


def test_nobody_is_asked_for_actual_values_of_the_future(gb, service):
    steps = gb("", NOW_S - 3600, NOW_S + 40 * 86_400)
    assert [request.path for request in service.seen] == [f"/intensity/{at(NOW_S - 3600)}/{at(NOW_S)}"]
    assert steps.end_s == NOW_S
    assert service.warned == ["GB Carbon Intensity API tells nothing after 2026-11-16 20:00 UTC"]


def test_a_hole_inside_is_a_gap_and_told(gb, service):
    def answer(request):
        data = grid(request)["data"]
        del data[5]
        data[8]["intensity"]["actual"] = None
        return {"data": data}

    service.answer = answer
    steps = gb("", NOW_S - 6 * 3600, NOW_S)
    assert np.isnan(steps.values).sum() == 2
    assert len(steps.gaps()) == 2
    assert [word.split(":")[0] for word in service.warned] == ["GB Carbon Intensity API has a gap"] * 2
    assert list_kept(service.folder)[0].unknown_s == 2 * HALF_S


def test_a_half_hour_told_twice_differently_is_a_gap(gb, service):
    """So it was on 2021-04-19 (issue 17 of api-definitions)."""

    def answer(request):
        data = grid(request)["data"]
        twice = told(NOW_S - 3600, 1, 999)
        return {"data": [*data, twice, data[3]]}

    service.answer = answer
    steps = gb("", NOW_S - 6 * 3600, NOW_S)
    assert steps.gaps() == [(NOW_S - 3600, NOW_S - HALF_S)]
    assert any("told twice" in note for note in steps.label.notes)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "no usable 'data'"),
        ([], "no usable 'data'"),
        ({"data": [{"from": "yesterday", "to": "x"}]}, "'yesterday' is no time"),
        ({"data": [{"from": "2026-11-16T10:00", "to": "2026-11-16T10:30"}]}, "is no time in UTC"),
        ({"data": [{"from": "2026-11-16T10:00Z"}]}, "no usable 'to'"),
        ({"data": [3]}, "no usable 'from'"),
        ({"data": [told(NOW_S - 3600, 1, "many")]}, "'many' is no number"),
        ({"data": [told(NOW_S - 3600, 1, True)]}, "'True' is no number"),
        ({"data": [told(NOW_S - 3600, 1, -4)]}, "negative carbon"),
        ({"data": [told(NOW_S - 3600, 1, None)]}, "no values"),
        ({"data": []}, "no values"),
        ({"data": [told(NOW_S - 3600, 1, 2), told(NOW_S - 3000, 1, 2)]}, "overlap"),
        ({"data": [told(NOW_S - 3600, 1, 2) | {"to": at(NOW_S - 7200 + 60)}, told(NOW_S - 7200, 1, 1)]}, "ends before"),
    ],
)
def test_an_answer_that_is_not_as_documented(gb, service, data, words):
    service.answer = lambda request: data
    with pytest.raises(ReadFailed, match=words):
        gb("", NOW_S - 4 * 3600, NOW_S)
    assert list_kept(service.folder) == []


def test_what_is_no_question(gb, service):
    for words, options, said in [
        (("FR",), {}, "'FR' is no zone"),
        (("", NOW_S, NOW_S - 60), {}, "no time between"),
        (("", NOW_S + 60, NOW_S + 3600), {}, "add --forecast"),
        (("", NOW_S - 7200, NOW_S - 3600), {"forecast": True}, "no forecast of the past"),
        (("", NOW_S - 1e9, NOW_S), {}, "too many"),
        ((), {"covers": "lifecycle"}, "does not tell lifecycle"),
    ]:
        with pytest.raises(ConfigError, match=said):
            gb(*words, **options)
    assert service.seen == []
