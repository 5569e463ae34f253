"""Sums of selected runs: shared errors of meters add up, the others as independent; what they leave out is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joulelab.core.quantity import Quantity
from joulelab.dashboard.lists import _note_sites, _write_row
from joulelab.dashboard.run_entries import Entry
from joulelab.dashboard.selection import sum_entries
from joulelab.site.footprint import Site

SITE = Site(name="Germany", g_per_kwh=400.0, year=2023, source="Ember", price=0.25, currency="EUR", pue=1.2)
JOULES = 3.6e6  # 1 kWh


def entry(number: int, *, gain: float = 0.0, edge: float = 0.0, **more: Any) -> Entry:
    energy = Quantity(JOULES, {"gain": gain * JOULES, "edge": edge * JOULES})
    start = f"2026-11-16T{number:02d}:00:00.000+00:00"
    known = {"status": "ok", "hosts": ("node1",), "start_utc": start, "duration_s": 60.0, "is_complete": True}
    return Entry(f"run{number}", Path(f"/x/run{number}"), **{**known, "energy": energy, "site": SITE, **more})


def test_errors_of_meters_add_up_and_others_do_not() -> None:
    shared = sum_entries([entry(k, gain=0.03) for k in range(4)])
    own = sum_entries([entry(k, edge=0.03) for k in range(4)])
    both = sum_entries([entry(k, gain=0.03, edge=0.04) for k in range(4)])
    wanted = {"shared": 0.06, "own": 0.03, "both": 2 * (0.03**2 + 0.04**2 / 4) ** 0.5}
    found = {"shared": shared, "own": own, "both": both}
    assert {name: one.energy.relative for name, one in found.items() if one.energy} == pytest.approx(wanted)
    assert both.energy is not None
    assert (both.energy.kwh.value, both.time_s) == (pytest.approx(4.0), 240.0)
    assert both.costs["EUR"].value == pytest.approx(4 * 1.2 * 0.25)
    assert both.costs["EUR"].relative == pytest.approx(wanted["both"])
    assert both.co2e_kg is not None
    assert both.co2e_kg.value == pytest.approx(4 * 1.2 * 0.4)
    assert (both.overlapping, both.simulated, set(both.without.values())) == (0, 0, {0})


def test_sums_count_what_they_leave_out() -> None:
    bare = entry(5, energy=None)
    broken = entry(6, status="broken")
    unknown = entry(7, energy=Quantity(JOULES, known=False), site=None)
    beside = entry(2, start_utc="2026-11-16T01:00:30.000+00:00")
    virtual = entry(3, start_utc="2026-11-16T01:00:30.000+00:00", twin="h100")
    found = sum_entries([entry(1), beside, virtual, bare, broken, unknown])
    assert found.without == {"energy": 2, "time": 0, "cost": 3, "co2e": 3}
    assert found.energy is not None
    assert found.energy.expanded is None
    assert (found.runs, found.simulated, found.overlapping) == (6, 1, 2)
    lines = dict(found.list_facts())
    assert lines["energy"].endswith(", without 2 runs that have none")
    assert "Germany 2023" in lines["CO2e"]
    assert found.to_json()["lines"] == found.list_facts()
    assert sum_entries([bare]).list_facts()[0] == ("time", "60.00 s")
    going = sum_entries([entry(1), entry(2, status="live")])
    assert ("note", "1 of 2 runs are still running: the sums are those so far") in going.list_facts()
    lines = dict(sum_entries([entry(1), entry(2, estimate=True)]).list_facts())
    assert [name for name in ("energy", "cost", "CO2e") if not lines[name].startswith("~")] == []


def test_rows_mark_wide_intervals_and_warnings_in_words() -> None:
    wide = entry(
        1,
        gain=0.15,
        work=("tokens", 1000.0),
        warnings=("host load", "gaps"),
        twin="h100",
        command=("python", "train.py"),
    )
    row = _write_row(wide, None, True, True)
    wanted = [
        "wide: ± 30 %",
        "2 warnings",
        "host load, gaps",
        "simulated",
        "python train.py",
        "J/token",
        "1,000 tokens",
    ]
    assert [word for word in wanted if word not in row] == []
    narrow = _write_row(entry(1, gain=0.01), None, True, True)
    assert [word for word in ("wide", "warning", "simulated") if word in narrow] == []
    assert "± 2 %" in narrow
    priced = entry(2, site=Site(price=0.25, currency="EUR"))
    note = _note_sites([entry(1), priced, entry(3)])
    assert note is not None
    assert "Germany 2023, 400 g/kWh by Ember, PUE 1.2 / 0.25 EUR/kWh<" in note
