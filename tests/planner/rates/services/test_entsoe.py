from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from joulelab.core.errors import ConfigError, Denied, ReadFailed
from joulelab.planner.rates.kept import list_kept

pytestmark = pytest.mark.system

NOW_S = dt.datetime(2026, 11, 16, 20, 0, tzinfo=dt.UTC).timestamp()
DAY_S, HOUR_S = 86_400.0, 3600.0
MIDNIGHT_S = dt.datetime(2026, 11, 15, 23, 0, tzinfo=dt.UTC).timestamp()  # of Berlin
SECRET = "s3cr3t-of-the-test"


def at(s):
    return dt.datetime.fromtimestamp(s, dt.UTC).strftime("%Y-%m-%dT%H:%MZ")


def series(points, *, begin=MIDNIGHT_S, hours=24, resolution="PT60M", curve="A03", extra="", currency="EUR"):
    text = "".join(f"<Point><position>{k}</position><price.amount>{v}</price.amount></Point>" for k, v in points)
    return (
        f"<TimeSeries><mRID>1</mRID>{extra}<currency_Unit.name>{currency}</currency_Unit.name>"
        f"<price_Measure_Unit.name>MWH</price_Measure_Unit.name><curveType>{curve}</curveType><Period><timeInterval>"
        f"<start>{at(begin)}</start><end>{at(begin + hours * HOUR_S)}</end></timeInterval>"
        f"<resolution>{resolution}</resolution>{text}</Period></TimeSeries>"
    )


def document(*parts, name="Publication_MarketDocument"):
    space = "urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"
    return f'<?xml version="1.0" encoding="utf-8"?><{name} xmlns="{space}">{"".join(parts)}</{name}>'.encode()


def reason(code, text):
    return document(f"<Reason><code>{code}</code><text>{text}</text></Reason>", name="Acknowledgement_MarketDocument")


@pytest.fixture
def entsoe(service):
    def ask(*parts, zone="DE-LU", status=200, since=MIDNIGHT_S, until=MIDNIGHT_S + DAY_S):
        service.answer = lambda request: (status, {}, parts[0] if isinstance(parts[0], bytes) else document(*parts))
        return service.fetch("entsoe", zone, since, until, now=lambda: NOW_S)

    return ask


def test_positions_left_out_repeat_the_one_before(entsoe, service):
    steps = entsoe(series([(1, 100.5), (5, -20), (24, 7)]))
    assert service.seen[0].query == {
        "securityToken": SECRET, "documentType": "A44", "in_Domain": "10Y1001A1001A82H",
        "out_Domain": "10Y1001A1001A82H", "periodStart": "202611152300", "periodEnd": "202611162300",
    }  # fmt: skip
    assert service.seen[0].headers["accept"] == "application/xml"
    np.testing.assert_allclose(steps.values, [0.1005] * 4 + [-0.02] * 19 + [0.007])
    assert (steps.label.kind, steps.label.unit, steps.label.issued_utc_s) == ("price", "EUR/kWh", None)
    assert SECRET not in list_kept(service.folder)[0].path.read_text()


def test_with_fixed_blocks_a_position_left_out_is_a_gap(entsoe):
    steps = entsoe(series([(k, k) for k in range(1, 25) if k != 7], curve="A01"))
    assert steps.gaps() == [(MIDNIGHT_S + 6 * HOUR_S, MIDNIGHT_S + 7 * HOUR_S)]


def test_quarters_of_the_day_that_has_23_hours(entsoe):
    begin = dt.datetime(2026, 3, 28, 23, tzinfo=dt.UTC).timestamp()
    quarters = series([(k, k) for k in range(1, 93)], begin=begin, hours=23, resolution="PT15M")
    steps = entsoe(quarters, since=begin, until=begin + 23 * HOUR_S)
    assert steps.start_s.size == 92
    assert steps.label.resolution_s == 900
    assert steps.end_s == begin + 23 * HOUR_S


def test_of_several_auctions_one_is_taken_and_noted(entsoe):
    place = "classificationSequence_AttributeInstanceComponent.position"
    second = series([(1, 2)], extra=f"<{place}>2</{place}>")
    first = series([(1, 1)], extra=f"<{place}>1</{place}>")
    intraday = series([(1, 3)], extra="<contract_MarketAgreement.type>A07</contract_MarketAgreement.type>")
    steps = entsoe(second, intraday, first)
    assert set(steps.values) == {0.001}
    assert "auction sequence 1 of 1, 2" in steps.label.notes
    assert set(entsoe(second, intraday).values) == {0.002}


def test_tomorrow_is_known_today(entsoe, service):
    tomorrow = MIDNIGHT_S + DAY_S
    steps = entsoe(series([(1, 9)], begin=tomorrow), since=tomorrow, until=tomorrow + DAY_S)
    assert steps.since_s == tomorrow
    with pytest.raises(ConfigError, match="no forecasts"):
        service.fetch("entsoe", "FR", forecast=True, now=lambda: NOW_S)


def test_currencies_are_not_mixed_or_converted(entsoe):
    assert entsoe(series([(1, 9)], currency="PLN"), zone="PL").label.unit == "PLN/kWh"
    with pytest.raises(ReadFailed, match="prices in EUR, PLN"):
        entsoe(series([(1, 9)]), series([(1, 9)], currency="PLN"))


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"no", 200, ReadFailed, "not XML"),
        (b"<a/>", 200, ReadFailed, "document 'a'"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', 200, ReadFailed, "DOCTYPE"),
        (reason(999, "No matching data found"), 200, ReadFailed, "no values"),
        (reason(999, "Requested period too long"), 400, ConfigError, "999 Requested period too long"),
        (b"Unauthorized", 401, Denied, "ENTSOE_TOKEN"),
        (document(), 200, ReadFailed, "no values"),
        (document(series([(25, 1)])), 200, ReadFailed, "position 25 of 24"),
        (document(series([(1, 1), (1, 2)])), 200, ReadFailed, "position 1 of 24"),
        (document(series([(1, "x")])), 200, ReadFailed, "without position or price"),
        (document(series([(1, "nan")])), 200, ReadFailed, "position 1 of 24"),
        (document(series([(1, 1)], resolution="P1Y")), 200, ReadFailed, "'P1Y'"),
    ],
)
def test_answers_without_prices(entsoe, body, status, kind, words):
    with pytest.raises(kind, match=words) as caught:
        entsoe(body, status=status)
    assert SECRET not in str(caught.value)


def test_zones_are_names_or_codes(entsoe, service):
    entsoe(series([(1, 1)]), zone="10YHU-MAVIR----U")
    assert service.seen[0].query["in_Domain"] == "10YHU-MAVIR----U"
    with pytest.raises(ConfigError, match=r"knows no zone 'DE'.*DE-LU"):
        entsoe(series([(1, 1)]), zone="DE")
