"""Ask the Transparency Platform of ENTSO-E for day-ahead prices of a bidding zone: per quarter hour or hour.

From the platform's guide of its REST API (document A44, [12.1.D]) as published clients use it and what others report of
it; this code was never tried against the real service:

- GET /api?securityToken&documentType=A44&in_Domain&out_Domain&periodStart&periodEnd, times as 202611160000 in UTC.
- A Publication_MarketDocument of TimeSeries, each with `currency_Unit.name`, `price_Measure_Unit.name` (MWH) and
  Periods of Points by position. With curveType A03 a position that is left out repeats the one before; with A01 it
  is a gap. The last point of a Period holds until its end.
- Other auctions come in the same answer: intraday (contract A07) is left out; of several day-ahead auctions (DE-LU
  and AT have EXAA's as sequence 2) that of the lowest sequence is taken, and what was taken is noted.
- Without data it answers with an Acknowledgement_MarketDocument and a reason.

Prices are those of the exchange: without fees, levies and taxes.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.planner.rates.services.asking import DAY_S, HOUR_S, About, Told, Value, iso, utc_s

if TYPE_CHECKING:
    from joulelab.planner.rates.services.asking import Door, Wanted

ABOUT = About(
    word="entsoe",
    title="ENTSO-E Transparency Platform",
    address="https://web-api.tp.entsoe.eu",
    kind="price",
    unit="EUR/kWh",
    covers="",
    licence="by the terms of the Transparency Platform",
    resolution_s=HOUR_S,
    page_s=30 * DAY_S,
    secrets={"token": "ENTSOE_TOKEN"},
    forecasts=False,
    ahead_s=2 * DAY_S,
    advice="zones are DE-LU, FR, NL, BE, AT, ES, PL, CZ, FI, or a code of 16 signs (EIC)",
    notes=("day-ahead price of the exchange, without fees, levies and taxes",),
)
ZONES = {
    "DE-LU": "10Y1001A1001A82H", "FR": "10YFR-RTE------C", "NL": "10YNL----------L", "BE": "10YBE----------2",
    "AT": "10YAT-APG------L", "ES": "10YES-REE------0", "PL": "10YPL-AREA-----S", "CZ": "10YCZ-CEPS-----N",
    "FI": "10YFI-1--------U",
}  # fmt: skip
EIC = re.compile(r"[0-9]{2}[XYZTWV][A-Z0-9-]{13}")
STEPS_S = {"PT15M": 900.0, "PT30M": 1800.0, "PT60M": HOUR_S, "PT1H": HOUR_S}
DAY_AHEAD, REPEATS, NO_DATA = "A01", "A03", "999"
LARGEST = 1e3  # per kWh, in any currency: beyond it is a fault


def ask(door: Door, wanted: Wanted) -> Told:
    """Return prices in CURRENCY/kWh. Raises ReadFailed, Denied, ConfigError."""
    zone = ZONES.get(wanted.zone, wanted.zone)
    if not EIC.fullmatch(zone):
        raise ConfigError(f"it knows no zone {wanted.zone!r}", where=ABOUT.title, next=ABOUT.advice)
    form = "%Y%m%d%H%M"
    params = {
        "securityToken": door.secrets["token"], "documentType": "A44", "in_Domain": zone, "out_Domain": zone,
        "periodStart": iso(wanted.since_s, form), "periodEnd": iso(wanted.until_s, form),
    }  # fmt: skip
    answer = door.ask("/api", params, headers={"Accept": "application/xml"})
    if answer.status not in (200, 400):  # a 400 brings its reason as a document
        door.check(answer, wanted)
    root = _parsed(answer.body)
    if _name(root) == "Acknowledgement_MarketDocument":
        code, text = _text(root, ".//{*}Reason/{*}code"), _text(root, ".//{*}Reason/{*}text")[:160]
        if code == NO_DATA and answer.status == 200:
            return Told([])
        raise ConfigError(
            "it does not take the request", where=ABOUT.title, why=f"{code} {text}".strip(), next=ABOUT.advice
        )
    if _name(root) != "Publication_MarketDocument":
        raise _odd(f"a document {_name(root)[:60]!r}")
    return _prices(root)


def _prices(root: ET.Element) -> Told:
    """Return the prices of one auction: the day-ahead one of the lowest sequence."""
    series = [one for one in root.findall("{*}TimeSeries") if _contract(one) == DAY_AHEAD]
    sequences = sorted({_sequence(one) for one in series})
    chosen = [one for one in series if _sequence(one) == sequences[0]]
    currencies = {_text(one, "{*}currency_Unit.name") for one in chosen}
    measures = {_text(one, "{*}price_Measure_Unit.name") for one in chosen}
    if len(currencies) > 1 or measures - {"MWH"} or not all(re.fullmatch("[A-Z]{3}", word) for word in currencies):
        raise _odd(f"prices in {', '.join(sorted(currencies))} per {', '.join(sorted(measures))}")
    notes = (f"auction sequence {sequences[0]} of {', '.join(map(str, sequences))}",) if len(sequences) > 1 else ()
    values = [value for one in chosen for period in one.findall("{*}Period") for value in _values(one, period)]
    return Told(values, unit=f"{currencies.pop()}/kWh" if currencies else "", notes=notes)


def _values(series: ET.Element, period: ET.Element) -> list[Value]:
    step_s = STEPS_S.get(_text(period, "{*}resolution"))
    begin = utc_s(_text(period, "{*}timeInterval/{*}start"), ABOUT.title)
    end = utc_s(_text(period, "{*}timeInterval/{*}end"), ABOUT.title)
    if step_s is None or not 0 < end - begin <= 400 * DAY_S:
        raise _odd(f"a period of resolution {_text(period, '{*}resolution')[:20]!r}")
    count = round((end - begin) / step_s)
    told: dict[int, float] = {}
    for point in period.findall("{*}Point"):
        try:
            at, price = int(_text(point, "{*}position")), float(_text(point, "{*}price.amount")) / 1e3
        except ValueError:
            raise _odd("a point without position or price") from None
        if not 1 <= at <= count or at in told or not abs(price) <= LARGEST:
            raise _odd(f"a point at position {at} of {count}")
        told[at] = price
    found: list[Value] = []
    last: float | None = None
    for at in range(1, count + 1):
        last = told.get(at, last if _text(series, "{*}curveType") == REPEATS else None)
        found.append(Value(begin + (at - 1) * step_s, begin + at * step_s, last))
    return found


def _parsed(body: bytes) -> ET.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:  # the format has none; they could make a small answer huge
        raise _odd("a document with a DOCTYPE")
    try:
        return ET.fromstring(body)  # noqa: S314 no DOCTYPE, no entities, and of bounded length
    except ET.ParseError:
        raise ReadFailed(
            "its answer is not XML", where=ABOUT.title, why=f"it begins with {body[:40].decode('ascii', 'replace')!r}"
        ) from None


def _contract(series: ET.Element) -> str:
    return _text(series, "{*}contract_MarketAgreement.type") or DAY_AHEAD


def _sequence(series: ET.Element) -> int:
    text = _text(series, "{*}classificationSequence_AttributeInstanceComponent.position")
    return int(text) if text.isdecimal() else 1


def _name(root: ET.Element) -> str:
    return root.tag.rpartition("}")[2]


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _odd(why: str) -> ReadFailed:
    return ReadFailed("its answer is not as documented", where=ABOUT.title, why=why)
